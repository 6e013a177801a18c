"""Carries the core's decisions out on the API server, and says how each ended.

What is decided about a pod goes through a subresource: `pods/status` takes annotations beside the
nomination, `pods/binding` beside the node. So a plan and its nomination, or GPUs and node, are one
update that is seen whole or not at all. Only a scheduling gate has no subresource: it is lifted by
a patch of the pod itself, which names that gate and nothing else. Every body carries the pod's uid,
and is refused where a pod of the same name has taken its place: a Binding with 409, a patch with
422, since it would change what may not change.
"""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import assert_never

import msgspec
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt
from tenacity.wait import wait_random_exponential

from linkwise.extender.api.actions import (
    Action,
    Correct,
    Emit,
    Evict,
    LiftGate,
    MarkStarted,
    Nominate,
    NoteQueue,
    PodRef,
    WithdrawPlan,
    WritePlan,
)
from linkwise.extender.api.extender_calls import BindOrder, Outcome
from linkwise.extender.runtime.leadership import ALONE, Lead
from linkwise.extender.runtime.metrics import ExtenderMetrics
from linkwise.kube.client import STRATEGIC_PATCH, KubeClient
from linkwise.kube.errors import ApiError
from linkwise.topology import names

log = logging.getLogger(__name__)

_COMPONENT = "linkwise-extender"
_LEADER = f"{names.PREFIX}leader"
_ATTEMPTS = 3
_LONGEST_WAIT_SECONDS = 2.0
_MESSAGE_LIMIT = 1024  # of an Event's message, by the API server's validation


class KubeActions:
    """Safe for threads. `clock` gives seconds since 1970, for the times in Events. Nothing is asked
    unless *lead* lets it, and what is asked is over before another may lead."""

    def __init__(
        self,
        client: KubeClient,
        metrics: ExtenderMetrics,
        clock: Callable[[], float] = time.time,
        lead: Lead = ALONE,
    ) -> None:
        self._client, self._metrics, self._clock, self._lead = client, metrics, clock, lead

    def bind(self, order: BindOrder) -> tuple[Outcome, str]:
        """Post the Binding, once: kube-scheduler asks again where it failed. The text is for it."""
        path = f"{_path(order.namespace, order.name)}/binding"
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": order.name,
                "namespace": order.namespace,
                "uid": order.uid,
                "annotations": dict(order.annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": order.node},
        }
        what = f"{order.namespace}/{order.name} to {order.node}"
        request = partial(self._client.post, path, body)
        outcome, refusal = self._write("Bind", what, lambda: self._in_time(request))
        if outcome is Outcome.DONE:
            log.info("bound %s", what)
            return outcome, ""
        return outcome, f"linkwise: binding {what}: {refusal}"

    def perform(self, action: Action) -> Outcome:
        """Write what *action* asks for; tried again while the API server is busy or away."""
        kind = type(action).__name__
        request = self._request(action)
        outcome, _ = self._write(kind, str(action.pod), lambda: self._patiently(request))
        return outcome

    def _request(self, action: Action) -> Callable[[], None]:
        """One request, the same however often it is made. It raises ApiError."""
        match action:
            case WritePlan():
                nomination = {"nominatedNodeName": action.node}
                return partial(self._patch_status, action.pod, action.annotations, nomination)
            case WithdrawPlan():
                gone = dict.fromkeys(action.annotations)
                return partial(self._patch_status, action.pod, gone, {"nominatedNodeName": None})
            case Nominate():
                nomination = {"nominatedNodeName": action.node}
                return partial(self._patch_status, action.pod, {}, nomination)
            case Correct() | MarkStarted() | NoteQueue():
                return partial(self._patch_status, action.pod, action.annotations)
            case LiftGate():
                lifting = _lifting(action.pod)
                return partial(self._client.patch, *lifting, content_type=STRATEGIC_PATCH)
            case Evict():
                return partial(self._client.post, *_eviction(action.pod, self._lead.term))
            case Emit():
                return partial(self._post_event, *_event(action, self._clock()))
            case _:
                assert_never(action)

    def _post_event(self, path: str, event: Mapping[str, object]) -> None:
        try:
            self._client.post(path, event)
        except ApiError as error:
            if error.status != 409:
                raise
            # It is there: told before, by this process or the one before it, or only the answer
            # was lost. So it is kept for as long again, and not told twice.
            name = msgspec.convert(event["metadata"], dict[str, str])["name"]
            self._client.patch(f"{path}/{name}", {"lastTimestamp": event["lastTimestamp"]})

    def _patch_status(
        self,
        pod: PodRef,
        annotations: Mapping[str, str | None],
        status: Mapping[str, str | None] | None = None,
    ) -> None:
        body: dict[str, object] = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
        if status is not None:
            body["status"] = status
        self._client.patch(f"{_path(pod.namespace, pod.name)}/status", body)

    def _in_time(self, request: Callable[[], None]) -> None:
        """Looked at as late as can be: who was stopped meanwhile must not go on."""
        seconds = self._lead.write_seconds()
        if seconds <= 0:
            raise ApiError(412, "NotLeading", self._lead.refusal())
        with self._client.within(seconds):
            request()

    def _patiently(self, request: Callable[[], None]) -> None:
        """These writes may be done twice without harm, unlike a Binding whose GPUs are at stake."""
        try:
            self._in_time(request)
        except ApiError as error:
            if not _may_pass(error):
                raise
            failure = error
        else:
            return  # as nearly always, and then nothing has to be made ready for a second try
        first = [failure]

        def again() -> None:
            if first:
                raise first.pop()
            self._in_time(request)

        Retrying(
            retry=retry_if_exception(_may_pass),
            wait=_wait,
            stop=stop_after_attempt(_ATTEMPTS),
            reraise=True,
        )(again)

    def _write(self, kind: str, what: str, request: Callable[[], None]) -> tuple[Outcome, str]:
        began = time.perf_counter()
        outcome, refusal = Outcome.DONE, ""
        try:
            request()
        except ApiError as error:
            # A retried write is left to the core to ask for again; of a Binding the core must
            # know for certain before it gives the GPUs to another pod.
            unsure = error.maybe_done if kind == "Bind" else _may_pass(error)
            outcome, refusal = Outcome.UNKNOWN if unsure else Outcome.REFUSED, str(error)
            log.log(
                logging.INFO if _is_too_late(error) else logging.WARNING,
                "%s %s: %s: %s",
                kind,
                what,
                outcome.value,
                error,
            )
        self._metrics.actions.labels(kind, outcome.value).inc()
        self._metrics.action_seconds.labels(kind).observe(time.perf_counter() - began)
        return outcome, refusal


