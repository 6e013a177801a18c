"""Chooses GPUs: for the extender on a node, for the plugin when the kubelet asks.

Both use this module, so they cannot disagree. The choice is exact over all sets, and deterministic.
`criteria.ORDER` is what counts, in its order. "No set fits" is an answer: None, or fewer sets.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from linkwise.topology.errors import RequestError
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.sets import subsets
from linkwise.topology.sets.criteria import ORDER, Question, Running, best_of, most
from linkwise.topology.sets.subsets import Masks
from linkwise.topology.sets.tables import MachineTable, table_of
from linkwise.topology.while_alive import while_alive


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of GPUs (bitmask over `Machine.gpus`), its value, and what it leaves.

    `remaining_value` is `MachineTable.remaining_value` of the GPUs that stay free; for `pack`,
    after all of its sets.
    """

    gpus: int
    gbytes_per_s: float
    ring_class: LinkClass
    remaining_value: float


def choose(
    machine: Machine,
    free: int,
    size: int,
    *,
    must: int = 0,
    within: int | None = None,
    require: LinkClass = LinkClass.SYS,
    prefer: LinkClass = LinkClass.NVLINK,
    running: Collection[int] | None = None,
    drawn: tuple[int, ...] = (),
) -> Choice | None:
    """Return the best set of *size* of the *free* GPUs that holds all of *must*; None if none fits.

    *within*: only these GPUs may be taken; the other free ones stay for the jobs to come.

    Only sets that a pod may have count (`MachineTable.may_be`), and of these the ones through which
    a ring keeps to *require* or closer. Among such sets, the best is taken by `criteria.ORDER`. If
    *prefer* is lower than NVLINK and some set keeps to it, neither bandwidth nor the class counts.

    *drawn*: sizes of containers that may get any GPUs of the set (`demand.drawn_sizes`). Then
    *require*, *prefer*, bandwidth and class are of the worst of these (`MachineTable.worth`).

    *running* are the GPU sets that come free as a whole, one per pod or gang. If they are known,
    `outlook` judges what is left, instead of `MachineTable.remaining_value`. Raises RequestError
    for a size below 1, for GPUs that the machine does not have, and for a running set that shares a
    GPU with another one or with *free*.
    """
    found = ranked(
        machine,
        free,
        size,
        must=must,
        within=within,
        require=require,
        prefer=prefer,
        running=running,
        limit=1,
        drawn=drawn,
    )
    return found[0] if found else None


def ranked(
    machine: Machine,
    free: int,
    size: int,
    *,
    must: int = 0,
    within: int | None = None,
    require: LinkClass = LinkClass.SYS,
    prefer: LinkClass = LinkClass.NVLINK,
    running: Collection[int] | None = None,
    limit: int = 2,
    drawn: tuple[int, ...] = (),
) -> list[Choice]:
    """Return the best *limit* sets as `choose`, best first. The second is the runner-up."""
    _check(machine, size, free, must)
    known = _known(machine, free, running)
    usable = free if within is None else free & within
    table = table_of(machine)
    found = _ranked(table, free, usable, size, must, require, prefer, known, limit, drawn)
    return list(found)


def better_of(
    machine: Machine,
    free: int,
    first: int,
    second: int,
    *,
    prefer: LinkClass = LinkClass.NVLINK,
) -> int:
    """Which of two sets of one size to take where the *free* GPUs can be had, by the order of
    `choose`; *first* where they are equal in all that counts but their indices.

    Raises RequestError for GPUs that the machine does not have.
    """
    _check(machine, max(1, first.bit_count()), free, first, second)
    sets = np.array([first, second], dtype=np.int64)
    return best_of(Question(table_of(machine), free, prefer), sets)


def pack(
    machine: Machine,
    free: int,
    size: int,
    count: int,
    *,
    require: LinkClass = LinkClass.SYS,
    prefer: LinkClass = LinkClass.NVLINK,
    running: Collection[int] | None = None,
) -> tuple[Choice, ...]:
    """Return up to *count* disjoint sets of *size*, by lowest index; fewer if no more fit.

    As many as possible; among those as `choose`, with the bandwidths added up. So one set may get
    less than it could alone because its neighbour gets more. Raises RequestError as `choose`.
    """
    _check(machine, size, free)
    if count < 0:
        raise RequestError(f"{count} sets wanted: expected 0 or more")
    known = _known(machine, free, running)
    return _pack(table_of(machine), free, size, count, require, prefer, known)


def nearest_miss(
    machine: Machine, free: int, size: int, require: LinkClass, *, drawn: tuple[int, ...] = ()
) -> LinkClass | None:
    """Return the closest class, *require* at most, that a set of this size can keep to.

    For a refusal: None means that too few GPUs are free, or no set of them that a pod may have;
    *require* that a set fits. *drawn* and RequestError are as in `choose`.
    """
    _check(machine, size, free)
    table = table_of(machine)
    if size > table.count:
        return None
    sets = subsets.within(subsets.layer(table.count, size), free)
    sets = sets[table.may_be[sets]]
    if not len(sets):
        return None
    return min(require, LinkClass(int(table.worth(drawn).ring_classes[sets].max())))


