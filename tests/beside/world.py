"""A cluster with the real managers of operators, beside the real control plane and the extender.

Nodes are only objects. `Played` does what kubelets do to the pods, and looks at every step whether
a law is broken.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from linkwise.kube.objects import Pod
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.programs.operators import Operator
from tests.cluster.support.scheduling.contention import given_twice
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF
from tests.cluster.support.scheduling.movable_pods import play_kubelets, say
from tests.cluster.support.scheduling.operator_process import OperatorProcess
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    SchedulingWorld,
    maybe_gone,
    started_world,
)
from tests.cluster.support.scheduling.workload_pods import CONTROLLERS, free

# Of two racks each has room for two members, of the third for one.
RACK = "example.com/rack"
RACKS = {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r2", "n5": "r3"}
NODES = tuple(RACKS)
_BUILT_IN = "deployments", "statefulsets", "jobs"
# What owns others comes first.
KINDS = (
    *("pytorchjobs", "rayclusters", "trainjobs", "mpijobs"),
    *("jobsets", "leaderworkersets", *_BUILT_IN),
)
# Operators delete a group's leader in the foreground, so its owners must be collected.
_CONTROLLERS = (
    f"{CONTROLLERS},garbage-collector-controller,ttl-after-finished-controller,"
    "resourcequota-controller"
)
# Operators compare priorities, so pods get theirs.
_ADMISSION_OFF = [each for each in ADMISSION_OFF if each != "Priority"]
_SETTLED_SECONDS = 5.0
_LIVE = "Pending", "Running"
_EVERY_SECONDS = 0.1


def control_with(directory: Path, *operators: Operator) -> ControlPlane:
    """Return a started control plane with the managers of *operators*, which end with the
    sandbox."""
    control = ControlPlane(
        directory,
        disable_admission=_ADMISSION_OFF,
        controller_flags=(f"--controllers={_CONTROLLERS}",),
    )
    control.start()
    for operator in operators:
        # One after the other: no pod is created while webhooks of any are not answered.
        manager = OperatorProcess(control, operator)
        manager.start()
        control.parts[manager.process.name] = manager.process
    if operators:
        # Else the garbage collector sees the new kinds up to 30 s later.
        control.parts["kube-controller-manager"].restart()
    return control


@contextmanager
def world_beside(
    directory: Path, *operators: Operator, extender_flags: Sequence[str] = ()
) -> Iterator[SchedulingWorld]:
    control = control_with(directory, *operators)
    labels = {node: {RACK: rack} for node, rack in RACKS.items()}
    world = SchedulingWorld(control, labels=labels, extender_flags=extender_flags)
    with started_world(world, NODES):
        yield world


def clean(world: SchedulingWorld) -> None:
    """Delete all workloads and pods. Return when all GPUs are free."""
    remove(world, NAMESPACE)
    wait_for(lambda: _has_no_pods(world) and not world.taken(), "no pods, and all GPUs are free")


def remove(world: SchedulingWorld, namespace: str) -> None:
    """Delete the workloads and pods of the namespace of which *world* is a view."""
    defined = world.control.kubectl("get", "crds", "-o=name")
    kinds = ",".join(kind for kind in KINDS if kind in _BUILT_IN or f"/{kind}." in defined)

    def is_empty() -> bool:
        options = "--all", "--cascade=background", "--wait=false"
        world.control.kubectl("delete", kinds, f"-n={namespace}", *options)
        wait_for(lambda: _has_no_pods(world), f"{namespace} has no pods")
        return not world.control.kubectl("get", kinds, f"-n={namespace}", "-o=name")

    wait_for(is_empty, f"{namespace} has no workloads")


def _has_no_pods(world: SchedulingWorld) -> bool:
    pods = world.pods()
    for pod in pods:
        with maybe_gone():
            free(world, pod.metadata.name)
    return not pods


def leave_room(world: SchedulingWorld, *nodes: str) -> None:
    """Fill all nodes except *nodes*, until `empty`."""
    for node in NODES:
        if node not in nodes:
            world.place(occupant(node), node, 8)
    full = 8 * (len(NODES) - len(nodes))
    wait_for(lambda: len(world.taken()) == full, f"{', '.join(nodes)} and no others are free")


def empty(world: SchedulingWorld, node: str) -> None:
    world.delete(occupant(node))


def occupant(node: str) -> str:
    return f"occupant-{node}"


Law = Callable[[Sequence[Pod]], str]
"""Says what is wrong with the pods of one look; empty if nothing is."""


class Played:
    """Kubelets that run every bound pod, except that pods of the apps `unready` do not become
    ready. At every look no GPU may be given twice, and no *law* broken."""

    def __init__(self, world: SchedulingWorld, *laws: Law, unready: Collection[str] = ()) -> None:
        self._world, self._laws = world, laws
        self.unready = {*unready}

    def until(self, so: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        def seen() -> object:
            self._step()
            return so()

        try:
            wait_for(seen, what, seconds)
        except AssertionError as error:
            pods = self._world.pods()
            lines = (idle(pods), *untrue(self._world), described(self._world))
            raise AssertionError("\n".join([str(error), *filter(None, lines)])) from None

    def until_waiting(self, app: str, pods: int) -> None:
        """Until that many of the app's pods exist and the extender was asked about them."""
        self.until(lambda: len(self._tried(app)) == pods, f"{app} has {pods} pods that wait")

    def _tried(self, app: str) -> list[Pod]:
        pods = of(self._world.pods(), app)
        return [pod for pod in pods if any(c.type == "PodScheduled" for c in pod.status.conditions)]

    def until_running(self, app: str, pods: int) -> None:
        self.until(lambda: running(self._world, app) == pods, f"{app} runs {pods} pods")

    def settle(self, seconds: float = _SETTLED_SECONDS) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self._step()
            time.sleep(_EVERY_SECONDS)

    def at_rest(self) -> None:
        """Settle. Then no node is free that a waiting workload could have, and `explain` says of
        each pod what the API server says."""
        self.settle()
        world = self._world
        self.until(lambda: not idle(world.pods()), "no node is free for what waits")
        self.until(lambda: not untrue(world), "`explain` is true")

    def _step(self) -> None:
        play_kubelets(self._world, unready=self.unready)
        pods = self._world.pods()
        broken = [*given_twice(pods), *(said for law in self._laws if (said := law(pods)))]
        assert not broken, f"{broken}\n{described(self._world)}"


