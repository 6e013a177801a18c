"""Looks after the GPUs: probes them every few seconds, reads everything anew now and then.

The one thread that talks to the driver. What it finds goes into the device book, from where the
kubelet, the Node and the metrics hear of it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Event, Thread

from tenacity import RetryCallState, Retrying, retry_if_exception_type
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set
from tenacity.wait import wait_exponential

from linkwise.plugin.devices import DeviceBook, Devices
from linkwise.plugin.errors import InventoryError
from linkwise.plugin.health import Change
from linkwise.plugin.inventory import Inventory, Snapshot

log = logging.getLogger(__name__)

NOT_OFFERED = "GPU {} is new and others are gone: not offered until the plugin is restarted"


def first_reading(
    inventory: Inventory, *, stopping: Event, on_waiting: Callable[[str], None]
) -> Snapshot | None:
    """Read until there are GPUs; None once *stopping*. *on_waiting* hears what is missing."""

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
        retry_error_callback=lambda _: None,  # told to stop
    )
    found: Snapshot | None = retrying(inventory.read)
    return found


class Caretaker:
    """`on_devices` hears of the devices after every change; *warned* has been said already."""

    def __init__(
        self,
        inventory: Inventory,
        book: DeviceBook,
        *,
        health_seconds: float,
        discovery_seconds: float,
        on_devices: Callable[[Devices], None],
        warned: Sequence[str] = (),
    ) -> None:
        self._inventory, self._book, self._on_devices = inventory, book, on_devices
        self._health_seconds, self._discovery_seconds = health_seconds, discovery_seconds
        self._stopping = False
        self._wake = Event()
        self._discover_now = False
        self._warned = tuple(warned)
        self._told_version = book.now.version
        self._thread = Thread(target=self._run, name="caretaker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def discover(self) -> None:
        """Read everything anew now; safe to call from a signal handler."""
        self._discover_now = True
        self._wake.set()

    def _run(self) -> None:
        due = time.monotonic() + self._discovery_seconds
        while not self._stopping:
            self._wake.wait(self._health_seconds)
            self._wake.clear()
            if self._stopping:
                return
            try:
                if self._discover_now or time.monotonic() > due:
                    self._discover_now = False
                    due = time.monotonic() + self._discovery_seconds
                    self._rediscover()
                else:
                    self._told(self._book.probed(self._inventory.probe(self._book.now.machine)))
            except Exception:
                # Health that stands still unnoticed is worse than a loud log.
                log.exception("looking after the GPUs failed; trying again")

    def _rediscover(self) -> None:
        try:
            snapshot = self._inventory.read()
        except InventoryError as error:
            log.warning("reading the GPUs anew: %s; the last reading stays", error)
            machine = self._book.now.machine
            problems = self._inventory.probe(machine)
            self._told(self._book.probed(problems))
            return
        self._told(self._book.discovered(snapshot))
        left_out = {gpu.uuid for gpu in snapshot.machine.gpus} - self._book.now.known
        warnings = (*snapshot.warnings, *map(NOT_OFFERED.format, sorted(left_out)))
        warn(warnings, known=self._warned)
        self._warned = warnings

    def _told(self, changes: Sequence[Change]) -> None:
        now = self._book.now
        for change in changes:
            index = next(g.index for g in now.machine.gpus if g.uuid == change.uuid)
            if change.healthy:
                log.info("GPU %d (%s) is healthy: %s", index, change.uuid, change.reason)
            else:
                log.error("GPU %d (%s) is unhealthy: %s", index, change.uuid, change.reason)
        if changes or now.version != self._told_version:
            self._told_version = now.version
            self._on_devices(now)


def warn(warnings: Sequence[str], *, known: Sequence[str] = ()) -> None:
    for warning in warnings:
        if warning not in known:
            log.warning("%s", warning)
