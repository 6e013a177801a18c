"""Many gangs on few GPUs; the test plays kubelets and operators.

Every gang runs for a moment once it is whole, and then succeeds. Some members die on the way, and
their operator creates new ones. The test reads everything from the API server, over and over, so it
sees whatever a scheduler or an extender forgets.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.actions import WritePlan
from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node, Pod
from linkwise.topology import names
from tests.cluster.support.scheduling.scheduling_world import PODS, SchedulingWorld

# Members, and GPUs of each. Most gangs are small; one in twelve takes whole nodes.
SHAPES = ((2, 1), (4, 1), (8, 1), (2, 2), (3, 2), (4, 2), (2, 4), (3, 4), (2, 8), (4, 8))
_LIKELY = (5, 5, 3, 5, 4, 4, 5, 3, 3, 1)
_ROUNDS_OF_A_RUN = 5  # number of looks at a whole gang before it ends


@dataclass(frozen=True, slots=True)
class DrawnGang:
    name: str
    size: int
    gpus: int  # of each member


def draw_jobs(draw: random.Random, count: int) -> tuple[DrawnGang, ...]:
    shapes = draw.choices(SHAPES, _LIKELY, k=count)
    return tuple(DrawnGang(f"gang-{n:02}", size, gpus) for n, (size, gpus) in enumerate(shapes))


class _NodeList(msgspec.Struct):
    items: tuple[Node, ...]


@dataclass(slots=True)
class Played:
    """What happens to pods after their binding, and what the test saw."""

    world: SchedulingWorld
    jobs: Sequence[DrawnGang]
    draw: random.Random
    dying: float  # share of members that die once
    ran_whole: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    died: int = 0
    _doomed: set[str] = field(default_factory=set)  # pods by name
    _rounds: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def create_all(self) -> None:
        """Create the members of all gangs in random order, as many operators do."""
        members = [(job, f"{job.name}-{rank}") for job in self.jobs for rank in range(job.size)]
        self._doomed = {name for _, name in members if self.draw.random() < self.dying}
        self.draw.shuffle(members)
        for job, name in members:
            self._create(job, name)

    def step(self, pods: Sequence[Pod]) -> None:
        """Act on *pods*, the complete list, as kubelets and operators do."""
        of_gang = defaultdict(list)
        for pod in pods:
            of_gang[pod.metadata.annotations[names.GANG]].append(pod)
        for job in self.jobs:
            if job.name not in self.finished:
                self._play(job, of_gang[job.name])

    def _play(self, job: DrawnGang, pods: Sequence[Pod]) -> None:
        live = [pod for pod in pods if not pod.has_ended]
        bound = [pod for pod in live if pod.spec.node_name]
        for pod in bound:
            if pod.status.phase != "Running":
                self._say(pod, "Running")
        dying = [pod for pod in bound if pod.metadata.name in self._doomed]
        whole = len(bound) == job.size
        # Some die while others still come, the rest once all are there.
        if dying and (whole or self.draw.random() < 0.3):
            self._kill(job, dying[0])
        elif whole:
            self.ran_whole.add(job.name)
            self._rounds[job.name] += 1
            if self._rounds[job.name] > _ROUNDS_OF_A_RUN:
                for pod in bound:
                    self._say(pod, "Succeeded")
                self.finished.add(job.name)

    def _kill(self, job: DrawnGang, pod: Pod) -> None:
        name = pod.metadata.name
        self._doomed.discard(name)
        self.died += 1
        self._say(pod, "Failed")
        self._create(job, f"{name}-again")

    def _create(self, job: DrawnGang, name: str) -> None:
        said = {names.GANG: job.name, names.GANG_SIZE: str(job.size)}
        self.world.create(name, gpus=job.gpus, annotations=said)

    def _say(self, pod: Pod, phase: str) -> None:
        path = f"{PODS}/{pod.metadata.name}/status"
        self.world.client.patch(path, {"status": {"phase": phase}})


@dataclass(slots=True)
class Overdue:
    """How long pods waited although they were due: planned but not bound, or not planned although a
    new extender plans them from the same objects."""

    client: KubeClient
    longest: float = 0.0  # seconds
    whose: str = ""
    _since: dict[str, float] = field(default_factory=dict)  # by uid

    def look(self, pods: Sequence[Pod], now: float) -> None:
        due = {pod.metadata.uid: pod.metadata.name for pod in self._due(pods, now)}
        self._since = {uid: self._since.get(uid, now) for uid in due}
        for uid, since in self._since.items():
            if now - since > self.longest:
                self.longest, self.whose = now - since, due[uid]

    def start_again(self) -> None:
        """Restart the waits after a time in which no program could act."""
        self._since.clear()

    def _due(self, pods: Sequence[Pod], now: float) -> Iterable[Pod]:
        core = Core(CoreSettings())
        core.replace_nodes(self.client.get("/api/v1/nodes", _NodeList).items, now)
        core.replace_pods(pods, now)
        planned = {a.pod.uid for a in core.decide(now) if isinstance(a, WritePlan)}
        for pod in pods:
            if pod.spec.node_name or pod.has_ended:
                continue
            if pod.metadata.uid in planned or names.PLAN in pod.metadata.annotations:
                yield pod


def given_twice(pods: Sequence[Pod]) -> list[str]:
    """Return GPUs that are in the plans of two bound, live pods."""
    holders: defaultdict[str, list[str]] = defaultdict(list)
    for pod in pods:
        if pod.spec.node_name and not pod.has_ended:
            for uuid in _uuids(pod.metadata.annotations):
                holders[uuid].append(pod.metadata.name)
    return [f"{uuid}: {', '.join(who)}" for uuid, who in holders.items() if len(who) > 1]


def _uuids(annotations: Mapping[str, str]) -> Iterable[str]:
    shares: dict[str, list[str]] = msgspec.json.decode(annotations.get(names.GPUS, "{}"))
    return (uuid for share in shares.values() for uuid in share)
