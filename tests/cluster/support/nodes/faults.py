"""Faults of a cluster, and the moments of an allocation at which they strike.

An allocation takes milliseconds. To hold a moment, a test stops (SIGSTOP) the program that acts
next: the scheduler, the kubelet, the plugin or containerd. All others go on, so a fault strikes
exactly there. Afterwards the stopped program continues, unless the fault has killed it.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import grpc
import urllib3

from linkwise.kube.errors import ApiError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes.deployment import (
    EXTENDER_PODS,
    PLUGIN_PODS,
    SYSTEM,
    DeployedLinkwise,
)
from tests.cluster.support.nodes.gpu_holders import (
    key_of,
    podresources,
    processes_of,
    running,
    staying,
    unsound,
)
from tests.cluster.support.nodes.node import RealNode
from tests.cluster.support.nodes.workloads import GIVEN

HERE, THERE = "node-1", "node-2"  # faults of one node strike the first
# Why a kubelet refused a pod for good: its devices were missing, or not free.
REFUSED = "UnexpectedAdmissionError"
_POD_UID = re.compile(r"/pod([0-9a-f-]{36})")


class AllocationPhase(Enum):
    """The progress of an allocation. Each phase ends where the next one begins."""

    CREATED = "created"
    PLANNED = "planned and nominated"
    BOUND = "bound, the kubelet has not asked"
    ASKED = "the kubelet asks which GPUs"
    ALLOCATED = "allocated, no container yet"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Work:
    """Pods that take every GPU of the first node, or of both. New ones replace lost ones, as with
    any controller."""

    manifests: Sequence[Mapping[str, Any]]
    selector: str
    count: int

    def pods(self, deployed: DeployedLinkwise) -> list[dict[str, Any]]:
        """Return the pods that are not ending."""
        found = staying(deployed, self.selector)
        return [pod for pod in found if pod["status"]["phase"] in ("Pending", "Running")]

    def uids(self, deployed: DeployedLinkwise) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(deployed)}

    def unbound(self, deployed: DeployedLinkwise) -> list[str]:
        """Return the pods without a node."""
        found = self.pods(deployed)
        return [key_of(pod) for pod in found if not pod["spec"].get("nodeName")]

    def refused(self, deployed: DeployedLinkwise) -> list[str]:
        """Return the kubelet's reasons for the pods that it refused."""
        found = deployed.pods(self.selector)
        return [p["status"].get("reason", "?") for p in found if p["status"]["phase"] == "Failed"]

    def waiting(self, deployed: DeployedLinkwise) -> list[str]:
        """Return the pods that do not run yet."""
        phases = [pod["status"]["phase"] for pod in self.pods(deployed)]
        return [] if phases == ["Running"] * self.count else [f"{self.selector}: {phases}"]


# Moments


@contextmanager
def held(deployed: DeployedLinkwise, phase: AllocationPhase, work: Work) -> Iterator[None]:
    """Create *work*, and hold *phase* on the first node."""
    node = deployed.cluster.nodes[HERE]
    if phase is AllocationPhase.ENDING:
        deployed.apply(*work.manifests)
        running(deployed, work.selector, work.count)
    if phase is AllocationPhase.ALLOCATED:
        # A kubelet that meets a stopped containerd during its cleanup, every 2 s, stops handling
        # pods. So stop containerd while the kubelet waits for the plugin's answer.
        with held(deployed, AllocationPhase.ASKED, work), ExitStack() as standing_still:
            standing_still.enter_context(stopped(node.containerd.pid))
            carried_over = standing_still.pop_all()
        with carried_over:
            wait_for(lambda: _is_at(deployed, phase, work), f"the pods are {phase.value}", 60)
            yield
        return
    with stopped(_who_acts_next(deployed, phase)):
        if phase is AllocationPhase.ENDING:
            doomed = {key_of(pod) for pod in work.pods(deployed)}
            # Long enough to be seen while ending on a busy machine.
            ending = ("--wait=false", "--grace-period=10")
            deployed.kubectl("delete", "pods", f"--selector={work.selector}", *ending)
            wait_for(
                lambda: (
                    len([p for p in work.pods(deployed) if key_of(p) not in doomed]) == work.count
                ),
                "others wait for the GPUs of those that end",
            )
            wait_for(lambda: "StopContainer" in stacks(deployed, node), "the kubelet ends them")
        else:
            deployed.apply(*work.manifests)
            wait_for(lambda: _is_at(deployed, phase, work), f"the pods are {phase.value}", 60)
        yield


