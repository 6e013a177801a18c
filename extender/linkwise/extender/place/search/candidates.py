"""The nodes with room for some of a gang's equal members: how many on each, and at which worth.

A node with room for three members at 100 GB/s may have room for four at 50, and two members may
use fewer NICs than three. So the search chooses a standard first, then counts nodes at it. An
`Assignment` is what it finds there.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.place import communicator
from linkwise.extender.place.cluster_view import ClusterView, Counts
from linkwise.extender.place.communicator import TOLERANCE, Reach, Standard
from linkwise.extender.place.criteria import OF_ASSIGNMENTS
from linkwise.extender.place.request import PlacedMembers, PodSet
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.extender.state.cache.node_table import NO_DOMAIN, NOT_USABLE, Bools, Ints, popcount
from linkwise.pods.spans import Spans
from linkwise.topology.machine.model import MAX_GPUS, LinkClass

Floats = NDArray[np.float64]
_ALL = 0  # the number of a domain that contains every node
_GPUS = (1 << MAX_GPUS) - 1
_KIND, _ROOM, _BESIDE = 2 * MAX_GPUS + 8, 2 * MAX_GPUS, MAX_GPUS  # first bit of each in a key


@dataclass(frozen=True, slots=True)
class _Choices:
    """`communicator.Choices` of each group of candidates that are alike, concatenated."""

    alike: Ints
    counts: Ints
    worth: Floats
    own: Floats


class Candidates:
    """Arrays over the candidates; a candidate is an index into them.

    `rows` [c] rows of the view, `free_counts` [c] free GPUs, `ranks` [c] ranks of the names.
    """

    def __init__(
        self, view: ClusterView, pods: PodSet, rows: Ints, free: Ints, room: Ints, beside: Ints
    ) -> None:
        """*beside* [c] are bitmasks of the GPUs that the gang has there already."""
        self.wanted, self.unit = len(pods.members), pods.unit
        self.rows = rows
        self.ranks = view.rows.name_ranks()[rows]
        self.free_counts = popcount(free)
        self._kinds = view.kinds
        self._request = pods.request
        self.prefer = pods.request.requirement.prefer
        room = np.minimum(np.minimum(room, self.free_counts // pods.request.size), self.wanted)
        self.most = int(room.sum())
        key = view.rows.kinds[rows] << _KIND | room << _ROOM | beside << _BESIDE | free
        self._alike, self._which = np.unique(key, return_inverse=True)
        self._choices: dict[Reach, _Choices] = {}
        # (kind, GPUs that the gang has there) -> (index into _alike, free GPUs, room for members)
        self._groups: dict[tuple[MachineKind, int], list[tuple[int, int, int]]] = defaultdict(list)
        for number in range(len(self._alike)):
            kind, free_there, beside_there, room_there = self._parts(number)
            self._groups[kind, beside_there].append((number, free_there, room_there))

    def standards(self, reach: Reach, least: Standard) -> tuple[Floats, Floats]:
        """The distinct worths, and the distinct slowest own rings, that reach *least*; best
        first."""
        all_of_them = self._choices_at(reach)
        able = self._reaches(all_of_them, least)
        worths, owns = np.unique(all_of_them.worth[able]), np.unique(all_of_them.own[able])
        return worths[::-1], owns[::-1]

    def room_at(self, reach: Reach, standard: Standard, wanted: int) -> tuple[Ints, Ints]:
        """[c] the most of *wanted* members with which a candidate reaches *standard*, and the
        fewest, because fewer members may use fewer NICs; both 0 if it reaches it with none."""
        all_of_them = self._choices_at(reach)
        able = self._reaches(all_of_them, standard) & (all_of_them.counts <= wanted)
        most = np.zeros(len(self._alike), dtype=np.int64)
        fewest = np.full(len(self._alike), self.wanted + 1)
        np.maximum.at(most, all_of_them.alike[able], all_of_them.counts[able])
        np.minimum.at(fewest, all_of_them.alike[able], all_of_them.counts[able])
        fewest[most == 0] = 0
        return most[self._which], fewest[self._which]

    def can_take(self, reach: Reach, standard: Standard, count: int) -> Ints:
        """The candidates that reach *standard* with exactly *count* members."""
        all_of_them = self._choices_at(reach)
        able = self._reaches(all_of_them, standard) & (all_of_them.counts == count)
        return np.flatnonzero(np.isin(self._which, all_of_them.alike[able]))

    def alike(self, candidates: Ints) -> Ints:
        """[candidates] a number that is equal for candidates that differ in name alone."""
        numbers: Ints = self._which[candidates]
        return numbers

    def best_worth(self, row: int, reach: Reach) -> float:
        """The highest worth that this row allows with at least one member; -inf if it has no
        room."""
        all_of_them = self._choices_at(reach)
        alike = self._which[self.rows == row]
        worths = all_of_them.worth[np.isin(all_of_them.alike, alike)]
        return float(worths.max(initial=-np.inf))

    def counts_of(self, reach: Reach, standard: Standard, alike: int) -> list[int]:
        """The numbers of members with which such a candidate reaches *standard*, ascending."""
        all_of_them = self._choices_at(reach)
        able = self._reaches(all_of_them, standard) & (all_of_them.alike == alike)
        counts: list[int] = np.unique(all_of_them.counts[able]).tolist()
        return counts

    def sets(self, candidate: int, count: int, reach: Reach, standard: Standard) -> tuple[int, ...]:
        alike = int(self._which[candidate])
        kind, *_ = self._parts(alike)
        gpus, _ = self._cover(alike, count, reach, standard)
        return communicator.sets(kind, self._request, gpus, count)

    def worth(self, candidate: int, taken: int, reach: Reach) -> float:
        """The worth of the communicator on this node with the GPUs *taken*, in GB/s."""
        kind, _, beside, _ = self._parts(int(self._which[candidate]))
        prefer = self._request.requirement.prefer
        return float(communicator.worths(kind, prefer, reach)[taken | beside])

    def damage_of(self, alike: int, count: int, reach: Reach, standard: Standard) -> float:
        """The GB/s that later jobs lose by *count* members there."""
        return self._cover(alike, count, reach, standard)[1]

    def damage(self, candidates: Ints, counts: Ints, reach: Reach, standard: Standard) -> Floats:
        pairs, position = np.unique(
            self._which[candidates] * (self.wanted + 1) + counts, return_inverse=True
        )
        found = [
            self.damage_of(pair // (self.wanted + 1), pair % (self.wanted + 1), reach, standard)
            for pair in pairs.tolist()
        ]
        return np.array(found, dtype=np.float64)[position]

    def sorted(self, candidates: Ints, keys: Sequence[NDArray[np.generic]]) -> Ints:
        """Sort by *keys*, the first counts most; then the fullest node, then the name."""
        last = (self.ranks[candidates], self.free_counts[candidates])
        return candidates[np.lexsort((*last, *reversed(keys)))]

    def first(self, candidates: Ints, keys: Sequence[NDArray[np.generic]]) -> int | None:
        in_order = self.sorted(candidates, keys)
        return int(in_order[0]) if len(in_order) else None

    def _cover(self, alike: int, count: int, reach: Reach, standard: Standard) -> tuple[int, float]:
        """(the GPUs of *count* members there, their damage in GB/s)."""
        kind, free, beside, _ = self._parts(alike)
        return communicator.cover(kind, self._request, free, beside, count, reach, standard)

    @staticmethod
    def _reaches(all_of_them: _Choices, standard: Standard) -> NDArray[np.bool_]:
        reaches: NDArray[np.bool_] = (all_of_them.worth >= standard.worth) & (
            all_of_them.own >= standard.own
        )
        return reaches

    def _choices_at(self, reach: Reach) -> _Choices:
        known = self._choices.get(reach)
        if known is None:
            found = []
            for (kind, beside), group in self._groups.items():
                most = min(self.wanted, kind.table.count // self._request.size)
                masks = [free for _, free, _ in group]
                choices = communicator.choices_of(kind, self._request, beside, most, reach)
                for (number, _, room), of_mask in zip(group, choices.within(masks), strict=True):
                    found += [(number, *each) for each in of_mask if each[0] <= room]
            numbers, counts, worth, own = zip(*found, strict=True) if found else ((), (), (), ())
            known = self._choices[reach] = _Choices(
                np.array(numbers, dtype=np.int64),
                np.array(counts, dtype=np.int64),
                np.array(worth, dtype=np.float64),
                np.array(own, dtype=np.float64),
            )
        return known

    def _parts(self, alike: int) -> tuple[MachineKind, int, int, int]:
        """(kind, free GPUs, GPUs that the gang has there, room for members)."""
        key = int(self._alike[alike])
        kind = self._kinds[key >> _KIND]
        return kind, key & _GPUS, key >> _BESIDE & _GPUS, key >> _ROOM & (1 << 8) - 1


class Scope:
    """The GPUs and the domains that a gang may use, given those that it has already."""

    def __init__(self, view: ClusterView, placed: PlacedMembers, model: str | None) -> None:
        """Limited to GPUs of one *model*; None: any."""
        self.view, self.placed, self.mixes = view, placed, model is None
        self.free = view.rows.free
        if model is not None:
            of_kind = np.array([*(kind.of_model(model) for kind in view.kinds), 0])
            self.free = self.free & of_kind[view.rows.kinds]  # NOT_USABLE takes the last entry
        self.beside: Ints = np.zeros(len(view.rows), dtype=np.int64)
        self.placed_rows = np.array(placed.rows, dtype=np.int64)
        self.beside[self.placed_rows] = placed.gpus

    def in_order(self, spans: Spans) -> Iterator[Ints]:
        """[rows] the domains of each preferred span in turn, and last the domains that the required
        spans allow."""
        allowed = self.required(spans.require)
        for key in spans.prefer:
            level = self.view.level(key)
            if (level.numbers != NO_DOMAIN).any():
                yield self.with_placed(joined(allowed, level.apart))
        yield allowed

    def required(self, levels: Sequence[str]) -> Ints:
        """[rows] the domain of each node that may hold members; NO_DOMAIN: the node may not."""
        domains = np.full(len(self.view.rows), _ALL)
        for key in levels:
            domains = joined(domains, self.view.level(key).numbers)
        return self.with_placed(domains) if levels else domains

    def with_placed(self, domains: Ints) -> Ints:
        """Only the domain with the gang's other members; none if they are in several."""
        if not len(self.placed_rows):
            return domains
        theirs = domains[self.placed_rows[0]]
        together = theirs != NO_DOMAIN and (domains[self.placed_rows] == theirs).all()
        return np.where((domains == theirs) & together, domains, NO_DOMAIN)

    def placed_worths(self, prefer: LinkClass, reach: Reach) -> dict[int, float]:
        """Row -> GB/s that the node allows the communicator with the GPUs that the gang has there
        already."""
        rows, kinds = self.view.rows, self.view.kinds
        return {
            row: float(communicator.worths(kinds[int(rows.kinds[row])], prefer, reach)[gpus])
            for row, gpus in zip(self.placed.rows, self.placed.gpus, strict=True)
            if gpus and rows.kinds[row] != NOT_USABLE
        }

    def candidates(self, pods: PodSet, inside: Bools) -> Candidates:
        rows = self.view.rows
        room = rows.pods_that_fit(pods.needs)
        usable = inside & pods.nodes & (rows.kinds != NOT_USABLE)
        found = np.flatnonzero(usable & (room > 0) & (self.free != 0))
        return Candidates(self.view, pods, found, self.free[found], room[found], self.beside[found])


