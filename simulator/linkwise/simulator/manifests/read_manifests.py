"""Reads the user's YAML files, checks them, and returns the objects to create.

kubectl leaves most checks to the API server, which knows neither file nor line. Here every refusal
names file, line, document, field and what was expected. The checks cover the fields that the
simulator and Linkwise read. Other fields pass unchanged, and so do `linkwise.dev/` annotations: the
extender judges them, so a bad one shows up where it would on a real cluster.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

import msgspec

from linkwise.kube.objects import Pod, milli, whole
from linkwise.simulator.jobs.job_rules import Job
from linkwise.simulator.manifests.located_yaml import (
    Document,
    LocatedYamlError,
    Path,
    dotted,
    read_documents,
)

RUN_SECONDS = "simulator.linkwise.dev/run-seconds"
"""Pod annotation: how long the containers run before they succeed; without it, forever."""
STOP_SECONDS = "simulator.linkwise.dev/stop-seconds"
"""Pod annotation: how long the containers take to end after they are asked to."""

_API_VERSIONS = {"Pod": "v1", "Job": "batch/v1", "List": "v1"}
_COLLECTIONS = {"Pod": "/api/v1", "Job": "/apis/batch/v1"}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_JOB_NAME_LENGTH = 57  # names of its pods add "-0-xxxxx", and have at most 63 characters
_LARGEST = {"completions": 100_000, "parallelism": 100_000, "backoffLimit": 2**31 - 1}
_RESOURCE = re.compile(r"([a-z0-9][-.a-z0-9]*/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_MSGSPEC_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<key>[A-Za-z0-9_]+)|\[(?P<index>\d+)\]")


class ManifestError(Exception):
    """`jobs.yaml:14: document 2: spec.template.spec.containers: expected …`"""

    def __init__(self, file: str, line: int, document: int, field: str, problem: str) -> None:
        place = f"{file}:{line}" if line else file
        parts = [place, f"document {document}" if document else "", field, problem]
        super().__init__(": ".join(part for part in parts if part))
        self.file, self.line, self.document = file, line, document
        self.field, self.problem = field, problem


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object to create: POST `body` to `collection`."""

    kind: str
    namespace: str
    name: str
    body: dict[str, object]
    file: str
    line: int

    @property
    def collection(self) -> str:
        """Return the API path of its kind and namespace."""
        return f"{_COLLECTIONS[self.kind]}/namespaces/{self.namespace}/{self.kind.lower()}s"


def read_manifest_files(files: Sequence[str | FilePath]) -> tuple[Manifest, ...]:
    """Return all objects of *files* in order. Raises ManifestError, also if an object appears
    twice."""
    manifests = [manifest for file in files for manifest in _read_file(FilePath(file))]
    _refuse_twice(manifests)
    return tuple(manifests)


def read_manifests(text: str, file: str = "-") -> tuple[Manifest, ...]:
    """Return all objects of *text*; refusals call it *file*. Raises ManifestError."""
    manifests = list(_read_text(text, file))
    if not manifests:
        raise ManifestError(file, 1, 0, "", "no object in it: expected a Pod or a Job")
    _refuse_twice(manifests)
    return tuple(manifests)


