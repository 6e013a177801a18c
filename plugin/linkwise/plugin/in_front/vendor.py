"""One vendor's plugin for one resource, from its registration to the next: connection, options,
its list of devices, and calls.

Calls pass as bytes, so that fields unknown to this program survive. A thread of its own follows the
list. If the vendor's plugin ends the list, the thread asks for it again, more and more seldom: a
plugin that continues to serve does not register again for it. A plugin that has started again makes
its socket again, under the same name, and registers where it is told. That may be the kubelet, so
the thread does not connect to another socket than the one that was registered.
"""

import logging
import math
import time
from contextlib import suppress
from pathlib import Path
from threading import Condition, Event, Thread, current_thread
from typing import Protocol, TypeAlias

import grpc

from linkwise.plugin.device_plugin.grpc_channel import dial, reason_of
from linkwise.plugin.device_plugin.registration import Identity, identity
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import DevicePluginStub
from linkwise.topology.vendors.known import vendor_of_resource

log = logging.getLogger(__name__)

_SERVICE = "/v1beta1.DevicePlugin/"
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_END_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
# How long the plugin may take to say which GPUs it prefers. NVIDIA's takes 1 to 2 ms for 8 GPUs,
# and half a minute for some questions of 16 (NVIDIA/k8s-device-plugin#774).
PREFER_SECONDS = 1.0


Call: TypeAlias = "grpc.Future[bytes]"


class VendorError(Exception):
    """The vendor's plugin cannot be reached; the text becomes the refusal of its registration."""


class Listener(Protocol):
    """The vendor's own thread calls these methods."""

    def listed(self, vendor: "Vendor", devices: wire.ListAndWatchResponse) -> None: ...

    def lost(self, vendor: "Vendor", why: str) -> None:
        """The vendor's list has ended."""

    def answers(self, vendor: "Vendor", *, well: bool) -> None:
        """The vendor's plugin has answered `Vendor.probe`, or has failed to."""


