"""Which pod has which shares of one node. A book is a value: each change of the node makes a new
one from the facts, which are what the API server says about the node (`NodeShares`).

Shares are assigned in the same order as whole GPUs (`node_info`): what the kubelet reports as in
use, the plans of bound pods, assumed Bindings, bound pods without a plan. Each step gets only what
the steps before it left, so no share ever has two holders.
"""

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any, TypeVar

from linkwise.extender.state.records import GangKey, PodRecord, WrittenPlan
from linkwise.topology.annotations.plan import ContainerShares, PlannedShares
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.parts import Part, part_of

Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class Place:
    """A part, and the position of its GPU on the machine."""

    part: Part
    gpu: int


@dataclass(frozen=True)
class ShareBook:
    """`holders` maps the ids of shares to the uid of their pod; a pod that the API server no longer
    knows is `namespace/name`. `used` are the ids that the kubelet reports as in use. `blocked` is
    the bitmask of the GPUs that pods have as a whole. `reserved` are the ids that are kept for pods
    to come."""

    places: tuple[Place, ...] = ()
    holders: Mapping[str, str] = field(default_factory=dict)
    used: frozenset[str] = frozenset()
    blocked: int = 0
    reserved: frozenset[str] = frozenset()
    # Choices made from this book, by request, and the like; they depend on nothing else.
    choices: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    def offers(self, resource: str) -> bool:
        """Whether the node has shares of this resource, healthy or not, free or not."""
        return any(place.part.resource == resource for place in self.places)

    def of(self, resource: str) -> list[Place]:
        """The parts whose shares pods can get: healthy, and not on a GPU that a pod has whole."""
        return [
            place
            for place in self.places
            if place.part.resource == resource
            and place.part.healthy
            and not self.blocked >> place.gpu & 1
        ]

    def free_ids(self, part: Part) -> tuple[str, ...]:
        if not (self.holders or self.reserved):
            return part.ids
        holders, reserved = self.holders, self.reserved
        return tuple(each for each in part.ids if each not in holders and each not in reserved)

    def has_unused(self, planned: Iterable[PlannedShares]) -> bool:
        """Whether no pod has any of these shares, and pods can get all of them."""
        return all(
            {*of.ids}.isdisjoint(self.holders)
            and {*of.ids} <= {each for place in self.of(of.resource) for each in place.part.ids}
            for of in planned
        )

    def gpus_of(self, planned: Iterable[PlannedShares]) -> int:
        """The bitmask of the GPUs of which these are shares."""
        ids = {each for of in planned for each in of.ids}
        return _mask(place.gpu for place in self.places if not ids.isdisjoint(place.part.ids))

    def reserving(self, planned: Iterable[PlannedShares]) -> "ShareBook":
        """The book with these shares reserved too."""
        ids = (each for of in planned for each in of.ids)
        return replace(self, reserved=self.reserved.union(ids), choices={})

    def without(self, gone: Collection[str], gpus: int) -> "ShareBook":
        """The book without these holders, who also have these *gpus* (bitmask) as a whole."""
        holders = {each: holder for each, holder in self.holders.items() if holder not in gone}
        return ShareBook(self.places, holders, self.used, self.blocked & ~gpus, self.reserved)

    @cached_property
    def divided(self) -> int:
        """The bitmask of the GPUs that have parts."""
        return _mask(place.gpu for place in self.places)

    @cached_property
    def opened(self) -> int:
        """The bitmask of the divided GPUs of which some pod has a share, or will have one."""
        return _mask(
            place.gpu for place in self.places if len(self.free_ids(place.part)) < place.part.shares
        )

    def has_more_than(self, before: "ShareBook") -> bool:
        """Whether pods can get more shares of some part than *before*. If a pod moves from one GPU
        to another, there are as many as before, and a container may find all of its own on one."""
        if not self.places:
            return False
        earlier = before.left_of
        return any(count > earlier.get(part, 0) for part, count in self.left_of.items())

    @cached_property
    def left_of(self) -> Mapping[Part, int]:
        """How many shares of each part pods can get now."""
        return {
            place.part: len(self.free_ids(place.part))
            for place in self.places
            if place.part.resource and place.part.healthy and not self.blocked >> place.gpu & 1
        }

    @cached_property
    def free(self) -> Mapping[str, int]:
        """How many shares of each resource pods can get now."""
        resources = dict.fromkeys(place.part.resource for place in self.places)
        return {
            resource: sum(len(self.free_ids(place.part)) for place in self.of(resource))
            for resource in resources
            if resource
        }


@dataclass(frozen=True, slots=True)
class ShareFacts:
    """What decides about a node's shares. The names in `listed` are as in `ShareBook.holders`.
    `bound` has the pods on the node that take shares, each with what it takes of each resource."""

    listed: Mapping[str, ContainerShares]
    bound: Sequence[tuple[PodRecord, Mapping[str, int], WrittenPlan | None]]
    assumed: Mapping[str, WrittenPlan]
    blocked: int
    reserved: frozenset[str] = frozenset()


