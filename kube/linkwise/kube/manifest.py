"""What an API server refuses of a handwritten object, with the path of each mistake.

kubectl leaves these checks to the API server, which knows neither file nor line. They cover the
fields that Linkwise reads; other fields pass. So do `linkwise.dev/` annotations with wrong values:
the extender judges them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from linkwise.kube.controllers.workload import KNOWN_KINDS
from linkwise.kube.documents import Path, shown, without_nulls
from linkwise.kube.fields import group_of, text
from linkwise.kube.objects import Pod, is_extended, milli, whole

LONGEST_NAME = 253
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_RESOURCE = re.compile(r"([a-z0-9][-.a-z0-9]*/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_KUSTOMIZE = "kustomize.config.k8s.io/"
_ANY_NAME = "rbac.authorization.k8s.io"  # the group whose names may be like system:node
_MSGSPEC_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<key>[A-Za-z0-9_]+)|\[(?P<index>\d+)\]")

Body = Mapping[str, object]
T = TypeVar("T")


class FieldError(Exception):
    """The field at *path* is wrong; *problem* says what was found and what was expected."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(problem)
        self.path, self.problem = path, problem


def check_kind(body: Body, path: Path) -> None:
    """Refuse files that only look like an object, and say what to do. Raises FieldError."""
    kind = body.get("kind")
    if str(body.get("apiVersion")).startswith(_KUSTOMIZE) or (
        kind is None and "metadata" not in body and isinstance(body.get("resources"), list)
    ):
        raise FieldError(path, "a kustomization: pass what `kubectl kustomize DIRECTORY` prints")
    if isinstance(kind, str) and kind not in KNOWN_KINDS:
        right = next((known for known in KNOWN_KINDS if known.lower() == kind.lower()), "")
        if right:
            raise FieldError((*path, "kind"), f"{kind!r}: expected {right}, with its capitals")


def check_names(body: Body, path: Path, longest: int = LONGEST_NAME) -> tuple[str, str]:
    """Check what identifies an object, its labels and its annotations. Return its namespace, and
    its name, which is empty if it is to be generated. Raises FieldError."""
    metadata = child(body, path, "metadata", "a mapping with a name")
    path = (*path, "metadata")
    namespace = word(metadata, path, "namespace", "a namespace", default="default")
    _check_label(namespace, (*path, "namespace"))
    generated = "generateName" in metadata and "name" not in metadata
    field = "generateName" if generated else "name"
    name = word(metadata, path, field, "the object's name")
    legal = _NAME.fullmatch(name.rstrip("-") if generated else name)
    if (not legal and group_of(text(body, "apiVersion")) != _ANY_NAME) or len(name) > longest:
        expected = f"lower-case letters, digits, - and ., at most {longest}"
        raise FieldError((*path, field), f"{name!r}: expected {expected}")
    check_texts(metadata, path)
    return namespace, "" if generated else name


def check_texts(metadata: Body, path: Path) -> None:
    """Check that labels and annotations are strings: an unquoted 4 or true is the most common slip.
    Raises FieldError."""
    for field in ("labels", "annotations"):
        for key, value in child(metadata, path, field, "a mapping of texts", default=True).items():
            if not isinstance(value, str):
                written = msgspec.json.encode(value).decode()
                expected = f'{written}: expected a text: write it in quotes, "{written}"'
                raise FieldError((*path, field, key), expected)


def checked_pod(body: Body, path: Path, *, runs: bool = False) -> Pod:
    """Check a pod or a pod template, and return it as the programs read it. If it *runs*, it needs
    images; a question may leave them out. Raises FieldError."""
    metadata = child(body, path, "metadata", "a mapping", default=True)
    check_texts(metadata, (*path, "metadata"))
    spec = child(body, path, "spec", "the pod's spec")
    spec_path = (*path, "spec")
    taken: set[str] = set()
    for field in ("containers", "initContainers"):
        for container, place in _containers(spec, spec_path, field, taken):
            if runs:
                word(container, place, "image", "the container's image")
    _quantities(spec, spec_path, "overhead")
    return converted(body, path, Pod)


def converted(body: Body, path: Path, kind: type[T]) -> T:
    """Return *body* as the programs read it. Raises FieldError for a field of another type."""
    try:
        return msgspec.convert(without_nulls(body), type=kind)
    except msgspec.ValidationError as error:
        said, place = str(error), path
        if match := _MSGSPEC_PATH.search(said):
            said = said[: match.start()]
            place = (*path, *steps(match["path"]))
        raise FieldError(place, said[:1].lower() + said[1:]) from None