def _read_file(file: FilePath) -> tuple[Manifest, ...]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(str(file), 0, 0, "", error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        problem = f"byte {error.object[error.start]:#04x}: expected UTF-8 text"
        raise ManifestError(
            str(file), error.object.count(b"\n", 0, error.start) + 1, 0, "", problem
        ) from None
    return read_manifests(text, str(file))


def _read_text(text: str, file: str) -> Iterator[Manifest]:
    try:
        for document in read_documents(text):
            yield from _Reader(file, document).objects(document.value, ())
    except LocatedYamlError as error:
        raise ManifestError(file, error.line, error.document, error.field, error.problem) from None


def _refuse_twice(manifests: Iterable[Manifest]) -> None:
    seen: dict[tuple[str, str, str], Manifest] = {}
    for manifest in manifests:
        if not manifest.name:  # generateName: every object gets its own name
            continue
        key = (manifest.kind, manifest.namespace, manifest.name)
        first = seen.setdefault(key, manifest)
        if first is not manifest:
            problem = (
                f"{manifest.kind} {manifest.namespace}/{manifest.name} stands here a second time: "
                f"expected another name than in {first.file}:{first.line}"
            )
            raise ManifestError(manifest.file, manifest.line, 0, "metadata.name", problem)


class _Reader:
    """Checks one document. Every check receives the path of the value that it looks at."""

    def __init__(self, file: str, document: Document) -> None:
        self._file, self._document = file, document

    def objects(self, value: object, path: Path) -> Iterator[Manifest]:
        body = self._mapping(value, path, "an object with apiVersion and kind")
        kind = self._text(body, path, "kind", "Pod, Job or List")
        if kind not in _API_VERSIONS:
            raise self._error((*path, "kind"), f"{kind!r}: expected Pod, Job or List")
        version = self._text(body, path, "apiVersion", f"{_API_VERSIONS[kind]} (of {kind})")
        if version != _API_VERSIONS[kind]:
            expected = f"{version!r}: expected {_API_VERSIONS[kind]} for a {kind}"
            raise self._error((*path, "apiVersion"), expected)
        if kind == "List":
            items = self._list(body, path, "items", "the objects of the list")
            for index, item in enumerate(items):
                yield from self.objects(item, (*path, "items", index))
            return
        namespace, name = self._metadata(body, path, kind)
        if kind == "Pod":
            self._pod(body, path)
        else:
            self._job(body, path)
        given = _without_nulls(body)
        self._as_the_programs_read_it(given, path, Pod if kind == "Pod" else Job)
        yield Manifest(kind, namespace, name, given, self._file, self._document.line_of(path))

    # Every object

    def _metadata(self, body: dict[str, object], path: Path, kind: str) -> tuple[str, str]:
        metadata = self._child(body, path, "metadata", "a mapping with a name")
        path = (*path, "metadata")
        namespace = self._text(metadata, path, "namespace", "a namespace", default="default")
        if not _LABEL.fullmatch(namespace) or len(namespace) > 63:
            expected = "lower-case letters, digits and -, at most 63"
            raise self._error((*path, "namespace"), f"{namespace!r}: expected {expected}")
        generated = "generateName" in metadata and "name" not in metadata
        field = "generateName" if generated else "name"
        name = self._text(metadata, path, field, "the object's name")
        longest = _JOB_NAME_LENGTH if kind == "Job" else 253
        if not _NAME.fullmatch(name.rstrip("-") if generated else name) or len(name) > longest:
            expected = f"lower-case letters, digits, - and ., at most {longest}"
            raise self._error((*path, field), f"{name!r}: expected {expected}")
        self._texts(metadata, path)
        return namespace, "" if generated else name

    def _texts(self, metadata: dict[str, object], path: Path) -> None:
        """Check that labels and annotations are strings. An unquoted 4 or true is the most common
        slip."""
        for field in ("labels", "annotations"):
            mapping = self._child(metadata, path, field, "a mapping of texts", default=True)
            for key, value in mapping.items():
                if not isinstance(value, str):
                    shown = msgspec.json.encode(value).decode()
                    expected = f'{shown}: expected a text: write it in quotes, "{shown}"'
                    raise self._error((*path, field, key), expected)
            if field == "annotations":
                self._seconds(mapping, (*path, field))

    def _seconds(self, annotations: dict[str, object], path: Path) -> None:
        for key in (RUN_SECONDS, STOP_SECONDS):
            text = annotations.get(key, "0")
            if not re.fullmatch(r"\d+(\.\d+)?", str(text)):
                raise self._error((*path, key), f"{text!r}: expected seconds like 30 or 0.5")

    # Jobs

    def _job(self, body: dict[str, object], path: Path) -> None:
        spec = self._child(body, path, "spec", "the job's spec")
        path = (*path, "spec")
        for field, largest in _LARGEST.items():
            value = spec.get(field)
            if value is not None and (type(value) is not int or not 0 <= value <= largest):
                expected = f"expected a whole number from 0 to {largest}"
                raise self._error((*path, field), f"{_shown(value)}: {expected}")
        mode = self._text(
            spec, path, "completionMode", "Indexed or NonIndexed", default="NonIndexed"
        )
        if mode not in ("Indexed", "NonIndexed"):
            raise self._error(
                (*path, "completionMode"), f"{mode!r}: expected Indexed or NonIndexed"
            )
        if mode == "Indexed" and spec.get("completions") is None:
            raise self._error(path, "completions: missing: an Indexed job says how many")
        template = self._child(spec, path, "template", "the template of the job's pods")
        path = (*path, "template")
        metadata = self._child(template, path, "metadata", "a mapping", default=True)
        self._texts(metadata, (*path, "metadata"))
        self._pod(template, path)
        self._as_the_programs_read_it(_without_nulls(template), path, Pod)
        policy = self._pod_field(template, "restartPolicy")
        if policy not in ("Never", "OnFailure"):
            found = "missing" if policy is None else repr(policy)
            raise self._error(
                (*path, "spec", "restartPolicy"), f"{found}: expected Never or OnFailure in a Job"
            )

    @staticmethod
    def _pod_field(template: dict[str, object], field: str) -> object:
        spec = template["spec"]
        return spec.get(field) if isinstance(spec, dict) else None

    # Pods

    def _pod(self, body: dict[str, object], path: Path) -> None:
        spec = self._child(body, path, "spec", "the pod's spec")
        spec_path = (*path, "spec")
        names: set[str] = set()
        self._containers(spec, spec_path, "containers", names, required=True)
        self._containers(spec, spec_path, "initContainers", names, required=False)
        self._quantities(spec, spec_path, "overhead")

    def _containers(
        self, spec: dict[str, object], path: Path, field: str, names: set[str], *, required: bool
    ) -> None:
        if not required and spec.get(field) is None:
            return
        containers = self._list(spec, path, field, "at least one container")
        if required and not containers:
            raise self._error((*path, field), "empty: expected at least one container")
        for index, value in enumerate(containers):
            here = (*path, field, index)
            container = self._mapping(value, here, "a container")
            name = self._text(container, here, "name", "the container's name")
            if not _LABEL.fullmatch(name) or len(name) > 63:
                expected = "lower-case letters, digits and -, at most 63"
                raise self._error((*here, "name"), f"{name!r}: expected {expected}")
            if name in names:
                raise self._error((*here, "name"), f"{name!r}: another container has this name")
            names.add(name)
            self._text(container, here, "image", "the container's image")
            self._resources(container, here)
            policy = container.get("restartPolicy")
            if policy is not None and (field == "containers" or policy != "Always"):
                expected = "expected Always, and on an init container only"
                raise self._error((*here, "restartPolicy"), f"{policy!r}: {expected}")

    def _resources(self, container: dict[str, object], path: Path) -> None:
        resources = self._child(container, path, "resources", "requests and limits", default=True)
        path = (*path, "resources")
        limits = self._quantities(resources, path, "limits")
        requests = self._quantities(resources, path, "requests")
        for name, requested in requests.items():
            place = (*path, "requests", name)
            limit = limits.get(name)
            if _is_extended(name) and limit != requested:
                found = "no limit" if limit is None else f"a limit of {limit}"
                raise self._error(place, f"{requested} beside {found}: expected them to be equal")
            if limit is not None and requested > limit:
                raise self._error(place, "more than the limit: expected at most the limit")

    def _quantities(self, resources: dict[str, object], path: Path, field: str) -> dict[str, int]:
        """Return resource -> thousandths of a CPU, or units (extended resources: whole numbers)."""
        mapping = self._child(
            resources, path, field, "resource names with quantities", default=True
        )
        found: dict[str, int] = {}
        for name, quantity in mapping.items():
            place = (*path, field, name)
            if not _RESOURCE.fullmatch(name):
                raise self._error(place, "expected a resource's name like cpu or nvidia.com/gpu")
            if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
                expected = 'a quantity like 8, "500m" or "64Gi"'
                raise self._error(place, f"{quantity!r}: expected {expected}")
            read = milli if name == "cpu" else whole
            try:
                found[name] = read(quantity)
                exact = milli(quantity) == whole(quantity) * 1000
            except ValueError as error:
                raise self._error(place, str(error)) from None
            if found[name] < 0:
                raise self._error(place, f"{quantity!r}: expected 0 or more")
            if _is_extended(name) and not exact:
                raise self._error(place, f"{quantity!r}: expected a whole number of devices")
        return found

    def _as_the_programs_read_it(
        self, body: dict[str, object], path: Path, kind: type[Pod | Job]
    ) -> None:
        """Check last that every other field that the programs read has its type."""
        try:
            msgspec.convert(body, type=kind)
        except msgspec.ValidationError as error:
            text = str(error)
            place = path
            if match := _MSGSPEC_PATH.search(text):
                text = text[: match.start()]
                place = (*path, *_steps(match["path"]))
            raise self._error(place, text[:1].lower() + text[1:]) from None

    # Values

    def _mapping(self, value: object, path: Path, expected: str) -> dict[str, object]:
        if not isinstance(value, dict):
            raise self._error(path, f"{_shown(value)}: expected {expected}")
        return value

    def _child(
        self,
        parent: dict[str, object],
        path: Path,
        field: str,
        expected: str,
        *,
        default: bool = False,
    ) -> dict[str, object]:
        value = parent.get(field)
        if value is None and default:
            return {}
        return self._mapping(self._present(value, path, field, expected), (*path, field), expected)

    def _list(
        self, parent: dict[str, object], path: Path, field: str, expected: str
    ) -> list[object]:
        value = self._present(parent.get(field), path, field, expected)
        if not isinstance(value, list):
            raise self._error((*path, field), f"{_shown(value)}: expected a list: {expected}")
        return value

    def _text(
        self,
        parent: dict[str, object],
        path: Path,
        field: str,
        expected: str,
        *,
        default: str | None = None,
    ) -> str:
        value = parent.get(field)
        if value is None and default is not None:
            return default
        value = self._present(value, path, field, expected)
        if not isinstance(value, str) or not value:
            raise self._error((*path, field), f"{_shown(value)}: expected {expected}, as a text")
        return value

    def _present(self, value: object, path: Path, field: str, expected: str) -> object:
        if value is None:
            raise self._error((*path, field), f"missing: expected {expected}")
        return value

    def _error(self, path: Path, problem: str) -> ManifestError:
        document = self._document
        return ManifestError(
            self._file, document.line_of(path), document.number, dotted(path), problem
        )


def _is_extended(resource: str) -> bool:
    return "/" in resource and not resource.startswith("kubernetes.io/")


def _without_nulls(body: dict[str, object]) -> dict[str, object]:
    """Remove nulls: the API server treats a null field as absent."""
    return {key: _pruned(value) for key, value in body.items() if value is not None}


def _pruned(value: object) -> object:
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return _without_nulls(value) if isinstance(value, dict) else value


def _shown(value: object) -> str:
    """Name a value's type in YAML's words, with the value itself if it is short."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else repr(value)


def _steps(path: str) -> Path:
    """Turn msgspec's `.spec.containers[0]` into a Path; `[...]` (any key) ends it."""
    matches = _STEP.finditer(path.split("[...]")[0])
    return tuple(int(match["index"]) if match["index"] else match["key"] for match in matches)
