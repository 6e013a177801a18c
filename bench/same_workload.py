"""One list of Jobs on several real schedulers: `python -m bench.same_workload`.

Real are API server, Job controller, kube-scheduler, Kueue and Volcano with topology-aware
scheduling, and the extender. Nodes are objects: the benchmark plays their kubelets, and
NVIDIA's plugin by the policy `partition`. With Linkwise a pod gets the GPUs of its plan, as from
Linkwise's plugin.

All Jobs exist from the beginning. A Job runs for some rounds once all of its pods are bound. When
nothing moves, the clock jumps to the next end of a Job. If none runs, the last one with only some
pods bound is suspended until another has ended. Linkwise learns and compares run times, so with it
a round lasts `--seconds`; `declared`: pods have `linkwise.dev/expected-duration`.

Bandwidth: for pods of two and more GPUs that share a machine, the value of their GPUs as a share of
the best for as many on the idle machine. More racks: of a gang, beyond the one that would hold it.
By half: gangs with some pods bound and others not when nothing moved. Rounds: until all have ended.
"""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click

from bench.support import volcano
from bench.support.figures import print_table
from bench.support.programs import in_sandbox
from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.outlook import shares_of_idle
from linkwise.topology.sets.partition import choose_partition
from linkwise.topology.sets.tables import table_of
from tests.beside.queues import create_objects, flavor_in, queue_of, queued
from tests.beside.workloads import BATCH, GPUS, job_template
from tests.beside.world import RACK, control_with, described, ended, of
from tests.cluster.support.programs.binaries import kubernetes
from tests.cluster.support.programs.operators import KUEUE
from tests.cluster.support.scheduling.extender_process import gpu_node
from tests.cluster.support.scheduling.movable_pods import play_kubelets
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    ZONE,
    SchedulingWorld,
    started_world,
)

# Links differ in the first two; in the last all sets of a size are equal.
MACHINES = {"r1": "dgx1-v100", "r2": "a100-pcie-8-bridged", "r3": "hgx-a100"}  # four in each rack
NODES = {f"{rack}-n{number}": rack for rack in MACHINES for number in range(4)}
SHAPES = ((1, 1), (1, 2), (1, 3), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8), (4, 8))  # pods, GPUs
LONGEST = 8  # rounds
QUEUE, HOST, PREFERRED = "all", "kubernetes.io/hostname", "kueue.x-k8s.io/podset-preferred-topology"
HEADER = "", "bandwidth", "more racks", "by half", "rounds"
_EVERY_SECONDS, _QUIET_SECONDS = 0.3, 2.5
_MOST_LOOKS = 40  # while nothing runs


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    pods: int
    gpus: int  # of each pod
    rounds: int


@dataclass(frozen=True, slots=True)
class Variant:
    """*levels*: of Kueue's topology, the widest first; none: without Kueue."""

    levels: tuple[str, ...] = ()
    linkwise: bool = False
    declared: bool = False
    volcano: bool = False


VOLCANO = "Volcano"
VARIANTS = {
    "kube-scheduler": Variant(),
    "Kueue": Variant((RACK, HOST)),
    VOLCANO: Variant(volcano=True),
    "Linkwise": Variant(linkwise=True),
    "Linkwise, declared": Variant(linkwise=True, declared=True),
    "Kueue to the rack, Linkwise": Variant((RACK,), linkwise=True),
}


class Unassisted(SchedulingWorld):
    """Without the extender."""

    def start(self, _nodes: Sequence[str] = ()) -> None:
        self.control.kubectl("create", "namespace", NAMESPACE)
        self.scheduler = self.control.start_scheduler(self._scheduler_settings)

    def stop(self) -> None:
        self.control.stop()


