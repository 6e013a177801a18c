"""libnvidia-ml as pynvml loads it: C functions with the parameters that nvml.h gives them, answered
by a driver that plays.

So pynvml's own code runs: what it passes, and how it reads the answers. A parameter of the wrong
type raises ctypes.ArgumentError, as with the real library.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_uint, c_ulonglong, c_void_p, cast
from types import SimpleNamespace
from typing import Any

import pynvml

from tests.plugin.fake_nvml import FakeNvml

DEVICE, EVENTS = pynvml.c_nvmlDevice_t, pynvml.c_nvmlEventSet_t
UINT, INT, ULONG = POINTER(c_uint), POINTER(c_int), POINTER(c_ulonglong)
_MIG = 100  # addresses of a GPU's MIG devices follow that of the GPU, times this
Answer = Callable[..., None]


class CLibrary:
    """In the place of what ctypes loads. Handles are addresses, which nothing reads."""

    def __init__(self, played: FakeNvml, *, lacks: str = "") -> None:
        self.played, self._lacks = played, lacks
        self.defects: list[BaseException] = []  # in these functions; ctypes would swallow them

    def __getattr__(self, name: str) -> Any:
        if name not in _FUNCTIONS or name == self._lacks:
            raise AttributeError(name)
        parameters, answer = _FUNCTIONS[name]

        def answered(*given: Any) -> int:
            try:
                answer(self.played, *given)
            except pynvml.NVMLError as error:
                return int(error.value)
            except BaseException as defect:
                self.defects.append(defect)
                return int(pynvml.NVML_ERROR_UNKNOWN)
            return int(pynvml.NVML_SUCCESS)

        return ctypes.CFUNCTYPE(c_uint, *parameters)(answered)


def _handle(device: Any) -> Any:
    """The played driver's: a position, or a GPU's and its MIG device's."""
    gpu, mig = divmod(cast(device, c_void_p).value or 0, _MIG)
    return (gpu - 1, mig - 1) if mig else gpu - 1


def _put_handle(device: Any, handle: int | tuple[int, int]) -> None:
    gpu, mig = handle if isinstance(handle, tuple) else (handle, -1)
    device[0] = cast((gpu + 1) * _MIG + mig + 1, DEVICE)


def _put_text(buffer: int, size: int, text: str) -> None:
    said = text.encode() + b"\0"
    assert len(said) <= size
    ctypes.memmove(buffer, said, len(said))


def _put(told: Any, answer: SimpleNamespace) -> None:
    for name, value in vars(answer).items():
        setattr(told[0], name, value)


def _version(played: FakeNvml, buffer: int, size: int) -> None:
    _put_text(buffer, size, played.nvmlSystemGetDriverVersion())


def _uuid(played: FakeNvml, device: Any, buffer: int, size: int) -> None:
    _put_text(buffer, size, played.nvmlDeviceGetUUID(_handle(device)))


def _name(played: FakeNvml, device: Any, buffer: int, size: int) -> None:
    _put_text(buffer, size, played.nvmlDeviceGetName(_handle(device)))


def _by_uuid(played: FakeNvml, uuid: bytes, told: Any) -> None:
    _put_handle(told, played.nvmlDeviceGetHandleByUUID(uuid.decode()))


def _mig_device(played: FakeNvml, device: Any, index: int, told: Any) -> None:
    _put_handle(told, played.nvmlDeviceGetMigDeviceHandleByIndex(_handle(device), index))


def _number(call: str) -> Answer:
    """A function of handles and numbers that writes one number to its last parameter."""

    def answer(played: FakeNvml, *given: Any) -> None:
        *asked, told = given
        told[0] = getattr(played, call)(
            *(each if isinstance(each, int) else _handle(each) for each in asked)
        )

    return answer


def _numbers(call: str) -> Answer:
    """One of a device that writes two."""

    def answer(played: FakeNvml, device: Any, first: Any, second: Any) -> None:
        first[0], second[0] = getattr(played, call)(_handle(device))

    return answer


