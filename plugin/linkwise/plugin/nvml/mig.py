"""The MIG devices of a GPU, as the driver counts them."""

import math
from collections.abc import Iterator

import pynvml

from linkwise.plugin.nvml.library import Handle, Nvml
from linkwise.plugin.nvml.questions import Questions
from linkwise.topology.machine.parts import MAX_PARTS, MigProfile, Part

_EIGHTHS = 8  # MIG cuts a GPU's memory into eighths
_GIB = 1 << 30


def read_parts(nvml: Nvml, asks: Questions, handle: Handle, memory: int) -> tuple[Part, ...] | None:
    """The MIG devices of a GPU with *memory* bytes; None if its MIG mode is off. No plugin is known
    to offer them."""
    mode = asks.ask("nvmlDeviceGetMigMode", lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = asks.ask(
        "nvmlDeviceGetMigDeviceHandleByIndex", lambda: tuple(_devices(nvml, handle, memory))
    )
    return found or ()


def _devices(nvml: Nvml, handle: Handle, memory: int) -> Iterator[Part]:
    """Places without a device are NOT_FOUND (nvml.h, nvmlDeviceGetMigDeviceHandleByIndex)."""
    for index in range(min(nvml.nvmlDeviceGetMaxMigDeviceCount(handle), MAX_PARTS)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                continue
            raise
        answer = nvml.nvmlDeviceGetAttributes_v2(device)
        slices, compute = answer.gpuInstanceSliceCount, answer.computeInstanceSliceCount
        gib = profile_gib(answer.memorySizeMB, memory)
        name = f"{slices}g.{gib}gb" if compute == slices else f"{compute}c.{slices}g.{gib}gb"
        profile = MigProfile(name, slices, answer.memorySizeMB)
        yield Part(nvml.nvmlDeviceGetUUID(device), mig=profile)


def profile_gib(mib: int, gpu_memory: int) -> int:
    """The memory in a profile's name, of a device with *mib* on a GPU with *gpu_memory* bytes: as
    many eighths as it takes, of the GPU's GiB rounded up (NVIDIA/go-nvlib, `mig_profile.go`)."""
    if not gpu_memory:
        return 0
    eighths = math.ceil((mib << 20) / gpu_memory * _EIGHTHS)
    return math.floor(eighths / _EIGHTHS * math.ceil(gpu_memory / _GIB) + 0.5)
