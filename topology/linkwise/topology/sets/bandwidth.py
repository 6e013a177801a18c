"""The value of a GPU set: its estimated all-reduce bus bandwidth, in GB/s.

nccl-tests prints this number as *busbw*, so a user can check it. It is the bandwidth of the best
ring, or rings, through the set:
- two or more GPUs: the slowest hop of the best ring through them. A hop is worth its NVLinks or its
  PCIe path, whichever is faster. With NVSwitch each GPU reaches every other at full speed.
- where NCCL uses no peer-to-peer access, what GPUs send over PCIe goes through the host's memory:
  through a CPU by default (`P2P_LEVEL`), and wherever they have none. Then all GPUs below one PCIe
  switch share its way up.
- three or more joined by NVLinks without a switch: each ring that uses NVLinks of its own counts
  twice, once each way round (`rings.disjoint_rings`). Where the vendor's library runs rings that
  use a link in one direction only, these are counted (`rings.one_way_rings`).
- two GPUs without a link of their own that reach each other over those of others: one link.
- two or more on NVSwitches that reduce (NVLink SHARP): what these reach, if it is more.
- a lone GPU uses no link.

This is the definition, for one set; `tables.py` computes it for all sets of a machine.
Sources: docs/topology.md.
"""

import math
from itertools import combinations

from linkwise.topology.machine.hardware import (
    facts_of_gpu,
    is_a100_card,
    slot_gbytes_per_s,
)
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from linkwise.topology.sets.rings import (
    MOST_GPUS,
    Counts,
    best_bottleneck,
    disjoint_rings,
    one_way_rings,
)
from linkwise.topology.vendors.vendor import ModelFacts

LOCAL_GBYTES_PER_S = 5000.0
"""The value of a lone GPU: NCCL's "local", finite so that it fits into JSON."""

P2P_LEVEL = LinkClass.PXB
"""The farthest class at which NCCL uses peer-to-peer access if `NCCL_P2P_LEVEL` is not set: not
through a CPU (`ncclTopoCheckP2p` in NVIDIA/nccl `src/graph/paths.cc`, since 2.23). It makes an
exception for two GPUs on an AMD CPU, and no node tells its CPU."""

ROOT_COST = 1.2  # NCCL: peer to peer through an Intel root costs 6/5; no node tells its CPU
MEMORY_COST = ROOT_COST**2
"""Through the host's memory the data passes the root twice. A way between sockets costs another
6/5. This gives the 35 and 28 GB/s that NVIDIA/nccl#1639 has of 4 and 8 RTX 5090."""


def _pcie_gbytes_per_s(link: Link, first: Gpu, second: Gpu, p2p_level: LinkClass) -> float:
    slot = min(slot_gbytes_per_s(gpu) for gpu in (first, second))
    peers = link.peer_to_peer and link.pcie >= p2p_level
    if link.pcie >= LinkClass.PXB:
        # Both share the way up (NVIDIA/nccl#1309).
        return slot if peers else slot / MEMORY_COST / 2
    through_cpu = slot / (ROOT_COST if peers else MEMORY_COST)
    if link.pcie >= LinkClass.NODE:
        return through_cpu
    between_sockets = min(facts_of_gpu(gpu).inter_socket_gbytes_per_s for gpu in (first, second))
    return min(through_cpu if peers else through_cpu / ROOT_COST, between_sockets)


def pair_gbytes_per_s(
    machine: Machine, first: int, second: int, p2p_level: LinkClass = P2P_LEVEL
) -> float:
    """Return the GB/s between the GPUs at two different positions of `machine.gpus`; the slower
    model's if they differ."""
    link, ends = machine.link(first, second), (machine.gpus[first], machine.gpus[second])
    nvlink = (link.nvlinks or link.routed) * min(
        facts_of_gpu(gpu).nvlink_gbytes_per_s for gpu in ends
    )
    if _is_bridge(machine, first, second):
        nvlink *= BRIDGE_SHARE
    return max(nvlink, _pcie_gbytes_per_s(link, *ends, p2p_level))


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


_FEWEST_GAIN, _MOST_GAIN = 5, 8
"""GPUs from which the switches help, and up to which more of them gain more. NVIDIA says that up to
four do not benefit (NVL partition guide 1.0), and NVIDIA/nccl#1455 measured so. 8 B200 reach 830
GB/s (NVIDIA/nccl#1807), 72 GB200 840 (coreweave/nccl-tests#43)."""


