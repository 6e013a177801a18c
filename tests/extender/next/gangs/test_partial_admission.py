"""Gangs that start with fewer members than they may have, and grow next to those that run."""

import msgspec
import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.gangs.members import LONGEST_SECONDS, MOMENT_SECONDS
from linkwise.extender.state.actions import Evict, MarkStarted
from linkwise.kube.objects import Pod, Taint, Toleration
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.pods.podgrouper.pods import owner, pod, ref_of

TIMEOUT = 600.0
TAINT = Taint(key="other", effect="NoSchedule")
TOLERATION = Toleration(key="other", operator="Exists")


def cluster(nodes: int = 2) -> Cluster:
    made = Cluster(CoreSettings(gang_timeout_seconds=TIMEOUT))
    for number in range(1, nodes + 1):
        made.add_node(f"n{number}")
    return made


def add(at: Cluster, *ranks: int, size: int = 4, least: int = 2, gpus: int = 8) -> None:
    for rank in ranks:
        at.add_pod(
            f"g-{rank}",
            gpus,
            gang="g",
            gang_size=str(size),
            gang_min=str(least),
            rank=str(rank),
        )


def planned(at: Cluster) -> dict[str, str]:
    """Member -> node, of those not bound."""
    return {
        pod.metadata.name: plan.node
        for pod in at.pods.values()
        if not pod.spec.node_name and (plan := at.plan(pod.metadata.name))
    }


def bind_planned(at: Cluster) -> None:
    for member in sorted(planned(at)):
        assert at.schedule(member)
    at.settle()


def marked(at: Cluster) -> list[str]:
    return [p.metadata.name for p in at.pods.values() if names.STARTED in p.metadata.annotations]


# Who starts.


def test_a_gang_whose_members_are_all_there_goes_at_once_and_as_a_whole() -> None:
    at = cluster(nodes=4)
    add(at, 0, 1, 2, 3)
    at.settle()
    assert len(planned(at)) == 4


def test_the_minimum_starts_once_nobody_has_come_for_a_moment() -> None:
    at = cluster(nodes=4)
    add(at, 0, 1)
    assert at.settle() == []
    assert at.core.next_due() == at.now + MOMENT_SECONDS
    at.pass_time(MOMENT_SECONDS / 2)
    add(at, 2)  # and the gang waits a moment once more
    at.settle()
    at.pass_time(MOMENT_SECONDS / 2)
    assert planned(at) == {}
    at.pass_time(MOMENT_SECONDS / 2)
    assert set(planned(at)) == {"g-0", "g-1", "g-2"}


def test_a_member_without_gpus_begins_nothing() -> None:
    at = cluster(nodes=4)
    add(at, 0, gpus=0)
    add(at, 1)
    assert at.settle() == []
    at.pass_time(MOMENT_SECONDS / 2)
    add(at, 2, 3)
    at.settle()
    assert len(planned(at)) == 3


def test_members_that_keep_coming_keep_nobody_waiting_for_long() -> None:
    at = cluster(nodes=10)
    began = at.now
    add(at, 0, 1, size=40)
    at.settle()
    for rank in range(2, 40):
        add(at, rank, size=40)
        at.pass_time(MOMENT_SECONDS / 2)
        if planned(at):
            break
    assert at.now == began + LONGEST_SECONDS


def test_below_the_minimum_nothing_is_planned_however_long() -> None:
    at = cluster(nodes=4)
    add(at, 0, least=2)
    at.settle()
    at.pass_time(10 * LONGEST_SECONDS)
    assert planned(at) == {}
    assert at.phase("g") == "forming"


def test_where_not_all_fit_the_first_ranks_that_do_are_planned() -> None:
    at = cluster(nodes=3)
    add(at, 3, 2, 1, 0)
    at.settle()
    assert set(planned(at)) == {"g-0", "g-1", "g-2"}
    assert at.phase("g") == "planned"
    assert at.filter("g-3").failed["n1"] == (
        "linkwise: gang g: no room for the members that are missing"
    )


def test_where_fewer_fit_than_the_minimum_nothing_is_held() -> None:
    at = cluster(nodes=2)
    add(at, 0, 1, 2, 3, least=3)
    assert at.settle() == []
    assert [at.free("n1"), at.free("n2")] == [8, 8]
    assert at.filter("g-0").failed["n1"] == "linkwise: gang g: no room for the whole gang"


