"""No member of a gang is bound before all that must start with it come to `bind`."""

from collections.abc import Callable

import msgspec
import pytest

from linkwise.extender.next.gangs.to_come import LEAVING_SECONDS
from linkwise.extender.state.actions import WritePlan
from linkwise.extender.state.extender_calls import (
    AlreadyBound,
    BindCall,
    BindOrder,
    BindRefusal,
    BindWaits,
    Outcome,
)
from linkwise.extender.state.records import WrittenPlan
from linkwise.kube.objects import Condition, Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.pods.podgrouper.pods import owner, pod, ref_of, template

KUBE_SCHEDULER = "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."


def world(nodes: int = 3, gpus: int = 4, size: int = 3, **said: str) -> tuple[Cluster, list[str]]:
    at = Cluster()
    for number in range(nodes):
        at.add_node(f"n{number}")
    members = at.add_gang("g", size, gpus, **said)
    at.settle()
    return at, members


def place(at: Cluster, name: str) -> str:
    plan = at.plan(name)
    assert plan is not None
    return plan.node


def come(at: Cluster, name: str) -> BindOrder | AlreadyBound | BindRefusal | BindWaits:
    at.filter(name, [place(at, name)])
    return at.come_to_bind(name, place(at, name))


def refuse(at: Cluster, name: str, message: str = KUBE_SCHEDULER) -> None:
    """kube-scheduler's own filters leave no node: it writes why, and clears the nomination."""
    pod = at.pod(name)
    told = Condition("PodScheduled", "False", "Unschedulable", message)
    status = change(pod.status, conditions=(told,), nominated_node_name="")
    at.put_pod(change(pod, status=status))


def test_the_last_to_come_lets_all_go() -> None:
    at, members = world()
    waits = [come(at, member) for member in members[:-1]]
    assert all(isinstance(each, BindWaits) for each in waits)
    assert at.core.take_released() == set()
    assert isinstance(come(at, members[-1]), BindOrder)
    (gang,) = at.core.take_released()
    assert gang.name == "g"
    for member in members[:-1]:
        assert isinstance(at.come_to_bind(member, place(at, member)), BindOrder)


def test_who_has_given_up_counts_no_more() -> None:
    at, members = world()
    come(at, members[0])
    at.give_up_bind(members[0], place(at, members[0]))
    come(at, members[1])
    assert isinstance(come(at, members[2]), BindWaits)
    assert isinstance(come(at, members[0]), BindOrder)


def test_all_that_wait_give_up_together_so_that_they_come_again_together() -> None:
    at, members = world()
    for member in members[:2]:
        come(at, member)
    at.give_up_bind(members[0], place(at, members[0]), waited=True)
    assert len(at.core.take_released()) == 1
    assert isinstance(come(at, members[2]), BindWaits), "the second has not asked again yet"
    answer = at.come_to_bind(members[1], place(at, members[1]))
    assert isinstance(answer, BindRefusal)
    at.give_up_bind(members[1], place(at, members[1]))
    assert isinstance(come(at, members[0]), BindWaits)
    assert isinstance(come(at, members[1]), BindOrder)


def test_who_gives_up_in_the_moment_in_which_the_last_one_comes_goes_with_the_others() -> None:
    """Found: three of four were bound, and the first one's call ended as it had waited enough."""
    at, members = world()
    for member in members[:2]:
        come(at, member)
    assert isinstance(come(at, members[2]), BindOrder)
    call = BindCall("ml", members[0], at.pod(members[0]).metadata.uid, place(at, members[0]))
    assert at.core.bind_gave_up(call, at.now) is None
    for member in members[:2]:
        assert isinstance(at.come_to_bind(member, place(at, member)), BindOrder)


def test_a_binding_without_an_answer_is_not_repeated_alone_once_the_other_member_is_gone() -> None:
    at, members = world(nodes=1, size=2)
    come(at, members[0])
    last = come(at, members[1])
    first = at.come_to_bind(members[0], "n0")
    assert isinstance(last, BindOrder)
    assert isinstance(first, BindOrder)
    for order in (first, last):
        at.core.end_bind(order, Outcome.UNKNOWN, at.now)
    again = at.come_to_bind(members[1], "n0")
    assert isinstance(again, BindOrder), "the other one may be bound"
    at.core.end_bind(again, Outcome.UNKNOWN, at.now)
    at.delete(members[0])
    assert isinstance(at.come_to_bind(members[1], "n0"), BindWaits)