def described(world: SchedulingWorld) -> str:
    """Return each pod with its node, or with why it has none."""
    lines = []
    for pod in world.pods():
        name = pod.metadata.name
        with maybe_gone():
            why = pod.spec.node_name or world.reason(name) or "not tried"
            lines.append(f"  {name} {pod.status.phase}: {why[:300]}")
    return "\n".join(lines)


def idle(pods: Sequence[Pod]) -> str:
    """Say which workload waits although nodes for all of its pods are free, which take a node
    each."""
    live = [pod for pod in pods if pod.status.phase not in ("Failed", "Succeeded")]
    taken = {pod.spec.node_name for pod in live}
    waiting: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in live:
        leaves = pod.is_leaving
        if not (pod.spec.node_name or pod.spec.scheduling_gates or leaves):
            waiting[pod.metadata.labels.get("app", pod.metadata.name)].append(pod)
    for app, open_ in waiting.items():
        selected = [open_[0].spec.node_selector.get(RACK, rack) == rack for rack in RACKS.values()]
        suits = [node for node, is_there in zip(NODES, selected, strict=True) if is_there]
        free_nodes = [node for node in suits if node not in taken]
        if len(free_nodes) >= len(open_):
            return f"{app} waits with {len(open_)} pods, and {', '.join(free_nodes)} are free"
    return ""


def untrue(world: SchedulingWorld) -> list[str]:
    """Return what `explain` says that the API server does not."""
    found = []
    pods = {pod.metadata.name: pod for pod in world.pods() if pod.status.phase in _LIVE}
    for name, pod in pods.items():
        if pod.is_leaving:
            continue
        said = json.loads(world.asked(f"/explain/{pod.metadata.namespace}/{name}"))
        members = ((said.get("gang") or {}).get("gang") or {}).get("members", ())
        bound_ = {each["pod"]: each["node"] for each in members if each["state"] == "bound"}
        node = pod.spec.node_name
        is_bound = said.get("state") == "bound"
        if is_bound != bool(node) or (node and said["node"] != node) or not said.get("summary"):
            found.append(f"{name} is on {node or 'no node'}, explained: {said}"[:400])
        others = {member: pods[member].spec.node_name for member in bound_ if member in pods}
        if others != {member: bound_[member] for member in others}:
            found.append(f"{name}: its gang is on {others}, explained: {bound_}")
    return found


