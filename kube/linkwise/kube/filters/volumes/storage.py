"""The objects that say where a claim's volume is or may be."""

from collections.abc import Iterable

from linkwise.kube.filters.selectors import selector_of, selects
from linkwise.kube.objects import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    whole,
)

_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_STORAGE = "storage"
DELAYED = "WaitForFirstConsumer"
StorageObject = PersistentVolumeClaim | PersistentVolume | StorageClass | CSINode


class Storage:
    """All such objects of a cluster. `changes` rises with each change."""

    def __init__(self) -> None:
        self.changes = 0
        self._claims: dict[tuple[str, str], PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        self._csi_nodes: dict[str, CSINode] = {}

    def put(self, one: StorageObject) -> None:
        self.changes += 1
        match one:
            case PersistentVolumeClaim():
                self._claims[one.metadata.namespace, one.metadata.name] = one
            case PersistentVolume():
                self._volumes[one.metadata.name] = one
            case StorageClass():
                self._classes[one.metadata.name] = one
            case CSINode():
                self._csi_nodes[one.metadata.name] = one

    def drop(self, one: StorageObject) -> None:
        self.changes += 1
        match one:
            case PersistentVolumeClaim():
                self._claims.pop((one.metadata.namespace, one.metadata.name), None)
            case PersistentVolume():
                self._volumes.pop(one.metadata.name, None)
            case StorageClass():
                self._classes.pop(one.metadata.name, None)
            case CSINode():
                self._csi_nodes.pop(one.metadata.name, None)

    def replace(self, kind: type[StorageObject], objects: Iterable[StorageObject]) -> None:
        """Take *objects* for all there are of their *kind*."""
        self.forget(kind)
        for one in objects:
            self.put(one)

    def forget(self, kind: type[object]) -> None:
        """Drop all objects of a kind."""
        for known in (self._claims, self._volumes, self._classes, self._csi_nodes):
            for one in [each for each in known.values() if isinstance(each, kind)]:
                self.drop(one)

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self._claims.get((namespace, name))

    def volume(self, name: str) -> PersistentVolume | None:
        return self._volumes.get(name)

    def storage_class(self, name: str) -> StorageClass | None:
        return self._classes.get(name)

    def limits(self, node: str) -> dict[str, int]:
        """Driver -> how many of its volumes the node can attach; drivers without a limit are left
        out."""
        known = self._csi_nodes.get(node)
        if known is None:
            return {}
        return {
            driver.name: driver.allocatable.count
            for driver in known.spec.drivers or ()
            if driver.allocatable is not None and driver.allocatable.count is not None
        }

    def candidates(self, claim: PersistentVolumeClaim) -> tuple[PersistentVolume, ...]:
        """Return the volumes that the claim can be bound to, wherever they are, the smallest first.
        If a volume names the claim, it is the only one."""
        found = []
        for volume in self._volumes.values():
            if volume_class(volume) != claim_class(claim) or not _suits(claim, volume):
                continue
            if volume.spec.claim_ref is not None:
                return (volume,)
            if volume.status.phase == "Available" and _is_selected(claim, volume):
                found.append(volume)
        return tuple(sorted(found, key=capacity))


def claim_class(claim: PersistentVolumeClaim) -> str:
    return claim.metadata.annotations.get(_BETA_CLASS, claim.spec.storage_class_name or "")


def volume_class(volume: PersistentVolume) -> str:
    return volume.metadata.annotations.get(_BETA_CLASS, volume.spec.storage_class_name)


def is_bound(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and _BIND_COMPLETED in claim.metadata.annotations


def size(claim: PersistentVolumeClaim) -> int:
    """The requested bytes."""
    return whole(claim.spec.resources.requests.get(_STORAGE, 0))


def capacity(volume: PersistentVolume) -> int:
    return whole(volume.spec.capacity.get(_STORAGE, 0))


def _suits(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    wanted, offered = claim.spec, volume.spec
    return (
        _is_free_for(claim, volume)
        and capacity(volume) >= size(claim)
        and wanted.volume_mode == offered.volume_mode
        and (wanted.volume_attributes_class_name or "")
        == (offered.volume_attributes_class_name or "")
        and volume.metadata.deletion_timestamp is None
    )


def _is_free_for(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    taken, meta = volume.spec.claim_ref, claim.metadata
    return taken is None or (
        (taken.namespace, taken.name) == (meta.namespace, meta.name) and taken.uid in ("", meta.uid)
    )


def _is_selected(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    wanted = claim.spec
    if wanted.selector is not None and not selects(
        selector_of(wanted.selector), volume.metadata.labels
    ):
        return False
    return set(wanted.access_modes) <= set(volume.spec.access_modes)