def _who_acts_next(deployed: DeployedLinkwise, phase: AllocationPhase) -> int | None:
    node = deployed.cluster.nodes[HERE]
    match phase:
        case AllocationPhase.CREATED | AllocationPhase.PLANNED:
            return deployed.control.parts["kube-scheduler"].pid
        case AllocationPhase.BOUND:
            return node.kubelet.pid
        case AllocationPhase.ASKED:
            return plugin_of(deployed, HERE)
        case _:  # these phases last long enough
            return None


def _is_at(deployed: DeployedLinkwise, phase: AllocationPhase, work: Work) -> bool:
    pods = work.pods(deployed)
    if len(pods) != work.count:
        return False
    node = deployed.cluster.nodes[HERE]
    here = {key_of(pod) for pod in pods if pod["spec"].get("nodeName") == HERE}
    # Members on the other node run already.
    bound = all(key_of(pod) in here or pod["status"]["phase"] == "Running" for pod in pods)
    match phase:
        case AllocationPhase.CREATED:
            return True
        case AllocationPhase.PLANNED:
            return all(
                pod["status"].get("nominatedNodeName") and not pod["spec"].get("schedulingGates")
                for pod in pods
            )
        case AllocationPhase.BOUND:
            return bound
        case AllocationPhase.ASKED:
            return bound and "getPreferredAllocation" in stacks(deployed, node)
        case AllocationPhase.ALLOCATED:
            return bound and here <= podresources(node).keys()
        case _:
            return not work.waiting(deployed)


@contextmanager
def stopped(pid: int | None) -> Iterator[None]:
    """Stop the process inside the block, unless it is killed."""
    if pid is None:
        yield
        return
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def stacks(deployed: DeployedLinkwise, node: RealNode) -> str:
    """Return the stack of each goroutine of the kubelet."""
    path = f"/api/v1/nodes/{node.name}/proxy/debug/pprof/goroutine?debug=2"
    return deployed.kubectl("get", "--raw", path)


# Faults


@dataclass(frozen=True, slots=True)
class ClusterFault:
    """`strike` ends something at one moment. `mend` does what the machine, or its operator, does
    then, and returns when that is done. It runs whether or not `strike` was reached."""

    name: str
    strike: Callable[[DeployedLinkwise], None]
    mend: Callable[[DeployedLinkwise], None] = field(default=lambda _: None)


def kill(pid: int) -> None:
    """Kill it. Return when it is gone, or when only its parent still knows it."""
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}/root").exists(), f"process {pid} ends")


def _start_kubelet(deployed: DeployedLinkwise) -> None:
    node = deployed.cluster.nodes[HERE]
    if not node.kubelet.alive:
        node.kubelet.start()
    node.wait_ready()


def _start_containerd(deployed: DeployedLinkwise) -> None:
    node = deployed.cluster.nodes[HERE]
    if not node.containerd.alive:
        node.containerd.start()
    node.wait_containerd()


def _start_scheduler(deployed: DeployedLinkwise) -> None:
    scheduler = deployed.control.parts["kube-scheduler"]
    if not scheduler.alive:
        scheduler.start()


def _wait_extender(deployed: DeployedLinkwise) -> None:
    wait_for(lambda: deployed.ask_extender("/nodes"), "the extender answers again", 60)


