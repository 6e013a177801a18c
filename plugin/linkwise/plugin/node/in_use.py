"""Which pod really has which GPU: the kubelet's podresources, read every second and after each
Allocate.

After admission podresources is the truth, whatever was planned. If it differs from the plan, the
plugin counts the difference and the extender corrects its cache. Neither touches a pod for it.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import grpc

from linkwise.plugin.device_plugin.grpc_channel import dial, reason_of
from linkwise.plugin.errors import PodResourcesError
from linkwise.plugin.kubelet import podresources_pb2 as wire
from linkwise.plugin.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from linkwise.plugin.later import Later
from linkwise.plugin.node.own_slices import DeviceName
from linkwise.topology.annotations.plan import InUse

log = logging.getLogger(__name__)

_LIST_SECONDS = 5.0
_SETTLE_SECONDS = 0.05  # the kubelet notes devices just after Allocate has returned


Counts = Callable[[str], bool]
"""Whether the plugin accounts for the device with this id."""
Claimed = Callable[[DeviceName], str]
"""The UUID of the GPU that a DRA driver's device is; empty: none of this node."""


def read_in_use(
    answer: wire.ListPodResourcesResponse,
    resource: str,
    counts: Counts = lambda _: True,
    shares: Counts = lambda _: False,
    claimed: Claimed = lambda _: "",
) -> InUse:
    """The pods that hold *resource* or GPUs from claims, and those that hold *shares* of any;
    entries of one resource are added up."""
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
                | _claimed(container, claimed)
            )
        }
        if holds:
            pods[f"{pod.namespace}/{pod.name}"] = holds
    return InUse(pods=dict(sorted(pods.items())), shares=_shares(answer, shares))


def _claimed(container: wire.ContainerResources, claimed: Claimed) -> set[str]:
    found = {
        claimed((device.driver_name, device.pool_name, device.device_name))
        for of_claim in container.dynamic_resources
        for device in of_claim.claim_resources
    }
    return found - {""}


def _shares(
    answer: wire.ListPodResourcesResponse, counts: Counts
) -> dict[str, dict[str, dict[str, tuple[str, ...]]]]:
    """pod -> container -> resource -> ids of the devices that count."""
    found: dict[str, dict[str, dict[str, set[str]]]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if ids := set(filter(counts, devices.device_ids)):
                    of_pod = found.setdefault(f"{pod.namespace}/{pod.name}", {})
                    of = of_pod.setdefault(container.name, {})
                    of.setdefault(devices.resource_name, set()).update(ids)
    return {
        pod: {
            container: {resource: tuple(sorted(ids)) for resource, ids in sorted(of.items())}
            for container, of in containers.items()
        }
        for pod, containers in sorted(found.items())
    }


class PodResources:
    def __init__(
        self,
        socket: Path,
        resource: str,
        counts: Counts = lambda _: True,
        shares: Counts = lambda _: False,
        claimed: Claimed = lambda _: "",
    ) -> None:
        self._socket, self._resource = socket, resource
        self._counts, self._shares, self._claimed = counts, shares, claimed
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
        return read_in_use(answer, self._resource, self._counts, self._shares, self._claimed)

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
        self._later = Later(
            "telling what is in use",
            self.poll,
            seconds=_SETTLE_SECONDS,
            every_seconds=every_seconds,
        )

    def start(self) -> None:
        self._later.start()

    def poke(self) -> None:
        """Something has just been allocated."""
        self._later.ask()

    def stop(self) -> None:
        self._later.stop()
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
