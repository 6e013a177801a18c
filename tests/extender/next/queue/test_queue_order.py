"""Which of those that wait goes first: by age, or by age, run time and size, within a bound."""

from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.queue import scheduling_queue
from linkwise.extender.next.queue.run_times import ENOUGH, LEAST_SECONDS, MANY
from linkwise.extender.next.queue.scheduling_queue import Ordering, QueueOrder, most_passed
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.actions import PodRef
from linkwise.extender.state.records import GangKey, PodRecord, ResourceList
from linkwise.kube.objects import Condition, OwnerReference, Pod
from linkwise.pods.annotations import NOTHING_SAID
from tests.extender.cluster import Cluster, change

HOUR = 3600.0
TURNED_AWAY = (
    Condition("PodScheduled", "False", "Unschedulable", "0/1: 1 Insufficient nvidia.com/gpu."),
)
JOB = PodRecord(
    ref=PodRef("ml", "p", "uid"),
    node="",
    ended=False,
    failed=False,
    leaving=False,
    priority=0,
    created=0.0,
    needs=ResourceList(gpus=1),
    owner_kind="Job",
)
MULTIFACTOR = Ordering(QueueOrder.MULTIFACTOR, {("ml", "Job", "1"): 2 * HOUR, ("ml",): 60.0})

pods = st.builds(
    lambda name, gpus, said, endless, priority, created: replace(
        JOB,
        ref=PodRef("ml", name, name),
        needs=ResourceList(gpus=gpus),
        ask=replace(NOTHING_SAID, expected_seconds=said),
        endless=endless,
        priority=priority,
        created=created,
    ),
    st.sampled_from("abcdef"),
    st.integers(0, 1024),
    st.none() | st.floats(1.0, 1e7),
    st.booleans(),
    st.integers(0, 1),
    st.integers(0, 10**7).map(float),  # the API server writes whole seconds
)
orderings = st.builds(
    Ordering, st.sampled_from(QueueOrder), st.dictionaries(st.just(("ml",)), st.floats(0.0, 1e7))
)


def test_by_age_nothing_counts_but_the_creation() -> None:
    large = replace(JOB, needs=ResourceList(gpus=64), created=7.0)
    assert Ordering().of_single(large) == (0, 7.0, GangKey("ml", "p", "uid"))


@settings(deadline=None)
@given(orderings, pods, pods)
def test_priority_goes_first(ordering: Ordering, one: PodRecord, other: PodRecord) -> None:
    if one.priority != other.priority:
        more_urgent = ordering.of_single(one) < ordering.of_single(other)
        assert more_urgent == (one.priority > other.priority)


@settings(deadline=None)
@given(orderings, pods, pods, st.integers(1, 10**6))
def test_nothing_that_comes_later_than_the_bound_goes_before(
    ordering: Ordering, early: PodRecord, late: PodRecord, later_by: int
) -> None:
    created = early.created + most_passed(late.needs.gpus) + later_by
    late = replace(late, created=created, priority=early.priority)
    assert ordering.of_single(early) < ordering.of_single(late)


@settings(deadline=None)
@given(orderings, pods, pods)
def test_pods_that_request_the_same_are_in_the_order_of_their_age(
    ordering: Ordering, one: PodRecord, other: PodRecord
) -> None:
    other = replace(one, ref=other.ref, created=other.created)
    if one.created < other.created:
        assert ordering.of_single(one) < ordering.of_single(other)


def test_longer_pods_count_as_younger_and_larger_ones_as_older() -> None:
    assert MULTIFACTOR.shift([JOB]) == 20 * HOUR
    assert MULTIFACTOR.shift([replace(JOB, owner_kind="Other")]) == 600.0  # of its namespace
    assert Ordering(QueueOrder.MULTIFACTOR).shift([JOB]) == 10 * LEAST_SECONDS
    said = replace(JOB, ask=replace(NOTHING_SAID, expected_seconds=360.0))
    assert MULTIFACTOR.shift([said]) == HOUR
    assert replace(MULTIFACTOR, broken=frozenset({"ml"})).shift([said]) == 20 * HOUR
    assert MULTIFACTOR.shift([replace(said, needs=ResourceList(gpus=2))] * 4) == HOUR - 144 * HOUR


def test_what_runs_for_very_long_or_for_ever_counts_as_four_hours() -> None:
    server = replace(JOB, endless=True)
    long = replace(JOB, ask=replace(NOTHING_SAID, expected_seconds=1e6))
    assert MULTIFACTOR.shift([server]) == MULTIFACTOR.shift([long]) == 40 * HOUR


# In the core.


def of(kind: str) -> Callable[[Pod], Pod]:
    """Make a pod one that kube-scheduler has refused, with an owner of this kind."""

    def alter(pod: Pod) -> Pod:
        owner = OwnerReference(kind=kind, name=kind, uid=kind, controller=True)
        pod = change(pod, metadata=change(pod.metadata, owner_references=(owner,)))
        return change(pod, status=change(pod.status, conditions=TURNED_AWAY))

    return alter