# What became of the pods. A pod's app is its workload.


def of(pods: Sequence[Pod], app: str) -> list[Pod]:
    return sorted(
        (
            pod
            for pod in pods
            if pod.metadata.labels.get("app") == app
            and not pod.is_leaving
            and pod.status.phase not in ("Failed", "Succeeded")
        ),
        key=lambda pod: pod.metadata.name,
    )


def bound(pods: Sequence[Pod], app: str) -> list[str]:
    return [pod.metadata.name for pod in of(pods, app) if pod.spec.node_name]


def ended(world: SchedulingWorld, app: str) -> None:
    """All pods of the app succeed."""
    for pod in of(world.pods(), app):
        succeed(world, pod)


def fail(world: SchedulingWorld, pod: Pod) -> None:
    """As a kubelet does whose container ended with an error."""
    say(world, pod, "Failed", {"terminated": {"exitCode": 1}}, ready="False")


def succeed(world: SchedulingWorld, pod: Pod) -> None:
    say(world, pod, "Succeeded", {"terminated": {"exitCode": 0}}, ready="False")


def running(world: SchedulingWorld, app: str) -> int:
    return sum(pod.status.phase == "Running" for pod in of(world.pods(), app))


def places(world: SchedulingWorld, app: str) -> set[tuple[str, tuple[str, ...]]]:
    """Return node and GPUs of each running pod."""
    return {
        (pod.spec.node_name, tuple(sorted(world.gpus_of(pod.metadata.name))))
        for pod in of(world.pods(), app)
        if pod.status.phase == "Running"
    }


def racks(world: SchedulingWorld, app: str) -> set[str]:
    return {RACKS[pod.spec.node_name] for pod in of(world.pods(), app) if pod.spec.node_name}


def one_at_a_time(*apps: str) -> Law:
    """Not two of the apps have bound pods: there is room for one."""

    def look(pods: Sequence[Pod]) -> str:
        started = [app for app in apps if bound(pods, app)]
        return f"there is room for one, and {started} have started" if len(started) > 1 else ""

    return look


def none_bound(*apps: str) -> Law:
    """For what must wait whole."""

    def look(pods: Sequence[Pod]) -> str:
        early = [name for app in apps for name in bound(pods, app)]
        return f"bound too early: {', '.join(early)}" if early else ""

    return look


def still_waits(name: str) -> Law:
    """The pod is not bound: what is free is kept for others."""

    def look(pods: Sequence[Pod]) -> str:
        nodes = [p.spec.node_name for p in pods if p.metadata.name == name and p.spec.node_name]
        return f"{name} got a place on {nodes[0]} that is kept for another pod" if nodes else ""

    return look


def none_on(node: str, *apps: str) -> Law:
    def look(pods: Sequence[Pod]) -> str:
        there = [p.metadata.name for a in apps for p in of(pods, a) if p.spec.node_name == node]
        return f"on {node}: {', '.join(there)}" if there else ""

    return look


def one_that_goes_gets_its_place_back(
    world: SchedulingWorld,
    going: int = 1,
    goes: Callable[[SchedulingWorld, Pod], None] = fail,
) -> None:
    """The law of a lost place, for the two pods of `one` on a full cluster. *going*: which of
    them, by name."""
    played = Played(world)
    played.until_running("one", 2)
    before = places(world, "one")
    world.create("waiter")
    world.wait_without_room("waiter")
    played = Played(world, still_waits("waiter"))
    played.settle()

    gone = of(world.pods(), "one")[going]
    goes(world, gone)

    def is_replaced() -> bool:
        pods = {pod.metadata.uid for pod in of(world.pods(), "one")}
        return gone.metadata.uid not in pods and running(world, "one") == 2

    played.until(is_replaced, "another pod runs instead of the one that went")
    assert places(world, "one") == before


def of_two_one_runs_whole(world: SchedulingWorld, create: Callable[[str], None]) -> None:
    """The law of all or nothing, for two workloads of two pods: `one` and `two`."""
    leave_room(world, "n1", "n2")
    played = Played(world, one_at_a_time("one", "two"))
    for name in ("one", "two"):
        create(name)
    played.until(lambda: 2 in (running(world, "one"), running(world, "two")), "one runs whole")
    played.at_rest()

    empty(world, "n3")
    empty(world, "n4")

    played = Played(world)
    for name in ("one", "two"):
        played.until_running(name, 2)
    played.at_rest()
