"""The NVLink fabric behind NVSwitches: the clique of a GPU, and what is wrong with its part.

States and the health mask are those of NVIDIA's nvml.h ("Fabric definitions" of the NVML API
reference). DCGM fails a GPU for each of the conditions in the mask (DCGM 4.6,
`DcgmHealthWatch::MonitorFabricFields`).
"""

import ctypes
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pynvml

from linkwise.plugin.gpus.inventory import Finding
from linkwise.plugin.nvml.library import Handle, Nvml, not_supported

# Kinds of incorrect configuration; 0 (not supported) and 1 (none) are no fault.
_CONFIGURED = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE
_MISCONFIGURED = (
    *("", "", "system GUID", "chassis serial number", "no partition", "too few NVLinks"),
    *("incompatible GPU firmware", "invalid location", "GPU state invalid"),
)
_FLAGS = (  # the values of each: 1 yes, 2 no, 0 unknown to the driver
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
        "fabric-bandwidth",
        "bandwidth degraded",
    ),
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
        "fabric-route",
        "route recovery in progress",
    ),
    (pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, "fabric-route", "route unhealthy"),
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
        "fabric-route",
        "access timeout recovery in progress",
    ),
)
_YES = 1


@dataclass(frozen=True, slots=True)
class Fabric:
    """`clique` is `<ClusterUUID>.<CliqueID>`, or None if the GPU is in none that spans nodes.

    `settled` is False while the fabric has not reported: the clique is then unknown, not none.
    """

    clique: str | None = None
    settled: bool = True
    findings: tuple[Finding, ...] = ()


def read_fabric(nvml: Nvml, handle: Handle) -> Fabric:
    """Raises NVMLError, but not if there is no fabric."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()  # drivers since 535
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    except pynvml.NVMLError as error:
        if not_supported(error):
            return Fabric()
        raise
    return fabric_of(info)


def fabric_of(info: Any) -> Fabric:
    """The value of *info*. A GPU behind NVSwitches whose fabric is not up fails every CUDA
    program, so that is a finding."""
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return Fabric()
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        text = f"NVLink fabric in state {info.state}: expected 3 (completed)"
        return Fabric(settled=False, findings=(Finding("fabric-down", text),))
    if info.status != pynvml.NVML_SUCCESS:
        text = f"NVLink fabric completed with NVML error {info.status}"
        return Fabric(settled=False, findings=(Finding("fabric-down", text),))
    clique = None
    if any(info.clusterUuid):
        clique = f"{UUID(bytes=bytes(info.clusterUuid))}.{info.cliqueId}"
    return Fabric(clique, findings=health_findings(info.healthMask))


def health_findings(mask: int) -> tuple[Finding, ...]:
    """What the fabric's health mask says; nothing if the driver fills none in."""
    found = [
        Finding(condition, f"NVLink fabric: {what}")
        for shift, condition, what in _FLAGS
        if mask >> shift & pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW == _YES
    ]
    shift = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
    wrong = mask >> shift & pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION
    if wrong > _CONFIGURED:
        what = _MISCONFIGURED[wrong] if wrong < len(_MISCONFIGURED) else f"kind {wrong}"
        found.append(
            Finding("fabric-configuration", f"NVLink fabric: incorrect configuration: {what}")
        )
    return tuple(found)
