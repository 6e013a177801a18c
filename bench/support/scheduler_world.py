"""A control plane full of GPU nodes, and its scheduler: stock kube-scheduler, or with Linkwise, or
another one.

All use the same API server, and the first two the same kube-scheduler, restarted for each round.
Linkwise adds the deployed configuration and the extender beside it. Where GPUs come from claims, it
adds the extender and the webhook, and kube-scheduler has no configuration.
"""

import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from bench.support import scheduler_pods as pods
from bench.support.scheduler_load import Load
from linkwise.kube.objects import Pod
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.logs import tails
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling import dra
from tests.cluster.support.scheduling.extender_process import (
    ADMISSION_OFF,
    DEPLOYED,
    ExtenderProcess,
    allow_extender,
    guard_plans,
    leave_plans_unguarded,
    scheduler_config,
    scheduler_env,
)
from tests.cluster.support.scheduling.late_claims import CONTROLLERS, of_chart
from tests.cluster.support.scheduling.webhook import Webhook

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PODS = f"/api/v1/namespaces/{pods.NAMESPACE}/pods"
_SECONDS = 300.0  # no round takes as long
CANARIES = 8
_API = "scheduling.k8s.io/v1beta1"
_GROUPS = f"/apis/{_API}/namespaces/{pods.NAMESPACE}/podgroups"
_GATES = "--feature-gates=GenericWorkload=true"
_API_FLAGS = (_GATES, f"--runtime-config={_API}=true")


@dataclass(frozen=True, slots=True)
class Setup:
    """Who schedules."""

    ours: bool = True  # kube-scheduler with Linkwise; else stock
    tls: bool = True  # between kube-scheduler and the extender
    guarded: bool = True  # with Linkwise's admission policies
    percentage: int | None = None  # percentageOfNodesToScore
    native: bool = False  # kube-scheduler's own gangs
    limited: bool = False  # kube-scheduler's client keeps its limits
    peer: str = ""  # the schedulerName of another scheduler, instead of kube-scheduler
    command: tuple[str, ...] = ()  # that starts it, with KUBECONFIG in its environment


STOCK = Setup(ours=False)
_SECOND = DEPLOYED.parent / "second-scheduler" / "scheduler-config.yaml"


def sample_of_second() -> int:
    """Return the second scheduler's percentageOfNodesToScore. The other differences between its
    configuration and the one used here are names and files."""
    return int(yaml.safe_load(_SECOND.read_text())["percentageOfNodesToScore"])


@dataclass(frozen=True, slots=True)
class Round:
    pods: int
    seconds: float
    cpu: dict[str, float]  # CPU seconds of each program during the round

    @property
    def pods_per_second(self) -> float:
        return self.pods / self.seconds

    def cost(self) -> str:
        """Processor time per pod, in ms."""
        return ", ".join(f"{name} {1000 * cpu / self.pods:.1f}" for name, cpu in self.cpu.items())


@dataclass(frozen=True, slots=True)
class Offered:
    """*waits*: seconds, one for each single pod or gang: from the request that creates its (last)
    pod to its (last) pod bound. *refused*: which share of them has a pod that kube-scheduler could
    not place at first. *cpu*: seconds of all programs for each pod."""

    waits: list[float]
    refused: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Memory:
    """The extender's memory, in MiB."""

    ready_seconds: float
    when_ready: float
    at_the_end: float
    most: float


class _Pods(msgspec.Struct):
    items: tuple[Pod, ...]


