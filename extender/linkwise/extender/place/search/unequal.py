"""Places members of unequal size, or of unequal needs, together.

A backtracking search fills node after node as far as possible, and goes back if the rest has no
room. So [6, 5] free GPUs take members of 2, 4, 2 and 3. The search uses the roomiest nodes of a
domain, as few as possible; then each node is exchanged for one with less damage.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter

import numpy as np

from linkwise.extender.place.cluster_view import Effort, Level, domain_counts
from linkwise.extender.place.communicator import APART, ONE_NODE, TOLERANCE, Reach, reach_of
from linkwise.extender.place.request import PodSet
from linkwise.extender.place.search import node_loads
from linkwise.extender.place.search.candidates import AssignedPart, Assignment, Scope, joined
from linkwise.extender.place.search.fewest_domains import at_least
from linkwise.extender.place.search.node_loads import Counts, Load
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.extender.state.cache.node_table import NO_DOMAIN, NOT_USABLE, Bools, Ints, popcount
from linkwise.extender.state.records import ResourceList

_MOST_DOMAINS = 8  # tried at each level
_MORE_NODES = 4  # tried beyond the fewest that have GPUs enough
_MOST_STEPS = 4000  # of one backtracking search
_MOST_LOADS = 256  # tried for one node
_MOST_EXCHANGES = 20_000  # the gang's nodes times the nodes that they are compared with
_MOST_POD_SETS = 4  # of more, all loads of a node are tried only if they are `_MOST_LOADS` at most
# How many looks at one pod set on one node, at 0.4 µs each, a search may take, and how many more
# for each pod set. A node counts as so many looks beside those at its pod sets, and so does a load.
_MOST_WORK, _MORE_WORK, _WORK_A_NODE, _WORK_A_LOAD = 1_500_000, 2000, 32, 4


class _Work:
    """Whether members of unequal size fit is a puzzle. It is tried for so long and no longer: each
    GPU model has an equal share, each level of it, and each domain of that. So none takes the time
    of a later one."""

    def __init__(self, of_level: float, effort: Effort) -> None:
        self._of_level, self._left, self._effort = of_level, 0.0, effort

    def begin(self, domains: int) -> None:
        """The work of one of so many domains of a level begins."""
        self._left = self._of_level / domains

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def spend(self, work: int) -> None:
        self._left -= work
        self._effort.looks += work


class UnequalSearch:
    def __init__(
        self,
        scopes: Sequence[Scope],
        pod_sets: Sequence[PodSet],
        *,
        apart: bool = False,
        share: float = 1.0,
    ) -> None:
        """The arguments of `DomainSearch`, and of the work of a search the *share* that this one
        may take."""
        work = share * (_MOST_WORK + _MORE_WORK * len(pod_sets)) / len(scopes)
        self._searches = [_OnModel(scope, pod_sets, work, apart=apart) for scope in scopes]

    def within(self, domains: Ints) -> Assignment | None:
        """The best assignment within one of these domains [rows]; None if none has room."""
        found = [
            (each, search.mixes)
            for search in self._searches
            for each in search.at_each_level(domains)
            if each is not None
        ]
        least = (1 - TOLERANCE) * max((each.worth for each, _ in found), default=0.0)
        equal = [(each, mixes) for each, mixes in found if each.worth >= least]
        best = max(equal, key=lambda each: (not each[1], *each[0].order), default=None)
        return None if best is None else best[0]


class _OnModel:
    def __init__(
        self, scope: Scope, pod_sets: Sequence[PodSet], work: float, *, apart: bool
    ) -> None:
        self._scope, self._pod_sets, self._apart = scope, pod_sets, apart
        self.mixes = scope.mixes
        self._wishes = tuple(pods.request for pods in pod_sets)
        self._all: Counts = tuple(len(pods.members) for pods in pod_sets)
        self._sizes = tuple(request.size for request in self._wishes)
        self._prefer = self._wishes[0].requirement.prefer
        rows = scope.view.rows
        able = np.logical_or.reduce([pods.nodes for pods in pod_sets])
        usable = able & (rows.kinds != NOT_USABLE) & (scope.free != 0)
        self._usable = usable & rows.fits(ResourceList())
        columns, needs = rows.left.vectors([pods.needs for pods in pod_sets])
        self._columns, self._lefts = columns, dict[int, tuple[int, ...]]()
        self._asked = [(size, *need) for size, need in zip(self._sizes, needs, strict=True)]
        self._room = popcount(scope.free)
        self._placed_worths: dict[Reach, dict[int, float]] = {}
        self._found = -np.inf  # the worth of the best so far
        self._work = _Work(work / (len(scope.view.levels) + 2), scope.view.effort)

    def at_each_level(self, domains: Ints) -> Iterator[Assignment | None]:
        scope = self._scope
        if len(scope.placed_rows) <= 1:
            own = np.where(domains == NO_DOMAIN, NO_DOMAIN, np.arange(len(domains)))
            yield self._on_one_node(scope.with_placed(own) != NO_DOMAIN)
        levels = scope.view.levels
        keys = [level.key for level in levels]
        for number, level in enumerate(levels):
            nearer = scope.with_placed(joined(domains, level.apart))
            yield from self._in_domains(nearer, self._reach(reach_of(keys, number)), number + 1)
        reach = self._reach(reach_of(keys, len(keys)))
        yield from self._in_domains(domains, reach, len(keys) + 1)

    def _reach(self, reach: Reach) -> Reach:
        return APART if self._apart else reach

    # One node

    def _on_one_node(self, inside: Bools) -> Assignment | None:
        rows = np.flatnonzero(inside & self._usable & (self._room >= self._gpus(self._all)))
        reach = self._reach(ONE_NODE)
        found = []
        self._work.begin(1)
        for row in self._by_name(rows):
            if self._work.is_over:
                break
            load = self._load(row, self._all, reach)
            if load is not None:
                found.append((row, load))
        if not found:
            return None
        least = (1 - TOLERANCE) * max(load.worth for _, load in found)
        equal = [(row, load) for row, load in found if load.worth >= least]
        row, load = min(equal, key=lambda each: (-each[1].own, each[1].damage, self._room[each[0]]))
        self._found = max(load.worth for _, load in found)
        return self._assignment([(row, load)], reach, 0)

    # Several nodes

    def _in_domains(self, domains: Ints, reach: Reach, level: int) -> Iterator[Assignment | None]:
        inside = np.flatnonzero((domains != NO_DOMAIN) & self._usable)
        wanted, room = self._gpus(self._all), self._room[inside]
        numbers, of = np.unique(domains[inside], return_inverse=True)
        total = np.bincount(of, room, minlength=len(numbers))
        enough = np.flatnonzero(total >= wanted)
        some = np.isin(of, enough)
        levels = [each.apart[inside[some]] for each in reversed(self._nearer(level))]
        counts = at_least(of[some], levels, room[some], wanted) if len(enough) else ()
        best_first = enough[np.lexsort((total[enough], *reversed(counts)))]
        tries = [*best_first[:_MOST_DOMAINS], *best_first[_MOST_DOMAINS:][-1:]]
        for number in tries:
            self._work.begin(len(tries))
            yield self._in_domain(inside[of == number], reach, level)

    def _nearer(self, level: int) -> Sequence[Level]:
        return self._scope.view.levels[: max(level - 1, 0)]

    def _in_domain(self, among: Ints, reach: Reach, level: int) -> Assignment | None:
        """The best assignment at the highest worth at which the members fit on these nodes.

        None if that is no higher than a worth found before. Worths within the tolerance are equal.
        """
        alike = {self._alike(row) for row in among.tolist()}
        all_worths = {worth for each in alike for worth in self._worths(each, reach)}
        all_worths |= set(self._as_it_is(reach).values())
        worths = sorted(worth for worth in all_worths if worth > self._found)
        dealt = self._fewest_of(among, reach, level, worths[0]) if worths else None
        if dealt is None:
            return None
        low, high = 0, len(worths) - 1
        while low < high:  # at `low` the members fit
            middle = (low + high + 1) // 2
            better = self._fewest_of(among, reach, level, worths[middle])
            if better is None:
                high = middle - 1
            else:
                low, dealt = middle, better
        self._found = worths[low]
        found = [self._exchanged(dealt, among, reach, level, worths[low])]
        within = (1 - TOLERANCE) * worths[low]
        if (equal := self._fewest_of(among, reach, level, within)) is not None:
            found.append(self._exchanged(equal, among, reach, level, within))
        return max(found, key=lambda each: each.order)

    def _alike(self, row: int) -> tuple[int, int, int]:
        scope = self._scope
        return int(scope.view.rows.kinds[row]), int(scope.free[row]), int(scope.beside[row])

    def _worths(self, alike: tuple[int, int, int], reach: Reach) -> tuple[float, ...]:
        """The worths that such a node may allow a communicator, in GB/s."""
        number, free, beside = alike
        kind = self._scope.view.kinds[number]
        return node_loads.some_worths(kind, self._prefer, free, beside, reach)

    def _fewest_of(
        self, among: Ints, reach: Reach, level: int, least: float
    ) -> list[tuple[int, Counts]] | None:
        """(row, members of each pod set) on the fewest and roomiest of these nodes, each worth
        *least* or more; of equally roomy ones, those of the roomiest domains. None if they do not
        fit."""
        room = np.array([self._room_at(row, reach, least) for row in among.tolist()])
        near = np.isin(among, self._scope.placed_rows)
        ranks = self._scope.view.rows.name_ranks()[among]
        must = np.isin(among, self._must(reach, least))
        if (room[must] > 0).sum() < len(self._must(reach, least)):
            return None
        together = []
        for each in reversed(self._nearer(level)):
            _, of = np.unique(each.apart[among], return_inverse=True)
            together += [-np.bincount(of, room)[of], of]
        last = (ranks, self._room[among], *reversed(together))
        order = np.lexsort((*last, ~near, -room, ~must))
        order = order[room[order] > 0]
        rows, so_far = among[order].tolist(), np.cumsum(room[order])
        fewest = int(np.searchsorted(so_far, self._gpus(self._all))) + 1
        for count in dict.fromkeys((*range(fewest, fewest + _MORE_NODES), len(rows))):
            if max(fewest, must.sum()) <= count <= len(rows):
                behind = [*np.cumsum(room[order][:count][::-1])[::-1].tolist(), 0]
                dealt = self._dealt(rows[:count], int(must.sum()), behind, reach, least)
                if dealt is not None:
                    return dealt
        return None

    def _as_it_is(self, reach: Reach) -> dict[int, float]:
        if reach not in self._placed_worths:
            self._placed_worths[reach] = self._scope.placed_worths(self._prefer, reach)
        return self._placed_worths[reach]

    def _must(self, reach: Reach, least: float) -> list[int]:
        """The rows with members of the gang that reach the worth *least* only with more GPUs."""
        return [row for row, worth in self._as_it_is(reach).items() if worth < least]

    def _room_at(self, row: int, reach: Reach, least: float) -> int:
        """The most GPUs of this node with which its worth is at least *least*."""
        number, free, beside = self._alike(row)
        kind = self._scope.view.kinds[number]
        return node_loads.room_at(kind, self._prefer, free, beside, reach, least)

    def _dealt(
        self, rows: list[int], musts: int, behind: list[int], reach: Reach, least: float
    ) -> list[tuple[int, Counts]] | None:
        """A depth-first search: each node takes members with as many GPUs as possible, and each of
        the first *musts* nodes takes some. *behind* is the room for GPUs on a node and all later
        ones."""
        in_vain: set[tuple[int, Counts]] = set()
        left = [self._all]
        path = [self._loads(rows[0], self._all, reach, least)]
        chosen: list[Counts] = []
        for _ in range(_MOST_STEPS + len(rows)):
            if self._work.is_over:
                return None
            load = next(path[-1], None)
            if load is None:
                in_vain.add((len(path) - 1, left.pop()))
                path.pop()
                if not path:
                    return None
                chosen.pop()
                continue
            rest = tuple(have - take for have, take in zip(left[-1], load, strict=True))
            depth = len(path)
            if not any(rest) and depth >= musts:
                all_of_them = zip(rows, (*chosen, load), strict=False)
                return [(row, counts) for row, counts in all_of_them if any(counts)]
            if (
                any(rest)
                and depth < len(rows)
                and self._gpus(rest) <= behind[depth]
                and (depth, rest) not in in_vain
            ):
                chosen.append(load)
                left.append(rest)
                path.append(self._loads(rows[depth], rest, reach, least))
        return None

    def _loads(self, row: int, left: Counts, reach: Reach, least: float) -> Iterator[Counts]:
        """The members of *left* that this node can take; most GPUs first."""
        loads = islice(self._all_loads(row, left), _MOST_LOADS)
        for counts in sorted(loads, key=self._gpus, reverse=True):
            if not any(counts):
                if row not in self._must(reach, least):
                    yield counts
                continue
            load = self._load(row, counts, reach)
            if load is not None and load.worth >= least:
                yield counts

    def _all_loads(self, row: int, left: Counts) -> Iterator[Counts]:
        """The members that fit by the node's resources; more of the largest members first."""
        asked, free = self._asked, self._left(row)
        self._work.spend(_WORK_A_NODE + len(asked))
        most = [
            count if pods.nodes[row] else 0
            for pods, count in zip(self._pod_sets, left, strict=True)
        ]
        some = [number for number, count in enumerate(most) if count]
        given = [asked[n] for n in some], [most[n] for n in some], free
        is_few = len(some) <= _MOST_POD_SETS or node_loads.are_few(*given, _MOST_LOADS)
        of_some = (node_loads.all_loads if is_few else node_loads.fullest)(*given)
        for load in of_some:
            self._work.spend(_WORK_A_LOAD + len(some))
            counts = dict(zip(some, load, strict=True))
            yield tuple(counts.get(number, 0) for number in range(len(most)))

    def _exchanged(
        self,
        dealt: list[tuple[int, Counts]],
        among: Ints,
        reach: Reach,
        level: int,
        least: float,
    ) -> Assignment:
        """The same loads, each on the best node that is worth *least*: the best own ring, then with
        the fewest domains more, then the least damage."""
        loads = []
        for row, counts in dealt:
            load = self._load(row, counts, reach)
            assert load is not None, "it was dealt out so"
            loads.append((row, counts, load))
        must = self._must(reach, least)
        for number, (row, counts, load) in enumerate(loads):
            if row in must or len(loads) * len(among) > _MOST_EXCHANGES:
                continue
            used = {other for other, _, _ in loads}
            shared = self._shared(among, [*used - {row}], level)
            best = ((load.own, shared[row], -load.damage), row, load)
            for other in self._by_name(among[self._room[among] >= self._gpus(counts)]):
                if self._work.is_over:
                    break
                there = None if other in used else self._load(other, counts, reach)
                if there is not None and there.worth >= least:
                    key = there.own, shared[other], -there.damage
                    best = max(best, (key, other, there), key=itemgetter(0))
            loads[number] = (best[1], counts, best[2])
        return self._assignment([(row, load) for row, _, load in loads], reach, level)

    def _shared(self, among: Ints, others: Sequence[int], level: int) -> dict[int, int]:
        """At which nearer levels each of these nodes is in a domain of *others*, or of the gang: a
        number whose bits are the levels, the nearest first."""
        rows = [*others, *self._scope.placed_rows]
        shared = np.zeros(len(among), dtype=np.int64)
        for place, each in enumerate(self._nearer(level)):
            shared |= np.isin(each.apart[among], each.apart[rows]).astype(np.int64) << place
        return dict(zip(among.tolist(), shared.tolist(), strict=True))

    # The worth of a load on a node

    def _load(self, row: int, counts: Counts, reach: Reach) -> Load | None:
        """None if this node cannot take so many members."""
        if next(self._all_loads(row, counts)) != counts:
            return None
        free, beside = int(self._scope.free[row]), int(self._scope.beside[row])
        return node_loads.load_of(self._kind(row), self._wishes, counts, free, beside, reach)

    def _left(self, row: int) -> tuple[int, ...]:
        if row not in self._lefts:
            amounts = self._scope.view.rows.left.amounts[self._columns, row]
            self._lefts[row] = (int(self._room[row]), *amounts.tolist())
        return self._lefts[row]

    def _kind(self, row: int) -> MachineKind:
        return self._scope.view.kinds[int(self._scope.view.rows.kinds[row])]

    def _by_name(self, rows: Ints) -> list[int]:
        in_order: list[int] = rows[np.argsort(self._scope.view.rows.name_ranks()[rows])].tolist()
        return in_order

    def _gpus(self, counts: Counts) -> int:
        return sum(size * count for size, count in zip(self._sizes, counts, strict=True))

    def _assignment(
        self, loads: Sequence[tuple[int, Load]], reach: Reach, level: int
    ) -> Assignment:
        used = {row for row, _ in loads}
        others = (
            worth for row, worth in self._as_it_is(reach).items() if level and row not in used
        )
        ranks = self._scope.view.rows.name_ranks()
        in_order = sorted(loads, key=lambda each: int(ranks[each[0]]))
        return Assignment(
            tuple(
                AssignedPart(row, number, sets)
                for row, load in in_order
                for number, sets in enumerate(load.sets)
                if sets
            ),
            min((*others, *(load.worth for _, load in loads))),
            min(load.own for _, load in loads),
            sum(load.damage for _, load in loads),
            level,
            domain_counts(self._nearer(level), [*used, *self._scope.placed_rows]),
        )
