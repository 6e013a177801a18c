"""When a pod is tried again on a node whose kubelet refuses all pods with GPUs, or such pods."""

import pytest

from linkwise.extender.place.nodes.kubelet_admission import FIRST_PAUSE_SECONDS
from tests.extender.place.nodes.refusals import (
    AFFINITY,
    NO_PLUGIN,
    cluster,
    refuse,
    refused_on_n1,
)

pytestmark = pytest.mark.parametrize("reason", [NO_PLUGIN, AFFINITY])


def test_one_is_tried_after_a_pause_and_opens_the_node_once_it_runs(reason: str) -> None:
    at = refused_on_n1(reason, 1)
    at.pass_time(FIRST_PAUSE_SECONDS)
    for name in ("second", "third"):
        at.add_pod(name, 1)
    assert at.schedule("second") == "n1"
    at.settle()
    assert at.schedule("third") == ""
    at.start("second")
    at.settle()
    assert at.schedule("third") == "n1"
    assert at.sound()


def test_a_node_that_is_made_again_is_as_any(reason: str) -> None:
    at = refused_on_n1(reason, 1)
    at.remove_node("n1")
    at.settle()
    at.add_node("n1", "hgx-h100")
    at.settle()
    at.add_pod("second", 1)
    assert at.schedule("second") == "n1"


def test_the_pause_doubles_where_the_one_that_is_tried_is_refused_too(reason: str) -> None:
    at = refused_on_n1(reason, 1)
    for pause in (FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS):
        at.pass_time(pause - 1)
        at.add_pod("next", 1)
        assert at.schedule("next") == ""
        at.pass_time(1)
        assert at.schedule("next") == "n1"
        refuse(at, "next", reason)
        at.delete("next")


def test_others_that_were_on_their_way_make_the_pause_no_longer(reason: str) -> None:
    at = cluster("n1")
    for name in ("first", "second", "third"):
        at.add_pod(name, 1)
        at.bind(name, "n1")
        at.settle()
    for name in ("first", "second", "third"):
        refuse(at, name, reason)
    at.pass_time(FIRST_PAUSE_SECONDS)
    at.add_pod("next", 1)
    assert at.schedule("next") == "n1"


def test_a_plan_of_the_one_to_try_stays_while_kube_scheduler_does_not_bind_it(reason: str) -> None:
    """Found: after another pause it was withdrawn and made again without end."""
    at = refused_on_n1(reason, 1, "n2")
    at.add_gang("g", 2, 8)
    for _ in range(4):
        at.pass_time(FIRST_PAUSE_SECONDS + 1)
        assert sorted(at.places("g-0", "g-1")) == ["n1", "n2"]
    assert [at.schedule(name) for name in ("g-0", "g-1")] == at.places("g-0", "g-1")
    assert at.sound()


def test_another_is_tried_where_the_one_before_went_away(reason: str) -> None:
    at = refused_on_n1(reason, 1)
    at.pass_time(FIRST_PAUSE_SECONDS)
    at.add_pod("second", 1)
    at.add_pod("third", 1)
    assert at.schedule("second") == "n1"
    at.delete("second")
    at.settle()
    assert at.schedule("third") == "n1"
