"""Jobs become pods: the rules as values, then the controller with the API server stand-in."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from linkwise.kube.client import KubeClient
from linkwise.kube.labels import COMPLETION_INDEX
from linkwise.kube.objects import Pod
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.jobs import job_rules
from linkwise.simulator.jobs.controller import JobController
from linkwise.simulator.jobs.job_rules import Decision, Job, Ledger, decide, pod_of, status_of
from tests.waiting import wait_for

TEMPLATE = {
    "metadata": {"labels": {"app": "t"}, "annotations": {"linkwise.dev/gang": "g"}},
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]},
}


def job(**spec: Any) -> Job:
    body = {
        "metadata": {"name": "train", "namespace": "ml", "uid": "j"},
        "spec": {"template": TEMPLATE, **spec},
    }
    return msgspec.convert(body, Job)


def indexed(completions: int, **spec: Any) -> Job:
    return job(
        **{
            "completions": completions,
            "parallelism": completions,
            "completionMode": "Indexed",
            **spec,
        }
    )


def pod(name: str, index: int | None = None, *, phase: str = "Running", **meta: object) -> Pod:
    annotations = {} if index is None else {COMPLETION_INDEX: str(index)}
    metadata = {"name": name, "uid": name, "annotations": annotations, **meta}
    return msgspec.convert({"metadata": metadata, "status": {"phase": phase}}, Pod)


LEAVING = {"deletionTimestamp": "2026-01-02T03:04:05Z"}


def decided(one: Job, pods: Sequence[Pod]) -> Decision:
    ledger = Ledger()
    for seen in pods:
        ledger.note(seen)
    return decide(one, pods, ledger)


# The rules


def test_an_indexed_job_gets_a_pod_for_every_index() -> None:
    assert decided(indexed(3), []).create == (0, 1, 2)


def test_no_more_run_at_once_than_its_parallelism() -> None:
    assert decided(indexed(3, parallelism=2), [pod("a", 0)]).create == (1,)
    assert decided(indexed(3, parallelism=2), [pod("a", 0), pod("b", 1)]).create == ()


def test_parallelism_is_one_where_it_is_not_said() -> None:
    assert decided(job(completions=3, completionMode="Indexed"), []).create == (0,)


def test_a_failed_or_deleted_pod_is_replaced_in_its_index() -> None:
    pods = [pod("a", 0), pod("b", 1, phase="Failed"), pod("c", 2, **LEAVING)]
    assert decided(indexed(3), pods).create == (1, 2)


def test_an_index_that_succeeded_is_not_run_again() -> None:
    pods = [pod("a", 0, phase="Succeeded"), pod("b", 1)]
    assert decided(indexed(2), pods) == Decision(active=1)


def test_it_is_complete_when_every_index_succeeded() -> None:
    pods = [pod("a", 0, phase="Succeeded"), pod("b", 1, phase="Succeeded")]
    assert decided(indexed(2), pods) == Decision(outcome="Complete")


def test_two_pods_of_one_index_are_one_too_many() -> None:
    twice = decided(indexed(2), [pod("a", 0), pod("b", 0), pod("c", 1)])
    assert [surplus.metadata.name for surplus in twice.delete] == ["b"]
    assert twice.create == ()


def test_a_job_without_numbers_runs_one_pod_once() -> None:
    assert decided(job(), []).create == (None,)
    assert decided(job(), [pod("a", phase="Succeeded")]).outcome == "Complete"


def test_completions_are_counted_where_they_have_no_index() -> None:
    pods = [pod("a", phase="Succeeded"), pod("b")]
    assert decided(job(completions=4, parallelism=2), pods).create == (None,)
    assert decided(job(completions=2, parallelism=2), pods).create == ()


def test_a_work_queue_starts_no_pod_after_the_first_success() -> None:
    queue = job(parallelism=2)
    assert decided(queue, []).create == (None, None)
    assert decided(queue, [pod("a", phase="Succeeded"), pod("b")]) == Decision(active=1)
    both = [pod("a", phase="Succeeded"), pod("b", phase="Failed")]
    assert decided(queue, both).outcome == "Complete"


def test_beyond_its_backoff_limit_it_fails_and_its_pods_go() -> None:
    pods = [pod("a", 0, phase="Failed"), pod("b", 0, phase="Failed"), pod("c", 1)]
    failed = decided(indexed(2, backoffLimit=1), pods)
    assert failed.outcome == "Failed"
    assert [gone.metadata.name for gone in failed.delete] == ["c"]
    assert decided(indexed(2, backoffLimit=2), pods).create == (0,)


def test_the_wait_doubles_with_each_failure_up_to_ten_minutes() -> None:
    waits = [job_rules.seconds_after(failures, first=10.0) for failures in (1, 2, 3, 7, 8, 5000)]
    assert waits == [10.0, 20.0, 40.0, 600.0, 600.0, 600.0]


def test_a_suspended_job_runs_nothing() -> None:
    suspended = decided(indexed(2, suspend=True), [pod("a", 0)])
    assert [gone.metadata.name for gone in suspended.delete] == ["a"]
    assert suspended.create == ()


def test_pods_carry_their_index_their_job_and_the_template_s_own_words() -> None:
    body = pod_of(indexed(2), 1, "abcde")
    assert body["metadata"]["name"] == "train-1-abcde"
    assert body["metadata"]["annotations"] == {"linkwise.dev/gang": "g", COMPLETION_INDEX: "1"}
    assert body["metadata"]["labels"] == {
        "app": "t",
        COMPLETION_INDEX: "1",
        "batch.kubernetes.io/controller-uid": "j",
        "batch.kubernetes.io/job-name": "train",
        "controller-uid": "j",
        "job-name": "train",
    }
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
        "Job",
        "train",
        "j",
        True,
    )
    assert body["spec"]["hostname"] == "train-1"
    assert body["spec"]["containers"] == [{"name": "main", "image": "x"}]


def test_pods_without_an_index_carry_none() -> None:
    body = pod_of(job(), None, "abcde")
    assert body["metadata"]["name"] == "train-abcde"
    assert COMPLETION_INDEX not in body["metadata"]["labels"]


def test_the_status_counts_and_says_the_outcome() -> None:
    ledger = Ledger(failed={"x"}, succeeded={"a": 0, "b": 1})
    status = status_of(indexed(2), Decision(outcome="Complete"), ledger, "now")
    assert (status["active"], status["succeeded"], status["failed"]) == (0, 2, 1)
    assert status["conditions"][0]["type"] == "Complete"
    assert status["completionTime"] == "now"


# The controller


class JobsOnApiServer:
    def __init__(self, server: ApiServer, controller: JobController, client: KubeClient) -> None:
        self.server, self.controller, self.client = server, controller, client

    def submit(self, **spec: object) -> None:
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train"},
            "spec": {"template": TEMPLATE, **spec},
        }
        self.client.post("/apis/batch/v1/namespaces/ml/jobs", body)

    def gang(self, size: int, **spec: object) -> None:
        self.submit(completions=size, parallelism=size, completionMode="Indexed", **spec)

    def pods(self) -> list[Pod]:
        class Pods(msgspec.Struct):
            items: list[Pod]

        return self.client.get("/api/v1/namespaces/ml/pods", Pods).items

    def live(self) -> dict[str, str]:
        """Return index -> name of the pods that have not ended."""
        return {
            p.metadata.annotations.get(COMPLETION_INDEX, ""): p.metadata.name
            for p in self.pods()
            if not p.has_ended
        }

    def lives(self, *indices: str) -> dict[str, str]:
        wait_for(lambda: sorted(self.live()) == sorted(indices), f"pods {indices}")
        return self.live()

    def phase(self, name: str, phase: str) -> None:
        path = f"/api/v1/namespaces/ml/pods/{name}/status"
        self.client.patch(path, {"status": {"phase": phase}})

    def job(self) -> dict[str, Any]:
        return self.client.get("/apis/batch/v1/namespaces/ml/jobs/train", dict[str, Any])


@pytest.fixture
def world() -> Iterator[JobsOnApiServer]:
    with ApiServer() as server:
        client = KubeClient.load(kubeconfig=None, server=server.url)
        controller = JobController(client, failure_backoff_seconds=0.0)
        controller.start()
        yield JobsOnApiServer(server, controller, client)
        controller.stop()


def test_a_deleted_pod_and_a_failed_one_come_back_under_another_name(
    world: JobsOnApiServer,
) -> None:
    world.gang(2)
    before = world.lives("0", "1")
    world.client.delete(f"/api/v1/namespaces/ml/pods/{before['0']}")
    wait_for(lambda: world.live().get("0", before["0"]) != before["0"], "0 replaced")
    world.phase(before["1"], "Failed")
    wait_for(lambda: world.live().get("1", before["1"]) != before["1"], "1 replaced")
    wait_for(lambda: world.job()["status"].get("failed") == 2, "both counted")


def test_pods_go_with_their_job(world: JobsOnApiServer) -> None:
    world.gang(3)
    world.lives("0", "1", "2")
    world.client.delete("/apis/batch/v1/namespaces/ml/jobs/train")
    wait_for(lambda: not world.pods(), "no pods left")


def test_what_the_api_server_refused_is_tried_again(world: JobsOnApiServer) -> None:
    world.server.fail_next("POST", "/pods", 503, times=2)
    world.gang(2)
    world.lives("0", "1")
    assert len(world.pods()) == 2


def test_a_pod_that_is_not_seen_yet_is_not_created_twice(world: JobsOnApiServer) -> None:
    world.server.fail_next("GET", "/api/v1/pods", 503, times=1000)
    world.server.cut_watches()
    world.gang(2)
    wait_for(lambda: world.job().get("status", {}).get("active") == 2, "two pods")
    path = "/apis/batch/v1/namespaces/ml/jobs/train"
    world.client.patch(path, {"spec": {"completions": 3, "parallelism": 3}})
    wait_for(lambda: world.job()["status"]["active"] == 3, "a third")
    assert world.server.requests()["POST pods"] == 3
    world.server.clear_faults()


def test_pods_that_it_deletes_itself_are_no_failures(world: JobsOnApiServer) -> None:
    world.gang(2, backoffLimit=0)
    world.lives("0", "1")
    path = "/apis/batch/v1/namespaces/ml/jobs/train"
    world.client.patch(path, {"spec": {"suspend": True}})
    wait_for(lambda: not world.pods(), "suspended")
    world.client.patch(path, {"spec": {"suspend": False}})
    world.lives("0", "1")
    assert world.job()["status"]["failed"] == 0


def test_after_a_failure_the_next_pod_waits(
    world: JobsOnApiServer, request: pytest.FixtureRequest
) -> None:
    world.controller.stop()
    patient = JobController(world.client, failure_backoff_seconds=3600.0)
    request.addfinalizer(patient.stop)
    patient.start()
    world.gang(1)
    world.phase(world.lives("0")["0"], "Failed")
    wait_for(lambda: world.job()["status"].get("failed") == 1, "counted")
    assert world.live() == {}


def test_a_restarted_controller_adopts_what_is_there(
    world: JobsOnApiServer, request: pytest.FixtureRequest
) -> None:
    world.gang(2)
    before = world.lives("0", "1")
    world.controller.stop()
    again = JobController(world.client, seed=1, failure_backoff_seconds=0.0)
    request.addfinalizer(again.stop)
    again.start()
    world.client.delete(f"/api/v1/namespaces/ml/pods/{before['0']}")
    wait_for(lambda: world.live().get("0", before["0"]) != before["0"], "0 replaced")
    assert world.live()["1"] == before["1"]


def test_pods_of_nobody_are_left_alone(world: JobsOnApiServer) -> None:
    body = {"apiVersion": "v1", "kind": "Pod", **TEMPLATE, "metadata": {"name": "own"}}
    world.client.post("/api/v1/namespaces/ml/pods", body)
    world.gang(1)
    world.lives("0", "")
    world.client.delete("/apis/batch/v1/namespaces/ml/jobs/train")
    world.lives("")