def steps(path: str) -> Path:
    """Turn msgspec's `.spec.containers[0]` into a Path; `[...]` (any key) ends it."""
    matches = _STEP.finditer(path.split("[...]")[0])
    return tuple(int(match["index"]) if match["index"] else match["key"] for match in matches)


# Containers


def _containers(spec: Body, path: Path, field: str, taken: set[str]) -> Iterator[tuple[Body, Path]]:
    """Yield the checked containers with their paths."""
    if field == "initContainers" and spec.get(field) is None:
        return
    containers = _list(spec, path, field, "at least one container")
    if field == "containers" and not containers:
        raise FieldError((*path, field), "empty: expected at least one container")
    for index, value in enumerate(containers):
        here = (*path, field, index)
        container = _mapping(value, here, "a container")
        name = word(container, here, "name", "the container's name")
        _check_label(name, (*here, "name"))
        if name in taken:
            raise FieldError((*here, "name"), f"{name!r}: another container has this name")
        taken.add(name)
        _check_resources(container, here)
        policy = container.get("restartPolicy")
        if policy is not None and (field == "containers" or policy != "Always"):
            expected = "expected Always, and on an init container only"
            raise FieldError((*here, "restartPolicy"), f"{policy!r}: {expected}")
        yield container, here


def _check_label(name: str, path: Path) -> None:
    if not _LABEL.fullmatch(name) or len(name) > 63:
        expected = "lower-case letters, digits and -, at most 63"
        raise FieldError(path, f"{name!r}: expected {expected}")


def _check_resources(container: Body, path: Path) -> None:
    resources = child(container, path, "resources", "requests and limits", default=True)
    path = (*path, "resources")
    limits = _quantities(resources, path, "limits")
    requests = _quantities(resources, path, "requests")
    for name, requested in requests.items():
        place = (*path, "requests", name)
        limit = limits.get(name)
        if is_extended(name) and limit != requested:
            found = "without a limit" if limit is None else f"beside a limit of {limit}"
            raise FieldError(place, f"{requested} {found}: expected the same as request and limit")
        if limit is not None and requested > limit:
            raise FieldError(place, "more than the limit: expected at most the limit")


def _quantities(resources: Body, path: Path, field: str) -> dict[str, int]:
    """Return resource -> thousandths of a CPU, or units (extended resources: whole numbers)."""
    mapping = child(resources, path, field, "resource names with quantities", default=True)
    found: dict[str, int] = {}
    for name, quantity in mapping.items():
        place = (*path, field, name)
        if not _RESOURCE.fullmatch(name):
            raise FieldError(place, "expected a resource's name like cpu or nvidia.com/gpu")
        if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
            expected = 'a quantity like 8, "500m" or "64Gi"'
            raise FieldError(place, f"{quantity!r}: expected {expected}")
        read = milli if name == "cpu" else whole
        try:
            found[name] = read(quantity)
            exact = milli(quantity) == whole(quantity) * 1000
        except ValueError as error:
            raise FieldError(place, str(error)) from None
        if found[name] < 0:
            raise FieldError(place, f"{quantity!r}: expected 0 or more")
        if is_extended(name) and not exact:
            raise FieldError(place, f"{quantity!r}: expected a whole number of devices")
    return found


# Values


def child(
    parent: Body, path: Path, field: str, expected: str, *, default: bool = False
) -> dict[str, object]:
    """Return the mapping in a field; an empty one by *default*. Raises FieldError."""
    value = parent.get(field)
    if value is None and default:
        return {}
    return _mapping(_present(value, path, field, expected), (*path, field), expected)


def word(parent: Body, path: Path, field: str, expected: str, *, default: str | None = None) -> str:
    """Return the text in a field. Raises FieldError."""
    value = parent.get(field)
    if value is None and default is not None:
        return default
    value = _present(value, path, field, expected)
    if not isinstance(value, str) or not value:
        raise FieldError((*path, field), f"{shown(value)}: expected {expected}, as a text")
    return value


def _mapping(value: object, path: Path, expected: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FieldError(path, f"{shown(value)}: expected {expected}")
    return value


def _list(parent: Body, path: Path, field: str, expected: str) -> list[object]:
    value = _present(parent.get(field), path, field, expected)
    if not isinstance(value, list):
        raise FieldError((*path, field), f"{shown(value)}: expected a list: {expected}")
    return value


def _present(value: object, path: Path, field: str, expected: str) -> object:
    if value is None:
        raise FieldError((*path, field), f"missing: expected {expected}")
    return value