def _structure(call: str) -> Answer:
    """One that fills a structure with what it says of a device, or of a link of it."""

    def answer(played: FakeNvml, device: Any, *given: Any) -> None:
        *link, told = given
        _put(told, getattr(played, call)(_handle(device), *link))

    return answer


def _versioned(call: str) -> Answer:
    """One that is given a structure with its version."""

    def answer(played: FakeNvml, device: Any, told: Any) -> None:
        getattr(played, call)(_handle(device), SimpleNamespace(_obj=told[0]))

    return answer


def _samples(played: FakeNvml, device: Any, told: int | None, count: Any, since: int) -> None:
    found = played.nvmlDeviceGetProcessUtilization(_handle(device), since)
    room, count[0] = count[0], len(found)
    if told is None or room < len(found):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    written = cast(told, POINTER(pynvml.c_nvmlProcessUtilizationSample_t))
    for place, sample in enumerate(found):
        for name, value in vars(sample).items():
            setattr(written[place], name, value)


def _affinity(played: FakeNvml, device: Any, size: int, told: int, scope: int) -> None:
    words = played.nvmlDeviceGetMemoryAffinity(_handle(device), size, scope)
    ctypes.memmove(told, (c_ulonglong * size)(*words), size * ctypes.sizeof(c_ulonglong))


def _fields(played: FakeNvml, device: Any, count: int, told: int) -> None:
    values = cast(told, POINTER(pynvml.c_nvmlFieldValue_t))
    asked = [(values[place].fieldId, values[place].scopeId) for place in range(count)]
    for place, said in enumerate(played.nvmlDeviceGetFieldValues(_handle(device), asked)):
        values[place].nvmlReturn, values[place].valueType = said.nvmlReturn, said.valueType
        values[place].value.ullVal = said.value.ullVal


def _new_events(played: FakeNvml, told: Any) -> None:
    played.nvmlEventSetCreate()
    told[0] = cast(1, EVENTS)


def _register(played: FakeNvml, device: Any, types: int, events: Any) -> None:
    played.nvmlDeviceRegisterEvents(_handle(device), types, bool(events))


def _wait(played: FakeNvml, events: Any, told: Any, milliseconds: int) -> None:
    found = played.nvmlEventSetWait_v2(bool(events), milliseconds)
    told[0].device = cast((found.device + 1) * _MIG, DEVICE)
    told[0].eventType, told[0].eventData = found.eventType, found.eventData


