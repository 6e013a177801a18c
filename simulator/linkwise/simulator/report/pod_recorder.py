"""Sees every pod from its creation on, and what was planned for it when it was bound.

A plan's annotation is corrected later, where the kubelet took other GPUs; what was decided is what
stood there with the Binding.
"""

from dataclasses import dataclass, replace
from threading import Lock

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Pod
from linkwise.kube.reflector import Reflector
from linkwise.topology import names
from linkwise.topology.errors import AnnotationError
from linkwise.topology.plan import ContainerGpus, read_gpus


@dataclass(frozen=True, slots=True)
class Sighting:
    """One pod: as last seen, when it was first seen among the others, and its plan."""

    pod: Pod
    order: int
    planned: ContainerGpus


class PodRecorder:
    def __init__(self, client: KubeClient) -> None:
        self._lock = Lock()
        self._sightings: dict[str, Sighting] = {}
        self._changes = self._seen = 0
        self._reflector = Reflector(
            client, "/api/v1/pods", Pod, on_replace=self._replace, on_event=self._event
        )

    def start(self) -> None:
        self._reflector.start()

    def stop(self) -> None:
        self._reflector.stop()

    def sightings(self) -> tuple[Sighting, ...]:
        """All pods that exist, in the order in which they were first seen."""
        with self._lock:
            return tuple(sorted(self._sightings.values(), key=lambda s: s.order))

    @property
    def changes(self) -> int:
        """A number that grows with everything that happens to a pod."""
        with self._lock:
            return self._changes

    def _replace(self, pods: list[Pod]) -> None:
        there = {pod.metadata.uid for pod in pods}
        with self._lock:
            for uid in self._sightings.keys() - there:
                del self._sightings[uid]
        for pod in pods:
            self._event("MODIFIED", pod)

    def _event(self, kind: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        with self._lock:
            self._changes += 1
            if kind == "DELETED":
                self._sightings.pop(uid, None)
                return
            before = self._sightings.get(uid)
            if before is None:
                self._seen += 1
                self._sightings[uid] = Sighting(pod, self._seen, _plan(pod))
            elif before.pod.spec.node_name:
                self._sightings[uid] = replace(before, pod=pod)
            else:
                self._sightings[uid] = replace(before, pod=pod, planned=_plan(pod))


def _plan(pod: Pod) -> ContainerGpus:
    """Empty without a plan, and where it cannot be read: either way the GPUs are unplanned."""
    text = pod.metadata.annotations.get(names.GPUS)
    if not text or not pod.spec.node_name:
        return {}
    try:
        return read_gpus(text)
    except AnnotationError:
        return {}
