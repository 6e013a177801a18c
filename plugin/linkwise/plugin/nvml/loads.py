"""What each GPU does now, as the driver says.

The driver counts the last second at most, and the plugin asks every few seconds. What a process did
in between is in the driver's samples of processes, where the card has them.

A failure here never counts against a GPU: nothing is known of what it does, and that is all.
"""

from collections.abc import Collection
from functools import partial

import pynvml

from linkwise.plugin.gpus.calls import NoAnswerError
from linkwise.plugin.gpus.inventory import Load
from linkwise.plugin.nvml.driver import Driver
from linkwise.plugin.nvml.library import Handle, Nvml

_SECONDS = 1.0  # how long to wait for one GPU
_AFTER_HANG_SECONDS = 0.1  # once one has not answered in time; otherwise health would wait too


class Loads:
    def __init__(self, nvml: Nvml, driver: Driver) -> None:
        self._nvml, self._driver = nvml, driver
        self._sampled: dict[
            str, int
        ] = {}  # uuid -> time of the latest sample, as the driver has it

    def read(self, uuids: Collection[str]) -> dict[str, Load]:
        """By uuid. A GPU is missing if the driver does not say, or not in time."""
        found: dict[str, Load] = {}
        patience = min(_SECONDS, self._driver.seconds)
        for uuid in sorted(uuids):
            ask = partial(_ask, self._nvml, uuid, self._sampled.get(uuid, 0))
            try:
                found[uuid], self._sampled[uuid] = self._driver.run(
                    f"load of {uuid}", ask, seconds=patience
                )
            except NoAnswerError:
                patience = min(patience, _AFTER_HANG_SECONDS)
            except pynvml.NVMLError:
                continue
        return found


def _ask(nvml: Nvml, uuid: str, sampled: int) -> tuple[Load, int]:
    """The load, and the time of the latest sample of a process. Raises NVMLError if the driver does
    not say how busy the GPU is, as in MIG mode."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    busy = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    worked, sampled = _worked_since(nvml, handle, sampled)
    return Load(busy, worked or busy > 0, _memory_mib(nvml, handle)), sampled


def _worked_since(nvml: Nvml, handle: Handle, sampled: int) -> tuple[bool, int]:
    """Whether a process ran a kernel, or coded video, since the sample of that time."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, sampled)
    except pynvml.NVMLError:  # "not found": no process has done anything
        return False, sampled
    latest = max((int(each.timeStamp) for each in samples), default=sampled)
    worked = any(
        each.timeStamp > sampled and (each.smUtil or each.encUtil or each.decUtil)
        for each in samples
    )
    return worked, max(latest, sampled)


def _memory_mib(nvml: Nvml, handle: Handle) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20
    except pynvml.NVMLError:
        return None