def _start_node(deployed: DeployedLinkwise) -> None:
    node = deployed.cluster.nodes[HERE]
    if not node.kubelet.alive:
        node.start()


KUBELET = ClusterFault("kubelet", lambda d: d.cluster.nodes[HERE].kubelet.kill(), _start_kubelet)
CONTAINERD = ClusterFault(
    "containerd", lambda d: d.cluster.nodes[HERE].containerd.kill(), _start_containerd
)
SCHEDULER = ClusterFault(
    "scheduler", lambda d: d.control.parts["kube-scheduler"].kill(), _start_scheduler
)
POWER = ClusterFault("power", lambda d: d.cluster.nodes[HERE].stop(), _start_node)
# The kubelet restarts their containers.
PLUGIN = ClusterFault("plugin", lambda d: kill(plugin_of(d, HERE)))
EXTENDER = ClusterFault("extender", lambda d: kill(extender_of(d)), _wait_extender)


def plugin_of(deployed: DeployedLinkwise, node: str) -> int:
    """Return the plugin's process on *node*."""
    (pod,) = (
        pod
        for pod in deployed.pods(PLUGIN_PODS, namespace=SYSTEM)
        if pod["spec"]["nodeName"] == node
    )
    return _process(pod, "linkwise-plugin")


def extender_of(deployed: DeployedLinkwise) -> int:
    """Return the process of the leading extender."""
    return _process(deployed.extender(), "linkwise-extender")


def _process(pod: Mapping[str, Any], program: str) -> int:
    (process,) = processes_of(pod, program)
    return int(process.name)


# What must hold afterwards


def unsettled(deployed: DeployedLinkwise, *works: Work) -> list[str]:
    """Return what does not run, does not agree or is still in progress. Works while kubelets
    restart."""
    try:
        assert not (twice := taken_twice()), twice
        return [
            *(problem for work in works for problem in work.waiting(deployed)),
            *unready(deployed),
            *deployed.missing(),
            *unsound(deployed),
        ]
    except (grpc.RpcError, ApiError, urllib3.exceptions.HTTPError) as error:
        return [f"no answer: {error}"]


def unready(deployed: DeployedLinkwise) -> list[str]:
    """Return which Linkwise programs report that they are not ready, or do not answer; earlier than
    the kubelet sees it."""
    programs = [
        pod
        for selector in (PLUGIN_PODS, EXTENDER_PODS)
        for pod in deployed.pods(selector, namespace=SYSTEM)
    ]
    return [pod["metadata"]["name"] for pod in programs if not _says_ready(pod)]


def _says_ready(pod: Mapping[str, Any]) -> bool:
    (container,) = pod["spec"]["containers"]
    probe = container["readinessProbe"]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    address = f"http://{pod['status'].get('podIP')}:{ports[probe['port']]}{probe['path']}"
    try:
        return urllib3.request("GET", address, timeout=2.0, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def taken_twice() -> list[str]:
    """Return GPUs that running processes of two pods got, whatever the records say."""
    return [f"{gpu} was given to pods {uids}" for gpu, uids in takers().items() if len(uids) > 1]


def takers() -> dict[str, set[str]]:
    """Return for each GPU the uids of the pods whose running processes got it."""
    found: dict[str, set[str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended since the listing
            if pod := _POD_UID.search((process / "cgroup").read_text()):
                for gpu in _given(process):
                    found.setdefault(gpu, set()).add(pod[1])
    return found


def _given(process: Path) -> list[str]:
    """Return the GPUs in its environment, as inherited from the container's first process."""
    entries = (process / "environ").read_text(errors="replace").split("\0")
    values = [entry.removeprefix(f"{GIVEN}=") for entry in entries if entry.startswith(f"{GIVEN}=")]
    return [gpu for value in values for gpu in value.split(",") if gpu.startswith("GPU-")]


def restarts(pod: Mapping[str, Any]) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ()))