def _is_too_late(error: ApiError) -> bool:
    """Whether the pod has gone, been replaced or been bound meanwhile, which is nobody's fault."""
    late = ("metadata.uid", "already bound to a node")
    refused = error.status == 422 and any(words in error.message for words in late)
    return refused or error.status in (404, 409)


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    if not isinstance(error, ApiError):
        return False
    if error.status == 429 and "disruption budget" in error.message:
        return False  # in minutes maybe, and there may be others to evict
    return error.status in (0, 429) or error.status >= 500


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_seconds if isinstance(error, ApiError) else None
    if asked is not None:
        return min(asked, _LONGEST_WAIT_SECONDS)
    return wait_random_exponential(multiplier=0.1, max=_LONGEST_WAIT_SECONDS)(state)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _lifting(pod: PodRef) -> tuple[str, dict[str, object]]:
    """By name, so that no gate of somebody else goes with it."""
    gates = [{"$patch": "delete", "name": names.GATE}]
    return _path(pod.namespace, pod.name), {
        "metadata": {"uid": pod.uid},
        "spec": {"schedulingGates": gates},
    }


def _eviction(pod: PodRef, term: int) -> tuple[str, dict[str, object]]:
    metadata: dict[str, object] = {"name": pod.name, "namespace": pod.namespace}
    if term:  # kept by nobody; the API server refuses what is of a leader before the present one
        metadata["annotations"] = {_LEADER: str(term)}
    body: dict[str, object] = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": metadata,
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    return f"{_path(pod.namespace, pod.name)}/eviction", body


def _event(action: Emit, now: float) -> tuple[str, dict[str, object]]:
    pod = action.pod
    when = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    same = sha256(f"{pod.uid} {action.reason} {action.message}".encode()).hexdigest()[:16]
    body: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod.name[:200]}.{same}", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "reason": action.reason,
        "message": action.message[:_MESSAGE_LIMIT],
        "type": action.type.value,
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }
    return f"/api/v1/namespaces/{pod.namespace}/events", body
