"""Selects the victims for a more important gang or pod: the cheapest set of evictable pods.

A gang is evicted as a whole, but members beyond its minimum may be evicted alone. A unit whose Job
counts an eviction as a failure is a last resort: it is evicted only if no set without such units
makes room. Of two sets that make room, the better one is, in this order:
1. the one that ends fewer gangs and single pods
2. the one that ends fewer of those whose Job counts that as a failure
3. the one that ends fewer of those that are not idle
4. the one whose victims have the lower priority
5. the one whose victims are younger; of idle ones, those that have been idle for longer

No spare member of a gang is evicted without need. If there are not too many sets, all are tried in
that order. Else the search empties node after node, first those that give most room per ended unit,
and then spares the units that turn out not to be needed, the most important first.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import comb
from typing import Protocol

from linkwise.extender.next.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.place.request import Spot
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.timers import RunUnlocked, run_inline

# How many sets are checked, and for how many of them a place is searched: a check takes
# microseconds, a search milliseconds.
MOST_SETS = 4096
MOST_SEARCHES = 48


EvictionOrder = tuple[bool, bool, int, float, GangKey, int, str]


@dataclass(frozen=True, slots=True)
class Unit:
    """Pods that are evicted together: a gang, a single pod, or a member that its gang can spare."""

    pods: tuple[PodRecord, ...]
    priority: int
    created: float
    key: GangKey
    spare: int | None = None  # how many spare members of its gang are evicted before this one
    idle_since: float | None = None  # only of those that may be evicted because they are idle
    # A Job counts the eviction as a failure, and may fail for good. Searches read it often.
    fails_job: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        fails_job = any(pod.node and pod.ask.eviction_fails_job for pod in self.pods)
        object.__setattr__(self, "fails_job", fails_job)

    @property
    def nodes(self) -> set[str]:
        return {pod.node for pod in self.pods}

    @property
    def eviction_order(self) -> EvictionOrder:
        """Less is evicted first."""
        is_idle = self.idle_since is not None
        which, uid = self.spare or 0, self.pods[0].uid
        return self.fails_job, not is_idle, self.priority, self.turn, self.key, which, uid

    @property
    def turn(self) -> float:
        """Among units of one priority, less is evicted first."""
        return -self.created if self.idle_since is None else self.idle_since


class FreedRoom(Protocol):
    """Where the claimant finds room if units are evicted. Only `seek` may read the cache."""

    def seek(self, units: Sequence[Unit]) -> list[Spot] | None:
        """The spots of the claimant's pods without these units; None: there is no room."""
        ...

    def may_suffice(self, units: Sequence[Unit]) -> bool:
        """A fast `seek`: if it says no, that is certain."""
        ...

    def gain(self, gone: Sequence[Unit], more: Sequence[Unit]) -> int:
        """How much more room there is if *more* is evicted in addition to *gone*."""
        ...


@dataclass(frozen=True, slots=True)
class Preemption:
    """The pods to evict, and where the claimant's pods go then."""

    units: tuple[Unit, ...]
    spots: tuple[Spot, ...]

    @property
    def victims(self) -> frozenset[str]:
        """Their uids."""
        return frozenset(pod.uid for pod in pods_of(self.units))


@dataclass(frozen=True, slots=True)
class _Choice:
    """The queries about sets of units."""

    room: FreedRoom
    budgets: DisruptionBudgets

    def allowed(self, units: Sequence[Unit]) -> bool:
        return self.budgets.allow(pods_of(units))


Search = Generator[tuple[Unit, ...], bool, tuple[Unit, ...] | None]
"""Yields units, and is sent whether the claimant has room without them. Returns the units to
evict. Between two searches it uses only values, so it needs no lock."""


def cost(units: Iterable[Unit]) -> tuple[object, ...]:
    """The order of the module's docstring. Less is better."""
    ended = [unit for unit in units if unit.spare is None]
    return (
        len(ended),
        sum(unit.fails_job for unit in ended),
        sum(unit.idle_since is None for unit in ended),
        sorted((unit.priority for unit in ended), reverse=True),
        sorted((unit.turn for unit in ended), reverse=True),
        sorted((unit.eviction_order for unit in ended), reverse=True),
    )


def select(
    choices: Sequence[Sequence[Unit]],
    room: FreedRoom,
    budgets: DisruptionBudgets,
    aside: RunUnlocked = run_inline,
) -> Preemption | None:
    """The cheapest units of the first of *choices* that make room together; None: none do, or none
    were found. Only if none do without units that fail a Job, these are among them.

    With *aside*, others may use the cache meanwhile; then *budgets* must be a copy, and the caller
    checks whether the result is still true.
    """
    gentle = [[unit for unit in units if not unit.fails_job] for units in choices]
    tried: list[Sequence[Unit]] = []
    for units in (*gentle, *choices):
        if units and units not in tried:
            tried.append(units)
            found = _select(units, _Choice(room, budgets), aside)
            if found is not None:
                return found
    return None


