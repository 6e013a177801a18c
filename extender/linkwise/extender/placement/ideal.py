"""The most that idle machines would give a gang: what its place is measured by."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from linkwise.extender.kinds import Kind
from linkwise.extender.placement.communicator import worths
from linkwise.extender.placement.reach import ONE_NODE, Reach, reach_of
from linkwise.topology import subsets
from linkwise.topology.model import LinkClass


def ideal(
    kinds: Iterable[tuple[Kind, int]], members: Sequence[int], levels: tuple[str, ...]
) -> float:
    """GB/s of a communicator of *members* with so many GPUs each, on machines of the best of these
    kinds, on the GPUs of each (bitmask) that may be taken: on one machine, or on as many as it
    takes, as near to each other as the nearest of *levels*. No placement has more."""
    near = reach_of(levels, 0)
    gpus, least = sum(members), min(members)
    return max((_on(kind, allowed, gpus, least, near) for kind, allowed in kinds), default=0.0)


@lru_cache(maxsize=4096)
def _on(kind: Kind, allowed: int, gpus: int, least: int, near: Reach) -> float:
    masks = subsets.within(np.arange(1, 1 << kind.table.count), allowed)
    sizes = subsets.sizes(kind.table.count)[masks]
    on_one = worths(kind, LinkClass.NVLINK, ONE_NODE)[masks[sizes == gpus]]
    some = (sizes >= least) & (sizes < gpus)
    on_several = worths(kind, LinkClass.NVLINK, near)[masks[some]]
    return float(max(on_one.max(initial=0.0), on_several.max(initial=0.0)))
