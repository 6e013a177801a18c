"""A cluster of nodes that are only objects, with the real extender and the real kube-scheduler.

The tests do what kubelets do to pods; no container runs.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from linkwise.kube.errors import ApiError
from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import (
    GPU,
    ExtenderProcess,
    allow_extender,
    gpu_node,
    guard_plans,
    scheduler_config,
    scheduler_env,
)

NAMESPACE = "ml"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NODES = ("n1", "n2", "n3", "n4")
ZONE = "topology.kubernetes.io/zone"  # as every cloud labels its nodes
# kube-scheduler retries after at most 10 s, and the machine may be busy.
PATIENCE_SECONDS = 60.0


class PodItems(msgspec.Struct):
    items: tuple[Pod, ...]


class EventText(msgspec.Struct):
    reason: str = ""
    message: str = ""


class EventItems(msgspec.Struct):
    items: tuple[EventText, ...]


class SchedulingWorld:
    """The cluster, on a started control plane without node controllers."""

    def __init__(
        self,
        control: ControlPlane,
        *,
        scheduler_flags: Sequence[str] = (),
        scheduler_settings: Mapping[str, object] | None = None,
        extender_flags: Sequence[str] = (),
        labels: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """All nodes are in one zone, except where *labels* give another."""
        self.control, self._scheduler_flags = control, scheduler_flags
        self._scheduler_settings = scheduler_settings or {}
        self._extender_flags = extender_flags
        self._labels = labels or {}
        self.client = control.client()
        self.scheduler: LoggedProcess | None = None

    def start(self, nodes: Sequence[str] = NODES) -> None:
        self.control.kubectl("create", "namespace", NAMESPACE)
        allow_extender(self.control)
        self.extender = ExtenderProcess(self.control, *self._extender_flags)
        guard_plans(self.control)
        self._nodes = sorted(nodes)
        for name in nodes:
            said = {ZONE: "eu-west-1", **self._labels.get(name, {})}
            self.client.post("/api/v1/nodes", gpu_node(name, labels=said))
        self.extender.start()
        self.scheduler = self.control.start_scheduler(
            {**scheduler_config(self.control, self.extender.calls), **self._scheduler_settings},
            flags=self._scheduler_flags,
            env=scheduler_env(),
        )

    def stop(self) -> None:
        self.extender.process.stop()
        self.control.stop()

    def clear(self) -> None:
        """Restore the initial state: no pods, the same nodes, both programs running."""
        for pod in self.pods():
            with maybe_gone():
                self.delete(pod.metadata.name)
        assert self.scheduler is not None
        if not self.scheduler.alive:
            self.scheduler.start()
        if not self.extender.process.alive:
            self.extender.start()
        wait_for(lambda: not self.taken(), "the extender has seen that all GPUs are free")
        wait_for(lambda: sorted(self.known()) == self._nodes, "and which nodes there are")

    # Actions of users and kubelets

    def create(
        self,
        name: str,
        gpus: int = 8,
        *,
        annotations: Mapping[str, str] | None = None,
        gated: bool = False,
        priority: int = 0,
        scheduler: str = "default-scheduler",
    ) -> str:
        resources = {"limits": {GPU: str(gpus)}, "requests": {GPU: str(gpus)}}
        spec: dict[str, Any] = {
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "priority": priority,
            "schedulerName": scheduler,
            # else the pod is a server, which frees no GPUs that others could wait for
            "restartPolicy": "Never",
        }
        if gated:
            spec["schedulingGates"] = [{"name": names.GATE}]
        metadata = {"name": name, "annotations": dict(annotations or {})}
        self.client.post(PODS, {"metadata": metadata, "spec": spec})
        return name

    def create_gang(self, name: str, size: int, *, gated: bool = False) -> list[str]:
        said = {names.GANG: name, names.GANG_SIZE: str(size)}
        return [
            self.create(f"{name}-{rank}", annotations=said, gated=gated) for rank in range(size)
        ]

    def place(self, name: str, node: str, gpus: int) -> None:
        """Create a pod on a node, past every scheduler."""
        resources = {"limits": {GPU: str(gpus)}}
        container = {"name": "main", "image": "none", "resources": resources}
        spec = {"containers": [container], "nodeName": node, "restartPolicy": "Never"}
        self.client.post(PODS, {"metadata": {"name": name}, "spec": spec})

    def delete(self, name: str) -> None:
        """Delete the pod at once, as if its kubelet had ended it."""
        self.client.delete(f"{PODS}/{name}", grace_seconds=0)

    def bury_terminating(self) -> None:
        for pod in self.pods():
            if pod.is_leaving:
                with maybe_gone():
                    self.delete(pod.metadata.name)

    # Results

    def pods(self) -> tuple[Pod, ...]:
        return self.client.get(PODS, PodItems).items

    def read(self, name: str) -> Pod:
        return self.client.get(f"{PODS}/{name}", Pod)

    def node_of(self, name: str) -> str:
        return self.read(name).spec.node_name

    def nominated(self, name: str) -> str:
        return self.read(name).status.nominated_node_name

    def wait_bound(self, pods: Sequence[str]) -> None:
        wait_for(
            lambda: all(self.node_of(name) for name in pods),
            f"all bound: {', '.join(pods)}",
            PATIENCE_SECONDS,
        )

    def wait_waiting(self, name: str, why: str) -> None:
        """Wait until kube-scheduler's reason on the pod contains *why*."""
        try:
            wait_for(lambda: why in self.reason(name), f"{name} waits: {why}", PATIENCE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}, but: {self.reason(name)}") from None

    def wait_without_room(self, name: str) -> None:
        self.wait_waiting(name, f"Insufficient {GPU}")

    def wait_in_gang(self, name: str) -> None:
        """Wait until the pod was tried, and waits as a member of its gang."""
        self.wait_waiting(name, "linkwise: gang")

    def reason(self, name: str) -> str:
        """Return what `kubectl describe pod` shows under the condition PodScheduled."""
        return " ".join(
            condition.message
            for condition in self.read(name).status.conditions
            if condition.type == "PodScheduled" and condition.status == "False"
        )

    def events(self, name: str) -> list[str]:
        path = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.name%3D{name}"
        return [
            f"{event.reason}: {event.message}" for event in self.client.get(path, EventItems).items
        ]

    def gpus_of(self, name: str) -> tuple[str, ...]:
        """Return the planned GPUs of a bound pod's only container. Checks that the plan is for its
        node."""
        pod = self.read(name)
        said = pod.metadata.annotations
        assert read_plan(said[names.PLAN]).node == pod.spec.node_name
        (gpus,) = read_gpus(said[names.GPUS]).values()
        return gpus

    def known(self) -> list[str]:
        """Return the nodes that the extender knows."""
        return [str(view["name"]) for view in self._books()]

    def taken(self) -> list[str]:
        """Return the GPUs that are not free according to the extender."""
        return [
            f"{view['name']}/{gpu['index']}"
            for view in self._books()
            for gpu in view["gpus"]
            if gpu["state"] != "free"
        ]

    def asked(self, path: str) -> str:
        """Return the extender's answer at its status port."""
        return self.extender.get(path)

    def _books(self) -> list[dict[str, Any]]:
        return list(msgspec.json.decode(self.asked("/nodes")))


@contextmanager
def maybe_gone() -> Iterator[None]:
    """Ignore that a listed object is gone: meanwhile a controller has deleted it."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


@contextmanager
def started_world(
    world: SchedulingWorld, nodes: Sequence[str] = NODES
) -> Iterator[SchedulingWorld]:
    """Start *world*, and stop it and its control plane afterwards. Keep the logs if it does not
    start."""
    try:
        world.start(nodes)
        yield world
    finally:
        world.stop()
    shutil.rmtree(world.control.directory, ignore_errors=True)
