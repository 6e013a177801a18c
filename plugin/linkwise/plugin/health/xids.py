"""PURE. What the driver's XIDs mean for a GPU.

The catalogue is NVIDIA's ("Analyzing Xid Errors with the Xid Catalog", docs.nvidia.com/deploy/
xid-errors, read in November 2026), and its *immediate action* decides:

RESTART_APP, IGNORE            an application's error, or nothing to do: the GPU stays
RESET_GPU, RESTART_BM and _VM  only a reset, or more, brings it back
a workflow, a check            other symptoms decide: out, and back if probes stay clean
none                           codes that are not used, or newer than the catalogue: the same

If NVIDIA's device plugin (NVIDIA/k8s-device-plugin 1b826acc6, `internal/rm/health.go`) or DCGM
(4.6, `DcgmHealthWatch::BuildXidMappings`) judges otherwise, the row says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

RECOVERY_CHANGED = 154  # probes ask what it changed to
UNKNOWN = "not in NVIDIA's catalogue"


@dataclass(frozen=True, slots=True)
class Meaning:
    """`treatment` is a value of `conditions.Treatment`, `action` NVIDIA's word for what to do at
    once."""

    meaning: str
    treatment: str
    action: str


def _rows(treatment: str, action: str, meanings: Mapping[int, str]) -> dict[int, Meaning]:
    return {number: Meaning(text, treatment, action) for number, text in meanings.items()}


def _engines(name: str, *numbers: int) -> dict[int, str]:
    return dict.fromkeys(numbers, f"{name} error")


XIDS: Mapping[int, Meaning] = {
    # NVIDIA's device plugin takes a GPU out for all of these but 13, 31 and 68; DCGM warns at 31,
    # 32, 39, 60 and 94.
    **_rows(
        "ignore",
        "RESTART_APP",
        {
            8: "a channel timed out",
            11: "invalid commands from an application",
            13: "graphics engine exception",
            25: "invalid commands from an application",
            31: "memory page fault of an application",
            32: "invalid commands from an application",
            **_engines("copy engine", 39, 40, 41, 70, 71, 72, 75, 76, 77, 85),
            **_engines("copy engine", *range(126, 136)),
            **_engines("video engine", 60, 68, 83, 84, 88, 89, 96, 97, 98),
            69: "graphics engine class error",
            80: "corrupted data sent to the GPU",
            **_engines("JPEG engine", 82, *range(99, 106)),
            **_engines("optical flow engine", 86, 139),
            94: "memory error, contained to its application",
        },
    ),
    # NVIDIA's device plugin takes a GPU out for all of these but 43; DCGM warns at 38, 43, 63, 67,
    # 121 and 137.
    **_rows(
        "ignore",
        "IGNORE",
        {
            14: "not an error",
            37: "driver firmware error",
            38: "driver firmware error",
            43: "an application's channel was reset",
            44: "graphics engine fault during a context switch",
            63: "a row of memory, or a page, is set aside at the next reset",
            66: "illegal access by the driver",
            67: "illegal access by the driver",
            92: "many corrected memory errors",
            93: "InfoROM is worn",
            106: "test message",
            107: "test message",
            121: "corrected error of the link to the CPU",
            137: "NVLink access of an application without right",
            141: "CUDA fast path error",
            152: "DLA memory error",
            153: "DLA timeout",
            157: "a resource could not be set aside",
            160: "a memory channel is set aside at the next reset",
            161: "a memory channel could not be set aside",
        },
    ),
    **_rows("ignore", "XID_154", {RECOVERY_CHANGED: "what the GPU needs to recover has changed"}),
    **_rows("ignore", "WORKFLOW_XID_45", {45: "channels removed after an earlier error"}),
    **_rows("ignore", "UPDATE_SWFW", {78: "a vGPU could not be started"}),
    **_rows("ignore", "CONTACT_SUPPORT", {142: "video engine error"}),
    **_rows(
        "ignore",
        "",  # the catalogue names none: they report the state of power smoothing
        {
            162: "power smoothing is on again",
            163: "power smoothing is off",
            164: "power smoothing is worn",
            165: "power smoothing is worn out",
        },
    ),
    # DCGM fails a GPU for 64, 95, 119, 120 and 140, and warns at 62.
    **_rows(
        "reset",
        "RESET_GPU",
        {
            46: "the GPU stopped processing",
            62: "a microcontroller of the GPU halted",
            64: "a row of memory, or a page, could not be set aside",
            95: "memory error, not contained",
            110: "security fault",
            119: "the GPU's system processor does not answer",
            120: "error of the GPU's system processor",
            136: "an NVLink could not be trained",
            140: "unrecovered memory error",
            143: "the GPU could not be initialised",
            155: "NVLink error",
            156: "a resource is set aside at the next reset",
            158: "fatal timeout",
        },
    ),
    **_rows("reset", "RESTART_BM", {79: "the GPU has fallen off the bus"}),  # DCGM fails it
    **_rows("reset", "RESTART_VM", {151: "key rotation error"}),
    # All three judge otherwise: NVIDIA's device plugin ignores it, as loaded GPUs have it too.
    **_rows("unhealthy", "RESET_GPU", {109: "context switch timeout"}),
    # DCGM fails a GPU for 48 and 74, and warns at 54.
    **_rows("unhealthy", "WORKFLOW_XID_48", {48: "uncorrectable memory error"}),
    **_rows("unhealthy", "WORKFLOW_NVLINK_ERR", {74: "NVLink error"}),
    **_rows("unhealthy", "CHECK_MECHANICALS", {54: "power cable not connected"}),
    **_rows("unhealthy", "CHECK_UVM", {159: "error on the link to the CPU"}),
    **_rows(
        "unhealthy",
        "WORKFLOW_NVLINK5_ERR",
        dict.fromkeys(range(144, 151), "NVLink error"),
    ),
}
