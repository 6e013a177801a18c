"""Records every pod from its creation on, with its plan at the moment of the binding.

The plugin later corrects the plan's annotation if the kubelet took other GPUs. The record keeps
what the extender wrote with the Binding.
The record has the moments at which its own watch saw each change, because the API's times have
whole seconds only.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from threading import Lock
from time import monotonic

from linkwise.drawing.times import PodTimes
from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Pod
from linkwise.kube.reflector import Reflector
from linkwise.topology import names
from linkwise.topology.annotations.plan import ContainerGpus, read_gpus
from linkwise.topology.errors import AnnotationError

ENDED = ("Succeeded", "Failed")  # phases


@dataclass(frozen=True, slots=True)
class Sighting:
    """One pod as last seen, its place in the order of appearance, its plan, and its moments on the
    monotonic clock."""

    pod: Pod
    order: int
    planned: ContainerGpus
    times: PodTimes


def times_of(pod: Pod, before: PodTimes | None, at: float) -> PodTimes:
    """Return the moments of *pod*, which the watch sees at *at*. *before*: None at first sight."""
    times = before or PodTimes(at)
    if times.bound is None and pod.spec.node_name:
        times = times._replace(bound=at)
    if times.running is None and pod.status.phase == "Running":
        times = times._replace(running=at)
    if times.ended is None and pod.status.phase in ENDED:
        times = times._replace(ended=at)
    return times


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
        """Return all existing pods in the order in which they appeared."""
        with self._lock:
            return tuple(sorted(self._sightings.values(), key=lambda s: s.order))

    @property
    def changes(self) -> int:
        """A counter that grows with every event of any pod."""
        with self._lock:
            return self._changes

    def _replace(self, pods: Collection[Pod]) -> None:
        there = {pod.metadata.uid for pod in pods}
        with self._lock:
            for uid in self._sightings.keys() - there:
                del self._sightings[uid]
        for pod in pods:
            self._event("MODIFIED", pod)

    def _event(self, kind: str, pod: Pod) -> None:
        uid, now = pod.metadata.uid, monotonic()
        with self._lock:
            self._changes += 1
            if kind == "DELETED":
                self._sightings.pop(uid, None)
                return
            before = self._sightings.get(uid)
            times = times_of(pod, before.times if before else None, now)
            if before is None:
                self._seen += 1
                self._sightings[uid] = Sighting(pod, self._seen, _plan(pod), times)
            elif before.pod.spec.node_name:
                self._sightings[uid] = replace(before, pod=pod, times=times)
            else:
                self._sightings[uid] = replace(before, pod=pod, planned=_plan(pod), times=times)


def _plan(pod: Pod) -> ContainerGpus:
    """Return the plan; empty if the pod has none, or one that does not parse."""
    text = pod.metadata.annotations.get(names.GPUS)
    if not text or not pod.spec.node_name:
        return {}
    try:
        return read_gpus(text)
    except AnnotationError:
        return {}
