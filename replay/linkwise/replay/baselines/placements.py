"""Where a baseline puts a job, given the free GPUs of every node.

Each function takes the free GPU sets of the nodes and the number of GPUs wanted. It returns the
parts, or None if they do not fit. Ties go to the lowest node and the lowest GPUs, as an NVIDIA
device plugin without a topology policy gives them.
"""

from collections.abc import Callable, Iterator, Sequence

from linkwise.replay.jobs import Part

Parts = tuple[Part, ...]
Placement = Callable[[Sequence[int], int, int], Parts | None]
"""(free GPU sets of the nodes, GPUs of a node, GPUs wanted) -> the parts."""


def lowest(free: int, count: int) -> int:
    """Return the *count* lowest GPUs of a set that has as many."""
    taken = 0
    for _ in range(count):
        taken |= (free ^ taken) & -(free ^ taken)
    return taken


def consolidated(free: Sequence[int], per_node: int, wanted: int) -> Parts | None:
    """Use the fewest nodes possible: idle ones, and the fullest node that has the rest."""
    return _on_fewest(free, per_node, wanted, _fullest)


def buddy(free: Sequence[int], per_node: int, wanted: int) -> Parts | None:
    """Allocate as HiveD's cells: a node's GPUs are halves of halves. What is less than a node gets
    the cell of the next power of two, split off the smallest free cell that holds it."""
    return _on_fewest(free, per_node, wanted, _cell)


def spread(free: Sequence[int], per_node: int, wanted: int) -> Parts | None:  # noqa: ARG001
    """Place pods of one GPU, each on the emptiest node: LeastAllocated of GPUs."""
    return _one_by_one(free, wanted, emptiest=True)


def packed(free: Sequence[int], per_node: int, wanted: int) -> Parts | None:  # noqa: ARG001
    """Place pods of one GPU, each on the fullest node: MostAllocated of GPUs."""
    return _one_by_one(free, wanted, emptiest=False)


def _on_fewest(
    free: Sequence[int],
    per_node: int,
    wanted: int,
    one: Callable[[Sequence[int], int, frozenset[int]], Part | None],
) -> Parts | None:
    whole, rest = divmod(wanted, per_node)
    all_gpus = (1 << per_node) - 1
    idle = [node for node, gpus in enumerate(free) if gpus == all_gpus][:whole] if whole else []
    if len(idle) < whole:
        return None
    parts = [Part(node, all_gpus) for node in idle]
    if rest:
        part = one(free, rest, frozenset(idle))
        if part is None:
            return None
        parts.append(part)
    return tuple(sorted(parts, key=lambda part: part.node))


def _fullest(free: Sequence[int], wanted: int, without: frozenset[int]) -> Part | None:
    best, least = -1, 1 << 30
    for node, gpus in enumerate(free):
        if wanted <= (count := gpus.bit_count()) < least and node not in without:
            best, least = node, count
    return None if best < 0 else Part(best, lowest(free[best], wanted))


def _cell(free: Sequence[int], wanted: int, without: frozenset[int]) -> Part | None:
    size = 1 << (wanted - 1).bit_length()
    best: tuple[int, int, int] | None = None  # size of the free cell around it, node, first GPU
    for node, gpus in enumerate(free):
        if gpus.bit_count() < size or node in without:
            continue
        for around, first in _free_cells(gpus):
            if around >= size and (best is None or (around, node, first) < best):
                best = around, node, first
    if best is None:
        return None
    _, node, first = best
    return Part(node, ((1 << size) - 1) << first)


def _free_cells(gpus: int) -> Iterator[tuple[int, int]]:
    """Return the largest free cells of a node: size, first GPU."""
    first = 0
    while gpus >> first:
        size = 1
        while first % (2 * size) == 0 and _is_free(gpus, first, 2 * size):
            size *= 2
        if gpus >> first & 1:
            yield size, first
        first += size


def _is_free(gpus: int, first: int, size: int) -> bool:
    cell = ((1 << size) - 1) << first
    return gpus & cell == cell


def _one_by_one(free: Sequence[int], wanted: int, *, emptiest: bool) -> Parts | None:
    counts = [gpus.bit_count() for gpus in free]
    if sum(counts) < wanted:
        return None
    given = [0] * len(counts)
    for _ in range(wanted):
        open_ = (node for node, count in enumerate(counts) if count)
        if emptiest:
            node = max(open_, key=lambda node: (counts[node], -node))
        else:
            node = min(open_, key=lambda node: (counts[node], node))
        counts[node] -= 1
        given[node] += 1
    return tuple(Part(n, lowest(free[n], count)) for n, count in enumerate(given) if count)
