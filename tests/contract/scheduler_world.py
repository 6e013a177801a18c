"""A scheduler with a recording extender behind it: the stand-in's loop, or kube-scheduler itself.

Back-offs are counted in `second`: a real scheduler's are whole seconds, the stand-in's need not be,
and a scenario states only how they compare.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.support.host.waiting import wait_for
from tests.contract.api_world import NODES, Api, Object
from tests.simulator.scheduler.recording_extender import RecordingExtender

GPU = "nvidia.com/gpu"
GATE = {"name": "linkwise.dev/plan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """What a scenario asks for of KubeSchedulerConfiguration."""

    extender_url: str | None
    backoff: tuple[int, int] = (1, 10)
    weight: int = 1
    managed: tuple[str, ...] = (GPU,)


@dataclass(frozen=True)
class Schedulers:
    """How one is started, and what counts as a second and as silence where it runs."""

    run: Callable[[Configured], AbstractContextManager[None]]
    second: float
    silence_seconds: float


@dataclass
class Scenario:
    """One scenario's cluster: no nodes and no pods but its own."""

    api: Api
    extender: RecordingExtender
    schedulers: Schedulers
    running: list[AbstractContextManager[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.second = self.schedulers.second
        self.extender.answers["bind"] = self.bind

    def start(self, *, alone: bool = False, **more: Any) -> None:
        url = None if alone else more.pop("extender_url", self.extender.url)
        scheduler = self.schedulers.run(Configured(extender_url=url, **more))
        scheduler.__enter__()
        self.running.append(scheduler)
        if more.get("managed", True):  # else the extender would be asked about the probe
            self._wait_until_it_works()

    def _wait_until_it_works(self) -> None:
        self.hear()

    def stop(self) -> None:
        while self.running:
            self.running.pop().__exit__(None, None, None)

    # The cluster

    def bind(self, body: dict[str, Any]) -> dict[str, str]:
        """What an extender does in its bind verb."""
        answer = self.api.bind(body["PodName"], body["Node"], annotations={"by": "extender"})
        return {"Error": "" if answer.status == 201 else answer.body["message"]}

    def nodes(self, *names: str, gpus: int = 8, **spec: object) -> None:
        for name in names:
            amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus)}
            status = {"capacity": amounts, "allocatable": amounts}
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            body = {"metadata": {"name": name}, "spec": spec, "status": status | ready}
            assert self.api.ask("POST", NODES, body).status == 201

    def create(self, name: str, gpus: int = 1, **spec: object) -> Object:
        limits = {GPU: str(gpus)} if gpus else {}
        main = {"name": "main", "image": "x", "resources": {"limits": limits}}
        return self.api.pod(name, containers=[main], **spec)

    def patch(self, name: str, patch: object, *, status: bool = False) -> Object:
        path = f"{self.api.pods}/{name}{'/status' if status else ''}"
        return self.api.patch(path, patch).object

    def annotate(self, name: str, **annotations: str) -> None:
        self.patch(name, {"metadata": {"annotations": annotations}})

    def nominate(self, name: str, node: str) -> None:
        """A plan is written: nomination and annotation, as one patch."""
        plan = {"annotations": {"linkwise.dev/plan": node}}
        self.patch(name, {"metadata": plan, "status": {"nominatedNodeName": node}}, status=True)

    def let_go(self, name: str) -> None:
        self.patch(name, {"spec": {"schedulingGates": None}})

    def delete(self, name: str) -> None:
        self.api.ask("DELETE", f"{self.api.pods}/{name}", {"gracePeriodSeconds": 0})

    # What became of it

    def pod(self, name: str) -> Object:
        return self.api.get(f"{self.api.pods}/{name}")

    def node_of(self, name: str) -> str:
        """Waits until the pod has one."""
        wait_for(lambda: self.pod(name)["spec"].get("nodeName"), f"{name} bound")
        return str(self.pod(name)["spec"]["nodeName"])

    def is_bound(self, name: str) -> bool:
        return "nodeName" in self.pod(name)["spec"]

    def nominated(self, name: str) -> str:
        return str(self.pod(name)["status"].get("nominatedNodeName", ""))

    def says(self, name: str, reason: str) -> str:
        """Waits until the pod's PodScheduled condition gives *reason*; its message."""

        said: list[str] = []

        def is_said() -> bool:
            conditions = self.pod(name)["status"].get("conditions", ())
            scheduled = (c for c in conditions if c["type"] == "PodScheduled")
            said.extend(c.get("message", "") for c in scheduled if c.get("reason") == reason)
            return bool(said)

        wait_for(is_said, f"{name}: {reason}")
        return said[0]

    def hear(self) -> str:
        """Waits until the scheduler has heard of every change of pods, and has tried the pods that
        it tries at once. Events come in order, and the last one is of a probe pod that fits
        nowhere. The probe is deleted again and wakes no pod. Returns the probe's own message."""
        main = {"name": "main", "image": "x"}
        self.api.pod("probe", containers=[main], nodeSelector={"no": "where"}, priority=-1000)
        told = self.says("probe", "Unschedulable")
        self.delete("probe")
        return told

    def hear_of_nodes(self, count: int) -> None:
        """Waits until the scheduler knows of *count* nodes; it hears of them apart from pods."""
        known = f"0/{count} nodes are available" if count else "no nodes available"
        wait_for(lambda: known in self.hear(), f"{count} nodes are known")

    def quiet(self) -> None:
        """Waits until the extender has not been called for a while in which the scheduler worked:
        on a busy machine silence alone says nothing."""
        last = -1
        while len(self.extender.calls) != last:
            last = len(self.extender.calls)
            self.hear()
            self.give_time()
            self.hear()

    def give_time(self) -> None:
        """Waits as long as news mostly take to reach the scheduler: for where a test cannot ask it,
        because it is busy itself."""
        began = time.monotonic()
        needed = self.schedulers.silence_seconds
        wait_for(lambda: time.monotonic() - began > needed, "news to arrive")

    def asked(self, verb: str = "filter") -> list[set[str]]:
        """The nodes of each call so far."""
        return [set(call.nodes) for call in self.extender.of(verb)]


def wipe(api: Api) -> None:
    """No nodes and no pods: what earlier scenarios left would be scheduled."""
    for pod in api.get("/api/v1/pods")["items"]:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        api.ask("DELETE", path, {"gracePeriodSeconds": 0})
    for node in api.get(NODES)["items"]:
        api.ask("DELETE", f"{NODES}/{node['metadata']['name']}")
    assert not api.get("/api/v1/pods")["items"]
