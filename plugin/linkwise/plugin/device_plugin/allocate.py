"""PURE. The kubelet's question -> the GPUs to prefer.

GetPreferredAllocation names no pod, so this module infers it. The kubelet admits pods one after the
other, in the order in which they came, and serves each pod's containers in a fixed order. If a pod
is half served, the question is for that pod. Otherwise it is for the first pod whose next container
wants that many GPUs and whose plan can be met. A mix-up can only swap two plans of one size.

Answers are total: always exactly as many devices as asked for, with all that must be among them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.sets.choose import better_of, choose
from linkwise.topology.sets.partition import choose_partition


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A container that wants `size` GPUs; `gpus` is what the plan gives it, empty without one. They
    are more than `size` if the kubelet hands some of them on by itself."""

    name: str
    size: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that is bound to this node and not yet started.

    `containers` are those that want GPUs, in the kubelet's order. `served` maps each container
    served so far to its GPUs (empty if they are unknown).
    """

    uid: str
    key: str  # namespace/name
    containers: tuple[ContainerPlan, ...]
    served: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prefer: LinkClass = LinkClass.NVLINK

    @property
    def next(self) -> ContainerPlan | None:
        """The container that the kubelet asks for next."""
        return next((c for c in self.containers if c.name not in self.served), None)

    @property
    def still_planned(self) -> frozenset[str]:
        """GPUs that the plan gives to containers not yet served."""
        return frozenset(u for c in self.containers if c.name not in self.served for u in c.gpus)

    @property
    def own(self) -> frozenset[str]:
        """Every GPU of its plan, and every GPU that it has received already."""
        planned = {uuid for container in self.containers for uuid in container.gpus}
        return frozenset(planned.union(*self.served.values()))


@dataclass(frozen=True, slots=True)
class Question:
    """One container of GetPreferredAllocation; `available` comes in random order."""

    available: frozenset[str]
    must: frozenset[str]
    size: int


class Source(Enum):
    PLAN = "plan"  # the asking pod's plan
    FREE_CHOICE = "free-choice"  # no plan: the best set that spoils no other pod's plan
    SPOILS = "free-choice-spoils"  # no plan, and too few unplanned GPUs: it takes planned ones
    FALLBACK = "fallback"  # nothing could be judged: lowest indices
    VENDOR = "vendor"  # what the vendor's own plugin prefers, which is better


@dataclass(frozen=True, slots=True)
class Answer:
    gpus: tuple[str, ...]
    source: Source
    pod: WaitingPod | None = None
    container: str = ""


Pick = Callable[[Machine, int, int, int, LinkClass], int | None]
"""machine, free GPUs, size, GPUs that must be among them, preferred class -> GPU set."""


def pick_ring(machine: Machine, free: int, size: int, must: int, prefer: LinkClass) -> int | None:
    """The set with the best rings; leaves the best sets for later pods."""
    choice = choose(machine, free, size, must=must, prefer=prefer)
    return None if choice is None else choice.gpus


def pick_partition(
    machine: Machine, free: int, size: int, must: int, _prefer: LinkClass
) -> int | None:
    """What NVIDIA's go-gpuallocator would give."""
    return choose_partition(machine, free, size, must=must)


POLICIES: dict[str, Pick] = {"ring": pick_ring, "partition": pick_partition}


def preferred(
    machine: Machine, question: Question, waiting: Sequence[WaitingPod], pick: Pick
) -> Answer:
    """The devices for the container that this question must be for.

    *waiting* is in the order in which the pods were first seen on this node.
    """
    plan_not_met: WaitingPod | None = None
    asker: WaitingPod | None = None
    for pod, container in askers(question, waiting):
        if not container.gpus:
            asker = pod
            break
        gpus = _as_planned(pod, container, question)
        if gpus:
            return Answer(_in_order(machine, gpus), Source.PLAN, pod, container.name)
        plan_not_met = plan_not_met or pod
    asker = asker or plan_not_met
    return _free_choice(machine, question, waiting, asker, pick)


