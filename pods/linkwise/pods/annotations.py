"""What a pod requests: its `linkwise.dev/` annotations, parsed and checked once.

A pod without annotations is valid. A wrong annotation raises AnnotationError with the key, the
value and what is allowed: a typo that is silently ignored could let a job run on the wrong GPUs
for a week.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import TypeVar

from linkwise.kube.labels import COMPLETION_INDEX
from linkwise.kube.objects import Container, NodeSelectorTerm, Pod, milli, whole
from linkwise.pods.claims import claims_of
from linkwise.pods.durations import DURATION, seconds_of
from linkwise.pods.requirement import (
    ANYTHING,
    HardwareRequirement,
    TopologyRequirement,
    words_of,
)
from linkwise.pods.spans import ANYWHERE, LABEL_KEY, Spans
from linkwise.topology import names
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.errors import AnnotationError, UnknownAnnotationError
from linkwise.topology.machine.model import LINK_WORDS, MAX_GPUS, LinkClass
from linkwise.topology.names import is_share

MAX_GANG = 4096
# Of one pod: MIG cuts a GPU into 7 devices at most, which may have the same name as whole GPUs.
MOST_GPUS = 7 * MAX_GPUS
# Of one pod, too: far more than users write, and few enough to be read for thousands of nodes.
MOST_CONTAINERS = 64  # with GPUs of one name
MOST_NAMES = 16  # of GPUs; NVIDIA's plugin gives one machine's a dozen
# Of its node selector and required node affinity. And so many tolerations.
MOST_TESTS, MOST_VALUES = 500, 5_000
_MIB = 1024 * 1024
LONGEST = 1024  # characters of a value; caches store its parsed form for very many pods
_NEAR = 0.7  # difflib's ratio; `gnag` is near enough to `gang`
_WORD_OF_LINK = {link: word for word, link in LINK_WORDS.items()}


@dataclass(frozen=True, slots=True)
class AnnotationValue:
    """What an annotation may say, for refusals and for schemas: one of *words*, or a text that
    *pattern* matches from its beginning to its end. A pattern may be wider than the parser."""

    expected: str
    words: tuple[str, ...] = ()
    pattern: str = ""
    longest: int = LONGEST
    beside: str = ""  # another annotation that is needed with it


class Sharing(Enum):
    """On which GPUs the shares of one container are, if it asks for several."""

    EITHER = ""  # on as many GPUs as possible
    SPREAD = "spread"  # each on another GPU
    PACK = "pack"  # all on one GPU


@dataclass(frozen=True, slots=True)
class NativeGroup:
    """What a PodGroup of Kubernetes itself, or the group above it, makes kube-scheduler do."""

    # Node labels: it tries the nodes of one value after those of another.
    topology: tuple[str, ...] = ()
    # From 1.37 on it tries no pod of another priority. None: the object has none, as in 1.36.
    priority: int | None = None


NO_GROUP = NativeGroup()


@dataclass(frozen=True, slots=True)
class GangAsk:
    """What a member's annotations, or its owner, say about its gang."""

    name: str  # if its owner defines the gang, with the owner's kind: `Job.batch/train`
    size: int  # all members, including those that have ended
    minimum: int  # this member may start once this many are placed
    timeout_seconds: float | None = None  # None: the configured one
    # What each member requests that does not exist yet, by resource; empty: it does not say.
    to_come: tuple[tuple[str, str], ...] = ()
    # Set only if the owner defines the gang:
    source: str = ""  # identifies the gang, such as its owner's uid; empty: its pods name it
    done: int = 0  # members that succeeded according to the owner; they may be deleted
    open_ended: bool = False  # more members than `size` may be created
    native: NativeGroup = NO_GROUP


