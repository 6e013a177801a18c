"""Which pod really has which GPU: the kubelet's podresources, read every second and after each
Allocate.

After admission podresources is the truth, whatever was planned. If it differs from the plan, the
plugin counts the difference and the extender corrects its cache. Neither touches a pod for it.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import grpc

from linkwise.plugin.device_plugin.grpc_channel import dial, reason_of
from linkwise.plugin.errors import PodResourcesError
from linkwise.plugin.kubelet import podresources_pb2 as wire
from linkwise.plugin.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from linkwise.topology.annotations.plan import InUse

log = logging.getLogger(__name__)

_LIST_SECONDS = 5.0
_SETTLE_SECONDS = 0.05  # the kubelet notes devices just after Allocate has returned


Counts = Callable[[str], bool]
"""Whether the plugin accounts for the device with this id."""


def read_in_use(
    answer: wire.ListPodResourcesResponse, resource: str, counts: Counts = lambda _: True
) -> InUse:
    """The pods that hold *resource*; entries of one resource are added up."""
    pods: dict[str, dict[str, tuple[str, ...]]] = {}
    for pod in answer.pod_resources:
        holds = {
            container.name: tuple(sorted(ids))
            for container in pod.containers
            if (
                ids := {
                    device_id
                    for devices in container.devices
                    if devices.resource_name == resource
                    for device_id in devices.device_ids
                    if counts(device_id)
                }
            )
        }
        if holds:
            pods[f"{pod.namespace}/{pod.name}"] = holds
    return InUse(pods=dict(sorted(pods.items())))


class PodResources:
    def __init__(self, socket: Path, resource: str, counts: Counts = lambda _: True) -> None:
        self._socket, self._resource, self._counts = socket, resource, counts
        self._channel = dial(socket)
        self._stub = PodResourcesListerStub(self._channel)

    def read(self) -> InUse:
        """Raises PodResourcesError."""
        try:
            answer = self._stub.List(wire.ListPodResourcesRequest(), timeout=_LIST_SECONDS)
        except grpc.RpcError as error:
            raise PodResourcesError(
                "the kubelet does not say which containers have which GPUs (podresources at "
                f"{self._socket}): {reason_of(error)}"
            ) from error
        return read_in_use(answer, self._resource, self._counts)

    def close(self) -> None:
        self._channel.close()


class InUsePoller:
    """Passes what is in use to `on_reading` at each reading, and to `on_change` whenever it has
    changed. The first reading counts as a change."""

    def __init__(
        self,
        source: PodResources,
        *,
        every_seconds: float,
        on_reading: Callable[[InUse], None],
        on_change: Callable[[InUse], None],
        on_error: Callable[[], None],
    ) -> None:
        self._source, self._every_seconds = source, every_seconds
        self._on_reading, self._on_change, self._on_error = on_reading, on_change, on_error
        self._last: InUse | None = None
        self._trouble = ""
        self._stopping = False
        self._poke = Event()
        self._thread = Thread(target=self._run, name="in-use", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        """Something has just been allocated."""
        self._poke.set()

    def stop(self) -> None:
        self._stopping = True
        self._poke.set()
        if self._thread.is_alive():
            self._thread.join(_LIST_SECONDS + 1)
        self._source.close()

    def poll(self) -> InUse | None:
        """Read once; None if the kubelet does not answer."""
        try:
            found = self._source.read()
        except PodResourcesError as error:
            if str(error) != self._trouble:
                log.warning("%s; trying again every %g s", error, self._every_seconds)
            self._trouble = str(error)
            self._on_error()
            return None
        if self._trouble:
            log.info("podresources answers again")
        self._trouble = ""
        self._on_reading(found)
        if found != self._last:
            self._on_change(found)
            self._last = found
        return found

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.poll()
            except Exception:
                # A reading that stands still unnoticed would be taken for the truth.
                log.exception("telling what is in use failed; trying again")
            if self._poke.wait(self._every_seconds):
                self._poke.clear()
                # This loses nothing: the next round sees what comes later.
                self._poke.wait(_SETTLE_SECONDS)