def test_as_many_fit_as_there_is_room_for_also_where_others_took_some_of_each_node() -> None:
    at = cluster(nodes=3)
    for node, busy in (("n1", 2), ("n2", 4), ("n3", 6)):
        at.add_pod(f"busy-{node}", busy, node=node)
    add(at, *range(12), size=12, gpus=2)
    at.settle()
    assert len(planned(at)) == (6 + 4 + 2) // 2


def test_members_that_contradict_each_other_about_the_minimum_are_refused() -> None:
    at = cluster()
    add(at, 0, least=2)
    add(at, 1, least=3)
    at.settle()
    assert at.phase("g") == "refused"
    assert at.filter("g-0").failed["n1"] == (
        "linkwise: gang g: pod g-0 says gang-min 2, pod g-1 says 3"
    )


def test_a_member_behind_another_gate_is_not_waited_for_where_enough_others_are_there() -> None:
    at = cluster(nodes=4)
    at.add_pod("g-9", 8, gang="g", gang_size="4", gang_min="2", rank="9", gates=["kueue"])
    add(at, 0, 1)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    assert set(planned(at)) == {"g-0", "g-1"}
    bind_planned(at)
    at.lift("g-9", "kueue")
    at.settle()
    assert set(planned(at)) == {"g-9"}


def test_behind_our_gate_the_members_with_plans_are_let_go_and_the_others_are_not() -> None:
    at = cluster(nodes=2)
    for rank in range(3):
        at.add_pod(
            f"g-{rank}",
            8,
            gang="g",
            gang_size="3",
            gang_min="2",
            rank=str(rank),
            gates=[names.GATE],
        )
    at.settle()
    assert [at.gates(f"g-{rank}") for rank in range(3)] == [[], [], [names.GATE]]


# It has started.


def test_with_its_minimum_bound_a_gang_has_started_and_the_mark_comes_with_the_binding() -> None:
    at = cluster(nodes=3)
    add(at, 0, 1, 2, 3)
    at.settle()
    at.schedule("g-0")
    at.settle()
    assert (at.phase("g"), marked(at)) == ("binding", [])
    at.schedule("g-1")
    assert at.settle() == []
    assert (at.phase("g"), marked(at)) == ("running", ["g-1"])


def test_those_beyond_the_minimum_follow_when_there_is_room_next_to_the_others() -> None:
    at = cluster(nodes=3)
    at.add_pod("busy", 8, node="n2")
    add(at, 0, 1, 2, 3, gpus=4, least=1)
    at.add_pod("other", 8, node="n3")
    at.settle()
    assert planned(at) == {"g-0": "n1", "g-1": "n1"}
    bind_planned(at)
    at.set_phase("busy", "Succeeded")
    at.settle()
    assert planned(at) == {"g-2": "n2", "g-3": "n2"}
    bind_planned(at)
    assert at.phase("g") == "running"


def test_while_it_runs_those_that_wait_are_told_that_there_is_no_room_for_them() -> None:
    at = cluster(nodes=2)
    add(at, 0, 1, 2)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    bind_planned(at)
    assert at.phase("g") == "running"
    explained = at.core.explain("ml", "g-2", at.now)
    assert explained is not None
    assert explained.summary == "Gang g: no room for the members that are missing."


def test_a_member_that_comes_late_is_planned_on_the_node_of_the_others() -> None:
    at = cluster(nodes=3)
    add(at, 0, 1, 2, gpus=2)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    bind_planned(at)
    node = at.pod("g-0").spec.node_name
    add(at, 3, gpus=2)
    at.settle()
    assert planned(at) == {"g-3": node}


def test_room_for_one_of_two_that_are_missing_goes_to_the_lower_rank() -> None:
    at = cluster(nodes=2)
    add(at, 0, 1, 2, 3)
    at.settle()
    bind_planned(at)
    at.add_node("n3")
    at.settle()
    assert planned(at) == {"g-2": "n3"}