@dataclass(frozen=True, slots=True)
class PodRequest:
    requirement: TopologyRequirement = ANYTHING
    gang: GangAsk | None = None
    rank: int | None = None
    spans: Spans = ANYWHERE
    preemptible: bool = False
    expected_seconds: float | None = None  # None: its run time is unknown
    role: str = ""  # as the operator that created the pod calls it; empty: unknown
    subgroup: str = ""  # members of one subgroup are placed closest together
    because: str = ""  # which rule found its gang, or found none, and why
    sharing: Sharing = Sharing.EITHER
    # Once it has been idle for so long, it may be evicted for others; infinite: never; None: as the
    # operator says for its namespace.
    reclaim_seconds: float | None = None
    # Once it has run for so long, it may be evicted and placed elsewhere to make room, and its
    # controller then recreates it; infinite: never; None: it does not say.
    movable_seconds: float | None = None
    move_cost_seconds: float | None = None  # of its run that a restart loses; None: as configured
    # Its Job is known to count its eviction as a failure, and survives so many; None: it is not
    # known to count any. No annotation says so.
    evictions_left: int | None = None

    @property
    def movable(self) -> bool:
        """Whether it consents to be moved, at once or later."""
        return self.movable_seconds is not None and self.movable_seconds < math.inf

    @property
    def eviction_fails_job(self) -> bool:
        return self.evictions_left is not None


_COMMUNICATORS = {"gang": False, "pod": True}
_BOOLEANS = {"true": True, "false": False}
_NEVER = "never"
_SHARINGS = {each.value: each for each in Sharing if each is not Sharing.EITHER}
_LONGEST_NAME = 253
_LEVEL = rf"\s*(?:{LABEL_KEY.pattern})\s*"
_MODEL = "[^,]*[A-Za-z0-9][^,]*"
_QUANTITY = r"\+?(?=[0-9.]*[1-9])[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+|n|u|m|k|Ki|[MGTPE]i?)?"
_RESOURCE = f"(?:{LABEL_KEY.pattern})={_QUANTITY}"
_LINK = AnnotationValue(f"one of {', '.join(LINK_WORDS)}", tuple(LINK_WORDS))
_LEVELS = AnnotationValue(
    "node, clique or keys of node labels, with commas between them",
    pattern=f"{_LEVEL}(?:,{_LEVEL})*",
)
_DURATION = AnnotationValue(
    "a duration like 10m, 1h30m or 90s", pattern=f"(?=.*[1-9])(?:{DURATION.pattern})"
)
_MEMBERS = AnnotationValue(
    f"a whole number from 1 to {MAX_GANG}",
    pattern="(?=.{1,9}$)0*(?:[1-9][0-9]{0,2}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-6])",
    beside=names.GANG,
)
BY_PODS: Mapping[str, AnnotationValue] = {
    names.GANG: AnnotationValue(
        f"a name of 1 to {_LONGEST_NAME} characters that can be printed",
        pattern=r"[\s\S]*\S[\s\S]*",
        longest=_LONGEST_NAME,
        beside=names.GANG_SIZE,
    ),
    names.GANG_SIZE: _MEMBERS,
    names.GANG_MIN: replace(_MEMBERS, expected=f"a whole number from 1 to {names.GANG_SIZE}"),
    names.GANG_TIMEOUT: replace(_DURATION, beside=names.GANG),
    names.GANG_TO_COME: AnnotationValue(
        "resources like nvidia.com/gpu=8,cpu=4,memory=8Gi, each once and more than 0",
        pattern=f"{_RESOURCE}(?:,{_RESOURCE})*",
        beside=names.GANG,
    ),
    names.RANK: AnnotationValue("a whole number from 0", pattern="[0-9]{1,9}"),
    names.REQUIRE_LINK: _LINK,
    names.PREFER_LINK: _LINK,
    names.REQUIRE_SPAN: _LEVELS,
    names.PREFER_SPAN: _LEVELS,
    names.COMMUNICATOR: AnnotationValue("gang or pod", tuple(_COMMUNICATORS)),
    names.GPU_MODEL: AnnotationValue(
        "model names like H100,H200", pattern=f"{_MODEL}(?:,{_MODEL})*"
    ),
    names.GPU_MEMORY: AnnotationValue("a quantity like 40Gi", pattern=_QUANTITY),
    names.PREEMPTIBLE: AnnotationValue("true or false", tuple(_BOOLEANS)),
    names.EXPECTED_DURATION: _DURATION,
    names.SHARE: AnnotationValue("spread or pack", tuple(_SHARINGS)),
    names.RECLAIM: AnnotationValue(
        f"a duration like 4h, or {_NEVER}", pattern=f"{_NEVER}|{_DURATION.pattern}"
    ),
    names.MOVABLE: AnnotationValue(
        "true, false or a duration like 1h", pattern=f"true|false|{_DURATION.pattern}"
    ),
    names.MOVE_COST: _DURATION,
}
"""What pods may say, by annotation (docs/annotations.md)."""

