"""A gang that runs loses a member: where the next one goes, and what becomes of it if nowhere."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.gangs.lifecycle import CANNOT_REPAIR, PATIENCE_SECONDS
from linkwise.extender.next.gangs.to_come import LEAVING_SECONDS
from linkwise.extender.state.actions import Evict
from tests.extender.cluster import Cluster

TIMEOUT = 600.0


def running(nodes: int = 4, size: int = 4, gpus: int = 2, **said: str) -> Cluster:
    """A gang of four, 2 GPUs each, on n1; its members have their GPUs."""
    at = Cluster(CoreSettings(gang_timeout_seconds=TIMEOUT))
    for number in range(1, nodes + 1):
        at.add_node(f"n{number}")
    members = at.add_gang("g", size, gpus, **said)
    at.settle()
    for member in members:
        assert at.schedule(member)
        at.start(member)
    at.settle()
    assert at.phase("g") == "running"
    return at


def make_again(at: Cluster, rank: int, *, gpus: int = 2, size: int = 4, **said: str) -> str:
    name = f"again-{rank}"
    words = {"gang": "g", "gang_size": str(size), "rank": str(rank), **said}
    at.add_pod(name, gpus, said=words)
    at.settle()
    return name


def die(at: Cluster, name: str) -> None:
    """The pod goes at once, and the kubelet has its GPUs back."""
    node = at.pod(name).spec.node_name
    at.delete(name)
    at.stop(name, node)
    at.settle()


def node_of(at: Cluster, name: str) -> str:
    plan = at.plan(name)
    return plan.node if plan else ""


def told(at: Cluster) -> list[str]:
    return [event.message for event in at.events if event.reason == CANNOT_REPAIR]


# The place of the dead one.


def test_a_member_made_again_has_the_very_gpus_of_the_one_before() -> None:
    at = running()
    before = [at.indices(f"g-{rank}") for rank in (1, 2)]
    for rank in (2, 1):  # both are free when the first one comes
        die(at, f"g-{rank}")
    for rank in (2, 1):
        make_again(at, rank)
    assert [at.indices(f"again-{rank}") for rank in (1, 2)] == before
    assert {node_of(at, f"again-{rank}") for rank in (1, 2)} == {"n1"}


def test_without_ranks_a_name_used_again_is_the_same_member() -> None:
    at = Cluster()
    at.add_node("n1")
    for name in ("web-0", "web-1", "web-2"):
        at.add_pod(name, 2, gang="g", gang_size="3")
    at.settle()
    for name in ("web-0", "web-1", "web-2"):
        assert at.schedule(name)
    at.settle()
    before = at.indices("web-1")
    at.delete("web-0")
    at.delete("web-1")
    at.add_pod("web-1", 2, gang="g", gang_size="3")
    at.settle()
    assert at.indices("web-1") == before


def test_the_place_is_waited_for_while_the_one_before_is_leaving_it() -> None:
    at = running(nodes=2)
    before = at.indices("g-1")
    at.terminate("g-1")
    make_again(at, 1)
    assert at.plan("again-1") is None
    at.now += LEAVING_SECONDS / 2
    die(at, "g-1")
    assert (node_of(at, "again-1"), at.indices("again-1")) == ("n1", before)


def test_and_not_for_long() -> None:
    at = running(nodes=2)
    at.terminate("g-1")
    make_again(at, 1)
    at.pass_time(LEAVING_SECONDS)
    assert node_of(at, "again-1") == "n2"


def test_no_other_pod_gets_the_place_at_once() -> None:
    at = running(nodes=2)
    before = at.indices("g-1")
    die(at, "g-1")
    at.add_pod("thief", 2)
    assert at.schedule("thief") == "n2"
    make_again(at, 1)
    assert (node_of(at, "again-1"), at.indices("again-1")) == ("n1", before)


def test_a_place_that_another_pod_has_taken_since_is_not_waited_for() -> None:
    at = running(nodes=2)
    die(at, "g-1")
    at.pass_time(LEAVING_SECONDS)
    at.add_pod("thief", 2)
    assert at.schedule("thief") == "n1"
    make_again(at, 1)
    assert node_of(at, "again-1") == "n2"


def test_nor_one_on_a_node_that_takes_no_more_pods() -> None:
    at = running(nodes=2)
    die(at, "g-1")
    at.cordon("n1")
    make_again(at, 1)
    assert node_of(at, "again-1") == "n2"


def test_nor_one_on_a_node_whose_cpu_somebody_else_has_taken() -> None:
    at = running()
    die(at, "g-2")
    at.add_pod("loader", 0, cpu="124", node="n1")
    assert node_of(at, make_again(at, 2)) == "n2"


def test_nor_one_whose_gpus_are_broken() -> None:
    at = running(nodes=2, size=3)
    broken = at.indices("g-1")
    die(at, "g-1")
    at.set_health("n1", broken[0])
    make_again(at, 1, size=3)
    assert node_of(at, "again-1") == "n1"  # still next to the others
    assert broken[0] not in at.indices("again-1")


def test_nor_one_that_kube_scheduler_has_refused() -> None:
    at = running(nodes=2)
    die(at, "g-1")
    name = make_again(at, 1)
    assert node_of(at, name) == "n1"
    at.filter(name, ["n2"])  # nominated for n1, and asked about without it
    at.settle()
    assert node_of(at, name) == "n2"


@pytest.mark.parametrize("gpus", [1, 4])
def test_who_wants_more_or_fewer_gpus_than_the_one_before_gets_what_he_wants(gpus: int) -> None:
    at = running()
    die(at, "g-2")
    assert len(at.indices(make_again(at, 2, gpus=gpus))) == gpus


def test_refusals_count_only_in_a_row() -> None:
    at = running(nodes=8)
    for rank in range(4):  # replacements run on, with what is written on them
        die(at, f"g-{rank}")
        name = make_again(at, rank)
        refused = node_of(at, name)
        at.filter(name, sorted({*at.nodes} - {refused}))
        at.settle()
        assert at.schedule(name) not in ("", refused)
        at.start(name)
        at.settle()
        assert at.phase("g") == "running"


def test_a_new_extender_goes_on_counting_them() -> None:
    at = Cluster(CoreSettings(max_refusals=3))
    for number in range(1, 6):
        at.add_node(f"n{number}")
    at.add_gang("g", 2)
    for _ in range(3):
        at.settle()
        assert at.phase("g") == "planned"
        at.restart()
        at.settle()
        at.filter("g-0", sorted({*at.nodes} - {node_of(at, "g-0")}))
    at.settle()
    assert at.phase("g") == "refused"


def test_the_place_in_an_earlier_run_is_nothing_to_a_later_one() -> None:
    at = running(nodes=2, size=2)
    for name in ("g-0", "g-1"):
        die(at, name)
    at.add_pod("busy", 2, node="n1")
    at.start("busy", {"main": at.uuids("n1", 0, 1)})
    for rank in (0, 1):
        make_again(at, rank, size=2)
    assert at.phase("g") == "planned"
    assert at.sound()


def test_a_new_extender_plans_it_near_the_others() -> None:
    at = running(nodes=2)
    die(at, "g-1")
    at.restart()
    make_again(at, 1)
    assert node_of(at, "again-1") == "n1"


# It cannot be repaired.


def full_without(at: Cluster, name: str) -> None:
    """The member dies, and its place is gone."""
    node = at.pod(name).spec.node_name
    die(at, name)
    at.add_pod(f"thief-of-{name}", 8, node=node)
    at.start(f"thief-of-{name}", {"main": at.uuids(node, *range(8))})
    at.settle()


def stuck(**said: str) -> Cluster:
    """Two members with a node each: the second one's is taken, and another member waits."""
    at = running(nodes=2, size=2, gpus=8, **said)
    full_without(at, "g-1")
    make_again(at, 1, gpus=8, size=2, **said)
    return at


