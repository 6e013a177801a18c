"""A driver that plays a machine and answers badly on demand: pynvml's names and errors."""

# ruff: noqa: N802 - the library gives its functions their names

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from types import SimpleNamespace
from typing import Any

import pynvml

from linkwise.topology.machine.model import LinkClass, Machine

LEVELS: dict[LinkClass, int] = {
    LinkClass.PIX: pynvml.NVML_TOPOLOGY_SINGLE,
    LinkClass.PXB: pynvml.NVML_TOPOLOGY_MULTIPLE,
    LinkClass.PHB: pynvml.NVML_TOPOLOGY_HOSTBRIDGE,
    LinkClass.NODE: pynvml.NVML_TOPOLOGY_NODE,
    LinkClass.SYS: pynvml.NVML_TOPOLOGY_SYSTEM,
}
READING, WRITING = 0, 1  # nvmlGpuP2PCapsIndex_t of nvml.h
NO_SYSFS = Path("/nonexistent")
DRIVER_SECONDS = 1.0  # long for a driver that plays, also on a busy machine
DRIVER_HANGS = f"the driver does not answer within {DRIVER_SECONDS:g} s"
Fault = Callable[..., Any]
End = tuple[int, bytes]  # device type, bus id


@dataclass
class Fabric:
    state: int = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    cluster: bytes = bytes(range(16))
    clique: int = 7
    status: int = pynvml.NVML_SUCCESS
    health: int = 0


