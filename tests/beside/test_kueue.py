"""Jobs, JobSets and groups of plain pods that the real Kueue admits, and Linkwise places."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linkwise.kube.objects import Pod
from tests.beside.queues import (
    ALL,
    HIGH,
    IN_RACKS,
    QUOTA_OF_ONE,
    create_in_queue,
    create_pod_group,
    create_queues,
    queued,
)
from tests.beside.workloads import (
    BATCH,
    create_job_set,
    create_leader_worker_set,
    job_template,
    replicated,
)
from tests.beside.world import (
    RACK,
    Played,
    empty,
    ended,
    leave_room,
    none_bound,
    none_on,
    of,
    of_two_one_runs_whole,
    one_at_a_time,
    racks,
    running,
    world_beside,
)
from tests.cluster.support.programs.operators import JOB_SET, KUEUE, LEADER_WORKER_SET
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

EQUAL = "kueue.x-k8s.io/job-completions-equal-parallelism"
REQUIRED = "kueue.x-k8s.io/podset-required-topology"
Create = Callable[[SchedulingWorld, str, str], None]


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "kueue", JOB_SET, LEADER_WORKER_SET, KUEUE) as world:
        create_queues(world)
        yield world


def create_queued_set(world: SchedulingWorld, name: str, queue: str) -> None:
    jobs = [replicated("worker", job_template(name), replicas=2)]
    create_job_set(world, name, jobs, labels=queued(queue))


def create_queued_workers(world: SchedulingWorld, name: str, queue: str) -> None:
    create_leader_worker_set(world, name, labels=queued(queue))


THAT_END = {"job": create_in_queue, "set": create_queued_set, "group": create_pod_group}
ALL_KINDS = {**THAT_END, "workers": create_queued_workers}
KINDS_THAT_END = pytest.mark.parametrize("create", THAT_END.values(), ids=THAT_END)
KINDS = pytest.mark.parametrize("create", ALL_KINDS.values(), ids=ALL_KINDS)


@KINDS_THAT_END
def test_of_two_with_quota_for_one_the_other_waits_for_the_end_of_the_first(
    world: SchedulingWorld, create: Create
) -> None:
    """There is room for both."""
    played = Played(world, one_at_a_time("one", "two"))
    for name in ("one", "two"):
        create(world, name, QUOTA_OF_ONE)
    played.until(lambda: 2 in (running(world, "one"), running(world, "two")), "one runs whole")
    played.at_rest()

    first, second = ("one", "two") if running(world, "one") else ("two", "one")
    ended(world, first)

    played.until_running(second, 2)
    played.at_rest()


@KINDS
def test_of_two_with_quota_and_room_for_one_the_other_waits_whole(
    world: SchedulingWorld, create: Create
) -> None:
    of_two_one_runs_whole(world, lambda name: create(world, name, ALL))


@KINDS
def test_what_has_quota_waits_whole_until_there_is_room(
    world: SchedulingWorld, create: Create
) -> None:
    leave_room(world, "n1")
    played = Played(world, none_bound("one"))
    create(world, "one", ALL)
    played.until_waiting("one", 2)
    played.at_rest()

    empty(world, "n2")

    played = Played(world)
    played.until_running("one", 2)
    played.at_rest()


def test_a_job_that_kueue_preempts_gives_its_gpus_whole_and_gets_them_back(
    world: SchedulingWorld,
) -> None:
    leave_room(world, "n1", "n2")
    create_in_queue(world, "low", QUOTA_OF_ONE)
    played = Played(world)
    played.until_running("low", 2)

    create_in_queue(world, "high", QUOTA_OF_ONE, importance=HIGH)

    played.until_running("high", 2)
    played.until(lambda: not of(world.pods(), "low"), "the other is suspended")
    played.at_rest()
    ended(world, "high")
    played.until_running("low", 2)
    played.at_rest()


def test_a_job_that_kueue_admits_in_part_starts_with_as_many_pods(world: SchedulingWorld) -> None:
    """There is room for all four, and quota for two."""
    said = {"kueue.x-k8s.io/job-min-parallelism": "1", EQUAL: "true"}
    metadata = {"name": "one", "labels": queued(QUOTA_OF_ONE), "annotations": said}
    world.client.post(BATCH, {"metadata": metadata, "spec": job_template("one", 4)})
    played = Played(world)
    played.until_running("one", 2)
    played.at_rest()
    assert len(of(world.pods(), "one")) == 2


def test_of_two_that_kueue_admits_the_one_with_the_higher_priority_class_starts_first(
    world: SchedulingWorld,
) -> None:
    """Kueue takes the PriorityClass of the pods, and so does Linkwise."""
    leave_room(world)
    create_in_queue(world, "low", ALL)
    played = Played(world, none_bound("low"))
    played.until_waiting("low", 2)
    create_in_queue(world, "high", ALL, priority_class=HIGH)
    played.until_waiting("high", 2)
    played.at_rest()

    empty(world, "n1")
    empty(world, "n2")

    played.until_running("high", 2)
    played.at_rest()


def test_a_job_starts_whole_in_the_rack_that_kueue_has_chosen(world: SchedulingWorld) -> None:
    leave_room(world, "n2", "n3", "n4", "n5")
    played = Played(world, none_on("n2", "one"), none_on("n5", "one"))
    create_in_queue(world, "one", IN_RACKS, said={REQUIRED: RACK})

    played.until_running("one", 2)

    assert racks(world, "one") == {"r2"}
    assert {selected_rack(pod) for pod in of(world.pods(), "one")} == {"r2"}
    played.at_rest()


def test_two_jobs_with_a_rack_each_start_whole_at_once(world: SchedulingWorld) -> None:
    played = Played(world, none_on("n5", "one"), none_on("n5", "two"))
    for name in ("one", "two"):
        create_in_queue(world, name, IN_RACKS, said={REQUIRED: RACK})
    for name in ("one", "two"):
        played.until_running(name, 2)

    assert {*map(frozenset, (racks(world, "one"), racks(world, "two")))} == {
        frozenset({"r1"}),
        frozenset({"r2"}),
    }
    played.at_rest()


def selected_rack(pod: Pod) -> str:
    return pod.spec.node_selector.get(RACK, "")
