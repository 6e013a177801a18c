"""A new leader goes on with the moves of the one before."""

import json
from dataclasses import replace

import pytest

from linkwise.extender.next.core_settings import MovePolicy, Moves
from linkwise.extender.next.moves.targets import COME_SECONDS
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.topology.machine.model import MAX_GPUS
from tests.extender.cluster import Cluster, change
from tests.extender.next.moves.movers import (
    HOUR,
    IGNORES,
    MOVABLE,
    both,
    bury,
    cluster,
    lead,
    owned_by,
    recreated,
    run,
    scattered,
    until_it_evicts,
    waits,
)


def moving() -> Cluster:
    """`web` is evicted from n1, and its target is n2."""
    at = cluster()
    scattered(at)
    waits(at)
    assert at.evicted == ["web"]
    return at


def recreate(at: Cluster) -> None:
    at.add_pod("web-2", 4, alter=owned_by("ReplicaSet", "owner-of-web"), said=MOVABLE)


@both
def test_the_target_is_kept_for_the_replacement(standby: bool) -> None:
    at = moving()
    lead(at, standby=standby)
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ()
    recreated(at, "web", "web-2")
    assert at.places("big", "web-2") == ["n1", "n2"]


@both
def test_the_target_is_kept_once_the_evicted_pod_is_gone(standby: bool) -> None:
    at = moving()
    bury(at, "web")
    lead(at, standby=standby)
    recreate(at)
    at.settle()
    assert at.places("big", "web-2") == ["n1", "n2"]


@both
def test_a_pod_of_another_namespace_that_forges_the_owner_gets_no_target(standby: bool) -> None:
    at = moving()
    bury(at, "web")
    lead(at, standby=standby)
    forge = owned_by("ReplicaSet", "owner-of-web")

    def elsewhere(pod: Pod) -> Pod:
        meta = forge(pod).metadata
        return change(pod, metadata=change(meta, namespace="theirs"))

    at.add_pod("thief", 4, alter=elsewhere, said=MOVABLE)
    at.settle()
    recreate(at)
    at.settle()
    assert at.places("thief", "web-2") == ["", "n2"]


@both
def test_a_replacement_that_came_while_nobody_led_gets_its_target(standby: bool) -> None:
    at = moving()
    recreate(at)
    lead(at, standby=standby)
    assert at.places("web-2") == ["n2"]


def test_a_replacement_gets_its_target_whichever_pod_is_listed_first() -> None:
    at = moving()
    recreate(at)
    at.pods = dict(reversed(at.pods.items()))
    lead(at, standby=False)
    assert at.places("web-2") == ["n2"]
    assert at.schedule("web-2") == "n2"


def test_a_target_is_taken_over_once() -> None:
    at = moving()
    bury(at, "web")
    lead(at, standby=False)
    at.pass_time(COME_SECONDS + 1)
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ("n2",)


def test_no_target_is_taken_over_if_nothing_moves_any_more() -> None:
    at = moving()
    bury(at, "web")
    at.settings = replace(at.settings, moves=MovePolicy(Moves.NEVER))
    lead(at, standby=False)
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ("n2",)


def test_a_gang_may_have_more_moves_than_one_pod() -> None:
    at = cluster()
    run(at, "b", 4, "n2")
    members = at.add_gang("g", 2, 8, gates=["example.com/wait"])
    carrier = at.pod(members[0])
    moves = [["ml/x", f"gone-{number}", "o", "n1", "1"] for number in range(MAX_GPUS)]
    moves.append(["ml/x", "also-gone", "o", "n2", "f0"])
    note = {"v": 1, "uid": carrier.metadata.uid, "moves": moves, "moves_at": at.now}
    at.annotate(members[0], queue=json.dumps(note))
    lead(at, standby=False)
    at.add_pod("other", 4)
    assert at.filter("other", ["n2"]).node_names == ()


@both
def test_no_target_is_kept_if_the_one_that_waited_has_started(standby: bool) -> None:
    """Its node could have written the note."""
    at = moving()
    bury(at, "web")
    at.schedule("big")
    assert at.pod("big").spec.node_name == "n1"
    lead(at, standby=standby)
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ("n2",)


@pytest.mark.parametrize(
    ("move", "keeps"),
    [
        (["ml/own", "ghost", "uid-of-owner-of-own", "n2", "f0"], False),
        (["ml/own", "", "uid-of-a-friend", "n2", "f0"], False),
        (["ml/own", "", "uid-of-owner-of-own", "n2", "70"], False),
        (["ml/friend", "", "uid-of-owner-of-own", "n2", "f0"], False),
        (["ml/own", "", "uid-of-owner-of-own", "n2", "f0"], True),
    ],
    ids=["of another", "of another owner", "of another size", "of another name", "of its own"],
)
def test_of_a_bound_pod_only_its_own_move_counts(move: list[str], *, keeps: bool) -> None:
    """A node may write the annotations of its pods."""
    at = cluster()
    run(at, "b", 4, "n2")
    run(at, "own", 4, "n1")
    uid = at.pod("own").metadata.uid
    note = {
        "v": 1,
        "uid": uid,
        "moves": [[move[0], move[1] or uid, *move[2:]]],
        "moves_at": at.now,
    }
    at.annotate("own", queue=json.dumps(note))
    at.terminate("own")
    lead(at, standby=False)
    at.add_pod("other", 4)
    assert at.filter("other", ["n2"]).node_names == (() if keeps else ("n2",))


