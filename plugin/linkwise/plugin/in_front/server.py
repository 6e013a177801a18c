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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn

import grpc

from linkwise.plugin.device_plugin.advisors import ShareAdvice
from linkwise.plugin.device_plugin.grpc_channel import reason_of
from linkwise.plugin.device_plugin.server import Advice, Streams, preferred, question_of
from linkwise.plugin.in_front.offer import Offer
from linkwise.plugin.in_front.resource import are_whole
from linkwise.plugin.in_front.sharing import is_share
from linkwise.plugin.in_front.vendor import Call
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.metrics import Metrics
from linkwise.topology.machine.model import Machine

log = logging.getLogger(__name__)

# How long the vendor's plugin may take to say which GPUs it prefers. NVIDIA's takes 1 to 2 ms for 8
# GPUs, and half a minute for some questions of 16 (NVIDIA/k8s-device-plugin#774).
_PREFER_SECONDS = 1.0
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
            whole = self._whole([asked.devices_ids])
            if whole is not None:
                machine, advice = whole
                advice.allocated(machine, frozenset(asked.devices_ids))
            elif (shares := self._of_shares(asked.devices_ids)) is not None:
                shares[1].allocated(frozenset(asked.devices_ids))

    def GetPreferredAllocation(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        began = time.perf_counter()
        asked = wire.PreferredAllocationRequest.FromString(request).container_requests
        whole = self._whole(
            [
                ids
                for each in asked
                for ids in (each.available_deviceIDs, each.must_include_deviceIDs)
            ]
        )
        if whole is None:
            preference = self._planned_shares(asked, context)
            return preference or self._vendors_preference(request, context)
        machine, advice = whole
        answers = [
            advice.prefer(machine, question_of(each), other=partial(self._other, each, context))
            for each in asked
        ]
        reply = preferred(answer.gpus for answer in answers).SerializeToString()
        self._metrics.call_seconds.labels("GetPreferredAllocation").observe(
            time.perf_counter() - began
        )
        return reply

    def _whole(self, ids: Sequence[Sequence[str]]) -> tuple[Machine, Advice] | None:
        """The machine and the advice for these devices; None unless all are GPUs that Linkwise
        plans."""
        machine, advice = self._offer.machine, self._advice()
        if not self._offer.managed or machine is None or advice is None:
            return None
        return (machine, advice) if all(are_whole(each, machine) for each in ids) else None

    def _of_shares(self, ids: Sequence[str]) -> tuple[Machine, ShareAdvice] | None:
        """The machine and the advice for these devices; None unless some are shares of GPUs, and
        the others whole GPUs."""
        machine, others = self._offer.machine, [each for each in ids if not is_share(each)]
        known = machine is not None and are_whole(others, machine) and len(others) < len(ids)
        advice = self._shares() if known else None
        return None if machine is None or advice is None else (machine, advice)

    def _planned_shares(
        self,
        asked: Sequence[wire.ContainerPreferredAllocationRequest],
        context: grpc.ServicerContext,
    ) -> bytes:
        """The reply by plans; empty if these devices are no shares, or no plan matters."""
        known = self._of_shares([each for one in asked for each in one.available_deviceIDs])
        if known is None:
            return b""
        machine, advice = known
        chosen = advice.prefer(
            machine,
            [question_of(each) for each in asked],
            [partial(self._other, each, context) for each in asked],
        )
        return b"" if chosen is None else preferred(chosen).SerializeToString()

    def _vendors_preference(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        vendor = self._offer.vendor
        if vendor is not None and not vendor.options.get_preferred_allocation_available:
            return b""  # the kubelet then takes any
        reply = self._hand_through("GetPreferredAllocation", request, context)
        self._metrics.preferred.labels("vendor").inc()
        return reply

    def _other(
        self, asked: wire.ContainerPreferredAllocationRequest, context: grpc.ServicerContext
    ) -> Sequence[str]:
        """What the vendor's plugin prefers; nothing if it does not say so soon."""
        vendor = self._offer.vendor
        if vendor is None or not vendor.options.get_preferred_allocation_available:
            return ()
        request = wire.PreferredAllocationRequest(container_requests=[asked])
        patience = min(_PREFER_SECONDS, _remaining(context) or math.inf)
        try:
            call = vendor.call("GetPreferredAllocation", request.SerializeToString(), patience)
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

    def _hand_through(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        """The vendor's answer, or its error with code and text, within the caller's deadline."""
        call = self._begin(method, request, context)
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

    def _begin(self, method: str, request: bytes, context: grpc.ServicerContext) -> "Call | None":
        """None if there is no vendor's plugin to call."""
        vendor = self._offer.vendor
        try:
            return vendor.call(method, request, _remaining(context)) if vendor else None
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


def _remaining(context: grpc.ServicerContext) -> float | None:
    """Seconds until the caller gives up; None if it waits forever."""
    seconds = context.time_remaining()
    return seconds if seconds < _FOR_EVER_SECONDS else None


def _cancel(call: Call) -> None:
    call.cancel()
