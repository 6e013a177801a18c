"""The core alone in a large cluster, and a lock like the shell's that measures how long it is held.

Without HTTP and without an API server: a benchmark hands the core its events and takes its actions.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeVar

from bench.support.gpu_objects import START, pod_of
from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.actions import Action, Evict, WritePlan
from linkwise.extender.state.extender_calls import (
    AlreadyBound,
    BindCall,
    BindOrder,
    BindRefusal,
    BindWaits,
    FilterAnswer,
    FilterCall,
    Outcome,
)
from linkwise.extender.state.records import GangKey
from linkwise.kube.objects import Node, Pod
from linkwise.replay.gpu_objects import node_of
from linkwise.replay.in_memory_api_server import InMemoryApiServer
from linkwise.topology import names
from linkwise.topology.annotations.plan import InUse, Plan, write_gpus, write_in_use, write_plan
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine

T = TypeVar("T")
LEAF, SPINE = 32, 256  # nodes below one switch
ZONES = 3
# And "full", with pods of two GPUs; and "scattered": two to six pods a node, none full or empty.
STATES = ("idle", "half-full", "fragmented")


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


def freeze() -> None:
    """As the extender does once its cache is complete."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


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


class LockedCore(Core):
    """Each call that is made holds the lock."""

    def __init__(self, settings: CoreSettings, holds: Holds) -> None:
        super().__init__(settings)
        self._holds = holds

    def pod_event(self, kind: str, pod: Pod, now: float) -> None:
        self._holds.of("a change of a pod", partial(super().pod_event, kind, pod, now))

    def decide(self, now: float) -> tuple[Action, ...]:
        return self._holds.of("a round of the planner", partial(super().decide, now))

    def done(self, action: Action, outcome: Outcome, now: float) -> None:
        self._holds.of("an outcome", partial(super().done, action, outcome, now))

    def filter(self, call: FilterCall, now: float) -> FilterAnswer:
        return self._holds.of("filter", partial(super().filter, call, now))

    def begin_bind(
        self, call: BindCall, now: float
    ) -> BindOrder | AlreadyBound | BindRefusal | BindWaits:
        return self._holds.of("bind", partial(super().begin_bind, call, now))

    def end_bind(self, order: BindOrder, outcome: Outcome, now: float, why: str = "") -> None:
        self._holds.of("bind", partial(super().end_bind, order, outcome, now, why))

    def take_released(self) -> set[GangKey]:
        return self._holds.of("bind", super().take_released)


class LargeCluster(InMemoryApiServer):
    def __init__(
        self, nodes: int, state: str, seed: int, settings: CoreSettings | None = None
    ) -> None:
        self._draw = random.Random(seed)
        self.lock = Watched()
        self.holds = Holds(self.lock)
        self._number = 0
        machines = [recorded_machine(name, node="n") for name in ("hgx-h100", "dgx-a100")]
        made, pods = [], []
        for number in range(nodes):
            machine = _named(machines[number * 2 // nodes], f"n{number:05d}")
            tenants = dict(self._tenants(machine, state))
            made.append(_node(number, nodes, machine, tenants))
            pods += [_tenant(made[-1].metadata.name, name, g) for name, g in tenants.items()]
        super().__init__(
            settings or CoreSettings(),
            START,
            {node.metadata.name: node for node in made},
            {pod.metadata.uid: pod for pod in pods},
        )

    def restart(self) -> None:
        super().restart()
        self.core.set_unlocker(self.lock.step_aside)
        self.core.decide(self.now)
        self.holds.longest.clear()
        freeze()

    def new_core(self) -> Core:
        return LockedCore(self.settings, self.holds)

    def _tenants(self, machine: Machine, state: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The running pods of a node, with their GPUs."""
        if state == "idle" or (state == "half-full" and self._draw.random() < 0.5):
            return
        free = [gpu.uuid for gpu in machine.gpus]
        if state == "half-full":
            sizes = [8]
        elif state == "full":
            sizes = [2] * 4
        elif state == "scattered":
            self._draw.shuffle(free)
            sizes = self._some_of(len(free) - 1)
        else:
            self._draw.shuffle(free)
            sizes = [self._draw.choice((1, 1, 2, 3)) for _ in range(self._draw.randint(0, 3))]
        for size in sizes:
            share, free = tuple(free[:size]), free[size:]
            if share:
                self._number += 1
                yield f"tenant-{self._number}", share

    def _some_of(self, gpus: int) -> list[int]:
        """Of two to six pods with one to four GPUs, and no more than *gpus* together."""
        sizes, pods = [gpus + 1], self._draw.randint(2, 6)
        while sum(sizes) > gpus:
            sizes = [self._draw.randint(1, 4) for _ in range(pods)]
        return sizes

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
        self.holds.longest.clear()
        begun = Spent.so_far()
        self.core.pod_event("ADDED", pods[-1], self.now)
        actions = self.core.decide(self.now)
        spent = Spent.so_far().since(begun)
        hold = reduce(Spent.or_more, self.holds.longest.values())
        plans = [action for action in actions if isinstance(action, WritePlan)]
        for pod in pods:
            self.core.pod_event("DELETED", pod, self.now)
        self.core.decide(self.now)
        if not plans:
            return None
        span = plans[0].annotations[names.PLAN].partition('"span":"')[2].partition("=")[0]
        return spent, hold, span

    def evict(self, pod: Pod, action: Evict) -> Outcome:  # noqa: ARG002
        self.remove_pod(pod.metadata.uid)
        return Outcome.DONE

    def decide(self) -> tuple[Sequence[Action], bool]:
        """One more round, as far from the last one as when 100 pods a second are bound."""
        self.now += 0.01
        return super().decide()

    def ask_and_bind(self, uid: str) -> None:
        """As kube-scheduler does with a nominated pod."""
        pod = self.pods[uid]
        node = pod.status.nominated_node_name
        self.core.filter(FilterCall(pod, (node,)), self.now)
        assert self.try_to_bind(pod, node)

    def end_bind(self, order: BindOrder) -> bool:
        """With a round of the planner after it."""
        is_bound = super().end_bind(order)
        self.decide()
        return is_bound


def _named(machine: Machine, node: str) -> Machine:
    gpus = tuple(replace(gpu, uuid=f"GPU-{node}-{gpu.index}") for gpu in machine.gpus)
    return replace(machine, gpus=gpus)


def _node(number: int, nodes: int, machine: Machine, tenants: dict[str, tuple[str, ...]]) -> Node:
    in_use = InUse(pods={f"ml/{pod}": {"main": share} for pod, share in tenants.items()})
    labels = {
        "fabric.topograph.run/tier-0": f"leaf-{number // LEAF}",
        "fabric.topograph.run/tier-1": f"spine-{number // SPINE}",
        "topology.kubernetes.io/zone": f"zone-{number * ZONES // nodes}",
    }
    name = f"gpu-node-{number:05d}.eu-west.example.internal"
    said = {names.IN_USE: write_in_use(in_use)}
    return node_of(name, machine, cpu="192", labels=labels, said=said)


def _tenant(node: str, name: str, gpus: tuple[str, ...]) -> Pod:
    plan = write_plan(Plan(uid=f"uid-{name}", id="0", node=node))
    said = {names.PLAN: plan, names.GPUS: write_gpus({"main": gpus})}
    return pod_of(name, len(gpus), said, node=node)


def member(gang: str, rank: int, size: int, gpus: int, priority: int = 0) -> Pod:
    said = {names.GANG: gang, names.GANG_SIZE: str(size), names.RANK: str(rank)}
    return pod_of(f"{gang}-{rank}", gpus, said, priority=priority)
