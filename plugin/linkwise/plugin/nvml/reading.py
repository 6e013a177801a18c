"""One full reading: what the driver says about each GPU, and about each pair of GPUs.

If the driver fails to repeat an answer, the last one stays, so that a dying GPU does not take its
node's labels with it. The plugin never guesses an answer that the driver never gave.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from linkwise.plugin.gpus import sysfs
from linkwise.plugin.nvml.fabric import Fabric, read_fabric
from linkwise.plugin.nvml.library import Handle, Nvml, not_supported, sysfs_bus_id
from linkwise.plugin.nvml.mig import read_parts
from linkwise.plugin.nvml.nvlinks import NvLinks, read_nvlinks
from linkwise.plugin.nvml.questions import Questions
from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import USUAL_PCIE_LANES, Gpu

BUS_ID, MINOR = "nvmlDeviceGetPciInfo", "nvmlDeviceGetMinorNumber"
_NEEDED = ("nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo")  # without them labels would be wrong
Known = Mapping[str, Mapping[str, Any]]
"""The answers of earlier readings: by uuid, then by call."""


class LeftOutError(Exception):
    """A GPU that cannot be offered, because a needed fact about it is unknown."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the driver said about one GPU. `trouble` names what failed; it is empty if nothing did.
    `answers` are the known facts from now on."""

    gpu: Gpu
    handle: Handle
    minor: int | None
    nvlinks: NvLinks
    fabric: Fabric
    trouble: str
    answers: Mapping[str, Any]


def read_gpu(nvml: Nvml, index: int, known: Known, *, sys_root: Path) -> GpuReading:
    """Raises LeftOutError."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError as error:
        raise LeftOutError(f"{error}: no handle or no uuid") from error
    asks = Questions(known.get(uuid))
    told = asks.ask(BUS_ID, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    bus_id = sysfs_bus_id(told) if told else None
    memory = asks.ask(
        "nvmlDeviceGetMemoryInfo", lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    )
    model = asks.ask("nvmlDeviceGetName", lambda: nvml.nvmlDeviceGetName(handle))
    if why := asks.unknown(*_NEEDED):
        raise LeftOutError(why)
    lanes, most_lanes = _pcie_lanes(nvml, asks, handle)
    try:
        gpu = Gpu(
            uuid=uuid,
            index=index,
            model=model or "GPU",
            memory_mib=(memory or 0) >> 20,
            pci_bus_id=bus_id,
            numa_nodes=_numa_nodes(nvml, asks, handle, bus_id, sys_root),
            compute_capability=asks.ask(
                "nvmlDeviceGetCudaComputeCapability",
                lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle),
            ),
            parts=read_parts(nvml, asks, handle, memory or 0),
            pcie_lanes=lanes,
            most_pcie_lanes=most_lanes,
        )
    except MachineError as error:  # its text begins with the GPU
        raise LeftOutError(str(error).removeprefix(f"GPU {index}: ")) from error
    return GpuReading(
        gpu=gpu,
        handle=handle,
        minor=asks.ask(MINOR, lambda: nvml.nvmlDeviceGetMinorNumber(handle)),
        nvlinks=read_nvlinks(nvml, asks, handle),
        fabric=_fabric(nvml, asks, handle),
        trouble=asks.trouble,
        answers=asks.answers,
    )


def _numa_nodes(
    nvml: Nvml, asks: Questions, handle: Handle, bus_id: str | None, sys_root: Path
) -> tuple[int, ...]:
    """The NUMA nodes; Linux's answer comes first. nvmlDeviceGetNumaNodeId would be wrong: it names
    the node of a GPU's *own* memory, which only coherent machines such as Grace Hopper have."""
    node = sysfs.numa_node(bus_id, sysfs=sys_root) if bus_id else None
    if node is not None:
        asks.keep("numa_node", (node,))
        return (node,)
    if asks.known("numa_node") is not None:  # a GPU that fell off the bus is gone from /sys
        return tuple(asks.known("numa_node"))
    words = asks.ask(
        "nvmlDeviceGetMemoryAffinity",
        lambda: list(nvml.nvmlDeviceGetMemoryAffinity(handle, 2, pynvml.NVML_AFFINITY_SCOPE_NODE)),
    )
    mask = sum(int(word) << 64 * place for place, word in enumerate(words or ()))
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def _pcie_lanes(nvml: Nvml, asks: Questions, handle: Handle) -> tuple[int, int]:
    """How many are up, and how many the GPU and its slot both have. The generation is not asked
    for: an idle GPU lowers it."""
    up = asks.ask_aside(
        "nvmlDeviceGetCurrPcieLinkWidth", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)
    )
    most = asks.ask_aside(
        "nvmlDeviceGetMaxPcieLinkWidth", lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    )
    if not up or up > USUAL_PCIE_LANES:  # 0: a virtual GPU
        return USUAL_PCIE_LANES, USUAL_PCIE_LANES
    return up, min(max(up, most or up), USUAL_PCIE_LANES)