def test_a_gang_without_room_for_its_next_member_is_reported_and_left_alone() -> None:
    at = stuck()
    assert at.phase("g") == "repairing"
    assert told(at) == []  # it may be over in a moment
    at.pass_time(PATIENCE_SECONDS)
    assert told(at) == ["gang ml/g: there is no room for the missing members (again-1)"]
    at.pass_time(10 * TIMEOUT)
    assert at.evicted == []
    assert at.phase("g") == "repairing"


def test_what_is_repaired_in_a_moment_is_not_worth_a_word() -> None:
    at = stuck()
    at.pass_time(PATIENCE_SECONDS / 2)
    at.add_node("n3")
    at.settle()
    at.pass_time(PATIENCE_SECONDS)
    assert told(at) == []
    assert at.schedule("again-1") == "n3"
    at.settle()
    assert at.phase("g") == "running"
    assert at.core.gangs(at.now)[0].reason == ""


def test_where_all_say_so_the_gang_is_evicted_whole_after_its_timeout() -> None:
    at = stuck(preemptible="true")
    at.pass_time(TIMEOUT - 1)
    assert at.evicted == []
    actions = at.pass_time(1)
    assert [each.pod.name for each in actions if isinstance(each, Evict)] == ["g-0"]
    die(at, "g-0")
    assert at.free("n1") == 8
    assert at.phase("g") == "forming"


