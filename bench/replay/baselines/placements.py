"""Where a baseline puts a job, given the free GPUs of every node.

Each function takes the free GPU sets of the nodes, the GPUs of each of the job's pods, and what
chooses the GPUs on a node. It returns the parts, or None if they do not fit. Ties go to the lowest
node.
"""

from collections.abc import Callable, Iterator, Sequence

from linkwise.replay.jobs import OnNode

Parts = tuple[OnNode, ...]
Prefer = Callable[[int, int, int], int]
"""(node, its free GPUs, GPUs that one pod wants, no more than are free) -> the pod's GPUs."""
Placement = Callable[[Sequence[int], int, Sequence[int], Prefer], Parts | None]
"""(free GPU sets of the nodes, GPUs of a node, GPUs of each pod, device plugins) -> the parts."""


def lowest(free: int, count: int) -> int:
    """Return the *count* lowest GPUs of a set that has as many."""
    taken = 0
    for _ in range(count):
        taken |= (free ^ taken) & -(free ^ taken)
    return taken


def consolidated(
    free: Sequence[int], per_node: int, pods: Sequence[int], prefer: Prefer
) -> Parts | None:
    """Use the fewest nodes possible: idle ones, and the fullest node that has the rest."""

    def one(rest: int, without: frozenset[int]) -> OnNode | None:
        node = _fullest(free, rest, without)
        return None if node is None else OnNode(node, prefer(node, free[node], rest))

    return _on_fewest(free, per_node, sum(pods), one)


def buddy(
    free: Sequence[int],
    per_node: int,
    pods: Sequence[int],
    prefer: Prefer,  # noqa: ARG001 - the cell is the choice
) -> Parts | None:
    """Allocate as HiveD's cells: a node's GPUs are halves of halves. What is less than a node gets
    the cell of the next power of two, split off the smallest free cell that holds it."""
    return _on_fewest(free, per_node, sum(pods), lambda rest, without: _cell(free, rest, without))


def spread(
    free: Sequence[int],
    per_node: int,  # noqa: ARG001
    pods: Sequence[int],
    prefer: Prefer,
) -> Parts | None:
    """Place pods of one GPU, each on the emptiest node: LeastAllocated of GPUs."""
    return _one_by_one(free, [1] * sum(pods), prefer, emptiest=True)


def packed(
    free: Sequence[int],
    per_node: int,  # noqa: ARG001
    pods: Sequence[int],
    prefer: Prefer,
) -> Parts | None:
    """Place pods of one GPU, each on the fullest node: MostAllocated of GPUs."""
    return _one_by_one(free, [1] * sum(pods), prefer, emptiest=False)


def first_fit(
    free: Sequence[int],
    per_node: int,  # noqa: ARG001
    pods: Sequence[int],
    prefer: Prefer,  # noqa: ARG001 - no device plugin is asked
) -> Parts | None:
    """Place as kube-scheduler does for ResourceClaims: each pod on the emptiest node, as CPU is
    requested for each GPU and LeastAllocated decides, with the first free GPUs in the order in
    which the driver lists them (`tests/cluster/test_late_claims.py`), which is that of indices."""
    return _one_by_one(free, pods, lambda _, gpus, count: lowest(gpus, count), emptiest=True)


def _on_fewest(
    free: Sequence[int],
    per_node: int,
    wanted: int,
    one: Callable[[int, frozenset[int]], OnNode | None],
) -> Parts | None:
    whole, rest = divmod(wanted, per_node)
    all_gpus = (1 << per_node) - 1
    idle = [node for node, gpus in enumerate(free) if gpus == all_gpus][:whole] if whole else []
    if len(idle) < whole:
        return None
    parts = [OnNode(node, all_gpus) for node in idle]
    if rest:
        part = one(rest, frozenset(idle))
        if part is None:
            return None
        parts.append(part)
    return tuple(sorted(parts, key=lambda part: part.node))


def _fullest(free: Sequence[int], wanted: int, without: frozenset[int]) -> int | None:
    best, least = None, 1 << 30
    for node, gpus in enumerate(free):
        if wanted <= (count := gpus.bit_count()) < least and node not in without:
            best, least = node, count
    return best


def _cell(free: Sequence[int], wanted: int, without: frozenset[int]) -> OnNode | None:
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
    return OnNode(node, ((1 << size) - 1) << first)


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


def _one_by_one(
    free: Sequence[int], pods: Sequence[int], prefer: Prefer, *, emptiest: bool
) -> Parts | None:
    counts = [gpus.bit_count() for gpus in free]
    if sum(counts) < sum(pods):
        return None
    left = dict[int, int]()  # free GPUs of the nodes that got pods
    for wanted in pods:
        fitting = (node for node, count in enumerate(counts) if count >= wanted)
        if emptiest:
            node = max(fitting, key=lambda node: (counts[node], -node), default=None)
        else:
            node = min(fitting, key=lambda node: (counts[node], node), default=None)
        if node is None:
            return None
        counts[node] -= wanted
        gpus = left.get(node, free[node])
        left[node] = gpus & ~prefer(node, gpus, wanted)
    return tuple(OnNode(node, free[node] & ~gpus) for node, gpus in sorted(left.items()))
