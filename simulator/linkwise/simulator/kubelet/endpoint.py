"""The kubelet's end of one registered plugin: its calls, and the stream of devices.

The kubelet dials the plugin inside `Register`, asks for its options, and holds ListAndWatch open
while the connection lives. Calls have no deadline, as in the real kubelet. `close` cancels them.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import grpc

from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import DevicePluginStub
from linkwise.simulator.kubelet.devices import AdmissionError, Device

log = logging.getLogger(__name__)

DIAL_SECONDS = 10.0  # how long Register waits for the plugin's socket
HEALTHY = "Healthy"


Adviser = Callable[[Sequence[str], Sequence[str], int], Sequence[str]]
"""(available, must include, how many) → the devices to take; empty: any."""


class DialError(Exception):
    """The registering plugin cannot be reached, or does not answer."""


class Endpoint:
    """One plugin's endpoint. If there is an *adviser*, it replaces the plugin's preferred
    allocation."""

    def __init__(
        self, resource: str, socket: Path, *, adviser: Callable[[], Adviser | None]
    ) -> None:
        self.resource = resource
        self._socket = socket
        # The kubelet is a Go program and sends `localhost`; grpcio would send the escaped path.
        self._channel = grpc.insecure_channel(
            f"unix://{socket}", options=[("grpc.default_authority", "localhost")]
        )
        self._stub = DevicePluginStub(self._channel)
        self._adviser = adviser
        self._options = api.DevicePluginOptions()
        self._closed = False

    def dial(self) -> None:
        """Connect and ask for the plugin's options, as inside Register. Raises DialError."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=DIAL_SECONDS)
            self._options = self._stub.GetDevicePluginOptions(api.Empty(), timeout=DIAL_SECONDS)
        except (grpc.RpcError, grpc.FutureTimeoutError) as error:
            self.close()
            raise DialError(f"failed to dial device plugin at {self._socket}: {error}") from error

    def watch(
        self, on_devices: Callable[[tuple[Device, ...]], None], on_end: Callable[[], None]
    ) -> None:
        """Follow ListAndWatch in its own thread until the connection ends."""

        def follow() -> None:
            try:
                for message in self._stub.ListAndWatch(api.Empty()):
                    on_devices(tuple(_device(device) for device in message.devices))
            except grpc.RpcError as error:
                if not self._closed:
                    log.info("%s: ListAndWatch ended: %s", self.resource, _told(error))
            except ValueError:  # the channel was closed before the call began
                pass
            on_end()

        Thread(target=follow, name=f"ListAndWatch {self.resource}", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    # What the device manager calls (devices.DevicePluginEndpoint)

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        adviser = self._adviser()
        if adviser is not None:
            return adviser(available, must_include, size)
        if not self._options.get_preferred_allocation_available:
            return ()
        request = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available,
            must_include_deviceIDs=must_include,
            allocation_size=size,
        )
        try:
            response = self._stub.GetPreferredAllocation(
                api.PreferredAllocationRequest(container_requests=[request])
            )
        except (grpc.RpcError, ValueError) as error:
            raise AdmissionError(
                f"device plugin GetPreferredAllocation rpc failed with err: {_told(error)}"
            ) from error
        answers = response.container_responses
        return tuple(answers[0].deviceIDs) if answers else ()

    def allocate(self, devices: Sequence[str]) -> None:
        request = api.ContainerAllocateRequest(devices_ids=devices)
        try:
            response = self._stub.Allocate(api.AllocateRequest(container_requests=[request]))
        except (grpc.RpcError, ValueError) as error:
            raise AdmissionError(_told(error)) from error
        if not response.container_responses:
            raise AdmissionError(f"no containers return in allocation response {response}")


def _device(device: api.Device) -> Device:
    nodes = tuple(node.ID for node in device.topology.nodes)
    return Device(device.ID, device.health == HEALTHY, nodes)


def _told(error: Exception) -> str:
    """Format the error as Go does: `rpc error: code = Unknown desc = …`."""
    if isinstance(error, grpc.Call):
        code = "".join(word.capitalize() for word in error.code().name.split("_"))
        return f"rpc error: code = {code} desc = {error.details()}"
    return str(error)
