"""How long the planning of a gang takes, and how long it holds the lock:
`python -m bench.gang_planning`.

This runs the core alone, as the extender's shell drives it, without HTTP and without an API server.
The clock runs from the event that shows the last member to the writes. The core answers no other
call while its lock is held, so the longest time that it is held without a break counts too.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

import click

from bench.support.figures import milliseconds, percentile, print_table, ratio, this_machine
from linkwise.extender.api.actions import WritePlan
from linkwise.extender.core import Core, CoreSettings
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

BAR_MS, HOLD_BAR_MS = 200.0, 20.0
BAR_CASE = (5000, 512)
GPU = names.DEFAULT_RESOURCE
T = TypeVar("T")
START = 1_750_000_000.0
LEAF, SPINE = 32, 256  # nodes below one switch
ZONES = 3
STATES = ("idle", "half-full", "fragmented")


@dataclass(frozen=True, slots=True)
class Timing:
    spent: list["Spent"]
    holds: list["Spent"]  # the longest time in each round that the lock was held
    span: str


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


class World:
    """The core and its cluster."""

    def __init__(self, nodes: int, state: str, seed: int) -> None:
        self._draw = random.Random(seed)
        self.core = Core(CoreSettings())
        self._lock = Watched()
        self.core.set_unlocker(self._lock.step_aside)
        self._number = 0
        machines = [recorded_machine(name, node="n") for name in ("hgx-h100", "dgx-a100")]
        made, pods = [], []
        for number in range(nodes):
            machine = _named(machines[number * 2 // nodes], f"n{number:05d}")
            tenants = dict(self._tenants(machine, state))
            made.append(_node(number, nodes, machine, tenants))
            pods += [_tenant(made[-1].metadata.name, name, g) for name, g in tenants.items()]
        self.core.replace_nodes(made, START)
        self.core.replace_pods(pods, START)
        self.core.decide(START)

    def _tenants(self, machine: Machine, state: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The running pods of a node, with their GPUs."""
        if state == "idle" or (state == "half-full" and self._draw.random() < 0.5):
            return
        free = [gpu.uuid for gpu in machine.gpus]
        if state == "half-full":
            sizes = [8]
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
        pods = [_member(gang, rank, size, gpus) for rank in range(size)]
        for pod in pods[:-1]:
            self.core.pod_event("ADDED", pod, START)
        self.core.decide(START)
        self._lock.longest = Spent()
        begun = Spent.so_far()
        with self._lock:
            self.core.pod_event("ADDED", pods[-1], START)
        with self._lock:
            actions = self.core.decide(START)
        spent = Spent.so_far().since(begun)
        plans = [action for action in actions if isinstance(action, WritePlan)]
        for pod in pods:
            self.core.pod_event("DELETED", pod, START)
        self.core.decide(START)
        if not plans:
            return None
        span = plans[0].annotations[names.PLAN].partition('"span":"')[2].partition("=")[0]
        return spent, self._lock.longest, span


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
    plan = write_plan(Plan(id="0", node=node))
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


def _member(gang: str, rank: int, size: int, gpus: int) -> Pod:
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
        spec=PodSpec(containers=(_container(gpus),)),
    )


def measure(world: World, size: int, gpus: int, rounds: int) -> Timing | None:
    spent, holds, span = [], [], ""
    for _ in range(rounds):
        found = world.plan(size, gpus)
        if found is None:
            return None
        spent.append(found[0])
        holds.append(found[1])
        span = found[2]
    return Timing(spent, holds, span)


@click.command(context_settings={"show_default": True})
@click.option("--nodes", multiple=True, type=int, default=(1000, 5000), help="Cluster sizes.")
@click.option("--pods", multiple=True, type=int, default=(64, 128, 512), help="Gang sizes.")
@click.option("--gpus", multiple=True, type=int, default=(1, 4, 8), help="GPUs of a member.")
@click.option("--rounds", type=click.IntRange(1), default=7, help="Gangs planned for each row.")
@click.option("--seed", default=0, help="Which GPUs are in use.")
def main(
    nodes: tuple[int, ...], pods: tuple[int, ...], gpus: tuple[int, ...], rounds: int, seed: int
) -> None:
    """Plan gangs, and measure how long it takes and how long it holds the lock."""
    click.echo(f"Planning of a gang, {rounds} each, times in ms: {this_machine()}\n")
    rows, missed, base = [], [], 0.0
    for count in nodes:
        for state in STATES:
            world = World(count, state, seed)
            gc.collect()
            gc.freeze()  # as the extender does once its cache is complete
            gc.set_threshold(20_000, 20, 20)
            for size in pods:
                for each in gpus:
                    timing = measure(world, size, each, rounds)
                    title = f"{count:,}, {state}, {size} × {each}"
                    if timing is None:
                        rows.append([title, *["-"] * 6, "no room"])
                        continue
                    p50 = percentile([spent.wall for spent in timing.spent], 50)
                    base = base or p50
                    longest = max(spent.wall for spent in timing.spent) * 1000
                    hold = max(spent.wall for spent in timing.holds) * 1000
                    own = [max(s.cpu for s in each) * 1000 for each in (timing.spent, timing.holds)]
                    span = timing.span.rpartition("/")[2] or "-"
                    figures = map(milliseconds, (p50, longest, own[0], hold, own[1]))
                    rows.append([title, *figures, ratio(p50, base), span])
                    if (count, size) == BAR_CASE and (longest > BAR_MS or hold > HOLD_BAR_MS):
                        missed.append(title)
    header = ["nodes, state, pods × GPUs", "p50", "longest", "its CPU", "hold", "its CPU"]
    print_table([*header, "p50, of smallest", "span"], rows)
    bar = f"{BAR_CASE[1]} pods on {BAR_CASE[0]:,} nodes in {BAR_MS:.0f} ms"
    measured = BAR_CASE[0] in nodes and BAR_CASE[1] in pods
    kept = "kept" if not missed else f"missed by {'; '.join(missed)}"
    click.echo(
        f"\nBar: {bar}, the lock never held for more than {HOLD_BAR_MS:.0f} ms: "
        f"{kept if measured else 'not measured'}"
    )
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
