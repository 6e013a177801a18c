"""Looks after the GPUs: probes them every few seconds, and reads everything now and then.

This is the only thread that asks the source of GPUs, whose calls always end. It writes what it
finds into `DeviceBook`, from which the kubelet, the Node and the metrics get it.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Thread

from tenacity import RetryCallState, Retrying, retry_if_exception_type
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set
from tenacity.wait import wait_exponential

from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.inventory import Inventory, Load, Probe, Stock, Xid
from linkwise.plugin.health.book import DeviceBook, Devices, News
from linkwise.plugin.health.conditions import xid_text
from linkwise.plugin.health.xids import RECOVERY_CHANGED

log = logging.getLogger(__name__)

LEFT_OUT = "GPU {} is left out: {}"
_XIDS_SECONDS = 1.0  # the longest that SIGHUP, or the probe after XIDs, waits for the wait for XIDs
_STOP_SECONDS = 0.2  # `stop` waits neither for that nor for a driver that hangs
_INCOMPLETE_SECONDS = 60.0  # at most between readings, while GPUs are missing


def first_reading(
    inventory: Inventory, *, stopping: Event, on_waiting: Callable[[str], None]
) -> Stock | None:
    """Read until there are GPUs; None once *stopping*. *on_waiting* gets what is missing."""

    def note(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1:
            log.warning("no GPUs yet: %s; waiting for them", error)
        on_waiting(str(error))

    retrying = Retrying(
        retry=retry_if_exception_type(InventoryError),
        wait=wait_exponential(multiplier=1, max=30),
        stop=stop_when_event_set(stopping),
        sleep=sleep_using_event(stopping),
        before_sleep=note,
        retry_error_callback=lambda _: None,  # stopping
    )
    found: Stock | None = retrying(inventory.read)
    return found


@dataclass(frozen=True, slots=True)
class Listeners:
    """`devices` gets the devices after every change, `xid` every XID, and `loads` what each GPU
    does, by uuid, at every probe."""

    devices: Callable[[Devices], None]
    xid: Callable[[Xid], None] = lambda _: None
    loads: Callable[[Mapping[str, Load]], None] = lambda _: None


class Caretaker:
    """*snapshot* is the first reading, which *book* has already. Once started, only the caretaker
    asks the *inventory*, and it closes it."""

    def __init__(
        self,
        inventory: Inventory,
        book: DeviceBook,
        snapshot: Stock,
        *,
        health_seconds: float,
        discovery_seconds: float,
        listeners: Listeners,
    ) -> None:
        self._inventory, self._book, self._listeners = inventory, book, listeners
        self._health_seconds, self._discovery_seconds = health_seconds, discovery_seconds
        self._stopping = False
        self._wake = Event()
        self._discover_now = False
        self._said: frozenset[str] = frozenset()  # warnings of the last reading
        self._trouble = ""  # of the last reading
        self._xids_said: set[Xid] = set()
        self._shown = _shown(book.now)
        self._answered = time.monotonic()  # when the source last answered for every GPU
        self._read_at = self._answered
        self._faults: dict[Callable[[], None], str] = {}  # defects already logged
        self._tell_start(snapshot)
        self._thread = Thread(target=self._run, name="caretaker", daemon=True)

    @property
    def probe_age_seconds(self) -> float:
        """Time since the source of GPUs last answered for every GPU."""
        return time.monotonic() - self._answered

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def discover(self) -> None:
        """Read everything again now; safe to call from a signal handler."""
        self._discover_now = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._try(self._await)
            if not self._stopping:
                self._try(self._look)
        self._inventory.close()

    def _try(self, step: Callable[[], None]) -> None:
        """Run *step*. A defect in one step does not stop the other: health that stands still
        unnoticed is worse than a loud log."""
        try:
            step()
            self._faults.pop(step, None)
        except Exception as error:
            if repr(error) != self._faults.get(step):
                log.exception("looking after the GPUs failed; trying again")
            self._faults[step] = repr(error)
            self._wake.wait(self._health_seconds)
            self._wake.clear()

    def _look(self) -> None:
        if self._discover_now or time.monotonic() > self._read_at + self._reading_seconds:
            self._discover_now = False
            self._read_at = time.monotonic()
            self._rediscover()
        else:
            self._probe()

    @property
    def _reading_seconds(self) -> float:
        if self._book.incomplete:
            return min(self._discovery_seconds, _INCOMPLETE_SECONDS)
        return self._discovery_seconds

    def _await(self) -> None:
        """Wait until the next probe is due, or until something has happened. XIDs may come by the
        thousand; they bring one probe a second at most."""
        began = time.monotonic()
        until = began + self._health_seconds
        while not (self._stopping or self._discover_now):
            left = until - time.monotonic()
            if left <= 0:
                return
            xids = self._inventory.events(self._book.now.machine, min(left, _XIDS_SECONDS))
            if xids and self._struck(xids):
                until = min(until, began + _XIDS_SECONDS)
            if xids is None:  # nothing to wait for
                self._wake.wait(min(left, self._health_seconds))
                self._wake.clear()

    def _struck(self, xids: Sequence[Xid]) -> bool:
        """Whether to look at the GPUs soon: an application's errors say nothing about them."""
        for xid in xids:
            self._listeners.xid(xid)
        news = self._book.struck(xids, now=time.monotonic())
        for xid in news.ignored:
            if xid not in self._xids_said:
                self._xids_said.add(xid)
                whose = f"of {xid.uuid}" if xid.uuid else "of an unknown GPU"
                log.info("%s, %s: ignored", xid_text(xid.number), whose)
        self._told(news)
        return any(xid not in news.ignored or xid.number == RECOVERY_CHANGED for xid in xids)

    def _probe(self, *, may_read: bool = True) -> None:
        probe = self._inventory.probe(self._book.now.machine)
        self._note_answers(probe)
        news = self._book.probed(probe, now=time.monotonic())
        self._told(news)
        # A GPU that comes back may have been reset, or its fabric came up: its links may differ.
        back = any(change.healthy for change in news.changes)
        if may_read and (probe.recount or back):
            self._discover_now = True
        self._listeners.loads(probe.loads)

    def _note_answers(self, probe: Probe) -> None:
        hanging = (
            finding.condition == "no-answer"
            for findings in probe.findings.values()
            for finding in findings
        )
        if not probe.unanswered and not any(hanging):
            self._answered = time.monotonic()

    def _rediscover(self) -> None:
        try:
            snapshot = self._inventory.read()
        except InventoryError as error:
            if str(error) != self._trouble:
                log.warning("reading the GPUs again: %s; the last reading stays", error)
            self._trouble = str(error)
            self._probe(may_read=False)  # not at once: the reading has just failed
            return
        self._trouble = ""
        self._note_answers(snapshot.probe)
        self._told(self._book.discovered(snapshot, now=time.monotonic()))
        self._warn(snapshot)

    def _tell_start(self, snapshot: Stock) -> None:
        for gpu in self._book.now.machine.gpus:
            health = self._book.now.healths.get(gpu.uuid)
            if health is not None and health.reason:
                log.error("GPU %d (%s) is unhealthy: %s", gpu.index, gpu.uuid, health.reason)
            for note in health.notes if health else ():
                log.warning("GPU %d (%s): %s", gpu.index, gpu.uuid, note)
        self._warn(snapshot)

    def _warn(self, snapshot: Stock) -> None:
        """Log the warnings that the previous reading did not have."""
        devices = self._book.now
        warnings = (
            *snapshot.warnings,
            *(LEFT_OUT.format(index, why) for index, why in devices.left_out.items()),
        )
        for warning in warnings:
            if warning not in self._said:
                log.warning("%s", warning)
        self._said = frozenset(warnings)

    def _told(self, news: News) -> None:
        now = self._book.now
        index = {gpu.uuid: gpu.index for gpu in now.machine.gpus}
        for change in news.changes:
            if change.healthy:
                log.info(
                    "GPU %d (%s) is healthy: %s", index[change.uuid], change.uuid, change.reason
                )
            else:
                log.error(
                    "GPU %d (%s) is unhealthy: %s", index[change.uuid], change.uuid, change.reason
                )
        for uuid, note in news.notes:
            log.warning("GPU %d (%s): %s", index[uuid], uuid, note)
        if (shown := _shown(now)) != self._shown:
            self._shown = shown
            self._listeners.devices(now)


def _shown(devices: Devices) -> object:
    """What listeners can see of the devices; the number of clean probes is not part of it."""
    told = {uuid: (health.reason, health.notes) for uuid, health in devices.healths.items()}
    return devices.version, devices.left_out, told
