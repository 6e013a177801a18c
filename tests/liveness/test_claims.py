"""kube-scheduler's stand-in and claims, as `tests/cluster/test_late_claims.py` shows the real one;
and the judge of days with claims."""

from unittest.mock import patch

from linkwise.extender.next.cycle.refused_plans import RefusedPlans
from linkwise.extender.state.cache.pending_writes import PendingWrites
from linkwise.kube.objects import Pod
from tests.extender.device_cluster import DeviceCluster, Request
from tests.liveness.day import Day
from tests.liveness.judge import Judge


def world(*nodes: str) -> Day:
    day = Day()
    for node in nodes:
        day.add_node_by_claims(node, "dgx1-v100")
    return day


def stranger(day: Day, name: str, asked: Request | None, priority: int = 0) -> Pod:
    return day.make_with_claim(name, asked, namespace="x", priority=priority)


def live(day: Day, seconds: float) -> None:
    day.live(day.now + seconds, lambda _: None)


def given(day: Day, name: str) -> list[str]:
    return sorted(day.allocated_to(day.pod(name)))


def test_a_pod_whose_claim_does_not_exist_waits_without_a_condition() -> None:
    day = world("n1")
    pod = stranger(day, "a", None)
    live(day, 600)
    assert day.pod("a").status.conditions == ()
    day.add_claim(pod, Request(2))
    live(day, 5)
    assert day.pod("a").spec.node_name == "n1"


def test_it_gets_the_devices_that_its_claim_names_or_waits_until_they_are_free() -> None:
    day = world("n1", "n2")
    wanted = Request(2, frozenset(day.uuids("n2", 3, 5)))
    for name in ("a", "b"):
        stranger(day, name, wanted)
    live(day, 30)
    assert given(day, "a") == sorted(wanted.uuids or ())
    assert day.pod("a").spec.node_name == "n2"
    assert "cannot allocate all claims" in day.pod("b").status.conditions[0].message
    day.terminate("a")
    live(day, 60)
    assert given(day, "b") == sorted(wanted.uuids or ())


def test_no_pod_is_evicted_for_devices() -> None:
    day = world("n1")
    stranger(day, "a", Request(8))
    live(day, 30)
    stranger(day, "b", Request(8), priority=1)
    live(day, 600)
    assert not day.pod("b").spec.node_name
    assert not day.pod("a").is_leaving


def test_the_claim_of_a_pod_that_has_ended_is_deleted() -> None:
    day = world("n1")
    pod = stranger(day, "a", Request(8))
    live(day, 30)
    day.end(pod.metadata.uid, "Succeeded")
    live(day, 10)
    assert not day.claims


def test_an_allocation_is_taken_back_if_its_node_does_not_let_the_pod_in() -> None:
    day = world("n1", "n2")
    stranger(day, "a", Request(8))
    assert day.scheduler.try_next()  # the Binding is under way
    (first,) = {device.pool for device in day.allocated()}
    day.trouble.writes_lost = 1.0
    live(day, 0.5)
    day.trouble.writes_lost = 0.0
    day.cordon(first)
    live(day, 30)
    assert day.pod("a").spec.node_name == ({"n1", "n2"} - {first}).pop()


def planned() -> list[str]:
    day = world("n1")
    judge = Judge(day)
    day.claims_for = lambda name: name == "p"
    day.make("p", 8, namespace="red", said={})
    for _ in range(2):
        day.live(day.now + 100, judge.before_jump)
    return day.failures


def test_a_pod_that_is_let_go_without_its_claim_is_seen() -> None:
    with patch.object(PendingWrites, "has_brought", lambda *_: True):
        assert any("has no claim for its GPUs" in failure for failure in planned())


def test_a_claim_that_waits_in_vain_is_seen() -> None:
    assert not planned()
    with (
        patch.object(DeviceCluster, "fit", lambda *_: ()),
        patch.object(RefusedPlans, "by_claims", lambda *_: False),
    ):
        assert any("waits for the GPUs of its claim" in failure for failure in planned())
