"""A gang that runs and lacks a member never waits for its own: those end when it does."""

import pytest

from linkwise.extender.state.actions import NoteQueue
from linkwise.extender.state.records import GangKey
from linkwise.topology import names
from tests.extender.cluster import Cluster


def lacks_one(**said: str) -> Cluster:
    """A gang of two on n1 and n2 has lost the member on n2, a node that takes no more pods. On n3
    and n4 are two pods each."""
    at = Cluster()
    for node in ("n1", "n2", "n3", "n4"):
        at.add_node(node)
    members = at.add_gang("g", 2, 8, **said)
    at.settle()
    for member in members:
        at.schedule(member)
        at.start(member)
    for node in ("n3", "n4"):
        for number in (1, 2):
            bind_small(at, f"{node}-{number}", node)
    at.cordon("n2")
    at.stop("g-1", "n2")
    at.delete("g-1")
    at.add_pod("again", 8, gang="g", gang_size="2", rank="1", said=said)
    at.settle()
    at.pass_time(60)
    assert at.plan("again") is None
    return at


def bind_small(at: Cluster, name: str, node: str) -> None:
    at.add_pod(name, 4)
    at.bind(name, node)
    at.start(name)


def held(at: Cluster) -> set[str]:
    hold = at.core.reservations.of(GangKey("ml", "g"))
    return set() if hold is None else set(hold.gpus)


@pytest.mark.parametrize("said", [{}, {"expected_duration": "2h"}], ids=["unknown", "known end"])
def test_what_is_held_is_not_what_its_own_member_has(said: dict[str, str]) -> None:
    """At most its own member has said when it ends."""
    at = lacks_one(**said)
    (node,) = held(at)
    assert node in ("n3", "n4")


def test_a_new_leader_finds_it_and_it_is_noted_once() -> None:
    at = lacks_one(expected_duration="2h")
    before, note = held(at), at.pod("again").metadata.annotations[names.QUEUE]
    at.restart()
    assert not [action for action in at.settle() if isinstance(action, NoteQueue)]
    assert held(at) == before
    for _ in range(6):
        at.pass_time(10)
    assert at.pod("again").metadata.annotations[names.QUEUE] == note
    assert names.QUEUE not in at.pod("g-0").metadata.annotations


def test_it_gets_its_place_under_a_stream_of_small_pods() -> None:
    at = lacks_one(expected_duration="2h")
    small = ["n3-1", "n4-1", "n3-2", "n4-2"]
    for number in range(8):
        done = small.pop(0)
        node = at.pod(done).spec.node_name
        at.delete(done)
        at.stop(done, node)
        at.add_pod(f"next-{number}", 4)
        at.settle()
        took = at.schedule(f"next-{number}")
        if took:
            at.start(f"next-{number}")
            small.append(f"next-{number}")
        at.pass_time(10)
        if at.plan("again") is not None:
            return
    raise AssertionError("it starves")


def test_one_of_its_own_that_is_ending_is_waited_for() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")
    members = at.add_gang("g", 2, 8)
    at.settle()
    for member in members:
        at.schedule(member)
        at.start(member)
    gone = at.pod("g-1").spec.node_name
    at.terminate("g-1")
    at.add_pod("again", 8, gang="g", gang_size="2", rank="1")
    at.settle()
    at.pass_time(60)
    assert held(at) == {gone}
