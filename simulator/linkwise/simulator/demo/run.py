"""One run of the user's manifests on a cluster: create, wait, look, clean up.

The run applies the files one after the other. It waits until the scheduler has tried the pods of
one file before it applies the next. It creates all objects of one file at once.

With Linkwise, kube-scheduler calls the extender and the plugins advise the kubelets. Without it,
kube-scheduler decides alone and NVIDIA's policy advises the kubelets. All else is equal.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Any, Self

import msgspec

from linkwise.drawing.words import named_gpus, some
from linkwise.kube.client import ApiError
from linkwise.kube.filters.requests import amount
from linkwise.kube.objects import Node, Pod
from linkwise.simulator.demo.cluster import SimulatedCluster
from linkwise.simulator.demo.nvidia_preference import adviser_of
from linkwise.simulator.jobs.controller import JobController
from linkwise.simulator.jobs.workloads import WorkloadController
from linkwise.simulator.manifests.object_reader import RUN_SECONDS
from linkwise.simulator.manifests.read_manifests import Manifest, collection_of, is_suspended
from linkwise.simulator.report.build_report import seen_pods, waiting_members
from linkwise.simulator.report.model import GangSeen, MovedPod, Rival, SeenPod, WaitingMember
from linkwise.simulator.report.pod_recorder import ENDED, PodRecorder, Sighting
from linkwise.simulator.scheduler import SchedulerLoop, SchedulerSettings
from linkwise.topology.vendors.known import RESOURCES

_QUIET_SECONDS = 0.4  # if nothing changes for this time, the cluster is at rest
# The same while pods are to be created after others: a gang of which not all pods exist may grow,
# and the extender waits some seconds for more before it plans without them.
_GROWING_SECONDS = 6.0
# The same where pods wait and others may be moved for them: moves are sought a second later.
_MOVING_SECONDS = 2.0
_APPLIED_SECONDS = 0.1  # the same between two files; too short a wait only changes their order
_INVALID = "invalid"  # a state of /explain: what the pod asks for is wrong
_MOST_NODES = 3  # named
_VERDICTS = {"lost": "loses by", "equal": "as good, except for", "better": "would win now by"}
_HASTE = SchedulerSettings(
    managed_resources=RESOURCES,
    extender_weight=2,  # as in daemonset/overlays/*/scheduler-config.yaml
    initial_backoff_seconds=0.1,
    max_backoff_seconds=1.0,
)


class _Gang(msgspec.Struct):
    class Member(msgspec.Struct):
        pod: str

    namespace: str
    name: str
    phase: str
    minimum: int
    members: tuple[Member, ...]


class _RunnerUp(msgspec.Struct):
    """The best other placement."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...]
    verdict: str
    why: str

    def words(self) -> str:
        where = some(self.nodes, _MOST_NODES)
        if self.gpus:
            where += f", {named_gpus(self.gpus)}"
        return f"next best {where}: {_VERDICTS[self.verdict]} {self.why}"


class _Explained(msgspec.Struct):
    """The fields of /explain that say why a pod waits, or why it is where it is."""

    class OfGang(msgspec.Struct):
        class Gang(msgspec.Struct):
            reason: str = ""
            runner_up: _RunnerUp | None = None

        gang: Gang

    class Search(msgspec.Struct):
        class Nearest(msgspec.Struct):
            place: str
            lacks: str

        nearest: Nearest | None = None

    summary: str
    state: str = ""
    gang: OfGang | None = None
    search: Search | None = None
    runner_up: _RunnerUp | None = None

    def choice(self) -> str:
        other = self.gang.gang.runner_up if self.gang is not None else self.runner_up
        return "no other set of GPUs is left" if other is None else other.words()

    def words(self) -> str:
        parts = [self.summary]
        reason = self.gang.gang.reason if self.gang is not None else ""
        if reason:
            parts.append(f"{reason[:1].upper()}{reason[1:]}.")
        nearest = self.search.nearest if self.search is not None else None
        if nearest is not None:
            parts.append(f"Nearest is {nearest.place}: {nearest.lacks}.")
        return " ".join(dict.fromkeys(parts))


