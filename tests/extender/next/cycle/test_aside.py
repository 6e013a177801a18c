"""While room is sought for a gang others use the core: what they do then is not lost, and no plan
comes of what was true before.
"""

from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.cycle import allocate, changes
from linkwise.extender.next.gangs import lifecycle
from linkwise.extender.state.actions import WritePlan
from linkwise.extender.state.timers import run_inline
from tests.extender.cluster import Cluster, change
from tests.extender.meanwhile import Meanwhile


def cluster(nodes: int = 3) -> Cluster:
    at = Cluster()
    for number in range(nodes):
        at.add_node(f"n{number}", "hgx-h100")
    return at


def test_others_are_let_in_once_for_a_gang() -> None:
    at = cluster()
    meanwhile = Meanwhile(at)
    members = at.add_gang("g", 2, 8)
    at.settle()
    assert at.places(*members) == ["n0", "n1"]
    assert meanwhile.times == 1


def test_gpus_that_somebody_took_meanwhile_are_not_planned() -> None:
    at = cluster()
    meanwhile = Meanwhile(at, lambda: at.add_pod("quick", 1, node="n0"))
    members = at.add_gang("g", 2, 8)
    at.settle()
    assert at.places(*members) == ["n1", "n2"]
    assert meanwhile.times == 2
    assert at.sound()


def test_who_is_asked_about_meanwhile_is_answered_and_can_be_bound() -> None:
    at = cluster()
    single = at.add_pod("single", 8)

    def bind() -> None:
        assert at.filter("single").node_names
        at.bind(single.metadata.name, "n0")

    Meanwhile(at, bind)
    members = at.add_gang("g", 2, 8)
    at.settle()
    assert at.places(*members) == ["n1", "n2"]
    assert at.sound()


def test_cpu_that_somebody_took_meanwhile_is_not_planned_either() -> None:
    at = cluster()
    Meanwhile(at, lambda: at.add_pod("hungry", 0, cpu="96", node="n0"))
    members = at.add_gang("g", 2, 8)
    at.settle()
    assert at.places(*members) == ["n1", "n2"]
    assert at.sound()


def test_a_node_that_was_cordoned_meanwhile_is_not_taken() -> None:
    at = cluster()
    Meanwhile(at, lambda: at.cordon("n1"))
    members = at.add_gang("g", 2, 8)
    at.settle()
    assert at.places(*members) == ["n0", "n2"]


def test_a_gang_that_loses_a_member_meanwhile_waits_until_it_is_whole_again() -> None:
    at = cluster()
    Meanwhile(at, lambda: at.delete("g-1"))
    at.add_gang("g", 2, 8)
    at.settle()
    assert at.places("g-0") == [""]
    at.add_pod("g-1", 8, gang="g", gang_size="2", rank="1")
    at.settle()
    assert at.places("g-0", "g-1") == ["n0", "n1"]
    assert at.core.take_defects() == []


def test_a_gang_that_goes_away_meanwhile_leaves_nothing() -> None:
    at = cluster()
    members = at.add_gang("g", 2, 8)

    def delete() -> None:
        for member in members:
            at.delete(member)

    Meanwhile(at, delete)
    at.settle()
    at.settle()  # as after any event
    assert at.core.gangs(at.now) == ()
    assert [at.free(f"n{number}") for number in range(3)] == [8, 8, 8]
    assert at.core.take_defects() == []
    assert at.sound()


def test_another_gang_that_loses_a_member_meanwhile_is_not_planned_half() -> None:
    at = cluster(nodes=4)
    first, second = at.add_gang("a", 2, 8), at.add_gang("b", 2, 8)
    Meanwhile(at, lambda: at.delete("b-0"))
    at.settle()
    assert at.places(*first) == ["n0", "n1"]
    assert at.places(second[1]) == [""]
    at.add_pod("b-0", 8, gang="b", gang_size="2", rank="0")
    at.settle()
    assert at.places(*second) == ["n2", "n3"]


def test_another_gang_whose_pods_contradict_each_other_meanwhile_gets_no_plan() -> None:
    at = cluster(nodes=4)
    at.add_gang("a", 2, 8)
    second = at.add_gang("b", 2, 8)
    Meanwhile(at, lambda: at.annotate("b-0", gang_size="3"))
    written = [each.pod.name for each in at.settle() if isinstance(each, WritePlan)]
    assert written == ["a-0", "a-1"]
    at.annotate("b-0", gang_size="2")
    at.settle()
    assert at.places(*second) == ["n2", "n3"]


def test_a_gang_of_which_a_pod_changes_meanwhile_is_sought_again() -> None:
    at = cluster()
    Meanwhile(at, lambda: at.nominate("g-0", "n2"))
    members = at.add_gang("g", 2, 8)
    at.settle()
    assert at.places(*members) == ["n0", "n1"]


