"""The metadata that all kinds share: checked, and protected from changes."""

import re
from collections.abc import Mapping
from typing import Any

from linkwise.simulator.api_server.kinds import ResourceKind
from linkwise.simulator.api_server.refusals import (
    Object,
    RequestRefusedError,
    bad_request,
    conflict,
    invalid,
    modified_meanwhile,
)

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_QUALIFIED_NAME = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
)
_NAME_RULE = (
    "name part must consist of at most 63 alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of at most 63 alphanumeric characters, '-', "
    "'_' or '.', and must start and end with an alphanumeric character"
)
MAX_ANNOTATION_BYTES = 256 << 10

# Only the server sets these; a client's values are ignored.
_OURS = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "uid")


def read_object(kind: ResourceKind, body: Any) -> Object:
    """Return *body* as an object of this kind with sound metadata. Raises RequestRefusedError
    400."""
    if not isinstance(body, dict):
        raise bad_request(f"the body is no JSON object: expected a {kind.name}")
    for field, expected in (("kind", kind.name), ("apiVersion", kind.api_version)):
        if body.get(field, expected) != expected:
            raise bad_request(
                f"{field} {body[field]!r}: expected {expected!r} for the resource {kind.plural}"
            )
    for field in ("metadata", "spec", "status"):
        if not isinstance(body.get(field) or {}, dict):
            raise bad_request(f"{kind.name}.{field}: cannot unmarshal into Go struct: no object")
    metadata = body.get("metadata") or {}
    for field in ("labels", "annotations"):
        for key, value in _mapping(kind, field, metadata.get(field)).items():
            if not isinstance(value, str):
                raise bad_request(
                    f"json: cannot unmarshal {type(value).__name__} into Go struct field "
                    f"ObjectMeta.metadata.{field} of type string: {key}"
                )
    return body | {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata}


def read_patched(kind: ResourceKind, body: Any) -> Object:
    """Check the result of a patch, as `read_object` checks a body.

    Raises RequestRefusedError 422: the patch parsed, but its result is not sound.
    """
    try:
        return read_object(kind, body)
    except RequestRefusedError as error:
        raise RequestRefusedError(422, "Invalid", error.message) from error


def _mapping(kind: ResourceKind, field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value or {}, dict):
        raise bad_request(f"{kind.name}.metadata.{field}: expected an object")
    return value or {}


def check(kind: ResourceKind, obj: Object) -> None:
    """Check names, labels and annotations by Kubernetes' rules. Raises RequestRefusedError 422."""
    metadata = obj["metadata"]
    name = metadata["name"]
    if not is_subdomain(name):
        why = f'Invalid value: "{name}": {SUBDOMAIN_RULE}'
        raise invalid(kind.name, name, "metadata.name", why)
    for field in ("labels", "annotations"):
        for key in metadata.get(field) or {}:
            if not _QUALIFIED_NAME.fullmatch(key):
                raise _bad_value(kind, name, field, key, _NAME_RULE)
    for key, value in (metadata.get("labels") or {}).items():
        if not _LABEL_VALUE.fullmatch(value):
            raise _bad_value(kind, name, f"labels.{key}", value, _VALUE_RULE)
    annotations = metadata.get("annotations") or {}
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATION_BYTES:
        why = f"Too long: may not be more than {MAX_ANNOTATION_BYTES} bytes"
        raise invalid(kind.name, name, "metadata.annotations", why)


def is_subdomain(name: str) -> bool:
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def _bad_value(
    kind: ResourceKind, name: str, field: str, value: str, rule: str
) -> RequestRefusedError:
    return invalid(kind.name, name, f"metadata.{field}", f'Invalid value: "{value}": {rule}')


def keep_identity(kind: ResourceKind, old: Object, new: Object) -> Object:
    """Return *new* with the server's own fields taken from *old*.

    Raises RequestRefusedError if *new* names another version (409), uid (422) or name (400).
    """
    before, after = old["metadata"], dict(new["metadata"])
    name = before["name"]
    for field in ("name", "namespace"):
        if after.get(field, before.get(field)) != before.get(field):
            raise bad_request(
                f"the {field} of the object ({after[field]}) does not match the {field} on the URL "
                f"({before.get(field)})"
            )
    if after.get("uid", before["uid"]) != before["uid"]:
        why = f'Invalid value: "{after["uid"]}": field is immutable'
        raise invalid(kind.name, name, "metadata.uid", why)
    version = after.get("resourceVersion") or before["resourceVersion"]
    if version != before["resourceVersion"]:
        raise modified_meanwhile(kind.plural, name)
    if "deletionTimestamp" in before:
        added = set(after.get("finalizers") or ()) - set(before.get("finalizers") or ())
        if added:
            why = "Forbidden: no new finalizers can be added if the object is being deleted"
            raise invalid(kind.name, name, "metadata.finalizers", why)
    kept = {field: before[field] for field in _OURS if field in before}
    after = {field: value for field, value in after.items() if field not in _OURS}
    names = {field: before[field] for field in ("name", "namespace") if field in before}
    return new | {"metadata": after | names | kept | {"resourceVersion": version}}


def check_preconditions(kind: ResourceKind, obj: Object, conditions: Mapping[str, Any]) -> None:
    """Check the uid and version that a deletion or binding expects. Raises
    RequestRefusedError 409."""
    metadata = obj["metadata"]
    uid = conditions.get("uid") or metadata["uid"]
    if uid != metadata["uid"]:
        raise _other_uid(kind, metadata["name"], uid, metadata["uid"])
    version = conditions.get("resourceVersion")
    if version and version != metadata["resourceVersion"]:
        why = (
            f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion "
            f"in object meta: {metadata['resourceVersion']}"
        )
        raise conflict(kind.plural, metadata["name"], why)


def _other_uid(kind: ResourceKind, name: str, wanted: str, found: str) -> RequestRefusedError:
    why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    return conflict(kind.plural, name, why)
