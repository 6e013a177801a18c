"""The scheduling queue's rules, with the time as an argument."""

import msgspec
import pytest

from linkwise.kube.objects import Pod
from linkwise.simulator.scheduler.queue import OTHER, ClusterEvent, QueuedPod, SchedulingQueue

BY_EXTENDER = frozenset({"Extender"})
BY_RESOURCES = frozenset({"NodeResourcesFit"})


def pod(
    name: str,
    *,
    priority: int = 0,
    gates: tuple[str, ...] = (),
    labels: dict[str, str] | None = None,
) -> Pod:
    body = {
        "metadata": {"name": name, "uid": name, "labels": labels or {}},
        "spec": {"priority": priority, "schedulingGates": [{"name": gate} for gate in gates]},
    }
    return msgspec.convert(body, Pod)


def queue_of(*pods: Pod, now: float = 0.0) -> SchedulingQueue:
    queue = SchedulingQueue()
    for one in pods:
        queue.add(one, now)
    return queue


def popped(queue: SchedulingQueue, now: float) -> QueuedPod:
    found = queue.pop(now)
    assert found is not None
    return found


def names(queue: SchedulingQueue, now: float) -> list[str]:
    found = []
    while (queued := queue.pop(now)) is not None:
        found.append(queued.pod.metadata.name)
    return found


def refused(by: frozenset[str], *, times: int = 1) -> SchedulingQueue:
    """Return a queue with the pod `a`, refused *times* times in a row at second 0."""
    queue = queue_of(pod("a"))
    for number in range(times):
        queued = popped(queue, 0.0)
        queue.add_unschedulable(queued, by, 0.0)
        if number < times - 1:
            queue.move_all(ClusterEvent.NODE_ADDED, 0.0)
    return queue


def test_a_pod_is_tried_once_at_a_time() -> None:
    queue = queue_of(pod("a"))
    popped(queue, 0.0)
    queue.add(pod("a"), 1.0)
    assert queue.pop(1.0) is None


def test_what_plugins_refused_is_woken_only_by_events_that_matter_to_them() -> None:
    queue = refused(BY_RESOURCES)
    for event in (
        ClusterEvent.NODE_LABELS,
        ClusterEvent.NODE_TAINTS,
        ClusterEvent.NODE_OTHER,
    ):
        queue.move_all(event, 100.0)
    queue.update(pod("a"), 100.0)
    assert queue.pop(100.0) is None
    queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, 100.0)
    assert names(queue, 100.0) == ["a"]


@pytest.mark.parametrize(
    ("plugin", "sleeps", "wakes"),
    [
        ("NodePorts", ClusterEvent.ASSIGNED_POD_ADDED, ClusterEvent.ASSIGNED_POD_GONE),
        ("VolumeRestrictions", ClusterEvent.CLAIM_CHANGED, ClusterEvent.CLAIM_ADDED),
        ("NodeVolumeLimits", ClusterEvent.NODE_LABELS, ClusterEvent.CSI_NODE_CHANGED),
        ("VolumeBinding", ClusterEvent.ASSIGNED_POD_GONE, ClusterEvent.VOLUME_CHANGED),
        ("VolumeZone", ClusterEvent.CLASS_CHANGED, ClusterEvent.CLASS_ADDED),
        ("PodTopologySpread", ClusterEvent.NODE_ALLOCATABLE, ClusterEvent.NODE_GONE),
        ("InterPodAffinity", ClusterEvent.NODE_GONE, ClusterEvent.ASSIGNED_POD_LABELS),
    ],
)
def test_each_plugin_has_events_of_its_own(
    plugin: str, sleeps: ClusterEvent, wakes: ClusterEvent
) -> None:
    queue = refused(frozenset({plugin}))
    queue.move_all(sleeps, 100.0)
    assert queue.pop(100.0) is None
    queue.move_all(wakes, 100.0)
    assert names(queue, 100.0) == ["a"]


def test_new_labels_of_a_pod_wake_it_where_pods_around_refused_it() -> None:
    queue = refused(frozenset({"InterPodAffinity"}))
    queue.update(pod("a", labels={"app": "web"}), 100.0)
    assert names(queue, 100.0) == ["a"]