def test_a_call_made_twice_counts_once() -> None:
    at, members = world()
    come(at, members[0])
    come(at, members[0])
    assert isinstance(come(at, members[1]), BindWaits)


def test_the_minimum_is_enough_and_the_rest_follows_alone() -> None:
    at, members = world(size=4, gpus=8, nodes=4, gang_min="2")
    assert isinstance(come(at, members[3]), BindWaits)
    first = come(at, members[0])
    assert isinstance(first, BindOrder)
    assert at.post_binding(first)
    at.core.end_bind(first, Outcome.DONE, at.now)
    assert isinstance(come(at, members[1]), BindOrder), "one is bound, so nothing is held"


def test_a_single_pod_does_not_wait() -> None:
    at = Cluster()
    at.add_node("n0")
    at.add_pod("p", 4, gates=(names.GATE,))
    at.settle()
    at.lift("p", names.GATE) if at.gates("p") else None
    assert isinstance(come(at, "p"), BindOrder)


def test_a_member_that_kube_scheduler_takes_nowhere_ends_the_plan_of_all() -> None:
    at, members = world(nodes=2, size=3)
    free = {node: at.free(node) for node in ("n0", "n1")}
    assert sum(free.values()) == 4
    assert isinstance(come(at, members[0]), BindWaits)
    refuse(at, members[2])
    at.settle()
    assert [at.plan(member) for member in members] == [None] * 3
    assert len(at.core.take_released()) == 1
    assert isinstance(at.come_to_bind(members[0], "n0"), BindRefusal)
    assert sum(at.free(node) for node in free) == 16
    told = at.core.explain("ml", members[0], at.now)
    assert told is not None
    assert KUBE_SCHEDULER in str(told)


def test_a_call_of_a_member_that_fits_nowhere_does_not_end_the_pause_of_its_gang() -> None:
    """It would if no call had come because calls were missing."""
    at, members = world(nodes=2, size=3)
    refuse(at, members[2])
    at.settle()
    at.filter(members[2], ["n1"])
    at.settle()
    assert [at.plan(member) for member in members] == [None] * 3


def test_that_a_native_gang_waits_is_no_refusal_of_nodes() -> None:
    at, members = world()
    come(at, members[0])
    refuse(
        at,
        members[1],
        "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, one or "
        "more plugins asked to wait and no plugin rejected pod",
    )
    at.settle()
    assert all(at.places(*members))


def test_a_node_that_takes_one_of_two_gets_one() -> None:
    """Two members are planned on one node. The first is let through; for the second kube-scheduler
    names the other node alone: anti-affinity, or a device of which there is one."""
    at, members = world(nodes=2, size=2)
    assert place(at, members[0]) == place(at, members[1])
    here = place(at, members[0])
    (there,) = {"n0", "n1"} - {here}
    come(at, members[0])
    assert at.filter(members[1], [there]).node_names == ()
    at.settle()
    if place(at, members[0]) == place(at, members[1]) == there:
        come(at, members[0])
        assert at.filter(members[1], [here]).node_names == ()
        at.settle()
    assert {place(at, member) for member in members} == {"n0", "n1"}


def test_what_its_own_binds_give_back_shows_it_nothing_new() -> None:
    at, members = world(nodes=1, size=2)
    come(at, members[0])
    for pause in (2, 10):
        refuse(at, members[1])
        at.settle()
        at.give_up_bind(members[0], "n0")
        at.pass_time(pause - 1)
        assert [at.plan(member) for member in members] == [None] * 2
        at.pass_time(1)
        assert None not in [at.plan(m) for m in members], "it is tried again in any case"
        come(at, members[0])


def test_once_pods_of_the_node_are_gone_it_is_tried_again_within_moments() -> None:
    at = Cluster()
    at.add_node("n0")
    at.add_pod("other", 0, node="n0")
    members = at.add_gang("g", 2, 4)
    at.settle()
    refuse(at, members[1])
    at.settle()
    assert at.plan(members[0]) is None
    at.delete("other")
    at.pass_time(1.1)
    assert at.plan(members[0]) is not None