@both
def test_an_eviction_that_was_noted_and_not_made_is_made_by_the_next_leader(standby: bool) -> None:
    at = cluster()
    scattered(at)
    until_it_evicts(at)
    lead(at, standby=standby)
    at.pass_time(60)
    assert at.evicted == ["web"]
    recreated(at, "web", "web-2")
    assert at.places("big", "web-2") == ["n1", "n2"]


def test_no_target_is_kept_for_longer_than_a_pod_takes_to_come() -> None:
    at = moving()
    bury(at, "web")
    at.now += 2 * COME_SECONDS + 1
    lead(at, standby=False)
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ("n2",)


def test_a_replacement_that_asks_for_more_is_not_planned_on_the_target() -> None:
    at = moving()
    bury(at, "web")
    lead(at, standby=False)
    at.add_pod("web-2", 2, alter=owned_by("ReplicaSet", "owner-of-web"), said=MOVABLE)
    at.settle()
    assert at.places("web-2") == [""]


def test_a_pod_that_was_moved_stays_under_the_next_leader_too() -> None:
    at = moving()
    recreated(at, "web", "web-2")
    for name in ("big", "web-2"):
        at.schedule(name)
        at.start(name)
    lead(at, standby=False)
    at.delete("big")
    at.stop("big", "n1")
    at.delete("stays")
    at.stop("stays", "n2")
    run(at, "also-stays", 4, "n1")
    at.pass_time(5 * HOUR)
    waits(at, "second")
    assert at.evicted == ["web"]


def test_the_next_leader_knows_the_replacement_if_the_evicted_pods_job_is_not_read() -> None:
    at = cluster()
    assert at.owners is not None
    at.owners[ObjectRef("batch", "Job", "ml", "owner-of-web")] = {
        "metadata": {"uid": "uid-of-owner-of-web"},
        "spec": {"podFailurePolicy": {"rules": [IGNORES]}},
    }
    scattered(at, kind="Job")
    waits(at)
    owners, at.owners = at.owners, None  # the API server does not respond
    lead(at, standby=False)
    at.add_pod("web-2", 4, alter=owned_by("Job", "owner-of-web"), said=MOVABLE)
    bury(at, "web")
    at.owners = owners
    at.pass_time(60)
    assert at.places("big", "web-2") == ["n1", "n2"]


def test_a_pod_that_was_moved_and_planned_anew_was_moved() -> None:
    at = moving()
    at.add_node("n3")
    recreated(at, "web", "web-2")
    assert at.places("web-2") == ["n2"]
    at.set_health("n2", *range(8))
    at.pass_time(60)
    assert at.places("web-2") == ["n3"]
    plan = at.plan("web-2")
    assert plan is not None
    assert plan.moved > 0


@both
def test_the_replacement_keeps_its_target_if_its_nomination_is_cleared(standby: bool) -> None:
    at = moving()
    recreated(at, "web", "web-2")
    assert at.places("web-2") == ["n2"]
    lead(at, standby=standby)
    pod = at.pod("web-2")
    at.put_pod(change(pod, status=change(pod.status, nominated_node_name="")))
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ()
    at.settle()
    assert at.schedule("web-2") == "n2"


@pytest.mark.parametrize(
    "moves",
    [
        [["ml/x", "gone", "", "n2", "f0"]],
        [["ml/x", "gone", "o", "n2", "0"], ["ml/y", "also-gone", "o", "n2", "f0"]],
        [["ml/x", "gone", "o", "n2", "-1"]],
        [["ml/x", "gone", "o", "n2", "fff0"]],
        [["ml/x", "gone", "o", "n9", "f0"]],
        [["ml/x", f"gone-{number}", "o", "n1", "1"] for number in range(MAX_GPUS)]
        + [["ml/x", "one-too-many", "o", "n2", "f0"]],
    ],
)
def test_a_note_that_no_leader_has_written_keeps_no_gpus(moves: list[list[str]]) -> None:
    at = cluster()
    run(at, "a", 8, "n1")
    run(at, "b", 4, "n2")
    pod = at.add_pod("forger", 1, gates=["example.com/wait"])
    note = {"v": 1, "uid": pod.metadata.uid, "moves": moves, "moves_at": at.now}
    at.annotate("forger", queue=json.dumps(note))
    lead(at, standby=False)
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ("n2",)


def test_the_same_pod_twice_in_a_note_keeps_one_target_and_gives_it_back() -> None:
    at = cluster()
    run(at, "b", 8, "n2")
    pod = at.add_pod("forger", 1, gates=["example.com/wait"])
    moves = [[f"ml/{name}", "gone", "o", "n1", mask] for name, mask in (("a", "f"), ("b", "f0"))]
    note = {"v": 1, "uid": pod.metadata.uid, "moves": moves, "moves_at": at.now}
    at.annotate("forger", queue=json.dumps(note))
    lead(at, standby=False)
    at.pass_time(2 * COME_SECONDS)
    at.add_pod("other", 8)
    assert at.filter("other").node_names == ("n1",)
