"""A gang that waits keeps its age if its owner deletes its pods and creates them again, as a Job
does that Kueue suspends and resumes."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pytest

from linkwise.extender.next.queue.scheduling_queue import Ages
from linkwise.extender.state.records import GangKey
from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.owned import create, job, member, there_is
from tests.pods.podgrouper.pods import Object

HOUR = 3600.0
NAMED = {names.GANG: "old", names.GANG_SIZE: "2"}
OWNERS = pytest.mark.parametrize("said", [{}, NAMED], ids=["owner", "annotations"])


def add(
    at: Cluster, by: Object, *, attempt: int = 0, said: Mapping[str, str] | None = None
) -> None:
    there_is(at, by)
    for index in range(2):
        create(at, created_now(at, member(by, index, attempt=attempt, said=said)))


def created_now(at: Cluster, pod: Pod) -> Pod:
    created = datetime.fromtimestamp(at.now, UTC)
    return change(pod, metadata=change(pod.metadata, creation_timestamp=created))


def suspend(at: Cluster, by: Object, *, attempt: int = 0) -> None:
    for index in range(2):
        at.delete(f"{by['metadata']['name']}-{index}-{attempt}")
    at.settle()


def full() -> Cluster:
    """All nodes are taken until `make_room`."""
    at = Cluster()
    for number in range(2):
        at.add_node(f"n{number}", "dgx-a100")
        at.add_pod(f"occupant-{number}", 8)
        at.bind(f"occupant-{number}", f"n{number}")
        at.start(f"occupant-{number}")
    at.settle()
    return at


def make_room(at: Cluster) -> None:
    for number in range(2):
        at.delete(f"occupant-{number}")
        at.stop(f"occupant-{number}", f"n{number}")
    at.settle()


def test_no_namespace_wipes_the_ages_of_others() -> None:
    ages = Ages()
    ages.keep(GangKey("ml", "old"), 0.0, 10.0)
    for number in range(5000):
        ages.keep(GangKey("other", f"junk-{number}"), 0.0, 10.0)
    assert GangKey("ml", "old") in ages


def test_an_age_that_a_pod_carries_is_its_owners_too() -> None:
    ages, key = Ages(), GangKey("ml", "old")
    ages.keep(key, 0.0, 10.0)  # read from a pod
    ages.keep(key, 5.0, 11.0, "a")
    ages.comes(key, "b")
    assert key not in ages


def run(at: Cluster) -> None:
    for index in range(2):
        assert at.schedule(f"old-{index}-0")
        at.settle()
        at.start(f"old-{index}-0")
    at.settle()


def is_planned(at: Cluster, by: Object, *, attempt: int = 0) -> bool:
    pods = (f"{by['metadata']['name']}-{index}-{attempt}" for index in range(2))
    return all(at.plan(pod) is not None for pod in pods)


def nothing(at: Cluster) -> None: ...


def the_standby_leads(at: Cluster) -> None:
    at.core.lead(at.core.latest_term(1000) + 1, at.now)


@OWNERS
@pytest.mark.parametrize("meanwhile", [nothing, the_standby_leads])
def test_a_gang_that_waits_and_is_resumed_is_before_one_that_came_meanwhile(
    said: Mapping[str, str], meanwhile: Callable[[Cluster], None]
) -> None:
    at, old, young = full(), job("old", 2), job("young", 2)
    add(at, old, said=said)
    at.pass_time(60)
    add(at, young)
    suspend(at, old)
    meanwhile(at)
    at.pass_time(60)
    add(at, old, attempt=1, said=said)

    make_room(at)

    assert is_planned(at, old, attempt=1)
    assert not is_planned(at, young)


@OWNERS
def test_another_job_of_the_same_name_is_as_old_as_its_own_pods(said: Mapping[str, str]) -> None:
    at, old, young = full(), job("old", 2), job("young", 2)
    add(at, old, said=said)
    at.pass_time(60)
    add(at, young)
    suspend(at, old)
    at.pass_time(60)
    again = job("old", 2, uid="another")
    add(at, again, attempt=1, said=said)

    make_room(at)

    assert is_planned(at, young)
    assert not is_planned(at, again, attempt=1)


def test_after_an_hour_it_is_as_old_as_its_new_pods() -> None:
    at, old, young = full(), job("old", 2), job("young", 2)
    add(at, old)
    at.pass_time(60)
    add(at, young)
    suspend(at, old)
    at.pass_time(HOUR + 1)
    add(at, old, attempt=1)

    make_room(at)

    assert is_planned(at, young)
    assert not is_planned(at, old, attempt=1)


@pytest.mark.parametrize("extra", [False, True], ids=["", "a pod too many was deleted"])
def test_a_gang_that_ran_is_as_old_as_the_pods_of_its_next_run(extra: bool) -> None:
    at, old, young = full(), job("old", 2), job("young", 2)
    add(at, old)
    make_room(at)
    run(at)
    if extra:
        create(at, created_now(at, member(old, 2)))
        at.delete("old-2-0")
    add(at, young)
    at.pass_time(60)
    at.cordon("n0")
    at.cordon("n1")
    for index in range(2):
        node = at.pod(f"old-{index}-0").spec.node_name
        at.delete(f"old-{index}-0")
        at.stop(f"old-{index}-0", node)
    at.settle()
    at.pass_time(60)
    add(at, old, attempt=1)

    at.uncordon("n0")
    at.uncordon("n1")
    at.settle()

    assert is_planned(at, young)
    assert not is_planned(at, old, attempt=1)


def test_pods_that_no_controller_creates_are_as_old_as_they_are() -> None:
    at, young = full(), job("young", 2)
    at.add_gang("own", 2)
    at.pass_time(60)
    add(at, young)
    for name in ("own-0", "own-1"):
        at.delete(name)
    at.pass_time(60)
    at.add_gang("own", 2)

    make_room(at)

    assert is_planned(at, young)


def add_members(at: Cluster, gang: str, created: Mapping[int, int], minimum: int) -> None:
    """*created*: the rank of each member that is created, and its GPUs."""
    for rank, gpus in created.items():
        words = {"gang": gang, "gang-size": "2", "gang-min": str(minimum), "rank": str(rank)}
        at.add_pod(f"{gang}-{rank}", gpus, said=words)
    at.settle()


def order(at: Cluster) -> list[str]:
    return [gang.key.name for gang in at.core._planner.queue.in_order()]


@pytest.mark.parametrize(("gpus", "gate"), [(0, ""), (4, "example.com/hold"), (4, "")])
def test_one_old_pod_makes_no_gang_old(gpus: int, gate: str) -> None:
    at = full()
    said = {"gang": "old", "gang-size": "2", "rank": "0"}
    at.add_pod("old-0", gpus, gates=(gate,) if gate else (), said=said)
    at.pass_time(60)
    add_members(at, "fair", {0: 4, 1: 4}, 2)
    at.pass_time(60)
    add_members(at, "old", {1: 8}, 2)
    if gate:
        at.lift("old-0", gate)
        at.settle()

    assert order(at) == ["fair", "old"]


def test_what_comes_on_top_of_a_running_gang_is_as_old_as_it_is() -> None:
    at = Cluster()
    at.add_node("n0", "dgx-a100")
    add_members(at, "elastic", {0: 8}, 1)
    at.pass_time(60)
    assert at.schedule("elastic-0") == "n0"
    at.start("elastic-0")
    at.pass_time(60)
    add_members(at, "fair", {0: 4, 1: 4}, 2)
    at.pass_time(60)

    add_members(at, "elastic", {1: 8}, 1)

    assert order(at) == ["fair", "elastic"]


@pytest.mark.parametrize(
    ("stays", "first"), [(8, ["old", "fair"]), (1, ["fair", "old"])], ids=["half of it", "little"]
)
def test_a_running_gang_that_lost_a_member_keeps_its_age_if_enough_of_it_runs(
    stays: int, first: list[str]
) -> None:
    """Else one small pod that runs would make each large one old."""
    at = Cluster()
    at.add_node("n0", "dgx-a100")
    at.add_node("n1", "dgx-a100")
    add_members(at, "old", {0: stays, 1: 8}, 2)
    for name in ("old-0", "old-1"):
        node = at.schedule(name)
        at.settle()
        at.start(name)
    at.pass_time(60)
    add_members(at, "fair", {0: 4, 1: 4}, 2)
    at.cordon(node)
    at.delete("old-1")
    at.stop("old-1", node)
    at.pass_time(60)

    add_members(at, "old", {1: 8}, 2)

    assert order(at) == first