def test_a_binding_that_is_refused_for_good_ends_the_plan_at_once_and_says_why() -> None:
    at, members = world(nodes=1, size=2)
    come(at, members[0])
    order = come(at, members[1])
    assert isinstance(order, BindOrder)
    why = "linkwise: binding ml/g-1 to n0: 403 Forbidden: no bindings on Fridays"
    at.core.end_bind(order, Outcome.DENIED, at.now, why)
    at.settle()
    assert at.free("n0") == 8
    assert any("no bindings on Fridays" in event.message for event in at.events)
    assert "no bindings on Fridays" in str(at.core.explain("ml", members[0], at.now))
    at.pass_time(5)
    assert at.free("n0") == 8, "nothing has changed, so it rests"


def test_whose_binding_was_refused_for_good_goes_first_the_next_time() -> None:
    """The API server takes the Bindings of the others: only so does no half of the gang run."""
    at, members = world(nodes=1, size=3, gpus=2)
    came = [come(at, member) for member in members]
    assert isinstance(came[-1], BindOrder)
    at.core.end_bind(came[-1], Outcome.DENIED, at.now, "403 Forbidden")
    for member in members[:-1]:
        at.give_up_bind(member, "n0")
    at.settle()
    at.pass_time(60)
    for member in (*members[:-1], members[-1]):
        come(at, member)
    first = at.come_to_bind(members[-1], "n0")
    assert isinstance(first, BindOrder)
    others = [at.come_to_bind(member, "n0") for member in members[:-1]]
    assert all(isinstance(each, BindWaits) for each in others)
    at.core.take_released()
    assert at.post_binding(first)
    at.core.end_bind(first, Outcome.DONE, at.now)
    at.settle()
    assert len(at.core.take_released()) == 1, "the others are to ask again"
    assert all(isinstance(at.come_to_bind(m, "n0"), BindOrder) for m in members[:-1])


def test_a_plan_that_may_not_be_written_is_withdrawn_at_once() -> None:
    at = Cluster()
    at.add_node("n0")
    at.add_gang("g", 2, 4)
    writes = [action for action in at.core.decide(at.now) if isinstance(action, WritePlan)]
    assert len(writes) == 2
    at.core.done(writes[0], Outcome.DONE, at.now)
    at.core.done(writes[1], Outcome.DENIED, at.now)
    at.settle()
    assert at.free("n0") == 8
    told = at.core.explain("ml", "g-0", at.now)
    assert "does not let the plan be written on pod g-1" in str(told)


@pytest.mark.parametrize(("kib", "fits"), [(200, True), (245, False)])
def test_annotations_that_leave_no_room_for_the_plan_are_refused_before_it_is_made(
    kib: int, fits: bool
) -> None:
    at = Cluster()
    at.add_node("n0")
    long = {"note": "x" * (kib << 10)}
    at.add_pod(
        "p",
        4,
        gates=(names.GATE,),
        alter=lambda pod: change(pod, metadata=change(pod.metadata, annotations=long)),
    )
    at.settle()
    assert (at.plan("p") is not None) is fits
    if not fits:
        assert "annotations of 245 KiB: expected 240 KiB at most" in str(
            at.core.explain("ml", "p", at.now)
        )


def test_a_bind_of_an_unknown_pod_does_not_wait() -> None:
    at, _ = world()
    answer = at.core.begin_bind(BindCall("ml", "x", "none", "n0"), at.now)
    assert isinstance(answer, BindRefusal)


def test_the_members_of_a_large_gang_may_need_longer_than_a_call_waits() -> None:
    """By the time when the last one comes, the first has given up, and counts for a while."""
    at, members = world(nodes=10, size=66, gpus=1)
    for member in members[:-1]:
        assert isinstance(come(at, member), BindWaits)
    first = members[0]
    at.give_up_bind(first, place(at, first), waited=True)
    at.now += 20
    assert isinstance(come(at, members[-1]), BindOrder)


def test_who_gave_up_long_ago_does_not_count() -> None:
    at, members = world(nodes=10, size=66, gpus=1)
    first, *others, last = members
    for member in (first, *others):
        come(at, member)
    at.give_up_bind(first, place(at, first), waited=True)
    at.now += 31
    assert isinstance(come(at, last), BindWaits)


def test_who_gave_up_by_an_earlier_plan_does_not_count() -> None:
    at, members = world(nodes=10, size=66, gpus=1)
    *others, last = members
    for member in others:
        come(at, member)
    at.give_up_bind(others[0], place(at, others[0]), waited=True)
    before = at.plan(others[0])
    for member in others:
        at.give_up_bind(member, place(at, member))
    refuse(at, last)
    at.settle()
    at.pass_time(10)
    assert at.plan(others[0]) not in (before, None)
    assert isinstance(come(at, last), BindWaits)