def test_where_one_member_does_not_say_so_nobody_is_evicted() -> None:
    at = running(nodes=2, size=2, gpus=8, preemptible="true")
    full_without(at, "g-1")
    make_again(at, 1, gpus=8, size=2)
    at.pass_time(10 * TIMEOUT)
    assert at.evicted == []


def test_room_that_comes_in_time_saves_the_gang() -> None:
    at = stuck(preemptible="true")
    at.pass_time(TIMEOUT - 1)
    at.add_node("n3")
    at.pass_time(1)
    at.pass_time(10)
    assert at.evicted == []
    assert node_of(at, "again-1") == "n3"


def test_room_that_comes_at_the_last_moment_does_too() -> None:
    at = stuck(preemptible="true")
    at.pass_time(TIMEOUT - 1)
    at.now += 1
    at.add_node("n3")
    at.settle()
    assert at.evicted == []
    assert node_of(at, "again-1") == "n3"


def test_the_next_time_it_is_stuck_is_another_time() -> None:
    at = stuck(preemptible="true")
    at.pass_time(TIMEOUT - 1)
    at.add_node("n3")
    at.settle()
    assert at.schedule("again-1") == "n3"
    at.start("again-1")
    at.settle()
    full_without(at, "again-1")
    make_again(at, 1, gpus=8, size=2, preemptible="true")
    at.pass_time(TIMEOUT - 1)
    assert at.evicted == []
    at.pass_time(1)
    assert at.evicted == ["g-0"]


def test_an_eviction_that_is_refused_is_asked_for_until_it_is_granted_or_not_needed() -> None:
    at = running(nodes=3, size=3, gpus=8, preemptible="true")
    full_without(at, "g-2")
    make_again(at, 2, gpus=8, size=3, preemptible="true")
    at.pass_time(TIMEOUT)  # judged; and both are gone in this world
    assert at.evicted == ["g-0", "g-1"]


def test_a_member_that_failed_and_is_not_made_again_is_reported_by_name() -> None:
    """A pod of restartPolicy Never without an operator: nothing that eviction could better."""
    at = running(preemptible="true")
    at.set_phase("g-1", "Failed")
    at.stop("g-1", "n1")
    at.settle()
    at.pass_time(LEAVING_SECONDS)
    at.pass_time(PATIENCE_SECONDS)
    text = "members are missing, and their controller has created no replacements (g-1 failed)"
    assert told(at) == [f"gang ml/g: {text}"]
    at.pass_time(10 * TIMEOUT)
    assert at.evicted == []
    assert at.phase("g") == "repairing"


def test_one_that_lacks_nobody_it_needs_is_not_reported() -> None:
    at = running(gang_min="3")
    die(at, "g-1")
    at.pass_time(10 * TIMEOUT)
    assert told(at) == []


def test_a_plan_for_the_next_member_that_nobody_binds_is_given_back_and_nobody_is_evicted() -> None:
    at = running()
    die(at, "g-1")
    make_again(at, 1)
    for _ in range(3):
        at.pass_time(TIMEOUT)
    assert at.plan("again-1") is None
    assert at.phase("g") == "refused"
    at.pass_time(PATIENCE_SECONDS)
    assert told(at) == ["gang ml/g: kube-scheduler did not take the plans of the missing members"]
    assert at.evicted == []


def test_many_that_came_and_went_do_not_make_it_forget_the_place_of_one_that_stayed() -> None:
    at = Cluster(CoreSettings(gang_timeout_seconds=TIMEOUT))
    at.add_node("n1")
    at.add_node("n2")

    def come(*names: str) -> None:
        for name in names:
            at.add_pod(name, 8, gang="g", gang_size="2")
        at.settle()
        for name in names:
            assert at.schedule(name)
            at.start(name)
        at.settle()

    come("stays", "other-0")
    for number in range(4):
        die(at, f"other-{number}")
        at.settle()
        come(f"other-{number + 1}")
    (gang,) = at.core._planner.registry.gangs.values()
    assert gang.spots["stays"].node == at.pod("stays").spec.node_name
