"""Workloads become pods in the stand-in of the API server, and lost pods are created again."""

from collections.abc import Iterator

import msgspec
import pytest

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Pod
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.jobs.controller import JobController
from linkwise.simulator.jobs.workloads import WorkloadController
from linkwise.simulator.manifests.read_manifests import collection_of
from tests.waiting import wait_for

PODS = "/api/v1/namespaces/ml/pods"
TEMPLATE = {"spec": {"containers": [{"name": "m", "image": "x"}]}}


class _Pods(msgspec.Struct):
    items: list[Pod]


class Controllers:
    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        self.workloads = WorkloadController(self.client, collection_of)
        self.jobs = JobController(self.client, failure_backoff_seconds=0.05)

    def create(self, kind: str, name: str, spec: object) -> None:
        api_version, _, word = kind.rpartition(" ")
        metadata = {"name": name, "namespace": "ml"}
        body = {"apiVersion": api_version, "kind": word, "metadata": metadata, "spec": spec}
        self.workloads.create(body, {}, suspended=False)

    def becomes(self, name: str, phase: str) -> None:
        """Run the pod, or end it."""
        self.client.patch(f"{PODS}/{name}/status", {"status": {"phase": phase}})

    def pods(self) -> dict[str, Pod]:
        return {pod.metadata.name: pod for pod in self.client.get(PODS, _Pods).items}


@pytest.fixture
def world() -> Iterator[Controllers]:
    with ApiServer() as server:
        it = Controllers(server)
        it.jobs.start()
        it.workloads.start()
        yield it
        it.workloads.stop()
        it.jobs.stop()


def test_a_pod_belongs_to_the_object_that_is_stored(world: Controllers) -> None:
    spec = {"replicas": 2, "podManagementPolicy": "Parallel", "template": TEMPLATE}
    world.create("apps/v1 StatefulSet", "db", spec)
    pods = world.pods()
    assert sorted(pods) == ["db-0", "db-1"]
    stored = world.client.get("/apis/apps/v1/namespaces/ml/statefulsets/db", Pod)
    (owner,) = pods["db-0"].metadata.owner_references
    assert (owner.kind, owner.uid) == ("StatefulSet", stored.metadata.uid)
    assert world.workloads.roots[owner.uid] == "db"


def test_the_jobs_of_a_job_set_run_and_end_like_other_jobs(world: Controllers) -> None:
    template = {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}
    job = {"spec": {"parallelism": 2, "completions": 2, "template": template}}
    world.create(
        "jobset.x-k8s.io/v1alpha2 JobSet",
        "gpt",
        {"replicatedJobs": [{"name": "n", "template": job}]},
    )
    wait_for(lambda: len(world.pods()) == 2, "two pods of the Job")
    (owner,) = {pod.metadata.owner_references[0] for pod in world.pods().values()}
    assert (owner.kind, owner.name, world.workloads.roots[owner.uid]) == ("Job", "gpt-n-0", "gpt")


def test_a_pod_that_is_evicted_is_created_again(world: Controllers) -> None:
    """Volcano's kind is called Job too, and Kubernetes' controller leaves its pods alone."""
    tasks = [{"name": "w", "replicas": 1, "template": TEMPLATE}]
    world.create("batch.volcano.sh/v1alpha1 Job", "vc", {"tasks": tasks})
    first = world.pods()["vc-w-0"].metadata.uid
    world.client.delete(f"{PODS}/vc-w-0")
    wait_for(lambda: "vc-w-0" in world.pods(), "the pod, created again")
    assert world.pods()["vc-w-0"].metadata.uid != first


def test_pods_that_the_api_server_fails_to_create_come_later(world: Controllers) -> None:
    world.server.fail_next("POST", "/pods", 500, times=2)
    world.create("apps/v1 ReplicaSet", "web", {"replicas": 3, "template": TEMPLATE})
    wait_for(lambda: len(world.pods()) == 3, "all pods")
    wait_for(lambda: world.workloads.pods_to_come == 0, "the count of the others")
    world.server.fail_next("POST", "/pods", 500, times=2)
    world.client.delete(f"{PODS}/{min(world.pods())}")
    wait_for(lambda: len(world.pods()) == 2, "the end of one")
    wait_for(lambda: len(world.pods()) == 3, "the pod, created again")


def test_a_pod_that_the_api_server_refuses_is_not_tried_again(world: Controllers) -> None:
    world.create("apps/v1 StatefulSet", "db", {"replicas": 2, "template": TEMPLATE})
    world.server.fail_next("POST", "/pods", 422)
    world.becomes("db-0", "Running")
    wait_for(lambda: world.workloads.pods_to_come == 0, "the refusal")
    assert [*world.pods()] == ["db-0"]


def test_what_is_retired_creates_no_pods_again(world: Controllers) -> None:
    world.create("apps/v1 Deployment", "web", {"replicas": 1, "template": TEMPLATE})
    (name,) = world.pods()
    world.workloads.retire()
    world.client.delete(f"{PODS}/{name}")
    world.create("apps/v1 ReplicaSet", "later", {"template": TEMPLATE})
    assert [each.rpartition("-")[0] for each in world.pods()] == ["later"]


def test_a_stateful_set_creates_each_pod_when_the_one_before_it_is_ready(
    world: Controllers,
) -> None:
    world.create("apps/v1 StatefulSet", "db", {"replicas": 3, "template": TEMPLATE})
    for number in range(3):
        wait_for(lambda: len(world.pods()) == number + 1, "the next pod")  # noqa: B023
        wait_for(lambda: world.workloads.pods_to_come == 2 - number, "the count of the others")  # noqa: B023
        world.becomes(f"db-{number}", "Running")
    wait_for(lambda: world.workloads.why_to_come() == (), "the last")


def test_the_jobs_of_a_job_set_in_order_come_when_those_before_them_are_ready(
    world: Controllers,
) -> None:
    job = {"spec": {"parallelism": 2, "completions": 2, "template": TEMPLATE}}
    world.create(
        "jobset.x-k8s.io/v1alpha2 JobSet",
        "gpt",
        {
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
            "replicatedJobs": [{"name": "lead", "template": job}, {"name": "w", "template": job}],
        },
    )
    wait_for(lambda: len(world.pods()) == 2, "the pods of the first Job")
    first, second = sorted(world.pods())
    assert (first[:10], second[:10]) == ("gpt-lead-0", "gpt-lead-0")
    world.becomes(first, "Running")
    (why,) = world.workloads.why_to_come()
    assert why == ("gpt: Job ml/gpt-w-0 is created when the pods of Job gpt-lead-0 are ready")
    world.becomes(second, "Running")
    wait_for(lambda: len(world.pods()) == 4, "the pods of the second Job")
    wait_for(lambda: world.workloads.pods_to_come == 0, "the count of the others")


def test_what_comes_later_is_not_created_once_it_is_retired(world: Controllers) -> None:
    world.create("apps/v1 StatefulSet", "db", {"replicas": 2, "template": TEMPLATE})
    world.workloads.retire()
    assert world.workloads.pods_to_come == 0
