"""JobSets with the operator's real controller and webhooks."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beside.workloads import (
    JOB_SETS,
    create_in_order,
    create_job_set,
    delete,
    job_template,
    replicated,
)
from tests.beside.world import (
    RACK,
    RACKS,
    Played,
    empty,
    fail,
    leave_room,
    none_bound,
    none_on,
    of,
    one_at_a_time,
    one_that_goes_gets_its_place_back,
    places,
    running,
    still_waits,
    succeed,
    world_beside,
)
from tests.cluster.support.programs.operators import JOB_SET
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "job-sets", JOB_SET) as world:
        yield world


def test_of_two_sets_in_order_one_runs_whole_and_the_other_waits_whole(
    world: SchedulingWorld,
) -> None:
    leave_room(world, "n1", "n2")
    played = Played(world, one_at_a_time("one", "two"))
    create_in_order(world, "one")
    create_in_order(world, "two")
    played.until(lambda: 2 in (running(world, "one"), running(world, "two")), "one runs whole")
    played.settle()

    first, second = ("one", "two") if running(world, "one") else ("two", "one")
    delete(world, JOB_SETS, first)

    Played(world).until_running(second, 2)


def test_a_set_in_order_waits_whole_until_there_is_room_for_all_its_waves(
    world: SchedulingWorld,
) -> None:
    leave_room(world, "n1")
    create_in_order(world, "one")
    played = Played(world, none_bound("one"))
    played.until_waiting("one", 1)
    played.settle()

    empty(world, "n2")

    Played(world).until_running("one", 2)


def test_room_for_waves_to_come_is_not_given_to_others(world: SchedulingWorld) -> None:
    """Nor to a pod that came earlier and is too large for what else is free."""
    leave_room(world, "n1", "n2")
    played = Played(world, unready=["one"])
    create_in_order(world, "one")
    played.until_running("one", 1)

    waiter = world.create("waiter")
    Played(world, still_waits(waiter), unready=["one"]).settle()
    played.unready.clear()

    played.until_running("one", 2)


def test_each_job_of_an_exclusive_set_is_whole_in_a_rack_of_its_own(
    world: SchedulingWorld,
) -> None:
    """The webhook refuses the others of a Job until its first pod is bound."""
    played = Played(world, none_on("n5", "one"))
    jobs = [replicated("slice", job_template("one", pods=2), replicas=2)]
    create_job_set(world, "one", jobs, annotations={EXCLUSIVE: RACK})

    played.until_running("one", 4)

    assert job_racks(world, "one") == {"0": {"r1"}, "1": {"r2"}} or job_racks(world, "one") == {
        "0": {"r2"},
        "1": {"r1"},
    }


def test_an_exclusive_set_waits_whole_while_it_lacks_a_rack(world: SchedulingWorld) -> None:
    world.place("occupant-n3", "n3", 8)
    played = Played(world, none_bound("one"))
    jobs = [replicated("slice", job_template("one", pods=2), replicas=2)]
    create_job_set(world, "one", jobs, annotations={EXCLUSIVE: RACK})
    played.until_waiting("one", 2)  # the first of each Job
    played.settle()

    empty(world, "n3")

    Played(world).until_running("one", 4)


def job_racks(world: SchedulingWorld, app: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pod in of(world.pods(), app):
        found.setdefault(pod.metadata.labels[JOB_INDEX], set()).add(RACKS[pod.spec.node_name])
    return found


def test_nodes_that_depend_on_an_initializer_that_completes_have_ranks_from_0(
    world: SchedulingWorld,
) -> None:
    after = [{"name": "initializer", "status": "Complete"}]
    jobs = [
        replicated("initializer", job_template("initializer", gpus=0)),
        replicated("node", job_template("one", pods=2), dependsOn=after),
    ]
    create_job_set(world, "one", jobs)
    played = Played(world)
    played.until_running("initializer", 1)
    (first,) = of(world.pods(), "initializer")
    succeed(world, first)

    played.until_running("one", 2)

    assert ranks(world, "one") == [0, 1]


def ranks(world: SchedulingWorld, app: str) -> list[int]:
    pods = of(world.pods(), app)
    answer = json.loads(world.extender.get(f"/explain/{NAMESPACE}/{pods[0].metadata.name}"))
    by_pod = {each["pod"]: each["rank"] for each in answer["gang"]["gang"]["members"]}
    return [by_pod[pod.metadata.name] for pod in pods]


def test_a_worker_that_failed_gets_its_place_back_before_one_that_waits(
    world: SchedulingWorld,
) -> None:
    """The Job controller waits for 10 s before it replaces a pod that failed."""
    leave_room(world, "n1", "n2")
    create_in_order(world, "one")
    one_that_goes_gets_its_place_back(world)


def test_a_set_that_is_recreated_keeps_its_places_before_one_that_waits(
    world: SchedulingWorld,
) -> None:
    leave_room(world, "n1", "n2")
    jobs = [replicated(role, job_template("one", backoffLimit=0)) for role in ("control", "worker")]
    create_job_set(
        world,
        "one",
        jobs,
        startupPolicy={"startupPolicyOrder": "InOrder"},
        failurePolicy={"maxRestarts": 3, "restartStrategy": "Recreate"},
    )
    played = Played(world)
    played.until_running("one", 2)
    before, old = places(world, "one"), uids(world, "one")
    world.create("waiter")
    world.wait_without_room("waiter")
    played = Played(world, still_waits("waiter"))
    played.settle()

    fail(world, of(world.pods(), "one")[1])

    played.until(
        lambda: uids(world, "one").isdisjoint(old) and running(world, "one") == 2,
        "all are recreated and run",
    )
    assert places(world, "one") == before


def uids(world: SchedulingWorld, app: str) -> set[str]:
    return {pod.metadata.uid for pod in of(world.pods(), app)}
