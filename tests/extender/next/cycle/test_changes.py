"""When the planner looks at a gang again. A large gang that only makes progress is looked at a
moment after the last look; any other change counts at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest

from linkwise.extender.next.cycle.changes import LARGE_GANG, SECONDS_A_POD
from linkwise.extender.next.gangs.lifecycle import GangLifecycle
from linkwise.extender.state.extender_calls import BindOrder, BindWaits, Outcome
from linkwise.extender.state.records import GangKey
from linkwise.extender.state.timers import Pause
from linkwise.kube.objects import Condition
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.meanwhile import Meanwhile

MOMENT = LARGE_GANG * SECONDS_A_POD
KEY = GangKey("ml", "g")
REFUSED = (Condition("PodScheduled", "False", "Unschedulable", "linkwise: …"),)


def idle(gpus: int = LARGE_GANG) -> Cluster:
    at = Cluster()
    for number in range(gpus // 8):
        at.add_node(f"n{number}")
    return at


def planned(at: Cluster, size: int = LARGE_GANG) -> list[str]:
    members = at.add_gang("g", size, 1)
    at.settle()
    assert at.phase("g") == "planned"
    return members


def running(at: Cluster) -> list[str]:
    members = planned(at)
    for member in members:
        assert at.schedule(member)
    at.settle()
    return members


def marked(at: Cluster) -> list[str]:
    pods = at.pods.values()
    return [p.metadata.name for p in pods if names.STARTED in p.metadata.annotations]


@contextmanager
def counted() -> Iterator[list[GangKey]]:
    """The looks meanwhile."""
    looks: list[GangKey] = []
    reconcile = GangLifecycle.reconcile

    def count(self: GangLifecycle, key: GangKey, now: float, pause: Pause) -> bool:
        looks.append(key)
        return reconcile(self, key, now, pause)

    with patch.object(GangLifecycle, "reconcile", count):
        yield looks


@pytest.mark.parametrize(("size", "least", "most"), [(LARGE_GANG, 4, 7), (LARGE_GANG - 1, 60, 200)])
def test_looks_at_a_large_gang_that_is_bound_are_a_moment_apart(
    size: int, least: int, most: int
) -> None:
    at = idle()
    members = planned(at, size)
    with counted() as looks:
        for member in members[:-1]:
            at.now += MOMENT / 10
            at.settle()
            assert at.schedule(member)
            at.settle()
        assert least <= len(looks) <= most
        at.pass_time(MOMENT)
        due = at.core.next_due()
        assert due is not None
        assert due > at.now + MOMENT


def test_others_use_the_core_while_the_plans_of_a_large_gang_are_judged() -> None:
    at = idle()
    members = planned(at)
    at.pass_time(MOMENT)
    meanwhile, let_in = Meanwhile(at, lambda: at.delete(members[-1])), list[int]()
    with (
        patch("linkwise.extender.next.gangs.lifecycle._AT_ONCE", LARGE_GANG // 4),
        patch.object(GangLifecycle, "publish", lambda *_, **__: let_in.append(meanwhile.times)),
    ):
        at.cordon(at.places(members[0])[0])
        at.core.decide(at.now)
    assert let_in[0] >= 4
    assert at.core.take_defects() == []


def test_a_look_that_is_postponed_comes_by_itself() -> None:
    at = idle()
    members = planned(at)
    at.schedule(members[0])
    at.pass_time(MOMENT)
    at.schedule(members[1])
    at.settle()
    assert at.core.next_due() == pytest.approx(at.now + MOMENT)
    at.pass_time(MOMENT)
    with counted() as looks:
        at.pass_time(MOMENT)
        assert not looks


def test_progress_while_a_gang_forms_is_looked_at_a_moment_later() -> None:
    at = idle()
    with counted() as looks:
        for rank in range(LARGE_GANG + 20):
            said = {"gang": "g", "gang_size": str(2 * LARGE_GANG), "rank": str(rank)}
            at.add_pod(f"g-{rank}", 1, said=said)
            at.settle()
    assert len(looks) == LARGE_GANG


def test_what_kube_scheduler_says_of_waiting_members_is_looked_at_a_moment_later() -> None:
    at = idle()
    at.add_pod("before", 8)
    at.schedule("before")
    members = at.add_gang("g", LARGE_GANG, 1)
    at.settle()
    with counted() as looks:
        for member in members:
            pod = at.pod(member)
            at.put_pod(change(pod, status=change(pod.status, conditions=REFUSED)))
            at.settle()
        assert not looks


def test_only_the_last_binding_of_a_large_gang_brings_the_mark_and_it_runs_at_once() -> None:
    at = idle()
    members = running(at)
    assert marked(at) == [members[-1]]
    assert at.phase("g") == "running"


def test_the_last_binding_brings_the_mark_of_a_job_some_pods_of_which_succeeded() -> None:
    at = idle()
    members = planned(at)
    for member in members[:-2]:
        assert at.schedule(member)
    cache = at.core._cache
    record = cache.pods[at.pod(members[0]).metadata.uid]
    assert record.ask.gang is not None
    done = replace(record.ask.gang, done=1)
    cache.put_pod(replace(record, ask=replace(record.ask, gang=done)))
    at.settle()
    assert at.schedule(members[-2])
    assert marked(at) == [members[-2]]


# Any other change.


def test_a_gang_was_whole_even_if_the_pod_with_the_mark_is_deleted_a_moment_later() -> None:
    at = idle()
    members = running(at)
    at.now += MOMENT / 4
    at.delete(members[-1])
    at.settle()
    assert len(marked(at)) == 1
    at.pass_time(700)
    assert (at.phase("g"), at.evicted) == ("repairing", [])


def test_the_next_run_under_the_same_name_is_planned_although_it_comes_a_moment_later() -> None:
    at = idle(2 * LARGE_GANG)
    members = running(at)
    at.pass_time(1)
    for member in members:
        at.now += MOMENT / LARGE_GANG / 2
        at.set_phase(member, "Succeeded")
        at.settle()
    said = {"gang": "g", "gang_size": str(LARGE_GANG)}
    for rank in range(LARGE_GANG):
        at.add_pod(f"new-{rank}", 1, said={**said, "rank": str(rank)})
    at.settle()
    assert all(at.plan(f"new-{rank}") for rank in range(LARGE_GANG))


def test_a_large_gang_whose_last_pod_comes_is_ahead_of_a_less_important_one() -> None:
    at = idle()
    at.add_pod("before", 8)
    at.schedule("before")
    at.settle()
    said = {"gang": "large", "gang_size": str(LARGE_GANG)}
    for rank in range(LARGE_GANG):
        at.add_pod(f"large-{rank}", 1, priority=100, said={**said, "rank": str(rank)})
        at.settle()
    at.add_gang("small", 2, 4)
    at.delete("before")
    at.settle()
    assert (at.phase("large"), at.phase("small")) == ("planned", "forming")


def test_a_member_that_is_created_again_gets_the_gpu_of_the_old_one() -> None:
    at = idle()
    members = running(at)
    for member in members:
        at.start(member)
    at.settle()
    at.add_gang("small", 1, 1)
    at.pass_time(5)
    node = at.pod(members[5]).spec.node_name
    at.set_phase(members[5], "Failed")
    at.settle()
    at.now += MOMENT / 4
    at.add_pod("again", 1, said={"gang": "g", "gang_size": str(LARGE_GANG), "rank": "5"})
    at.stop(members[5], node)
    at.settle()
    assert at.plan("again") is not None
    assert at.plan("small-0") is None


def test_no_member_is_bound_to_a_plan_of_which_a_node_was_cordoned_a_moment_ago() -> None:
    at = idle()
    members = planned(at)
    at.cordon(at.pod(members[-1]).status.nominated_node_name)
    at.settle()
    assert not any(at.schedule(member) for member in members)


def test_members_that_contradict_each_other_get_no_plan() -> None:
    at = idle()
    at.add_pod("before", 8)
    at.schedule("before")
    at.add_gang("large", LARGE_GANG, 1)
    at.settle()
    at.annotate("large-0", gang_min="1")  # the others say that all are needed
    at.delete("before")
    at.settle()
    assert all(at.plan(pod.metadata.name) is None for pod in at.pods.values())


def test_a_large_gang_that_is_gone_leaves_nothing_to_do() -> None:
    at = idle()
    members = planned(at)
    for member in members:
        at.delete(member)
    at.settle()
    assert at.phase("g") == ""
    assert at.core.next_due() is None
    assert sum(at.free(node) for node in at.nodes) == LARGE_GANG


# What a round follows at once, and what it may follow a moment later.


def orders(at: Cluster, members: list[str]) -> list[BindOrder]:
    """For Bindings of all members at the same time."""
    calls = [(member, at.pod(member).status.nominated_node_name) for member in members]
    answers = [at.come_to_bind(*call) for call in calls]  # all but the last wait for others
    waited = [call for call, answer in zip(calls, answers, strict=True) if answer == BindWaits(KEY)]
    return [
        answer
        for answer in (*answers, *(at.come_to_bind(*call) for call in waited))
        if isinstance(answer, BindOrder)
    ]


def test_a_gang_needs_a_round_at_once_when_it_is_whole_and_none_until_it_runs() -> None:
    at = idle(16)
    at.settle()
    first, last = ({"gang": "g", "gang_size": "2", "rank": rank} for rank in "01")
    at.add_pod("g-0", 8, said=first)
    assert not at.core.any_urgent()
    at.add_pod("g-1", 8, said=last)
    assert at.core.any_urgent()
    actions, _ = at.decide()
    assert len(actions) == 2
    for order in orders(at, ["g-0", "g-1"]):
        assert at.end_bind(order)
        assert not at.core.any_urgent()
    at.decide()
    assert len(marked(at)) == 1  # by a write of its own, as no Binding knew that it is the last
    assert not at.core.any_urgent()


def test_the_labels_that_a_pod_gets_from_its_node_are_no_reason_for_a_round_at_once() -> None:
    at = idle()
    (member, *_) = planned(at)
    pod = at.pod(member)
    plan = at.plan(member)
    assert plan is not None
    labels = {**pod.metadata.labels, "topology.kubernetes.io/zone": "z"}
    pod = change(pod, spec=change(pod.spec, node_name=plan.node))
    at.put_pod(change(pod, metadata=change(pod.metadata, labels=labels)))
    assert not at.core.any_urgent()


def test_a_round_at_once_follows_the_plans_that_gates_and_claims_wait_for() -> None:
    at = idle(16)
    at.add_gang("g", 2, gates=[names.GATE])
    actions = at.core.decide(at.now)
    for action in actions:
        at.carry_out(action)
    at.core.decide(at.now)
    assert not at.core.any_urgent()
    at.core.done(actions[0], Outcome.DONE, at.now)
    assert at.core.any_urgent()


def test_a_round_at_once_follows_more_room_and_what_was_not_decided() -> None:
    at = idle(16)
    at.add_pod("single", 8)
    at.schedule("single")
    members = at.add_gang("g", 2)
    at.settle()
    assert not at.core.any_urgent()
    at.delete("single")
    assert at.core.any_urgent()
    at.settle()
    assert all(at.schedule(member) for member in members)
    at.settle()
    at.set_phase(members[0], "Failed")
    assert at.core.any_urgent()
    at.settle()
    at.add_node("more")
    assert at.core.any_urgent()
    at.settle()
    assert not at.core.any_urgent()


def test_a_single_pod_that_is_placed_as_it_comes_needs_no_round_at_once() -> None:
    at = idle(16)
    at.settle()
    at.add_pod("single", 8)
    assert at.schedule("single")
    assert not at.core.any_urgent()
