"""Checks the objects of the user's YAML files, and names the place of each mistake.

Every refusal names file, line, document, field and what was expected. The checks are those of
`linkwise.kube.manifest`, and those of the kinds and annotations that only the simulator reads.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from linkwise.kube.controllers.workload import Made
from linkwise.kube.documents import Document, Path, dotted, objects_of, shown
from linkwise.kube.fields import at, controller_of, group_of, text
from linkwise.kube.manifest import (
    LONGEST_NAME,
    FieldError,
    check_kind,
    check_names,
    checked_pod,
    child,
    converted,
    steps,
    word,
)
from linkwise.simulator.api_server.kinds import KINDS
from linkwise.simulator.jobs.job_rules import Job
from linkwise.topology import names

RUN_SECONDS = "simulator.linkwise.dev/run-seconds"
"""Pod annotation: how long the containers run before they succeed; without it, forever."""
STOP_SECONDS = "simulator.linkwise.dev/stop-seconds"
"""Pod annotation: how long the containers take to end after they are asked to."""

_JOB_NAME_LENGTH = 57  # names of its pods add "-0-xxxxx", and have at most 63 characters
_LARGEST = {"completions": 100_000, "parallelism": 100_000, "backoffLimit": 2**31 - 1}
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
            with self._located():
                found = self._found(body, path)
            yield found

    def _found(self, body: dict[str, object], path: Path) -> Found:
        check_kind(body, path)
        kind = word(body, path, "kind", "Pod, Job or another")
        version = word(body, path, "apiVersion", f"{_versions(kind)} (of {kind})")
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
            raise FieldError((*path, "apiVersion"), expected)
        namespace, name = self._metadata(body, path, kind)
        by = controller_of(body)
        controller = text(by, "kind"), text(by, "name")
        applied = {**_as_applied(body, namespace), "apiVersion": served.get(version, version)}
        return Found(self, path, applied, name, controller)

    def check(self, found: Found) -> None:
        """Check the fields that the programs read of a Pod or a Job."""
        with self._located():
            if found.kind == ("v1", "Pod"):
                self._pod(found.body, found.path)
            if found.kind == ("batch/v1", "Job"):
                self._job(found.body, found.path)
                converted(found.body, found.path, Job)

    def check_pods(self, found: Found, made: Made) -> None:
        """Check the same of the pods that are *made* of another object."""
        checked: set[str] = set()  # a template needs to be checked once
        for each in made.pods:
            if each.path not in checked:
                checked.add(each.path)
                place = (*found.path, *steps(f".{each.path}"))
                with self._located():
                    self._pod(each.body, place)
                    if text(controller_of(each.body), "apiVersion") == "batch/v1":
                        self._ends(each.body, place)

    def refuse(self, found: Found, problem: str) -> ManifestError:
        """*problem* may begin with a field of the object and a colon."""
        field, colon, rest = problem.partition(": ")
        if not colon:
            return self._error(found.path, problem)
        return self._error((*found.path, *steps(f".{field}")), rest)

    # Every object

    def _metadata(self, body: dict[str, object], path: Path, kind: str) -> tuple[str, str]:
        named = check_names(body, path, _JOB_NAME_LENGTH if kind == "Job" else LONGEST_NAME)
        self._seconds(child(body, path, "metadata", ""), (*path, "metadata"))
        return named

    def _seconds(self, metadata: Mapping[str, object], path: Path) -> None:
        annotations = child(metadata, path, "annotations", "", default=True)
        for key in (RUN_SECONDS, STOP_SECONDS):
            text = annotations.get(key, "0")
            if not re.fullmatch(r"\d+(\.\d+)?", str(text)):
                problem = f"{text!r}: expected seconds like 30 or 0.5"
                raise FieldError((*path, "annotations", key), problem)

    # Pods and Jobs

    def _pod(self, body: Mapping[str, object], path: Path) -> None:
        checked_pod(body, path, runs=True)
        metadata = child(body, path, "metadata", "", default=True)
        self._seconds(metadata, (*path, "metadata"))

    def _job(self, body: dict[str, object], path: Path) -> None:
        spec = child(body, path, "spec", "the job's spec")
        path = (*path, "spec")
        for field, largest in _LARGEST.items():
            value = spec.get(field)
            if value is not None and (type(value) is not int or not 0 <= value <= largest):
                expected = f"expected a whole number from 0 to {largest}"
                raise FieldError((*path, field), f"{shown(value)}: {expected}")
        mode = word(spec, path, "completionMode", "Indexed or NonIndexed", default="NonIndexed")
        if mode not in ("Indexed", "NonIndexed"):
            raise FieldError((*path, "completionMode"), f"{mode!r}: expected Indexed or NonIndexed")
        if mode == "Indexed" and spec.get("completions") is None:
            raise FieldError(path, "completions: missing: an Indexed job says how many")
        template = child(spec, path, "template", "the template of the job's pods")
        path = (*path, "template")
        self._pod(template, path)
        self._ends(template, path)

    def _ends(self, template: Mapping[str, object], path: Path) -> None:
        policy = at(template, "spec.restartPolicy")
        if policy not in ("Never", "OnFailure"):
            found = "missing" if policy is None else repr(policy)
            raise FieldError(
                (*path, "spec", "restartPolicy"), f"{found}: expected Never or OnFailure in a Job"
            )

    def _error(self, path: Path, problem: str) -> ManifestError:
        document = self._document
        return ManifestError(
            self.file, document.line_of(path), document.number, dotted(path), problem
        )

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Turn FieldError into ManifestError."""
        try:
            yield
        except FieldError as error:
            raise self._error(error.path, error.problem) from None


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
