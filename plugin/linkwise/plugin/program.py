"""The program from its start to its end: HTTP, the first reading, and what is left behind."""

import logging
import time
from queue import SimpleQueue
from threading import Event, Thread

from linkwise.kube.client import KubeClient
from linkwise.plugin.app import create_app
from linkwise.plugin.ending import end
from linkwise.plugin.errors import ListenError
from linkwise.plugin.gpus.inventory import Inventory, Stock
from linkwise.plugin.health.health_loop import first_reading
from linkwise.plugin.in_front.front import Front
from linkwise.plugin.metrics import Metrics
from linkwise.plugin.node.cleanup import Leaving
from linkwise.plugin.node_program import NodeProgram
from linkwise.plugin.settings import Settings
from linkwise.serving.wsgi import WsgiServer

log = logging.getLogger(__name__)

_LAST_CALLS_SECONDS = 1.0  # a scraper that takes no answer must not delay the end


class Program:
    """Raises ListenError if it cannot serve HTTP."""

    def __init__(self, settings: Settings, inventory: Inventory, client: KubeClient) -> None:
        self._settings, self._inventory, self._client = settings, inventory, client
        self._metrics = Metrics()
        self._missing = "no GPUs read yet"
        self._began = time.monotonic()
        self._stopping = Event()
        self._first: SimpleQueue[Stock | Exception | None] = SimpleQueue()
        self._node: NodeProgram | None = None
        self._metrics.probe_age.set_function(self._probe_age_seconds)
        self._leaving = (
            Leaving(client, settings.node_name, settings.daemonset) if settings.daemonset else None
        )
        self._front = None
        if settings.in_front:
            self._front = Front(
                kubelet_socket=settings.kubelet_socket,
                vendor_socket=settings.registry_socket,
                managed=settings.resource_name,
                metrics=self._metrics,
            )
        app = create_app(self._metrics.registry, self.not_ready)
        try:
            self._http = WsgiServer(settings.listen_address, settings.listen_port, app)
        except (OSError, ValueError) as error:
            where = f"--listen-address {settings.listen_address} --listen-port"
            raise ListenError(f"{where} {settings.listen_port}: {error}") from error
        self._http_thread = Thread(target=self._http.run, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port of HTTP; useful if the setting is port 0."""
        return self._http.port

    def not_ready(self) -> str:
        """What is missing; empty if the plugin is ready."""
        return self._node.not_ready() if self._node else self._missing

    @property
    def cleaning(self) -> bool:
        """Whether the stopping program cleans its Node and the API server answers, so that waiting
        for the end is worthwhile."""
        return self._leaving is not None and self._leaving.answered.is_set()

    def run(self) -> None:
        """Serve until `stop`, then leave nothing behind that no plugin will update.

        Raises InventoryError if there are no GPUs and the settings say not to wait for them.
        """
        self._http_thread.start()
        log.info("node %s: HTTP on port %d", self._settings.node_name, self.port)
        try:
            if self._front is not None:
                self._front.open()
            snapshot = self._first_reading()
            if snapshot is not None:
                parts = self._settings, self._inventory, self._client, self._metrics
                self._node = NodeProgram(*parts, snapshot, self._front)
                self._node.start(self._stopping)
                self._stopping.wait()
        finally:
            self._stopping.set()
            if self._node is not None:
                self._node.stop()
            elif self._front is not None:
                end(self._front)
            if self._leaving is not None:
                self._leaving.clean_up_if_removed()
            self._http.close(_LAST_CALLS_SECONDS)
            log.info("stopped")

    def _first_reading(self) -> Stock | None:
        """The first reading; None after `stop`, however long the driver takes, or hangs."""
        Thread(target=self._read_first, name="first-reading", daemon=True).start()
        found = self._first.get()
        if isinstance(found, Exception):
            raise found
        return found

    def _read_first(self) -> None:
        try:
            if self._settings.wait_for_driver:
                self._first.put(
                    first_reading(
                        self._inventory, stopping=self._stopping, on_waiting=self._waiting_for_gpus
                    )
                )
            else:
                self._first.put(self._inventory.read())
        except Exception as error:  # a defect too: `_first_reading` would wait forever
            self._first.put(error)

    def stop(self) -> None:
        """Returns at once."""
        self._stopping.set()
        self._first.put(None)

    def discover(self) -> None:
        """Read the GPUs again."""
        if self._node is not None:
            self._node.discover()

    def _waiting_for_gpus(self, why: str) -> None:
        self._missing = f"no GPUs: {why}"

    def _probe_age_seconds(self) -> float:
        """The age of the last complete probe; before the first reading, the time since the
        start."""
        if self._node is None:
            return time.monotonic() - self._began
        return self._node.probe_age_seconds