def test_of_those_whose_back_off_ends_in_the_same_second_the_important_goes_first() -> None:
    queue = queue_of(pod("a"), pod("b", priority=5))
    for queued in (popped(queue, 0.0), popped(queue, 0.0)):
        queue.add_unschedulable(queued, BY_EXTENDER, 0.0)
    queue.move_all(ClusterEvent.NODE_ADDED, 0.0)
    assert names(queue, 0.0) == ["b", "a"]


def test_active_pods_go_before_a_more_important_one_in_back_off() -> None:
    queue = queue_of(pod("a", priority=9))
    queue.add_unschedulable(popped(queue, 0.0), BY_EXTENDER, 0.0)
    queue.move_all(ClusterEvent.NODE_ADDED, 0.0)
    queue.add(pod("b"), 0.1)
    assert names(queue, 0.1) == ["b", "a"]


def test_the_back_off_doubles_from_one_second_to_ten() -> None:
    queue = queue_of(pod("a"))
    now = 0.0
    for seconds in (1, 2, 4, 8, 10, 10):
        queue.add_error(popped(queue, now), now)
        assert queue.pop(now + seconds - 0.01) is None
        assert queue.next_wake(now) == seconds
        now += seconds
    assert names(queue, now) == ["a"]


def test_a_refusal_after_errors_starts_the_errors_count_again() -> None:
    queue = queue_of(pod("a"))
    queue.add_error(popped(queue, 0.0), 0.0)
    queue.add_error(popped(queue, 1.0), 1.0)
    queue.add_unschedulable(popped(queue, 3.0), BY_EXTENDER, 3.0)
    queue.update(pod("a"), 3.0)
    queue.add_error(popped(queue, 3.0), 3.0)
    assert queue.next_wake(3.0) == 1.0


def test_after_five_minutes_a_pod_is_tried_again_anyway() -> None:
    queue = refused(BY_RESOURCES)
    assert queue.next_wake(0.0) == 300.0
    assert queue.pop(299.9) is None
    assert names(queue, 300.0) == ["a"]


def test_what_happens_while_a_pod_is_tried_counts_for_it() -> None:
    queue = queue_of(pod("a"))
    queued = popped(queue, 0.0)
    queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, 0.0)
    queue.add_unschedulable(queued, BY_RESOURCES, 0.0)
    assert names(queue, 0.0) == ["a"]


def test_its_own_change_while_it_is_tried_counts_too() -> None:
    queue = queue_of(pod("a"))
    queued = popped(queue, 0.0)
    queue.update(pod("a"), 0.0)
    queue.add_unschedulable(queued, BY_EXTENDER, 0.0)
    assert names(queue, 0.0) == ["a"]


def test_what_does_not_matter_while_it_is_tried_lets_it_sleep() -> None:
    queue = queue_of(pod("a"))
    queued = popped(queue, 0.0)
    queue.move_all(ClusterEvent.NODE_LABELS, 0.0)
    queue.update(pod("a"), 0.0)
    queue.add_unschedulable(queued, BY_RESOURCES, 0.0)
    assert queue.pop(0.0) is None
    assert queue.counts().unschedulable == 1


def test_a_pod_deleted_while_it_is_tried_does_not_come_back() -> None:
    queue = queue_of(pod("a"))
    queued = popped(queue, 0.0)
    queue.delete("a")
    queue.add_unschedulable(queued, BY_EXTENDER, 0.0)
    assert queue.pods() == []


def test_a_deleted_pod_is_not_tried() -> None:
    queue = queue_of(pod("a"), pod("b"))
    queue.delete("a")
    assert names(queue, 0.0) == ["b"]


def test_a_pod_is_tried_in_its_newest_version() -> None:
    queue = queue_of(pod("a"))
    queue.update(msgspec.structs.replace(pod("a"), status=pod("a").status), 0.0)
    newer = pod("a", priority=0)
    queue.update(newer, 0.0)
    assert popped(queue, 0.0).pod is newer


def test_any_change_of_nodes_and_pods_wakes_what_another_filter_refused() -> None:
    for event in ClusterEvent:
        queue = refused(frozenset({OTHER}))
        assert names(queue, 5.0) == []
        queue.move_all(event, 5.0)
        assert names(queue, 5.0) == ["a"]
