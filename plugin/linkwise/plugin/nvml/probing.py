"""The state of one GPU now: a handful of calls, every few seconds.

`health.conditions` says how the plugin treats each finding, and which source judges so.
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pynvml

from linkwise.plugin.gpus.inventory import Finding
from linkwise.plugin.nvml.fabric import Fabric, read_fabric
from linkwise.plugin.nvml.library import Handle, Nvml, not_supported

T = TypeVar("T")

_REFUSALS = (
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_CORRUPTED_INFOROM,
    pynvml.NVML_ERROR_NO_DATA,
)
_UNCORRECTABLE = pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL
_PAGE_PENDING = pynvml.NVML_FI_DEV_RETIRED_PENDING  # up to Turing
_ROW_PENDING = pynvml.NVML_FI_DEV_REMAPPED_PENDING  # since Ampere
_ROW_FAILURE = pynvml.NVML_FI_DEV_REMAPPED_FAILURE
_ACTION = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION  # drivers since 570
_RECOVERIES = pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL  # up to Ampere
_RECOVERIES_OF_LINK = pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY  # since Hopper
_FIELDS = (_UNCORRECTABLE, _PAGE_PENDING, _ROW_PENDING, _ROW_FAILURE, _ACTION, _RECOVERIES)
_RISING = {
    _UNCORRECTABLE: Finding("ecc", "uncorrectable ECC errors"),
    _RECOVERIES: Finding("nvlink-errors", "NVLinks had to be recovered"),
    _RECOVERIES_OF_LINK: Finding("nvlink-errors", "NVLinks had to be recovered"),
}
_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain peer-to-peer traffic",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain and reset the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover the IMEX domain",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "reset the bus",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "reboot the system",
}


@dataclass(frozen=True, slots=True)
class GpuProbe:
    """The next probe compares its counters with `counters`. `recovery_told` is True if the driver
    is one that says what a GPU needs to recover."""

    findings: tuple[Finding, ...] = ()
    counters: Mapping[int, int] = field(default_factory=dict)
    recovery_told: bool = False


def probe_gpu(
    nvml: Nvml, uuid: str, before: Mapping[int, int], *, nvlinks: Collection[int]
) -> GpuProbe:
    """*before* are the counters of the last probe, *nvlinks* the numbers of the links to look at.

    Raises NVMLError if the GPU does not answer.
    """
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    found: list[Finding] = []
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if not not_supported(error):  # memory shared with the CPU
            raise
    if _told(lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0) == pynvml.NVML_DEVICE_MIG_ENABLE:
        found.append(Finding("mig", "MIG mode is on"))
    found += _told(lambda: read_fabric(nvml, handle), Fabric()).findings
    fields = _fields(nvml, handle, nvlinks)
    found += _memory(nvml, handle, fields)
    counters = {number: fields[number] for number in _RISING if number in fields}
    risen = (_RISING[number] for number, now in counters.items() if now > before.get(number, now))
    found += dict.fromkeys(risen)
    action = fields.get(_ACTION)
    if action:
        what = _ACTIONS.get(action, f"recovery action {action}")
        found.append(Finding("recovery-action", f"the driver says: {what}"))
    return GpuProbe(tuple(found), counters, recovery_told=action is not None)


def _told(ask: Callable[[], T], otherwise: T) -> T:
    """The answer; *otherwise* if the card has none, or the driver refuses to give it. Both concern
    the question, not the GPU, which does answer."""
    try:
        return ask()
    except pynvml.NVMLError as error:
        if not (not_supported(error) or error.value in _REFUSALS):
            raise
        return otherwise


def _memory(nvml: Nvml, handle: Handle, fields: Mapping[int, int]) -> list[Finding]:
    found: list[Finding] = []
    if fields.get(_ROW_FAILURE):
        found.append(Finding("row-remap-failure", "a row of its memory could not be remapped"))
    if fields.get(_ROW_PENDING) or fields.get(_PAGE_PENDING):
        found.append(
            Finding("memory-repair-pending", "its memory is repaired at the next reset of the GPU")
        )
    if _sram_exceeded(nvml, handle):
        found.append(Finding("sram-threshold", "too many uncorrectable errors in SRAM"))
    return found


def _sram_exceeded(nvml: Nvml, handle: Handle) -> bool:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    status.version = pynvml.nvmlEccSramErrorStatus_v1
    _told(lambda: nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status)), 0)
    return bool(status.bThresholdExceeded)


def _fields(nvml: Nvml, handle: Handle, nvlinks: Collection[int]) -> dict[int, int]:
    """The values that this card and driver have, read in one call; sums over the links."""
    asked = [*_FIELDS, *((_RECOVERIES_OF_LINK, link) for link in nvlinks)]
    nothing: Any = ()
    values: Counter[int] = Counter()
    for each in _told(lambda: nvml.nvmlDeviceGetFieldValues(handle, asked), nothing):
        if each.nvmlReturn == pynvml.NVML_SUCCESS:
            values[int(each.fieldId)] += _number(each)
    return dict(values)


def _number(told: Any) -> int:
    if told.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(told.value.uiVal)
    if told.valueType == pynvml.NVML_VALUE_TYPE_SIGNED_INT:
        return int(told.value.siVal)
    return int(told.value.ullVal)  # the long ones; all requested values are whole numbers
