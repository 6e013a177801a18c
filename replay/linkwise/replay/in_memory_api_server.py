"""An API server around the core, as values: it holds Nodes and Pods, and carries out what the core
decides.

The replay, `linkwise what-if`, tests and benchmarks each derive a class from it, and add what they
are about: time, kube-scheduler, kubelets, faults. The core hears of each change at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from linkwise.extender.calls.filter import BRINGING_SECONDS
from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.gangs.uncreated import RefusedPod
from linkwise.extender.state.actions import (
    Action,
    CreateClaim,
    DropClaim,
    Emit,
    Evict,
    NotePlaces,
    applied,
    bound,
    late_claim,
    leaving,
)
from linkwise.extender.state.extender_calls import (
    BindCall,
    BindOrder,
    BindWaits,
    FilterAnswer,
    FilterCall,
    Outcome,
)
from linkwise.extender.state.membership.owner_cache import FetchOwner, Found
from linkwise.extender.state.records import GangKey
from linkwise.kube.device_claims import ResourceClaim, ResourceSlice
from linkwise.kube.objects import Node, Pod, PodDisruptionBudget
from linkwise.pods.podgrouper.workloads.answer import Missing, ObjectRef
from linkwise.topology import names
from linkwise.topology.annotations.plan import InUse, read_in_use

change = msgspec.structs.replace


def answer_in_time(core: Core, call: FilterCall, now: float) -> FilterAnswer:
    """What kube-scheduler gets from `filter`: the loop asks again while an answer is passing."""
    answer = core.filter(call, now)
    return core.filter(call, now + 2 * BRINGING_SECONDS) if answer.passing else answer


@dataclass(eq=False)
class InMemoryApiServer:
    settings: CoreSettings = field(default_factory=CoreSettings)
    now: float = 0.0  # seconds since 1970
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)  # by uid
    budgets: list[PodDisruptionBudget] = field(default_factory=list)
    slices: dict[str, ResourceSlice] = field(default_factory=dict)
    claims: dict[tuple[str, str], ResourceClaim] = field(default_factory=dict)
    noted_places: dict[str, str] = field(default_factory=dict)  # for members to come, by gang

    def __post_init__(self) -> None:
        # By gang and uid: the calls that wait for other members.
        self._held: dict[GangKey, dict[str, BindCall]] = {}
        self._created = 0  # claims
        self.restart()

    def new_core(self) -> Core:
        return Core(self.settings)

    def restart(self) -> None:
        """A new extender, which knows only what the API server says."""
        self.core = self.new_core()
        self.core.replace_nodes(self.nodes.values(), self.now)
        self.core.replace_pods(self.pods.values(), self.now)
        self.core.replace_budgets(self.budgets, self.now)
        self.core.replace_slices(self.slices.values(), self.now)
        self.core.replace_claims(self.claims.values(), self.now)
        self.core.restore_places(self.noted_places, self.now)

    # Objects

    def put_node(self, node: Node) -> Node:
        kind = "MODIFIED" if node.metadata.name in self.nodes else "ADDED"
        self.nodes[node.metadata.name] = node
        self.node_event(kind, node)
        return node

    def remove_node(self, name: str) -> None:
        self.node_event("DELETED", self.nodes.pop(name))

    def annotate_node(self, name: str, key: str, text: str | None) -> None:
        """Write the annotation; None: remove it."""
        node = self.nodes[name]
        annotations = {**node.metadata.annotations, key: text}
        kept = {k: t for k, t in annotations.items() if t is not None}
        self.put_node(change(node, metadata=change(node.metadata, annotations=kept)))

    def in_use(self, node: str) -> InUse:
        """What the node's plugin says of its pods. Raises AnnotationError."""
        found = self.nodes.get(node)
        text = None if found is None else found.metadata.annotations.get(names.IN_USE)
        return InUse() if text is None else read_in_use(text)

    def put_pod(self, pod: Pod) -> Pod:
        kind = "MODIFIED" if pod.metadata.uid in self.pods else "ADDED"
        self.pods[pod.metadata.uid] = pod
        self.pod_event(kind, pod)
        return pod

    def remove_pod(self, uid: str) -> Pod:
        pod = self.pods.pop(uid)
        self.pod_event("DELETED", pod)
        return pod

    def node_event(self, kind: str, node: Node) -> None:
        """What watches of Nodes show."""
        self.core.node_event(kind, node, self.now)

    def pod_event(self, kind: str, pod: Pod) -> None:
        """What watches of Pods show."""
        self.core.pod_event(kind, pod, self.now)

    def claim_event(self, kind: str, claim: ResourceClaim) -> None:
        """What watches of ResourceClaims show."""
        self.core.claim_event(kind, claim, self.now)

    # What the extender reads and writes

    def decide(self) -> tuple[Sequence[Action], bool]:
        """Carry out what the core decides now. Return its actions, and whether it did anything."""
        actions = self.core.decide(self.now)
        reads = self.core.owners_to_read(self.now)
        for read in reads:
            self.answer_read(read)
        for asked in self.core.refusals_to_read(self.now):
            self.core.refusals_read(asked, self.refusals(asked.namespace), self.now)
        for action in actions:
            self.core.done(action, self.carry_out(action), self.now)
        return actions, bool(actions or reads)

    def answer_read(self, read: FetchOwner) -> None:
        self.core.owner_read(read, self.read_owner(read.ref), self.now)
        while self.core.rejudge(self.now):
            pass

    def refusals(self, namespace: str) -> Sequence[RefusedPod]:  # noqa: ARG002
        """Why pods of the namespace could not be created."""
        return ()

    def read_owner(self, ref: ObjectRef) -> Found | None:  # noqa: ARG002
        """What pods depend on; None: the API server does not respond."""
        return Missing.NOT_FOUND

    def carry_out(self, action: Action) -> Outcome:
        if isinstance(action, Emit):
            return Outcome.DONE
        if isinstance(action, NotePlaces):
            self.note_places(action)
            return Outcome.DONE
        pod = self.pods.get(action.pod.uid)
        if pod is None:
            return Outcome.REFUSED
        if isinstance(action, Evict):
            return self.evict(pod, action)
        if isinstance(action, CreateClaim | DropClaim):
            return self.write_claim(action)
        self.put_pod(applied(action, pod))
        return Outcome.DONE

    def note_places(self, action: NotePlaces) -> None:
        if action.text is None:
            self.noted_places.pop(action.key, None)
        else:
            self.noted_places[action.key] = action.text

    def write_claim(self, action: CreateClaim | DropClaim) -> Outcome:
        key = action.pod.namespace, action.name
        if isinstance(action, CreateClaim) is (key in self.claims):
            return Outcome.REFUSED
        if isinstance(action, DropClaim):
            self.remove_claim(*key)
        else:
            self._created += 1
            self.put_claim(late_claim(action, f"uid-of-{action.name}-{self._created}"))
        return Outcome.DONE

    def put_claim(self, claim: ResourceClaim) -> None:
        key = claim.metadata.namespace, claim.metadata.name
        kind = "MODIFIED" if key in self.claims else "ADDED"
        self.claims[key] = claim
        self.claim_event(kind, claim)

    def remove_claim(self, namespace: str, name: str) -> None:
        self.claim_event("DELETED", self.claims.pop((namespace, name)))

    def evict(self, pod: Pod, action: Evict) -> Outcome:  # noqa: ARG002
        """The pod stays, leaving, until a kubelet removes it."""
        self.put_pod(leaving(pod, self.now))
        return Outcome.DONE

    def post_binding(self, order: BindOrder) -> bool:
        """Annotations and nodeName in one update."""
        pod = self.pods.get(order.uid)
        if pod is None or pod.spec.node_name or pod.spec.scheduling_gates:
            return False
        self.put_bound(bound(pod, order.node, order.annotations))
        return True

    def put_bound(self, pod: Pod) -> Pod:
        """Its kubelet starts it at once."""
        return self.put_pod(change(pod, status=change(pod.status, phase="Running")))

    # kube-scheduler's calls

    def best_of(self, pod: Pod, passed: Sequence[str]) -> str:
        """Return the node to bind the pod to, of those that `filter` let through; "": none."""
        if len(passed) < 2:
            return "".join(passed)
        scores = self.core.prioritize(FilterCall(pod, tuple(passed)), self.now).scores
        return max(passed, key=scores.__getitem__)

    def try_to_bind(self, pod: Pod, node: str) -> bool:
        """Bind the pod, or keep the call until the other members of its gang have come. Return
        False if it is refused."""
        call = bind_call(pod, node)
        order = self.core.begin_bind(call, self.now)
        if isinstance(order, BindWaits):
            self._held.setdefault(order.gang, {})[call.uid] = call
            return True
        if not isinstance(order, BindOrder):
            self.core.bind_refused(call)
            return False
        self.end_bind(order)
        self.bind_released()
        return True

    def bind_released(self) -> None:
        """Make the calls again that have waited for other members, which have come."""
        for gang in self.core.take_released():
            for call in self._held.pop(gang, {}).values():
                pod = self.pods.get(call.uid)
                if pod is not None and not pod.spec.node_name:
                    self.try_to_bind(pod, call.node)

    def end_bind(self, order: BindOrder) -> bool:
        """Carry out the core's answer to a bind call. Return whether the pod is bound now."""
        is_bound = self.post_binding(order)
        self.core.end_bind(order, Outcome.DONE if is_bound else Outcome.REFUSED, self.now)
        return is_bound


def bind_call(pod: Pod, node: str) -> BindCall:
    meta = pod.metadata
    return BindCall(meta.namespace, meta.name, meta.uid, node, pod.spec.scheduler_name)