@dataclass
class FakeNvml:
    """`faults` maps a call's name to what is done in its place, with the call's arguments;
    `fail` puts an NVML error there, `hang` a call that returns when it is released. Handles are
    positions. `fields` are values by handle and field; `xids` are waited for, and taken."""

    machine: Machine
    fabric: dict[int, Fabric] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    fields: dict[tuple[int, int], int] = field(default_factory=dict)
    down: set[tuple[int, int]] = field(default_factory=set)  # GPU, NVLink
    xids: "SimpleQueue[tuple[int, int]]" = field(default_factory=SimpleQueue)  # GPU, number
    registered: set[int] = field(default_factory=set)
    released: Event = field(default_factory=Event)
    opened: int = 0  # as often as it was not closed again
    busy: dict[int, int] = field(default_factory=dict)  # GPU -> percent; else 0
    used_mib: dict[int, int] = field(default_factory=dict)
    # GPU -> samples of its processes: time, percent of the SMs, percent of the encoder
    samples: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    # GPU -> its MIG devices by place: uuid, GPU slices, compute slices, MiB; None: an empty place
    mig: dict[int, list[tuple[str, int, int, int] | None]] = field(default_factory=dict)

    def hang(self, call: str, *, gpu: object = None) -> None:
        """Let *call* return only once `released` is set, for one GPU or for all."""
        right = getattr(FakeNvml, call)

        def answer(*args: Any) -> Any:
            if gpu is None or (args and args[0] == gpu):
                self.released.wait()
            return right(self, *args)

        self.faults[call] = answer

    def fail(self, call: str, error: int, *, gpu: object = None) -> None:
        """Let *call* fail with this NVML error, for one GPU (as the call names it) or for all."""
        right = getattr(FakeNvml, call)

        def answer(*args: Any) -> Any:
            if gpu is None or (args and args[0] == gpu):
                raise pynvml.NVMLError(error)
            return right(self, *args)

        self.faults[call] = answer

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self.calls.append(name)
            if name in self.faults:
                return self.faults[name]
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12040

    def nvmlDeviceGetCount(self) -> int:
        return len(self.machine.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        found = [place for place, gpu in enumerate(self.machine.gpus) if gpu.uuid == uuid]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found[0]

    def nvmlDeviceGetUUID(self, handle: int | tuple[int, int]) -> str:
        if isinstance(handle, tuple):
            return self._mig_device(*handle)[0]
        return self.machine.gpus[handle].uuid

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.machine.gpus[handle].model

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        used = self.used_mib.get(handle, 0)
        return SimpleNamespace(total=self.machine.gpus[handle].memory_mib << 20, used=used << 20)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        if handle in self.mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=self.busy.get(handle, 0), memory=0)

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> list[SimpleNamespace]:
        later = [each for each in self.samples.get(handle, ()) if each[0] > since]
        if not later:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return [
            SimpleNamespace(pid=1, timeStamp=at, smUtil=sm, memUtil=0, encUtil=coded, decUtil=0)
            for at, sm, coded in later
        ]

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=nvml_bus_id(handle))

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return handle + 100

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.machine.gpus[handle].compute_capability or (0, 0)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return self.machine.gpus[handle].pcie_lanes

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return self.machine.gpus[handle].most_pcie_lanes

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if handle not in self.mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_ENABLE]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return len(self.mig.get(handle, ()))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> tuple[int, int]:
        self._mig_device(handle, index)
        return handle, index

    def _mig_device(self, handle: int, index: int) -> tuple[str, int, int, int]:
        found = self.mig[handle][index]
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def nvmlDeviceGetAttributes_v2(self, handle: tuple[int, int]) -> SimpleNamespace:
        _, slices, compute, mib = self._mig_device(*handle)
        return SimpleNamespace(
            gpuInstanceSliceCount=slices, computeInstanceSliceCount=compute, memorySizeMB=mib
        )

    def nvmlDeviceGetMemoryAffinity(self, handle: int, size: int, scope: int) -> list[int]:
        assert scope == pynvml.NVML_AFFINITY_SCOPE_NODE
        node = self.machine.gpus[handle].numa_node
        words = [0] * size
        if node is not None:
            words[node // 64] |= 1 << node % 64
        return words

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> int:
        return LEVELS[self.machine.link(first, second).pcie]

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, capability: int) -> int:
        assert capability in (READING, WRITING)
        if self.machine.link(first, second).peer_to_peer:
            return int(pynvml.NVML_P2P_STATUS_OK)
        return int(pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED)

    def ends(self, handle: int) -> list[End]:
        """The other end of each active link of one GPU: device type, bus id."""
        ends: list[End] = []
        switched = 0
        for other in range(len(self.machine.gpus)):
            if other != handle:
                link = self.machine.link(handle, other)
                if link.through_switch:
                    switched = max(switched, link.nvlinks)
                else:
                    end = (pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, nvml_bus_id(other))
                    ends += [end] * link.nvlinks
        switch = (pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, b"00000000:BB:00.0")
        return ends + [switch] * switched

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if not self.ends(handle):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if link >= 18:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link < len(self.ends(handle)) and (handle, link) not in self.down)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        kind, _ = self.ends(handle)[link]
        return kind

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=self.ends(handle)[link][1])

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, info: Any) -> int:
        if handle not in self.fabric:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        told, played = info._obj, self.fabric[handle]
        told.state, told.cliqueId, told.status = played.state, played.clique, played.status
        told.healthMask = played.health
        ctypes.memmove(told.clusterUuid, played.cluster, 16)
        return 0

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[Any]) -> list[SimpleNamespace]:
        asked = [each if isinstance(each, tuple) else (each, 0) for each in fields]
        return [
            SimpleNamespace(
                fieldId=number,
                nvmlReturn=pynvml.NVML_SUCCESS
                if (handle, number) in self.fields
                else pynvml.NVML_ERROR_NOT_SUPPORTED,
                valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
                value=SimpleNamespace(ullVal=self.fields.get((handle, number), 0)),
            )
            for number, _ in asked
        ]

    def nvmlDeviceGetSramEccErrorStatus(self, handle: int, status: Any) -> int:  # noqa: ARG002
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceGetSupportedEventTypes(self, handle: int) -> int:  # noqa: ARG002
        return int(pynvml.nvmlEventTypeXidCriticalError)

    def nvmlDeviceRegisterEvents(self, handle: int, types: int, events: object) -> None:
        assert types
        assert events
        self.registered.add(handle)

    def nvmlEventSetWait_v2(self, events: object, milliseconds: int) -> SimpleNamespace:
        assert events
        try:
            handle, number = self.xids.get(timeout=milliseconds / 1000 or 0.001)
        except Empty:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT) from None
        return SimpleNamespace(
            device=handle, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=number
        )

    def nvmlEventSetFree(self, events: object) -> None:
        assert events


def nvml_bus_id(position: int) -> bytes:
    return f"00000000:{0x1A + position:02X}:00.0".encode()
