"""Pods that wait for claims of planned GPUs, and a kube-scheduler that allocates them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from linkwise.extender.state.actions import Action, CreateClaim, DropClaim
from linkwise.extender.state.extender_calls import Outcome
from linkwise.kube.objects import Condition, Pod, PodClaim
from linkwise.pods.claims import ClaimAsk, write_claims
from linkwise.topology import names
from tests.extender import claimed
from tests.extender.cluster import Cluster, change
from tests.extender.device_cluster import DeviceCluster


@dataclass(eq=False)
class ClaimCluster(DeviceCluster):
    """kube-scheduler tries a pod when a test says so."""

    created: dict[str, CreateClaim] = field(default_factory=dict)  # the latest, by the pod's name
    dropped: list[str] = field(default_factory=list)  # pods
    denied: set[str] = field(default_factory=set)  # pods whose claims a quota refuses
    unanswered: set[str] = field(default_factory=set)  # pods whose claims are created unheard

    def carry_out(self, action: Action) -> Outcome:
        if isinstance(action, CreateClaim) and action.pod.name in self.denied:
            return Outcome.DENIED
        if isinstance(action, CreateClaim):
            self.created[action.pod.name] = action
            if action.pod.name in self.unanswered:
                super().carry_out(action)
                return Outcome.UNKNOWN
        if isinstance(action, DropClaim):
            self.dropped.append(action.pod.name)
        return super().carry_out(action)

    def refuse_everywhere(self, name: str, *, keeps_nomination: bool = False) -> None:
        """It writes why, unless it says so already, and clears the nomination; but not that of a
        pod that may not preempt, or of a native gang."""
        pod = self.pod(name)
        why = "0/2 nodes are available: 2 cannot allocate all claims."
        told = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=why)
        node = pod.status.nominated_node_name if keeps_nomination else ""
        status = change(pod.status, conditions=(told,), nominated_node_name=node)
        if status != pod.status:
            self.put_pod(change(pod, status=status))

    def run_scheduler(self, name: str) -> tuple[str, ...]:
        """`allocate`, and bind the pod where its GPUs are."""
        if gpus := self.allocate(name):
            self.bind_allocated(name)
        return gpus

    def bind_allocated(self, name: str) -> None:
        pod = self.pod(name)
        self.put_bound(change(pod, spec=change(pod.spec, node_name=pod.status.nominated_node_name)))
        self.settle()

    def allocate(self, name: str) -> tuple[str, ...]:
        """Give the pod's claim the GPUs that it names. Return them; none: the pod waits, or some
        are given already."""
        pod = self.pod(name)
        if self.claim_of(pod) is None or pod.spec.scheduling_gates:
            return ()
        devices = self.give_devices(pod, pod.status.nominated_node_name)
        return tuple(uuid for device in devices if (uuid := self.uuid(device)))


def claim_name(pod: str) -> str:
    return f"linkwise-{pod.replace('-', 'x'):0>20}"


def with_claim(name: str, gpus: int, template: str) -> Callable[[Pod], Pod]:
    """The webhook's patch."""
    ask = ClaimAsk("linkwise-gpus", claim_name(name), {"main": gpus}, template)

    def alter(pod: Pod) -> Pod:
        entry = PodClaim(name=ask.entry, resource_claim_name=ask.claim)
        said = {**pod.metadata.annotations, names.CLAIMS: write_claims(ask)}
        meta = change(pod.metadata, annotations=said)
        return change(pod, metadata=meta, spec=change(pod.spec, resource_claims=(entry,)))

    return alter


def add(at: Cluster, name: str, gpus: int, *, template: str = "", **said: str) -> Pod:
    return at.add_pod(name, gates=[names.GATE], alter=with_claim(name, gpus, template), said=said)


def add_gang(at: Cluster, name: str, size: int, gpus: int) -> None:
    for rank in range(size):
        add(at, f"{name}-{rank}", gpus, gang=name, gang_size=str(size))


def cluster(*nodes: str) -> ClaimCluster:
    at = ClaimCluster()
    for node in nodes or ("n1",):
        claimed.add_node(at, node)
    return at
