"""With `--lift-gates-after`, gangs and pods without room become visible to a node autoscaler."""

from collections.abc import Callable

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.extender.state.actions import LiftGate
from linkwise.extender.state.extender_calls import Outcome
from linkwise.kube.objects import Condition, Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster, change

OURS = names.GATE
AFTER = 20.0


def cluster(*nodes: str, after: float | None = AFTER, preempt: Preempt = Preempt.NEVER) -> Cluster:
    at = Cluster(CoreSettings(lift_gates_after_seconds=after, preempt=preempt))
    for node in nodes:
        at.add_node(node, "hgx-h100")
    return at


def lifted(at: Cluster, seconds: float = 0.0) -> list[str]:
    """Let so much time pass; return the pods whose gates were lifted then."""
    return [a.pod.name for a in at.pass_time(seconds) if isinstance(a, LiftGate)]


def test_a_gang_without_room_loses_its_gates_together_after_a_while() -> None:
    at = cluster("n1")
    at.add_gang("g", 2, gates=[OURS])
    assert lifted(at) == []
    assert lifted(at, AFTER - 0.1) == []
    due = at.core.next_due()
    assert due is not None
    assert due <= at.now + 0.2  # no change has to come for it
    assert lifted(at, 0.2) == ["g-0", "g-1"]
    assert at.core.decide(at.now) == ()
    assert set(at.filter("g-0").failed.values()) == {"linkwise: gang g: no room for the whole gang"}
    assert at.sound()


def test_without_the_setting_gates_stay() -> None:
    at = cluster("n1", after=None)
    at.add_gang("g", 2, gates=[OURS])
    at.settle()
    assert lifted(at, 100 * AFTER) == []


def test_it_needs_no_node_at_all() -> None:
    at = cluster()
    at.add_gang("g", 2, gates=[OURS])
    at.add_pod("p", 1, gates=[OURS])
    at.settle()
    assert lifted(at, AFTER) == ["g-0", "g-1", "p"]


def test_the_node_that_comes_gets_the_whole_gang_at_once() -> None:
    at = cluster("n1")
    at.add_gang("g", 2, gates=[OURS])
    at.settle()
    at.pass_time(AFTER)
    at.add_node("n2", "hgx-h100")
    at.settle()
    assert [at.pod(f"g-{rank}").status.nominated_node_name for rank in range(2)] == ["n1", "n2"]
    assert [at.schedule(f"g-{rank}") for rank in range(2)] == ["n1", "n2"]
    at.settle()
    assert at.phase("g") == "running"
    assert at.sound()


def test_a_gang_that_gets_room_in_time_is_planned_behind_its_gates() -> None:
    at = cluster("n1")
    at.add_gang("g", 2, gates=[OURS])
    at.settle()
    at.pass_time(AFTER / 2)
    at.add_node("n2", "hgx-h100")
    planned = at.pass_time(0.1)
    assert [type(action).__name__ for action in planned] == ["WritePlan"] * 2 + ["LiftGate"] * 2
    assert lifted(at, AFTER) == []


def test_the_wait_begins_again_with_the_last_member() -> None:
    """An incomplete gang needs no nodes: an autoscaler would add too few, and for nothing."""
    at = cluster("n1")
    at.add_pod("g-0", 8, gates=[OURS], gang="g", gang_size="2")
    at.settle()
    assert lifted(at, 10 * AFTER) == []
    at.add_pod("g-1", 8, gates=[OURS], gang="g", gang_size="2")
    at.settle()
    assert lifted(at, AFTER - 0.1) == []
    assert lifted(at, 0.2) == ["g-0", "g-1"]


def test_a_gang_with_a_member_behind_another_gate_stays_whole() -> None:
    at = cluster("n1")
    at.add_pod("g-0", 8, gates=[OURS], gang="g", gang_size="3")
    at.add_pod("g-1", 8, gates=[OURS, "kueue.x-k8s.io/admission"], gang="g", gang_size="3")
    at.add_pod("g-2", 8, gates=[OURS], gang="g", gang_size="3")
    at.settle()
    assert lifted(at, 10 * AFTER) == []
    at.lift("g-1", "kueue.x-k8s.io/admission")
    at.settle()
    assert lifted(at, AFTER) == ["g-0", "g-1", "g-2"]


def test_what_waits_for_its_turn_only_is_visible_too() -> None:
    """The GPUs are free and reserved: both gangs together need more nodes than there are."""
    at = cluster("n1", "n2")
    at.add_pod("old", 8)
    at.schedule("old")
    at.add_gang("first", 2, gates=[OURS])
    at.add_pod("second", 8, gates=[OURS])
    at.settle()
    assert "second" in lifted(at, AFTER)


def test_a_gang_whose_victims_still_end_keeps_its_gates() -> None:
    at = cluster("n1", preempt=Preempt.LOWER_PRIORITY)
    at.add_pod("old", 8)
    at.schedule("old")
    at.start("old")
    at.add_pod("g-0", 8, gates=[OURS], gang="g", gang_size="1", priority=1000)
    at.settle()
    assert at.evicted == ["old"]
    assert lifted(at, AFTER) == []  # the victim takes its time to end
    at.stop("old", "n1")
    at.delete("old")
    planned = at.settle()
    assert [type(a).__name__ for a in planned if not hasattr(a, "node")][-1:] == ["LiftGate"]
    assert at.schedule("g-0") == "n1"


def test_a_lift_that_failed_is_tried_again() -> None:
    at = cluster("n1")
    at.add_gang("g", 2, gates=[OURS])
    at.settle()
    at.now += AFTER
    first, second = at.core.decide(at.now)[-2:]
    at.core.done(first, Outcome.UNKNOWN, at.now)
    at.core.done(second, at.carry_out(second), at.now)
    at.settle()
    assert at.gates("g-0") == [OURS]
    assert lifted(at, AFTER) == ["g-0"]


def test_a_new_extender_counts_from_its_start() -> None:
    at = cluster("n1")
    at.add_gang("g", 2, gates=[OURS])
    at.settle()
    at.pass_time(AFTER - 1)
    at.restart()
    at.settle()
    assert lifted(at, AFTER - 1) == []
    assert lifted(at, 1) == ["g-0", "g-1"]


def batch(pod: Pod) -> Pod:
    return change(pod, spec=change(pod.spec, restart_policy="Never"))


def says(message: str) -> Callable[[Pod], Pod]:
    """kube-scheduler's verdict about the pod."""
    why = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=message)
    return lambda pod: change(pod, status=change(pod.status, conditions=(why,)))


def test_a_pod_keeps_its_reservation_while_kube_scheduler_has_not_tried_it() -> None:
    """Found: in the moment of the lift, those behind it got its GPUs."""
    at = cluster("n1")
    at.add_pod("runs", 1, alter=batch)
    at.bind("runs", "n1")
    at.start("runs")
    at.add_pod("first", 8, gates=[OURS], alter=batch)
    at.settle()
    at.pass_time(5.0)
    at.add_pod("behind", 2, gates=[OURS], alter=batch)
    at.settle()
    assert at.plan("behind") is None
    assert lifted(at, AFTER - 5.0) == ["first"]
    assert at.plan("behind") is None
    at.put_pod(says("0/1 nodes are available: 1 linkwise: fewer free GPUs.")(at.pod("first")))
    at.settle()
    assert at.plan("behind") is None
    at.put_pod(says("0/1 nodes are available: 1 node(s) had no volume.")(at.pod("first")))
    at.settle()
    at.pass_time(60.0)
    assert at.plan("behind") is not None  # the first one waits for something else
