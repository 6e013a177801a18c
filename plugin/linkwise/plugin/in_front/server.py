"""The DevicePlugin that the kubelet calls in the place of a vendor's: passes calls on, and prefers.

Messages are bytes on both sides. Allocate and PreStartContainer pass unchanged, errors too. For
whole GPUs, GetPreferredAllocation returns their plan, or the better of the vendor's answer and
Linkwise's. For shares of GPUs it returns their plan, or the vendor's answer if that spoils no plan.
About anything else the vendor knows more, so the call goes to the vendor's plugin.
"""

# ruff: noqa: ARG002, N802 - gRPC gives a servicer's methods their names and arguments

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

import grpc

from linkwise.plugin.device_plugin.advisors import ShareAdvice
from linkwise.plugin.device_plugin.allocate import Question
from linkwise.plugin.device_plugin.grpc_channel import reason_of
from linkwise.plugin.device_plugin.server import Advice, Streams, preferred, question_of
from linkwise.plugin.in_front.offer import Offer
from linkwise.plugin.in_front.resource import are_whole
from linkwise.plugin.in_front.sharing import gpus_of, is_share
from linkwise.plugin.in_front.vendor import PREFER_SECONDS, Call
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.metrics import Metrics
from linkwise.topology.machine.model import Machine

log = logging.getLogger(__name__)

_FOR_EVER_SECONDS = 1e9  # grpcio says 9e18 if a caller has no deadline, and cannot pass that on


