"""What a pod is given as it is created: the scheduler that asks Linkwise, and our gate.

Pure, and known from the pod alone: nothing may be read while the API server waits. So a pod whose
owner would have to be read is taken for a gang's member, as such owners mostly are: a gate too many
costs two writes, and a gang that kube-scheduler tries half of costs it a refusal for each member.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from linkwise.extender.api.annotations import demand_of
from linkwise.extender.podgrouper.decide import recognise
from linkwise.extender.podgrouper.workloads.answer import IndexedJobs, NeedsOwner, Recognised
from linkwise.kube.objects import Pod
from linkwise.topology import names

DEFAULT_SCHEDULER = "default-scheduler"  # what the API server writes where a pod names none
Step = Mapping[str, object]


class Gating(Enum):
    """Which pods are given the gate."""

    GANGS = "gangs"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    resource: str = names.DEFAULT_RESOURCE
    scheduler: str = DEFAULT_SCHEDULER  # the one that asks the extender
    gate: Gating = Gating.GANGS
    indexed_jobs: IndexedJobs = IndexedJobs.ALL


def patch_of(pod: Pod, rules: Rules) -> tuple[Step, ...]:
    """The JSON patch of a pod that is about to be created; nothing where it has all of it."""
    # Who names another scheduler knows why; and where that one puts it, no gate of ours is lifted.
    ours = pod.spec.scheduler_name in (DEFAULT_SCHEDULER, rules.scheduler)
    if not ours or pod.spec.node_name or not takes_gpus(pod, rules):
        return ()
    steps: list[Step] = []
    if pod.spec.scheduler_name != rules.scheduler:
        steps.append({"op": "add", "path": "/spec/schedulerName", "value": rules.scheduler})
    if _is_to_wait(pod, rules):
        steps.append(_gate(pod))
    return tuple(steps)


def takes_gpus(pod: Pod, rules: Rules) -> bool:
    try:
        return demand_of(pod, rules.resource).gpus > 0
    except ValueError:  # the API server refuses it
        return False


def _is_to_wait(pod: Pod, rules: Rules) -> bool:
    if any(gate.name == names.GATE for gate in pod.spec.scheduling_gates):
        return False
    if rules.gate is not Gating.GANGS:
        return rules.gate is Gating.ALL
    answer = recognise(pod, {}, resource=rules.resource, indexed_jobs=rules.indexed_jobs)
    return isinstance(answer, Recognised | NeedsOwner)


def _gate(pod: Pod) -> Step:
    gate = {"name": names.GATE}
    if pod.spec.scheduling_gates:
        return {"op": "add", "path": "/spec/schedulingGates/-", "value": gate}
    return {"op": "add", "path": "/spec/schedulingGates", "value": [gate]}
