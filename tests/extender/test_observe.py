"""An extender that kube-scheduler does not call: it knows all, and writes nothing to pods."""

from linkwise.extender.state.actions import Action
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.owned import SURELY, create, job, member, planned, there_is


def observed() -> Cluster:
    at = Cluster(is_asked=False)
    for number in range(4):
        at.add_node(f"n{number}", "dgx-a100")
    return at


def waits(at: Cluster) -> list[Action]:
    """What is written while a day goes by."""
    written: list[Action] = []
    for _ in range(24):
        written += at.pass_time(3600.0)
    return written


def test_nothing_is_written_to_pods_that_wait_or_run() -> None:
    at = observed()
    made = job("train", 2)
    there_is(at, made)
    create(at, member(made, 0), member(made, 1))
    at.add_pod("runs", 4, node="n0")
    at.set_in_use("n0", {"ml/runs": {"main": at.uuids("n0", 0, 1, 2, 7)}})
    at.add_pod("waits", 8)
    at.add_pod("wrong", 1, require_link="fast")
    at.now += SURELY
    assert waits(at) == []
    assert planned(at) == []
    assert at.events == []
    assert at.sound()


def test_what_people_ask_works() -> None:
    at = observed()
    made = job("train", 2)
    there_is(at, made)
    create(at, member(made, 0), member(made, 1))
    at.add_pod("runs", 4, node="n0")
    at.settle()
    (gang,) = at.core.gangs(at.now)
    assert (gang.name, gang.size, gang.phase) == ("Job.batch/train", 2, "forming")
    assert [view.free for view in at.core.nodes(at.now)] == [4, 8, 8, 8]
    explained = at.core.explain("ml", "runs", at.now)
    assert explained is not None
    assert explained.state == "bound"
    explained = at.core.explain("ml", "train-0-0", at.now)
    assert explained is not None
    assert "which has not asked Linkwise yet" in explained.summary


def test_pods_that_ask_for_a_plan_get_one() -> None:
    """By Linkwise's own annotations or gate: no operator's pod has these by itself. So a gate that
    an earlier configuration put is lifted."""
    at = observed()
    at.add_gang("named", 2, 8)
    at.add_pod("gated", 8, gates=[names.GATE])
    at.settle()
    assert planned(at) == ["gated", "named-0", "named-1"]
    assert at.gates("gated") == []


def test_the_first_call_ends_the_observing() -> None:
    at = observed()
    made = job("train", 2)
    there_is(at, made)
    create(at, member(made, 0), member(made, 1))
    at.pass_time(SURELY)
    assert planned(at) == []
    at.add_pod("any", 1)
    at.filter("any")
    at.pass_time(SURELY)
    assert planned(at) == ["train-0-0", "train-1-0"]
