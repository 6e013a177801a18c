"""The worth of the GPUs that a gang has, for users, with the same formulas as the search."""

from collections.abc import Sequence
from dataclasses import dataclass

from linkwise.extender.cache.machine_kind import MachineKind
from linkwise.extender.placement.worth.communicator import reduced_in_fabric, worths
from linkwise.extender.placement.worth.reach import Reach, reach_of
from linkwise.topology.machine.model import LinkClass


@dataclass(frozen=True, slots=True)
class Share:
    """A gang's GPUs on one node, and the node's domain at each level (empty: none)."""

    kind: MachineKind
    gpus: int  # bitmask
    domains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """GB/s of an all-reduce: of each node's ring, between the nodes, and of all together, which is
    the minimum of these."""

    inside: tuple[float, ...]
    between: float | None  # None: there is one node
    together: float


def estimate(shares: Sequence[Share], levels: Sequence[str]) -> Estimate:
    """*levels* are those in which some node of the cluster has a domain, nearest first."""
    shared = next((n for n in range(len(levels)) if _is_shared(shares, n)), len(levels))
    return estimate_of([(share.kind, share.gpus) for share in shares], levels, shared)


def estimate_of(
    parts: Sequence[tuple[MachineKind, int]], levels: Sequence[str], shared: int
) -> Estimate:
    """*parts* has the GPUs (bitmask) of one node each. *shared* is the index of the nearest level
    at which all are in one domain; len(levels): none."""
    of_part = {part: float(part[0].table.values[part[1]]) for part in set(parts)}
    inside = tuple(of_part[part] for part in parts)
    if len(parts) == 1:
        return Estimate(inside, None, inside[0])
    reach = reach_of(levels, shared)
    between = min(_between(*part, reach) for part in of_part)
    together = min(float(worths(kind, LinkClass.NVLINK, reach)[gpus]) for kind, gpus in of_part)
    if reach.fabric:
        count = sum(gpus.bit_count() for _, gpus in parts)
        reduced = min(reduced_in_fabric(*part, count) for part in of_part)
        between, together = max(between, reduced), max(together, reduced)
    return Estimate(inside, between, together)


def _is_shared(shares: Sequence[Share], level: int) -> bool:
    domains = {share.domains[level] for share in shares}
    return len(domains) == 1 and "" not in domains


def _between(kind: MachineKind, gpus: int, reach: Reach) -> float:
    through_nics = float(kind.network[gpus]) * reach.share
    return max(through_nics, float(kind.fabric[gpus])) if reach.fabric else through_nics
