"""Writes the core's decisions to the API server, and reports how each write ended.

The writes about a pod go through subresources: `pods/status` accepts annotations with the
nomination, `pods/binding` with the node. So a plan and its nomination, or GPUs and node, are one
atomic update. Only a scheduling gate has no subresource: a patch of the pod itself removes it, and
names that gate and nothing else. Every body carries the pod's uid. If a pod of the same name has
replaced it, the API server refuses the write: a Binding with 409, a patch with 422, because a uid
is immutable.
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

from linkwise.extender.run.claim_body import claim_body, is_claim_for
from linkwise.extender.run.leadership import ALONE, Lead
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.places import Places
from linkwise.extender.state.actions import (
    Action,
    Correct,
    CreateClaim,
    DropClaim,
    Emit,
    Evict,
    LiftGate,
    MarkStarted,
    Nominate,
    NotePlaces,
    NoteQueue,
    PodRef,
    WithdrawPlan,
    WritePlan,
)
from linkwise.extender.state.extender_calls import BindOrder, Outcome
from linkwise.kube.client import MERGE_PATCH, STRATEGIC_PATCH, KubeClient
from linkwise.kube.device_claims import ROOT, ResourceClaim
from linkwise.kube.errors import ApiError
from linkwise.kube.quoted import one_line
from linkwise.pods.claims import DEVICE_CLASS
from linkwise.topology import names

log = logging.getLogger(__name__)

_COMPONENT = "linkwise-extender"
_LEADER = f"{names.PREFIX}leader"
_ATTEMPTS = 3
_LONGEST_WAIT_SECONDS = 2.0
# Without these a plan cannot be carried out. The API server's refusals of them hold for the next
# try, except for those that `_is_too_late`.
_DENIABLE, _DENIALS = ("Bind", "WritePlan", "CreateClaim"), (400, 403, 422)


class _Claims(msgspec.Struct, frozen=True):
    items: tuple[ResourceClaim, ...] = ()


class Writer:
    """Thread-safe. *clock* gives seconds since 1970, for the times in Events; by default it is the
    API server's. *device_class*: of the claims for GPUs.

    A request starts only if *lead* allows it, and ends before another process may lead.
    """

    def __init__(
        self,
        client: KubeClient,
        metrics: ExtenderMetrics,
        clock: Callable[[], float] | None = None,
        lead: Lead = ALONE,
        device_class: str = DEVICE_CLASS,
        places: Places | None = None,
    ) -> None:
        self._device_class = device_class
        self._places = places or Places(client, "kube-system")
        self._client, self._metrics, self._lead = client, metrics, lead
        self._clock = clock or client.clock

    def bind(self, order: BindOrder) -> tuple[Outcome, str]:
        """Post the Binding once; if it fails, kube-scheduler retries. The text is its answer."""
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
            return outcome, ""
        return outcome, f"linkwise: binding {what}: {refusal}"

    def perform(self, action: Action) -> Outcome:
        """Write *action*; retry while the API server is busy or unreachable."""
        kind = type(action).__name__
        request = self._request(action)
        outcome, _ = self._write(kind, str(action.pod), lambda: self._patiently(request))
        return outcome

    def _request(self, action: Action) -> Callable[[], None]:
        """An idempotent request. It raises ApiError."""
        match action:
            case WritePlan():
                return partial(self._write_plan, action)
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
            case CreateClaim() | DropClaim() | NotePlaces():
                return self._request_beside_pods(action)
            case Evict():
                return partial(self._client.post, *_eviction(action.pod, self._lead.term))
            case Emit():
                return partial(self._post_event, *_event(action, self._clock()))
            case _:
                assert_never(action)

    def _request_beside_pods(
        self, action: CreateClaim | DropClaim | NotePlaces
    ) -> Callable[[], None]:
        match action:
            case CreateClaim():
                return partial(self._create_claim, action)
            case DropClaim():
                path, uid, version = _claim_path(action), action.uid, action.version
                return partial(self._client.delete, path, uid=uid, version=version)
            case NotePlaces():
                return partial(self._places.write, action)
            case _:
                assert_never(action)

    def _write_plan(self, action: WritePlan) -> None:
        status: dict[str, object] = {"nominatedNodeName": action.node}
        content_type = MERGE_PATCH  # is cheaper, and removes no entry of a list
        if action.unsays:
            status["conditions"] = [{"$patch": "delete", "type": "PodScheduled"}]
            content_type = STRATEGIC_PATCH
        self._patch_status(action.pod, action.annotations, status, content_type)

    def _create_claim(self, action: CreateClaim) -> None:
        namespace, template = action.pod.namespace, None
        if action.template:
            path = f"{ROOT}/namespaces/{namespace}/resourceclaimtemplates/{action.template}"
            template = self._client.get(path, dict[str, object])
        try:
            body = claim_body(action, self._device_class, template)
        except ValueError as error:
            raise ApiError(422, "Invalid", str(error)) from None
        path = f"{ROOT}/namespaces/{namespace}/resourceclaims"
        try:
            self._client.post(path, body)
        except ApiError as error:
            if error.status != 409:
                raise
            named = {"fieldSelector": f"metadata.name={action.name}"}
            there = self._client.get(path, _Claims, params=named).items
            if not any(is_claim_for(action, claim) for claim in there):
                # It may stay, so the pod must not keep GPUs from others meanwhile.
                why = "a claim of this name exists, and is not that of this plan"
                raise ApiError(422, "Invalid", why) from None

    def _post_event(self, path: str, event: Mapping[str, object]) -> None:
        try:
            self._client.post(path, event)
        except ApiError as error:
            if error.status != 409:
                raise
            # The Event exists: this process or its predecessor emitted it, or only the response was
            # lost. The patch renews its time to live, and there is no second Event.
            name = msgspec.convert(event["metadata"], dict[str, str])["name"]
            self._client.patch(f"{path}/{name}", {"lastTimestamp": event["lastTimestamp"]})

    def _patch_status(
        self,
        pod: PodRef,
        annotations: Mapping[str, str | None],
        status: Mapping[str, object] | None = None,
        content_type: str = MERGE_PATCH,
    ) -> None:
        body: dict[str, object] = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
        if status is not None:
            body["status"] = status
        path = f"{_path(pod.namespace, pod.name)}/status"
        self._client.patch(path, body, content_type=content_type)

    def _in_time(self, request: Callable[[], None]) -> None:
        """Check the lead as late as possible: a process that was stopped meanwhile must not
        write."""
        seconds = self._lead.write_seconds()
        if seconds <= 0:
            raise ApiError(412, "NotLeading", self._lead.refusal())
        with self._client.within(seconds):
            request()

    def _patiently(self, request: Callable[[], None]) -> None:
        """Send *request* with retries: these writes are idempotent. A Binding gets none."""
        try:
            self._in_time(request)
        except ApiError as error:
            if not _may_pass(error):
                raise
            failure = error
        else:
            return  # nearly always; the set-up of Retrying would cost time here
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
            # The core requests a failed write again. For a Binding, the core must know the outcome
            # for certain before it gives the GPUs to another pod.
            unsure = error.maybe_done if kind == "Bind" else _may_pass(error)
            if kind == "Evict" and error.status == 500:
                # So the API server answers, at each retry, for a pod under two
                # PodDisruptionBudgets.
                unsure = False
            outcome, refusal = Outcome.UNKNOWN if unsure else Outcome.REFUSED, str(error)
            is_denial = kind in _DENIABLE and error.status in _DENIALS
            if is_denial and not (_is_too_late(error) or _is_unjudged(error)):
                outcome = Outcome.DENIED
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
    """Whether the pod was deleted, replaced or bound meanwhile, which is no error."""
    late = ("metadata.uid", "already bound to a node")
    refused = error.status == 422 and any(words in error.message for words in late)
    return refused or error.status in (404, 409)


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    if not isinstance(error, ApiError):
        return False
    if error.status == 429 and "disruption budget" in error.message:
        return False  # it may pass in minutes, and the core may find other victims
    return error.status in (0, 429) or error.status >= 500 or _is_unjudged(error)


def _is_unjudged(error: ApiError) -> bool:
    """Whether the API server could not read what one of its policies compares with: it has just
    started, or is overloaded. It answers as if the policy refused (k8s.io/apiserver,
    pkg/admission/plugin/policy/generic/policy_dispatcher.go)."""
    words = ("not yet synced to use for admission", "context deadline exceeded")
    return error.status == 422 and any(each in error.message for each in words)


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_seconds if isinstance(error, ApiError) else None
    if asked is not None:
        return min(asked, _LONGEST_WAIT_SECONDS)
    return wait_random_exponential(multiplier=0.1, max=_LONGEST_WAIT_SECONDS)(state)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _claim_path(action: DropClaim) -> str:
    return f"{ROOT}/namespaces/{action.pod.namespace}/resourceclaims/{action.name}"


def _lifting(pod: PodRef) -> tuple[str, dict[str, object]]:
    """The patch names the gate, so that it removes no other gate."""
    gates = [{"$patch": "delete", "name": names.GATE}]
    return _path(pod.namespace, pod.name), {
        "metadata": {"uid": pod.uid},
        "spec": {"schedulingGates": gates},
    }


def _eviction(pod: PodRef, term: int) -> tuple[str, dict[str, object]]:
    metadata: dict[str, object] = {"name": pod.name, "namespace": pod.namespace}
    if term:  # not stored; the admission policy refuses evictions of a former leader by it
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
        "message": one_line(action.message),
        "type": action.type.value,
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }
    return f"/api/v1/namespaces/{pod.namespace}/events", body
