"""A cluster in memory around the extender's core. It does what the API server, kube-scheduler and
the kubelets would do with the core's decisions. Only the core is real, and nothing leaves the
process.

A pod with a plan is bound at once and keeps its GPUs until it ends. If it says how long it runs, it
ends then; otherwise its end is unknown, and it never ends here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from heapq import heappop, heappush

import msgspec

from linkwise.cli.documents import Fields
from linkwise.extender.api.action_effects import applied
from linkwise.extender.api.actions import Action, Emit, Evict, WithdrawPlan, WritePlan
from linkwise.extender.api.annotations import ask_of
from linkwise.extender.api.extender_calls import Outcome
from linkwise.extender.core import Core
from linkwise.extender.core_settings import CoreSettings
from linkwise.extender.podgrouper.workloads.answer import Missing, ObjectRef
from linkwise.extender.queue.running_pods import STUCK_SECONDS
from linkwise.kube.objects import Node, Pod, PodDisruptionBudget
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_in_use, read_plan, write_in_use
from linkwise.topology.errors import AnnotationError

change = msgspec.structs.replace
_MOST_ROUNDS = 10_000  # of decisions at one moment; only a defect needs more
_LEAST_SECONDS = 0.01  # between two decisions
_GRACE_SECONDS = 30.0  # of an evicted pod: Kubernetes' default


class World:
    def __init__(
        self,
        nodes: Iterable[Node],
        pods: Iterable[Pod],
        *,
        objects: Mapping[ObjectRef, Fields],
        budgets: Iterable[PodDisruptionBudget],
        settings: CoreSettings,
        now: float,
        ends: bool = True,
    ) -> None:
        """Without *ends* no pod ends, whatever it says."""
        self.now = now
        self._are_ends = ends
        self.nodes = {node.metadata.name: node for node in nodes}
        self.pods = {pod.metadata.uid: pod for pod in pods}
        self.evicted: dict[str, str] = {}  # uid -> for whom
        self.not_given: dict[ObjectRef, None] = {}  # owners of pods that the listing lacks
        self._objects = objects
        self._planned: dict[str, None] = {}  # uids of pods that may be bound
        self._ends: list[tuple[float, str]] = []
        self.core = Core(settings)
        self.core.replace_nodes(self.nodes.values(), now)
        self.core.replace_pods(self.pods.values(), now)
        self.core.replace_budgets(budgets, now)
        for pod in self.pods.values():
            self._expect_end(pod)
            if pod.status.nominated_node_name and names.PLAN in pod.metadata.annotations:
                self._planned[pod.metadata.uid] = None

    # Time

    def settle(self) -> None:
        """Run the core until it has nothing more to do at this moment."""
        for _ in range(_MOST_ROUNDS):
            busy = self._decide()
            due = self.core.next_due()
            if not busy and (due is None or due > self.now):
                return
            if not busy:
                self.now += _LEAST_SECONDS  # the core has looked, and waits for the clock
        raise RuntimeError("the core finds no rest; please report this with the input")

    def live(self, until: float, done: Callable[[], bool]) -> bool:
        """Go on to *until*, or until *done* is true. Return whether it is."""
        self.settle()
        while not done():
            due = self.core.next_due()
            then = min(due if due is not None else until, self._ends[0][0] if self._ends else until)
            if then >= until:
                self.now = max(self.now, until)
                return False
            self.now = max(then, self.now + _LEAST_SECONDS)
            self._end_who_is_due()
            self.settle()
        return True

    @property
    def ends(self) -> Sequence[tuple[float, str]]:
        """Return the known ends of pods with their uids, the soonest first."""
        return sorted(self._ends)

    def pass_to(self, then: float) -> None:
        """Jump to *then*. The core does late what it would have done in between."""
        self.now = max(then, self.now)
        self._end_who_is_due()
        self.settle()

    def _end_who_is_due(self) -> None:
        due = []
        while self._ends and self._ends[0][0] <= self.now:
            due.append(heappop(self._ends)[1])
        self.remove(due)

    # Events in the cluster

    def add(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            self._put(pod)

    def remove(self, uids: Iterable[str]) -> list[Pod]:
        """Remove pods; the kubelets get their GPUs back."""
        gone = [self.pods.pop(uid) for uid in uids if uid in self.pods]
        on: dict[str, set[str]] = {}
        for pod in gone:
            self.core.pod_event("DELETED", pod, self.now)
            if pod.spec.node_name in self.nodes:
                key = f"{pod.metadata.namespace}/{pod.metadata.name}"
                on.setdefault(pod.spec.node_name, set()).add(key)
        for node, keys in on.items():
            self._give_back(node, keys)
        return gone

    def put_node(self, node: Node) -> None:
        self.nodes[node.metadata.name] = node
        self.core.node_event("MODIFIED", node, self.now)

    def _give_back(self, name: str, keys: set[str]) -> None:
        node = self.nodes[name]
        text = node.metadata.annotations.get(names.IN_USE)
        if text is None:
            return
        try:
            said = read_in_use(text)
        except AnnotationError:
            return
        if not keys & said.pods.keys():
            return
        left = {key: gpus for key, gpus in said.pods.items() if key not in keys}
        written = write_in_use(change(said, pods=left))
        annotations = {**node.metadata.annotations, names.IN_USE: written}
        self.put_node(change(node, metadata=change(node.metadata, annotations=annotations)))

    def _put(self, pod: Pod) -> None:
        kind = "MODIFIED" if pod.metadata.uid in self.pods else "ADDED"
        self.pods[pod.metadata.uid] = pod
        self.core.pod_event(kind, pod, self.now)

    def _expect_end(self, pod: Pod) -> None:
        end = known_end(pod, self.now) if self._are_ends else None
        if end is not None:
            heappush(self._ends, (end, pod.metadata.uid))

    # Decisions of the core

    def _decide(self) -> bool:
        core = self.core
        actions = core.decide(self.now)
        reads = core.owners_to_read(self.now)
        for read in reads:
            found = self._objects.get(read.ref)
            if found is None:
                self.not_given[read.ref] = None
            # Not "does not exist", for which some pods would wait: no API server was asked.
            core.owner_read(read, Missing.FORBIDDEN if found is None else found, self.now)
        while reads and core.rejudge(self.now):
            pass
        for action in actions:
            core.done(action, self._carry_out(action), self.now)
        for defect in core.take_defects():
            raise defect
        return bool(self._bind_planned()) or bool(actions or reads)

    def _carry_out(self, action: Action) -> Outcome:
        if isinstance(action, Emit):
            return Outcome.DONE
        pod = self.pods.get(action.pod.uid)
        if pod is None:
            return Outcome.REFUSED
        if isinstance(action, Evict):
            self._evict(pod, "" if action.for_whom is None else action.for_whom.title)
            return Outcome.DONE
        if isinstance(action, WritePlan):
            self._planned[pod.metadata.uid] = None
        elif isinstance(action, WithdrawPlan):
            self._planned.pop(pod.metadata.uid, None)
        self._put(applied(action, pod))
        return Outcome.DONE

    def _evict(self, pod: Pod, for_whom: str) -> None:
        self.evicted[pod.metadata.uid] = for_whom
        end = datetime.fromtimestamp(self.now + _GRACE_SECONDS, UTC)
        pod = change(pod, metadata=change(pod.metadata, deletion_timestamp=end))
        self._put(pod)
        self._expect_end(pod)

    def _bind_planned(self) -> int:
        """Act as kube-scheduler: bind a pod without gates to its plan's node."""
        bound = 0
        for uid in list(self._planned):
            pod = self.pods.get(uid)
            if pod is None:
                del self._planned[uid]
                continue
            node = pod.status.nominated_node_name
            if pod.spec.scheduling_gates or not node or names.PLAN not in pod.metadata.annotations:
                continue
            del self._planned[uid]
            spec = change(pod.spec, node_name=node)
            pod = change(pod, spec=spec, status=change(pod.status, phase="Running"))
            self._put(pod)
            self._expect_end(pod)
            bound += 1
        return bound


def known_end(pod: Pod, now: float) -> float | None:
    """When a pod on a node is gone, where it has said so or is ending; None: it is not known, or it
    has broken its word. As `linkwise.extender.queue.running_pods` counts."""
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return None
    leaving = pod.metadata.deletion_timestamp
    if leaving is not None:
        end = leaving.timestamp()
        return max(end, now) if now < end + STUCK_SECONDS else None
    said = pod.metadata.annotations
    if names.EXPECTED_DURATION not in said or names.PLAN not in said:
        return None
    try:
        seconds, plan = (
            ask_of(said, pod.metadata.labels).expected_seconds,
            read_plan(said[names.PLAN]),
        )
    except AnnotationError:
        return None
    copied = plan.uid not in ("", pod.metadata.uid)
    if seconds is None or copied or plan.node != pod.spec.node_name:
        return None
    return plan.made + seconds if plan.made + seconds > now else None
