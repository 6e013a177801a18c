"""The patch of a pod at its creation: the scheduler that calls the extender, and Linkwise's gate;
if GPUs come from claims, also the claim that the pod waits for.

The patch is a pure function of the pod and of the ResourceClaimTemplate that `template_of` names:
the webhook reads no other object while the API server waits. If the pod's gang depends on its
owner, the webhook treats the pod as a member of a gang, which it mostly is; but of StatefulSets
few are gangs. A needless gate costs two writes; a missing gate costs kube-scheduler a refusal for
each member of a gang.
"""

from dataclasses import dataclass
from enum import Enum

from linkwise.kube.objects import Pod
from linkwise.pods.annotations import demand_of, resource_of, shares_of
from linkwise.pods.claims import DEVICE_CLASS
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs, NeedsOwner, Recognised
from linkwise.pods.podgrouper.workloads.kinds import STATEFUL_SET
from linkwise.topology import names
from linkwise.webhook import claims
from linkwise.webhook.claims import NewClaim, Step

DEFAULT_SCHEDULER = "default-scheduler"  # the API server's default for pods without a name


class Gating(Enum):
    """Which pods get the gate."""

    GANGS = "gangs"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    resources: tuple[str, ...] = names.DEFAULT_RESOURCES
    shared: frozenset[str] = frozenset()  # the resources of shares about which that scheduler asks
    scheduler: str = DEFAULT_SCHEDULER  # the one that calls the extender
    gate: Gating = Gating.GANGS
    indexed_jobs: IndexedJobs = IndexedJobs.ALL
    gpus_from_claims: bool = False
    device_class: str = DEVICE_CLASS  # of GPUs; only if these come from claims

    @property
    def by_claims(self) -> str:
        """The resource of the GPUs that may come from claims."""
        return self.resources[0]


def patch_of(pod: Pod, rules: Rules, new: NewClaim | None = None) -> tuple[Step, ...]:
    """The JSON patch of a pod at its creation; empty if it needs none. If GPUs come from claims,
    *new* is the pod's."""
    if not _may_be_patched(pod, rules):
        return ()
    claimed = claims.claim_steps(pod, rules.by_claims, rules.device_class, new) if new else ()
    takes = takes_gpus(pod, rules)
    if not (claimed or takes or _takes_shares(pod, rules)):
        return ()
    steps: list[Step] = []
    if pod.spec.scheduler_name != rules.scheduler:
        steps.append({"op": "add", "path": "/spec/schedulerName", "value": rules.scheduler})
    steps += claimed
    # The extender creates the claim with the plan, so the pod waits for that in any case.
    if not _has_gate(pod) and (claimed or (takes and _is_to_wait(pod, rules))):
        steps.append(_gate(pod))
    return tuple(steps)


def template_of(pod: Pod, rules: Rules) -> str:
    """The ResourceClaimTemplate on which the patch depends; empty: none."""
    return claims.template_of(pod, rules.by_claims) if _may_be_patched(pod, rules) else ""


def _may_be_patched(pod: Pod, rules: Rules) -> bool:
    # A pod that names another scheduler is left alone: the extender would never lift its gate.
    ours = pod.spec.scheduler_name in (DEFAULT_SCHEDULER, rules.scheduler)
    return ours and not pod.spec.node_name and names.CLAIMS not in pod.metadata.annotations


def takes_gpus(pod: Pod, rules: Rules) -> bool:
    try:
        return demand_of(pod, resource_of(pod, rules.resources)).gpus > 0
    except ValueError:  # the API server refuses such a pod
        return False


def _takes_shares(pod: Pod, rules: Rules) -> bool:
    """Such a pod gets no gate: the extender, which plans no gang of shares, would remove it."""
    try:
        return any(
            name in rules.shared for name, _ in shares_of(pod, resource_of(pod, rules.resources))
        )
    except ValueError:  # the API server refuses such a pod
        return False


def _has_gate(pod: Pod) -> bool:
    return any(gate.name == names.GATE for gate in pod.spec.scheduling_gates)


def _is_to_wait(pod: Pod, rules: Rules) -> bool:
    if rules.gate is not Gating.GANGS:
        return rules.gate is Gating.ALL
    answer = recognise(pod, {}, resources=rules.resources, indexed_jobs=rules.indexed_jobs)
    if isinstance(answer, NeedsOwner):
        # Few StatefulSets are gangs. Members of one wait for each other at the extender's filter.
        return answer.owner.qualified_kind != STATEFUL_SET.qualified
    return isinstance(answer, Recognised)


def _gate(pod: Pod) -> Step:
    gate = {"name": names.GATE}
    if pod.spec.scheduling_gates:
        return {"op": "add", "path": "/spec/schedulingGates/-", "value": gate}
    return {"op": "add", "path": "/spec/schedulingGates", "value": [gate]}
