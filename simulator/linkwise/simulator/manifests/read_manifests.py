"""Reads the user's YAML files and returns the objects to create.

An object that another one of the files controls is left to that one's controller. So the output of
`kubectl get -o yaml` is read like a manifest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from linkwise.kube.controllers.batch import Given
from linkwise.kube.controllers.child import UnknownControllerError
from linkwise.kube.controllers.workload import pods_of
from linkwise.kube.documents import DocumentError, read_documents, without_nulls
from linkwise.kube.fields import UnreadableError, at, mapping, text
from linkwise.pods.annotation_faults import misplaced, near_misses_in
from linkwise.simulator.api_server.kinds import KINDS
from linkwise.simulator.manifests.object_reader import (
    Found,
    ManifestError,
    ObjectReader,
)

_LARGEST_FILE = 2 * 1024 * 1024  # bytes; reading keeps every line, and takes seconds for so many
_KINDS = {(kind.api_version, kind.name): kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object to create: POST `body` to `collection`."""

    kind: str
    namespace: str
    name: str
    body: dict[str, object]
    file: str
    line: int
    pods: int  # how many it creates first
    left_out: str  # why, if its kind is unknown
    near_misses: tuple[str, ...]  # keys that look like annotations of Linkwise, or do nothing here

    @property
    def collection(self) -> str:
        """Return the API path of its kind and namespace; empty if the simulated API server has no
        such kind."""
        return collection_of(self.body)


def collection_of(body: Mapping[str, object]) -> str:
    """Return the API path to which an object is posted; empty if there is none."""
    kind = _KINDS.get((text(body, "apiVersion"), text(body, "kind")))
    if kind is None:
        return ""
    return f"{kind.root}/namespaces/{text(body, 'metadata.namespace')}/{kind.plural}"


def read_manifest_files(files: Sequence[str | FilePath]) -> tuple[Manifest, ...]:
    """Return all objects of *files* in order. Raises ManifestError, also if an object appears
    twice."""
    return _manifests([found for file in files for found in _read_file(FilePath(file))])


def read_manifests(text: str, file: str = "-") -> tuple[Manifest, ...]:
    """Return all objects of *text*; refusals call it *file*. Raises ManifestError."""
    return _manifests(_read_text(text, file))


def _read_file(file: FilePath) -> list[Found]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(str(file), 0, 0, "", error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        problem = f"byte {error.object[error.start]:#04x}: expected UTF-8 text"
        raise ManifestError(
            str(file), error.object.count(b"\n", 0, error.start) + 1, 0, "", problem
        ) from None
    return _read_text(text, str(file))


def _read_text(text: str, file: str) -> list[Found]:
    if len(text) > _LARGEST_FILE:
        problem = f"{len(text)} characters: expected manifests of at most {_LARGEST_FILE}"
        raise ManifestError(file, 0, 0, "", problem)
    try:
        found = [
            each
            for document in read_documents(text)
            for each in ObjectReader(file, document).objects()
        ]
    except DocumentError as error:
        raise ManifestError(file, error.line, error.document, error.field, error.problem) from None
    if not found:
        raise ManifestError(file, 1, 0, "", "no object in it: expected a Pod or a workload")
    return found


def _manifests(found: Sequence[Found]) -> tuple[Manifest, ...]:
    given = {(each.kind[1], each.name): each.body for each in found}
    made = [(each, *_made(each, given)) for each in found]
    creators = {(each.kind[1], each.name) for each in found}
    creators |= {between for _, _, all_between, *_ in made for between in all_between}
    manifests = [
        Manifest(
            each.kind[1],
            text(each.body, "metadata.namespace"),
            each.name,
            without_nulls(each.body),
            each.reader.file,
            each.reader.line_of(each.path),
            0 if is_suspended(each.body) else pods,
            left_out,
            (*near_misses_in(each.body), *misplaced(each.body), *missed),
        )
        for each, pods, _, left_out, missed in made
        if _creator(*each.controller) not in {_creator(*creator) for creator in creators}
    ]
    unknown = next((each for each, _, _, left_out, _ in made if left_out), None)
    if unknown is not None and not any(pods for _, pods, *_ in made):
        problem = f"kind: {unknown.kind[1]} is unknown, and nothing else here creates pods"
        raise unknown.reader.refuse(unknown, f"{problem}: pass the pods that it creates")
    _refuse_twice(manifests)
    return tuple(manifests)


def _creator(kind: str, name: str) -> tuple[str, str]:
    """Identify a creator. A Deployment's ReplicaSet has a hash in its name."""
    return kind, name.rpartition("-")[0] if kind == "ReplicaSet" else name


def _made(found: Found, given: Given) -> tuple[int, list[tuple[str, str]], str, tuple[str, ...]]:
    """Return how many pods an object creates first, which objects stand between, why it is left
    out, and the near misses of its templates. Checks all.

    Raises ManifestError.
    """
    found.reader.check(found)
    if found.kind == ("v1", "Pod"):
        return 1, [], "", ()
    try:
        made = pods_of(_named(found), given)
    except UnknownControllerError as error:
        problem = f"kind: {error}: it is unknown which pods this kind creates: expected its pods"
        raise found.reader.refuse(found, problem) from None
    except UnreadableError as error:
        raise found.reader.refuse(found, str(error)) from None
    found.reader.check_pods(found, made)
    between = [(text(each, "kind"), text(each, "metadata.name")) for each in made.between]
    missed = (f"{each.path}.{miss}" for each in made.pods for miss in near_misses_in(each.body))
    return len(made.pods), between, made.left_out, tuple(dict.fromkeys(missed))


def _named(found: Found) -> Mapping[str, object]:
    """The object without nulls, with a name even if the run will generate it."""
    body = without_nulls(found.body)
    metadata = {**mapping(body, "metadata"), "name": found.name or "generated"}
    return {**body, "metadata": metadata}


def is_suspended(body: Mapping[str, object]) -> bool:
    """True for a workload whose controller creates nothing until it is resumed."""
    return at(body, "spec.suspend") is True or at(body, "spec.runPolicy.suspend") is True


def _refuse_twice(manifests: Iterable[Manifest]) -> None:
    seen: dict[tuple[str, str], Manifest] = {}
    for manifest in manifests:
        if not manifest.name:  # generateName: every object gets its own name
            continue
        key = (manifest.collection or manifest.kind, manifest.name)
        first = seen.setdefault(key, manifest)
        if first is not manifest:
            problem = (
                f"{manifest.kind} {manifest.namespace}/{manifest.name} stands here a second time: "
                f"expected another name than in {first.file}:{first.line}"
            )
            raise ManifestError(manifest.file, manifest.line, 0, "metadata.name", problem)