NOTHING_SAID = PodRequest()


def ask_of(annotations: Mapping[str, str], labels: Mapping[str, str]) -> PodRequest:
    """Parse the annotations of a pod. Raises AnnotationError."""
    said = {key: text for key, text in annotations.items() if key.startswith(names.PREFIX)}
    for key in sorted(said):
        if key not in BY_PODS and key not in names.BY_LINKWISE:
            raise UnknownAnnotationError(key, said[key], _known(key))
        if key in BY_PODS and len(said[key]) > LONGEST:
            raise AnnotationError(key, said[key], f"at most {LONGEST} characters")
    rank = _rank(said, annotations, labels)
    if not said and rank is None:
        return NOTHING_SAID
    return PodRequest(
        requirement=_requirement(said),
        gang=_gang(said),
        rank=rank,
        spans=_shared_spans(
            Spans(
                _read(said, names.REQUIRE_SPAN, _levels) or (),
                _read(said, names.PREFER_SPAN, _levels) or (),
                _read(said, names.COMMUNICATOR, _COMMUNICATORS.__getitem__) or False,
            )
        ),
        preemptible=_read(said, names.PREEMPTIBLE, _BOOLEANS.__getitem__) or False,
        expected_seconds=_read(said, names.EXPECTED_DURATION, _duration),
        sharing=_read(said, names.SHARE, _SHARINGS.__getitem__) or Sharing.EITHER,
        reclaim_seconds=_read(said, names.RECLAIM, _reclaim),
        movable_seconds=_read(said, names.MOVABLE, _movable),
        move_cost_seconds=_read(said, names.MOVE_COST, _duration),
    )


def resource_of(pod: Pod, resources: Sequence[str]) -> str:
    """The one of *resources* by which *pod* takes GPUs: the first that its containers request, as
    whole GPUs or as shares; if they request none, the first."""
    return resources[0] if len(resources) == 1 else (*_requested(pod, resources), resources[0])[0]


def mixed(pod: Pod, resources: Sequence[str]) -> str:
    """Why no node can take such a pod; empty: it requests one of *resources* at most."""
    requested = () if len(resources) == 1 else _requested(pod, resources)
    if len(requested) < 2:
        return ""
    return f"{' and '.join(requested)} in one pod: expected one of them"


def _requested(pod: Pod, resources: Sequence[str]) -> tuple[str, ...]:
    """Those of *resources* that containers request, as whole GPUs or as shares; 0 does not
    count."""
    return tuple(each for each in resources if _requests(pod, each))


def _requests(pod: Pod, resource: str) -> bool:
    try:
        return bool(requested_of(pod, resource).gpus or shares_of(pod, resource))
    except ValueError:  # it requests some, in a bad quantity
        return True


def demand_of(pod: Pod, resource: str) -> PodDemand:
    """The containers of *pod* that take *resource*; if its GPUs come from a claim, the claim's
    requests, as containers that run together. Raises ValueError for a bad quantity or claim."""
    requested = requested_of(pod, resource)
    if names.CLAIMS not in pod.metadata.annotations:
        return requested
    if requested.containers:
        beside = requested.containers[0].name
        raise ValueError(f"{names.CLAIMS}: {beside} requests {resource} beside the claim")
    try:
        ask = claims_of(pod.metadata.annotations, pod.spec)
    except AnnotationError as error:
        raise ValueError(str(error)) from None
    requests = ask.requests if ask else {}
    return _shared(tuple(ContainerDemand(name, Role.MAIN, n) for name, n in requests.items()))


def requested_of(pod: Pod, resource: str) -> PodDemand:
    """What the containers of *pod* request of *resource*: the kubelet gives it, whatever the
    annotations say. Raises ValueError for a bad quantity."""
    found = (_demand(container, role, resource) for container, role in _containers(pod))
    return _shared(tuple(chain.from_iterable(found)))