def _check(machine: Machine, size: int, *gpu_sets: int) -> None:
    if size < 1:
        raise RequestError(f"{size} GPUs wanted: expected 1 or more")
    for gpus in gpu_sets:
        if gpus & ~machine.all_gpus:
            raise RequestError(
                f"GPU set {gpus:#b}: expected GPUs of the machine, which has {len(machine.gpus)}"
            )


def _known(machine: Machine, free: int, running: Collection[int] | None) -> Running:
    if running is None:
        return None
    taken = free
    for gpus in running:
        if gpus & taken or gpus & ~machine.all_gpus:
            raise RequestError(
                f"running GPU set {gpus:#b}: expected GPUs of the machine, not free and in no other"
            )
        taken |= gpus
    return tuple(sorted(gpus for gpus in running if gpus))


@while_alive(16384)
def _ranked(
    table: MachineTable,
    free: int,
    usable: int,
    size: int,
    must: int,
    require: LinkClass,
    prefer: LinkClass,
    running: Running,
    limit: int,
    drawn: tuple[int, ...],
) -> tuple[Choice, ...]:
    if size > usable.bit_count() or must & ~usable:
        return ()
    sets = subsets.within(subsets.layer(table.count, size), usable, must)
    sets = sets[table.may_be[sets] & (table.worth(drawn).ring_classes[sets] >= require)]
    question = Question(table, free, prefer, running, drawn)
    found: list[Choice] = []
    while len(sets) and len(found) < limit:
        best = best_of(question, sets)
        found.append(_choice(table, best, free & ~best))
        sets = sets[sets != best]
    return tuple(found)


def _choice(table: MachineTable, gpus: int, left: int) -> Choice:
    return Choice(
        gpus=gpus,
        gbytes_per_s=float(table.values[gpus]),
        ring_class=LinkClass(int(table.ring_classes[gpus])),
        remaining_value=float(table.remaining_value[left]),
    )


class _Partitions(NamedTuple):
    """The worth of a set inside a pack is one integer, whose digits are the values that add up, the
    first of `ORDER` first. So totals compare digit by digit, and a prefix of them by itself."""

    weights: Masks  # [2^n] of each set
    totals: Masks  # [2^n] of the best cut of each union of sets
    prefixes: tuple[int, ...]  # by criterion: what divides a total into its digits up to this one


@while_alive(256)
def _partitions(
    table: MachineTable, size: int, require: LinkClass, prefer: LinkClass
) -> _Partitions:
    usable = (subsets.sizes(table.count) == size) & (table.ring_classes >= require) & table.may_be
    sets = np.flatnonzero(usable)
    worth, bases = np.zeros(len(sets), dtype=np.int64), list[int]()
    question = Question(table, free=0, prefer=prefer)
    for each in ORDER:
        base = 1
        if each.adds_up and len(sets):
            values = np.rint(each.worth(question, sets) * each.scale).astype(np.int64)
            values -= values.min()
            base = int(values.max()) * (table.count // size) + 1
            worth = worth * base + values
        bases.append(base)
    assert prod(bases) < -subsets.INFEASIBLE // 4, "totals are far above INFEASIBLE"
    weights = np.full(1 << table.count, subsets.INFEASIBLE)
    weights[sets] = worth
    prefixes = tuple(prod(bases[number + 1 :]) for number in range(len(bases)))
    return _Partitions(weights, subsets.best_partitions(weights, size), prefixes)


@while_alive(4096)
def _pack(
    table: MachineTable,
    free: int,
    size: int,
    count: int,
    require: LinkClass,
    prefer: LinkClass,
    running: Running,
) -> tuple[Choice, ...]:
    weights, totals, prefixes = _partitions(table, size, require, prefer)
    question = Question(table, free, prefer, running)
    for number in range(min(count, free.bit_count() // size), 0, -1):
        covers = subsets.within(subsets.layer(table.count, number * size), free)
        covers = covers[totals[covers] > subsets.INFEASIBLE]
        if len(covers):
            for each, prefix in zip(ORDER, prefixes, strict=True):
                total = totals[covers] // prefix
                covers = most(covers, total if each.adds_up else each.worth(question, covers))
            cover = int(covers[0])
            parts = _parts(table, cover, size, weights, totals)
            return tuple(_choice(table, part, free & ~cover) for part in parts)
    return ()


def _parts(
    table: MachineTable, cover: int, size: int, weights: Masks, totals: Masks
) -> Iterator[int]:
    """Return the sets of the best cut of *cover*, recovered from its total."""
    while cover:
        holding_lowest = subsets.within(subsets.layer(table.count, size), cover, cover & -cover)
        gains = weights[holding_lowest] + totals[cover ^ holding_lowest]
        part = int(holding_lowest[np.argmax(gains == totals[cover])])
        yield part
        cover ^= part
