"""Volumes and namespaces: what kube-scheduler's filters read beside nodes and pods.

The extender works without them, while they are not listed or may not be read. Then the filters that
need them are left to kube-scheduler.
"""

from collections.abc import Iterable, Mapping

from linkwise.kube.filters.volumes.storage import Storage, StorageObject
from linkwise.kube.objects import (
    CSINode,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)

Surrounding = Namespace | StorageObject
_OF_STORAGE = frozenset({CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass})


class Surroundings:
    def __init__(self) -> None:
        self._storage = Storage()
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._listed: set[type[Surrounding]] = set()
        self.changes = 0

    @property
    def storage(self) -> Storage | None:
        """None while any of its kinds is not known."""
        return self._storage if self._listed >= _OF_STORAGE else None

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]] | None:
        """The labels of each namespace; None while they are not known."""
        return self._namespaces if Namespace in self._listed else None

    def replace(self, kind: type[Surrounding], objects: Iterable[Surrounding]) -> None:
        """Take *objects* for all there are of their *kind*."""
        if kind is Namespace:
            self._namespaces.clear()
        else:
            self._storage.forget(kind)
        for one in objects:
            self.put(one)
        self._listed.add(kind)
        self.changes += 1

    def put(self, one: Surrounding) -> None:
        self.changes += 1
        if isinstance(one, Namespace):
            self._namespaces[one.metadata.name] = one.metadata.labels
        else:
            self._storage.put(one)

    def drop(self, one: Surrounding) -> None:
        self.changes += 1
        if isinstance(one, Namespace):
            self._namespaces.pop(one.metadata.name, None)
        else:
            self._storage.drop(one)
