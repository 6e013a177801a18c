"""Gangs that wait for other pods, of which the cache counts only so many kinds."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from linkwise.extender.next.cycle import round as cycle_round
from linkwise.extender.next.gangs.gang_search import GangSearch
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.state.records import GangKey
from linkwise.kube.filters import placed_pods
from linkwise.kube.objects import (
    Affinity,
    LabelSelector,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
)
from tests.extender.cluster import Cluster, change

HOST = "kubernetes.io/hostname"
WAITING = [f"w{number}" for number in range(5)]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Five gangs; each waits for a server of its own, and three kinds of pods are counted."""
    monkeypatch.setattr(placed_pods, "MOST_COUNTS", 3)
    at = Cluster()
    for number in range(2):
        at.add_node(f"n{number}")
    for name in WAITING:
        at.add_pod(name, 1, said={"gang": name, "gang_size": "1"}, alter=near_server_of(name))
    at.settle()
    assert at.places(*WAITING) == [""] * len(WAITING)
    return at


def near_server_of(name: str) -> Callable[[Pod], Pod]:
    selector = LabelSelector(match_labels={"serves": name})
    term = PodAffinityTerm(topology_key=HOST, label_selector=selector)
    near = PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    return lambda pod: change(pod, spec=change(pod.spec, affinity=Affinity(pod_affinity=near)))


def searches_by_pod(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a place is sought for a gang from now on, by its first pod."""
    seek, searches = GangSearch.seek, Counter[str]()

    def counted(
        search: GangSearch, members: GangMembers, now: float, **given: Any
    ) -> list[Spot] | NoRoom:
        searches[members.all[0].ref.name] += 1
        return seek(search, members, now, **given)

    monkeypatch.setattr(GangSearch, "seek", counted)
    return searches


def add_server(at: Cluster, name: str, node: str) -> None:
    def labelled(pod: Pod) -> Pod:
        return change(pod, metadata=change(pod.metadata, labels={"serves": name}))

    at.add_pod(f"server-of-{name}", node=node, alter=labelled)
    at.settle()


@pytest.mark.parametrize("name", WAITING)
def test_each_gang_finds_its_pod_within_a_second(at: Cluster, name: str) -> None:
    for number in range(3):  # others come before it, in the same second
        add_server(at, f"unwanted-{number}", "n0")
    add_server(at, name, "n1")
    at.pass_time(1)
    assert at.places(name) == ["n1"]


def test_pods_that_come_wake_the_gangs_once_a_second(
    at: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = searches_by_pod(monkeypatch)
    for number in range(100):
        add_server(at, f"unwanted-{number}", "n0")
    assert searches.total() <= len(WAITING)


def test_gangs_that_are_compared_with_very_many_pods_have_their_turns_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So those of other namespaces are not late."""
    monkeypatch.setattr(cycle_round, "_MOST_LOOKS", 4)
    at = Cluster()
    at.add_node("n0")
    for number in range(20):
        add_server(at, f"server-{number}", "n0")
    for name in WAITING:
        at.add_pod(name, 1, said={"gang": name, "gang_size": "1"}, alter=beside_others_than(name))
    for action in at.core.decide(at.now):
        at.core.done(action, at.carry_out(action), at.now)
    planned = at.core.snapshot(at.now).plans
    assert [at.pod(name).metadata.uid in planned for name in WAITING] == [True, *[False] * 4]
    due = at.core.next_due()
    assert due is not None
    assert due <= at.now + 1
    at.settle()
    for _ in WAITING:
        at.pass_time(1)
    assert at.places(*WAITING) == ["n0"] * len(WAITING)


def let_a_gpu_pass(at: Cluster) -> None:
    """Carry out a round, after which there is other room than before."""
    for action in at.core.decide(at.now):
        at.core.done(action, at.carry_out(action), at.now)
    at.add_pod("passing", 1, cpu="0", node="n0")
    at.delete("passing")
    at.now += 0.2


def add_without_room(at: Cluster, name: str, said: Mapping[str, str] | None = None) -> None:
    """A pod that finds GPUs, but no CPUs beside "old"."""
    at.add_pod(name, 4, cpu="50", gates=["linkwise.dev/plan"], said=said)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A node on which each search of a gang takes the namespace's part of the round."""
    monkeypatch.setattr(cycle_round, "_MOST_LOOKS", 4)
    monkeypatch.setattr(placed_pods, "MOST_COUNTS", 1)
    at = Cluster()
    at.add_node("n0")
    for number in range(20):
        add_server(at, f"server-{number}", "n0")
    at.add_pod("old", 1, cpu="70", node="n0", expected_duration="1h")
    return at


def test_the_last_of_them_has_its_turn_although_room_changes_all_the_time(full: Cluster) -> None:
    for name in WAITING:
        alter = beside_others_than(name) if name == WAITING[-1] else near_server_of(name)
        full.add_pod(name, 1, said={"gang": name, "gang_size": "1"}, cpu="1", alter=alter)
    for _ in WAITING:
        let_a_gpu_pass(full)
    assert full.places(*WAITING) == ["", "", "", "", "n0"]


def test_a_gang_keeps_its_reservation_while_others_have_their_turns(full: Cluster) -> None:
    add_without_room(full, "big", {"gang": "big", "gang_size": "1"})
    full.settle()
    full.now += 1
    for name in WAITING:
        words = {"gang": name, "gang_size": "1"}
        full.add_pod(name, 1, said=words, alter=near_server_of(name))
    for _ in range(8):
        let_a_gpu_pass(full)
        assert full.core.reservations.of(GangKey("ml", "big")) is not None


def test_pods_for_which_an_equal_one_was_tried_have_had_their_turns(
    full: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        add_without_room(full, f"single-{number}")
    full.settle()
    words = {"gang": "first", "gang_size": "1"}
    full.add_pod("first", 1, said=words, priority=1, alter=near_server_of("first"))
    searches = searches_by_pod(monkeypatch)
    for _ in range(3):
        let_a_gpu_pass(full)
    searches.clear()
    for _ in range(6):
        let_a_gpu_pass(full)
    assert searches["first"] >= 2


def beside_others_than(name: str) -> Callable[[Pod], Pod]:
    other = Requirement("serves", "NotIn", (name,))
    selector = LabelSelector(match_expressions=(other,))
    term = PodAffinityTerm(topology_key=HOST, label_selector=selector)
    near = PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    return lambda pod: change(pod, spec=change(pod.spec, affinity=Affinity(pod_affinity=near)))