@pytest.mark.parametrize("size", [2, 65])
@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_a_gang_that_changes_during_each_search_is_sought_again_once_it_rests(
    size: int, times: int
) -> None:
    """Found: a gang of 512 whose pods were still being tried waited forever beside idle nodes."""
    at = cluster(nodes=9)
    members = at.add_gang("g", size, 1)
    Meanwhile(at, *(partial(at.nominate, f"g-{n % size}", f"n{n}") for n in range(times)))
    at.settle()
    for _ in range(2 * times):  # looks at a large gang that only progresses are postponed
        at.pass_time(1.0)
    assert all(at.places(*members))


@pytest.mark.parametrize("changed", ["a-0", "b-0"])
def test_none_passes_a_gang_that_changes_meanwhile(changed: str) -> None:
    """Found: a younger pod got the node for which an older gang waited, in 6 of 32 worlds."""
    at = cluster(nodes=2)
    names = ("a", "b", "c")
    for name in names:
        at.add_gang(name, 2, 4)
        at.now += 1.0
    Meanwhile(at, lambda: at.nominate(changed, "n9"))
    at.settle()
    placed = [name for name in names if all(at.places(f"{name}-0", f"{name}-1"))]
    assert placed == ["a", "b"]


def test_a_node_that_moves_to_another_domain_meanwhile_breaks_no_required_span() -> None:
    at = Cluster()
    for number, rack in enumerate("aabb"):
        at.add_node(f"n{number}", "hgx-h100", labels={"rack": rack})
    moved = at.nodes["n1"]
    labels = {**moved.metadata.labels, "rack": "c"}
    away = change(moved, metadata=change(moved.metadata, labels=labels))
    Meanwhile(at, lambda: at.put_node(away))
    members = at.add_gang("g", 2, 8, require_span="rack")
    at.settle()
    assert at.places(*members) == ["n2", "n3"]


def test_room_that_came_meanwhile_is_not_overlooked() -> None:
    at = cluster()
    at.add_pod("tenant", 8, node="n0")
    Meanwhile(at, lambda: at.delete("tenant"))
    members = at.add_gang("g", 3, 8)
    at.settle()
    assert at.places(*members) == ["n0", "n1", "n2"]


def test_a_gang_that_changes_while_there_is_no_room_is_tried_again() -> None:
    at = cluster(nodes=2)
    members = at.add_gang("g", 3, 8)
    Meanwhile(at, lambda: at.annotate("g-2", gang_size="2"), lambda: None)
    at.settle()
    at.delete("g-2")
    for member in members[:2]:
        at.annotate(member, gang_size="2")
    at.settle()
    assert at.places("g-0", "g-1") == ["n0", "n1"]


def test_who_is_disturbed_again_and_again_lets_nobody_in_any_more() -> None:
    at = cluster(nodes=8)
    disturb = (partial(at.add_pod, f"quick-{n}", 1, node=f"n{n}") for n in range(8))
    meanwhile = Meanwhile(at, *disturb)
    members = at.add_gang("g", 2, 8)
    at.settle()
    assert at.places(*members) == ["n2", "n3"]
    assert meanwhile.times == 2
    assert at.sound()


def test_a_large_gang_lets_others_in_between_its_plan_and_its_writes_too() -> None:
    at = cluster(nodes=9)
    meanwhile = Meanwhile(at, lambda: None, lambda: None, lambda: at.delete("g-3"))
    members = at.add_gang("g", 64, 1)
    assert at.filter("g-0").node_names == ()
    at.settle()
    assert meanwhile.times == 3
    at.add_pod("g-3", 1, gang="g", gang_size="64", rank="3")
    at.settle()
    assert len(set(at.places(*members))) == 8
    assert at.sound()


def test_gpus_that_somebody_took_while_many_plans_were_worked_out_are_not_planned() -> None:
    at = cluster(nodes=9)
    Meanwhile(at, lambda: None, lambda: at.add_pod("quick", 8, node="n0"))
    members = at.add_gang("g", 64, 1)
    written = {each.node for each in at.settle() if isinstance(each, WritePlan)}
    assert written == {*at.places(*members)} == {f"n{number}" for number in range(1, 9)}
    assert at.sound()


def test_a_large_gang_that_loses_a_member_while_its_plans_were_worked_out_gets_none() -> None:
    at = cluster(nodes=9)
    Meanwhile(at, lambda: None, lambda: at.delete("g-3"))
    members = at.add_gang("g", 64, 1)
    assert at.settle() == []
    at.add_pod("g-3", 1, gang="g", gang_size="64", rank="3")
    at.settle()
    assert len(set(at.places(*members))) == 8
    assert at.core.take_defects() == []


