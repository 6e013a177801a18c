"""What an eviction does to a pod's workload: whether its controller recreates the pod, and whether
it counts a failure.

A bare pod is gone for good. A DaemonSet recreates its pod on the same node. A Job counts an
evicted pod among the failures that its `backoffLimit` allows, unless its `podFailurePolicy` ignores
pods with the condition DisruptionTarget, which the Eviction API sets
(https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy). A Job beyond
its `backoffLimit` has failed for good; of a JobSet, that costs one of `maxRestarts`. Operators that
create pods themselves, such as Kubeflow's, may count it too.

Planned moves take only pods that are RECREATED; preemption and reclaim take those of which it is a
FAILURE last.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from linkwise.kube.fields import Fields, at, items, mapping, text
from linkwise.kube.labels import LWS
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs, NeedsOwner, Objects
from linkwise.pods.podgrouper.workloads.batch import template_in_set
from linkwise.pods.podgrouper.workloads.case import Case, OwnerGoneError, UnreadError
from linkwise.pods.podgrouper.workloads.kinds import JOB
from linkwise.topology import names

ALWAYS = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""The kinds of controllers that do it whatever they say."""
COUNTS_AS_FAILURE = (
    "its Job counts an eviction as a failure, because its podFailurePolicy does not ignore "
    "DisruptionTarget"
)
_RULE = "eviction"
_BACKOFF_LIMIT = 6  # by default
_MANY = 1 << 31
_FAILURES_OF_INDEX = "batch.kubernetes.io/job-index-failure-count"
_OF_SIGNALS = frozenset({137, 143})  # exit codes: SIGKILL, SIGTERM


def goes_with_leader(labels: Mapping[str, str]) -> bool:
    """Whether a pod of these labels is a worker of a LeaderWorkerSet. Its StatefulSet belongs to
    the leader's pod: if that is evicted, another StatefulSet makes the new worker, which nothing
    knows beforehand."""
    return labels.get(f"{LWS}worker-index", "0") != "0"


class AfterEviction(Enum):
    RECREATED = "its controller recreates it, and counts no failure"
    FAILURE = "its Job counts a failure"
    UNKNOWN = "it has no controller, or one that may count a failure"


class Eviction(NamedTuple):
    after: AfterEviction
    # A FAILURE: how many of the Job's pods may be evicted at once before it has failed for good, as
    # far as it says.
    survives: int = 0


def after_eviction(pod: Pod, objects: Objects, resources: tuple[str, ...]) -> Eviction | NeedsOwner:
    """*objects* holds what was read so far; if the answer is NeedsOwner, read that object and call
    again."""
    case = Case(pod, objects, resources, IndexedJobs.ALL)
    if case.controller is None:
        return Eviction(AfterEviction.UNKNOWN)
    if not case.is_controlled_by(JOB):
        always = case.controller.kind in ALWAYS
        return Eviction(AfterEviction.RECREATED if always else AfterEviction.UNKNOWN)
    try:
        in_set = template_in_set(case)
        job = in_set or case.read_controller(JOB)
    except UnreadError as error:
        return NeedsOwner(error.ref, error.paths, _RULE, str(error))
    except OwnerGoneError:
        return Eviction(AfterEviction.UNKNOWN)
    if ignores_disruptions(mapping(job, "spec")):
        return Eviction(AfterEviction.RECREATED)
    # Of a JobSet's template it is unknown how many have failed.
    return Eviction(AfterEviction.FAILURE, 0 if in_set else _survives(job, pod))


def _survives(job: Fields, pod: Pod) -> int:
    # Of an Indexed Job each index may have a limit of its own; one pod of it is evicted at once.
    limit = at(job, "spec.backoffLimitPerIndex")
    if isinstance(limit, int):
        count = pod.metadata.annotations.get(_FAILURES_OF_INDEX, "0")
        return _MANY if count.isdecimal() and int(count) < limit else 0
    limit, failed = at(job, "spec.backoffLimit"), at(job, "status.failed")
    allowed = limit if isinstance(limit, int) else _BACKOFF_LIMIT
    return max(allowed - (failed if isinstance(failed, int) else 0), 0)


def consent_in(annotations: Fields) -> str:
    """With which of these annotations a pod consents to its eviction for others, as `key: value`;
    empty: with none."""
    for key, refusal in ((names.PREEMPTIBLE, "false"), (names.RECLAIM, "never")):
        said = annotations.get(key)
        if isinstance(said, str) and said != refusal:
            return f"{key}: {said}"
    return ""


def ignores_disruptions(job_spec: Fields) -> bool:
    """Whether a Job of this `spec` counts no eviction. The first rule that matches an evicted pod
    decides."""
    for rule in items(job_spec, "podFailurePolicy.rules"):
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