def _containers(pod: Pod) -> Iterator[tuple[Container, Role]]:
    for container in pod.spec.init_containers:
        sidecar = container.restart_policy == "Always"
        yield container, Role.SIDECAR if sidecar else Role.INIT
    for container in pod.spec.containers:
        yield container, Role.MAIN


def oversize(
    pod: Pod, demand: PodDemand, shares: Sequence[tuple[str, PodDemand]], resource: str
) -> str:
    """Why such a pod with GPUs must be a mistake, or would cost other pods too much time; empty: it
    is fine. *demand* is of *resource*, *shares* of others. What a whole job needs is
    easily written on each of its pods."""
    if demand.gpus > MOST_GPUS:
        return (
            f"{resource}: {demand.gpus} in one pod: expected {MOST_GPUS} at most, as no machine "
            f"has more; a job on several machines needs several pods"
        )
    wants = [(resource, demand), *shares]
    for name, of_name in wants:
        if (count := len(of_name.containers)) > MOST_CONTAINERS:
            return f"{name}: {count} containers of one pod: expected {MOST_CONTAINERS} at most"
    if len(wants) > MOST_NAMES:
        return f"{len(wants)} names of GPUs in one pod: expected {MOST_NAMES} at most"
    if not any(of_name.gpus for _, of_name in wants):
        return ""
    terms = _node_terms(pod)
    tests = [each for term in terms for each in (*term.match_expressions, *term.match_fields)]
    count = len(tests) + len(pod.spec.node_selector)
    values = sum(len(each.values) for each in tests)
    if count > MOST_TESTS or values > MOST_VALUES:
        return (
            f"node selector and required node affinity: {count} expressions with {values} values: "
            f"expected {MOST_TESTS} and {MOST_VALUES} at most"
        )
    if (count := len(pod.spec.tolerations)) > MOST_TESTS:
        return f"{count} tolerations: expected {MOST_TESTS} at most"
    return ""


def _node_terms(pod: Pod) -> Sequence[NodeSelectorTerm]:
    of_nodes = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = of_nodes.required_during_scheduling_ignored_during_execution if of_nodes else None
    return required.node_selector_terms if required else ()


def shares_of(pod: Pod, managed: str) -> tuple[tuple[str, PodDemand], ...]:
    """What the pod takes of each resource that offers shares beside the *managed* one.

    Raises ValueError for a bad quantity.
    """
    # In one pass: each container may have a resource of its own.
    wanted: dict[str, list[ContainerDemand]] = {}
    for container, role in _containers(pod):
        for name in {*_amounts(container)}:
            if is_share(name, managed):
                wanted.setdefault(name, []).extend(_demand(container, role, name))
    return tuple((name, _shared(tuple(found))) for name, found in sorted(wanted.items()) if found)


def _amounts(container: Container) -> Iterable[str]:
    return (*container.resources.limits, *container.resources.requests)


@lru_cache(maxsize=1024)
def _shared(wanted: tuple[ContainerDemand, ...]) -> PodDemand:
    """One object for equal demands: planning a gang compares them thousands of times."""
    return PodDemand(wanted)


@lru_cache(maxsize=1024)
def _shared_spans(equal: Spans) -> Spans:
    return equal


@lru_cache(maxsize=1024)
def _shared_requirement(equal: TopologyRequirement) -> TopologyRequirement:
    return equal


def link_word(link: LinkClass) -> str:
    """The annotation's word for *link*: the one that requests this class or a closer one."""
    return _WORD_OF_LINK.get(link, _WORD_OF_LINK[LinkClass.PXB])  # PIX has no word of its own


def _demand(container: Container, role: Role, resource: str) -> list[ContainerDemand]:
    # An extended resource has limit == request; the API server fills in the missing one.
    resources = container.resources
    quantity = resources.limits.get(resource, resources.requests.get(resource))
    count = 0 if quantity is None else whole(quantity)
    return [ContainerDemand(container.name, role, count)] if count > 0 else []


def _known(key: str) -> str:
    """What is allowed instead of an unknown key: a similar key, or else any."""
    words = sorted(name.removeprefix(names.PREFIX) for name in BY_PODS)
    near = get_close_matches(key.removeprefix(names.PREFIX), words, n=1, cutoff=_NEAR)
    return f"{names.PREFIX}{near[0]}" if near else f"{names.PREFIX} and one of {', '.join(words)}"