@pytest.mark.parametrize(
    "happens",
    [
        lambda at: at.remove_node("n0"),
        lambda at: at.add_pod("quick", 1, node="n0"),
    ],
    ids=["the node is gone", "a GPU is taken"],
)
def test_spots_that_are_lost_while_more_are_sought_are_not_planned(
    happens: Callable[[Cluster], object],
) -> None:
    """Found: room for two, then in vain for a third; by then a spot of the two was lost."""
    at = cluster(nodes=2)
    meanwhile = Meanwhile(at, lambda: None, lambda: None, lambda: happens(at))
    members = at.add_gang("g", 4, 8, gang_min="1")
    written = [action.node for action in at.settle() if isinstance(action, WritePlan)]
    assert written == ["n1"]
    assert at.places(*members) == ["n1", "", "", ""]
    assert at.core.take_defects() == []
    assert meanwhile.times == 3


def test_thousands_of_members_are_looked_at_some_at_a_time() -> None:
    at = cluster(nodes=128)
    meanwhile = Meanwhile(at)
    at.add_gang("g", 1024, 1)
    at.core.decide(at.now)
    assert meanwhile.times >= 6


def test_hundreds_of_gangs_are_looked_at_some_at_a_time() -> None:
    """No search is needed to know that gangs of two nodes have no room on one."""
    at = cluster(nodes=1)
    at.add_pod("short", 1, node="n0")
    for number in range(300):
        at.add_gang(f"g{number}", 2, 8)
    at.settle()
    meanwhile = Meanwhile(at)
    at.delete("short")
    at.core.decide(at.now)
    assert meanwhile.times >= 300 * 3 // 512
    assert at.sound()


def test_a_list_of_thousands_of_pods_and_nodes_is_taken_in_some_at_a_time() -> None:
    at = cluster(nodes=320)
    pods = [at.add_pod(f"p-{number}", 1) for number in range(640)]
    meanwhile = Meanwhile(at)
    at.core.replace_nodes(at.nodes.values(), at.now)
    once = 320 // 64
    assert meanwhile.times == 2 * once  # which there are, and each of them
    at.core.replace_pods(pods[320:], at.now)
    assert meanwhile.times == (2 + 3) * once  # the same, and 320 are gone
    assert len(at.core.snapshot(at.now).pods) == 320
    assert at.core.audit() == []


EVENTS = st.sampled_from(["take", "free", "cordon", "uncordon", "lose", "grow", "bind", "nothing"])


@pytest.mark.parametrize(("many", "very_many"), [(1, 1), (1, 512), (64, 512)])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    happenings=st.lists(st.lists(EVENTS, max_size=3), max_size=6),
    sizes=st.lists(st.integers(1, 3), max_size=4),
)
def test_whatever_happens_meanwhile_the_books_stay_sound_and_whoever_can_go_goes(
    many: int, very_many: int, happenings: list[list[str]], sizes: list[int]
) -> None:
    with (
        patch.object(allocate, "_MANY", many),
        patch.object(changes, "_VERY_MANY", very_many),
        patch.object(lifecycle, "_AT_ONCE", very_many),
    ):
        whoever_can_go_goes(happenings, sizes)


def happen(at: Cluster, made: Iterator[int], events: list[str]) -> None:
    for event in events:
        number = next(made)
        tenants = [p.metadata.name for p in at.pods.values() if p.spec.node_name]
        waiting = [
            p.metadata.name
            for p in at.pods.values()
            if not p.spec.node_name and p.metadata.name.startswith("g")
        ]
        match event:
            case "take":
                at.add_pod(f"t-{number}", 1 + number % 4)
                at.schedule(f"t-{number}")
            case "free" if tenants:
                at.delete(tenants[0])
            case "cordon" | "uncordon":
                node = at.nodes[f"n{number % 4}"]
                spec = change(node.spec, unschedulable=event == "cordon")
                at.put_node(change(node, spec=spec))
            case "lose" if waiting:
                at.delete(waiting[-1])
            case "bind" if waiting:
                at.schedule(waiting[0])
            case "grow":
                at.add_pod(f"s-{number}", 8, gang=f"g{number}", gang_size="1")


def whoever_can_go_goes(happenings: list[list[str]], sizes: list[int]) -> None:
    at = cluster(nodes=4)
    at.settings = CoreSettings(reserve_share=0)  # a new one would decide reservations again
    at.restart()
    made = iter(range(1000))
    Meanwhile(at, *(partial(happen, at, made, events) for events in happenings))
    for number, size in enumerate(sizes):
        at.add_gang(f"g{number}", size, 8)
    for _ in range(len(happenings) + 1):  # a change that comes in a round wakes the next one
        at.settle()
    at.core.set_unlocker(run_inline)  # the audit lets others in too
    assert at.sound()
    assert at.core.take_defects() == []
    before = {pod.metadata.name: at.plan(pod.metadata.name) for pod in at.pods.values()}
    # Nothing was overlooked: an extender that starts now finds no more to do.
    at.restart()
    at.settle()
    assert {pod.metadata.name: at.plan(pod.metadata.name) for pod in at.pods.values()} == before