def test_a_member_for_whom_there_is_no_room_keeps_no_unlike_one_from_his() -> None:
    at = cluster(nodes=2)
    add(at, 0, 1, gpus=7)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    bind_planned(at)
    add(at, 2, gpus=8)
    add(at, 3, gpus=1)
    at.settle()
    assert set(planned(at)) == {"g-3"}


def test_nor_before_the_others_are_bound() -> None:
    at = cluster(nodes=3)
    at.add_pod("other", 4)
    assert at.schedule("other")
    add(at, 0, 1)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    assert set(planned(at)) == {"g-0", "g-1"}
    add(at, 2)
    add(at, 3, gpus=4)
    at.settle()
    assert set(planned(at)) == {"g-0", "g-1", "g-3"}


def fewer_than_all_run() -> Cluster:
    """Two of four run; of three nodes, the last has 4 GPUs left, and a third member wants 8."""
    at = cluster(nodes=3)
    add(at, 0, 1)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    bind_planned(at)
    at.add_pod("other", 4)
    assert at.schedule("other") == "n3"
    add(at, 2)
    at.settle()
    assert planned(at) == {}
    return at


def test_who_is_let_go_by_another_gate_is_tried_without_new_room() -> None:
    at = fewer_than_all_run()
    words = {"gang": "g", "gang_size": "4", "gang_min": "2"}
    at.add_pod("g-3", 4, said=words, rank="3", gates=["kueue.x-k8s.io/admission"])
    at.settle()
    at.lift("g-3", "kueue.x-k8s.io/admission")
    at.settle()
    assert planned(at) == {"g-3": "n3"}


def test_who_may_go_elsewhere_now_is_tried_without_new_room() -> None:
    at = fewer_than_all_run()
    at.cordon("n3", TAINT)
    add(at, 3, gpus=4)
    at.settle()
    assert planned(at) == {}
    made = at.pod("g-3")
    at.put_pod(change(made, spec=change(made.spec, tolerations=(TOLERATION,))))
    at.settle()
    assert planned(at) == {"g-3": "n3"}


def test_of_several_without_room_the_smallest_is_tried_when_there_is_some() -> None:
    at = fewer_than_all_run()
    at.add_pod("another", 4)
    assert at.schedule("another") == "n3"
    add(at, 3, gpus=4)
    at.settle()
    assert planned(at) == {}
    at.delete("another")
    at.settle()
    assert planned(at) == {"g-3": "n3"}


def test_those_that_wait_hold_nothing() -> None:
    at = cluster(nodes=2)
    add(at, 0, 1, 2, 3, gpus=5)
    at.settle()
    assert len(planned(at)) == 2
    at.add_pod("small", 3)
    assert at.schedule("small")


def test_down_to_the_minimum_nobody_is_missed_and_below_it_the_gang_is_repaired() -> None:
    at = cluster(nodes=3)
    add(at, 0, 1, 2)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    bind_planned(at)
    at.delete("g-2")
    at.settle()
    assert at.phase("g") == "running"
    at.delete("g-1")
    at.settle()
    assert at.phase("g") == "repairing"
    assert at.pass_time(10 * TIMEOUT) is not None
    assert at.evicted == []


def test_one_that_waits_beyond_the_minimum_takes_the_place_of_one_that_died() -> None:
    at = cluster(nodes=2)
    add(at, 0, 1, 2)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    bind_planned(at)
    at.delete("g-1")
    at.settle()
    assert set(planned(at)) == {"g-2"}
    bind_planned(at)
    assert at.phase("g") == "running"


def test_a_plan_beyond_the_minimum_that_nobody_binds_is_not_held_for_ever() -> None:
    at = cluster(nodes=3)
    add(at, 0, 1, 2)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    for member in ("g-0", "g-1"):
        at.schedule(member)
    at.settle()
    assert at.free("n3") == 0
    for _ in range(3):
        at.pass_time(TIMEOUT)
    assert at.free("n3") == 8
    assert at.evicted == []
    assert at.phase("g") == "running"


# It does not start in time.


