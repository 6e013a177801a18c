"""A new leader goes on with the moves of the one before."""

import pytest

from linkwise.extender.moves.planned_moves import COME_SECONDS
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from tests.extender.cluster import Cluster
from tests.extender.moves.movers import (
    HOUR,
    IGNORES,
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


def moving() -> Cluster:
    """`web` is evicted from n1, and its target is n2."""
    at = cluster()
    scattered(at)
    waits(at)
    assert at.evicted == ["web"]
    return at


def lead(at: Cluster, *, standby: bool) -> None:
    if standby:
        at.core.lead(at.core.latest_term(1 << 30) + 1, at.now)
    else:
        at.restart()
    at.settle()


def recreate(at: Cluster) -> None:
    at.add_pod("web-2", 4, alter=owned_by("ReplicaSet", "owner-of-web"), said=MOVABLE)


both = pytest.mark.parametrize("standby", [False, True])


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
def test_a_replacement_that_came_while_nobody_led_gets_its_target(standby: bool) -> None:
    at = moving()
    recreate(at)
    lead(at, standby=standby)
    assert at.places("web-2") == ["n2"]


@both
def test_the_target_is_kept_if_the_one_that_waited_has_started(standby: bool) -> None:
    at = moving()
    bury(at, "web")
    at.schedule("big")
    assert at.pod("big").spec.node_name == "n1"
    lead(at, standby=standby)
    recreate(at)
    at.settle()
    assert at.places("web-2") == ["n2"]


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
