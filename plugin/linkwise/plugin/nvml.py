"""GPUs as NVIDIA's driver tells them: the only module that imports pynvml.

NVML answers "not supported" to half of its questions, a different half on every card, so each
optional question has a stated fallback; a failure that costs something names the call and the GPU.
One GPU that does not answer is left out (at start) or unhealthy (later); the others go on.
"""

# ruff: noqa: N802 - the library gives its functions their names

import ctypes
import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

import pynvml

from linkwise.plugin import sysfs
from linkwise.plugin.errors import InventoryError
from linkwise.plugin.inventory import Snapshot
from linkwise.plugin.wiring import ActiveLink, End, RawGpu, clique_of, link_all
from linkwise.topology.errors import MachineError
from linkwise.topology.model import Gpu, LinkClass, Machine

log = logging.getLogger(__name__)
T = TypeVar("T")
Handle = Any  # a ctypes pointer that only NVML reads

_DISTANCES = (  # rising; a level in between counts as the next farther one
    (pynvml.NVML_TOPOLOGY_SINGLE, LinkClass.PIX),  # and "internal", two GPUs of one board
    (pynvml.NVML_TOPOLOGY_MULTIPLE, LinkClass.PXB),
    (pynvml.NVML_TOPOLOGY_HOSTBRIDGE, LinkClass.PHB),
    (pynvml.NVML_TOPOLOGY_NODE, LinkClass.NODE),
    (pynvml.NVML_TOPOLOGY_SYSTEM, LinkClass.SYS),
)
_ENDS = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: End.GPU,
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: End.SWITCH,
}


