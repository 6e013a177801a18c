"""Single pods and gangs that may be moved, and their controllers: they recreate an evicted pod,
mostly soon, sometimes late, never, or with another request. A person empties nodes from time to
time."""

from dataclasses import dataclass, field
from functools import partial
from random import Random

from linkwise.kube.objects import OwnerReference, Pod
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.topology import names
from tests.liveness.day import Day, owner_of

_HOUR = 3600.0
_IGNORES = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


@dataclass
class Workload:
    """A ReplicaSet or Job of one pod, or of the pods of a gang."""

    name: str
    namespace: str
    is_server: bool
    seconds: float  # that it runs, or is there
    gpus: int
    said: dict[str, str]
    priority: int
    gated: bool
    size: int = 1
    least: int = 1  # members that are enough to start
    made: int = 0  # pods
    pods: dict[str, int] = field(default_factory=dict)  # uid of those that it counts -> rank
    done: set[int] = field(default_factory=set)  # ranks
    is_over: bool = False

    @property
    def owner(self) -> OwnerReference:
        kind, version = ("ReplicaSet", "apps/v1") if self.is_server else ("Job", "batch/v1")
        return OwnerReference(kind, self.name, f"uid-of-{self.name}", version, controller=True)


class Movables:
    def __init__(self, day: Day, seed: int, seconds: float, namespaces: tuple[str, ...]) -> None:
        self._day, self._seconds, self._namespaces = day, seconds, namespaces
        self._draw = Random(f"movables {seed}")
        self._person = Random(f"emptied nodes {seed}")
        self._spare = Random(f"spare members {seed}")
        self._workloads: dict[str, Workload] = {}  # by the owner's uid
        day.on_leave = self.ended

    def begin(self) -> None:
        draw, day = self._draw, self._day
        for number in range(draw.choice([12, 24, 36])):
            one = self._workload(f"m{number}")
            self._workloads[one.owner.uid] = one
            day.at(day.now + draw.uniform(0, self._seconds * 0.7), partial(self._come, one))
        for _ in range(self._person.choice([0, 2, 6])):
            day.at(day.now + self._person.uniform(0, self._seconds), self._empty)

    def _empty(self) -> None:
        node = self._person.choice(sorted(self._day.nodes))
        self._day.annotate_node(node, names.EMPTY, "true")
        undo = partial(self._day.annotate_node, node, names.EMPTY, None)
        self._day.after(self._person.uniform(1.0, 2 * _HOUR), undo)

    def fill(self) -> None:
        """No node is emptied any more."""
        for node in sorted(self._day.nodes):
            self._day.annotate_node(node, names.EMPTY, None)

    def _workload(self, name: str) -> Workload:
        draw, namespace = self._draw, self._draw.choice(self._namespaces)
        is_server = draw.random() < 0.6
        said = {"movable": "true"} if draw.random() < 0.85 else {}
        if draw.random() < 0.4:
            said["move-cost"] = draw.choice(["5s", "30s", "2m"])
        rules = [_IGNORES] if draw.random() < 0.8 else []
        if not is_server:
            assert self._day.owners is not None
            self._day.owners[ObjectRef("batch", "Job", namespace, name)] = {
                "metadata": {"uid": f"uid-of-{name}"},
                "spec": {"podFailurePolicy": {"rules": rules}},
            }
        one = Workload(
            name,
            namespace,
            is_server,
            draw.uniform(0.2, 4.0) * _HOUR,
            draw.choice([1, 1, 1, 2, 2, 2, 4]),
            said,
            draw.choice([0, 0, 0, 1, 2]),
            gated=draw.random() < 0.2,
            size=draw.choice([1, 1, 2, 2, 2, 3]),
        )
        one.least = one.size
        if one.size > 1 and self._spare.random() < 0.5:
            one.least = self._spare.randint(1, one.size)
            one.said["communicator"] = self._spare.choice(["pod", "pod", "gang"])
        return one

    def _come(self, one: Workload) -> None:
        if one.is_server:
            self._day.after(one.seconds, partial(self._scale_down, one))
        for rank in range(one.size):
            self._make(one, rank)

    def _scale_down(self, one: Workload) -> None:
        one.is_over = True
        for uid in [*one.pods]:
            if uid in self._day.pods:
                self._day.terminate(self._day.pods[uid].metadata.name)

    def _make(self, one: Workload, rank: int) -> None:
        if one.is_over or rank in (*one.pods.values(), *one.done):
            return
        one.made += 1
        of_gang = {"gang": one.name, "gang-size": str(one.size)} if one.size > 1 else {}
        if one.least < one.size:
            of_gang["gang-min"] = str(one.least)
        if of_gang and not one.is_server:
            of_gang["rank"] = str(rank)
        pod = self._day.make(
            f"{one.name}-{one.made}",
            one.gpus,
            namespace=one.namespace,
            said={**one.said, **of_gang},
            priority=one.priority,
            owner=one.owner,
            gated=one.gated,
        )
        one.pods[pod.metadata.uid] = rank
        if not one.is_server:
            self._day.runs_for[pod.metadata.uid] = one.seconds

    def ended(self, pod: Pod) -> None:
        """It has ended, is gone, or began to leave."""
        one = self._workloads.get(owner_of(pod))
        if one is None or pod.metadata.uid not in one.pods:
            return
        day = self._day
        leaves = pod.metadata.uid in day.pods and not pod.has_ended
        if leaves and not one.is_server:
            return  # a Job with a podFailurePolicy waits until the pod has ended
        rank = one.pods.pop(pod.metadata.uid)
        if not leaves and pod.metadata.uid in day.pods:
            day.after(self._draw.uniform(1, 60), partial(day.clean_up, pod.metadata.uid))
        if pod.status.phase == "Succeeded":
            one.done.add(rank)
        day.after(self._how_late(one), partial(self._make, one, rank))
        if one.is_over:
            self._scale_down(one)

    def _how_late(self, one: Workload) -> float:
        draw, chance = self._draw, self._draw.random()
        if chance < 0.04:
            one.is_over = True
        if draw.random() < 0.06:
            one.gpus = one.gpus // 2 or 2
        if chance < 0.75:
            return draw.uniform(0.1, 5.0)
        return draw.uniform(5.0, 290.0) if chance < 0.92 else draw.uniform(320.0, 900.0)
