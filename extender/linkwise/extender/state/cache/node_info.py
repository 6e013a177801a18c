"""One node's account: which pod has which of its GPUs, settled again from the facts at each change.

GPUs are assigned in this order:
1. what is allocated to claims
2. what the kubelet reports as in use, even for pods that the API server no longer knows
3. the plans of bound pods
4. assumed Bindings
5. bound pods without a plan
6. the plans of unbound pods

Each step gets only what the steps before it left. So no GPU ever has two holders, and a plan that
lost a GPU shows as such. Then `shares.book` assigns the shares of divided GPUs, in the same order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import NamedTuple

from linkwise.extender.state.cache.claims.book import NONE_CLAIMED, ClaimedGpus
from linkwise.extender.state.cache.machine_kind import GpuRequest, MachineKind, will_do
from linkwise.extender.state.cache.node_table import BY_CLAIMS, BY_KUBELET
from linkwise.extender.state.cache.shares.book import NodeShares, ShareBook, attributed
from linkwise.extender.state.records import (
    GangKey,
    NodeRecord,
    PodRecord,
    ResourceList,
    WrittenPlan,
)
from linkwise.pods.spans import CLIQUE
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.annotations.plan import InUse, held_of, read_in_use
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.machine.model import Machine


class ClosedBy(StrEnum):
    NOT_SEEN = "not-seen"  # the API server has not shown the node
    NO_TOPOLOGY = "no-topology"  # no plugin has published one
    UNREADABLE = "unreadable"  # the annotation with the topology, or with the GPUs in use
    CLAIMS = "claims"  # a DRA driver gives out its GPUs
    REFUSES = "refuses"  # its kubelet refuses pods with GPUs
    EMPTIED = "emptied"  # a person, or the extender, wants its GPUs free


class Closed(NamedTuple):
    """Why nothing new is placed on a node."""

    by: ClosedBy
    error: str = ""  # what is wrong with an annotation that cannot be read; what a kubelet said


NO_TOPOLOGY, NOT_SEEN = Closed(ClosedBy.NO_TOPOLOGY), Closed(ClosedBy.NOT_SEEN)
CLAIMS = Closed(ClosedBy.CLAIMS)
_KUBELET = "kubelet"  # a holder that is no pod's uid
InUsePods = Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(slots=True)
class NodeInfo:
    name: str
    row: int
    no_topology: Closed | None  # why its machine is unknown; None: it is known
    sharing: NodeShares  # its divided GPUs
    claimed: ClaimedGpus = NONE_CLAIMED  # its GPUs that a DRA driver gives out
    no_truth: Closed | None = None  # why the in-use annotation cannot be read
    record: NodeRecord | None = None
    machine: Machine | None = None
    kind: MachineKind | None = None
    in_use: InUsePods = field(default_factory=dict)
    listed_as: dict[str, str] = field(default_factory=dict)  # a name in `in_use` -> its pod's uid
    # The bound pods of which the plans are no promise any more: they were listed once, or the node
    # has said that it lacks their GPUs.
    given: set[str] = field(default_factory=set)
    bound: dict[str, PodRecord] = field(default_factory=dict)  # the pods with GPUs, by uid
    assumed: dict[str, WrittenPlan] = field(default_factory=dict)  # Bindings in flight
    plans: dict[str, WrittenPlan] = field(default_factory=dict)  # of pods that are not yet bound
    charged: int = 0  # pods whose needs count here: bound, about to be, or planned
    spent: ResourceList = field(default_factory=ResourceList)  # the sum of their needs
    settled: int = 0  # rises with each `settle`
    version: int = 0  # rises when the node, or the pods bound to it, change
    owned: dict[str, int] = field(default_factory=dict)  # holder -> bitmask
    used: int = 0  # bitmask of what the kubelet reports as in use, and of what claims have
    free: int = 0
    set_aside: int = 0  # GPUs that no pod has, and that are `reserved` or `fresh`
    fresh: int = 0  # came free, and the longest waiting have not had their turn yet
    reserved: dict[GangKey, int] = field(default_factory=dict)  # waiting gang -> bitmask
    chosen: bool = False  # the extender wants its GPUs free, to have more whole nodes
    refuses: str = ""  # which pod its kubelet refused, and why, if it takes none with GPUs
    lacks: int = 0  # so many of its idle GPUs its kubelet does not give; it does not say which
    # If the node refuses pods and one more may be placed as a trial: the pods that were there
    # before, by uid.
    tried_beside: frozenset[str] | None = None
    was_open: bool = False  # as it was settled: whether pods could come to it

    @property
    def problem(self) -> Closed | None:
        """Why nothing can be planned on this node; None: it can."""
        return self.no_topology or self.no_truth or (CLAIMS if self._gives_twice else None)

    @property
    def gives_by_claims(self) -> bool:
        """Whether a DRA driver gives out GPUs of this machine."""
        return self.claimed_gpus > 0

    @property
    def offering(self) -> int:
        """As a `NodeTable` has it."""
        return BY_CLAIMS if self.gives_by_claims else BY_KUBELET * self.offers_gpus

    @property
    def claimed_gpus(self) -> int:
        """How many GPUs of this machine a DRA driver gives out."""
        if self.machine is None or not self.claimed.gpus:  # asked often, and mostly there are none
            return 0
        return self.machine.mask_of(self.claimed.gpus).bit_count()

    @property
    def _gives_twice(self) -> bool:
        """A device plugin beside a DRA driver gives out the same GPUs once more."""
        return self.gives_by_claims and self.offers_gpus

    @property
    def closed(self) -> Closed | None:
        """Why nothing new is placed on this node; None: something may be."""
        if self.emptied:
            return Closed(ClosedBy.EMPTIED)
        problem = self.problem
        if problem or not self.refuses:
            return problem
        return None if self._on_trial else Closed(ClosedBy.REFUSES, self.refuses)

    @property
    def emptied(self) -> bool:
        """Whether its GPUs are to be free. What is planned here already may still come."""
        return self.chosen or (self.record is not None and self.record.emptied)

    @property
    def by_count(self) -> bool:
        """Whether pods are placed here by count: the node offers GPUs and publishes no
        topology."""
        return self.offers_gpus and self.unpublished

    @property
    def offers_gpus(self) -> bool:
        """Whether its kubelet offers GPUs, used or not."""
        return self.record is not None and self.record.offers.gpus > 0

    @property
    def unpublished(self) -> bool:
        """Whether no plugin publishes a topology here, and pods may come."""
        admits = not self.refuses or self._on_trial
        return self.no_topology == NO_TOPOLOGY and admits and not self.emptied

    @property
    def _on_trial(self) -> bool:
        return self.tried_beside is not None and self.there <= self.tried_beside

    @property
    def left(self) -> ResourceList:
        """What the node offers beyond what its pods need; negative if they need more."""
        return self.offers - self.spent

    @property
    def offers(self) -> ResourceList:
        """What pods may have of it in all. GPUs that come from claims count like others."""
        offered = self.record.offers if self.record else ResourceList()
        gpus = self.claimed_gpus
        return offered + ResourceList(gpus=gpus) if gpus else offered

    @property
    def pods_left(self) -> int:
        """How many more pods the node may take; one that refuses pods takes one as a trial."""
        pods = (self.record.max_pods if self.record else 0) - self.charged
        return min(pods, 1) if self.refuses else pods

    def charge(self, sign: int, needs: ResourceList) -> None:
        """Count a pod with these *needs* on the node (*sign* 1), or no longer (-1)."""
        self.charged += sign
        self.spent = self.spent + needs if sign > 0 else self.spent - needs

    def put_topology(self, text: str | None, kind_of: Callable[[Machine], MachineKind]) -> None:
        """Read the topology annotation; if it cannot be read, the reason is `no_topology`."""
        self.machine = self.kind = None
        self.sharing.put_machine(None)
        self.no_topology = NO_TOPOLOGY
        if text is None:
            return
        try:
            machine = read_topology(text)
        except LinkwiseError as error:
            self.no_topology = Closed(ClosedBy.UNREADABLE, str(error))
            return
        masks = [
            mask
            for uuids in self.claimed.partitions
            if (mask := machine.mask_of(uuids)).bit_count() == len(uuids)
        ]
        self.machine = replace(machine, partitions=tuple(sorted(masks)))
        self.kind = kind_of(self.machine)
        self.sharing.put_machine(self.machine)
        self.no_topology = None
        for uid, record in self.bound.items():
            plan = record.plan_for(self.name)
            if plan is not None and not self._can_be(plan, record):
                self.given.add(uid)

    def put_in_use(self, text: str | None) -> None:
        """Read the in-use annotation. If it cannot be read, no GPU may be assigned: the known ones
        stay in use, and the reason is `no_truth`."""
        before = self.in_use
        try:
            found = InUse() if text is None else read_in_use(text)
        except LinkwiseError as error:
            self.no_truth = Closed(ClosedBy.UNREADABLE, str(error))
            return
        self.in_use, self.no_truth = found.pods, None
        self.attribute(before)
        self.sharing.put_in_use(found.shares, self.bound)

    @property
    def shares(self) -> ShareBook:
        """Which pod has which shares of its divided GPUs."""
        return self.sharing.book

    @property
    def there(self) -> frozenset[str]:
        """The pods, by uid, that have GPUs of this node or will get some."""
        return frozenset((*self.bound, *self.sharing.pods, *self.assumed, *self.plans))

    def take(self, request: GpuRequest, free: int) -> int | None:
        """The set of these *free* GPUs for a pod, or None if no set is suitable."""
        assert self.kind is not None, "take() needs a usable node"
        busy = {uid: gpus & ~free for uid, gpus in self.owned.items()}
        running = running_sets(busy, self.bound)
        return self.kind.take(request, free, running)

    @property
    def labels(self) -> Mapping[str, str]:
        """The node's labels; the clique that its machine reported to the plugin counts as one."""
        labels = self.record.labels if self.record is not None else {}
        clique = self.machine.clique if self.machine is not None else None
        return labels if clique is None else {**labels, CLIQUE: clique}

    @property
    def empty(self) -> bool:
        if self.record is not None:
            return False
        there = self.bound or self.sharing.pods or self.assumed or self.plans
        return not (there or self.charged)

    def settle(self, *, queue_first: bool = False) -> None:
        """Compute `owned`, `used` and `free` from everything else. With *queue_first*, GPUs that
        came free since the last time and are not reserved become `fresh`."""
        was_free = self.free
        self.owned = {}
        self.used = self.free = self.set_aside = 0
        self.settled += 1
        if self.machine is None or self.kind is None:
            self.fresh = 0
            self.sharing.settle((), {}, {}, 0)
            return
        settling = _Settling(self.machine, self.owned)
        for given in self.claimed.given:
            settling.give(given.holder, self.machine.mask_of(given.uuids))
        listed = self._settle_truth(settling)
        for holder, gpus in self.sharing.strays.items():
            settling.give(holder, gpus)
        self.used = settling.taken
        unplanned = []
        takers = self.sharing.takers(self.bound, listed) if self.sharing.places else {}
        everyone = self.bound | self.sharing.pods if self.sharing.pods else self.bound
        pods = sorted(everyone.values(), key=_by_plan)
        for record in pods:
            if not record.demand.gpus or (
                takers and self.sharing.managed in takers.get(record.uid, {})
            ):
                continue  # it has no whole GPUs
            plan = record.plan_for(self.name)
            if plan is not None and self._can_be(plan, record):
                shares = (s for c, s in plan.gpus.items() if c not in listed.get(record.uid, ()))
                settling.give(record.uid, self.machine.mask_of([u for s in shares for u in s]))
            elif record.uid not in listed and record.uid not in self.claimed.pods:
                unplanned.append(record)
        for uid, reservation in sorted(self.assumed.items()):
            settling.give(uid, self.machine.mask_of(reservation.uuids))
        self._settle_unplanned(settling, unplanned)
        self._settle_lacking(settling)
        # Of two plans for one GPU the newer counts: the older was about to be withdrawn.
        for uid, plan in sorted(self.plans.items(), key=lambda item: (-item[1].plan.made, item[0])):
            settling.give(uid, self.machine.mask_of(plan.uuids))
        idle = self.usable_gpus & ~settling.taken
        self._set_aside(idle, was_free, queue_first=queue_first)
        self.sharing.settle(pods, takers, self.assumed, settling.taken)

    @property
    def usable_gpus(self) -> int:
        """The GPUs that the kubelet or the DRA driver has for new pods, or would once they are
        free."""
        if self.machine is None:
            return 0
        if not self.gives_by_claims:
            return self.machine.healthy_gpus
        return self.machine.healthy_gpus & self.machine.mask_of(self.claimed.open)

    @property
    def beside_bound(self) -> int:
        """How many of its GPUs no pod has that is bound: the kubelet has them for a new one."""
        coming = {*self.plans, *self.assumed, _KUBELET} - self.bound.keys()
        held = (gpus for holder, gpus in self.owned.items() if holder not in coming)
        return (self.usable_gpus & ~reduce(or_, held, 0)).bit_count()

    def settle_reserved(self, *, queue_first: bool = False) -> None:
        """`settle` if nothing but `reserved` changed since the last time."""
        self.settled += 1
        self._set_aside(self.free | self.set_aside, self.free, queue_first=queue_first)

    def _set_aside(self, idle: int, was_free: int, *, queue_first: bool) -> None:
        """Divide the *idle* GPUs, which no pod has, into `free` and `set_aside`."""
        reserved = reduce(or_, self.reserved.values(), 0) if self.reserved else 0
        self.fresh &= idle & ~reserved
        if queue_first:
            self.fresh |= idle & ~was_free & ~reserved
        self.set_aside = idle & (reserved | self.fresh)
        self.free = idle & ~self.set_aside

    def has_idle(self, gpus: int) -> bool:
        """Whether no pod has any of these GPUs. Some may be reserved."""
        return not gpus & ~(self.free | self.set_aside)

    def has_unused(self, gpus: int) -> bool:
        """Whether no pod has any of these GPUs, and none is reserved."""
        return not gpus & ~(self.free | self.fresh)

    def keeps(self, uid: str) -> bool:
        """Whether the plan of this unbound pod still has every GPU that it names, all healthy, and
        the kubelet would admit the pod."""
        plan = self.plans.get(uid)
        if plan is None or self.machine is None or self.problem:
            return False
        if self.refuses and (self.tried_beside is None or uid in self.tried_beside):
            return False
        gpus = self.machine.mask_of(plan.uuids)
        return (
            gpus.bit_count() == len(plan.uuids)
            and self.owned.get(uid, 0) == gpus
            and not gpus & ~self.machine.healthy_gpus
        )

    def keeps_for(self, record: PodRecord) -> bool:
        """Whether the plan of this unbound pod can still be carried out, as far as GPUs matter."""
        plan = self.plans.get(record.uid)
        if plan is None or self.kind is None or self.machine is None or not self.keeps(record.uid):
            return False
        request = GpuRequest(record.demand, record.ask.requirement)
        return will_do(self.kind, self.machine, request, plan.gpus)

    def truth_of(self, record: PodRecord) -> Mapping[str, tuple[str, ...]] | None:
        """Which container of this pod really has which GPUs; None if nothing is known."""
        return self.in_use.get(record.key) if self.listed_as.get(record.key) == record.uid else None

    def attribute(self, before: InUsePods) -> None:
        """Assign each name in `in_use` to a pod. *before* is what was listed before."""
        self.listed_as = attributed(
            self.listed_as, before, self.in_use, self.bound, self._gets_others
        )
        self.given |= self.bound.keys() & set(self.listed_as.values())

    def _gets_others(self, record: PodRecord, held: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether the plan of this bound pod names other GPUs than those listed under its name."""
        plan = record.plan_for(self.name)
        listed = {uuid for gpus in held.values() for uuid in gpus}
        is_its_own = listed <= (plan.uuids if plan else listed)
        # An init container that has ended is not listed, so they may be fewer than planned.
        return plan is not None and not (is_its_own and len(listed) == record.demand.listed)

    def _can_be(self, plan: WrittenPlan, record: PodRecord) -> bool:
        """Whether the plan names enough GPUs of this machine. A copied or malformed plan would
        leave GPUs free in the cache that the kubelet gives to this pod."""
        assert self.machine is not None, "settle() checked it"
        return self.machine.mask_of(plan.uuids).bit_count() >= record.demand.gpus

    def _settle_truth(self, settling: "_Settling") -> dict[str, Mapping[str, tuple[str, ...]]]:
        listed: dict[str, Mapping[str, tuple[str, ...]]] = {}
        for key, containers in sorted(self.in_use.items()):
            holder = self.listed_as.get(key, key)
            listed[holder] = containers
            uuids = [uuid for share in containers.values() for uuid in share]
            settling.give(holder, settling.machine.mask_of(uuids))
        return listed

    def _settle_lacking(self, settling: "_Settling") -> None:
        if self.lacks:
            idle = self.usable_gpus & ~settling.taken
            unplanned = idle & ~self._planned_of(settling.machine)
            settling.give(_KUBELET, _closest(self.lacks, (unplanned, idle)))

    def _planned_of(self, machine: Machine) -> int:
        """The GPUs that plans of unbound pods name."""
        return machine.mask_of([uuid for plan in self.plans.values() for uuid in plan.uuids])

    def _settle_unplanned(self, settling: "_Settling", records: Sequence[PodRecord]) -> None:
        """Pods bound without the extender get some GPUs: presume those that no plan needs, if
        possible."""
        if not records:
            return
        assert self.kind is not None, "settle() checked it"
        machine = settling.machine
        planned, divided = self._planned_of(machine), self.sharing.divided
        for record in records:
            left = machine.all_gpus & ~settling.taken & ~divided
            if not left:
                return  # a kubelet may create thousands of pods with GPUs
            healthy = left & machine.healthy_gpus
            request = GpuRequest(record.demand, record.ask.requirement)
            gpus = self.kind.take(request, healthy & ~planned)
            if gpus is None:
                gpus = _closest(request.size, (healthy & ~planned, healthy, left))
            settling.give(record.uid, gpus)


@dataclass(slots=True)
class _Settling:
    machine: Machine
    owned: dict[str, int]
    taken: int = 0

    def give(self, holder: str, gpus: int) -> None:
        gpus &= ~self.taken
        if gpus:
            self.owned[holder] = self.owned.get(holder, 0) | gpus
            self.taken |= gpus


def running_sets(owned: Mapping[str, int], pods: Mapping[str, PodRecord]) -> tuple[int, ...]:
    """The GPU sets that come free together: the GPUs of each pod, or of all members of a gang.
    *owned* is by uid. Ascending."""
    by_job: dict[object, int] = {}
    for uid, gpus in owned.items():
        record = pods.get(uid)
        job = uid if record is None or record.gang is None else record.gang
        by_job[job] = by_job.get(job, 0) | gpus
    return tuple(sorted(gpus for gpus in by_job.values() if gpus))


def _by_plan(record: PodRecord) -> tuple[float, float, str]:
    made = record.written.plan.made if record.written else 0.0
    return made, record.created, record.uid


def _closest(size: int, candidates: Iterable[int]) -> int:
    """The lowest *size* GPUs of the first candidate that has so many."""
    gpus = 0
    for gpus in candidates:
        if gpus.bit_count() >= size:
            break
    while gpus.bit_count() > size:
        gpus &= ~(1 << gpus.bit_length() - 1)
    return gpus


def holder_of(record: PodRecord | None) -> PodRecord | None:
    """The pod, if it has GPUs of the node that it is bound to, whether or not they are in use."""
    if record is None or not record.node or record.ended or not record.demand.gpus:
        return None
    return record


def sharer_of(record: PodRecord | None) -> PodRecord | None:
    """The pod, if it has shares by their own name on the node that it is bound to."""
    if record is None or not record.node or record.ended or not record.shares:
        return None
    return record


def place_of(record: PodRecord | None) -> str:
    """The node on which the pod runs, whether or not it has GPUs; empty for none."""
    return record.node if record is not None and not record.ended else ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A pod that has other GPUs than its plan says."""

    record: PodRecord
    gpus: Mapping[str, tuple[str, ...]]  # container -> uuids that it really has
    swapped: bool  # more than another split among its own containers


def note_mismatches(known: dict[str, Mismatch], info: NodeInfo) -> None:
    """Update *known* (uid -> mismatch) for the pods of one node."""
    for uid, record in info.bound.items():
        found = mismatch_of(info, record)
        if found is None:
            known.pop(uid, None)
        else:
            known[uid] = found


def mismatch_of(info: NodeInfo, record: PodRecord) -> Mismatch | None:
    written, truth = record.written, info.truth_of(record)
    if written is None or truth is None or info.machine is None:
        return None  # without the machine no set can be named; it shows once that is known
    if written.plan.node != info.name:  # bound without the extender, elsewhere than planned
        return Mismatch(record, truth, swapped=False)
    by_claim = record.claim is not None
    right = held_of(info.in_use, record.key, written.gpus, by_claim=by_claim)
    if written.gpus.keys() == right.keys() and all(
        set(written.gpus[container]) == set(gpus) for container, gpus in right.items()
    ):
        return None
    real = {uuid for gpus in truth.values() for uuid in gpus}
    return Mismatch(record, right, swapped=not real <= written.uuids)
