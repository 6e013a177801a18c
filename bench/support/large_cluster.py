"""The core alone in a large cluster, and a lock like the shell's that measures how long it is held.

Without HTTP and without an API server: a benchmark hands the core its events and takes its actions.
"""

import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec

from linkwise.extender.api.action_effects import applied
from linkwise.extender.api.actions import Action, Emit, Evict, WritePlan
from linkwise.extender.api.extender_calls import BindCall, BindOrder, BindWaits, FilterCall, Outcome
from linkwise.extender.core import Core
from linkwise.extender.core_settings import CoreSettings
from linkwise.kube.objects import (
    Condition,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.annotations.plan import InUse, Plan, write_gpus, write_in_use, write_plan
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine

GPU = names.DEFAULT_RESOURCE
T = TypeVar("T")
START = 1_750_000_000.0
LEAF, SPINE = 32, 256  # nodes below one switch
ZONES = 3
STATES = ("idle", "half-full", "fragmented")  # and "full", with pods of two GPUs


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds by the clock, and CPU time of this thread, which a busy machine hardly changes."""

    wall: float = 0.0
    cpu: float = 0.0

    @classmethod
    def so_far(cls) -> "Spent":
        return cls(time.perf_counter(), time.thread_time())

    def since(self, begun: "Spent") -> "Spent":
        return Spent(self.wall - begun.wall, self.cpu - begun.cpu)

    def or_more(self, other: "Spent") -> "Spent":
        return Spent(max(self.wall, other.wall), max(self.cpu, other.cpu))


class Watched:
    """A lock like the shell's that records the longest time for which it was held."""

    def __init__(self) -> None:
        self._since = self.longest = Spent()

    def __enter__(self) -> None:
        self._since = Spent.so_far()

    def __exit__(self, *_: object) -> None:
        self.longest = self.longest.or_more(Spent.so_far().since(self._since))

    def step_aside(self, work: Callable[[], T]) -> T:
        self.__exit__()
        try:
            return work()
        finally:
            self.__enter__()


class LoadedCore:
    """The core and its cluster."""

    def __init__(
        self, nodes: int, state: str, seed: int, settings: CoreSettings | None = None
    ) -> None:
        self._draw = random.Random(seed)
        self.core = Core(settings or CoreSettings())
        self.now = START
        self.lock = Watched()
        self.core.set_unlocker(self.lock.step_aside)
        self._number = 0
        machines = [recorded_machine(name, node="n") for name in ("hgx-h100", "dgx-a100")]
        made, pods = [], []
        for number in range(nodes):
            machine = _named(machines[number * 2 // nodes], f"n{number:05d}")
            tenants = dict(self._tenants(machine, state))
            made.append(_node(number, nodes, machine, tenants))
            pods += [_tenant(made[-1].metadata.name, name, g) for name, g in tenants.items()]
        self.pods = {pod.metadata.uid: pod for pod in pods}
        self._held: list[str] = []
        self.core.replace_nodes(made, START)
        self.core.replace_pods(pods, START)
        self.core.replace_budgets([], START)
        self.core.decide(START)
        gc.collect()
        gc.freeze()  # as the extender does once its cache is complete
        gc.set_threshold(20_000, 20, 20)

    def _tenants(self, machine: Machine, state: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The running pods of a node, with their GPUs."""
        if state == "idle" or (state == "half-full" and self._draw.random() < 0.5):
            return
        free = [gpu.uuid for gpu in machine.gpus]
        if state == "half-full":
            sizes = [8]
        elif state == "full":
            sizes = [2] * 4
        else:
            self._draw.shuffle(free)
            sizes = [self._draw.choice((1, 1, 2, 3)) for _ in range(self._draw.randint(0, 3))]
        for size in sizes:
            share, free = tuple(free[:size]), free[size:]
            if share:
                self._number += 1
                yield f"tenant-{self._number}", share

    def plan(self, size: int, gpus: int) -> tuple[Spent, Spent, str] | None:
        """(time until the writes of one gang, longest time that the lock was held, the gang's
        span)."""
        self._number += 1
        gang = f"gang-{self._number}"
        pods = [member(gang, rank, size, gpus) for rank in range(size)]
        for pod in pods[:-1]:
            self.core.pod_event("ADDED", pod, self.now)
        self.core.decide(self.now)
        self.now += 1.0  # looks at a large gang are rate-limited
        self.lock.longest = Spent()
        begun = Spent.so_far()
        with self.lock:
            self.core.pod_event("ADDED", pods[-1], self.now)
        with self.lock:
            actions = self.core.decide(self.now)
        spent = Spent.so_far().since(begun)
        plans = [action for action in actions if isinstance(action, WritePlan)]
        for pod in pods:
            self.core.pod_event("DELETED", pod, self.now)
        self.core.decide(self.now)
        if not plans:
            return None
        span = plans[0].annotations[names.PLAN].partition('"span":"')[2].partition("=")[0]
        return spent, self.lock.longest, span

    def carry_out(self, actions: Iterable[Action], holds: "Holds") -> None:
        """As the API server and the shell do: each action changes its pod, which the core hears."""
        for action in actions:
            uid = action.pod.uid
            if isinstance(action, Evict):
                self.put(self.pods[uid], holds, "DELETED")
                del self.pods[uid]
            elif not isinstance(action, Emit):
                self.put(applied(action, self.pods[uid]), holds)
            holds.of("an outcome", partial(self.core.done, action, Outcome.DONE, self.now))

    def put(self, pod: Pod, holds: "Holds", kind: str = "MODIFIED") -> None:
        self.pods[pod.metadata.uid] = pod
        holds.of("a change of a pod", lambda: self.core.pod_event(kind, pod, self.now))

    def decide(self, holds: "Holds") -> list[Action]:
        """One more round, as far from the last one as when 100 pods a second are bound."""
        self.now += 0.01
        return [*holds.of("a round of the planner", lambda: self.core.decide(self.now))]

    def bind(self, uid: str, holds: "Holds") -> None:
        """Ask and bind as kube-scheduler does with a nominated pod. The call may have to wait for
        other members: then the pod is one of `released` once they have come."""
        pod = self.pods[uid]
        node, meta = pod.status.nominated_node_name, pod.metadata
        holds.of("filter", lambda: self.core.filter(FilterCall(pod, (node,)), self.now))
        call = BindCall(meta.namespace, meta.name, uid, node, pod.spec.scheduler_name)
        order = holds.of("bind", lambda: self.core.begin_bind(call, self.now))
        if isinstance(order, BindWaits):
            self._held.append(uid)
            return
        assert isinstance(order, BindOrder), order
        said = {**meta.annotations, **order.annotations}
        spec = msgspec.structs.replace(pod.spec, node_name=node)
        metadata = msgspec.structs.replace(meta, annotations=said)
        status = msgspec.structs.replace(pod.status, phase="Running")  # its kubelet is quick
        bound = msgspec.structs.replace(pod, metadata=metadata, spec=spec, status=status)
        self.put(bound, holds)
        holds.of("bind", lambda: self.core.end_bind(order, Outcome.DONE, self.now))

    def released(self, holds: "Holds") -> list[str]:
        """The pods whose calls waited, and should be made again."""
        if not holds.of("bind", self.core.take_released):
            return []
        released, self._held = self._held, []
        return released


class Holds:
    """For how long each kind of work held the lock at most."""

    def __init__(self, lock: Watched) -> None:
        self._lock = lock
        self.longest: dict[str, Spent] = {}

    def of(self, title: str, work: Callable[[], T]) -> T:
        self._lock.longest = Spent()
        with self._lock:
            found = work()
        self.longest[title] = self.longest.get(title, Spent()).or_more(self._lock.longest)
        return found


def _named(machine: Machine, node: str) -> Machine:
    gpus = tuple(replace(gpu, uuid=f"GPU-{node}-{gpu.index}") for gpu in machine.gpus)
    return replace(machine, gpus=gpus)


def _node(number: int, nodes: int, machine: Machine, tenants: dict[str, tuple[str, ...]]) -> Node:
    name = f"gpu-node-{number:05d}.eu-west.example.internal"
    amounts: dict[str, str | int | float] = {
        "cpu": "192",
        "memory": "2Ti",
        "pods": "110",
        GPU: str(len(machine.gpus)),
    }
    in_use = InUse(pods={f"ml/{pod}": {"main": share} for pod, share in tenants.items()})
    return Node(
        metadata=ObjectMeta(
            name=name,
            uid=f"node-{number}",
            labels={
                "kubernetes.io/hostname": name,
                "fabric.topograph.run/tier-0": f"leaf-{number // LEAF}",
                "fabric.topograph.run/tier-1": f"spine-{number // SPINE}",
                "topology.kubernetes.io/zone": f"zone-{number * ZONES // nodes}",
            },
            annotations={
                names.TOPOLOGY: write_topology(machine),
                names.IN_USE: write_in_use(in_use),
            },
        ),
        status=NodeStatus(
            allocatable=amounts, conditions=(Condition(type="Ready", status="True"),)
        ),
    )


def _container(gpus: int) -> Container:
    amounts: dict[str, str | int | float] = {GPU: str(gpus), "cpu": "4", "memory": "16Gi"}
    return Container(name="main", resources=Resources(limits=amounts, requests=amounts))


def _tenant(node: str, name: str, gpus: tuple[str, ...]) -> Pod:
    plan = write_plan(Plan(uid=f"uid-{name}", id="0", node=node))
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ml",
            uid=f"uid-{name}",
            annotations={names.PLAN: plan, names.GPUS: write_gpus({"main": gpus})},
            creation_timestamp=datetime.fromtimestamp(START, UTC),
        ),
        spec=PodSpec(containers=(_container(len(gpus)),), node_name=node),
        status=PodStatus(phase="Running"),
    )


def member(gang: str, rank: int, size: int, gpus: int, priority: int = 0) -> Pod:
    name = f"{gang}-{rank}"
    said = {names.GANG: gang, names.GANG_SIZE: str(size), names.RANK: str(rank)}
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ml",
            uid=f"uid-{name}",
            annotations=said,
            creation_timestamp=datetime.fromtimestamp(START, UTC),
        ),
        spec=PodSpec(containers=(_container(gpus),), priority=priority),
    )
