"""Which pods move, and where to: the cheapest that make room, each with a place of its own."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.next.moves.planned_moves import LOOK_SECONDS
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.next.moves.movers import (
    HOUR,
    MOVABLE,
    bury,
    cluster,
    owned_by,
    run,
    scattered,
    waits,
)
from tests.extender.next.preemption.victims import budget


def test_a_pod_moves_for_one_at_a_time() -> None:
    at = cluster()
    at.spared.add("web")
    scattered(at)
    for name in ("big", "next"):
        at.add_pod(name, 8, gates=[names.GATE])
        at.settle()
    at.pass_time(HOUR)
    made = [each for each in at.core.reservations.all() if each.by_preemption]
    assert [each.key.name for each in made] == ["big"]


def test_a_pod_that_began_a_while_ago_stays() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "stays", 4, "n2")
    waits(at)
    at.pass_time(LOOK_SECONDS)
    assert at.evicted == []
    at.pass_time(HOUR)
    assert at.evicted == ["web"]


def test_a_pod_that_ends_soon_stays() -> None:
    """The one that waits would save more than the pod loses."""
    at = cluster()
    scattered(at, expected_duration="5h15m", move_cost="20m")
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    assert at.evicted == []


def test_nothing_moves_that_loses_more_than_the_wait_is_worth() -> None:
    """Four GPUs lose 25 min each. The eight that wait have waited for 12 min, and then for more."""
    at = cluster()
    scattered(at, move_cost="25m")
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.pass_time(720)
    assert at.evicted == []
    at.pass_time(2 * LOOK_SECONDS)
    assert at.evicted == ["web"]


def test_no_pod_gets_worse_links_than_it_has() -> None:
    at = cluster(nodes=1)
    at.add_node("n2", "p100-pcie-8")
    scattered(at)
    waits(at)
    assert at.evicted == []


def test_who_is_not_needed_stays() -> None:
    """Six GPUs are wanted, two of the node are free: the four of the costlier one suffice."""
    at = cluster()
    run(at, "two", 2, "n1", said={**MOVABLE, "move_cost": "9m"})
    run(at, "four", 4, "n1", said=MOVABLE)
    run(at, "stays", 4, "n2")
    at.pass_time(5 * HOUR)
    waits(at, gpus=6)
    assert at.evicted == ["four"]


def test_two_that_move_have_two_places() -> None:
    at = cluster(nodes=3)
    for name in ("one", "other"):
        run(at, name, 2, "n1", said=MOVABLE)
    for node in ("n2", "n3"):
        run(at, f"stays-{node}", 6, node)
    at.pass_time(5 * HOUR)
    waits(at)
    assert sorted(at.evicted) == ["one", "other"]
    for name in ("one", "other"):
        alter = owned_by("ReplicaSet", f"owner-of-{name}")
        at.add_pod(f"{name}-2", 2, alter=alter, said=MOVABLE)
        bury(at, name)
    assert {at.schedule("one-2"), at.schedule("other-2")} == {"n2", "n3"}
    assert at.schedule("big") == "n1"


def test_pods_that_budgets_protect_do_not_keep_others_from_moving() -> None:
    at = cluster(nodes=14)
    at.budgets = [budget(0, app="owner-of-cheap")]
    at.restart()
    for number in range(3, 15):
        alter = owned_by("ReplicaSet", "owner-of-cheap")
        at.add_pod(f"cheap-{number}", 4, alter=alter, said={**MOVABLE, "move_cost": "1s"})
        at.settle()
        at.filter(f"cheap-{number}", [f"n{number}"])
        at.bind(f"cheap-{number}", f"n{number}")
        at.start(f"cheap-{number}")
        at.set_phase(f"cheap-{number}", "Running")
    scattered(at)
    waits(at)
    assert at.evicted == ["web"]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (MovePolicy(Moves.CONSENT), {"movable": "6h"}),
        (MovePolicy(Moves.CONSENT, after_seconds=6 * HOUR), {}),
        (MovePolicy(Moves.CONSENT, namespaces=(("ml", 6 * HOUR),)), {}),
        (MovePolicy(Moves.CONSENT, after_seconds=HOUR, namespaces=(("ml", 6 * HOUR),)), {}),
        (MovePolicy(Moves.CONSENT, namespaces=(("ml", 0.0),)), {"movable": "6h"}),
    ],
)
def test_a_pod_may_consent_once_it_has_run_for_so_long(
    policy: MovePolicy, said: dict[str, str]
) -> None:
    at = Cluster(settings=CoreSettings(moves=policy))
    at.add_node("n1")
    at.add_node("n2")
    run(at, "web", 4, "n1", said=said)
    run(at, "stays", 4, "n2", said={"movable": "false"})
    at.pass_time(4 * HOUR)
    waits(at)
    at.pass_time(LOOK_SECONDS)
    assert at.evicted == []
    at.pass_time(HOUR)
    assert at.evicted == ["web"]


def test_a_namespace_does_not_consent_for_its_jobs() -> None:
    """What a Job counts as a failure is read only for pods that consent themselves."""
    consents = MovePolicy(Moves.CONSENT, namespaces=(("ml", 0.0),))
    at = Cluster(settings=CoreSettings(moves=consents))
    at.add_node("n1")
    at.add_node("n2")
    run(at, "web", 4, "n1", kind="Job")
    run(at, "stays", 4, "n2", said={"movable": "false"})
    at.pass_time(5 * HOUR)
    waits(at)
    assert at.evicted == []


def test_two_that_move_to_one_node_have_gpus_of_their_own_there() -> None:
    at = cluster()
    for name in ("one", "other"):
        run(at, name, 2, "n1", said=MOVABLE)
    run(at, "stays", 4, "n2")
    at.pass_time(5 * HOUR)
    waits(at)
    assert sorted(at.evicted) == ["one", "other"]
    at.add_pod("passes-by", 1)
    at.settle()
    assert at.schedule("passes-by") == "", "all that is free is kept for the two"


def test_a_pod_that_consents_is_placed_before_its_job_is_read() -> None:
    at = cluster()
    at.owners = None  # the API server does not respond
    run(at, "web", 4, "n1", kind="Job", said=MOVABLE)
    assert at.places("web") == ["n1"]


def test_pods_move_to_nodes_where_the_one_that_waits_may_not_be() -> None:
    at = cluster(nodes=1)
    at.add_node("other", "hgx-h100")
    run(at, "web", 2, "n1", said=MOVABLE)
    run(at, "rest", 6, "n1", said=MOVABLE)
    at.pass_time(5 * HOUR)
    at.add_pod("big", 8, gates=[names.GATE], said={"gpu_model": "V100"})
    at.settle()
    at.pass_time(HOUR)
    assert sorted(at.evicted) == ["rest", "web"]
