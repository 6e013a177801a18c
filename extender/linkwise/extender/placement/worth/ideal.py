"""The bandwidth that a gang would have on idle machines: the standard for its placement."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.extender.cache.machine_kind import MachineKind
from linkwise.extender.placement.worth.communicator import reduced_in_fabric, worths
from linkwise.extender.placement.worth.reach import ONE_NODE, Reach
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.sets import subsets
from linkwise.topology.while_alive import while_alive


@dataclass(frozen=True, slots=True)
class Machines:
    """Idle machines of one kind."""

    kind: MachineKind
    allowed: int  # bitmask of the GPUs of each that the gang may use
    near: Reach  # between the machines that are nearest to each other


def ideal(machines: Iterable[Machines], members: Sequence[int]) -> float:
    """An upper bound on the GB/s of a communicator on *machines*: on one, or on as many as it
    needs. *members* has the number of GPUs of each member."""
    gpus, least = sum(members), min(members)
    found = (_on(each.kind, each.allowed, gpus, least, each.near) for each in machines)
    return max(found, default=0.0)


@while_alive(4096)
def _on(kind: MachineKind, allowed: int, gpus: int, least: int, near: Reach) -> float:
    masks = subsets.within(np.arange(1, 1 << kind.table.count), allowed)
    sizes = subsets.sizes(kind.table.count)[masks]
    on_one = worths(kind, LinkClass.NVLINK, ONE_NODE)[masks[sizes == gpus]]
    some = (sizes >= least) & (sizes < gpus)
    on_several = worths(kind, LinkClass.NVLINK, near)[masks[some]]
    reduced = [reduced_in_fabric(kind, mask, gpus) for mask in masks[some].tolist() if near.fabric]
    return float(max(on_one.max(initial=0.0), on_several.max(initial=0.0), *reduced))