class Run:
    def __init__(
        self, world: SchedulingWorld, jobs: Sequence[Job], variant: Variant, seconds: float
    ) -> None:
        self._world, self._variant = world, variant
        self._seconds = seconds if variant.linkwise else 0.0
        self._waiting = {job.name: job for job in jobs}
        self._ends: dict[str, int] = {}  # of the running Jobs
        self._suspended: set[str] = set()
        self._taken: dict[str, tuple[str, int]] = {}  # by the pod's uid: node and GPUs
        self._shares: list[float] = []
        self._more_racks: list[int] = []
        self._half: set[str] = set()
        self._round = 0

    def figures(self) -> tuple[float, ...]:
        """Run all Jobs."""
        for job in self._waiting.values():
            self._create(job)
        while self._waiting or self._ends:
            self._round = self._next_end()
            for name in [name for name, end in self._ends.items() if end == self._round]:
                ended(self._world, name)
                del self._ends[name]
            for name in self._suspended:
                self._suspend(name, False)
            self._suspended.clear()
        means = statistics.mean(self._shares), statistics.mean(self._more_racks)
        return *means, len(self._half), self._round

    def _create(self, job: Job) -> None:
        spec = job_template(job.name, job.pods, job.gpus)
        said = spec["template"]["metadata"]["annotations"]
        if job.pods > 1:
            said |= {PREFERRED: RACK, names.PREFER_SPAN: RACK}
        if self._variant.declared:
            said[names.EXPECTED_DURATION] = f"{job.rounds * self._seconds:g}s"
        if self._variant.volcano:
            volcano.create_group(self._world, job.name, job.pods, job.gpus)
            said[volcano.GROUP_NAME] = job.name
            spec["template"]["spec"]["schedulerName"] = volcano.SCHEDULER
        labels = queued(QUEUE) if self._variant.levels else {}
        self._world.client.post(
            BATCH, {"metadata": {"name": job.name, "labels": labels}, "spec": spec}
        )

    def _next_end(self) -> int:
        """Return the round in which the next Job ends, when it is due."""
        began = time.monotonic()
        while True:
            self._start_what_is_whole()
            end = min(self._ends.values())
            if time.monotonic() >= began + (end - self._round) * self._seconds:
                return end

    def _start_what_is_whole(self) -> None:
        """Return when nothing moves and a Job runs."""
        for _ in range(_MOST_LOOKS):
            pods = self._when_nothing_moves()
            bound = {n: [p for p in of(pods, n) if p.spec.node_name] for n in self._waiting}
            half = [n for n, found in bound.items() if 0 < len(found) < self._waiting[n].pods]
            self._half.update(half)
            for name, found in bound.items():
                if len(found) == self._waiting[name].pods:
                    self._start(self._waiting.pop(name), found)
            if self._ends:
                return
            if half:
                self._suspend(half[-1], True)
                self._suspended.add(half[-1])
        raise RuntimeError(f"no Job runs:\n{described(self._world)}")

    def _start(self, job: Job, pods: Sequence[Pod]) -> None:
        self._ends[job.name] = self._round + job.rounds
        places = [self._taken[pod.metadata.uid] for pod in pods]
        if 1 < job.gpus < GPUS:
            self._shares += [share_of(node, gpus) for node, gpus in places]
        if job.pods > 1:
            self._more_racks.append(len({NODES[node] for node, _ in places}) - 1)

    def _when_nothing_moves(self) -> Sequence[Pod]:
        seen: set[object] = set()
        since = time.monotonic()
        while time.monotonic() < since + _QUIET_SECONDS:
            time.sleep(_EVERY_SECONDS)
            play_kubelets(self._world)
            pods = [pod for pod in self._world.pods() if not pod.has_ended]
            self._give_gpus(pods)
            now: set[object] = {
                (p.metadata.uid, p.spec.node_name, p.is_leaving, len(p.spec.scheduling_gates))
                for p in pods
            }
            if now != seen:
                seen, since = now, time.monotonic()
        return pods

    def _give_gpus(self, pods: Sequence[Pod]) -> None:
        here = {pod.metadata.uid for pod in pods}
        self._taken = {uid: place for uid, place in self._taken.items() if uid in here}
        for pod in pods:
            node, uid = pod.spec.node_name, pod.metadata.uid
            if node and uid not in self._taken:
                free = machine_of(node).all_gpus
                for other, gpus in self._taken.values():
                    free &= ~(gpus if other == node else 0)
                gpus = self._planned(pod) if self._variant.linkwise else preferred(pod, free)
                if not gpus or gpus & ~free:
                    raise RuntimeError(f"{pod.key} on {node}: GPUs {gpus:b} of {free:b}")
                self._taken[uid] = node, gpus

    def _planned(self, pod: Pod) -> int:
        uuids = self._world.gpus_of(pod.metadata.name)
        gpus = machine_of(pod.spec.node_name).gpus
        return sum(1 << index for index, gpu in enumerate(gpus) if gpu.uuid in uuids)

    def _suspend(self, name: str, on: bool) -> None:
        self._world.client.patch(f"{BATCH}/{name}", {"spec": {"suspend": on}})