class FrontPlugin:
    """`advice` and `shares` return None until the GPUs are known. Each Allocate ends by calling
    `on_allocated`."""

    def __init__(
        self,
        offer: Offer,
        metrics: Metrics,
        *,
        advice: Callable[[], Advice | None],
        on_allocated: Callable[[], None],
        shares: Callable[[], ShareAdvice | None] = lambda: None,
    ) -> None:
        self._offer, self._metrics, self._shares = offer, metrics, shares
        self._advice, self._on_allocated = advice, on_allocated
        self.streams = Streams(offer.wake)

    def add_to(self, server: grpc.Server) -> None:
        unary = {
            "GetDevicePluginOptions": self.GetDevicePluginOptions,
            "GetPreferredAllocation": self.GetPreferredAllocation,
            "Allocate": self.Allocate,
            "PreStartContainer": self.PreStartContainer,
        }
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(method) for name, method in unary.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self.ListAndWatch)
        handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)
        server.add_generic_rpc_handlers((handler,))

    def GetDevicePluginOptions(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return self._offer.options.SerializeToString()

    def ListAndWatch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = self.streams.open(context)
        version = 0
        while True:
            version, devices = self._offer.wait_newer(
                version, given_up=lambda: not self.streams.count(stream)
            )
            if not self.streams.count(stream):
                return
            yield devices.SerializeToString()

    def PreStartContainer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return self._hand_through("PreStartContainer", request, context)

    def Allocate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        began = time.perf_counter()
        reply = self._hand_through("Allocate", request, context)
        try:
            self._note(wire.AllocateRequest.FromString(request))
        except Exception:  # the vendor has given the devices: accounting must not fail the call
            log.exception("%s: an Allocate is not accounted for", self._offer.resource)
        self._on_allocated()
        self._metrics.call_seconds.labels("Allocate").observe(time.perf_counter() - began)
        return reply

    def _note(self, request: wire.AllocateRequest) -> None:
        for asked in request.container_requests:
            known = self._known(asked.devices_ids)
            whole = self._whole(known)
            if whole is not None:
                machine, advice = whole
                advice.allocated(machine, frozenset(asked.devices_ids))
            elif (shares := self._of_shares(known)) is not None:
                shares[1].allocated(frozenset(asked.devices_ids))

    def GetPreferredAllocation(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        began = time.perf_counter()
        asked = wire.PreferredAllocationRequest.FromString(request).container_requests
        questions = self._questions(asked)
        whole = self._whole([each for one in questions for each in one.available | one.must])
        if whole is None:
            preference = self._planned_shares(asked, questions, context)
            return preference or self._vendors_preference(request, asked, context)
        machine, advice = whole
        answers = [
            advice.prefer(machine, question, other=partial(self._other, each, context))
            for question, each in zip(questions, asked, strict=True)
        ]
        reply = preferred(answer.gpus for answer in answers).SerializeToString()
        self._metrics.call_seconds.labels("GetPreferredAllocation").observe(
            time.perf_counter() - began
        )
        return reply

    def _known(self, ids: Iterable[str]) -> list[str]:
        """Those that are GPUs that Linkwise has read, or shares of GPUs. A device of which it knows
        nothing costs no other one its plan."""
        machine = self._offer.machine
        gpus = set() if machine is None else {gpu.uuid for gpu in machine.gpus}
        return [each for each in ids if each in gpus or is_share(each, machine)]

    def _gpus(self, ids: Collection[str]) -> int:
        """How many GPUs these devices are, or are parts of."""
        return len(gpus_of(ids, self._offer.machine))

    def _questions(
        self, asked: Sequence[wire.ContainerPreferredAllocationRequest]
    ) -> list[Question]:
        """The questions about known devices; none if these are too few for an answer."""
        questions = []
        for question in map(question_of, asked):
            known = frozenset(self._known(question.available | question.must))
            if not question.must <= known or len(known) < question.size:
                return []
            questions.append(replace(question, available=question.available & known))
        return questions

    def _whole(self, ids: Sequence[str]) -> tuple[Machine, Advice] | None:
        """The machine and the advice for these devices; None unless all are GPUs that Linkwise
        plans."""
        machine, advice = self._offer.machine, self._advice()
        if not (ids and self._offer.managed) or machine is None or advice is None:
            return None
        return (machine, advice) if are_whole(ids, machine) else None

    def _of_shares(self, ids: Sequence[str]) -> tuple[Machine, ShareAdvice] | None:
        """The machine and the advice for these known devices; None unless some are shares of
        GPUs."""
        machine = self._offer.machine
        has_shares = any(is_share(each, machine) for each in ids)
        advice = self._shares() if has_shares and machine is not None else None
        return None if machine is None or advice is None else (machine, advice)

    def _planned_shares(
        self,
        asked: Sequence[wire.ContainerPreferredAllocationRequest],
        questions: Sequence[Question],
        context: grpc.ServicerContext,
    ) -> bytes:
        """The reply by plans; empty if these devices are no shares, or no plan matters."""
        known = self._of_shares([each for one in questions for each in one.available])
        if known is None:
            return b""
        machine, advice = known
        chosen = advice.prefer(
            machine,
            questions,
            [partial(self._other, each, context) for each in asked],
        )
        return b"" if chosen is None else preferred(chosen).SerializeToString()

    def _vendors_preference(
        self,
        request: bytes,
        asked: Sequence[wire.ContainerPreferredAllocationRequest],
        context: grpc.ServicerContext,
    ) -> bytes:
        vendor, devices = self._offer.vendor, _most(asked, len)
        if vendor is not None and not vendor.prefers_among(devices, _most(asked, self._gpus)):
            return b""  # the kubelet then takes any
        reply = self._hand_through("GetPreferredAllocation", request, context, devices=devices)
        self._metrics.preferred.labels("vendor").inc()
        return reply

    def _other(
        self, asked: wire.ContainerPreferredAllocationRequest, context: grpc.ServicerContext
    ) -> Sequence[str]:
        """What the vendor's plugin prefers; nothing if it does not say so soon."""
        vendor, devices = self._offer.vendor, _most([asked], len)
        if vendor is None or not vendor.prefers_among(devices, _most([asked], self._gpus)):
            return ()
        request = wire.PreferredAllocationRequest(container_requests=[asked])
        patience = min(PREFER_SECONDS, _remaining(context) or math.inf)
        try:
            call = vendor.call(
                "GetPreferredAllocation", request.SerializeToString(), patience, devices=devices
            )
            reply = wire.PreferredAllocationResponse.FromString(call.result())
        except (grpc.RpcError, grpc.FutureCancelledError, ValueError) as error:
            self._count("GetPreferredAllocation", "failed")
            log.warning(
                "%s: the vendor's plugin does not say which devices it prefers: %s",
                self._offer.resource,
                reason_of(error),
            )
            return ()
        self._count("GetPreferredAllocation", "done")
        return reply.container_responses[0].deviceIDs if reply.container_responses else ()

    def _hand_through(
        self, method: str, request: bytes, context: grpc.ServicerContext, *, devices: int = 0
    ) -> bytes:
        """The vendor's answer, or its error with code and text, within the caller's deadline."""
        call = self._begin(method, request, context, devices)
        if call is None:
            why = f"no plugin for {self._offer.resource} is registered with Linkwise"
            self._refuse(method, context, grpc.StatusCode.UNAVAILABLE, why)
        if not context.add_callback(lambda: _cancel(call)):  # the caller has gone
            call.cancel()
        try:
            reply: bytes = call.result()
        except grpc.FutureCancelledError:
            self._refuse(method, context, grpc.StatusCode.CANCELLED, "the call was cancelled")
        except grpc.RpcError as error:
            if not isinstance(error, grpc.Call):
                raise
            self._refuse(method, context, error.code(), error.details() or "")
        self._count(method, "done")
        return reply

    def _begin(
        self, method: str, request: bytes, context: grpc.ServicerContext, devices: int
    ) -> "Call | None":
        """None if there is no vendor's plugin to call."""
        vendor, seconds = self._offer.vendor, _remaining(context)
        try:
            return vendor.call(method, request, seconds, devices=devices) if vendor else None
        except ValueError:  # it has just been stopped
            return None

    def _refuse(
        self, method: str, context: grpc.ServicerContext, code: grpc.StatusCode, why: str
    ) -> NoReturn:
        self._count(method, "failed")
        if method == "Allocate":
            self._metrics.allocations.labels("refused").inc()
        log.error("%s: %s: %s: %s", self._offer.resource, method, code.name, why)
        context.abort(code, why)

    def _count(self, method: str, outcome: str) -> None:
        self._metrics.vendor_calls.labels(self._offer.resource, method, outcome).inc()


def _most(
    asked: Iterable[wire.ContainerPreferredAllocationRequest],
    count: Callable[[Collection[str]], int],
) -> int:
    """The highest *count* of the devices of which one question asks to prefer some."""
    return max((count(each.available_deviceIDs) for each in asked), default=0)


def _remaining(context: grpc.ServicerContext) -> float | None:
    """Seconds until the caller gives up; None if it waits forever."""
    seconds = context.time_remaining()
    return seconds if seconds < _FOR_EVER_SECONDS else None


def _cancel(call: Call) -> None:
    call.cancel()
