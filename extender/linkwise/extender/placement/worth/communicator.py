"""The worth of a gang's GPUs as one communicator: the estimated bandwidth of an all-reduce.

Inside a node, the ring through all the members' GPUs there determines it. Between nodes, the
bandwidth from the GPUs of each node to the others does. The slowest node counts.
docs/topology.md has the formulas and their sources.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from linkwise.extender.cache.machine_kind import ENOUGH, Floats, GpuRequest, MachineKind
from linkwise.extender.cache.node_table import Ints
from linkwise.extender.placement.worth.reach import Reach
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.sets import subsets

_MOST_ARRAYS = 256  # cached; an array for 16 GPUs takes half a MiB
TOLERANCE = 0.05
"""Estimates that differ by less than this share of the best count as equal."""


@lru_cache(maxsize=_MOST_ARRAYS)
def worths(kind: MachineKind, prefer: LinkClass, reach: Reach) -> Floats:
    """[2^n] GB/s that a node allows the communicator, by bitmask of the gang's GPUs there.

    With a preferred link below NVLink, a set with that link or a closer one is worth ENOUGH, as in
    `MachineKind.quality`.
    """
    table = kind.table
    if reach.apart:
        return np.full(1 << table.count, ENOUGH)
    inside = table.values
    if prefer is not LinkClass.NVLINK:
        inside = np.where(table.ring_classes >= prefer, ENOUGH, inside)
    between = kind.network * reach.share if reach.share < float("inf") else np.inf
    if reach.fabric:
        between = np.maximum(between, kind.fabric)
    return np.minimum(inside, between)


@lru_cache(maxsize=_MOST_ARRAYS)
def own_rings(kind: MachineKind, size: int, require: LinkClass, prefer: LinkClass) -> Floats:
    """[2^n] GB/s of the slowest member's ring, by bitmask of GPUs that are cut into sets of *size*.

    ENOUGH if the sets have the preferred link; -inf if no cut has sets with the link *require*.
    """
    table = kind.table
    if size == 1:
        return np.full(1 << table.count, ENOUGH)
    values = table.values
    if prefer is not LinkClass.NVLINK:
        values = np.where(table.ring_classes >= prefer, ENOUGH, values)
    usable = (subsets.sizes(table.count) == size) & (table.ring_classes >= require)
    return subsets.best_slowest_parts(np.where(usable, values, -np.inf), size)


@dataclass(frozen=True, slots=True)
class Standard:
    """The minimum for a placement, in GB/s: *worth* of the communicator, *own* ring of each
    member."""

    worth: float = -np.inf
    own: float = -np.inf


@lru_cache(maxsize=16384)
def choices(
    kind: MachineKind, request: GpuRequest, free: int, beside: int, most: int, reach: Reach
) -> tuple[tuple[int, float, float], ...]:
    """(members, worth, slowest own ring) for 1, 2 … *most* members on a node with these *free*
    GPUs, where the gang has the GPUs *beside* already. For each number, only the choices that no
    other beats in both values."""
    found: list[tuple[int, float, float]] = []
    for count in range(1, most + 1):
        covers, own = _covers(kind, request, free, count)
        if not len(covers):
            break
        worth = worths(kind, request.requirement.prefer, reach)[covers | beside]
        best_own = -np.inf
        for place in np.lexsort((-own, -worth)).tolist():
            if own[place] > best_own:
                best_own = float(own[place])
                found.append((count, float(worth[place]), best_own))
    return tuple(found)


@lru_cache(maxsize=16384)
def sets(
    kind: MachineKind,
    request: GpuRequest,
    free: int,
    beside: int,
    count: int,
    reach: Reach,
    standard: Standard,
) -> tuple[int, ...]:
    """The sets of *count* members on a node that reach *standard*: least damage, then fewest NUMA
    nodes, nearest NIC, lowest indices. Consecutive sets are neighbours."""
    covers, own = _covers(kind, request, free, count)
    worth = worths(kind, request.requirement.prefer, reach)[covers | beside]
    covers = covers[(worth >= standard.worth) & (own >= standard.own)]
    table = kind.table
    damage = kind.damages(free, covers)
    untidy = 8 * table.numa_nodes[covers].astype(np.int64) - table.nic_classes[covers]
    order = np.lexsort((untidy, damage))
    cover = int(covers[order[0]])
    return kind.neighbours(_parts(kind, request, cover, count))


def ways(
    kind: MachineKind, request: GpuRequest, free: int, count: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Ways to give *count* members sets of the *free* GPUs, with the slowest own ring of each way;
    the best ring first."""
    covers, own = _covers(kind, request, free, count)
    for place in np.argsort(-own, kind="stable").tolist():
        parts = _parts(kind, request, int(covers[place]), count)
        yield kind.neighbours(parts), float(own[place])


def _covers(kind: MachineKind, request: GpuRequest, free: int, count: int) -> tuple[Ints, Floats]:
    """The sets of GPUs that *count* members could have together, and the slowest own ring of
    each."""
    requirement = request.requirement
    allowed = free & kind.allowed(requirement)
    if not request.simple:  # a pod's containers divide its set; one good way is enough
        parts = kind.pack(request, free, count)
        if len(parts) < count:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        slowest = min(kind.quality(request, gpus) for gpus in parts)
        return np.array([sum(parts)]), np.array([slowest])
    total = count * request.size
    if total > allowed.bit_count():
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    covers = subsets.within(subsets.layer(kind.table.count, total), allowed)
    own = own_rings(kind, request.size, requirement.require, requirement.prefer)[covers]
    return covers[own > -np.inf], own[own > -np.inf]


def _parts(kind: MachineKind, request: GpuRequest, cover: int, count: int) -> tuple[int, ...]:
    """*cover* cut into the members' sets: the slowest as fast as possible, then the others."""
    if not request.simple:
        return kind.pack(request, cover, count)
    requirement, size = request.requirement, request.size
    own = own_rings(kind, size, requirement.require, requirement.prefer)
    table, slowest = kind.table, float(own[cover])
    found = []
    while cover:
        parts = subsets.within(subsets.layer(table.count, size), cover, cover & -cover)
        able = np.minimum(own[parts], own[cover ^ parts]) >= slowest
        parts = parts[able]
        part = int(parts[np.argmax(table.values[parts])])
        found.append(part)
        cover ^= part
    return tuple(found)