def _mask(gpus: Iterable[int]) -> int:
    return reduce(or_, (1 << gpu for gpu in gpus), 0)


def places_of(machine: Machine) -> tuple[Place, ...]:
    return tuple(
        Place(part, position)
        for position, gpu in enumerate(machine.gpus)
        for part in gpu.parts or ()
    )


def settle(places: tuple[Place, ...], facts: ShareFacts) -> ShareBook:
    """Assign the shares. *facts.bound* is in the order in which pods get what several claim."""
    settling = _Settling(places, facts.blocked)
    for holder, containers in sorted(facts.listed.items()):
        settling.give(holder, _ids(containers))
    used = frozenset(settling.holders)
    for record, _, plan in facts.bound:
        listed = facts.listed.get(record.uid, {})
        for planned in plan.plan.shares if plan is not None else ():
            if planned.resource not in listed.get(planned.container, {}):
                settling.give(record.uid, planned.ids)
    for uid, written in sorted(facts.assumed.items()):
        settling.give(uid, [each for planned in written.plan.shares for each in planned.ids])
    for record, wants, _ in facts.bound:
        if record.uid not in facts.listed:
            settling.presume(record.uid, wants)
    return ShareBook(places, settling.holders, used, facts.blocked, facts.reserved)


def strays(
    machine: Machine, places: Iterable[Place], listed: Mapping[str, ContainerShares]
) -> Mapping[str, int]:
    """holder -> bitmask of the GPUs of which it has shares, though they are not divided that way
    any more. No other pod gets such a GPU."""
    known = {place.part.uuid for place in places}
    position_of = {gpu.uuid: position for position, gpu in enumerate(machine.gpus)}
    found: dict[str, int] = {}
    for holder, containers in listed.items():
        for uuid in {part_of(each) for each in _ids(containers)} - known:
            if uuid in position_of:
                found[holder] = found.get(holder, 0) | 1 << position_of[uuid]
    return found


def _ids(containers: ContainerShares) -> list[str]:
    return [each for held in containers.values() for ids in held.values() for each in ids]


class _Settling:
    def __init__(self, places: tuple[Place, ...], blocked: int) -> None:
        self._resource_of = {
            each: place.part.resource for place in places for each in place.part.ids
        }
        # The kubelet gives out no unhealthy share.
        self._places = [(p.part.healthy and not blocked >> p.gpu & 1, p) for p in places]
        self.holders: dict[str, str] = {}

    def give(self, holder: str, ids: Iterable[str]) -> None:
        for each in ids:
            if each in self._resource_of:
                self.holders.setdefault(each, holder)

    def presume(self, holder: str, wants: Mapping[str, int]) -> None:
        """Neither a plan nor the kubelet says which shares the pod has: count some as its own, of
        the healthy parts that have fewest left."""
        for resource, want in wants.items():
            has = sum(
                mine == holder and self._resource_of[each] == resource
                for each, mine in self.holders.items()
            )
            left = [
                (usable, [each for each in place.part.ids if each not in self.holders])
                for usable, place in self._places
                if place.part.resource == resource
            ]
            left.sort(key=lambda of_part: (not of_part[0], len(of_part[1])))
            free = [each for _, ids in left for each in ids]
            self.give(holder, free[: max(want - has, 0)])


# Which pod a name in `linkwise.dev/in-use` means: whole GPUs and shares follow the same rule.
#
# A recreated pod with the same name must not be mistaken for its predecessor, whose devices may
# still be listed: a listing stays with its pod until the name vanishes or its devices change. But
# the new pod may get the same devices before the plugin lists them again, and then neither happens.
# So if the predecessor is gone, and no plan says that the new pod gets others, the listing means
# the new pod.
#
# A new leader finds the listing and the pod at once. If the pod's plan names other devices, those
# listed are the predecessor's until they change, or until the kubelet has admitted the pod.


def attributed(
    known: Mapping[str, str],
    before: Mapping[str, Held],
    now: Mapping[str, Held],
    bound: Mapping[str, PodRecord],
    gets_others: Callable[[PodRecord, Held], bool],
) -> dict[str, str]:
    """Each name that is listed *now* -> the uid of its pod. *known* is the result for *before*.
    *gets_others*: whether the pod's plan names other devices than those listed under its name."""
    by_key = {record.key: record for record in bound.values()}
    kept = {
        key: uid
        for key, uid in known.items()
        if key in now
        and now[key] == before.get(key)
        and (uid in bound or key not in by_key or gets_others(by_key[key], now[key]))
    }
    for key, held in now.items():
        record = by_key.get(key)
        if key in kept or record is None:
            continue
        was_listed = key not in known and before.get(key) == held  # before the pod came
        if not was_listed or record.admitted or not gets_others(record, held):
            kept[key] = record.uid
    return kept


