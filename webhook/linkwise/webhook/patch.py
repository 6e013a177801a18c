"""The patch of a pod at its creation: the scheduler that calls the extender, and Linkwise's gate.

The patch is a pure function of the pod: the webhook must not read objects while the API server
waits. If the pod's gang depends on its owner, the webhook treats the pod as a member of a gang,
which it mostly is; but of StatefulSets few are gangs. A needless gate costs two writes; a missing
gate costs kube-scheduler a refusal for each member of a gang.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from linkwise.kube.objects import Pod
from linkwise.pods.annotations import demand_of
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs, NeedsOwner, Recognised
from linkwise.pods.podgrouper.workloads.kinds import STATEFUL_SET
from linkwise.topology import names

DEFAULT_SCHEDULER = "default-scheduler"  # the API server's default for pods without a name
Step = Mapping[str, object]


class Gating(Enum):
    """Which pods get the gate."""

    GANGS = "gangs"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    resource: str = names.DEFAULT_RESOURCE
    scheduler: str = DEFAULT_SCHEDULER  # the one that calls the extender
    gate: Gating = Gating.GANGS
    indexed_jobs: IndexedJobs = IndexedJobs.ALL


def patch_of(pod: Pod, rules: Rules) -> tuple[Step, ...]:
    """The JSON patch of a pod at its creation; empty if it needs none."""
    # A pod that names another scheduler is left alone: the extender would never lift its gate.
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
    except ValueError:  # the API server refuses such a pod
        return False


def _is_to_wait(pod: Pod, rules: Rules) -> bool:
    if any(gate.name == names.GATE for gate in pod.spec.scheduling_gates):
        return False
    if rules.gate is not Gating.GANGS:
        return rules.gate is Gating.ALL
    answer = recognise(pod, {}, resource=rules.resource, indexed_jobs=rules.indexed_jobs)
    if isinstance(answer, NeedsOwner):
        # Few StatefulSets are gangs. Members of one wait for each other at the extender's filter.
        return answer.owner.qualified_kind != STATEFUL_SET.qualified
    return isinstance(answer, Recognised)


def _gate(pod: Pod) -> Step:
    gate = {"name": names.GATE}
    if pod.spec.scheduling_gates:
        return {"op": "add", "path": "/spec/schedulingGates/-", "value": gate}
    return {"op": "add", "path": "/spec/schedulingGates", "value": [gate]}
