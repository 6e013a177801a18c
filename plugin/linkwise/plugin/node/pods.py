"""PURE. A Pod of this node, as its admission by the kubelet needs it: containers, order, plan.

If a pod's annotations are wrong, the plugin reports that and treats the pod as one without a plan.
"""

from dataclasses import dataclass

from linkwise.kube.objects import Container, Pod, whole
from linkwise.plugin.device_plugin.allocate import ContainerPlan, WaitingPod
from linkwise.topology import names
from linkwise.topology.annotations.plan import ContainerGpus, read_gpus, read_plan
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.errors import AnnotationError
from linkwise.topology.machine.model import LINK_WORDS, LinkClass


@dataclass(frozen=True, slots=True)
class Reading:
    """`pod` is None if the pod asks for no GPU or is not waiting for any. `complaint` says which
    part of the pod could not be used."""

    pod: WaitingPod | None
    complaint: str = ""


def read_pod(pod: Pod, *, node: str, resource: str, managed: bool = True) -> Reading:
    """What the kubelet of *node* will ask for this pod, while it is bound and not started. Whole
    GPUs are of the *managed* resource only."""
    meta = pod.metadata
    if (
        pod.spec.node_name != node
        or pod.status.phase != "Pending"
        or meta.deletion_timestamp is not None
    ):
        return Reading(None)
    try:
        demand = demand_of(pod, resource)
    except ValueError as error:
        return Reading(None, f"{resource}: {error}")
    if not demand.containers:
        return Reading(None)
    plan, complaint = _plan_of(pod, node, resource, managed=managed)
    prefer, unclear = _preference_of(pod)
    containers = tuple(
        ContainerPlan(c.name, c.gpus, plan.get(c.name, ())) for c in demand.containers
    )
    waiting = WaitingPod(meta.uid, f"{meta.namespace}/{meta.name}", containers, {}, prefer)
    return Reading(waiting, complaint or unclear)


def demand_of(pod: Pod, resource: str) -> PodDemand:
    """The containers that want *resource*, in the kubelet's order.

    Raises ValueError if a quantity is not one.
    """
    found = [
        ContainerDemand(c.name, _role(c), _wanted(c, resource)) for c in pod.spec.init_containers
    ]
    found += [ContainerDemand(c.name, Role.MAIN, _wanted(c, resource)) for c in pod.spec.containers]
    return PodDemand(tuple(demand for demand in found if demand.gpus > 0))


def _role(container: Container) -> Role:
    return Role.SIDECAR if container.restart_policy == "Always" else Role.INIT


def _wanted(container: Container, resource: str) -> int:
    """The kubelet uses the limit; the API server requires request and limit of such a resource to
    be equal."""
    return whole(container.resources.limits.get(resource, 0))


def _plan_of(pod: Pod, node: str, resource: str, *, managed: bool) -> tuple[ContainerGpus, str]:
    """Container -> GPUs or shares; a plan counts only for the pod and on the node that it names."""
    notes = pod.metadata.annotations
    if names.PLAN not in notes or names.GPUS not in notes:
        return {}, ""
    try:
        plan = read_plan(notes[names.PLAN])
        if (plan.uid, plan.node) != (pod.metadata.uid, node):
            return {}, ""
        gpus = read_gpus(notes[names.GPUS]) if managed else {}
        return gpus | {s.container: s.ids for s in plan.shares if s.resource == resource}, ""
    except AnnotationError as error:
        return {}, str(error)


def _preference_of(pod: Pod) -> tuple[LinkClass, str]:
    word = pod.metadata.annotations.get(names.PREFER_LINK, "nvlink")
    if word not in LINK_WORDS:
        wrong = AnnotationError(names.PREFER_LINK, word, f"one of {', '.join(LINK_WORDS)}")
        return LinkClass.NVLINK, str(wrong)
    return LINK_WORDS[word], ""
