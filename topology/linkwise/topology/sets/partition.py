"""The policy `partition`: the answers of NVIDIA's device plugin (NVIDIA/go-gpuallocator).

For users who move from that plugin and want no change. The policy cuts *all* free GPUs into sets of
the requested size, takes the cut with the highest total score, and then its best set. A pair scores
by its PCIe class plus 100 per NVLink to another GPU; a set by the sum over its pairs. NVSwitch
counts for nothing: upstream finds a link's other end by PCI id, which is the switch.

Upstream enumerates up to 22 million cuts of 16 GPUs. It may return a set with padding in it, which
crashes it. Here the best cut of each set comes from those of smaller sets, and the one set that a
cut may leave short is never the answer.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from linkwise.topology.machine.model import Link, LinkClass, Machine
from linkwise.topology.sets import subsets
from linkwise.topology.sets.subsets import Masks

PairScores = tuple[tuple[int, ...], ...]
"""[n][n], symmetric, 0 on the diagonal; sums stay below 2^60."""

_PCIE_SCORES = {
    LinkClass.SYS: 10,
    LinkClass.NODE: 20,
    LinkClass.PHB: 30,
    LinkClass.PXB: 40,
    LinkClass.PIX: 50,
}
_NVLINK_SCORE = 100


def choose_partition(machine: Machine, free: int, size: int, *, must: int = 0) -> int | None:
    """Return the set (bitmask) of go-gpuallocator's best-effort policy; None if it gives none.

    As upstream it accepts any input: a size below 1 has no answer either.
    """
    return best_of_partition(pair_scores(machine), free & machine.all_gpus, size, must)


def lowest_indices(free: int, size: int, must: int = 0) -> int | None:
    """Upstream's policy `simple`: the required GPUs, filled up with the lowest indices."""
    if size < 1 or free.bit_count() < size or must.bit_count() > size or must & ~free:
        return None
    chosen, left = must, free & ~must
    while chosen.bit_count() < size:
        chosen |= left & -left
        left &= left - 1
    return chosen


def pair_scores(machine: Machine) -> PairScores:
    """Return the score of every pair of the machine's GPUs."""
    count = len(machine.gpus)
    return tuple(
        tuple(0 if a == b else _score(machine.link(a, b)) for b in range(count))
        for a in range(count)
    )


def _score(link: Link) -> int:
    nvlinks = 0 if link.through_switch else link.nvlinks
    return _PCIE_SCORES[link.pcie] + _NVLINK_SCORE * nvlinks


@lru_cache(maxsize=4096)
def best_of_partition(scores: PairScores, free: int, size: int, must: int = 0) -> int | None:
    """Return the same from scores of pairs. Equal cuts go to the lowest indices, set by set."""
    if size < 1 or free.bit_count() < size or must.bit_count() > size or must & ~free:
        return None
    set_scores, totals = _cuts(scores, size)
    if not must:
        return _first_best(_cut(set_scores, totals, free, size), set_scores, size)
    sets = subsets.within(subsets.layer(len(scores), size), free, must)
    return int(sets[np.argmax(set_scores[sets] + totals[free & ~sets])])


@lru_cache(maxsize=64)
def _cuts(scores: PairScores, size: int) -> tuple[Masks, Masks]:
    """Return the score of each set, and the best total of each set's cuts; both [2^n]."""
    set_scores = np.zeros(1, dtype=np.int64)
    for row in range(len(scores)):
        to_row = np.zeros(1, dtype=np.int64)
        for score in scores[row][:row]:
            to_row = np.concatenate([to_row, to_row + score])
        set_scores = np.concatenate([set_scores, set_scores + to_row])
    return set_scores, subsets.best_partitions(set_scores, size, one_short=True)


def _cut(set_scores: Masks, totals: Masks, free: int, size: int) -> Iterator[int]:
    """Return the sets of the best cut of *free*, including a short one."""
    count = len(totals).bit_length() - 1
    while free:
        parts = []
        for part_size in {size, free.bit_count() % size} - {0}:
            sets = subsets.within(subsets.layer(count, part_size), free, free & -free)
            best = sets[set_scores[sets] + totals[free ^ sets] == totals[free]]
            parts += [int(part) for part in best[:1]]
        part = min(parts, key=lambda part: _indices(part, size, count))
        yield part
        free ^= part


def _indices(part: int, size: int, count: int) -> tuple[int, ...]:
    """A sort key: indices missing to *size* come last, as upstream's padding does."""
    indices = [index for index in range(count) if part >> index & 1]
    return (*indices, *[count] * (size - len(indices)))


def _first_best(parts: Iterable[int], set_scores: Masks, size: int) -> int:
    whole = [part for part in parts if part.bit_count() == size]
    return max(whole, key=lambda part: int(set_scores[part]))  # max() keeps the first of equals
