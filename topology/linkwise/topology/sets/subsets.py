"""All GPU sets of a machine at once: arrays indexed by bitmask, and functions over them.

65,536 sets of 16 GPUs are few for numpy and many for Python. So everything here works on whole
layers: all sets of one size, in the order of their lowest indices ({0,1}, {0,2} … {1,2} …).
"""

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.int64]
Positions = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)
NO_RING = -np.inf
INFEASIBLE = np.iinfo(np.int64).min // 4  # far below any weight, even after additions


def _read_only(array: NDArray[Number]) -> NDArray[Number]:
    array.flags.writeable = False
    return array


@cache
def members(count: int, size: int) -> Positions:
    """Return [sets, size]: the positions of every set of this size, rising; sets by lowest
    indices."""
    rows = list(combinations(range(count), size))
    return _read_only(np.array(rows, dtype=np.int64).reshape(len(rows), size))


@cache
def layer(count: int, size: int) -> Masks:
    """Return [sets]: the bitmasks of the same sets."""
    masks: Masks = np.left_shift(1, members(count, size)).sum(axis=1, dtype=np.int64)
    return _read_only(masks)


def within(sets: Masks, free: int, must: int = 0) -> Masks:
    """Return those of *sets* that lie in *free* and hold all of *must*, in the same order."""
    kept: Masks = sets[((sets & ~free) == 0) & ((sets & must) == must)]
    return kept


@cache
def sizes(count: int) -> NDArray[np.int8]:
    """Return [2^count]: the number of GPUs in each set."""
    result = np.zeros(1, dtype=np.int8)
    for _ in range(count):
        result = np.concatenate([result, result + 1])
    return _read_only(result)


def least(per_gpu: NDArray[np.float64], start: float) -> NDArray[np.float64]:
    """Return [2^n]: the least of the members' numbers; *start* for the empty set."""
    result = np.array([start])
    for number in per_gpu:
        result = np.concatenate([result, np.minimum(result, number)])
    return result


def union(per_gpu: Sequence[int]) -> Masks:
    """Return [2^n]: the bits that any member has."""
    result = np.zeros(1, dtype=np.int64)
    for bits in per_gpu:
        result = np.concatenate([result, result | bits])
    return result


def best_within(values: NDArray[np.float64] | Masks) -> None:
    """Replace every set's number (last axis, [..., 2^n]) by the best of all its subsets'
    numbers."""
    total = values.shape[-1]
    bit = 1
    while bit < total:
        halves = values.reshape(*values.shape[:-1], total // (2 * bit), 2, bit)
        np.maximum(halves[..., 1, :], halves[..., 0, :], out=halves[..., 1, :])
        bit *= 2


def best_bottlenecks(hops: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [2^n]: the slowest hop of the best ring through each set, as `rings.best_bottleneck`;
    -inf below two GPUs. *hops* is symmetric, [n, n].

    Held-Karp with min and max: the best path from a set's lowest GPU through all of it, by its end.
    """
    count = len(hops)
    path = np.full((1 << count, count), NO_RING)
    path[1 << np.arange(count), np.arange(count)] = np.inf
    closed = np.full(1 << count, NO_RING)
    for size in range(2, count + 1):
        masks, lowest = layer(count, size), members(count, size)[:, 0]
        for position in range(1, size):
            end = members(count, size)[:, position]
            before = path[masks ^ (1 << end)]
            path[masks, end] = np.minimum(before, hops[end]).max(axis=1)
        closed[masks] = np.minimum(path[masks], hops[lowest]).max(axis=1)
    return closed


def best_partitions(weights: Masks, size: int, *, one_short: bool = False) -> Masks:
    """Return [2^n]: the best total weight of a cut of each set into sets of *size*, with none left.

    With *one_short*, one set of the cut may be smaller if the number does not divide. *weights* is
    [2^n], `INFEASIBLE` for a set that may not be used; so is the result if no cut exists. Each cut
    is considered once, as the next set always holds the lowest GPU.
    """
    count = len(weights).bit_length() - 1
    best = np.full(1 << count, INFEASIBLE)
    best[0] = 0
    for whole in range(1, count + 1):
        rest = whole % size
        if rest and not one_short:
            continue
        masks, bits = layer(count, whole), np.left_shift(1, members(count, whole))
        found = np.full(len(masks), INFEASIBLE)
        for part_size in {min(size, whole), rest} - {0}:
            for others in combinations(range(1, whole), part_size - 1):
                part = bits[:, (0, *others)].sum(axis=1)
                np.maximum(found, weights[part] + best[masks ^ part], out=found)
        best[masks] = np.where(found > INFEASIBLE // 2, found, INFEASIBLE)
    return best


def best_slowest_parts(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return [2^n]: the greatest possible value of the worst part in a cut into sets of *size*;
    -inf if no such cut exists, inf for the empty set.

    *values* is [2^n], -inf for a set that may not be a part.
    """
    count = len(values).bit_length() - 1
    best = np.full(1 << count, -np.inf)
    best[0] = np.inf
    for whole in range(size, count + 1, size):
        masks, bits = layer(count, whole), np.left_shift(1, members(count, whole))
        found = np.full(len(masks), -np.inf)
        for others in combinations(range(1, whole), size - 1):
            part = bits[:, (0, *others)].sum(axis=1)
            np.maximum(found, np.minimum(values[part], best[masks ^ part]), out=found)
        best[masks] = found
    return best
