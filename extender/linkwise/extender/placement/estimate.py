"""What the GPUs that a gang has are worth as one communicator: for people, as the search saw it."""

from collections.abc import Sequence
from dataclasses import dataclass

from linkwise.extender.kinds import Kind
from linkwise.extender.placement.communicator import worths
from linkwise.extender.placement.reach import reach_of
from linkwise.topology.model import LinkClass


@dataclass(frozen=True, slots=True)
class Share:
    """A gang's GPUs on one node, and the node's domains: one for each level, empty for none."""

    kind: Kind
    gpus: int  # bitmask
    domains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """GB/s of an all-reduce: of each node's ring, between the nodes, and of all together, which is
    the least of these."""

    inside: tuple[float, ...]
    between: float | None  # None: there is one node
    together: float


def estimate(shares: Sequence[Share], levels: Sequence[str]) -> Estimate:
    """*levels*: those that some node of the cluster is in, nearest first."""
    inside = tuple(float(share.kind.table.values[share.gpus]) for share in shares)
    if len(shares) == 1:
        return Estimate(inside, None, inside[0])
    shared = next((n for n in range(len(levels)) if _is_shared(shares, n)), len(levels))
    reach = reach_of(levels, shared)
    between = min(_between(share, reach.share, fabric=reach.fabric) for share in shares)
    together = min(
        float(worths(share.kind, LinkClass.NVLINK, reach)[share.gpus]) for share in shares
    )
    return Estimate(inside, between, together)


def _is_shared(shares: Sequence[Share], level: int) -> bool:
    domains = {share.domains[level] for share in shares}
    return len(domains) == 1 and "" not in domains


def _between(share: Share, of_nics: float, *, fabric: bool) -> float:
    through_nics = float(share.kind.network[share.gpus]) * of_nics
    return max(through_nics, float(share.kind.fabric[share.gpus])) if fabric else through_nics