def _select(units: Sequence[Unit], choice: _Choice, aside: RunUnlocked) -> Preemption | None:
    search, room = _cheapest(units, choice), choice.room
    try:
        asked = aside(partial(next, search))
        while True:
            found = room.seek(asked) is not None
            asked = aside(partial(search.send, found))
    except StopIteration as end:
        chosen: tuple[Unit, ...] | None = end.value
    spots = None if chosen is None else room.seek(chosen)
    return None if chosen is None or spots is None else Preemption(chosen, tuple(spots))


def pods_of(units: Iterable[Unit]) -> Iterator[PodRecord]:
    return (pod for unit in units for pod in unit.pods)


def _cheapest(units: Sequence[Unit], choice: _Choice) -> Search:
    in_order = sorted(units, key=lambda unit: unit.eviction_order)
    spare = tuple(unit for unit in in_order if unit.spare is not None)
    ending = [unit for unit in in_order if unit.spare is None]
    if not choice.room.may_suffice((*ending, *spare)):
        return None
    searches = MOST_SEARCHES
    looked_at = 0
    for count in range(len(ending) + 1):
        looked_at += comb(len(ending), count)
        if looked_at > MOST_SETS:
            break
        for chosen in sorted(combinations(ending, count), key=cost):
            with_spare = _allowed_with(chosen, spare, choice)
            if with_spare is None or not choice.room.may_suffice(with_spare):
                continue
            if not searches:
                return (yield from _step_by_step(ending, spare, choice))
            searches -= 1
            if (yield with_spare):
                return (yield from _thrifty(with_spare, choice, only_spare=True))
    else:
        return None
    return (yield from _step_by_step(ending, spare, choice))


def _allowed_with(
    chosen: Sequence[Unit], spare: Iterable[Unit], choice: _Choice
) -> tuple[Unit, ...] | None:
    """*chosen*, and as many spare members as may be evicted too; None: *chosen* may not be."""
    together = tuple(chosen)
    if not choice.allowed(together):
        return None
    gone = {unit.key for unit in chosen}
    for unit in spare:
        if unit.key not in gone and choice.allowed((*together, unit)):
            together = (*together, unit)
    return together


def _thrifty(chosen: Sequence[Unit], choice: _Choice, *, only_spare: bool = False) -> Search:
    """*chosen* without the units that are not needed; the most important are spared first."""
    left = list(chosen)
    searches = MOST_SEARCHES
    for unit in sorted(chosen, key=lambda unit: unit.eviction_order, reverse=True):
        if only_spare and unit.spare is None:
            continue
        fewer = [each for each in left if each is not unit]
        if searches and choice.room.may_suffice(fewer):
            searches -= 1
            if (yield tuple(fewer)):
                left = fewer
    return tuple(left)


def _step_by_step(ending: Sequence[Unit], spare: Sequence[Unit], choice: _Choice) -> Search:
    searches = MOST_SEARCHES
    chosen = _allowed_with((), spare, choice) or ()
    for bundle in _Bundles(ending, chosen, choice).in_order():
        ended = tuple(unit for unit in chosen if unit.spare is None)
        more = _allowed_with((*ended, *bundle), spare, choice)
        if more is None:
            continue
        chosen = more
        if choice.room.may_suffice(chosen):
            if (yield chosen):
                return (yield from _thrifty(chosen, choice))
            searches -= 1
            if not searches:
                return None
    return None


class _Bundles:
    """The remaining units of each node; first the node that gives most room per unit."""

    def __init__(self, ending: Sequence[Unit], spare: Sequence[Unit], choice: _Choice) -> None:
        self._choice = choice
        self._on: dict[str, list[Unit]] = {}
        self._gone_from: dict[str, list[Unit]] = {}
        for unit in ending:
            for node in unit.nodes:
                self._on.setdefault(node, []).append(unit)
        for unit in spare:
            self._note_gone(unit)

    def in_order(self) -> Iterator[list[Unit]]:
        worths = {node: self._worth(node) for node in self._on}
        queue = list(worths.values())
        heapify(queue)
        while queue:
            entry = heappop(queue)
            node = entry[2]
            if worths.get(node) != entry:
                continue  # an outdated entry
            bundle = self._on[node]
            yield bundle
            for unit in bundle:
                self._note_gone(unit)
            for other in {other for unit in bundle for other in unit.nodes}:
                self._on[other] = [unit for unit in self._on[other] if unit not in bundle]
                del worths[other]
                if self._on[other]:
                    worths[other] = self._worth(other)
                    heappush(queue, worths[other])

    def _note_gone(self, unit: Unit) -> None:
        for node in unit.nodes:
            self._gone_from.setdefault(node, []).append(unit)

    def _worth(self, node: str) -> tuple[float, EvictionOrder, str]:
        bundle = self._on[node]
        touched = sorted({other for unit in bundle for other in unit.nodes})
        before = [unit for other in touched for unit in self._gone_from.get(other, ())]
        gone = {(unit.key, unit.spare): unit for unit in before}
        gain = self._choice.room.gain(list(gone.values()), bundle)
        return -gain / len(bundle), max(unit.eviction_order for unit in bundle), node