# Who is there already.


def served(at: Cluster) -> list[str]:
    """A leader that runs, and two workers of LeaderWorkerSet that exist only because it does."""
    at.add_node("n0")
    members = [put_member(at, rank) for rank in range(1)]
    assert at.schedule(members[0]) == "n0"
    return members + [put_member(at, rank) for rank in range(1, 3)]


def put_member(at: Cluster, rank: int, uid: str = "") -> str:
    lws = owner(
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        "vllm",
        {"startupPolicy": "LeaderReady", "leaderWorkerTemplate": {"workerTemplate": template(2)}},
    )
    at.owners = {ref_of(lws): lws}
    prefix = "leaderworkerset.sigs.k8s.io/"
    labels = {"name": "vllm", "group-index": "0", "worker-index": str(rank)}
    labels = {prefix + key: said for key, said in labels.items()}
    name, by = f"vllm-0-{rank}", owner("apps/v1 StatefulSet", "vllm")
    made = msgspec.convert(pod(name, by, labels, {prefix + "size": "3"}, 2), Pod)
    at.put_pod(change(made, metadata=change(made.metadata, uid=uid or made.metadata.uid)))
    at.settle()
    at.pass_time(60)
    return name


def test_the_members_of_a_later_wave_wait_for_each_other() -> None:
    at = Cluster()
    members = served(at)
    assert isinstance(come(at, members[1]), BindWaits)
    assert isinstance(come(at, members[2]), BindOrder)


def test_if_the_leader_is_made_again_before_the_start_all_wait_for_each_other() -> None:
    at = Cluster()
    members = served(at)
    assert isinstance(come(at, members[1]), BindWaits)
    at.delete(members[0])
    at.settle()
    put_member(at, 0, "made-again")
    assert isinstance(at.come_to_bind(members[1], "n0"), BindWaits)
    assert isinstance(come(at, members[0]), BindWaits)
    assert isinstance(come(at, members[2]), BindOrder)
    assert isinstance(at.come_to_bind(members[0], "n0"), BindOrder)
    assert isinstance(at.come_to_bind(members[1], "n0"), BindOrder)


def test_members_that_come_before_a_new_process_has_looked_at_their_gang_wait_until_it_has() -> (
    None
):
    at, members = world()
    places = at.places(*members)
    at.restart()
    answers = [at.come_to_bind(*each) for each in zip(members, places, strict=True)]
    assert all(isinstance(each, BindWaits) for each in answers)
    at.settle()
    assert len(at.core.take_released()) == 1
    answers = [at.come_to_bind(*each) for each in zip(members, places, strict=True)]
    assert all(isinstance(each, BindOrder) for each in answers)


MOVES: dict[str, Callable[[Cluster, str], object]] = {
    "cordoned": lambda at, node: at.cordon(node),
    "removed": lambda at, node: at.remove_node(node),
    "unready": lambda at, node: at.set_ready(node, ready=False),
    "a GPU is unhealthy": lambda at, node: at.set_health(node, 0),
}


@pytest.mark.parametrize("how", MOVES)
def test_a_member_whose_plan_moves_to_another_node_has_not_come(how: str) -> None:
    at, members = world(nodes=4, gpus=8)
    for member in members[:2]:
        come(at, member)
    before = place(at, members[1])
    MOVES[how](at, before)
    at.settle()
    assert place(at, members[1]) != before
    assert isinstance(come(at, members[2]), BindWaits)
    assert len(at.core.take_released()) == 1, "the call for the old node ends now"
    assert isinstance(at.come_to_bind(members[1], before), BindRefusal)
    at.give_up_bind(members[1], before)
    assert isinstance(come(at, members[1]), BindOrder)


def test_a_call_for_another_node_takes_the_place_of_one_that_has_ended_in_vain() -> None:
    """kube-scheduler may call again before it is noticed that it has given the first call up."""
    at, members = world(nodes=4, gpus=8)
    come(at, members[1])
    before = place(at, members[1])
    at.cordon(before)
    at.settle()
    assert isinstance(come(at, members[1]), BindWaits)
    assert isinstance(come(at, members[0]), BindWaits)
    assert isinstance(come(at, members[2]), BindOrder)


