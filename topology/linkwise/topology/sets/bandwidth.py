"""The value of a GPU set: its estimated all-reduce bus bandwidth, in GB/s.

nccl-tests prints this number as *busbw*, so a user can check it. It is the bandwidth of the best
ring, or rings, through the set:
- two or more GPUs: the slowest hop of the best ring through them. A hop is worth its NVLinks or its
  PCIe path, whichever is faster. With NVSwitch each GPU reaches every other at full speed.
- where GPUs have no peer-to-peer access, what they send over PCIe goes through the host's memory,
  and all GPUs below one PCIe switch share its way up.
- three or more joined by NVLinks without a switch: each ring that uses NVLinks of its own counts
  twice, once each way round (`rings.disjoint_rings`).
- two or more on NVSwitches that reduce (NVLink SHARP): what these reach, if it is more.
- a lone GPU uses no link.

This is the definition, for one set; `tables.py` computes it for all sets of a machine.
Sources: docs/topology.md.
"""

import math
from itertools import combinations

from linkwise.topology.machine.hardware import facts_of_gpu, is_a100_card
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from linkwise.topology.sets.rings import MOST_GPUS, Counts, best_bottleneck, disjoint_rings

LOCAL_GBYTES_PER_S = 5000.0
"""The value of a lone GPU: NCCL's "local", finite so that it fits into JSON."""

ROOT_COST = 1.2  # NCCL: peer to peer through an Intel root costs 6/5; no node tells its CPU
MEMORY_COST = ROOT_COST**2
"""Through the host's memory the data passes the root twice. A way between sockets costs another
6/5. This gives the 35 and 28 GB/s that NVIDIA/nccl#1639 has of 4 and 8 RTX 5090."""


def _pcie_gbytes_per_s(link: Link, first: Gpu, second: Gpu) -> float:
    facts = facts_of_gpu(first), facts_of_gpu(second)
    slot = min(fact.pcie_gbytes_per_s for fact in facts)
    between_sockets = min(fact.inter_socket_gbytes_per_s for fact in facts)
    if not link.peer_to_peer:
        through_memory = slot / MEMORY_COST
        if link.pcie >= LinkClass.PXB:
            return through_memory / 2  # both share the way up (NVIDIA/nccl#1309)
        if link.pcie >= LinkClass.NODE:
            return through_memory
        return min(through_memory / ROOT_COST, between_sockets)
    if link.pcie >= LinkClass.PXB:
        return slot
    if link.pcie >= LinkClass.NODE:
        return slot / ROOT_COST
    return min(slot / ROOT_COST, between_sockets)


def pair_gbytes_per_s(machine: Machine, first: int, second: int) -> float:
    """Return the GB/s between the GPUs at two different positions of `machine.gpus`; the slower
    model's if they differ."""
    link, ends = machine.link(first, second), (machine.gpus[first], machine.gpus[second])
    nvlink = link.nvlinks * min(facts_of_gpu(gpu).nvlink_gbytes_per_s for gpu in ends)
    if _is_bridge(machine, first, second):
        nvlink *= BRIDGE_SHARE
    return max(nvlink, _pcie_gbytes_per_s(link, *ends))


BRIDGE_SHARE = 7 / 8
"""A bridge between two A100 cards carries less than NCCL counts: 208 of 240 GB/s
(NVIDIA/nccl-tests#178)."""


def _is_bridge(machine: Machine, first: int, second: int) -> bool:
    """Whether a bridge joins these two A100, and not a board: cards by their name, or two of
    several GPUs that have no NVLink to another one."""
    if direct_nvlinks(machine, first, second) == 0:
        return False
    if any(facts_of_gpu(machine.gpus[end]).compute_capability != (8, 0) for end in (first, second)):
        return False
    if len(machine.gpus) == 2:
        return is_a100_card(machine.gpus[0])
    return not any(
        direct_nvlinks(machine, end, other)
        for end in (first, second)
        for other in range(len(machine.gpus))
        if other not in (first, second)
    )


_MOST_GAIN = 8
"""GPUs up to which more of them gain more: 8 B200 reach 830 GB/s (NVIDIA/nccl#1807), 72 GB200 840
(coreweave/nccl-tests#43)."""


def sharp_gain(count: int) -> float:
    """Return how much more busbw *count* GPUs get than their NVLinks' speed, if the NVSwitches
    reduce without loss.

    Each GPU sends its data once into the switch and a share of 1/n once to all others; a ring sends
    2(n-1)/n. Where busbw is counted as for a ring, that is a gain of 2(n-1)/(n+1).
    """
    known = min(count, _MOST_GAIN)
    return 2 * (known - 1) / (known + 1)