class _Moves(msgspec.Struct):
    """Whether pods may be moved, and the moves that are under way."""

    allowed: str
    plans: tuple[object, ...]


class _Nodes(msgspec.Struct):
    items: list[Node]


class _Items(msgspec.Struct):
    items: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Progress of a run; `of` is the number of pods that will exist."""

    running: int
    waiting: int
    of: int

    def __str__(self) -> str:
        waits = f", {self.waiting} wait" if self.waiting else ""
        return f"{self.running} of {self.of} pods run{waits}"


class ManifestRun:
    """Inside `with ManifestRun(cluster, …) as run:` kube-scheduler and the Job controller
    run. `settle` creates the objects of the manifests. *rival* is None with Linkwise."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        manifests: Sequence[Manifest],
        *,
        seed: int,
        rival: Rival | None,
    ) -> None:
        linkwise = rival is None
        self._cluster, self._manifests, self._linkwise = cluster, manifests, linkwise
        self._of = sum(manifest.pods for manifest in manifests)
        self._given = {(manifest.kind, manifest.name): manifest.body for manifest in manifests}
        self._expected = 0  # pods of the manifests created so far
        self._recorder = PodRecorder(cluster.client)
        self._jobs = JobController(cluster.client, seed=seed)
        self._workloads = WorkloadController(cluster.client, collection_of)
        self._scheduler = SchedulerLoop(
            cluster.client,
            cluster.extender_url if linkwise else None,
            seed=seed,
            settings=_HASTE,
        )
        self._chosen: dict[str, str] = {}  # uid -> why it is where it is
        self._placed: dict[str, Sighting] = {}  # uid -> with its plan; also pods that are gone
        self._had: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
        self._changes, self._changed_at = -1, 0.0
        self._things = ExitStack()
        for number, kubelet in enumerate(cluster.kubelets):
            kubelet.reseed(seed * len(cluster.kubelets) + number)
            machine = cluster.machines[kubelet.node_name]
            kubelet.adviser = None if rival is None else adviser_of(rival, machine)

    def __enter__(self) -> Self:
        with ExitStack() as things:
            for thing in (self._recorder, self._jobs, self._workloads, self._scheduler):
                things.callback(thing.stop)
                thing.start()
            self._things = things.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._things.close()

    # Waiting

    def settle(self, seconds: float, say: Callable[[RunCounts], None] = lambda _: None) -> None:
        """Apply the manifests. Wait until every pod runs, has ended, or waits with no program
        working on it.

        Raises ApiError, ChildError, and ClusterTimeoutError after *seconds*.
        """
        deadline = time.monotonic() + seconds
        quiet_seconds = _APPLIED_SECONDS

        def moves() -> str:
            say(self.counts())
            return self._moves(quiet_seconds)

        for file, manifests in groupby(self._manifests, key=lambda manifest: manifest.file):
            for manifest in manifests:
                if manifest.collection:
                    body = self._body(manifest)
                    self._workloads.create(body, self._given, suspended=is_suspended(body))
                self._expected += manifest.pods
            self._cluster.wait_for(moves, f"the pods of {file}", deadline - time.monotonic())
            self._ask_why_there()
        quiet_seconds = _QUIET_SECONDS
        self._cluster.wait_for(moves, "the pods", deadline - time.monotonic())

    def _ask_why_there(self) -> None:
        """Of the pods that got their places just now: later ones take what else there was."""
        for sighting in self._recorder.sightings():
            pod = sighting.pod
            uid = pod.metadata.uid
            if self._linkwise and pod.spec.node_name and uid not in self._chosen:
                told = self._explained(pod)
                self._chosen[uid] = told.choice() if told is not None else ""

    def _body(self, manifest: Manifest) -> Mapping[str, object]:
        """Return the object to create; `generateName` becomes the same name in every run."""
        metadata: Any = manifest.body["metadata"]
        if manifest.name:
            return manifest.body
        name = f"{metadata['generateName']}{self._manifests.index(manifest):05}"
        return {**manifest.body, "metadata": {**metadata, "name": name}}

    def counts(self) -> RunCounts:
        pods = [sighting.pod for sighting in self._recorder.sightings()]
        running = sum(1 for pod in pods if pod.status.phase in ("Running", "Succeeded"))
        waiting = sum(1 for pod in pods if not pod.spec.node_name and _was_refused(pod))
        return RunCounts(running, waiting, max(self._of, len(pods)))

    def _moves(self, quiet_seconds: float) -> str:
        """Say what is going on; "" once nothing has happened for *quiet_seconds*."""
        for key, shares in self.held().items():
            self._had[key] |= {uuid for uuids in shares.values() for uuid in uuids}
        self._placed |= {s.pod.metadata.uid: s for s in self._recorder.sightings() if s.planned}
        if going_on := self._goes_on():
            self._changes = -1
            return going_on
        now = time.monotonic()
        if self._changes != self._recorder.changes:
            self._changes, self._changed_at = self._recorder.changes, now
        if self._linkwise and self._workloads.pods_to_come:
            quiet_seconds = _GROWING_SECONDS
        if now - self._changed_at < quiet_seconds:
            return "things have just become quiet"
        if not self._linkwise:
            return ""
        if self._gangs_move():
            return "a gang is on its way"
        moves = self._cluster.ask_extender("/moves", _Moves)
        if moves is None or moves.allowed != "consent":
            return ""
        if moves.plans:
            return "pods are moved"
        is_sought = self.counts().waiting and now - self._changed_at < _MOVING_SECONDS
        return "moves are sought for those that wait" if is_sought else ""

    def _goes_on(self) -> str:
        sightings = self._recorder.sightings()
        expected = self._expected - self._workloads.pods_to_come
        if len(sightings) < expected:
            return f"{len(sightings)} of {expected} pods are created"
        for sighting in sightings:
            if going_on := _goes_on(sighting):
                return f"{sighting.pod.key} {going_on}"
        for pod in self._workloads.pods_to_end():
            if RUN_SECONDS in pod.metadata.annotations:
                return f"{pod.key} runs, and others come after its end"
        return "" if self._scheduler.idle else "kube-scheduler is trying pods"

    def _gangs_move(self) -> bool:
        return any(gang.phase in ("planned", "binding") for gang in self._gangs())

    def _gangs(self) -> Sequence[_Gang]:
        return self._cluster.ask_extender("/gangs", list[_Gang]) or []

    # Results

    def held(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """namespace/name -> container -> GPU uuids, as the kubelets list them."""
        found = {}
        for kubelet in self._cluster.kubelets:
            for pod in kubelet.pod_devices():
                shares = {
                    container: tuple(
                        sorted(
                            uuid
                            for resource in RESOURCES
                            for uuid in pod.held[container].get(resource, ())
                        )
                    )
                    for container in pod.containers
                    if container in pod.held
                }
                found[f"{pod.namespace}/{pod.name}"] = {c: g for c, g in shares.items() if g}
        return found

    def seen(self) -> tuple[SeenPod, ...]:
        """Return the state of every pod, with a reason for each that waits, or is where it is."""
        sightings = self._recorder.sightings()
        explained = {
            s.pod.key: self._explained(s.pod)
            for s in sightings
            if not s.pod.spec.node_name and self._linkwise
        }
        waits = {
            pod: told.words() if told else "The extender does not know this pod."
            for pod, told in explained.items()
        }
        invalid = {pod for pod, told in explained.items() if told and told.state == _INVALID}
        waits |= {
            s.pod.key: f"{s.pod.status.reason}: {s.pod.status.message}"
            for s in sightings
            if s.pod.status.phase == "Failed"
        }
        gangs = self._gangs() if self._linkwise else ()
        needed = {
            f"{gang.namespace}/{member.pod}": GangSeen(gang.name, gang.minimum)
            for gang in gangs
            for member in gang.members
        }
        return seen_pods(
            sightings,
            self.held(),
            self._had,
            waits,
            needed,
            self._workloads.roots,
            invalid,
            {s.pod.key: self._chosen.get(s.pod.metadata.uid, "") for s in sightings},
        )

    def waiting_members(self) -> tuple[WaitingMember, ...]:
        """Return the pods without GPUs that have no node."""
        nodes = self._cluster.client.get("/api/v1/nodes", _Nodes).items
        allocatable = [
            {name: amount(name, each) for name, each in node.status.allocatable.items()}
            for node in nodes
        ]
        return waiting_members(self._recorder.sightings(), self._workloads.roots, allocatable)

    def to_come(self) -> tuple[str, ...]:
        """Return what is not created yet, and what for."""
        endless = (
            f"{pod.key} runs without end here: give it the annotation {RUN_SECONDS}"
            for pod in self._workloads.pods_to_end()
            if RUN_SECONDS not in pod.metadata.annotations
        )
        return (*self._workloads.why_to_come(), *endless)

    def moved(self) -> tuple[MovedPod, ...]:
        """Return the pods that the extender moved, and where they were."""
        found = []
        for event in self._cluster.client.get("/api/v1/events", _Items).items:
            was = self._placed.get(event["involvedObject"]["uid"])
            if event["reason"] == "Moved" and was is not None:
                node = was.pod.spec.node_name
                planned = {uuid for uuids in was.planned.values() for uuid in uuids}
                gpus = (gpu for gpu in self._cluster.machines[node].gpus if gpu.uuid in planned)
                indices = tuple(gpu.index for gpu in gpus)
                found.append(MovedPod(was.pod.key, node, indices, event["message"]))
        return tuple(found)

    def _explained(self, pod: Pod) -> _Explained | None:
        meta = pod.metadata
        return self._cluster.ask_extender(f"/explain/{meta.namespace}/{meta.name}", _Explained)

    # Cleanup

    def clean_away(self, seconds: float) -> None:
        """Delete all workloads, pods and events, and wait until every node is free again."""
        self._workloads.retire()
        for collection in ("/apis/batch/v1/jobs", "/api/v1/pods"):
            self._delete_all(collection)

        def remains() -> str:
            pods = self._recorder.sightings()
            if pods:
                return f"{pods[0].pod.key} is still there"
            return next(iter(self.held()), "") or self._cluster.holders()

        self._cluster.wait_for(remains, "cleaning away", seconds)
        self._delete_all("/api/v1/events")

    def _delete_all(self, collection: str) -> None:
        client = self._cluster.client
        base, _, plural = collection.rpartition("/")
        for item in client.get(collection, _Items).items:
            meta: Mapping[str, str] = item["metadata"]
            try:
                client.delete(f"{base}/namespaces/{meta['namespace']}/{plural}/{meta['name']}")
            except ApiError as error:
                if error.status != 404:  # the job controller was faster
                    raise


def _goes_on(sighting: Sighting) -> str:
    pod = sighting.pod
    if pod.spec.node_name:
        settled = pod.status.phase in ("Running", *ENDED)
        return "" if settled else f"starts on {pod.spec.node_name}"
    ours = pod.spec.scheduler_name == _HASTE.scheduler_name and not pod.spec.scheduling_gates
    return "" if _was_refused(pod) or not ours else "has not been tried"


def _was_refused(pod: Any) -> bool:
    return any(c.type == "PodScheduled" and c.status == "False" for c in pod.status.conditions)