def compared(
    machine: Machine,
    question: Question,
    waiting: Sequence[WaitingPod],
    ours: Answer,
    theirs: Collection[str],
) -> Answer:
    """*ours*, which follows no plan; or *theirs*, the GPUs of another plugin, if they are better.

    *theirs* must answer the question and take no more GPUs of other pods' plans than *ours*. If the
    two are equally good, the result is *ours*.
    """
    gpus = frozenset(theirs)
    if not gpus or not len(theirs) == len(gpus) == question.size:
        return ours
    if not question.must <= gpus <= (question.available | question.must):
        return ours
    planned = _planned(waiting, ours.pod) - question.must
    if len(planned & gpus) > len(planned.intersection(ours.gpus)):
        return ours
    if ours.source is not Source.FALLBACK:
        prefer = ours.pod.prefer if ours.pod else LinkClass.NVLINK
        free = machine.mask_of((question.available | question.must) - planned)
        sets = machine.mask_of(ours.gpus), machine.mask_of(gpus)
        if better_of(machine, free, *sets, prefer=prefer) == sets[0]:
            return ours
    return replace(ours, gpus=_in_order(machine, gpus), source=Source.VENDOR)


def askers(
    question: Question, waiting: Sequence[WaitingPod]
) -> Iterator[tuple[WaitingPod, ContainerPlan]]:
    """The containers that the question can be for, the likeliest first: each pod's next one."""
    for pod in sorted(waiting, key=lambda pod: not pod.served):  # stable: then first seen
        container = pod.next
        if container is not None and container.size == question.size:
            yield pod, container


def _as_planned(pod: WaitingPod, container: ContainerPlan, question: Question) -> frozenset[str]:
    """The container's planned GPUs; empty if the plan cannot be met.

    The kubelet picks by itself which of an ended init container's GPUs it reuses, and names them in
    `must`. If it picked others than planned, the pod still gets no GPU from outside its plan, and
    those of its later containers last.
    """
    planned, must = frozenset(container.gpus), question.must
    if len(planned) < question.size:
        return frozenset()
    if must <= planned and len(planned) == question.size:
        return planned if planned <= question.available | must else frozenset()
    if not must <= pod.own:
        return frozenset()
    others = (c for c in pod.containers if c is not container and c.name not in pod.served)
    later = {uuid for other in others for uuid in other.gpus}
    spare = (question.available & pod.own) - must
    gpus = [*must, *sorted(spare, key=lambda u: (u not in planned, u in later, u))]
    return frozenset(gpus[: question.size] if len(gpus) >= question.size else ())


def _free_choice(
    machine: Machine,
    question: Question,
    waiting: Sequence[WaitingPod],
    asker: WaitingPod | None,
    pick: Pick,
) -> Answer:
    planned = _planned(waiting, asker) - question.must
    unplanned = (question.available | question.must) - planned
    must = machine.mask_of(question.must)
    free = machine.mask_of(unplanned)
    source = Source.FREE_CHOICE
    if free.bit_count() < question.size:  # take all unplanned GPUs, and as few planned as possible
        source, must = Source.SPOILS, must | free
        free = machine.mask_of(question.available | question.must)
    prefer = asker.prefer if asker else LinkClass.NVLINK
    gpus: int | None = None
    if must.bit_count() <= question.size <= free.bit_count() and question.size > 0:
        gpus = pick(machine, free, question.size, must, prefer)
    chosen = machine.uuids_of(gpus) if gpus is not None else ()
    if len(chosen) != question.size or not question.must <= set(chosen):
        source, chosen = Source.FALLBACK, lowest(machine, question, planned)
    container = asker.next if asker else None
    return Answer(chosen, source, asker, container.name if container else "")


def _planned(waiting: Sequence[WaitingPod], asker: WaitingPod | None) -> frozenset[str]:
    """GPUs that plans give to other pods than the asker."""
    others = [pod for pod in waiting if asker is None or pod.uid != asker.uid]
    return frozenset[str]().union(*(pod.still_planned for pod in others))


def lowest(
    machine: Machine, question: Question, planned: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """The GPUs of `must`, then those that are not *planned* for others, by the lowest indices; ids
    of no GPU of this machine come last.

    Never fewer than `must` has; fewer than asked for only if there are no more.
    """
    order = {gpu.uuid: position for position, gpu in enumerate(machine.gpus)}
    rest = sorted(
        question.available - question.must,
        key=lambda u: (u in planned, order.get(u, len(order)), u),
    )
    wanted = max(0, question.size - len(question.must))
    return _in_order(machine, question.must | set(rest[:wanted]))


def _in_order(machine: Machine, gpus: set[str] | frozenset[str]) -> tuple[str, ...]:
    order = {gpu.uuid: position for position, gpu in enumerate(machine.gpus)}
    return tuple(sorted(gpus, key=lambda uuid: (order.get(uuid, len(order)), uuid)))