def direct_nvlinks(machine: Machine, first: int, second: int) -> int:
    """Return the NVLinks between two GPUs that pass no switch."""
    link = machine.link(first, second)
    return 0 if link.through_switch else link.nvlinks


def islands(machine: Machine) -> tuple[int, ...]:
    """Return the sets of GPUs that direct NVLinks join, in a chain if need be; lone GPUs too."""
    found = [1 << position for position in range(len(machine.gpus))]
    for first, second, link in machine.pairs():
        if link.nvlinks and not link.through_switch:
            ends = 1 << first | 1 << second
            apart = [island for island in found if not island & ends]
            found = [*apart, sum(island for island in found if island & ends)]
    return tuple(found)


def positions_of(gpus: int) -> tuple[int, ...]:
    """Return the positions in a bitmask, rising."""
    return tuple(position for position in range(gpus.bit_length()) if gpus >> position & 1)


def bandwidth(machine: Machine, gpus: int) -> float:
    """Return the GB/s of a set (bitmask over `machine.gpus`), to 0.1 MB/s; 0 for the empty one.

    Exact, with one exception: in an island of more than `MOST_GPUS` GPUs without a switch, which no
    vendor builds, only copies of one ring count. Slow: for one set, not for a search.
    """
    members = positions_of(gpus)
    if len(members) < 2:
        return LOCAL_GBYTES_PER_S if members else 0.0
    hops = [[0.0 if a == b else pair_gbytes_per_s(machine, a, b) for b in members] for a in members]
    slowest_hop = min(best_bottleneck(hops), _into_memory(machine, gpus))
    if len(members) == 2:
        return round(slowest_hop, 4)
    if all(machine.link(a, b).through_switch for a, b in combinations(members, 2)):
        share = min(facts_of_gpu(machine.gpus[a]).sharp_share for a in members)
        return round(slowest_hop * max(1.0, share * sharp_gain(len(members))), 4)
    per_link = min(facts_of_gpu(machine.gpus[a]).nvlink_gbytes_per_s for a in members)
    return round(max(slowest_hop, 2 * per_link * _nvlink_rings(machine, members)), 4)


def sharing_the_way_up(machine: Machine) -> tuple[int, ...]:
    """Return for each GPU the set of the others below its PCIe switches with which it talks through
    the host's memory."""
    found = [0] * len(machine.gpus)
    for first, second, link in machine.pairs():
        if link.pcie >= LinkClass.PXB and not link.peer_to_peer and not link.nvlinks:
            found[first] |= 1 << second
            found[second] |= 1 << first
    return tuple(found)


def _into_memory(machine: Machine, gpus: int) -> float:
    """Return the GB/s that the GPU with the smallest share of its way up can send to the host's
    memory; infinity if none shares it."""
    sharing = sharing_the_way_up(machine)
    shares = [
        facts_of_gpu(machine.gpus[a]).pcie_gbytes_per_s
        / (MEMORY_COST * (1 + (sharing[a] & gpus).bit_count()))
        for a in positions_of(gpus)
        if sharing[a] & gpus
    ]
    return min(shares, default=math.inf)


def _nvlink_rings(machine: Machine, members: tuple[int, ...]) -> int:
    links = nvlink_counts(machine, members)
    island = next(island for island in islands(machine) if island >> members[0] & 1)
    if island.bit_count() > MOST_GPUS:
        return int(best_bottleneck(links))
    return disjoint_rings(links)


def nvlink_counts(machine: Machine, members: tuple[int, ...]) -> Counts:
    """Return the direct NVLinks between the GPUs at these positions, as a symmetric matrix."""
    return tuple(
        tuple(0 if a == b else direct_nvlinks(machine, a, b) for b in members) for a in members
    )


def ring_class(machine: Machine, gpus: int) -> LinkClass:
    """Return the closest class that some ring through all of the set keeps to, hop by hop.

    For two GPUs that is the kind of their link; NVLINK for a lone GPU and the empty set.
    """
    members = positions_of(gpus)
    if len(members) < 2:
        return LinkClass.NVLINK
    kinds = [[0 if a == b else int(machine.link(a, b).kind) for b in members] for a in members]
    return LinkClass(int(best_bottleneck(kinds)))