def test_a_plan_that_has_moved_since_the_last_look_does_not_count() -> None:
    """Others use the core while a long search of the same round runs."""
    at, members = world(nodes=4, gpus=8)
    for member in members[:2]:
        come(at, member)
    uid, cache = at.pod(members[1]).metadata.uid, at.core._cache
    (free,) = {*at.nodes} - {*at.places(*members)}
    plan = change(cache.plans[uid].plan, node=free)
    cache.plan(uid, WrittenPlan(plan, {"main": at.uuids(free, *range(8))}))
    assert isinstance(come(at, members[2]), BindWaits)


def denied(at: Cluster, name: str) -> None:
    order = at.come_to_bind(name, place(at, name))
    assert isinstance(order, BindOrder)
    at.core.end_bind(order, Outcome.DENIED, at.now, "403 Forbidden")
    at.settle()


def test_a_member_whose_binding_was_refused_holds_no_other_back_once_it_has_no_plan() -> None:
    at, members = world(gpus=8, gang_min="2")
    come(at, members[2])
    other = come(at, members[1])
    assert isinstance(other, BindOrder)
    denied(at, members[2])
    at.core.end_bind(other, Outcome.REFUSED, at.now)
    at.remove_node("n2")
    at.pass_time(60)
    assert at.places(*members) == ["n0", "n1", ""]
    assert isinstance(come(at, members[0]), BindWaits)
    assert isinstance(come(at, members[1]), BindOrder)


def test_a_member_whose_binding_was_refused_holds_no_repair_back() -> None:
    at, members = world(gpus=8, gang_min="2")
    for member in members[:2]:
        at.bind(member, place(at, member))
    at.settle()
    come(at, members[2])
    denied(at, members[2])
    at.delete(members[0])
    at.add_pod(members[0], 8, said={"gang": "g", "gang_size": "3", "gang_min": "2", "rank": "0"})
    at.settle()
    at.pass_time(120)
    assert at.plan(members[2]) is not None
    assert isinstance(come(at, members[0]), BindOrder)


def test_a_call_is_forgotten_when_its_pod_joins_another_gang() -> None:
    at, members = world()
    come(at, members[0])
    at.annotate(members[0], gang="h", gang_size="2")
    at.settle()
    at.come_to_bind(members[0], "n0")
    come(at, members[1])
    assert isinstance(come(at, members[2]), BindWaits)


def test_a_binding_without_an_answer_counts_once_when_it_is_asked_for_again() -> None:
    at, members = world(nodes=1, size=2)
    come(at, members[0])
    for order in (come(at, members[1]), at.come_to_bind(members[0], "n0")):
        assert isinstance(order, BindOrder)
        at.core.end_bind(order, Outcome.UNKNOWN, at.now)
    at.set_phase(members[1], "Failed")
    assert isinstance(at.come_to_bind(members[0], "n0"), BindWaits)


def test_members_of_an_earlier_run_that_are_leaving_begin_nothing() -> None:
    at, members = world(nodes=2, size=2, gpus=8)
    for member in members:
        at.bind(member, place(at, member))
    at.settle()
    for member in members:
        at.terminate(member)
        at.stop(member, at.pod(member).spec.node_name)
    for node in ("n2", "n3"):
        at.add_node(node)
    for rank in range(2):
        at.add_pod(f"new-{rank}", 8, gang="g", gang_size="2", rank=str(rank))
    at.settle()
    at.pass_time(LEAVING_SECONDS)
    assert isinstance(come(at, "new-0"), BindWaits)
    assert isinstance(come(at, "new-1"), BindOrder)


@pytest.mark.parametrize("node", ["", "n0"])
def test_a_launcher_without_gpus_counts_and_begins_nothing(node: str) -> None:
    at = Cluster()
    at.add_node("n0")
    words = {"gang": "g", "gang_size": "3"}
    at.add_pod("launcher", said=words, node=node)
    for name in ("a", "b"):
        at.add_pod(name, 4, said=words)
    at.settle()
    assert isinstance(come(at, "a"), BindWaits)
    assert isinstance(come(at, "b"), BindOrder)


def test_a_member_that_has_succeeded_counts() -> None:
    at, members = world(size=3)
    first, *others = members
    for member in members:
        at.bind(member, place(at, member))
        at.start(member)
    at.settle()
    at.set_phase(first, "Succeeded")
    for rank, member in enumerate(others, 1):
        at.delete(member)
        at.add_pod(f"again-{rank}", 4, gang="g", gang_size="3", rank=str(rank))
    at.settle()
    at.pass_time(LEAVING_SECONDS)
    assert isinstance(come(at, "again-1"), BindWaits)
    assert isinstance(come(at, "again-2"), BindOrder)
