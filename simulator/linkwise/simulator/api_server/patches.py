"""The three patch formats: merge patch, JSON patch, strategic merge patch.

Each returns a new value and leaves the old one unchanged; both share unchanged parts.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from linkwise.simulator.api_server.refusals import Object, RequestRefusedError, bad_request

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

# The field that identifies the entries of a list that a strategic patch merges: the `patchMergeKey`
# marks of k8s.io/api, for the kinds that the stand-in stores.
MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "schedulingGates": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def merge(old: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386): objects merge, null removes, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def strategic(old: Any, patch: Any) -> Any:
    """Apply a strategic merge patch: as `merge`, but lists of `MERGE_KEYS` merge entry by entry,
    and `$patch: delete` and `$patch: replace` delete and replace."""
    if not isinstance(patch, Mapping):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if key.startswith("$"):  # a directive; the order of merged lists is not kept
            continue
        if value is None:
            merged.pop(key, None)
        elif key in MERGE_KEYS and isinstance(value, Sequence):
            merged[key] = _merge_entries(merged.get(key) or [], value, MERGE_KEYS[key])
        else:
            merged[key] = strategic(merged.get(key), value)
    return merged


def _merge_entries(old: Sequence[Object], patch: Sequence[Object], key: str) -> list[Object]:
    if any(entry.get("$patch") == "replace" for entry in patch):
        return [entry for entry in patch if "$patch" not in entry]
    entries = {entry.get(key): entry for entry in old}
    for entry in patch:
        if entry.get(key) is None:
            raise bad_request(f"map: {entry} does not contain declared merge key: {key}")
        if entry.get("$patch") == "delete":
            entries.pop(entry[key], None)
        else:
            entries[entry[key]] = strategic(entries.get(entry[key]), entry)
    return list(entries.values())


def json_patch(old: Any, operations: Any) -> Any:
    """Apply a JSON patch (RFC 6902). Any operation that fails, `test` included, is 422 Invalid."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    document = {"": deepcopy(old)}  # gives the whole document a parent too
    for operation in operations:
        try:
            _OPERATIONS[operation["op"]](document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            message = f"the server rejected our request due to an error in our request: {why}"
            raise RequestRefusedError(422, "Invalid", message) from error
    return document[""]


def _parent(document: Any, pointer: str) -> tuple[Any, Any]:
    """Return the container that *pointer* leads into, and the key or index of its last step."""
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"pointer {pointer!r}: expected to start with /")
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]
    container = document
    for step in steps[:-1]:
        container = container[_key(container, step)]
    return container, _key(container, steps[-1])


def _key(container: Any, step: str) -> Any:
    if not isinstance(container, list):
        return step
    return len(container) if step == "-" else int(step)


def _read(document: Any, pointer: str) -> Any:
    container, key = _parent(document, pointer)
    return container[key]


def _add(document: Any, operation: Object) -> None:
    _put(document, operation["path"], operation["value"])


def _put(document: Any, pointer: str, value: Any) -> None:
    container, key = _parent(document, pointer)
    if isinstance(container, list):
        if key > len(container):
            raise IndexError(f"{pointer}: the list has {len(container)} entries")
        container.insert(key, value)
    else:
        container[key] = value


def _remove(document: Any, operation: Object) -> None:
    container, key = _parent(document, operation["path"])
    del container[key]


def _replace(document: Any, operation: Object) -> None:
    _remove(document, operation)  # fails if it is absent
    _add(document, operation)


def _test(document: Any, operation: Object) -> None:
    found = _read(document, operation["path"])
    if found != operation["value"]:
        raise ValueError(f"testing path {operation['path']} value failed: it is {found!r}")


def _move(document: Any, operation: Object) -> None:
    value = _read(document, operation["from"])
    _remove(document, {"path": operation["from"]})
    _put(document, operation["path"], value)


def _copy(document: Any, operation: Object) -> None:
    _put(document, operation["path"], deepcopy(_read(document, operation["from"])))


_OPERATIONS: dict[str, Callable[[Any, Object], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "test": _test,
    "move": _move,
    "copy": _copy,
}

PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    MERGE: merge,
    JSON: json_patch,
    STRATEGIC: strategic,
}
"""By content type."""
