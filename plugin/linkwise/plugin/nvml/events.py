"""XIDs: errors that the driver reports by itself, as they happen."""

import ctypes
import logging
import time
from collections.abc import Collection
from queue import SimpleQueue
from typing import Any

import pynvml

from linkwise.plugin.gpus.inventory import Xid
from linkwise.plugin.nvml.library import Handle, Nvml, not_supported

log = logging.getLogger(__name__)


class EventSet:
    """NVML's set of events, registered for each GPU. If it fails, a new set replaces it.

    A failure here never counts against a GPU. Only the driver's thread calls the methods, except
    `take`: it also returns what a wait brings that was left behind.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._uuids: dict[int, str] = {}  # by handle
        self._unable: set[str] = set()  # GPUs that report no XIDs, as the driver says
        self._trouble = ""
        self._heard: SimpleQueue[Xid] = SimpleQueue()

    def forget(self) -> None:
        """Drop everything: the library has been closed, or its answers are void."""
        self._set, self._uuids = None, {}
        self._unable.clear()

    def register(self, uuids: Collection[str]) -> bool:
        """Register these GPUs too. False if no GPU can report XIDs."""
        missing = set(uuids) - set(self._uuids.values()) - self._unable
        if missing and self._set is None:
            try:
                self._set = self._nvml.nvmlEventSetCreate()
            except pynvml.NVMLError as error:
                self._say(f"nvmlEventSetCreate: {error}")
                return False
        events, registered = self._set, self._uuids  # a call below may return after `forget`
        for uuid in sorted(missing):
            self._register(uuid, events, registered)
        return bool(self._uuids)

    def _register(self, uuid: str, events: Any, registered: dict[int, str]) -> None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            types = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if types & pynvml.nvmlEventTypeXidCriticalError:
                nvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
                registered[_address(handle)] = uuid
            else:
                self._unable.add(uuid)
        except pynvml.NVMLError as error:
            if not_supported(error):
                self._unable.add(uuid)
            # Probes report any other error, and the next call tries again.

    def silent(self, uuid: str) -> None:
        """This GPU does not answer: if it comes back, `register` must register it again."""
        for address, each in list(self._uuids.items()):
            if each == uuid:
                self._uuids.pop(address, None)

    def wait(self, milliseconds: int) -> None:
        """Wait for the first event, then collect all that are there.

        This takes *milliseconds* at most, as events may come as fast as they are collected. Raises
        NVMLError if the wait fails.
        """
        ends = time.monotonic() + milliseconds / 1000
        left = milliseconds
        while left or time.monotonic() < ends:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, left)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    return
                self._say(f"nvmlEventSetWait: {error}")
                self._free()
                raise
            left, self._trouble = 0, ""
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._heard.put(Xid(self._uuid_of(event.device), int(event.eventData)))

    def take(self) -> tuple[Xid, ...]:
        """The XIDs collected since the last `take`."""
        return tuple(self._heard.get() for _ in range(self._heard.qsize()))

    def hangs(self) -> None:
        self._say("the wait for XIDs does not return")

    def _uuid_of(self, handle: Handle) -> str:
        """The uuid; empty if unknown: then the event belongs to no GPU."""
        known = self._uuids.get(_address(handle))
        if known is not None:
            return known
        try:
            return self._nvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError:
            return ""

    def _free(self) -> None:
        try:
            self._nvml.nvmlEventSetFree(self._set)
        except pynvml.NVMLError as error:
            log.debug("nvmlEventSetFree: %s", error)
        self.forget()

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("%s: no XIDs are heard until it works; probes go on", trouble)
        self._trouble = trouble


def _address(handle: Handle) -> int:
    """A number that identifies the handle."""
    if isinstance(handle, int):
        return handle
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
