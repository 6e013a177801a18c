"""Decides from which NUMA nodes a container gets its devices, as the kubelet's Topology Manager.

From the kubelet's `topologymanager/policy*.go` and `devicemanager/topology_hints.go`, v1.36.3. The
device manager alone gives hints: no CPU or memory manager plays along. The option
`prefer-closest-numa-nodes` is not played, as no machine here has distances. PURE.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from linkwise.topology.machine.topology_manager import Policy

Affinity = frozenset[int]


@dataclass(frozen=True, slots=True)
class Hint:
    """NUMA nodes from which a request can be met; None: any."""

    affinity: Affinity | None
    preferred: bool


def hints_of(
    machine: Affinity,
    numa_nodes: Mapping[str, Collection[int]],
    free: Collection[str],
    reusable: Collection[str],
    count: int,
) -> list[Hint] | None:
    """The hints for *count* devices of a resource; None: its devices have no NUMA nodes.

    *numa_nodes* are those of all its devices, free or not; those that the *machine* does not have
    count for nothing. The container gets all of *reusable*
    again, so each of them must be on the nodes of a hint.
    """
    theirs = {node for of_device in numa_nodes.values() for node in of_device}
    if not theirs:
        return None
    nodes = sorted(theirs & machine) or sorted(machine)
    if len({*free, *reusable}) < count:
        return []
    fewest, found = len(nodes), []
    for size in range(1, len(nodes) + 1):
        for affinity in map(frozenset, combinations(nodes, size)):
            near = {device for device, its in numa_nodes.items() if affinity.intersection(its)}
            if len(near) >= count:
                fewest = min(fewest, size)
            again = [device for device in reusable if numa_nodes.get(device)]
            if near.issuperset(again) and len(again) + len(near.intersection(free)) >= count:
                found.append(affinity)
    return [Hint(affinity, len(affinity) == fewest) for affinity in found]


def merged(
    policy: Policy, machine: Affinity, hints: Sequence[list[Hint] | None]
) -> tuple[Affinity | None, bool]:
    """The NUMA nodes from which a container or pod gets its devices (None: any), and whether the
    kubelet admits it. *hints* has those of each resource; *machine* are all NUMA nodes."""
    of_all = [_filled(of_one) for of_one in hints]
    if policy is Policy.SINGLE_NUMA_NODE:
        of_all = [[hint for hint in of_one if _is_single(hint)] for of_one in of_all]
    narrowest = [
        min(len(hint.affinity) for hint in of_one if hint.affinity is not None)
        for of_one in of_all
        if any(hint.affinity is not None for hint in of_one)
    ]
    aim = max(narrowest, default=0)
    best: Hint | None = None
    for permutation in product(*of_all):
        best = _better(best, _together(machine, permutation), aim)
    if best is None:
        best = Hint(machine, preferred=False)
    affinity = best.affinity
    if policy is Policy.SINGLE_NUMA_NODE and affinity == machine:
        affinity = None
    return affinity, best.preferred or policy is Policy.BEST_EFFORT


def _filled(hints: list[Hint] | None) -> list[Hint]:
    if hints is None:
        return [Hint(None, preferred=True)]
    return hints or [Hint(None, preferred=False)]


def _is_single(hint: Hint) -> bool:
    return hint.preferred and (hint.affinity is None or len(hint.affinity) == 1)


def _together(machine: Affinity, hints: Sequence[Hint]) -> Hint:
    """What meets all of these hints; preferred only if they are equal."""
    affinities = [hint.affinity for hint in hints if hint.affinity is not None]
    preferred = all(hint.preferred for hint in hints) and len({*affinities}) <= 1
    return Hint(machine.intersection(*affinities), preferred)


def _better(best: Hint | None, other: Hint, aim: int) -> Hint | None:
    """*aim* is how many NUMA nodes a hint that is not preferred should have."""
    if not other.affinity:
        return best
    if best is None:
        return other
    assert best.affinity is not None, "merged hints have NUMA nodes"
    if best.preferred != other.preferred:
        return best if best.preferred else other
    narrower = min(best, other, key=_narrowness)
    if best.preferred:
        return narrower
    has, offers = len(best.affinity), len(other.affinity)
    if has > aim:
        return narrower
    if has == aim:
        return narrower if offers == aim else best
    if offers > aim or offers < has:
        return best
    return other if offers == aim or offers > has else narrower


def _narrowness(hint: Hint) -> tuple[int, int]:
    """Fewer nodes are narrower; of as many, those with lower numbers."""
    affinity = hint.affinity or frozenset()
    return len(affinity), sum(1 << node for node in affinity)
