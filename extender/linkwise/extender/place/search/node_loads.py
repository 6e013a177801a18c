"""Members of unequal size on one node: how many of each fit, and the worth of their GPU sets
together. The results are cached by kind of machine and free GPUs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from linkwise.extender.place import communicator
from linkwise.extender.place.communicator import Reach
from linkwise.extender.state.cache.machine_kind import ENOUGH, GpuRequest, MachineKind
from linkwise.extender.state.cache.node_table import popcount
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.sets import subsets
from linkwise.topology.while_alive import while_alive

Counts = tuple[int, ...]
"""The number of members of each pod set."""

_MOST_TRIED = 500  # ways to divide the sets of one node


@dataclass(frozen=True, slots=True)
class Load:
    """Members on one node, and their worth there."""

    sets: tuple[tuple[int, ...], ...]  # the GPU sets of each pod set's members
    worth: float
    own: float
    damage: float


def fit(each: tuple[int, ...], left: tuple[int, ...]) -> int:
    """How many members that ask for so much fit into *left*."""
    fits = [have // need for have, need in zip(left, each, strict=True) if need]
    return max(min(fits, default=0), 0)


def are_few(
    asked: Sequence[tuple[int, ...]], most: Sequence[int], left: tuple[int, ...], limit: int
) -> bool:
    """Whether `all_loads` of these arguments are surely *limit* or fewer."""
    loads = 1
    for each, count in zip(asked, most, strict=True):
        loads *= min(count, fit(each, left)) + 1
        if loads > limit:
            return False  # members of a thousand kinds need not all be looked at
    return True


def all_loads(
    asked: Sequence[tuple[int, ...]], most: Sequence[int], left: tuple[int, ...]
) -> Iterator[Counts]:
    """Every combination of at most *most* members that fits into *left*.

    *asked* has the request of one member of each pod set, by resource; *left* the free amounts.
    """
    if not most:
        yield ()
        return
    each = asked[0]
    for count in range(min(most[0], fit(each, left)), -1, -1):
        rest = tuple(have - count * need for have, need in zip(left, each, strict=True))
        for others in all_loads(asked[1:], most[1:], rest):
            yield (count, *others)


def fullest(
    asked: Sequence[tuple[int, ...]], most: Sequence[int], left: tuple[int, ...]
) -> Iterator[Counts]:
    """One combination, for many pod sets: as many of the first as fit, then of the next. After it,
    the empty one."""
    counts = []
    for each, count in zip(asked, most, strict=True):
        count = min(count, fit(each, left))
        left = tuple(have - count * need for have, need in zip(left, each, strict=True))
        counts.append(count)
    yield tuple(counts)
    if any(counts):
        yield (0,) * len(counts)


@while_alive(4096)
def some_worths(
    kind: MachineKind, prefer: LinkClass, free: int, beside: int, reach: Reach
) -> tuple[float, ...]:
    within = subsets.within(np.arange(1, 1 << kind.table.count), free)
    return tuple(np.unique(communicator.worths(kind, prefer, reach)[within | beside]).tolist())


@while_alive(16384)
def room_at(
    kind: MachineKind, prefer: LinkClass, free: int, beside: int, reach: Reach, least: float
) -> int:
    within = subsets.within(np.arange(1, 1 << kind.table.count), free)
    able = within[communicator.worths(kind, prefer, reach)[within | beside] >= least]
    return int(popcount(able).max(initial=0))


@while_alive(16384)
def load_of(
    kind: MachineKind,
    requests: tuple[GpuRequest, ...],
    counts: Counts,
    free: int,
    beside: int,
    reach: Reach,
) -> Load | None:
    """The sets of *counts* members on one node: the highest worth together, then the least damage;
    the largest members choose first. None if not all members get suitable sets."""
    wanted = [(request, count) for request, count in zip(requests, counts, strict=True) if count]
    total = sum(request.size * count for request, count in wanted)
    allowed = reduce(or_, (kind.allowed(request.requirement) for request, _ in wanted), 0)
    worths = communicator.worths(kind, requests[0].requirement.prefer, reach)
    if total > kind.table.count:
        return None
    covers = subsets.within(subsets.layer(kind.table.count, total), free & allowed)
    worth = worths[covers | beside]
    damage = kind.damages(free, covers)
    tries = iter(range(_MOST_TRIED))
    for place in np.lexsort((damage, -worth)).tolist():
        dealt = _dealt_out(kind, wanted, int(covers[place]), tries)
        if dealt is not None:
            in_order, own = iter(dealt[0]), dealt[1]
            sets = tuple(next(in_order) if count else () for count in counts)
            return Load(sets, float(worth[place]), own, float(damage[place]))
    return None


def _dealt_out(
    kind: MachineKind, wanted: Sequence[tuple[GpuRequest, int]], cover: int, tries: Iterator[int]
) -> tuple[tuple[tuple[int, ...], ...], float] | None:
    """The sets of all members, and the slowest own ring; None once *tries* is exhausted."""
    if not wanted:
        return (), ENOUGH
    request, count = wanted[0]
    for sets, own in communicator.ways(kind, request, cover, count):
        if next(tries, None) is None:
            return None
        others = _dealt_out(kind, wanted[1:], cover & ~sum(sets), tries)
        if others is not None:
            return (sets, *others[0]), min(own, others[1])
    return None
