"""What pods hang on is read while kube-scheduler asks: the loop over HTTP, to the stand-in."""

from collections.abc import Iterator
from typing import Any

import pytest

from linkwise.simulator.api_server import ApiServer
from tests.extender.run.extender import Extender
from tests.extender.world import GPU, ApiObjects, wait_for

INDEX = "batch.kubernetes.io/job-completion-index"
JOBS = "/apis/batch/v1/namespaces/ml/jobs"


@pytest.fixture
def world() -> Iterator[ApiObjects]:
    with ApiServer() as server:
        made = ApiObjects(server)
        for name in ("n1", "n2"):
            made.add_node(name)
        yield made


@pytest.fixture
def started(world: ApiObjects) -> Iterator[Extender]:
    extender = Extender(world).start()
    yield extender
    extender.loop.stop()
    assert extender.count("errors_total") == 0


def container(gpus: int) -> dict[str, Any]:
    return {"name": "main", "image": "x", "resources": {"limits": {GPU: str(gpus)}}}


def add_job(world: ApiObjects, name: str, pods: int, at_once: int) -> dict[str, Any]:
    spec = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": at_once,
        "template": {"spec": {"containers": [container(8)]}},
    }
    world.client.post(JOBS, {"metadata": {"name": name}, "spec": spec})
    return world.client.get(f"{JOBS}/{name}", dict[str, Any])


def add_member(world: ApiObjects, job: dict[str, Any], index: int) -> dict[str, Any]:
    name = f"{job['metadata']['name']}-{index}"
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    metadata = {"name": name, "annotations": {INDEX: str(index)}, "ownerReferences": [owner]}
    spec = {"containers": [container(8)]}
    world.client.post("/api/v1/namespaces/ml/pods", {"metadata": metadata, "spec": spec})
    return world.pod(name)


def test_a_pod_that_kube_scheduler_asks_about_at_once_is_answered_when_its_owner_is_read(
    world: ApiObjects, started: Extender
) -> None:
    shard = add_member(world, add_job(world, "shards", 100, 2), 0)

    assert len(started.filter(shard, "n1", "n2")["NodeNames"]) == 1


def test_a_job_without_a_word_for_us_is_planned_whole(world: ApiObjects, started: Extender) -> None:
    train = add_job(world, "train", 2, 2)
    first = add_member(world, train, 0)
    told = started.filter(first, "n1", "n2")["FailedNodes"]
    assert set(told.values()) == {"linkwise: gang Job.batch/train waits for its members"}

    add_member(world, train, 1)

    wait_for(lambda: world.is_planned("train-0") and world.is_planned("train-1"))
    (gang,) = started.get("/gangs")
    assert gang["name"] == "Job.batch/train"
    assert started.get("/explain/ml/gangs/Job.batch/train")["gang"]["size"] == 2


def test_an_owner_that_cannot_be_read_keeps_kube_scheduler_waiting_for_a_moment_only(
    world: ApiObjects, started: Extender
) -> None:
    train = add_job(world, "train", 2, 2)
    world.server.fail_next("GET", "/jobs/train", 503, times=1_000_000)
    first = add_member(world, train, 0)
    told = started.filter(first, "n1", "n2")["FailedNodes"]
    assert set(told.values()) == {"linkwise: gang: reading its owner Job.batch ml/train"}
    add_member(world, train, 1)
    world.server.clear_faults()
    wait_for(lambda: world.is_planned("train-0") and world.is_planned("train-1"))