def _fabric(nvml: Nvml, asks: Questions, handle: Handle) -> Fabric:
    """While the fabric has not reported, the GPU stays in the clique of its last reading."""
    fabric = asks.ask("nvmlDeviceGetGpuFabricInfoV", lambda: read_fabric(nvml, handle))
    if fabric is None:
        return Fabric(settled=False)
    if not fabric.settled:
        clique = asks.known("clique")
        asks.keep("clique", clique)
        return replace(fabric, clique=clique, settled=clique is not None)
    asks.keep("clique", fabric.clique)
    return fabric


T = TypeVar("T")
OfPairs = Mapping[frozenset[str], T]
"""By pairs of uuids."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """What the driver said about pairs of GPUs: NVML's topology level, and whether they have
    peer-to-peer access. It may not know either."""

    levels: OfPairs[int] = field(default_factory=dict)
    peers: OfPairs[bool] = field(default_factory=dict)


# Reading and writing, as nvml.h numbers them in nvmlGpuP2PCapsIndex_t: pynvml's constant for
# reading is a tuple, which the library does not take.
_ACCESSES = (0, 1)


def read_pairs(
    nvml: Nvml, known: Pairs, found: Sequence[GpuReading], dead: frozenset[str]
) -> tuple[Pairs, tuple[str, ...]]:
    """What the driver says of each pair of GPUs, or once said; and a warning, except about pairs
    with a GPU in trouble or in *dead*."""
    levels, far = _ask_of_pairs(
        "nvmlDeviceGetTopologyCommonAncestor",
        nvml.nvmlDeviceGetTopologyCommonAncestor,
        known.levels,
        found,
        dead,
    )
    peers, apart = _ask_of_pairs(
        "nvmlDeviceGetP2PStatus", partial(_peer_to_peer, nvml), known.peers, found, dead
    )
    return Pairs(levels, peers), far or apart  # a GPU that does not answer gives no answer to both


def _peer_to_peer(nvml: Nvml, first: Handle, second: Handle) -> bool | None:
    """None if the driver does not know. As for NCCL, both ways count: reading and writing."""
    statuses = {nvml.nvmlDeviceGetP2PStatus(first, second, access) for access in _ACCESSES}
    if pynvml.NVML_P2P_STATUS_UNKNOWN in statuses:
        return None
    return statuses == {pynvml.NVML_P2P_STATUS_OK}


def _ask_of_pairs(
    call: str,
    ask: Callable[[Handle, Handle], T | None],
    known: OfPairs[T],
    found: Sequence[GpuReading],
    dead: frozenset[str],
) -> tuple[OfPairs[T], tuple[str, ...]]:
    answers: dict[frozenset[str], T] = {}
    failed: list[str] = []
    for first, second in combinations(found, 2):
        pair = frozenset((first.gpu.uuid, second.gpu.uuid))
        if pair & dead and pair in known:
            answers[pair] = known[pair]
            continue
        try:
            answer = ask(first.handle, second.handle)
        except pynvml.NVMLError as error:
            if not_supported(error):
                continue
            if pair in known:
                answers[pair] = known[pair]
            if not (first.trouble or second.trouble or pair & dead):
                failed.append(f"{first.gpu.index}-{second.gpu.index}: {error}")
        else:
            if answer is not None:
                answers[pair] = answer
    if not failed:
        return answers, ()
    more = f" (and {len(failed) - 1} more pairs)" if len(failed) > 1 else ""
    return answers, (f"{call} of GPUs {failed[0]}{more}",)