def full(order: QueueOrder, nodes: int = 1) -> Cluster:
    """Nodes of 8 GPUs, each in use by pod `all-NODE`. Pods of kind Short ran for a minute, of kind
    Long for two hours."""
    at = Cluster(CoreSettings(queue_order=order))
    for number in range(nodes):
        at.add_node(f"n{number}", "hgx-h100")
    for kind, seconds in (("Short", 60), ("Long", 7200)):
        for gpus in (1, 8):
            for number in range(MANY):
                name = f"{kind}-{gpus}-{number}"
                at.add_pod(name, gpus, alter=of(kind))
                at.bind(name, "n0")
                at.set_phase(name, "Running")
                at.pass_time(seconds)
                at.delete(name)
    for number in range(nodes):
        at.add_pod(f"all-{number}", 8)
        at.bind(f"all-{number}", f"n{number}")
    at.pass_time(700)
    return at


def wait(at: Cluster, name: str, gpus: int, kind: str) -> None:
    at.add_pod(name, gpus, alter=of(kind))
    at.settle()
    at.pass_time(1)


def _record(at: Cluster, name: str) -> PodRecord:
    return at.core.snapshot(at.now).by_uid[at.pod(name).metadata.uid]


def planned(at: Cluster) -> set[str]:
    there = [pod.metadata.name for pod in at.pods.values() if not pod.spec.node_name]
    return {name for name in there if at.plan(name) is not None}


def test_a_short_pod_of_one_gpu_goes_before_a_long_one_that_waits_for_longer() -> None:
    at = full(QueueOrder.MULTIFACTOR)
    for number in range(8):
        wait(at, f"long-{number}", 1, "Long")
    for number in range(8):
        wait(at, f"short-{number}", 1, "Short")
    at.delete("all-0")
    at.settle()
    assert planned(at) == {f"short-{number}" for number in range(8)}
    assert not at.schedule("long-0")


def test_by_age_pods_of_one_gpu_stay_in_kube_schedulers_queue() -> None:
    at = full(QueueOrder.AGE)
    wait(at, "long", 1, "Long")
    wait(at, "short", 1, "Short")
    at.delete("all-0")
    at.settle()
    assert planned(at) == set()
    assert at.schedule("long") == "n0"


def test_pods_of_one_gpu_get_no_reservation() -> None:
    at = full(QueueOrder.MULTIFACTOR)
    wait(at, "one", 1, "Long")
    assert at.core.reservations.all() == []
    wait(at, "two", 2, "Long")
    assert [held.key.name for held in at.core.reservations.all()] == ["two"]


def test_the_largest_gets_the_reservation_though_it_came_last() -> None:
    at = full(QueueOrder.MULTIFACTOR, nodes=2)
    wait(at, "small", 2, "Short")
    at.add_gang("large", 2, 8)
    at.settle()
    at.pass_time(31)
    assert next(held.key.name for held in at.core.reservations.all()) == "large"
    at.delete("all-0")
    at.settle()
    assert planned(at) == set()
    at.delete("all-1")
    at.settle()
    assert planned(at) == {"large-0", "large-1"}


def test_what_was_learnt_meanwhile_counts_and_a_reservation_stays_its_gangs_own() -> None:
    at = full(QueueOrder.MULTIFACTOR, nodes=2)
    wait(at, "first", 8, "New")
    wait(at, "second", 8, "Short")
    assert [held.key.name for held in at.core.reservations.all()] == ["second"]
    for number in range(ENOUGH):
        at.core._run_times.ended(_record(at, "first"), 1.0 + number)
    at.pass_time(700)
    order = Explainer(at.core.snapshot(at.now)).everything().order
    assert order[:2] == ("pod ml/first", "pod ml/second")
    at.delete("all-0")
    at.settle()
    assert planned(at) == {"first"}


def test_a_new_order_counts_at_once() -> None:
    at = full(QueueOrder.MULTIFACTOR)
    wait(at, "first", 8, "New")
    wait(at, "second", 8, "Short")
    queue = at.core._planner.queue

    def order() -> list[str]:
        return [each.key.name for each in queue.in_order()]

    assert order() == ["second", "first"]
    for number in range(ENOUGH):
        at.core._run_times.ended(_record(at, "first"), 1.0 + number)
    assert order() == ["second", "first"]
    assert queue.reorder(at.now + 700)
    assert order() == ["first", "second"]


def test_the_order_is_kept_until_something_changes_it() -> None:
    at = full(QueueOrder.AGE)
    gang = {"gang": "first", "gang-size": "2"}
    for name in ("first-0", "first-1"):
        at.add_pod(name, 8, priority=5, said=gang)
    at.add_pod("second", 8, priority=3, alter=of("Long"))
    at.settle()
    queue = at.core._planner.queue
    kept, aside = queue.in_order(), queue.without_room()
    assert [each.key.name for each in kept] == [each.key.name for each in aside]
    assert [each.key.name for each in kept] == ["first", "second"]
    at.settle()
    assert queue.in_order() is kept
    at.add_pod("first-2", 8, priority=0, said=gang)  # a gang is as important as its least member
    assert [each.key.name for each in queue.in_order()] == ["second", "first"]
    queue.forget(kept[0].key)  # what its last search found
    assert [each.key.name for each in queue.without_room()] == ["second"]


