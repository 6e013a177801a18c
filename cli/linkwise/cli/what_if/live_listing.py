"""A listing in which time goes on around the extender's core, and nothing leaves the process.

A pod with a plan is bound at once and keeps its GPUs until it ends. If it says how long it runs, it
ends then; otherwise its end is unknown, and it never ends here. A pod in no gang for which the core
finds no whole GPUs gets shares that are offered under their name, as when kube-scheduler tries it.

The pods of the job come in the order in which their controllers create them. If some come after the
end of others, these others succeed as soon as all of them run.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush

import msgspec

from linkwise.cli.documents import Fields
from linkwise.cli.what_if.cluster import ListedCluster
from linkwise.cli.what_if.given.job import takes
from linkwise.cli.what_if.in_shares import nodes_with_shares, offers_any
from linkwise.cli.what_if.other_pods import NodesForOthers, put_all
from linkwise.extender.next.core_settings import Preempt
from linkwise.extender.next.queue.run_times import STUCK_SECONDS
from linkwise.extender.show.explain.funnel import alike
from linkwise.extender.state.actions import Action, Evict, WithdrawPlan, WritePlan, bound, leaving
from linkwise.extender.state.extender_calls import FilterCall, Outcome
from linkwise.kube.controllers.order import After, Reached, SeenPods
from linkwise.kube.objects import Node, Pod
from linkwise.pods.annotations import ask_of
from linkwise.pods.podgrouper.workloads.answer import Missing, ObjectRef
from linkwise.replay.in_memory_api_server import InMemoryApiServer, answer_in_time
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_plan, write_in_use
from linkwise.topology.errors import AnnotationError

change = msgspec.structs.replace
_MOST_ROUNDS = 10_000  # of decisions at one moment; only a defect needs more
_LEAST_SECONDS = 0.01  # between two decisions
_GRACE_SECONDS = 30.0  # of an evicted pod: Kubernetes' default


class LiveListing(InMemoryApiServer):
    def __init__(
        self,
        cluster: ListedCluster,
        pods: Iterable[Pod],
        *,
        objects: Mapping[ObjectRef, Fields] | None = None,
        preempt: Preempt | None = None,
        ends: bool = True,
    ) -> None:
        """The cluster with these *pods*, and these *objects* instead of the listed ones. With
        *preempt*, other pods are evicted than in the cluster. Without *ends* no pod ends, whatever
        it says."""
        listing, settings = cluster.listing, cluster.settings
        super().__init__(
            settings if preempt is None else replace(settings, preempt=preempt),
            cluster.at,
            {node.metadata.name: node for node in cluster.known.nodes},
            {pod.metadata.uid: pod for pod in pods},
            listing.budgets or [],
            dict(listing.slices),
            dict(listing.claims),
        )
        self._are_ends = ends
        self.evicted: dict[str, str] = {}  # uid -> for whom
        self.not_given: dict[ObjectRef, None] = {}  # owners of pods that the listing lacks
        self._objects = listing.objects if objects is None else objects
        self._planned: dict[str, None] = {}  # uids of pods that may be bound
        self._ends: list[tuple[float, str]] = []
        self._job: dict[str, Pod] = {}  # as it was submitted
        self._order: Mapping[str, tuple[After, ...]] = {}
        self._seen = SeenPods()  # of the job
        self.to_come: dict[str, Pod] = {}  # of the job, not created yet
        self.others: dict[str, Pod] = {}  # of the job, without GPUs
        self.without_node: dict[str, Pod] = {}  # those of them that have none
        self._of_devices: dict[str, Pod] = {}  # of the job: whether of GPUs, the core knows
        self.ended_early: dict[str, Pod] = {}  # of the job, so that others came
        self._is_news = False  # whether a pod without GPUs may fit that did not before
        self._is_news_of_shares = True  # the same of a pod that may get shares
        self.offers_shares = offers_any(self.core.snapshot(self.now))
        for pod in self.pods.values():
            self._expect_end(pod)
            if pod.status.nominated_node_name and names.PLAN in pod.metadata.annotations:
                self._planned[pod.metadata.uid] = None

    # Time

    def settle(self) -> None:
        """Run the core until it has nothing more to do at this moment."""
        for _ in range(_MOST_ROUNDS):
            has_put = self._put_others()
            _, busy = self.decide()
            for defect in self.core.take_defects():
                raise defect
            busy = self._bind_planned() or busy or has_put
            busy = self._create_next() or busy or self._end_those_waited_for()
            due = self.core.next_due()
            if not busy and (due is None or due > self.now) and not self._put_in_shares():
                return
            if not busy:
                self.now += _LEAST_SECONDS  # the core has looked, and waits for the clock
        raise RuntimeError("the core finds no rest; please report this with the input")

    def run_until(self, until: float, done: Callable[[], bool]) -> bool:
        """Let time go on to *until*, or until *done* is true. Return whether it is."""
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

    def play(self, seconds: float) -> None:
        """Let time go on for *seconds* after the last of the job's pods has come, or until all of
        them have nodes."""
        left = -1
        while left != len(self.to_come):
            left = len(self.to_come)
            if self.run_until(self.now + seconds, lambda: self.is_whole):
                return

    # The job

    def submit(self, job: Iterable[Pod], order: Mapping[str, tuple[After, ...]]) -> None:
        """Create the job's pods, each when its turn comes. *order*: uid -> what it comes after."""
        self._job = {pod.metadata.uid: pod for pod in job}
        # The question supposes that; on nodes without topology, nothing else would show it.
        for scheduler in {pod.spec.scheduler_name for pod in self._job.values()}:
            self.core.asked_by(scheduler)
        self._seen = SeenPods()
        self._order = _of_these(self._job.values(), order)
        self.others.clear()
        self.ended_early.clear()
        self.to_come = {uid: pod for uid, pod in self._job.items() if order.get(uid)}
        for uid, pod in self._job.items():
            if uid not in self.to_come:
                self._create(pod)

    def withdraw(self) -> None:
        """Remove the job."""
        uids, self._job = [*self._job], {}
        self.to_come.clear()
        self.without_node.clear()
        self._of_devices.clear()
        self.remove(uids)

    @property
    def is_whole(self) -> bool:
        """Whether all pods of the job have nodes."""
        return not (self.to_come or self.without_node) and all(
            uid in self.pods and self.pods[uid].spec.node_name
            for uid, pod in self._job.items()
            if takes(pod, self.settings.resource_names)
        )

    @property
    def is_all_there(self) -> bool:
        """Whether all of its pods are created, and those without GPUs have nodes."""
        return not (self.to_come or self.without_node)

    def why_to_come(self, uid: str) -> str:
        """Say what a pod waits for that is not created yet."""
        namespace = self.to_come[uid].metadata.namespace
        waits = (each for each in self._order[uid] if not self._seen.meet(each, namespace))
        return " and ".join(map(str, waits))

    def _create(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.put_pod(pod)
        if not pod.spec.scheduling_gates:
            self.others[uid] = self.without_node[uid] = pod
        elif not takes(pod, self.settings.resource_names):
            self._of_devices[uid] = pod

    def _create_next(self) -> bool:
        ready = [
            pod
            for uid, pod in self.to_come.items()
            if self._seen.meet_all(self._order[uid], pod.metadata.namespace)
        ]
        for pod in ready:
            del self.to_come[pod.metadata.uid]
            self._create(pod)
        return bool(ready)

    def _end_those_waited_for(self) -> bool:
        ended = False
        for uid in [*self.to_come]:
            namespace = self.to_come[uid].metadata.namespace
            for after in self._order[uid]:
                running = replace(after, state=Reached.READY)
                if after.state is Reached.COMPLETE and self._seen.meet(running, namespace):
                    for pod in self._seen.of(after, namespace):
                        if pod.status.phase == "Running":
                            over = change(pod, status=change(pod.status, phase="Succeeded"))
                            self.ended_early[pod.metadata.uid] = self.put_pod(over)
                            ended = True
        return ended

    def _put_others(self) -> bool:
        """Act as kube-scheduler: bind the job's pods without GPUs that fit now."""
        if not ((self.without_node or self._of_devices) and self._is_news):
            return False
        self._is_news = False
        snapshot = self.core.snapshot(self.now)
        for uid in [*self._of_devices]:
            record, pod = snapshot.by_uid[uid], self._of_devices.pop(uid)
            if not (record.shares or record.has_claims or record.claim):
                spec = change(pod.spec, scheduling_gates=())
                self.others[uid] = self.without_node[uid] = self.put_pod(change(pod, spec=spec))
        found = put_all(snapshot, [*self.without_node.values()])
        for pod, node in found:
            del self.without_node[pod.metadata.uid]
            self._expect_end(self.put_bound(bound(pod, node)))
        return bool(found)

    def _put_in_shares(self) -> bool:
        """Act as kube-scheduler: bind the first pod behind the gate that has room as shares."""
        if not (self.offers_shares and self._is_news_of_shares):
            return False
        self._is_news_of_shares = False
        snapshot = self.core.snapshot(self.now)
        nodes, without = NodesForOthers(snapshot), set[object]()
        waiting = (
            record
            for record in snapshot.pods
            if record.gated
            and not (record.node or record.held_back or record.invalid or record.awaits)
        )
        for record in sorted(waiting, key=lambda each: (-each.priority, each.created, each.key)):
            if (kind := alike(record)) in without:
                continue
            pod, shared = self.pods[record.uid], nodes_with_shares(snapshot, record)
            on = sorted(shared & nodes.can_take(pod, record)) if shared else ()
            if on and self._try_shares(pod, on):
                return True
            without.add(kind)
        return False

    def _try_shares(self, gated: Pod, on: Sequence[str]) -> bool:
        pod = self.put_pod(change(gated, spec=change(gated.spec, scheduling_gates=())))
        passed = answer_in_time(self.core, FilterCall(pod, tuple(on)), self.now).node_names
        node = self.best_of(pod, passed)
        if node and self.try_to_bind(pod, node):
            self._expect_end(self.pods[pod.metadata.uid])
            return True
        self.put_pod(gated)
        self._is_news_of_shares = False
        return False

    # Events in the cluster

    def put_pod(self, pod: Pod) -> Pod:
        self._is_news = self._is_news_of_shares = True
        if pod.metadata.uid in self._job:
            self._seen.put(pod)
        return super().put_pod(pod)

    def remove_pod(self, uid: str) -> Pod:
        self._is_news = self._is_news_of_shares = True
        gone = super().remove_pod(uid)
        self._seen.drop(gone)
        return gone

    def put_node(self, node: Node) -> Node:
        self._is_news = self._is_news_of_shares = True
        return super().put_node(node)

    def add(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            self.put_pod(pod)

    def remove(self, uids: Iterable[str]) -> list[Pod]:
        """Remove pods; the kubelets get their GPUs back."""
        gone = [self.pods[uid] for uid in uids if uid in self.pods]
        on: dict[str, set[str]] = {}
        for pod in gone:
            self.remove_pod(pod.metadata.uid)
            if pod.spec.node_name in self.nodes:
                key = pod.key
                on.setdefault(pod.spec.node_name, set()).add(key)
        for node, keys in on.items():
            self._give_back(node, keys)
        return gone

    def _give_back(self, name: str, keys: set[str]) -> None:
        try:
            said = self.in_use(name)
        except AnnotationError:
            return
        left = change(
            said,
            pods={key: gpus for key, gpus in said.pods.items() if key not in keys},
            shares={key: shares for key, shares in said.shares.items() if key not in keys},
        )
        if left != said:
            self.annotate_node(name, names.IN_USE, write_in_use(left))

    def _expect_end(self, pod: Pod) -> None:
        end = known_end(pod, self.now) if self._are_ends else None
        if end is not None:
            heappush(self._ends, (end, pod.metadata.uid))

    # Decisions of the core

    def read_owner(self, ref: ObjectRef) -> Fields | Missing:
        found = self._objects.get(ref)
        if found is not None:
            return found
        self.not_given[ref] = None
        return Missing.FORBIDDEN  # not "does not exist": no API server was asked

    def carry_out(self, action: Action) -> Outcome:
        if isinstance(action, WritePlan):
            self._planned[action.pod.uid] = None
        elif isinstance(action, WithdrawPlan):
            self._planned.pop(action.pod.uid, None)
        return super().carry_out(action)

    def evict(self, pod: Pod, action: Evict) -> Outcome:
        self.evicted[pod.metadata.uid] = "" if action.for_whom is None else action.for_whom.title
        self._expect_end(self.put_pod(leaving(pod, self.now + _GRACE_SECONDS)))
        return Outcome.DONE

    def _bind_planned(self) -> bool:
        """Act as kube-scheduler: bind a pod without gates to its plan's node."""
        ready = 0
        for uid in list(self._planned):
            pod = self.pods.get(uid)
            if pod is None:
                del self._planned[uid]
                continue
            node = pod.status.nominated_node_name
            if pod.spec.scheduling_gates or not node or names.PLAN not in pod.metadata.annotations:
                continue
            del self._planned[uid]
            self._expect_end(self.put_bound(bound(pod, node)))
            ready += 1
        return ready > 0


def _of_these(
    job: Collection[Pod], order: Mapping[str, tuple[After, ...]]
) -> dict[str, tuple[After, ...]]:
    """*order*, of no more pods than the job has: of a Job that runs some after the others, only the
    first are there."""
    there = SeenPods()
    for pod in job:
        there.put(pod)
    known: dict[tuple[After, str], After] = {}
    found = {}
    for pod in job:
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        for after in order.get(uid, ()):
            if (after, namespace) not in known:
                pods = min(after.pods, len(there.of(after, namespace)))
                known[after, namespace] = replace(after, pods=pods)
        found[uid] = tuple(known[after, namespace] for after in order.get(uid, ()))
    return found


def known_end(pod: Pod, now: float) -> float | None:
    """When a pod on a node is gone, where it has said so or is ending; None: it is not known, or it
    has run longer than it declared. As `linkwise.extender.next.queue.run_times` counts."""
    if not pod.spec.node_name or pod.has_ended:
        return None
    leaving = pod.metadata.deletion_timestamp
    if leaving is not None:
        end = leaving.timestamp()
        return max(end, now) if now < end + STUCK_SECONDS else None
    said = pod.metadata.annotations
    if names.PLAN not in said:
        return None
    try:
        seconds, plan = (
            ask_of(said, pod.metadata.labels).expected_seconds,
            read_plan(said[names.PLAN]),
        )
    except AnnotationError:
        return None
    seconds = seconds if plan.expected is None else plan.expected
    copied = plan.uid not in ("", pod.metadata.uid)
    if seconds is None or copied or plan.node != pod.spec.node_name:
        return None
    return plan.made + seconds if plan.made + seconds > now else None