def preferred(pod: Pod, free: int) -> int:
    """Return what NVIDIA's plugin prefers."""
    wanted = int(pod.spec.containers[0].resources.limits[names.DEFAULT_RESOURCE])
    return choose_partition(machine_of(pod.spec.node_name), free, wanted) or 0


@cache
def machine_of(node: str) -> Machine:
    return recorded_machine(MACHINES[NODES[node]], node=node)


@cache
def share_of(node: str, gpus: int) -> float:
    return float(shares_of_idle(table_of(machine_of(node)))[gpus])


def jobs_of(seed: int, number: int) -> tuple[Job, ...]:
    draw = random.Random(seed)
    return tuple(
        Job(f"job-{n:03}", *draw.choice(SHAPES), draw.randint(1, LONGEST)) for n in range(number)
    )


def run(
    directory: Path, variant: Variant, jobs: Sequence[Job], seconds: float, built: Path | None
) -> tuple[float, ...]:
    control = control_with(directory, *([KUEUE] if variant.levels else []))
    # Rounds take seconds, and by default kube-scheduler leaves a pod alone for up to ten.
    settings = {"podMaxBackoffSeconds": 1}
    kind = SchedulingWorld if variant.linkwise else Unassisted
    with started_world(kind(control, scheduler_settings=settings), ()) as world:
        for node, rack in NODES.items():
            made = gpu_node(node, MACHINES[rack], {RACK: rack, ZONE: "eu-west-1"})
            world.client.post("/api/v1/nodes", made)
        if variant.levels:
            flavor = flavor_in("gpus", *variant.levels)
            create_objects(world, *flavor, *queue_of(QUEUE, "gpus", GPUS * len(NODES)))
        if variant.volcano:
            assert built is not None, "the command demands it"
            volcano.start(control, built)
            volcano.create_racks(world, *MACHINES)
        return Run(world, jobs, variant, seconds).figures()


def cells(runs: Sequence[tuple[float, ...]]) -> list[str]:
    """Return the mean of all runs, the least and the most."""
    return [
        f"{statistics.mean(column):.{digits}f} ({min(column):.{digits}f}–{max(column):.{digits}f})"
        for column, digits in zip(zip(*runs, strict=True), (3, 2, 0, 0), strict=True)
    ]


@click.command(help=__doc__)
@click.option("--jobs", "number", type=click.IntRange(1), default=60, show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, default=(1, 2, 3), show_default=True)
@click.option("--only", type=click.Choice(list(VARIANTS)), multiple=True)
@click.option("--seconds", default=6.0, show_default=True, help="Of a round, at least.")
@click.option(
    "--volcano",
    "built",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with Volcano's vc-scheduler and its CRDs as *.yaml. Without it, Volcano is left "
    "out.",
)
def main(
    number: int, seeds: Sequence[int], only: Sequence[str], seconds: float, built: Path | None
) -> None:
    if built is None and VOLCANO in only:
        raise click.UsageError(f"--only {VOLCANO}: expected --volcano FOLDER too")
    all_ = [name for name in VARIANTS if built is not None or name != VOLCANO]
    chosen = {name: VARIANTS[name] for name in only or all_}
    directory = in_sandbox("bench.same_workload", lambda: (kubernetes(), KUEUE.build()))
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in chosen}
    for seed in seeds:
        for name, runs in found.items():
            here = directory / f"{seed}-{name.replace(' ', '-')}"
            runs.append(run(here, chosen[name], jobs_of(seed, number), seconds, built))
            click.echo(f"seed {seed}, {name}: {', '.join(cells(runs[-1:]))}", err=True)
    print_table(HEADER, [(name, *cells(runs)) for name, runs in found.items()])


if __name__ == "__main__":
    main()
