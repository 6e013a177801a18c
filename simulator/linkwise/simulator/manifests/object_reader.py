"""Checks the objects of the user's YAML files, and names the place of each mistake.

kubectl leaves most checks to the API server, which knows neither file nor line. Here every refusal
names file, line, document, field and what was expected. The checks cover the fields that the
simulator and Linkwise read. Other fields pass unchanged, and so do `linkwise.dev/` annotations: the
extender judges them, so a bad one shows up where it would on a real cluster.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from linkwise.kube.controllers.workload import Made
from linkwise.kube.documents import Document, Path, dotted, objects_of, shown, without_nulls
from linkwise.kube.fields import at, controller_of, group_of, text
from linkwise.kube.objects import Pod, milli, whole
from linkwise.simulator.api_server.kinds import KINDS
from linkwise.simulator.jobs.job_rules import Job
from linkwise.topology import names

RUN_SECONDS = "simulator.linkwise.dev/run-seconds"
"""Pod annotation: how long the containers run before they succeed; without it, forever."""
STOP_SECONDS = "simulator.linkwise.dev/stop-seconds"
"""Pod annotation: how long the containers take to end after they are asked to."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_JOB_NAME_LENGTH = 57  # names of its pods add "-0-xxxxx", and have at most 63 characters
_LARGEST = {"completions": 100_000, "parallelism": 100_000, "backoffLimit": 2**31 - 1}
_RESOURCE = re.compile(r"([a-z0-9][-.a-z0-9]*/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_MSGSPEC_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<key>[A-Za-z0-9_]+)|\[(?P<index>\d+)\]")
_OF_A_CLUSTER = frozenset(
    {
        "creationTimestamp",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)


class ManifestError(Exception):
    """`jobs.yaml:14: document 2: spec.template.spec.containers: expected …`"""

    def __init__(self, file: str, line: int, document: int, field: str, problem: str) -> None:
        place = f"{file}:{line}" if line else file
        parts = [place, f"document {document}" if document else "", field, problem]
        super().__init__(": ".join(part for part in parts if part))
        self.file, self.line, self.document = file, line, document
        self.field, self.problem = field, problem


@dataclass(frozen=True, slots=True)
class Found:
    """An object of a document, as it is to be created; its name may be empty (generateName)."""

    reader: "ObjectReader"
    path: Path
    body: dict[str, object]
    name: str
    controller: tuple[str, str]  # kind and name of what has created it in a cluster

    @property
    def kind(self) -> tuple[str, str]:
        return str(self.body["apiVersion"]), str(self.body["kind"])


class ObjectReader:
    """Checks one document. Every check receives the path of the value that it looks at."""

    def __init__(self, file: str, document: Document) -> None:
        self.file, self._document = file, document

    def line_of(self, path: Path) -> int:
        return self._document.line_of(path)

    def objects(self) -> Iterator[Found]:
        """Yield the objects of the document, with what identifies them checked. Raises
        DocumentError, too."""
        for path, body in objects_of(self._document):
            yield self._found(body, path)

    def _found(self, body: dict[str, object], path: Path) -> Found:
        kind = self._text(body, path, "kind", "Pod, Job or another")
        version = self._text(body, path, "apiVersion", f"{_versions(kind)} (of {kind})")
        served = {
            also: each.api_version
            for each in KINDS
            if each.name == kind
            for also in (each.api_version, *each.also)
        }
        groups = {group_of(each) for each in served}
        # A kind of this name in another group is another kind.
        meant = not group_of(version) or group_of(version) in groups or kind in ("Pod", "Job")
        if served and meant and version not in served:
            expected = f"{version!r}: expected {_versions(kind)} for a {kind}"
            raise self._error((*path, "apiVersion"), expected)
        namespace, name = self._metadata(body, path, kind)
        by = controller_of(body)
        controller = text(by, "kind"), text(by, "name")
        applied = {**_as_applied(body, namespace), "apiVersion": served.get(version, version)}
        return Found(self, path, applied, name, controller)

    def check(self, found: Found) -> None:
        """Check the fields that the programs read of a Pod or a Job."""
        body, path = found.body, found.path
        if found.kind == ("v1", "Pod"):
            self._pod(body, path)
            self._as_the_programs_read_it(without_nulls(body), path, Pod)
        if found.kind == ("batch/v1", "Job"):
            self._job(body, path)
            self._as_the_programs_read_it(without_nulls(body), path, Job)

    def check_pods(self, found: Found, made: Made) -> None:
        """Check the same of the pods that are *made* of another object."""
        checked: set[str] = set()  # a template needs to be checked once
        for each in made.pods:
            if each.path not in checked:
                checked.add(each.path)
                place = (*found.path, *_steps(f".{each.path}"))
                self._texts(dict(each.body["metadata"]), (*place, "metadata"))
                self._pod(dict(each.body), place)
                self._as_the_programs_read_it(dict(each.body), place, Pod)
                if text(controller_of(each.body), "apiVersion") == "batch/v1":
                    self._ends(each.body, place)

    def refuse(self, found: Found, problem: str) -> ManifestError:
        """*problem* may begin with a field of the object and a colon."""
        field, colon, rest = problem.partition(": ")
        if not colon:
            return self._error(found.path, problem)
        return self._error((*found.path, *_steps(f".{field}")), rest)

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
                raise self._error((*path, field), f"{shown(value)}: {expected}")
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
        self._as_the_programs_read_it(without_nulls(template), path, Pod)
        self._ends(template, path)

    def _ends(self, template: Mapping[str, object], path: Path) -> None:
        policy = at(template, "spec.restartPolicy")
        if policy not in ("Never", "OnFailure"):
            found = "missing" if policy is None else repr(policy)
            raise self._error(
                (*path, "spec", "restartPolicy"), f"{found}: expected Never or OnFailure in a Job"
            )

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
            raise self._error(path, f"{shown(value)}: expected {expected}")
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
            raise self._error((*path, field), f"{shown(value)}: expected a list: {expected}")
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
            raise self._error((*path, field), f"{shown(value)}: expected {expected}, as a text")
        return value

    def _present(self, value: object, path: Path, field: str, expected: str) -> object:
        if value is None:
            raise self._error((*path, field), f"missing: expected {expected}")
        return value

    def _error(self, path: Path, problem: str) -> ManifestError:
        document = self._document
        return ManifestError(
            self.file, document.line_of(path), document.number, dotted(path), problem
        )


def _versions(kind: str) -> str:
    """Return the API versions of a kind, for messages."""
    known = [each.api_version for each in KINDS if each.name == kind]
    return " or ".join(known) or "v1"


def _as_applied(body: dict[str, object], namespace: str) -> dict[str, object]:
    """Return the object without what a cluster added to it, as `kubectl get -o yaml` prints it."""
    given = body["metadata"]
    assert isinstance(given, dict)
    metadata = {key: value for key, value in given.items() if key not in _OF_A_CLUSTER}
    said = metadata.get("annotations")
    if isinstance(said, dict):
        metadata["annotations"] = {k: v for k, v in said.items() if k not in names.BY_EXTENDER}
    kept = {key: value for key, value in body.items() if key != "status"}
    spec = kept.get("spec")
    if body["kind"] == "Pod" and isinstance(spec, dict):
        kept["spec"] = {key: value for key, value in spec.items() if key != "nodeName"}
    return {**kept, "metadata": {**metadata, "namespace": namespace}}


def _is_extended(resource: str) -> bool:
    return "/" in resource and not resource.startswith("kubernetes.io/")


def _steps(path: str) -> Path:
    """Turn msgspec's `.spec.containers[0]` into a Path; `[...]` (any key) ends it."""
    matches = _STEP.finditer(path.split("[...]")[0])
    return tuple(int(match["index"]) if match["index"] else match["key"] for match in matches)
