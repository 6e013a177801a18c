"""Keeps the plugin registered: serves, registers, and does both again when the kubelet forgot.

The kubelet does not announce that it forgot the plugin. Three signs show it: a new kubelet.sock (it
restarted), the plugin's own socket gone (it wipes the directory at start), and the end of the
stream that it had open. Each sign ends this life of the server and begins the next, with a new
socket, because a kubelet that loses the stream counts every GPU as gone.
"""

import logging
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from threading import Event, Thread

import grpc
from tenacity import RetryCallState, Retrying, retry_if_exception_type
from tenacity.stop import stop_when_event_set
from tenacity.wait import wait_random_exponential

from linkwise.plugin.device_plugin.grpc_channel import dial, reason_of
from linkwise.plugin.device_plugin.server import PluginServer, Service, remove_dead_sockets
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import RegistrationStub
from linkwise.plugin.metrics import Metrics

log = logging.getLogger(__name__)

API_VERSION = "v1beta1"
_REGISTER_SECONDS = 15.0  # inside the call the kubelet dials the plugin, for up to 10 s
_STREAM_SECONDS = 10.0  # after a registration, a kubelet opens its stream within milliseconds
_SHORT_LIFE_SECONDS = 10.0  # if a kubelet drops the plugin sooner, the next attempt waits

Identity = tuple[int, int, int]


class Lost(Enum):
    """Why this life of the server ends."""

    KUBELET_SOCKET = "kubelet.sock is another one"
    OWN_SOCKET = "the plugin's socket is gone"
    STREAM = "the kubelet ended its stream"
    NO_STREAM = "the kubelet opened no stream"
    ASKED = "the plugin's options have changed"


class _DroppedError(Exception):
    """The kubelet registered the plugin and dropped it again."""


class Registrar:
    """`make_service` makes the service of one life. The registrar calls `on_lost` when it loses the
    kubelet."""

    def __init__(
        self,
        *,
        kubelet_socket: Path,
        resource: str,
        make_service: Callable[[], Service],
        metrics: Metrics,
        options: Callable[[], wire.DevicePluginOptions] = lambda: wire.DevicePluginOptions(
            get_preferred_allocation_available=True
        ),
        on_lost: Callable[[], None] = lambda: None,
        look_seconds: float = 0.25,
        longest_wait_seconds: float = 5.0,
        stream_seconds: float = _STREAM_SECONDS,
    ) -> None:
        self._kubelet_socket, self._resource = kubelet_socket, resource
        self._make_service, self._metrics, self._on_lost = make_service, metrics, on_lost
        self._options, self._again = options, Event()
        self._look_seconds, self._longest_wait = look_seconds, longest_wait_seconds
        self._stream_seconds = stream_seconds
        self._server: PluginServer | None = None
        self._trouble, self._dropped = "", False
        self._tried: Identity | None = None  # the kubelet's socket, at the last attempt
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="registrar", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether the plugin is registered: its newest stream is open, and only the kubelet opens
        streams."""
        server = self._server
        return server is not None and server.service.streams.alive

    @property
    def trouble(self) -> str:
        """Why the last attempt to register failed; empty if it succeeded."""
        return self._trouble

    def start(self) -> None:
        remove_dead_sockets(self._kubelet_socket.parent, self._resource)
        self._thread.start()

    def again(self) -> None:
        """Register once more: the kubelet reads the plugin's options only then."""
        self._again.set()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_REGISTER_SECONDS + 5)

    def _run(self) -> None:
        retrying = Retrying(
            retry=retry_if_exception_type(Exception),  # this thread ends only by stop()
            wait=wait_random_exponential(multiplier=0.1, max=self._longest_wait),
            stop=stop_when_event_set(self._stopping),
            sleep=self._wait,
            before_sleep=self._note_failure,
            retry_error_callback=lambda _: None,  # stopped while failing
        )
        while not self._stopping.is_set():
            retrying(self._life)

    def _life(self) -> None:
        """Serve and register once, then stay until the kubelet is lost."""
        # Look before registering, so that `_stay` notices a kubelet that restarts meanwhile.
        kubelet = self._tried = identity(self._kubelet_socket)
        self._again.clear()
        if kubelet is None:
            raise FileNotFoundError(f"{self._kubelet_socket}: no kubelet yet")
        server = self._server = PluginServer(
            self._kubelet_socket.parent, self._resource, self._make_service()
        )
        try:
            server.start()
            self._register(server)
            self._trouble = ""
            registered = time.monotonic()
            self._metrics.registrations.labels("done").inc()
            log.info("registered %s with the kubelet at %s", self._resource, server.socket.name)
            lost = self._stay(server, kubelet)
        finally:
            self._server = None
            server.stop()
        if lost is not None:
            self._on_lost()
            short = time.monotonic() - registered < _SHORT_LIFE_SECONDS
            if short and lost is not Lost.ASKED:
                raise _DroppedError(lost.value)
            self._dropped = False
            log.warning("%s: registering again", lost.value)

    def _register(self, server: PluginServer) -> None:
        with dial(self._kubelet_socket) as channel:
            RegistrationStub(channel).Register(
                wire.RegisterRequest(
                    version=API_VERSION,
                    endpoint=server.socket.name,
                    resource_name=self._resource,
                    options=self._options(),
                ),
                timeout=_REGISTER_SECONDS,
            )

    def _stay(self, server: PluginServer, kubelet: Identity) -> Lost | None:
        registered = time.monotonic()
        while not self._stopping.wait(self._look_seconds):
            if identity(self._kubelet_socket) != kubelet:
                return Lost.KUBELET_SOCKET
            if not server.socket.exists():
                return Lost.OWN_SOCKET
            if self._again.is_set():
                return Lost.ASKED
            if not server.service.streams.alive:
                if server.service.streams.opened:
                    return Lost.STREAM
                if time.monotonic() - registered > self._stream_seconds:
                    return Lost.NO_STREAM
        return None

    def _wait(self, seconds: float) -> None:
        """Wait *seconds*, or until there is another kubelet, which refuses pods until the plugin is
        registered."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if self._stopping.wait(min(left, self._look_seconds)):
                return
            if identity(self._kubelet_socket) != self._tried:
                return

    def _note_failure(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, _DroppedError):
            if not self._dropped:  # two plugins of one resource drop each other forever
                log.warning("%s: registering again", error)
            self._dropped = True
            return
        self._metrics.registrations.labels("failed").inc()
        before, self._trouble = self._trouble, reason_of(error)
        if not isinstance(error, grpc.RpcError | OSError):
            log.error("registering with the kubelet failed; trying again", exc_info=error)
        elif self._trouble != before:
            log.warning("cannot register with the kubelet: %s; trying again", self._trouble)


def identity(path: Path) -> Identity | None:
    """Identifies one socket file among those of the same path; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    # The kernel reuses inode numbers at once; the time differs.
    return status.st_dev, status.st_ino, status.st_mtime_ns
