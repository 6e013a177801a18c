"""Moves that are asked for, whatever the wait: found as for advice, and nothing comes of it."""

import math

from linkwise.extender.next.core_settings import Moves
from linkwise.extender.state.records import GangKey
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.next.moves.movers import HOUR, MOVABLE, cluster, run, scattered, waits


def sought(at: Cluster, name: str = "big") -> list[tuple[str, str]] | None:
    plan = at.core.moves.sought(GangKey("ml", name, at.pod(name).metadata.uid), at.now)
    return None if plan is None else [(move.pod.ref.name, move.spot.node) for move in plan.moves]


def test_they_are_found_at_once_though_the_wait_is_not_worth_them_yet() -> None:
    at = cluster(Moves.NEVER)
    scattered(at)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    assert sought(at) == [("web", "n2")]
    at.pass_time(HOUR)
    assert at.evicted == []
    assert not [each for each in at.core.reservations.all() if each.by_preemption]


def test_they_say_what_the_expected_wait_would_lose() -> None:
    at = cluster(Moves.NEVER)
    scattered(at)
    waits(at)
    plan = at.core.moves.sought(GangKey("ml", "big", at.pod("big").metadata.uid), at.now)
    assert plan is not None
    assert math.isclose(plan.saved, 8 * HOUR, rel_tol=0.01)


def test_none_are_sought_for_what_does_not_wait_or_has_room_made_for_it() -> None:
    at = cluster()
    at.spared.add("web")
    scattered(at)
    waits(at)
    assert at.core.reservations.is_by_preemption(next(iter(at.core.moves.plans)))
    assert sought(at) is None
    assert sought(at, "stays") is None


def test_a_pod_without_another_place_does_not_hide_the_others_and_is_not_remembered() -> None:
    at = cluster(Moves.NEVER)
    run(at, "bound", 1, "n1", said={**MOVABLE, "move_cost": "1m"}, only_there=True)
    run(at, "web", 1, "n1", said=MOVABLE)
    run(at, "full", 5, "n1")
    run(at, "more", 7, "n2")
    at.pass_time(5 * HOUR)
    at.add_pod("big", 2, gates=[names.GATE])
    at.settle()
    before = dict(at.core.moves._who._stay)
    assert sought(at) == [("web", "n2")]
    assert at.core.moves._who._stay == before