Takers = Mapping[str, Mapping[str, int]]
"""uid -> resource -> how many shares the bound pod takes; pods that take none are left out"""


@dataclass(slots=True)
class NodeShares:
    node: str
    managed: str  # the resource that offers whole GPUs, and on some nodes shares
    machine: Machine | None = None
    places: tuple[Place, ...] = ()
    in_use: Mapping[str, ContainerShares] = field(default_factory=dict)  # by namespace/name
    listed_as: dict[str, str] = field(default_factory=dict)  # a name in `in_use` -> its pod's uid
    pods: dict[str, PodRecord] = field(default_factory=dict)  # bound; with shares by their own name
    reserved: dict[GangKey, frozenset[str]] = field(default_factory=dict)  # for whom -> ids
    book: ShareBook = field(default_factory=ShareBook)

    def put_machine(self, machine: Machine | None) -> None:
        self.machine = machine
        self.places = () if machine is None else places_of(machine)

    def forget(self) -> None:
        """The node is gone; pods may still be bound to its name."""
        self.put_machine(None)
        self.in_use, self.listed_as = {}, {}

    def put_in_use(
        self, in_use: Mapping[str, ContainerShares], bound: Mapping[str, PodRecord]
    ) -> None:
        """*bound* are the pods on the node with whole GPUs, or with shares instead of them."""
        before, self.in_use = self.in_use, in_use
        self._attribute(before, bound)

    def put_pod(self, record: PodRecord, bound: Mapping[str, PodRecord]) -> None:
        """A pod with GPUs or shares has come to the node, or changed."""
        if record.shares:
            self.pods[record.uid] = record
        self._attribute(self.in_use, bound)

    @property
    def divided(self) -> int:
        """The bitmask of the GPUs that have parts: no pod gets one as a whole."""
        return ShareBook(self.places).divided

    @property
    def listed(self) -> Mapping[str, ContainerShares]:
        """`in_use` by the uid of the pod, or by name if the API server no longer knows the pod."""
        return {self.listed_as.get(key, key): held for key, held in self.in_use.items()}

    @property
    def strays(self) -> Mapping[str, int]:
        if self.machine is None or not self.in_use:
            return {}
        return strays(self.machine, self.places, self.listed)

    def takers(self, bound: Mapping[str, PodRecord], whole: Container[str]) -> Takers:
        """Which of the pods *bound* to the node take shares.

        A pod that asks for the managed resource takes shares of it if its plan or the kubelet says
        so. If neither says anything, it does where the node offers shares under that name, and has
        fewer whole GPUs than the pod asks for. The kubelet reports those in *whole* with whole
        GPUs.
        """
        if not self.places or self.machine is None:
            return {}
        found: dict[str, Mapping[str, int]] = {}
        gpus, listed = self.machine.healthy_gpus.bit_count(), self.listed
        offers = any(place.part.resource == self.managed for place in self.places)
        for uid, record in (dict(bound) | self.pods).items():
            wants = {resource: demand.gpus for resource, demand in record.shares}
            if record.demand.gpus and offers and uid not in whole:
                plan = record.plan_for(self.node)
                named = {name for names in listed.get(uid, {}).values() for name in names}
                named |= {planned.resource for planned in plan.plan.shares} if plan else set()
                if self.managed in named or (plan is None and gpus < record.demand.gpus):
                    wants[self.managed] = record.demand.gpus
            if wants:
                found[uid] = wants
        return found

    def settle(
        self,
        pods: Iterable[PodRecord],
        takers: Takers,
        assumed: Mapping[str, WrittenPlan],
        blocked: int,
    ) -> None:
        """Make the book. *pods* has all pods of *takers*, in the order in which they get what
        several claim; *blocked* is the bitmask of the GPUs that pods have as a whole."""
        if not self.places:
            if self.places:
                self.book = ShareBook()
            return  # as on most nodes, of which thousands settle
        bound = [
            (record, takers[record.uid], record.plan_for(self.node))
            for record in pods
            if record.uid in takers
        ]
        reserved = frozenset().union(*self.reserved.values())
        facts = ShareFacts(self.listed, bound, assumed, blocked, reserved)
        self.book = settle(self.places, facts)

    def _attribute(
        self, before: Mapping[str, ContainerShares], bound: Mapping[str, PodRecord]
    ) -> None:
        if self.in_use or before:
            pods = dict(bound) | self.pods
            self.listed_as = attributed(
                self.listed_as, before, self.in_use, pods, self._gets_others
            )

    def _gets_others(self, record: PodRecord, held: ContainerShares) -> bool:
        plan = record.plan_for(self.node)
        listed = {each for of in held.values() for ids in of.values() for each in ids}
        return plan is not None and listed != {
            each for planned in plan.plan.shares for each in planned.ids
        }
