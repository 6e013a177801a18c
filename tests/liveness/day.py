"""A cluster that lives through days in seconds: the real core, and what is around it as values.

The clock jumps from one event to the next. The API server's objects are the truth; the core's watch
may be late, kube-scheduler's calls and the core's writes may be lost, kubelets take their time.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count, islice
from random import Random

import msgspec

from linkwise.extender.core import Core
from linkwise.extender.next.quarantine import culprit_of
from linkwise.extender.state.actions import (
    Action,
    CreateClaim,
    Emit,
    Evict,
    LiftGate,
    WritePlan,
    bound,
    leaving,
)
from linkwise.extender.state.extender_calls import BindOrder, Outcome
from linkwise.kube.device_claims import ResourceClaim, ResourceSlice
from linkwise.kube.objects import (
    Node,
    OwnerReference,
    Pod,
    PodClaim,
    whole,
)
from linkwise.simulator.scheduler import OtherFilter
from linkwise.simulator.scheduler.queue import QueuedPod
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from linkwise.topology.errors import AnnotationError
from linkwise.topology.machine.model import Machine
from tests.extender import claimed
from tests.extender.cluster import GPU
from tests.extender.device_cluster import DeviceCluster, Request, by_webhook, devices_of
from tests.liveness.kube_scheduler import Api, ClaimQueue, KubeScheduler, Wire
from tests.odd_pods import NAMESPACE

change = msgspec.structs.replace
SHORTEST_SECONDS = 0.05  # the loop decides at most so often
CALM_SECONDS = 0.1  # and so long after changes that are not urgent
# After so many of kube-scheduler's tries, which come faster than the loop decides.
_DECIDES = 0.2
PUBLISH_SECONDS = 1.0  # until a plugin has published what podresources says
_MOST_ROUNDS = 400


class _Watch(Enum):
    PODS = auto()
    DEVICES = auto()


@dataclass
class Trouble:
    """What goes wrong at present, as probabilities and switches."""

    calls_lost: float = 0.0  # of kube-scheduler's, on the way there and on the way back
    writes_lost: float = 0.0  # of the extender's; half of them are carried out
    watch_late: float = 0.0  # seconds
    evictions_refused: bool = False
    no_leader: bool = False
    deaths: float = 0.0  # of the leader, after a write that only its next ones complete


@dataclass
class Day(DeviceCluster):
    seed: int = 0
    sample: int = 1 << 30
    queue: type[ClaimQueue] = ClaimQueue  # kube-scheduler's
    other_filters: list[OtherFilter] = field(default_factory=list)
    trouble: Trouble = field(default_factory=Trouble)
    # By the kubelets: node -> namespace/pod -> container -> GPUs.
    held: dict[str, dict[str, Mapping[str, tuple[str, ...]]]] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)  # pods, by name, that never end terminating
    no_plugin: set[str] = field(default_factory=set)  # nodes
    # Hostile nodes -> what each is, whatever it publishes.
    taken: dict[str, Machine] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)  # workloads that had pods there
    takes_pods: bool = True  # whether the API server lets anybody create any
    writes: int = 0  # of the extender, without Events and what is about the hostile tenant's pods
    faults_at: float = 0.0  # when something last went wrong
    writes_lost_at: float = -math.inf  # when the last Binding or action was
    led_at: float = -math.inf  # since when this leader leads
    refused_at: float = -math.inf  # when the last eviction was
    failures: list[str] = field(default_factory=list)

    runs_for: dict[str, float] = field(default_factory=dict)  # by uid; servers have none
    by_claims: set[str] = field(default_factory=set)  # nodes of which a DRA driver has the GPUs
    # Whether the webhook gives claims to the pods of a gang or workload, by its name.
    claims_for: Callable[[str], bool] = lambda _: False

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        # What each watch is still to show: one of Nodes and Pods, one of slices and claims.
        self._late: dict[_Watch, list[tuple[float, Callable[[Core], object]]]]
        self._late = {watch: [] for watch in _Watch}
        self._numbers = count()
        self.decided: list[float] = []
        self._is_dead = False  # the leader, and no other leads yet
        self._calm_until = 0.0  # by then, a round follows changes that are not urgent
        self.on_end: Callable[[Pod], object] = lambda _: None
        self.on_bind: Callable[[Pod], object] = lambda _: None
        self.on_bound: Callable[[Pod], object] = lambda _: None  # for its owner
        self.on_run: Callable[[Pod], object] = lambda _: None
        self.before_bind: Callable[[Pod, str], object] = lambda *_: None  # for the judge
        self.before_lift: Callable[[Pod], object] = lambda _: None  # for the judge
        self.on_leave: Callable[[Pod], object] = lambda _: None  # it has a node, and is to end
        self.on_gpus: Callable[[Pod], object] = lambda _: None  # planned for it, or given to it
        self.on_step: Callable[[WritePlan | CreateClaim | LiftGate], object] = lambda _: None
        # The victim, and the claimant if kube-scheduler preempts.
        self.on_evict: Callable[[Pod, Evict | Pod], object] = lambda *_: None
        wire = Wire(
            core=lambda: self.core if self.has_leader else None,
            now=lambda: self.now,
            post=self._post,
            catch_up=lambda: self._tell_late(math.inf),
            decide=self._decide,
            is_lost=self._is_call_lost,
        )
        self.scheduler = KubeScheduler(
            wire,
            Api(self.put_pod, self._delete_for_another, self._bind_soon),
            self.seed,
            self.sample,
            self.other_filters,
            self,
            self.queue,
        )
        super().__post_init__()
        self.led_at = -math.inf  # the first one took over from no other

    @property
    def has_leader(self) -> bool:
        return not (self.trouble.no_leader or self._is_dead)

    # Time.

    def at(self, when: float, happens: Callable[[], object]) -> None:
        heappush(self._events, (max(when, self.now), next(self._numbers), happens))

    def after(self, seconds: float, happens: Callable[[], object]) -> None:
        self.at(self.now + seconds, happens)

    def live(self, until: float, watch: Callable[[float], object]) -> None:
        """Call *watch* before each jump of the clock, with the time that the clock jumps to."""
        while not self.failures:
            self.rest()
            then = self._next()
            watch(min(then, until))
            if then >= until:
                self.now = until
                return
            self.now = max(then, self.now)
            while self._events and self._events[0][0] <= self.now:
                heappop(self._events)[2]()
            self._wake()

    def _next(self) -> float:
        times = [self._events[0][0] if self._events else math.inf]
        wake = self.scheduler.queue.next_wake(self.now)
        if wake is not None:
            times.append(self.now + max(wake, SHORTEST_SECONDS))
        times.append(self.scheduler.next_bind_end())
        times += [late[0][0] for late in self._late.values() if late]
        due = self.core.next_due() if self.has_leader else None
        if due is not None:
            times.append(max(due, self.now + SHORTEST_SECONDS))
        if self.has_leader:
            times.append(self._calm_until)
        return min(times)

    def rest(self) -> None:
        """Run until no component has anything to do at this moment."""
        for _ in range(_MOST_ROUNDS):
            self._tell_late(self.now)
            busy = self._decide() if self.has_leader else False
            while self.scheduler.try_next():
                busy = True
                self._wake()
                if self.has_leader and self.random.random() < _DECIDES:
                    self._decide()
            if not busy:
                return
        self.failures.append(f"no end of things to do at {self.now:.0f}")

    def _wake(self) -> None:
        self._calm_until = min(self._calm_until, self.now + CALM_SECONDS)

    def _decide(self) -> bool:
        """As the loop does: at once only if that is urgent or due."""
        due = self.core.next_due()
        is_due = due is not None and due <= self.now
        if not (is_due or self.core.any_urgent() or self.now >= self._calm_until):
            return False
        self._calm_until = math.inf
        self.decided.append(self.now)
        _, busy = self.decide()
        for defect in self.core.take_defects():
            self.failures.append(f"the core isolates {self._whose(defect)}: {defect!r}")
        return busy

    def _whose(self, defect: Exception) -> str:
        culprit = culprit_of(defect)
        pod = self.pods.get(culprit) if isinstance(culprit, str) else None
        return str(culprit if pod is None else pod.key)

    # Objects, and the components that hear of them.

    def restart(self) -> None:
        """Another process leads, which knows what the API server says."""
        for late in self._late.values():
            late.clear()
        self.led_at, self._is_dead = self.now, False
        super().restart()
        self.scheduler.hang_up()

    def hand_over(self) -> None:
        """The standby leads, which has watched all along."""
        self._tell_late(math.inf)
        self.led_at, self._is_dead = self.now, False
        self.core.lead(self.core.latest_term(1 << 30) + 1, self.now)
        self.core.restore_places(self.noted_places, self.now)
        self.scheduler.hang_up()

    def list_claims_again(self) -> None:
        """The core's watch of claims has broken, and shows nothing of what came between."""
        self._late[_Watch.DEVICES].clear()
        self.core.replace_slices(self.slices.values(), self.now)
        self.core.replace_claims(self.claims.values(), self.now)

    def claim_event(self, kind: str, claim: ResourceClaim) -> None:
        self._tell(lambda core: core.claim_event(kind, claim, self.now), _Watch.DEVICES)
        self.scheduler.claim_event(kind, claim)

    def slice_event(self, kind: str, one: ResourceSlice) -> None:
        self._tell(lambda core: core.slice_event(kind, one, self.now), _Watch.DEVICES)
        self.scheduler.slice_event(kind)

    def node_event(self, kind: str, node: Node) -> None:
        self._tell(lambda core: core.node_event(kind, node, self.now))
        self.scheduler.node_event(kind, node)

    def machine(self, node: str) -> Machine:
        return self.taken.get(node) or super().machine(node)

    def is_touched(self, pod: Pod) -> bool:
        """Whether pods of its workload are, or were, on a hostile node."""
        return workload_of(pod.metadata.name) in self.touched

    def put_pod(self, pod: Pod) -> Pod:
        if pod.spec.node_name in self.taken:
            self.touched.add(workload_of(pod.metadata.name))
        known = self.pods.get(pod.metadata.uid)
        is_refused = known is None and not self.takes_pods
        return pod if known == pod or is_refused else super().put_pod(pod)

    def pod_event(self, kind: str, pod: Pod) -> None:
        self._tell(lambda core: core.pod_event(kind, pod, self.now))
        self.scheduler.pod_event(kind, pod)

    def remove_pod(self, uid: str) -> Pod:
        pod = super().remove_pod(uid)
        self._collect_soon(pod)
        self.on_end(pod)
        return pod

    def _collect_soon(self, pod: Pod) -> None:
        if pod.spec.resource_claims:
            self.after(self.random.uniform(0.1, 3.0), self.collect_garbage)

    def _tell(self, what: Callable[[Core], object], watch: _Watch = _Watch.PODS) -> None:
        late = self._late[watch]
        if not self.trouble.watch_late and not late:
            what(self.core)
        else:
            at = self.now + self.random.random() * self.trouble.watch_late
            late.append((max(at, late[-1][0] if late else 0.0), what))

    @property
    def knows_all(self) -> bool:
        """Whether the core's watch has shown all that there is."""
        return not any(self._late.values())

    def _tell_late(self, until: float) -> None:
        for late in self._late.values():
            while late and late[0][0] <= until:
                late.pop(0)[1](self.core)

    # Writes and calls.

    def _is_call_lost(self) -> bool:
        lost = self.random.random() < self.trouble.calls_lost
        if lost:
            self.faults_at = self.now
        return lost

    def _post(self, order: BindOrder) -> Outcome:
        if self.random.random() >= self.trouble.writes_lost:
            return Outcome.DONE if self.post_binding(order) else Outcome.REFUSED
        self.faults_at = self.writes_lost_at = self.now
        if self.random.random() < 0.5:
            return Outcome.UNKNOWN
        return Outcome.UNKNOWN if self.post_binding(order) else Outcome.REFUSED

    def carry_out(self, action: Action) -> Outcome:
        if isinstance(action, Emit):
            return Outcome.DONE  # they are many in some days
        self.writes += action.pod.namespace != NAMESPACE
        if self.random.random() < self.trouble.writes_lost:
            self.faults_at = self.writes_lost_at = self.now
            if self.random.random() >= 0.5:
                self._carry_out(action)
            return Outcome.UNKNOWN
        refused = isinstance(action, Evict) and self.trouble.evictions_refused
        if refused and self.random.random() < 0.9:
            self.refused_at = self.now
            return Outcome.REFUSED
        return self._carry_out(action)

    def _carry_out(self, action: Action) -> Outcome:
        pod = self.pods.get(action.pod.uid)
        if isinstance(action, WritePlan) and pod is not None:
            self.on_gpus(pod)
        if isinstance(action, LiftGate) and pod is not None:
            self.before_lift(pod)
        if isinstance(action, WritePlan | CreateClaim | LiftGate):
            self.on_step(action)
        if isinstance(action, CreateClaim):
            self._may_die()
        return super().carry_out(action)

    def _may_die(self) -> bool:
        dies = self.random.random() < self.trouble.deaths
        if dies:
            self.faults_at = self.now
            self.after(self.random.choice([0.0, 0.2, 2.0]), self.restart)
        return dies

    def evict(self, pod: Pod, action: Evict) -> Outcome:
        self.on_evict(pod, action)
        self.terminate(pod.metadata.name)
        return Outcome.DONE

    def post_binding(self, order: BindOrder) -> bool:
        before = self.pods.get(order.uid)
        is_bound = super().post_binding(order)
        if is_bound:
            assert before is not None
            self.before_bind(before, order.node)
            self.on_bind(self.pods[order.uid])
            self.on_bound(self.pods[order.uid])
            self._admit_soon(order.uid)
            if '"others"' in order.annotations.get(names.PLAN, "") and self._may_die():
                self._is_dead, self.writes_lost_at = True, self.now
        return is_bound

    def bind_past(self, uid: str, node: str) -> None:
        """Another scheduler binds the pod, if it has no node yet."""
        pod = self.pods.get(uid)
        if pod is not None and not pod.spec.node_name and not pod.spec.scheduling_gates:
            self.put_bound(bound(pod, node))
            self._admit_soon(uid)

    def _bind_soon(self, queued: QueuedPod, node: str) -> None:
        """kube-scheduler does it itself. It may lose the answer of the API server."""

        def bind() -> None:
            pod = self.pods.get(queued.uid)
            if pod is None or pod.spec.node_name:
                return
            if self.random.random() < self.trouble.writes_lost:
                self.faults_at = self.writes_lost_at = self.now
                self.scheduler.error(queued, "binding: timeout")
                return
            self.before_bind(pod, node)
            self.on_bind(self.put_bound(bound(pod, node)))
            self.on_bound(self.pods[queued.uid])
            self._admit_soon(queued.uid)

        self.after(self.random.uniform(0.01, 0.3), bind)

    def add_node_by_claims(self, node: str, machine: str) -> None:
        self.by_claims.add(node)
        claimed.add_node(self, node, machine)

    # Pods.

    def make(
        self,
        name: str,
        gpus: int,
        *,
        namespace: str,
        said: Mapping[str, str],
        priority: int = 0,
        owner: OwnerReference | None = None,
        gated: bool = False,
        alter: Callable[[Pod], Pod] = lambda pod: pod,
    ) -> Pod:
        owners = () if owner is None else (owner,)
        is_server = owner is not None and owner.kind == "ReplicaSet"

        def finish(pod: Pod) -> Pod:
            meta = change(pod.metadata, namespace=namespace, owner_references=owners)
            spec = change(pod.spec, restart_policy="Always" if is_server else "Never")
            pod = alter(change(pod, metadata=meta, spec=spec))
            is_by_claim = self.claims_for(name.rpartition("-")[0] or name)
            return by_webhook(pod, f"linkwise-{self.made:020}") if is_by_claim else pod

        gates = (names.GATE,) if gated else ()
        pod = self.add_pod(name, gpus, priority=priority, gates=gates, said=said, alter=finish)
        if pod.spec.node_name:
            self._admit_soon(pod.metadata.uid)
        return pod

    def make_with_claim(
        self, name: str, asked: Request | None, *, namespace: str, priority: int = 0
    ) -> Pod:
        """A pod that Linkwise does not place. Its claim leaves the choice to kube-scheduler, or
        names GPUs; None: there is none yet."""

        def with_claim(pod: Pod) -> Pod:
            entry = PodClaim(name="gpus", resource_claim_name=f"{name}-gpus")
            return change(pod, spec=change(pod.spec, resource_claims=(entry,)))

        pod = self.make(name, 0, namespace=namespace, said={}, priority=priority, alter=with_claim)
        if asked is not None:
            self.add_claim(pod, asked)
        return pod

    def end(self, uid: str, phase: str, reason: str = "", message: str = "") -> None:
        """Its containers have ended, or its kubelet refuses it."""
        pod = self.pods.get(uid)
        if pod is None or pod.has_ended:
            return
        self.give_back(pod)
        status = change(pod.status, phase=phase, reason=reason, message=message)
        self.put_pod(change(pod, status=status))
        self._collect_soon(pod)
        self.on_end(self.pods[uid])

    def clean_up(self, uid: str) -> None:
        """Remove the pod, unless it is gone."""
        if uid in self.pods:
            self.remove_pod(uid)

    def terminate(self, name: str, grace: float = 10.0) -> None:
        pod = self.find(name)
        if pod is None or pod.is_leaving:
            return
        if not pod.spec.node_name:
            self.remove_pod(pod.metadata.uid)
            return
        self.on_leave(self.put_pod(leaving(pod, self.now + grace)))
        took = self.random.uniform(0.0, grace)
        self.after(took, lambda: self._bury(pod.metadata.uid))

    def _delete_for_another(self, pod: Pod, claimant: Pod) -> None:
        self.on_evict(pod, claimant)
        self.terminate(pod.metadata.name)

    def _bury(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            return
        if pod.metadata.name in self.stuck:
            self.after(30.0, lambda: self._bury(uid))
            return
        self.give_back(pod)
        self.remove_pod(uid)

    # Kubelets.

    def _admit_soon(self, uid: str) -> None:
        self.after(self.random.uniform(0.5, 5.0), lambda: self._admit(uid))

    def _admit(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.status.phase != "Pending" or pod.metadata.deletion_timestamp:
            return
        node, key = pod.spec.node_name, pod.key
        if pod.spec.resource_claims and (node in self.no_plugin or not self._has_claim(pod)):
            self.after(5.0, lambda: self._admit(uid))
            return
        given = self._give(pod, node)
        if isinstance(given, str):
            said = f"Pod was rejected: Allocate failed due to {given}, which is unexpected"
            self.end(uid, "Failed", "UnexpectedAdmissionError", said)
            return
        if given:
            self.held.setdefault(node, {})[key] = given
            self.publish_soon(node)
            self.on_gpus(pod)
        self.after(self.random.uniform(0.5, 20.0), lambda: self._run(uid))

    def _give(self, pod: Pod, node: str) -> Mapping[str, tuple[str, ...]] | str:
        """Return the GPUs of each container, or why the kubelet's device manager has none."""
        pods = self.held.get(node, {}).values()
        taken = {uuid for given in pods for gpus in given.values() for uuid in gpus}
        free = [g.uuid for g in self.machine(node).gpus if g.uuid not in taken]
        if pod.spec.resource_claims:
            gpus = tuple(self.allocated_to(pod))
            twice = taken.intersection(gpus)
            self.failures += [f"{pod.metadata.name} has {uuid} beside another" for uuid in twice]
            return {"main": gpus}
        asked = {c.name: c.resources.limits for c in pod.spec.containers}
        wanted = {c: n for c, limits in asked.items() if (n := whole(limits.get(GPU, 0)))}
        for name in (name for limits in asked.values() for name in limits):
            if names.is_share(name, GPU) or (name == GPU and wanted and node in self.no_plugin):
                return f"cannot allocate unregistered device {name}"
        if len(free) < (size := sum(wanted.values())):
            few = f"requested number of devices unavailable for {GPU}"
            return f"{few}. Requested: {size}, Available: {len(free)}"
        planned = _planned(pod, node)
        flat = [uuid for gpus in planned.values() for uuid in gpus]
        if wanted == {c: len(gpus) for c, gpus in planned.items()} and set(flat) <= set(free):
            return planned
        rest = iter(free)
        return {container: tuple(islice(rest, n)) for container, n in wanted.items()}

    def _has_claim(self, pod: Pod) -> bool:
        claim = self.claim_of(pod)
        return claim is not None and pod.metadata.uid in [u.uid for u in claim.status.reserved_for]

    def allocated_to(self, pod: Pod) -> Iterator[str]:
        """The UUIDs of the GPUs that the pod has by its claim."""
        claim = self.claim_of(pod)
        for device in devices_of(claim) if claim is not None else ():
            yield self.uuids(device.pool, int(device.name.removeprefix("gpu-")))[0]

    def _run(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.status.phase != "Pending":
            return
        self.on_run(self.put_pod(change(pod, status=change(pod.status, phase="Running"))))
        seconds = self.runs_for.get(uid)
        if seconds is not None:
            self.after(seconds, lambda: self.end(uid, "Succeeded"))

    def give_back(self, pod: Pod) -> None:
        node = pod.spec.node_name
        key = pod.key
        if node and self.held.get(node, {}).pop(key, None) is not None:
            self.publish_soon(node)

    def publish_soon(self, node: str) -> None:
        self.after(self.random.uniform(0.1, PUBLISH_SECONDS), lambda: self._publish(node))

    def _publish(self, node: str) -> None:
        if node in self.taken:
            return
        if node in self.no_plugin:
            self.after(5.0, lambda: self._publish(node))
            return
        pods = {key: dict(given) for key, given in self.held.get(node, {}).items()}
        if node in self.nodes and pods != self.in_use(node).pods:
            self.set_in_use(node, pods)

    def set_plugin(self, node: str, *, there: bool) -> None:
        """Without it the kubelet counts none of its GPUs, with its next status."""
        (self.no_plugin.discard if there else self.no_plugin.add)(node)
        self.after(self.random.uniform(0.5, 9.0), lambda: self._offer(node))

    def _offer(self, node: str) -> None:
        if node not in self.nodes or node in self.taken:
            return
        if node in self.by_claims:
            self._publish_devices(node)
            return
        gpus = 0 if node in self.no_plugin else self.machine(node).healthy_gpus.bit_count()
        known = self.nodes[node]
        allocatable = {**known.status.allocatable, GPU: str(gpus)}
        self.put_node(change(known, status=change(known.status, allocatable=allocatable)))

    def _publish_devices(self, node: str) -> None:
        """The driver does; while it is away, the kubelet removes its slice."""
        gpus = self.machine(node).gpus
        broken = [position for position, gpu in enumerate(gpus) if not gpu.healthy]
        one = claimed.slice_of(node, [gpu.uuid for gpu in gpus], tainted=broken)
        if node not in self.no_plugin:
            claimed.publish(self, one)
        elif one.metadata.name in self.slices:
            claimed.withdraw(self, one.metadata.name)

    def set_health(self, node: str, *unhealthy: int) -> None:
        super().set_health(node, *unhealthy)
        self.after(self.random.uniform(0.1, 9.0), lambda: self._offer(node))


def workload_of(name: str) -> str:
    """Of a pod: the first part of its name."""
    return name.partition("-")[0]


def owner_of(pod: Pod) -> str:
    """The uid of its controller; empty: it has none."""
    owners = pod.metadata.owner_references
    return next((owner.uid for owner in owners if owner.controller), "")


def _planned(pod: Pod, node: str) -> Mapping[str, tuple[str, ...]]:
    """The GPUs of the plan that names this pod and this node, as the plugin reads it."""
    said = pod.metadata.annotations
    try:
        plan, gpus = read_plan(said[names.PLAN]), read_gpus(said[names.GPUS])
    except (KeyError, AnnotationError):
        return {}
    return gpus if (plan.uid, plan.node) == (pod.metadata.uid, node) else {}
