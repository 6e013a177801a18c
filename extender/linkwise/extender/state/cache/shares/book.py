"""Which pod has which shares of one node. A book is a value: each change of the node makes a new
one from the facts.

Shares are assigned in the same order as whole GPUs (`node_info`): what the kubelet reports as in
use, the plans of bound pods, assumed Bindings, bound pods without a plan. Each step gets only what
the steps before it left, so no share ever has two holders.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any

from linkwise.extender.state.records import PodRecord, WrittenPlan
from linkwise.topology.annotations.plan import ContainerShares, PlannedShares
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.parts import Part, part_of


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
