"""A ResourceQuota that two Jobs fill together, each with one of its two pods."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.beside.workloads import create_job
from tests.beside.world import (
    Played,
    ended,
    of,
    one_at_a_time,
    running,
    world_beside,
)
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import GPU
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld

QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
# The Job controller tries again after 1, 2, 4 s; then there is time before its next try.
TRIES = 4
MOST_BACK_OFF_SECONDS = 60.0


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "quotas") as world:
        yield world


def allow(world: SchedulingWorld, gpus: int) -> None:
    world.client.patch(f"{QUOTAS}/gpus", {"spec": {"hard": {f"requests.{GPU}": str(gpus)}}})
    wait_for(lambda: allowed(world) == gpus, f"the quota is {gpus} GPUs")


def allowed(world: SchedulingWorld) -> int:
    found = world.client.get(f"{QUOTAS}/gpus", dict[str, Any])
    return int(found.get("status", {}).get("hard", {}).get(f"requests.{GPU}", -1))


def refusals(world: SchedulingWorld, job: str) -> int:
    path = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.name%3D{job}"
    found = world.client.get(path, dict[str, Any])["items"]
    return sum(each.get("count") or 1 for each in found if each["reason"] == "FailedCreate")


def test_of_two_jobs_that_fill_a_quota_together_both_run_one_after_the_other(
    world: SchedulingWorld,
) -> None:
    world.client.post(QUOTAS, {"metadata": {"name": "gpus"}, "spec": {"hard": {}}})
    allow(world, 8)
    played = Played(world, one_at_a_time("one", "two"))
    create_job(world, "one")
    played.until(lambda: refusals(world, "one") >= TRIES, "the second pod is refused")
    allow(world, 16)
    create_job(world, "two")
    played.until(lambda: of(world.pods(), "two"), "it has a pod")
    waiting = [pod.metadata.name for pod in world.pods()]
    assert [name[:3] for name in sorted(waiting)] == ["one", "two"]

    def is_explained() -> bool:
        (name,) = (pod.metadata.name for pod in of(world.pods(), "one"))
        said = json.loads(world.asked(f"/explain/{NAMESPACE}/{name}"))["summary"]
        return "Job one cannot create its pods: exceeded quota: gpus" in said

    played.until(is_explained, "`explain` names the quota")
    played.until_running("one", 2)

    ended(world, "one")
    played.until(lambda: running(world, "two") == 2, "two runs", 2 * MOST_BACK_OFF_SECONDS)
    played.at_rest()
    failed = world.client.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/two", dict[str, Any])
    assert failed["status"].get("failed", 0) <= 1