def test_with_too_few_bound_in_time_everything_is_given_back() -> None:
    at = cluster(nodes=4)
    add(at, 0, 1, 2, 3, least=3)
    at.settle()
    for member in ("g-0", "g-1"):
        at.schedule(member)
    at.settle()
    evicted = [each for each in at.pass_time(TIMEOUT) if isinstance(each, Evict)]
    assert [each.pod.name for each in evicted] == ["g-0", "g-1"]
    assert evicted[0].why == ("gang ml/g: not enough members were bound in time (g-2, g-3)")
    assert planned(at) == {}
    assert (at.free("n3"), at.free("n4")) == (8, 8)


def test_of_several_timeouts_the_shortest_counts() -> None:
    at = cluster()
    words = {"gang": "g", "gang_size": "2"}
    at.add_pod("g-0", 8, said=words, rank="0")
    at.add_pod("g-1", 8, said=words, rank="1", gang_timeout="90s")
    at.settle()
    assert at.core.next_due() == at.now + 90.0


def test_with_enough_bound_in_time_those_that_are_late_lose_their_plan_alone() -> None:
    at = cluster(nodes=4)
    add(at, 0, 1, 2, 3)
    at.settle()
    for member in ("g-0", "g-1"):
        at.schedule(member)
    at.settle()
    at.pass_time(TIMEOUT)
    assert at.evicted == []
    assert at.phase("g") == "running"


# It changes its size.


def test_a_gang_that_runs_may_be_made_larger() -> None:
    at = cluster(nodes=4)
    at.add_gang("g", 2)
    at.settle()
    bind_planned(at)
    for rank in (2, 3):
        at.add_pod(f"g-{rank}", 8, gang="g", gang_size="4", gang_min="2", rank=str(rank))
        at.settle()
    assert set(planned(at)) == {"g-2", "g-3"}
    bind_planned(at)
    assert at.phase("g") == "running"


def test_one_of_a_fixed_size_has_no_place_for_more_also_while_it_runs() -> None:
    at = cluster(nodes=4)
    at.add_gang("g", 2)
    at.settle()
    bind_planned(at)
    at.add_pod("g-2", 8, gang="g", gang_size="2", rank="2")
    at.settle()
    assert planned(at) == {}


def test_one_of_any_size_plans_all_that_come() -> None:
    """A PodGroup says how many are enough, and nothing says how many there will be."""
    at = cluster(nodes=4)
    group = owner("scheduling.x-k8s.io/v1alpha1 PodGroup", "spmd", {"minMember": 2})
    at.owners = {ref_of(group): group}
    for name in ("a", "b", "c"):
        body = pod(name, None, {"scheduling.x-k8s.io/pod-group": "spmd"}, gpus=8)
        at.put_pod(msgspec.convert(body, Pod))
        at.settle()
    assert set(planned(at)) == {"a", "b", "c"}
    bind_planned(at)
    (view,) = at.core.gangs(at.now)
    assert (view.phase, view.minimum) == ("running", 2)
    at.delete("c")
    at.settle()
    assert at.core.gangs(at.now)[0].phase == "running"


# After a restart.


def test_a_new_extender_finds_a_gang_with_its_minimum_running_and_lets_it_grow() -> None:
    at = cluster(nodes=2)
    add(at, 0, 1, 2)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    bind_planned(at)
    at.restart()
    at.settle()
    assert at.phase("g") == "running"
    at.pass_time(10 * TIMEOUT)
    assert at.evicted == []
    at.add_node("n3")
    at.settle()
    assert planned(at) == {"g-2": "n3"}


def test_members_bound_together_are_marked_afterwards() -> None:
    at = cluster(nodes=2)
    add(at, 0, 1, 2)
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    orders = [at.begin_bind(member, node) for member, node in planned(at).items()]
    for order in orders:
        assert at.post_binding(order)  # type: ignore[arg-type]
    marks = [each for each in at.settle() if isinstance(each, MarkStarted)]
    assert [each.pod.name for each in marks] == ["g-0"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)])
def test_who_comes_first_changes_nothing(order: tuple[int, ...]) -> None:
    at = cluster(nodes=4)
    add(at, *order, size=5, gpus=5)
    at.settle()
    assert planned(at) == {"g-0": "n1", "g-1": "n2", "g-2": "n3", "g-3": "n4"}
    assert [at.indices(f"g-{rank}") for rank in range(4)] == [at.indices("g-0")] * 4
