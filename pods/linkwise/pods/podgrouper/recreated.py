"""Whether a pod's controller recreates it after an eviction, and counts that as no failure.

A bare pod is gone for good. A DaemonSet recreates its pod on the same node. A Job counts an
evicted pod among the failures that its `backoffLimit` allows, unless its `podFailurePolicy` ignores
pods with the condition DisruptionTarget, which the Eviction API sets
(https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy). Operators that
create pods themselves, such as Kubeflow's, may count it too.
"""

from linkwise.kube.fields import Fields, at, items, text
from linkwise.kube.labels import LWS
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs, NeedsOwner, Objects
from linkwise.pods.podgrouper.workloads.case import Case, OwnerGoneError, UnreadError
from linkwise.pods.podgrouper.workloads.kinds import JOB

ALWAYS = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""The kinds of controllers that do it whatever they say."""
_RULE = "movable"
_OF_SIGNALS = frozenset({137, 143})  # exit codes: SIGKILL, SIGTERM


def goes_with_leader(pod: Pod) -> bool:
    """Whether it is a worker of a LeaderWorkerSet. Its StatefulSet belongs to the leader's pod: if
    that is evicted, another StatefulSet makes the new worker, which nothing knows beforehand."""
    return pod.metadata.labels.get(f"{LWS}worker-index", "0") != "0"


def is_recreated(pod: Pod, objects: Objects, resource: str) -> bool | NeedsOwner:
    """*objects* holds what was read so far; if the answer is NeedsOwner, read that object and call
    again."""
    case = Case(pod, objects, resource, IndexedJobs.ALL)
    if case.controller is None:
        return False
    if not case.is_controlled_by(JOB):
        return case.controller.kind in ALWAYS
    try:
        return _ignores_disruptions(case.read_controller(JOB))
    except UnreadError as error:
        return NeedsOwner(error.ref, error.paths, _RULE, str(error))
    except OwnerGoneError:
        return False


def _ignores_disruptions(job: Fields) -> bool:
    """The first rule that matches an evicted pod decides."""
    for rule in items(job, "spec.podFailurePolicy.rules"):
        ignores = text(rule, "action") == "Ignore"
        if _matches_condition(rule):
            return ignores
        if not ignores and _matches_signals(rule):
            return False
    return False


def _matches_condition(rule: Fields) -> bool:
    return any(
        text(each, "type") == "DisruptionTarget" and text(each, "status") in ("", "True")
        for each in items(rule, "onPodConditions")
    )


def _matches_signals(rule: Fields) -> bool:
    """Whether it may match a container that a signal of the eviction has ended."""
    operator = text(rule, "onExitCodes.operator")
    values = at(rule, "onExitCodes.values")
    codes = (
        {each for each in values if isinstance(each, int)} if isinstance(values, list) else set()
    )
    if operator == "NotIn":
        return not codes >= _OF_SIGNALS
    return operator == "In" and bool(codes & _OF_SIGNALS)
