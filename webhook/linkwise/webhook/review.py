"""AdmissionReview of `admission.k8s.io/v1`: the API server's requests and the webhook's responses.

If a body is no AdmissionReview, the webhook refuses the request. If only the object in it is
unreadable, the webhook allows it: the API server validates pods itself.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from linkwise.kube.objects import Pod
from linkwise.webhook.claims import NewClaim, ReadTemplate, Step
from linkwise.webhook.patch import Rules, patch_of, template_of
from linkwise.webhook.verdict import Verdict, judge_pod, judge_workload

log = logging.getLogger(__name__)
API_VERSION = "admission.k8s.io/v1"
_NOTHING = msgspec.Raw(b"null")
_LET_IN = Verdict()
_INVALID = 422


class ReviewError(Exception):
    """A body that is no AdmissionReview; the text says what was wrong and what was expected."""


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    """Subclasses repeat `frozen` for the type checker."""


class ObjectKind(_Struct, frozen=True):
    kind: str
    group: str = ""
    version: str = ""


class AdmissionRequest(_Struct, frozen=True):
    uid: str
    operation: str
    kind: ObjectKind
    namespace: str = ""
    name: str = ""
    sub_resource: str = ""
    object: msgspec.Raw = _NOTHING
    old_object: msgspec.Raw = _NOTHING

    @property
    def is_pod(self) -> bool:
        return (self.kind.group, self.kind.kind) == ("", "Pod")

    @property
    def what(self) -> str:
        """The request in the log."""
        return f"{self.operation} {self.kind.kind} {self.namespace}/{self.name}"

    @property
    def about(self) -> dict[str, str]:
        """What a record about it has besides its text."""
        return {"pod": f"{self.namespace}/{self.name}"} if self.is_pod and self.name else {}


@dataclass(frozen=True, slots=True)
class ClaimSources:
    """What the patch of a pod with a claim needs from outside."""

    new_name: Callable[[], str]  # that users cannot guess
    read_template: ReadTemplate


class _Review(_Struct, frozen=True):
    api_version: str
    kind: str
    request: AdmissionRequest | None = None


def read_request(body: bytes) -> AdmissionRequest:
    """Raises ReviewError."""
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"expected an AdmissionReview: {error}") from None
    said = (review.api_version, review.kind)
    if said != (API_VERSION, "AdmissionReview") or review.request is None:
        raise ReviewError(
            f"{review.kind or 'nothing'} of {review.api_version or 'no version'}: "
            f"expected an AdmissionReview of {API_VERSION} with a request"
        )
    return review.request


def mutate(request: AdmissionRequest, rules: Rules, sources: ClaimSources) -> tuple[Step, ...]:
    """The patch for *request*. Only creations are patched, because a pod's scheduler is fixed
    afterwards, and no gate can be added."""
    if request.operation != "CREATE" or request.sub_resource or not request.is_pod:
        return ()
    pod = _pod(request, request.object)
    if pod is None:
        return ()
    if not rules.gpus_from_claims:
        return patch_of(pod, rules)
    name = template_of(pod, rules)
    template = sources.read_template(request.namespace, name) if name else None
    return patch_of(pod, rules, NewClaim(sources.new_name(), template))


def validate(request: AdmissionRequest, rules: Rules) -> Verdict:
    return _judge(request, rules).bounded


def _judge(request: AdmissionRequest, rules: Rules) -> Verdict:
    if request.operation not in ("CREATE", "UPDATE") or request.sub_resource:
        return _LET_IN
    changed = request.operation == "UPDATE"
    if request.is_pod:
        pod = _pod(request, request.object)
        before = _pod(request, request.old_object) if changed else None
        return _LET_IN if pod is None else judge_pod(pod, before, rules)
    fields = _fields(request, request.object)
    before_fields = _fields(request, request.old_object) if changed else None
    if fields is None:
        return _LET_IN
    return judge_workload(fields, before_fields, request.namespace, rules)


def write_patch(request: AdmissionRequest, steps: Sequence[Step]) -> bytes:
    answer: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if steps:
        # msgspec encodes bytes as base64, which the API server expects for a patch.
        answer |= {"patchType": "JSONPatch", "patch": msgspec.json.encode(steps)}
    return _write(answer)


def write_verdict(request: AdmissionRequest, verdict: Verdict) -> bytes:
    answer: dict[str, Any] = {"uid": request.uid, "allowed": not verdict.refused}
    if verdict.refused:
        message = "; ".join(verdict.refused)
        answer["status"] = {"code": _INVALID, "reason": "Invalid", "message": message}
    if verdict.warnings:
        answer["warnings"] = list(verdict.warnings)
    return _write(answer)


def _write(response: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(
        {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
    )


def _pod(request: AdmissionRequest, raw: msgspec.Raw) -> Pod | None:
    try:
        pod = msgspec.json.decode(raw, type=Pod | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s: unreadable, so allowed: %s", request.what, error, extra=request.about)
        return None
    # The API server writes the namespace into a pod only after admission.
    return pod and replace(pod, metadata=replace(pod.metadata, namespace=request.namespace))


def _fields(request: AdmissionRequest, raw: msgspec.Raw) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, object] | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s: unreadable, so allowed: %s", request.what, error, extra=request.about)
        return None
