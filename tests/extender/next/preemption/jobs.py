"""Pods of Jobs and JobSets, which may count an eviction as a failure."""

from collections.abc import Callable

from linkwise.kube.labels import JOB_SET_LABEL
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from tests.extender.cluster import Cluster, change
from tests.extender.next.moves.movers import owned_by


def own_job(at: Cluster, name: str, *rules: object) -> Callable[[Pod], Pod]:
    """The pod of a Job with these rules of its podFailurePolicy."""
    assert at.owners is not None
    at.owners[ObjectRef("batch", "Job", "ml", name)] = {
        "metadata": {"uid": f"uid-of-{name}"},
        "spec": {"podFailurePolicy": {"rules": [*rules]}},
    }
    return owned_by("Job", name)


def own_job_set(at: Cluster, name: str, *rules: object) -> Callable[[Pod], Pod]:
    """The only pod of a JobSet, whose Job nothing reads."""
    assert at.owners is not None
    spec: dict[str, object] = {"template": {"spec": {"containers": []}}}
    if rules:
        spec["podFailurePolicy"] = {"rules": [*rules]}
    at.owners[ObjectRef("jobset.x-k8s.io", "JobSet", "ml", name)] = {
        "metadata": {"name": name, "uid": f"uid-of-{name}"},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": spec}}]},
    }
    told = {"jobset-name": name, "replicatedjob-name": "w", "jobset-uid": f"uid-of-{name}"}

    def made(pod: Pod) -> Pod:
        pod = owned_by("Job", f"{name}-w-0")(pod)
        labels = {JOB_SET_LABEL + key: value for key, value in told.items()}
        return change(pod, metadata=change(pod.metadata, labels=labels))

    return made
