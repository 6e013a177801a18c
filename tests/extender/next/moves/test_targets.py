"""Who gets a target, for how long it is kept, and when it is no good any more."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from linkwise.extender.next.moves.targets import COME_SECONDS
from linkwise.extender.state.actions import Evict, NoteQueue
from linkwise.extender.state.extender_calls import Outcome
from linkwise.extender.state.records import read_queue_note
from linkwise.kube.objects import Container, Resources
from linkwise.topology import names
from tests.extender.cluster import GPU, Cluster, change
from tests.extender.next.moves.movers import (
    HOUR,
    MOVABLE,
    bury,
    cluster,
    owned_by,
    recreated,
    run,
    scattered,
    until_it_evicts,
    waits,
)

OF_WEB = owned_by("ReplicaSet", "owner-of-web")


def moving() -> Cluster:
    """`web` is evicted from n1, and its target is n2."""
    at = cluster()
    scattered(at)
    waits(at)
    assert at.evicted == ["web"]
    return at


def two_containers() -> list[Container]:
    half: dict[str, str | int | float] = {"cpu": "500m", "memory": "512Mi", GPU: "2"}
    of_each = Resources(limits={GPU: "2"}, requests=half)
    return [Container(name, resources=of_each) for name in ("a", "b")]


@pytest.mark.parametrize(
    "asks",
    [
        {"gpus": 4, "require_link": "nvlink"},
        {"gpus": 4, "cpu": "2"},
        {"containers": two_containers()},
        {"gpus": 4, "alter": owned_by("ReplicaSet", "another")},
    ],
    ids=["link", "cpu", "containers", "owner"],
)
def test_a_pod_that_is_not_like_the_one_that_moved_gets_no_target(asks: dict[str, Any]) -> None:
    at = moving()
    at.add_pod("web-2", said=MOVABLE, **{"alter": OF_WEB, **asks})
    bury(at, "web")
    assert at.places("web-2") == [""]


def test_each_of_two_owners_gets_the_target_of_its_own_pod() -> None:
    at = cluster(nodes=4)
    for name in ("a", "b"):
        run(at, name, 4, "n1", said=MOVABLE)
    for node in ("n2", "n3"):
        run(at, f"stays-{node}", 4, node)
    run(at, "full", 8, "n4")
    at.pass_time(5 * HOUR)
    waits(at)
    note = read_queue_note(at.pod("big").metadata.annotations[names.QUEUE])
    targets = {move.pod.removeprefix("ml/"): move.node for move in note.moves}
    assert sorted(targets.values()) == ["n2", "n3"]
    for name in reversed(targets):
        recreated(at, name, f"{name}-2")
    assert {name: at.places(f"{name}-2")[0] for name in targets} == targets


def test_a_pod_that_its_owner_adds_before_the_other_leaves_gets_no_target() -> None:
    at = cluster()
    scattered(at)
    at.spared.add("web")
    waits(at)
    assert at.core._planner.moves.plans
    at.add_pod("one-more", 4, alter=OF_WEB, said=MOVABLE)
    at.settle()
    assert at.places("one-more") == [""]


def test_a_pod_that_its_owner_deletes_itself_leaves_its_target_too() -> None:
    at = cluster()
    scattered(at)
    until_it_evicts(at)
    at.terminate("web")
    at.add_pod("web-2", 4, alter=OF_WEB, said=MOVABLE)
    at.settle()
    assert at.places("web-2") == ["n2"]


def test_a_pod_that_leaves_is_evicted_once() -> None:
    at = moving()
    for _ in range(10):
        at.pass_time(20)
    assert at.evicted == ["web"]


def test_a_target_is_kept_from_when_the_pod_is_gone() -> None:
    at = moving()
    at.pass_time(COME_SECONDS - 10)
    bury(at, "web")
    at.pass_time(COME_SECONDS - 10)
    at.add_pod("web-2", 4, alter=OF_WEB, said=MOVABLE)
    at.settle()
    assert at.places("web-2") == ["n2"]


def ill(at: Cluster) -> None:
    at.set_health("n2", *range(8))


def gone(at: Cluster) -> None:
    at.remove_node("n2")


def unreadable(at: Cluster) -> None:
    """Which GPUs are in use is not known any more."""
    node = at.nodes["n2"]
    said = {**node.metadata.annotations, names.IN_USE: "?"}
    at.put_node(change(node, metadata=change(node.metadata, annotations=said)))


@pytest.mark.parametrize("befalls", [ill, gone, unreadable])
def test_a_target_that_cannot_be_used_is_given_up(befalls: Callable[[Cluster], object]) -> None:
    at = moving()
    befalls(at)
    recreated(at, "web", "web-2")
    assert at.places("web-2") == [""]
    counts = at.core._planner.targets.counts
    assert (counts.begun, counts.arrived, counts.given_back) == (1, 0, 1)


def test_no_owner_is_awaited_whose_target_was_never_noted() -> None:
    at = cluster()
    scattered(at)
    refuse_notes(at)
    waits(at)
    at.delete("big")
    at.settle()
    at.pass_time(60)
    assert not at.core._awaited


def refuse_notes(at: Cluster) -> None:
    carry_out = at.carry_out
    at.carry_out = lambda action: (  # type: ignore[method-assign]
        Outcome.REFUSED if isinstance(action, NoteQueue) else carry_out(action)
    )


def test_a_pod_is_evicted_only_once_its_newest_target_is_noted() -> None:
    at = cluster(nodes=3)
    for name in ("goes", "half"):
        run(at, name, 4, "n3")
    scattered(at)
    until_it_evicts(at)
    at.delete("goes")
    at.stop("goes", "n3")
    ill(at)
    at.restart()
    for _ in range(20):
        actions = at.core.decide(at.now)
        if any(isinstance(action, Evict) for action in actions):
            break
        for action in actions:
            at.core.done(action, at.carry_out(action), at.now)
        at.now += 10
    note = read_queue_note(at.pod("big").metadata.annotations[names.QUEUE])
    assert [move.node for move in note.moves] == ["n3"]


def test_a_pod_that_moves_for_one_is_not_planned_to_move_for_another() -> None:
    at = cluster(nodes=3)
    run(at, "also-stays", 4, "n3")
    scattered(at)
    until_it_evicts(at)  # the answer is on its way
    at.delete("big")
    waits(at, "second")
    assert at.core._planner.moves.plans == {}


def test_a_pod_that_stayed_as_the_room_was_lost_may_move_again() -> None:
    at = cluster()
    scattered(at)
    at.spared.add("web")
    waits(at)
    at.add_pod("urgent", 4, priority=9)
    assert at.schedule("urgent") == "n1"
    at.start("urgent")
    at.settle()
    at.delete("urgent")
    at.stop("urgent", "n1")
    at.spared.clear()
    for _ in range(60):
        at.pass_time(60)
    assert at.evicted == ["web"]


def test_a_grace_period_is_waited_for_by_the_next_leader_too() -> None:
    at = moving()
    pod = at.pod("web")
    ends = datetime.fromtimestamp(at.now + 4 * COME_SECONDS, UTC)
    at.put_pod(change(pod, metadata=change(pod.metadata, deletion_timestamp=ends)))
    at.now += 3 * COME_SECONDS
    at.restart()
    at.settle()
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ()