def _requirement(said: Mapping[str, str]) -> TopologyRequirement:
    return _shared_requirement(
        TopologyRequirement(
            require=_read(said, names.REQUIRE_LINK, LINK_WORDS.__getitem__) or LinkClass.SYS,
            prefer=_prefer(said),
            hardware=HardwareRequirement(
                models=_read(said, names.GPU_MODEL, _models) or (),
                memory_mib=_read(said, names.GPU_MEMORY, _memory) or 0,
            ),
        )
    )


def _prefer(said: Mapping[str, str]) -> LinkClass:
    found = _read(said, names.PREFER_LINK, LINK_WORDS.__getitem__)
    return LinkClass.NVLINK if found is None else found


def _gang(said: Mapping[str, str]) -> GangAsk | None:
    name = said.get(names.GANG)
    if name is None:
        for key in (names.GANG_SIZE, names.GANG_MIN, names.GANG_TIMEOUT, names.GANG_TO_COME):
            if key in said:
                raise AnnotationError(key, said[key], f"{names.GANG} beside it, with a gang's name")
        return None
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise AnnotationError(names.GANG, name, BY_PODS[names.GANG].expected)
    size = _read(said, names.GANG_SIZE, _size)
    if size is None:
        wanted = f"{names.GANG_SIZE} beside it, with the number of members"
        raise AnnotationError(names.GANG, name, wanted)
    least = f"a whole number from 1 to {size}, the {names.GANG_SIZE}"
    minimum = _read(said, names.GANG_MIN, lambda text: _size(text, most=size), least)
    timeout = _read(said, names.GANG_TIMEOUT, _duration)
    to_come = _read(said, names.GANG_TO_COME, _resources) or ()
    return GangAsk(name, size, size if minimum is None else minimum, timeout, to_come)


def _rank(
    said: Mapping[str, str], annotations: Mapping[str, str], labels: Mapping[str, str]
) -> int | None:
    if names.RANK in said:
        return _read(said, names.RANK, _index)
    index = annotations.get(COMPLETION_INDEX, labels.get(COMPLETION_INDEX, ""))
    # Other software writes this index, so an unreadable one is no error: the pod's name orders it.
    return int(index) if index.isascii() and index.isdigit() and len(index) <= 9 else None


_Read = TypeVar("_Read")


def _read(
    said: Mapping[str, str], key: str, reader: Callable[[str], _Read], expected: str = ""
) -> _Read | None:
    if key not in said:
        return None
    try:
        return reader(said[key])
    except (ValueError, KeyError):
        raise AnnotationError(key, said[key], expected or BY_PODS[key].expected) from None


def _levels(text: str) -> tuple[str, ...]:
    levels = tuple(part.strip() for part in text.split(","))
    if not all(LABEL_KEY.fullmatch(level) for level in levels):
        raise ValueError
    return levels


def _size(text: str, *, most: int = MAX_GANG) -> int:
    size = _index(text)
    if not 1 <= size <= most:
        raise ValueError
    return size


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):  # int() accepts "+1", "1_0"
        raise ValueError
    return int(text)


def _duration(text: str) -> float:
    seconds = seconds_of(text)
    if seconds <= 0:
        raise ValueError
    return seconds


def _movable(text: str) -> float:
    if text in _BOOLEANS:
        return 0.0 if _BOOLEANS[text] else math.inf
    return _duration(text)


def _reclaim(text: str) -> float:
    return math.inf if text == _NEVER else _duration(text)


def _memory(text: str) -> int:
    size = whole(text)
    if size <= 0:
        raise ValueError
    return -(-size // _MIB)


def _resources(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",")]
    found = {name: quantity for name, _, quantity in pairs}
    if len(found) < len(pairs) or not all(map(LABEL_KEY.fullmatch, found)):
        raise ValueError
    for name, quantity in found.items():
        amount = milli(quantity)
        if amount <= 0 or ("/" in name and amount % 1000):  # a device is whole
            raise ValueError
    return tuple(found.items())


def _models(text: str) -> tuple[tuple[str, ...], ...]:
    models = tuple(words_of(part) for part in text.split(","))
    if not all(models):
        raise ValueError
    return models