_FUNCTIONS: dict[str, tuple[tuple[Any, ...], Answer]] = {
    "nvmlInitWithFlags": ((c_uint,), lambda played, _: played.nvmlInit()),
    "nvmlShutdown": ((), lambda played: played.nvmlShutdown()),
    "nvmlSystemGetDriverVersion": ((c_void_p, c_uint), _version),
    "nvmlSystemGetCudaDriverVersion_v2": ((INT,), _number("nvmlSystemGetCudaDriverVersion_v2")),
    "nvmlDeviceGetCount_v2": ((UINT,), _number("nvmlDeviceGetCount")),
    "nvmlDeviceGetHandleByIndex_v2": (
        (c_uint, POINTER(DEVICE)),
        lambda played, index, told: _put_handle(told, played.nvmlDeviceGetHandleByIndex(index)),
    ),
    "nvmlDeviceGetHandleByUUID": ((c_char_p, POINTER(DEVICE)), _by_uuid),
    "nvmlDeviceGetUUID": ((DEVICE, c_void_p, c_uint), _uuid),
    "nvmlDeviceGetName": ((DEVICE, c_void_p, c_uint), _name),
    "nvmlDeviceGetMemoryInfo": (
        (DEVICE, POINTER(pynvml.c_nvmlMemory_t)),
        _structure("nvmlDeviceGetMemoryInfo"),
    ),
    "nvmlDeviceGetPciInfo_v3": (
        (DEVICE, POINTER(pynvml.nvmlPciInfo_t)),
        _structure("nvmlDeviceGetPciInfo"),
    ),
    "nvmlDeviceGetMinorNumber": ((DEVICE, UINT), _number("nvmlDeviceGetMinorNumber")),
    "nvmlDeviceGetCudaComputeCapability": (
        (DEVICE, INT, INT),
        _numbers("nvmlDeviceGetCudaComputeCapability"),
    ),
    "nvmlDeviceGetCurrPcieLinkWidth": (
        (DEVICE, UINT),
        _number("nvmlDeviceGetCurrPcieLinkWidth"),
    ),
    "nvmlDeviceGetMaxPcieLinkWidth": ((DEVICE, UINT), _number("nvmlDeviceGetMaxPcieLinkWidth")),
    "nvmlDeviceGetMigMode": ((DEVICE, UINT, UINT), _numbers("nvmlDeviceGetMigMode")),
    "nvmlDeviceGetMaxMigDeviceCount": ((DEVICE, UINT), _number("nvmlDeviceGetMaxMigDeviceCount")),
    "nvmlDeviceGetMigDeviceHandleByIndex": ((DEVICE, c_uint, POINTER(DEVICE)), _mig_device),
    "nvmlDeviceGetAttributes_v2": (
        (DEVICE, POINTER(pynvml.c_nvmlDeviceAttributes)),
        _structure("nvmlDeviceGetAttributes_v2"),
    ),
    "nvmlDeviceGetMemoryAffinity": ((DEVICE, c_uint, c_void_p, c_uint), _affinity),
    "nvmlDeviceGetTopologyCommonAncestor": (
        (DEVICE, DEVICE, UINT),
        _number("nvmlDeviceGetTopologyCommonAncestor"),
    ),
    "nvmlDeviceGetP2PStatus": ((DEVICE, DEVICE, c_uint, UINT), _number("nvmlDeviceGetP2PStatus")),
    "nvmlDeviceGetNvLinkState": ((DEVICE, c_uint, UINT), _number("nvmlDeviceGetNvLinkState")),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (
        (DEVICE, c_uint, UINT),
        _number("nvmlDeviceGetNvLinkRemoteDeviceType"),
    ),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": (
        (DEVICE, c_uint, POINTER(pynvml.nvmlPciInfo_t)),
        _structure("nvmlDeviceGetNvLinkRemotePciInfo"),
    ),
    "nvmlDeviceGetGpuFabricInfoV": (
        (DEVICE, POINTER(pynvml.c_nvmlGpuFabricInfo_v2_t)),
        _versioned("nvmlDeviceGetGpuFabricInfoV"),
    ),
    "nvmlDeviceGetFieldValues": ((DEVICE, c_int, c_void_p), _fields),
    "nvmlDeviceGetSramEccErrorStatus": (
        (DEVICE, POINTER(pynvml.c_nvmlEccSramErrorStatus_v1_t)),
        _versioned("nvmlDeviceGetSramEccErrorStatus"),
    ),
    "nvmlDeviceGetUtilizationRates": (
        (DEVICE, POINTER(pynvml.c_nvmlUtilization_t)),
        _structure("nvmlDeviceGetUtilizationRates"),
    ),
    "nvmlDeviceGetProcessUtilization": ((DEVICE, c_void_p, UINT, c_ulonglong), _samples),
    "nvmlEventSetCreate": ((POINTER(EVENTS),), _new_events),
    "nvmlDeviceGetSupportedEventTypes": (
        (DEVICE, ULONG),
        _number("nvmlDeviceGetSupportedEventTypes"),
    ),
    "nvmlDeviceRegisterEvents": ((DEVICE, c_ulonglong, EVENTS), _register),
    "nvmlEventSetWait_v2": ((EVENTS, POINTER(pynvml.c_nvmlEventData_t), c_uint), _wait),
    "nvmlEventSetFree": ((EVENTS,), lambda played, events: played.nvmlEventSetFree(bool(events))),
}