class Nvml(Protocol):
    """What we call of pynvml, in its own names; tests hand in a driver that answers badly."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlSystemGetCudaDriverVersion_v2(self) -> int: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle: ...
    def nvmlDeviceGetUUID(self, handle: Handle) -> str: ...
    def nvmlDeviceGetName(self, handle: Handle) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> Any: ...
    def nvmlDeviceGetPciInfo(self, handle: Handle) -> Any: ...
    def nvmlDeviceGetMinorNumber(self, handle: Handle) -> int: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Handle) -> tuple[int, int]: ...
    def nvmlDeviceGetMigMode(self, handle: Handle) -> list[int]: ...
    def nvmlDeviceGetMemoryAffinity(self, handle: Handle, size: int, scope: int) -> Any: ...
    def nvmlDeviceGetTopologyCommonAncestor(self, first: Handle, second: Handle) -> int: ...
    def nvmlDeviceGetNvLinkState(self, handle: Handle, link: int) -> int: ...
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Handle, link: int) -> int: ...
    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Handle, link: int) -> Any: ...
    def nvmlDeviceGetGpuFabricInfoV(self, handle: Handle, info: Any) -> int: ...


class NvmlInventory:
    """`read` and `probe` are called from one thread."""

    def __init__(self, nvml: Nvml | None = None, *, sys_root: Path = sysfs.SYSFS) -> None:
        self._nvml = nvml if nvml is not None else cast("Nvml", pynvml)
        self._sys_root = sys_root
        self._open = False

    def read(self) -> Snapshot:
        self._start()
        try:
            return self._read()
        except InventoryError:
            self.close()  # a driver that was reloaded answers only to a fresh start of its library
            raise

    def probe(self, machine: Machine) -> Mapping[str, str]:
        try:
            self._start()
        except InventoryError as error:
            return {gpu.uuid: str(error) for gpu in machine.gpus}
        problems: dict[str, str] = {}
        silent = 0
        for gpu in machine.gpus:
            try:
                problem = self._problem(gpu.uuid)
            except pynvml.NVMLError as error:
                problem = f"NVML: {error}"
                silent += 1
            if problem:
                problems[gpu.uuid] = problem
        if silent == len(machine.gpus):
            self.close()  # as in `read`; the next probe starts it anew
        return problems

    def _read(self) -> Snapshot:
        asked = _Questions()
        count = asked.required("nvmlDeviceGetCount", "the driver", self._nvml.nvmlDeviceGetCount)
        found = [gpu for index in range(count) if (gpu := self._read_gpu(asked, index))]
        if not found:
            told = "".join(f"; {warning}" for warning in asked.warnings)
            raise InventoryError(f"the driver names no usable GPU ({count} counted){told}")
        links, bent = link_all([raw for _, raw, _ in found], self._distances(asked, found))
        clique, torn = clique_of([raw.fabric for _, raw, _ in found])
        try:
            machine = Machine(
                gpus=tuple(gpu for gpu, _, _ in found),
                links=links,
                nics=sysfs.nics([raw.bus_id for _, raw, _ in found], sysfs=self._sys_root),
                clique=clique,
                driver_version=asked.optional(
                    "nvmlSystemGetDriverVersion", "", self._nvml.nvmlSystemGetDriverVersion
                ),
                cuda_version=self._cuda_version(asked),
            )
        except MachineError as error:
            raise InventoryError(f"what the driver says makes no machine: {error}") from error
        return Snapshot(
            machine=machine,
            minors={gpu.uuid: self._minor(asked, gpu, handle) for gpu, _, handle in found},
            problems=self.probe(machine),
            warnings=(*asked.warnings, *bent, *torn),
        )

    def close(self) -> None:
        if self._open:
            self._open = False
            try:
                self._nvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                log.warning("nvmlShutdown: %s", error)

    def _start(self) -> None:
        """Raises InventoryError where the driver is not there, or in trouble; it may come later."""
        if self._open:
            return
        try:
            self._nvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise InventoryError(f"nvmlInit: {error}") from error
        self._open = True

    def _read_gpu(self, asked: "_Questions", index: int) -> tuple[Gpu, RawGpu, Handle] | None:
        nvml, name = self._nvml, f"GPU {index}"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError as error:
            asked.warnings.append(f"{name}: {error}: no handle or no uuid; left out")
            return None
        bus_id = self._bus_id(asked, name, handle)
        numa = self._numa_nodes(asked, name, handle, bus_id)
        memory = asked.optional(
            "nvmlDeviceGetMemoryInfo", name, lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        )
        try:
            gpu = Gpu(
                uuid=uuid,
                index=index,
                model=asked.optional(
                    "nvmlDeviceGetName", name, lambda: nvml.nvmlDeviceGetName(handle)
                )
                or "GPU",
                memory_mib=(memory or 0) >> 20,
                pci_bus_id=bus_id,
                numa_nodes=numa,
                compute_capability=asked.optional(
                    "nvmlDeviceGetCudaComputeCapability",
                    name,
                    lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle),
                ),
            )
        except MachineError as error:
            asked.warnings.append(f"{error}; left out")
            return None
        links = self._nvlinks(asked, name, handle)
        return gpu, RawGpu(index, bus_id, numa, links, self._clique(handle)), handle

    def _bus_id(self, asked: "_Questions", name: str, handle: Handle) -> str | None:
        told = asked.optional(
            "nvmlDeviceGetPciInfo", name, lambda: self._nvml.nvmlDeviceGetPciInfo(handle).busId
        )
        return sysfs_bus_id(told) if told else None

    def _numa_nodes(
        self, asked: "_Questions", name: str, handle: Handle, bus_id: str | None
    ) -> tuple[int, ...]:
        """Linux first. Not nvmlDeviceGetNumaNodeId: that is the node of a GPU's *own* memory,
        which only coherent machines such as Grace Hopper have."""
        node = sysfs.numa_node(bus_id, sysfs=self._sys_root) if bus_id else None
        if node is not None:
            return (node,)
        words = asked.optional(
            "nvmlDeviceGetMemoryAffinity",
            name,
            lambda: self._nvml.nvmlDeviceGetMemoryAffinity(
                handle, 2, pynvml.NVML_AFFINITY_SCOPE_NODE
            ),
        )
        mask = sum(int(word) << 64 * place for place, word in enumerate(words or ()))
        return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)

    def _minor(self, asked: "_Questions", gpu: Gpu, handle: Handle) -> int:
        minor = asked.optional(
            "nvmlDeviceGetMinorNumber",
            f"GPU {gpu.index}",
            lambda: self._nvml.nvmlDeviceGetMinorNumber(handle),
        )
        return gpu.index if minor is None else minor

    def _cuda_version(self, asked: "_Questions") -> str | None:
        number = asked.optional(  # 12040 is 12.4
            "nvmlSystemGetCudaDriverVersion_v2", "", self._nvml.nvmlSystemGetCudaDriverVersion_v2
        )
        return f"{number // 1000}.{number % 1000 // 10}" if number else None

    def _nvlinks(self, asked: "_Questions", name: str, handle: Handle) -> tuple[ActiveLink, ...]:
        nvml, links = self._nvml, []
        for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                if nvml.nvmlDeviceGetNvLinkState(handle, number) != pynvml.NVML_FEATURE_ENABLED:
                    continue
            except pynvml.NVMLError as error:
                if error.value in (
                    pynvml.NVML_ERROR_NOT_SUPPORTED,
                    pynvml.NVML_ERROR_INVALID_ARGUMENT,  # beyond what this chip has
                ):
                    continue
                asked.warnings.append(f"{name}: nvmlDeviceGetNvLinkState({number}): {error}")
                continue
            links.append(self._other_end(asked, name, handle, number))
        return tuple(links)

    def _other_end(self, asked: "_Questions", name: str, handle: Handle, number: int) -> ActiveLink:
        kind = asked.optional(
            "nvmlDeviceGetNvLinkRemoteDeviceType",
            f"{name}, NVLink {number}",
            lambda: self._nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number),
        )
        end = _ENDS.get(kind, End.OTHER) if kind is not None else End.OTHER
        if end is End.SWITCH:
            return ActiveLink(number, end)
        told = asked.optional(
            "nvmlDeviceGetNvLinkRemotePciInfo",
            f"{name}, NVLink {number}",
            lambda: self._nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId,
        )
        return ActiveLink(number, end, sysfs_bus_id(told) if told else None)

    def _distances(
        self, asked: "_Questions", found: list[tuple[Gpu, RawGpu, Handle]]
    ) -> dict[tuple[int, int], LinkClass]:
        distances: dict[tuple[int, int], LinkClass] = {}
        for (i, first), (j, second) in combinations(enumerate(found), 2):
            level = asked.optional(
                "nvmlDeviceGetTopologyCommonAncestor",
                f"GPUs {first[0].index} and {second[0].index}",
                partial(self._nvml.nvmlDeviceGetTopologyCommonAncestor, first[2], second[2]),
            )
            if level is not None:
                distances[i, j] = next(
                    (link for limit, link in _DISTANCES if level <= limit), LinkClass.SYS
                )
        return distances

    def _fabric(self, handle: Handle) -> Any:
        """NVML's fabric info, in the form of drivers since 535; None where there is none."""
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        try:
            self._nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        except pynvml.NVMLError:
            return None
        return info

    def _clique(self, handle: Handle) -> str | None:
        """`<ClusterUUID>.<CliqueID>`; None unless the fabric is up and spans several nodes."""
        info = self._fabric(handle)
        if info is None or info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
            return None
        if info.status != pynvml.NVML_SUCCESS or not any(info.clusterUuid):
            return None
        return f"{UUID(bytes=bytes(info.clusterUuid))}.{info.cliqueId}"

    def _problem(self, uuid: str) -> str:
        """Why this GPU must not be given out; empty when it is well."""
        handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:  # memory shared with the CPU
                raise
        try:
            if self._nvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
                return "MIG mode is on: only whole GPUs are given out"
        except pynvml.NVMLError as error:
            if error.value not in (
                pynvml.NVML_ERROR_NOT_SUPPORTED,
                pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            ):
                raise
        return self._fabric_problem(handle)

    def _fabric_problem(self, handle: Handle) -> str:
        """A GPU behind NVSwitches whose fabric is not up fails every CUDA program."""
        info = self._fabric(handle)
        if info is None or info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            return ""
        if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
            return f"NVLink fabric in state {info.state}: expected 3 (completed)"
        if info.status != pynvml.NVML_SUCCESS:
            return f"NVLink fabric completed with NVML error {info.status}"
        return ""


class _Questions:
    """Asks, and keeps what should have been answered and was not."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def required(self, call: str, whom: str, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except pynvml.NVMLError as error:
            raise InventoryError(f"{call}, {whom}: {error}") from error

    def optional(self, call: str, whom: str, ask: Callable[[], T]) -> T | None:
        """None where NVML has no answer; "not supported" is an answer, and told to nobody."""
        try:
            return ask()
        except pynvml.NVMLError as error:
            if error.value not in (
                pynvml.NVML_ERROR_NOT_SUPPORTED,
                pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            ):
                self.warnings.append(f"{whom or 'the driver'}: {call}: {error}")
            return None


def sysfs_bus_id(told: bytes | str) -> str:
    """NVML's 00000000:1A:00.0 as Linux writes it, 0000:1a:00.0; larger domains stay as they are."""
    text = told.decode(errors="replace") if isinstance(told, bytes) else told
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"
