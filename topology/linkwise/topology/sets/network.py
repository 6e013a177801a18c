"""How fast the GPUs of one machine reach the GPUs of others: a GPU set's share of the network.

`tables.py` has the value of a set inside its machine. This module has what the set contributes to a
communicator that spans machines. All arrays are indexed by bitmask. Sources: docs/topology.md.
"""

import math

import numpy as np
from numpy.typing import NDArray

from linkwise.topology.machine.hardware import facts_of_gpu, slot_gbytes_per_s
from linkwise.topology.machine.model import Gpu, LinkClass, Machine, Nic
from linkwise.topology.sets import subsets
from linkwise.topology.sets.bandwidth import ROOT_COST

Floats = NDArray[np.float64]
# NCCL counts 12, 24 and 48 GB/s for the PCIe slots of NICs of 100, 200 and 400 Gbit/s.
_GBYTES_PER_GBIT = 0.12


def network_gbytes_per_s(machine: Machine) -> Floats:
    """Return [2^n]: the GB/s that each set can send to other machines; 0 for the empty set.

    Every NIC adds the bandwidth of the best path to it from a GPU of the set, at most its own
    speed. A NIC of unknown speed is assumed to be as fast as the GPUs' PCIe slots: 100, 200 and 400
    Gbit/s for PCIe Gen3, 4 and 5. A machine that reports no NIC is assumed to have one, as near to
    every GPU as possible. The set sends no more than its GPUs' own slots carry.
    """
    gpus = machine.gpus
    slots = _sums(np.array([slot_gbytes_per_s(gpu) for gpu in gpus]))
    through_nics = np.zeros(1 << len(gpus))
    for nic in machine.nics or (Nic("unknown", (LinkClass.PIX,) * len(gpus)),):
        through_nics += _most(np.array(_paths(nic, gpus)))
    return _rounded(np.minimum(slots, through_nics))


def fabric_gbytes_per_s(machine: Machine) -> Floats:
    """Return [2^n]: the GB/s that the slowest GPU of each set sends into an NVLink fabric.

    Infinite for the empty set, 0 for a set with a GPU that has no NVLink.
    """
    count = len(machine.gpus)
    into_switch = [0] * count
    for first, second, link in machine.pairs():
        if link.through_switch:
            into_switch[first] = max(into_switch[first], link.nvlinks)
            into_switch[second] = max(into_switch[second], link.nvlinks)
    facts = [facts_of_gpu(gpu) for gpu in machine.gpus]
    if count == 1:  # no second GPU shows its links
        into_switch = [facts[0].nvlinks]
    speeds = [
        links * each.nvlink_gbytes_per_s for links, each in zip(into_switch, facts, strict=True)
    ]
    return _rounded(subsets.least(np.array(speeds, dtype=np.float64), np.inf))


def _paths(nic: Nic, gpus: tuple[Gpu, ...]) -> list[float]:
    """Return [n]: the GB/s between each GPU and the NIC, as between two GPUs at that distance with
    peer-to-peer access, and at most what the NIC carries."""
    own = math.inf if nic.gbit_per_s is None else nic.gbit_per_s * _GBYTES_PER_GBIT
    return [min(_path(close, gpu), own) for close, gpu in zip(nic.closeness, gpus, strict=True)]


def _path(closeness: LinkClass, gpu: Gpu) -> float:
    slot = slot_gbytes_per_s(gpu)
    if closeness >= LinkClass.PXB:
        return slot
    through_root = slot / ROOT_COST
    if closeness >= LinkClass.NODE:
        return through_root
    return min(through_root, facts_of_gpu(gpu).inter_socket_gbytes_per_s)


def _rounded(array: Floats) -> Floats:
    return np.round(array, 4)


def _most(per_gpu: Floats) -> Floats:
    """Return [2^n]: the greatest of the members' numbers; 0 for the empty set."""
    return -subsets.least(-per_gpu, 0.0)


def _sums(per_gpu: Floats) -> Floats:
    sums = np.zeros(1)
    for number in per_gpu:
        sums = np.concatenate([sums, sums + number])
    return sums
