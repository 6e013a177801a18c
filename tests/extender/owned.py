"""Jobs, their pods and a small cluster for tests of what pods hang on."""

from collections.abc import Mapping

import msgspec

from linkwise.kube.objects import Pod
from tests.extender.cluster import Cluster, change
from tests.pods.podgrouper.pods import Object, owner, pod, ref_of, template

INDEX = "batch.kubernetes.io/job-completion-index"
SURELY = 120.0
_OF_SET = "jobset.sigs.k8s.io/"


def job(name: str, size: int, *, uid: str = "", at_once: int = 0, done: int = 0) -> Object:
    spec = {"completionMode": "Indexed", "completions": size, "parallelism": at_once or size}
    made = owner("batch/v1 Job", name, {**spec, "template": template(8)})
    made["metadata"]["uid"] = uid or made["metadata"]["uid"]
    return {**made, "status": {"succeeded": done}} if done else made


def member(
    by: Object, index: int, *, attempt: int = 0, said: Mapping[str, str] | None = None
) -> Pod:
    name = f"{by['metadata']['name']}-{index}-{attempt}"
    labels = {"batch.kubernetes.io/job-name": by["metadata"]["name"]}
    made = pod(name, by, labels, {INDEX: str(index), **(said or {})}, gpus=8)
    made["metadata"]["uid"] = f"{by['metadata']['uid']}-{index}-{attempt}"
    return msgspec.convert(made, Pod)


def job_set(name: str = "run", *roles: tuple[str, int], gpus: int = 8) -> Object:
    """Each role comes once the one before is ready; by default a control and a worker."""
    jobs = [
        {
            "name": role,
            "replicas": 1,
            "template": {
                "spec": {"parallelism": pods, "completions": pods, "template": template(gpus)}
            },
        }
        for role, pods in roles or (("control", 1), ("worker", 1))
    ]
    startup = {"startupPolicyOrder": "InOrder"}
    spec = {"replicatedJobs": jobs, "startupPolicy": startup}
    return owner("jobset.x-k8s.io/v1alpha2 JobSet", name, spec)


def of_set(
    role: str,
    index: int = 0,
    *,
    of: str = "run",
    gpus: int = 8,
    priority: int = 0,
    said: Mapping[str, str] | None = None,
    attempt: str = "",
) -> Pod:
    labels = {
        _OF_SET + "jobset-name": of,
        _OF_SET + "replicatedjob-name": role,
        _OF_SET + "job-index": "0",
        INDEX: str(index),
    }
    by = owner("batch/v1 Job", f"{of}-{role}-0")
    named = f"{of}-{role}" + (f"-{index}" if index else "") + attempt
    made = msgspec.convert(pod(named, by, labels, said, gpus=gpus), Pod)
    return change(made, spec=change(made.spec, priority=priority))


def grouped(name: str, group: str) -> Pod:
    return msgspec.convert(pod(name, None, {"scheduling.x-k8s.io/pod-group": group}, gpus=8), Pod)


def pod_group(name: str, least: int) -> Object:
    return owner("scheduling.x-k8s.io/v1alpha1 PodGroup", name, {"minMember": least})


def four_nodes() -> Cluster:
    cluster = Cluster()
    for number in range(4):
        cluster.add_node(f"n{number}", "dgx-a100")
    return cluster


def there_is(cluster: Cluster, *objects: Object) -> None:
    cluster.owners = {**(cluster.owners or {}), **{ref_of(made): made for made in objects}}


def create(cluster: Cluster, *pods: Pod) -> None:
    for each in pods:
        cluster.put_pod(each)
        cluster.settle()


def planned(cluster: Cluster) -> list[str]:
    found = [pod.metadata.name for pod in cluster.pods.values() if pod.status.nominated_node_name]
    return sorted(found)


def why(cluster: Cluster, name: str) -> str:
    """The reason that kube-scheduler gets for every node."""
    (text,) = set(cluster.filter(name).failed.values())
    return text


def of_scheduler(made: Pod, name: str) -> Pod:
    return change(made, spec=change(made.spec, scheduler_name=name))
