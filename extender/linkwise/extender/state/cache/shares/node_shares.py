"""One node's shares: what the API server says about them, from which `settle` makes the book."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from linkwise.extender.state.cache.shares import book
from linkwise.extender.state.cache.shares.book import Place, ShareBook, ShareFacts
from linkwise.extender.state.records import GangKey, PodRecord, WrittenPlan
from linkwise.topology.annotations.plan import ContainerShares
from linkwise.topology.machine.model import Machine

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


Held = TypeVar("Held")


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
        self.places = () if machine is None else book.places_of(machine)

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
        return book.strays(self.machine, self.places, self.listed)

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
            if self.book.places:
                self.book = ShareBook()
            return  # as on most nodes, of which thousands settle
        bound = [
            (record, takers[record.uid], record.plan_for(self.node))
            for record in pods
            if record.uid in takers
        ]
        reserved = frozenset().union(*self.reserved.values())
        facts = ShareFacts(self.listed, bound, assumed, blocked, reserved)
        self.book = book.settle(self.places, facts)

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