def joined(domains: Ints, others: Ints) -> Ints:
    """[rows] the intersections of *domains* and *others*; NO_DOMAIN if either is."""
    if (domains == _ALL).all():
        return others
    _, numbers = np.unique(domains * (others.max(initial=0) + 1) + others, return_inverse=True)
    return np.where((domains == NO_DOMAIN) | (others == NO_DOMAIN), NO_DOMAIN, numbers)


@dataclass(frozen=True, slots=True)
class AssignedPart:
    """Members of one pod set on one node."""

    row: int
    pod_set: int  # its index among the pod sets
    sets: tuple[int, ...]  # GPU sets as bitmasks, in the order of ranks


@dataclass(frozen=True, slots=True)
class Assignment:
    """The parts in the order of ranks, and the values by which assignments are compared."""

    parts: tuple[AssignedPart, ...]
    worth: float  # GB/s of the communicator
    own: float  # GB/s of the slowest member's own ring
    damage: float  # GB/s that later jobs lose
    level: int = 0  # the nearest level at which one domain holds all; 0: one node
    domains: Counts = ()  # of each nearer level, the widest first

    @property
    def nodes(self) -> int:
        return len({part.row for part in self.parts})

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key among assignments of equal worth; the greater is better."""
        values = ((getattr(self, of.of), of.more) for of in OF_ASSIGNMENTS)
        return tuple(
            each if more else -each
            for value, more in values
            for each in (value if isinstance(value, tuple) else (value,))
        )

    def of_members(self, pod_sets: Sequence[PodSet]) -> Iterator[tuple[int, int, int]]:
        """(member, row, GPU set) of each member."""
        for number, pods in enumerate(pod_sets):
            dealt = [
                (part.row, gpus)
                for part in self.parts
                if part.pod_set == number
                for gpus in part.sets
            ]
            for member, (row, gpus) in zip(pods.members, dealt, strict=True):
                yield member, row, gpus


def best_of(found: Sequence[Assignment]) -> Assignment:
    """The best by `order` among those whose worth is within the tolerance of the highest."""
    least = (1 - TOLERANCE) * max(each.worth for each in found)
    return max((each for each in found if each.worth >= least), key=lambda each: each.order)