def test_one_run_of_weeks_counts_as_four_hours_among_short_ones() -> None:
    at = full(QueueOrder.MULTIFACTOR)
    wait(at, "first", 8, "New")
    for seconds in (HOUR, HOUR, 500 * HOUR):
        at.core._run_times.ended(_record(at, "first"), seconds)
    at.pass_time(700)
    ordering = at.core.snapshot(at.now).ordering
    assert ordering.size_and_run_time([_record(at, "first")]) == (8, 2 * HOUR)


def test_a_gang_that_falls_back_keeps_what_is_reserved_for_it() -> None:
    at = full(QueueOrder.MULTIFACTOR)
    wait(at, "one", 8, "Short")
    assert [held.key.name for held in at.core.reservations.all()] == ["one"]
    for _ in range(3 * MANY):
        at.core._run_times.ended(_record(at, "one"), 4 * HOUR)
    at.pass_time(700)
    assert [held.urgency for held in at.core.reservations.all()] == [
        at.core._planner.queue.urgency(key) for key in at.core.reservations.by_key
    ]
    at.delete("all-0")
    at.settle()
    assert planned(at) == {"one"}


def test_what_a_more_urgent_gang_reserves_counts_first_within_the_share() -> None:
    at = full(QueueOrder.MULTIFACTOR, nodes=4)
    wait(at, "small", 8, "Short")
    assert [held.key.name for held in at.core.reservations.all()] == ["small"]
    at.add_gang("large", 2, 8)  # with it, half of the GPUs are reserved
    at.settle()
    at.pass_time(31)
    assert [held.key.name for held in at.core.reservations.all()] == ["large"]


def test_the_order_learns_that_a_namespace_breaks_its_word() -> None:
    at = Cluster(CoreSettings(queue_order=QueueOrder.MULTIFACTOR))
    at.add_node("n0", "hgx-h100")
    for number in range(3):
        at.add_pod(f"liar-{number}", 1, expected_duration="1m")
        assert at.schedule(f"liar-{number}")
        at.set_phase(f"liar-{number}", "Running")
    at.settle()
    assert not at.core.snapshot(at.now).ordering.broken
    at.pass_time(1200)
    assert at.core.snapshot(at.now).ordering.broken == {"ml"}


@pytest.mark.parametrize("rivals", [1, 8])
def test_the_last_of_all_gets_its_turn_under_any_stream_of_others(
    rivals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes is shorter or larger, and more of it waits than there is room for. The bound
    is minutes instead of days."""
    monkeypatch.setattr(scheduling_queue, "MOST_RUN_SECONDS", 30.0)
    monkeypatch.setattr(scheduling_queue, "SIZE_SECONDS", 100.0)
    at = Cluster(CoreSettings(queue_order=QueueOrder.MULTIFACTOR))
    at.add_node("n0", "hgx-h100")

    def come(round_: int) -> None:
        for number in range(8 // rivals):
            name = f"rival-{round_}-{number}"
            at.add_pod(name, rivals, alter=of("Short"), expected_duration="1s")

    for early in range(3):
        come(-early)
    at.add_pod("last", 1, alter=of("Long"), expected_duration="10h")
    began = at.now
    while not at.pod("last").spec.node_name:
        assert at.now < began + most_passed(rivals) + 5 * 30
        at.now += 30
        come(int(at.now))
        for pod in [pod for pod in at.pods.values() if pod.spec.node_name]:
            at.set_phase(pod.metadata.name, "Running")
            at.delete(pod.metadata.name)
        at.settle()
        for pod in [pod for pod in at.pods.values() if pod.status.nominated_node_name]:
            assert at.schedule(pod.metadata.name)
    assert at.now > began + most_passed(rivals) / 2  # others did pass it


def test_an_explanation_says_whom_a_pod_waits_behind_and_why() -> None:
    at = full(QueueOrder.MULTIFACTOR)
    wait(at, "long", 1, "Long")
    wait(at, "large", 8, "Short")
    found = at.core.explain("ml", "long", at.now)
    assert found is not None
    lines = explanation_text.pod(found, at.now).splitlines()
    assert "  order     1 gang or pod ahead of it has no room either: pod ml/large" in lines
    assert "            counts as 20h younger than it is: 1 GPU, its run counts as 2h" in lines
    first = at.core.explain("ml", "large", at.now)
    assert first is not None
    assert first.seniority is not None
    assert (first.ahead, first.behind, first.seniority.gpus) == (0, "", 8)
    assert first.seniority.shift_seconds == pytest.approx(600 - 144 * HOUR)
    assert [pod.name for pod in Explainer(at.core.snapshot(at.now)).everything().pods] == [
        "large",
        "long",
    ]
