"""A small cluster in one process, for tests that play with its fate.

The extender and the plugins are the real programs; the API server, the kubelets, kube-scheduler
and the Job controller are the simulator's. They talk over real sockets: HTTP, and gRPC on unix
sockets. Everything can be restarted, killed or lied to while the others go on.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import msgspec

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.objects import Node, ObjectMeta, Pod
from linkwise.kube.reflector import Reflector
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.jobs.controller import JobController
from linkwise.simulator.jobs.workloads import WorkloadController
from linkwise.simulator.manifests.read_manifests import collection_of
from linkwise.simulator.scheduler import OtherFilter, SchedulerLoop, SchedulerSettings
from linkwise.topology.machine.topology_manager import TopologyManager
from linkwise.topology.names import DEFAULT_RESOURCE
from tests.all_or_nothing import AllOrNothing
from tests.end_to_end.clients import AT_ONCE, Death, Pace
from tests.end_to_end.journal import Journal
from tests.end_to_end.live_extender import (
    HURRIED,
    HURRY,
    LiveExtender,
    hurried_clock,
    reserved_port,
)
from tests.end_to_end.live_node import LiveNode
from tests.end_to_end.waves import WaveLaw
from tests.odd_pods import is_honest
from tests.waiting import wait_for

NAMESPACE = "ml"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_SCHEDULER = SchedulerSettings(  # kube-scheduler's own, in hurried seconds
    initial_backoff_seconds=1 / HURRY,
    max_backoff_seconds=10 / HURRY,
    max_unschedulable_seconds=300 / HURRY,
    extender_weight=2,
)
_WATCH_SECONDS = 0.03  # between two looks of the watchman
_RELEASE_SECONDS = 2.0  # between the first and the last Binding of a gang, on a busy machine
_AFTER_FAULT_SECONDS = 10.0


class Pods(msgspec.Struct):
    items: tuple[Pod, ...]


class Nodes(msgspec.Struct):
    items: tuple[Node, ...]


class Events(msgspec.Struct):
    items: list[dict[str, Any]]


class _Named(msgspec.Struct):
    metadata: ObjectMeta


class Named(msgspec.Struct):
    metadata: dict[str, str]
    items: tuple[_Named, ...]


class World:
    def __init__(
        self,
        server: ApiServer,
        directory: Path,
        machines: Sequence[str],
        seed: int,
        pace: Pace,
        settings: CoreSettings,
        clock: Callable[[], float],
        server_clock: Callable[[], float],
        other_filters: Sequence[OtherFilter],
        topology_manager: TopologyManager | None,
        *,
        is_read: bool,
    ) -> None:
        self.server, self._pace = server, pace
        self._settings, self._clock = settings, clock
        self._hurry = HURRY if server_clock is hurried_clock else 1.0
        self.other_filters = tuple(other_filters)
        self.journal = Journal()
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        self.nodes = {
            f"n{number}": LiveNode(
                f"n{number}",
                machine,
                directory / f"n{number}",
                server.url,
                seed=seed * 100 + number,
                journal=self.journal,
                pace=replace(pace, seed=pace.seed + number),
                topology_manager=topology_manager,
                clock=server_clock,
                is_read=is_read,
            )
            for number, machine in enumerate(machines, 1)
        }
        self._port = reserved_port()
        self.extender = self._new_extender()
        self._seed = seed
        self.scheduler = self._new_scheduler()
        self.jobs = JobController(self.client, seed=seed, failure_backoff_seconds=0.05)
        self.workloads = WorkloadController(self.client, collection_of)
        self.waves = WaveLaw(self.client)
        self.counted: Counter[str] = Counter()  # what extenders that are no more had counted
        self.broken: list[str] = []  # promises that the watchman saw broken
        self.law = AllOrNothing(_RELEASE_SECONDS, _AFTER_FAULT_SECONDS)
        self._pods: dict[str, Pod] = {}  # by uid, as the witness sees them
        self._binding_failed_at = -math.inf  # with extenders that are no more
        self._lives = ThreadPoolExecutor(1, thread_name_prefix="fate of the extender")
        self._users = ThreadPoolExecutor(2, thread_name_prefix="user")
        self._errands: list[Future[None]] = []
        self._watchman = Thread(target=self._watch, name="watchman", daemon=True)
        self._watch_over = Event()
        nodes = self.journal.nodes
        self._witnesses: tuple[Reflector[Pod], Reflector[Node]] = (
            Reflector(
                self.client,
                "/api/v1/pods",
                Pod,
                on_replace=self._list_pods,
                on_event=self._note_pod,
            ),
            Reflector(
                self.client, "/api/v1/nodes", Node, on_replace=nodes, on_event=self.journal.node
            ),
        )

    def _new_extender(self) -> LiveExtender:
        _, port = self._port.getsockname()
        return LiveExtender(
            *(self.server.url, self.journal, port, self._pace, self._settings, self._clock),
            hurry=self._hurry,
        )

    def _new_scheduler(self) -> SchedulerLoop:
        settings = replace(_SCHEDULER, other_filters=self.other_filters)
        return SchedulerLoop(self.client, self.extender.url, seed=self._seed, settings=settings)

    # Life

    def start(self) -> None:
        self.journal.attach()
        for witness in self._witnesses:
            witness.start()
        for node in self.nodes.values():
            node.start()
        self.extender.start()
        wait_for(self._all_ready, "all nodes with GPUs, the extender in sync")
        self.scheduler.start()
        self.jobs.start()
        self.workloads.start()
        self._watchman.start()

    def _all_ready(self) -> bool:
        counts = {node.metadata.name: node.status.allocatable for node in self.read_nodes()}
        return not self.extender.loop.waits_for() and all(
            node.ready
            and str(counts.get(name, {}).get(DEFAULT_RESOURCE)) == str(len(node.machine.gpus))
            for name, node in self.nodes.items()
        )

    def stop(self) -> None:
        self._watch_over.set()
        self._lives.shutdown()
        self._users.shutdown()
        self.workloads.stop()
        self.jobs.stop()
        self.scheduler.stop()
        self.extender.stop()
        self._port.close()
        for node in self.nodes.values():
            node.stop()
        for witness in self._witnesses:
            witness.stop()
        self.journal.detach()

    # What the API server says

    def _list_pods(self, pods: Collection[Pod]) -> None:
        self.journal.pods(pods)
        self._pods = {pod.metadata.uid: pod for pod in pods}

    def _note_pod(self, kind: str, pod: Pod) -> None:
        self.journal.pod(kind, pod)
        is_first = kind != "DELETED" and self.waves.is_first(pod, self._pods.values())
        left = {uid: each for uid, each in self._pods.items() if uid != pod.metadata.uid}
        self._pods = left if kind == "DELETED" else {**left, pod.metadata.uid: pod}
        if is_first:
            self._judge_first_binding(pod)
        self.waves.look(self._pods.values())

    def _judge_first_binding(self, pod: Pod) -> None:
        try:
            notes = self.waves.notes()
            pods = self.read_pods()
        except ApiError:
            return  # it fails just now
        self.broken += self.waves.at_first_binding(pod, notes, pods)

    def read_pods(self) -> tuple[Pod, ...]:
        return self.client.get("/api/v1/pods", Pods).items

    def read_nodes(self) -> tuple[Node, ...]:
        return self.client.get("/api/v1/nodes", Nodes).items

    def events(self) -> list[dict[str, Any]]:
        return self.client.get("/api/v1/events", Events).items

    def pod(self, name: str) -> Pod:
        return self.client.get(f"{PODS}/{name}", Pod)

    # What users do

    def read_pods_patiently(self) -> tuple[Pod, ...]:
        """Also while the API server fails."""
        while True:
            try:
                return self.read_pods()
            except ApiError:
                time.sleep(0.02)

    def names(self, collection: str) -> list[str]:
        return [item.metadata.name for item in self.client.get(collection, Named).items]

    def version(self) -> str:
        """Rises with every write, by any client."""
        return self.client.get("/api/v1/pods", Named).metadata["resourceVersion"]

    def submit(self, body: Mapping[str, Any]) -> None:
        self.client.post(JOBS if body["kind"] == "Job" else PODS, body)

    def submit_waves(self, body: Mapping[str, Any], size: int) -> None:
        """A workload of so many pods, of which its controller creates some later."""
        self.waves.submitted(body["metadata"]["name"], size)
        self.workloads.create(body, {}, suspended=False)

    def retire_workloads(self) -> None:
        """Without its owner, a gang has no members to come."""
        self.waves.forget()
        self.workloads.retire()

    def delete(self, path: str, *, grace_seconds: int | None = None) -> bool:
        """False where there is nothing of that name."""
        try:
            self.client.delete(path, grace_seconds=grace_seconds)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    # What fate does

    def replace_extender(self, death: Death | None, *, absent_seconds: float) -> "Future[None]":
        """Let the extender die at *death* (None: at once), and another one take its place."""

        def live_on() -> None:
            before = self.extender
            if death is not None:
                before.client.will_die(death)
                before.client.dead.wait(0.7)  # it may never come to that
            before.die()
            self._binding_failed_at = max(self._binding_failed_at, before.client.binding_failed_at)
            for name in ("swaps", "errors", "refusals"):
                self.counted[name] += int(before.counted(f"linkwise_extender_{name}_total"))
            time.sleep(absent_seconds)
            self.extender = self._new_extender()
            self.extender.start()

        future = self._lives.submit(live_on)
        self._errands.append(future)
        return future

    def restart_scheduler(self) -> None:
        """It starts again with what the API server says, and none of what it had in mind."""
        self.scheduler.stop()
        self._binding_failed_at = time.monotonic()  # its calls have ended
        self.scheduler = self._new_scheduler()
        self.scheduler.start()

    def counted_by_all(self, name: str) -> int:
        """By this extender and all before it."""
        now = self.extender.counted(f"linkwise_extender_{name}_total")
        return self.counted[name] + int(now)

    def errand(self, what: Callable[[], None]) -> None:
        """Something a user does meanwhile."""
        self._errands.append(self._users.submit(what))

    def wait_for_errands(self) -> None:
        """Until users, and lives of the extender that have begun to end, are through."""
        while self._errands:
            self._errands.pop(0).result(30)

    # The watchman

    def _watch(self) -> None:
        """Look all the time at what must never be."""
        twice_before: set[str] = set()
        while not self._watch_over.wait(_WATCH_SECONDS):
            try:
                # Two pods are read one after the other, so only what stays is believed.
                twice = set(self.given_twice())
                loop = self.extender.loop
                audit = [] if loop.waits_for() else loop.audit()
            except Exception as error:
                self.broken.append(f"the watchman: {error!r}")
                return
            self.broken += sorted(twice & twice_before)
            self.broken += [f"audit: {text}" for text in audit]
            failed = max(self._binding_failed_at, self.extender.client.binding_failed_at)
            honest = filter(is_honest, self._pods.values())
            self.broken += self.law.look(honest, time.monotonic(), failed)
            twice_before = twice

    def given_twice(self) -> list[str]:
        """GPUs that two pods hold, by the kubelets."""
        found = []
        for node in self.nodes.values():
            holders: defaultdict[str, list[str]] = defaultdict(list)
            for key, shares in sorted(node.held().items()):
                for gpu in frozenset[str]().union(*shares.values()):
                    holders[gpu].append(key)
            found += [
                f"{node.name}: {gpu} is held by {' and '.join(keys)}"
                for gpu, keys in holders.items()
                if len(keys) > 1
            ]
        return found


@contextmanager
def running_world(
    machines: Sequence[str],
    seed: int = 0,
    pace: Pace = AT_ONCE,
    settings: CoreSettings = HURRIED,
    clock: Callable[[], float] = hurried_clock,
    other_filters: Sequence[OtherFilter] = (),
    topology_manager: TopologyManager | None = None,
    *,
    is_read: bool = True,
    ahead_seconds: float = 0.0,
) -> Iterator[World]:
    """*settings* and *clock* are the extender's, *other_filters* kube-scheduler's;
    *topology_manager* and *is_read* are those of each `LiveNode`. The API server's clock is the
    wall clock, or as fast as the extender's if that hurries; the extender's is *ahead_seconds*
    before it."""
    # A short path: a unix socket's is at most 107 bytes long.
    server_clock = clock if clock is hurried_clock else time.time
    with TemporaryDirectory(prefix="lw-") as directory, ApiServer(clock=server_clock) as server:
        world = World(
            *(server, Path(directory), machines, seed, pace, settings),
            *(lambda: clock() + ahead_seconds, server_clock, other_filters, topology_manager),
            is_read=is_read,
        )
        try:
            world.start()
            yield world
        finally:
            world.stop()