class LoadedScheduler:
    def __init__(
        self,
        control: ControlPlane,
        load: Load,
        nodes: int,
        length: pods.Length,
        webhook: Webhook | None = None,
    ) -> None:
        """*webhook*: GPUs come from claims."""
        self.control, self.load = control, load
        self._nodes, self._length, self._webhook = nodes, length, webhook
        self._client = control.client()
        self._rounds = 0
        self._guarded = False

    async def come_and_go(
        self, kind: pods.Kind, count: int, setup: Setup, *, from_last: bool = False
    ) -> Round:
        """Create pods while they are scheduled; for native gangs, their PodGroups first.

        The clock runs from the first creation; *from_last*: from the last one.
        """
        bodies = self._bodies(kind, count, setup)
        groups = [*pods.groups(kind, count, self._prefix)]
        with self._extender(setup) as extender, self._scheduler(extender, setup) as scheduler:
            await self._try_out(setup)
            programs = self._programs(extender, scheduler)
            async with self.load.watching() as watch:
                began, before = time.monotonic(), _cpu(programs)
                await self.load.create(groups, _GROUPS)
                await self.load.create(bodies.values())
                if from_last:
                    began, before = time.monotonic(), _cpu(programs)
                await watch.wait_bound(count, _SECONDS)
                cpu = _since(before, programs)
        await self._clear()
        return Round(count, max(watch.bound.values()) - began, cpu)

    async def offered(
        self, kind: pods.Kind, count: int, setup: Setup, pods_per_second: float, seed: int
    ) -> Offered:
        """Create pods at random times, *pods_per_second* on average, the pods of a gang together.
        At most one for each node."""
        size = kind.gang_size(count) or 1
        count = min(count, self._nodes // size * size)
        bodies = [*self._bodies(kind, count, setup).items()]
        groups = [*pods.groups(kind, count, self._prefix)]
        batches = [dict(bodies[first : first + size]) for first in range(0, count, size)]
        with self._extender(setup) as extender, self._scheduler(extender, setup) as scheduler:
            await self._try_out(setup)
            programs = self._programs(extender, scheduler)
            async with self.load.watching() as watch:
                await self.load.create(groups, _GROUPS)
                before = _cpu(programs)
                created = await self.load.offer(batches, pods_per_second / size, seed)
                await watch.wait_bound(count, _SECONDS)
                cpu = sum(_since(before, programs).values())
        refused = await self.load.refused_pods()
        await self._clear()
        return Offered(
            [
                max(watch.bound[name] for name in batch) - when
                for batch, when in zip(batches, created, strict=True)
            ],
            sum(not refused.isdisjoint(batch) for batch in batches) / len(batches),
            cpu / count,
        )

    async def writes_alone(self, count: int) -> Round:
        """Like `come_and_go` with gated pods, but the extender costs only its writes: the load
        itself nominates each pod and removes its gate, and stock kube-scheduler binds it."""
        bodies = self._bodies(pods.Kind.GATED, count, STOCK)
        targets = [pods.node_name(number) for number in range(count)]
        with self._extender(STOCK), self._scheduler(None, STOCK) as scheduler:
            await self._try_out(STOCK)
            programs = self._programs(None, scheduler)
            async with self.load.watching() as watch:
                began, before = time.monotonic(), _cpu(programs)
                await self.load.create_nominated(bodies, targets)
                await watch.wait_bound(count, _SECONDS)
                cpu = _since(before, programs)
        await self._clear()
        return Round(count, max(watch.bound.values()) - began, cpu)

    async def planned(self, kind: pods.Kind, count: int, setup: Setup) -> Round:
        """Create the pods, and let the extender (if it runs) plan them, before the scheduler
        starts.

        The clock runs from the first pod bound to the last, without the scheduler's own start.
        """
        with self._extender(setup) as extender:
            await self.load.create(self._bodies(kind, count, setup).values())
            if extender is not None:
                wait_for(self._all_planned, "all pods are planned", _SECONDS)
            async with self.load.watching() as watch:
                with self._scheduler(extender, setup) as scheduler:
                    programs = self._programs(extender, scheduler)
                    await watch.wait_bound(1, _SECONDS)
                    before = _cpu(programs)
                    await watch.wait_bound(count, _SECONDS)
                    cpu = _since(before, programs)
        await self._clear()
        first, last = min(watch.bound.values()), max(watch.bound.values())
        return Round(count - 1, last - first, cpu)

    async def memory(self, count: int, free_nodes: int) -> Memory:
        """Measure the extender with *count* pods; those on the free nodes are scheduled during the
        measurement."""
        used = self._nodes - free_nodes
        tenants, claims = (used, count - free_nodes), self._webhook is not None
        await self.load.create(pods.running(*tenants, claims=claims))
        if claims:
            await self.load.allocate(pods.allocated(*tenants, await self.load.pod_uids()))
        # The running pods have the plans of an older extender. A leader believes those.
        extender = ExtenderProcess(self.control, "--leader-elect=true")
        seconds = extender.start()
        try:
            when_ready = extender.resident_mib()
            with self._asked_webhook(), self._scheduler(extender, Setup()):
                async with self.load.watching() as watch:
                    bodies = self._bodies(pods.Kind.GATED, free_nodes, Setup())
                    await self.load.create(bodies.values())
                    await watch.wait_bound(free_nodes, _SECONDS)
            most = extender.resident_mib("VmHWM")
            return Memory(seconds, when_ready, extender.resident_mib(), most)
        finally:
            extender.process.stop()

    async def _try_out(self, setup: Setup) -> None:
        """Return once the scheduler has bound pods: then every cache is filled."""
        async with self.load.watching() as watch:
            await self.load.create(self._bodies(pods.Kind.SINGLE, CANARIES, setup).values())
            await watch.wait_bound(CANARIES, _SECONDS)
        await self._clear()

    def _bodies(self, kind: pods.Kind, count: int, setup: Setup) -> dict[str, bytes]:
        self._rounds += 1
        scheduler = setup.peer or "default-scheduler"
        claims = self._webhook is not None
        return pods.waiting(kind, self._length, count, self._prefix, scheduler, claims=claims)

    async def _clear(self) -> None:
        await self.load.delete_pods()
        if self._webhook is not None:
            await self.load.delete_claims()

    @property
    def _prefix(self) -> str:
        return f"round-{self._rounds}"

    def _all_planned(self) -> bool:
        return all(
            pod.status.nominated_node_name and not pod.spec.scheduling_gates
            for pod in self._client.get(_PODS, _Pods).items
        )

    @contextmanager
    def _extender(self, setup: Setup) -> Iterator[ExtenderProcess | None]:
        """The extender with its admission policies, which cost the API server time, and the
        webhook."""
        guarded = setup.ours and setup.guarded
        if guarded != self._guarded:
            (guard_plans if guarded else leave_plans_unguarded)(self.control)
            self._guarded = guarded
        if not setup.ours:
            yield None
            return
        extender = ExtenderProcess(self.control, "--leader-elect=true", plain=not setup.tls)
        extender.start()
        try:
            with self._asked_webhook():
                yield extender
        finally:
            extender.process.stop()

    @contextmanager
    def _asked_webhook(self) -> Iterator[None]:
        if self._webhook is None:
            yield
            return
        self._webhook.register()
        self._webhook.start()
        try:
            self._webhook.wait_asked()
            yield
            self._webhook.unregister()
        finally:
            self._webhook.process.stop()

    @contextmanager
    def _scheduler(self, extender: ExtenderProcess | None, setup: Setup) -> Iterator[LoggedProcess]:
        if setup.peer:
            env = {**os.environ, "KUBECONFIG": str(self.control.kubeconfig())}
            log = self.control.logs / f"{setup.peer}.log"
            scheduler = LoggedProcess(setup.peer, setup.command, log, env)
            scheduler.start()
        else:
            config = {}
            if extender is not None and self._webhook is None:
                config = scheduler_config(self.control, extender.calls)
            if setup.percentage is not None:
                config["percentageOfNodesToScore"] = setup.percentage
            flags = (_GATES,) if setup.native else ()
            scheduler = self.control.start_scheduler(
                config, flags=flags, env=scheduler_env(), limited=setup.limited
            )
        try:
            yield scheduler
        finally:
            scheduler.stop()

    def _programs(
        self, extender: ExtenderProcess | None, scheduler: LoggedProcess
    ) -> dict[str, int]:
        parts = self.control.parts
        found = {
            "etcd": parts["etcd"],
            "apiserver": parts["kube-apiserver"],
            "scheduler": scheduler,
        }
        if self._webhook is not None:
            found["controllers"] = parts["kube-controller-manager"]
        if extender is not None:
            found["extender"] = extender.process
            if self._webhook is not None:
                found["webhook"] = self._webhook.process
        return {"load": os.getpid(), **{name: process.pid for name, process in found.items()}}


@asynccontextmanager
async def world(directory: Path, nodes: int, length: pods.Length) -> AsyncIterator[LoadedScheduler]:
    """A started control plane with *nodes* nodes."""
    control = ControlPlane(
        directory, controllers=False, disable_admission=ADMISSION_OFF, api_flags=_API_FLAGS
    )
    with _started(control):
        async with Load(control.kubeconfig(), pods.NAMESPACE) as load:
            await load.create(pods.nodes(nodes), "/api/v1/nodes")
            yield LoadedScheduler(control, load, nodes, length)


@asynccontextmanager
async def claims_world(
    directory: Path, nodes: int, length: pods.Length, *, limited: bool
) -> AsyncIterator[LoadedScheduler]:
    """One with a DRA driver's nodes, and the controller that creates claims of templates;
    *limited*: its client keeps its own limits, 20 requests a second after a burst of 30."""
    limits = () if limited else ("--kube-api-qps=5000", "--kube-api-burst=5000")
    control = ControlPlane(
        directory,
        disable_admission=ADMISSION_OFF,
        controller_flags=(f"--controllers={','.join(CONTROLLERS)}", *limits),
    )
    with _started(control):
        control.kubectl("apply", "-f=-", stdin=of_chart("account.yaml"))
        webhook = Webhook(control, "--gpus-from-claims", manifests=_of_webhook)
        control.client().post(f"{dra.DEVICES}/deviceclasses", dra.device_class())
        async with Load(control.kubeconfig(), pods.NAMESPACE) as load:
            await load.create([pods.template()], dra.TEMPLATES)
            await load.create(pods.nodes(nodes, claims=True), "/api/v1/nodes")
            await load.create(pods.slices(nodes), f"{dra.DEVICES}/resourceslices")
            yield LoadedScheduler(control, load, nodes, length, webhook)


def _of_webhook(file: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(of_chart(file, "webhook")) if each]


@contextmanager
def _started(control: ControlPlane) -> Iterator[None]:
    """With the namespace of the load, and the extender's account."""
    control.start()
    try:
        control.kubectl("create", "namespace", pods.NAMESPACE)
        allow_extender(control)
        yield
    except Exception:
        click.echo(tails(control.logs), err=True)
        raise
    finally:
        control.stop()


def _cpu(programs: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds of each program so far."""
    return {name: cpu_seconds(pid) for name, pid in programs.items()}


def _since(before: Mapping[str, float], programs: Mapping[str, int]) -> dict[str, float]:
    return {name: seconds - before[name] for name, seconds in _cpu(programs).items()}


def cpu_seconds(pid: int) -> float:
    """The processor time of a process so far, in all its threads."""
    # The second field, in brackets, may contain blanks; utime and stime are 14th and 15th.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