class Vendor:
    """Once stopped, a Vendor cannot be started again."""

    def __init__(self, resource: str, socket: Path) -> None:
        self.resource, self.socket = resource, socket
        self.options = wire.DevicePluginOptions()
        self._listener: Listener | None = None
        self._served: Identity | None = None  # the socket, as it was when the plugin registered
        self._channel = dial(socket)
        self._stub = DevicePluginStub(self._channel)
        self._stopping = Event()
        self._thread: Thread | None = None
        self._stream: grpc.Call | None = None
        self._too_many: float = math.inf  # devices: a preference among so many took too long
        maker = vendor_of_resource(resource)
        self._most_gpus = math.inf if maker is None else maker.most_asked or math.inf
        self._under_way = 0  # calls
        self._idle = Condition()

    def connect(self, seconds: float) -> None:
        """Reach the plugin and read its options, as the kubelet does inside Register. Raises
        VendorError if the plugin does not answer in time."""
        try:
            self.options = self._stub.GetDevicePluginOptions(
                wire.Empty(), timeout=seconds, wait_for_ready=True
            )
        except grpc.RpcError as error:
            raise VendorError(
                f"failed to dial device plugin at {self.socket}: {reason_of(error)}"
            ) from error

    def _check_socket(self) -> None:
        """Raises VendorError unless the socket is the one that was registered."""
        now = identity(self.socket)
        if now != self._served:
            what = "is gone" if now is None else "is another plugin's, or was created again"
            raise VendorError(f"{self.socket} {what}: expected a registration")

    def start(self, listener: Listener) -> None:
        """Follow the plugin's list. Call it when `connect` has succeeded."""
        self._listener, self._served = listener, identity(self.socket)
        self._thread = Thread(
            target=self._follow, args=(listener,), name=f"vendor {self.resource}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End what is under way: calls that wait for an answer get UNAVAILABLE or CANCELLED."""
        self._stopping.set()
        self._channel.close()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(_END_SECONDS)

    def retire(self) -> None:
        """Another plugin has replaced this one: end its list; let calls under way end well."""
        self._stopping.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()
        Thread(target=self._drain, name=f"vendor {self.resource} retires", daemon=True).start()

    def _drain(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._under_way)
        self.stop()

    def prefers_among(self, devices: int, gpus: int) -> bool:
        """Whether to ask which of so many devices of so many GPUs it prefers.

        A plugin works on after its caller has given up: NVIDIA's and AMD's compare sets of devices,
        whose number grows exponentially, and each such question keeps a processor busy and takes
        memory. So it is asked no second one.
        """
        few = devices < self._too_many and gpus <= self._most_gpus
        return self.options.get_preferred_allocation_available and few

    def call(self, method: str, request: bytes, seconds: float | None, *, devices: int = 0) -> Call:
        """Begin a call; both messages are bytes. *devices*: of how many it asks which ones to
        prefer; 0: it asks something else. Raises ValueError once stopped."""
        begin: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            _SERVICE + method
        )
        call = begin.future(request, timeout=seconds)
        with self._idle:
            self._under_way += 1
        call.add_done_callback(self._over)
        if devices:
            began = time.monotonic()
            call.add_done_callback(lambda call: self._preferred(call, devices, began))
        return call

    def _preferred(self, call: Call, devices: int, began: float) -> None:
        is_late = time.monotonic() - began > PREFER_SECONDS / 2  # or the caller had little time
        if not is_late or self._stopping.is_set() or not _was_given_up(call):
            return
        self._too_many = min(self._too_many, devices)
        log.warning(
            "%s: the vendor's plugin did not say in time which of %d devices it prefers: it is not "
            "asked about so many again",
            self.resource,
            devices,
        )

    def _over(self, _: Call) -> None:
        with self._idle:
            self._under_way -= 1
            self._idle.notify_all()

    def probe(self) -> None:
        """Ask whether the plugin answers at all; the listener gets the result."""
        try:
            asked = self.call("GetDevicePluginOptions", b"", _ANSWER_SECONDS)
        except ValueError:
            return
        asked.add_done_callback(self._probed)

    def _probed(self, asked: Call) -> None:
        if self._listener is None or self._stopping.is_set() or asked.cancelled():
            return
        self._listener.answers(self, well=not _was_given_up(asked))

    def _follow(self, listener: Listener) -> None:
        attempt = 0
        while not self._stopping.is_set():
            why = "it ended its list"
            try:
                if attempt:
                    self._check_socket()
                    self.connect(_ANSWER_SECONDS)
                    self._check_socket()  # `connect` waits, and may have met another plugin
                stream = self._stub.ListAndWatch(wire.Empty())
                self._stream = stream
                if self._stopping.is_set():
                    stream.cancel()
                for devices in stream:
                    attempt = 0
                    listener.listed(self, devices)
            except grpc.RpcError as error:
                why = reason_of(error)
            except VendorError as error:
                why = str(error)
            except ValueError:  # the channel was closed meanwhile
                return
            except Exception:  # a defect of this program must not end the following
                log.exception("%s: following the vendor's plugin failed", self.resource)
            if self._stopping.is_set():
                return
            listener.lost(self, why)
            attempt += 1
            pause = _FIRST_PAUSE_SECONDS * 2.0 ** min(attempt, 10)
            self._stopping.wait(min(pause, _LONGEST_PAUSE_SECONDS))


def _was_given_up(call: Call) -> bool:
    """Whether this call, which is over, was not answered in time."""
    error = None if call.cancelled() else call.exception()
    late = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return call.cancelled() or late


def socket_of(endpoint: str, *directories: Path) -> Path:
    """NVIDIA's plugin names a socket in the kubelet's directory, wherever it registers. If it sees
    another directory in that place, its socket is beside the one that it registers at. If both
    exist, the newer one counts."""
    if Path(endpoint).is_absolute():
        return Path(endpoint)
    made: list[tuple[int, Path]] = []
    for path in (directory / endpoint for directory in directories):
        with suppress(OSError):
            made.append((path.stat().st_mtime_ns, path))
    return max(made)[1] if made else directories[0] / endpoint