def sharp_gain(facts: ModelFacts, count: int) -> float:
    """Return how much more busbw *count* GPUs on NVSwitches that reduce get than by a ring; 1 if
    NCCL takes the ring.

    Each GPU sends its data once into the switch and a share of 1/n once to all others; a ring sends
    2(n-1)/n. Where busbw is counted as for a ring, that is 2(n-1)/(n+1), times NCCL's efficiency.
    So does NCCL reckon: 2 x (n-1)/n x n channels, one for each GPU, of which n+1 fit into its
    NVLinks (NVIDIA/nccl `src/graph/tuning.cc`, `ncclTopoSearchTryNvls` in `src/graph/search.cc`).
    It compares this with the ring by its own GB/s for an NVLink, of which a ring may get less.
    """
    known = min(count, _MOST_GAIN)
    gain = facts.sharp_share * 2 * (known - 1) / (known + 1)
    if count < _FEWEST_GAIN or gain <= 1:
        return 1.0
    return gain * facts.nccl_nvlink_gbytes_per_s / facts.nvlink_gbytes_per_s


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


def bandwidth(machine: Machine, gpus: int, p2p_level: LinkClass = P2P_LEVEL) -> float:
    """Return the GB/s of a set (bitmask over `machine.gpus`), to 0.1 MB/s; 0 for the empty one.

    *p2p_level*, PXB or farther, is what `NCCL_P2P_LEVEL` says.

    Exact, with one exception: in an island of more than `MOST_GPUS` GPUs without a switch, which no
    vendor builds, only copies of one ring count. Slow: for one set, not for a search.
    """
    members = positions_of(gpus)
    if len(members) < 2:
        return LOCAL_GBYTES_PER_S if members else 0.0
    hops = [
        [0.0 if a == b else pair_gbytes_per_s(machine, a, b, p2p_level) for b in members]
        for a in members
    ]
    slowest_hop = min(best_bottleneck(hops), _into_memory(machine, gpus))
    if len(members) == 2:
        return round(slowest_hop, 4)
    if all(machine.link(a, b).through_switch for a, b in combinations(members, 2)):
        facts = [facts_of_gpu(machine.gpus[a]) for a in members]
        return round(slowest_hop * min(sharp_gain(each, len(members)) for each in facts), 4)
    per_link = min(facts_of_gpu(machine.gpus[a]).nvlink_gbytes_per_s for a in members)
    return round(max(slowest_hop, per_link * _nvlink_rings(machine, members)), 4)


def sharing_the_way_up(machine: Machine) -> tuple[int, ...]:
    """Return for each GPU the set of the others below its PCIe switches with which it talks through
    the host's memory."""
    found = [0] * len(machine.gpus)
    for first, second, link in machine.pairs():
        if link.pcie >= LinkClass.PXB and not link.peer_to_peer and link.kind < LinkClass.NVLINK:
            found[first] |= 1 << second
            found[second] |= 1 << first
    return tuple(found)


def _into_memory(machine: Machine, gpus: int) -> float:
    """Return the GB/s that the GPU with the smallest share of its way up can send to the host's
    memory; infinity if none shares it."""
    sharing = sharing_the_way_up(machine)
    shares = [
        slot_gbytes_per_s(machine.gpus[a]) / (MEMORY_COST * (1 + (sharing[a] & gpus).bit_count()))
        for a in positions_of(gpus)
        if sharing[a] & gpus
    ]
    return min(shares, default=math.inf)


def _nvlink_rings(machine: Machine, members: tuple[int, ...]) -> int:
    """Return the rings of NVLinks through three or more GPUs, each way round."""
    links = nvlink_counts(machine, members)
    island = next(island for island in islands(machine) if island >> members[0] & 1)
    if island.bit_count() > MOST_GPUS:
        return 2 * int(best_bottleneck(links))
    return rings_each_way(machine, members)


def rings_each_way(machine: Machine, members: tuple[int, ...]) -> int:
    """Return the most rings of direct NVLinks through these positions that share no link in one
    direction, as the vendor's library runs them."""
    links = nvlink_counts(machine, members)
    one_way = all(facts_of_gpu(machine.gpus[a]).one_way_rings for a in members)
    return one_way_rings(links) if one_way else 2 * disjoint_rings(links)


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
