"""The GPUs behind the devices that DRA drivers give out on this node.

The kubelet's podresources names a driver, a pool and a device; the driver's ResourceSlice says
which GPU that is.
"""

from collections.abc import Collection

from linkwise.kube.client import KubeClient
from linkwise.kube.device_claims import ROOT, ResourceSlice, uuid_of
from linkwise.kube.reflector import Reflector

DeviceName = tuple[str, str, str]
"""driver, pool, device"""


class OwnSlices:
    """Follows this node's slices. Where the API server has no such kind, there are none."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._uuids: dict[str, dict[DeviceName, str]] = {}  # by the name of the slice
        self._reflector: Reflector[ResourceSlice] = Reflector(
            client,
            f"{ROOT}/resourceslices",
            ResourceSlice,
            field_selector=f"spec.nodeName={node}",
            on_replace=self._replace,
            on_event=self._event,
            optional=True,
        )

    def start(self) -> None:
        self._reflector.start()

    def stop(self) -> None:
        self._reflector.stop()

    def uuid(self, device: DeviceName) -> str:
        """Of its GPU; empty: none is known."""
        return next((of[device] for of in self._uuids.copy().values() if device in of), "")

    def _replace(self, slices: Collection[ResourceSlice]) -> None:
        self._uuids = {each.metadata.name: _uuids_in(each) for each in slices}

    def _event(self, kind: str, one: ResourceSlice) -> None:
        if kind == "DELETED":
            self._uuids.pop(one.metadata.name, None)
        else:
            self._uuids[one.metadata.name] = _uuids_in(one)


def _uuids_in(one: ResourceSlice) -> dict[DeviceName, str]:
    spec = one.spec
    return {
        (spec.driver, spec.pool.name, device.name): uuid
        for device in spec.devices
        if (uuid := uuid_of(device, spec.driver))
    }
