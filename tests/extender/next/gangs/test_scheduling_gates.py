"""Pods behind the gate `linkwise.dev/plan`: planned while they wait, nominated, then let go."""

import msgspec
import pytest

from linkwise.extender.next.gangs import scheduling_gates
from linkwise.extender.next.gangs.members import LONGEST_SECONDS
from linkwise.extender.next.gangs.scheduling_gates import PATIENCE_SECONDS, why_no_node
from linkwise.extender.place.nodes.best_node import BestNode
from linkwise.extender.state.actions import LiftGate, WritePlan
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.pending_writes import EVENT_SECONDS, LONGEST_PAUSE_SECONDS
from linkwise.extender.state.extender_calls import BindOrder, BindRefusal, Outcome
from linkwise.kube.objects import Pod, SchedulingGate
from linkwise.topology import names
from tests.extender.cluster import change
from tests.extender.next.gangs.gated import OURS, cluster, told
from tests.extender.owned import INDEX, job, there_is
from tests.pods.podgrouper.pods import pod

GATE = SchedulingGate(name=OURS)

KUEUE = "kueue.x-k8s.io/admission"


def test_a_gated_pod_is_planned_nominated_and_then_let_go() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    done = at.settle()
    assert [type(action) for action in done] == [WritePlan, LiftGate]
    assert at.pod("p").status.nominated_node_name == "n1"
    assert at.gates("p") == []
    assert at.schedule("p") == "n1"
    assert at.core.gangs(at.now) == ()
    assert at.sound()


def test_its_gpus_are_held_from_the_plan_on() -> None:
    at = cluster("n1")
    at.add_pod("p", 6, gates=[OURS])
    at.settle()
    at.add_pod("q", 4)
    assert at.free("n1") == 2
    assert not at.filter("q").node_names
    assert at.sound()


def test_the_gate_stays_until_the_plan_is_written() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    (write,) = at.core.decide(at.now)
    assert isinstance(write, WritePlan)
    assert at.core.decide(at.now) == ()
    at.core.done(write, Outcome.REFUSED, at.now)
    assert not [a for a in at.core.decide(at.now) if isinstance(a, LiftGate)]
    at.pass_time(2.0)  # the plan is written after a pause, and then the gate is lifted
    assert at.gates("p") == []


def test_all_of_a_gang_are_nominated_before_the_first_gate_is_lifted() -> None:
    at = cluster()
    members = at.add_gang("g", 2, gates=[OURS])
    first, second = at.core.decide(at.now)
    at.core.done(first, at.carry_out(first), at.now)
    assert at.core.decide(at.now) == ()
    at.core.done(second, at.carry_out(second), at.now)
    assert [type(action) for action in at.settle()] == [LiftGate, LiftGate]
    assert [at.schedule(member) for member in members] == ["n1", "n2"]
    at.settle()
    assert at.phase("g") == "running"


def test_a_gang_may_be_gated_in_part() -> None:
    at = cluster()
    at.add_pod("g-0", 8, gates=[OURS], gang="g", gang_size="2")
    at.settle()
    assert at.gates("g-0") == [OURS]
    at.add_pod("g-1", 8, gang="g", gang_size="2")
    at.settle()
    assert at.gates("g-0") == []


def test_a_member_without_gpus_is_let_go_with_its_gang() -> None:
    at = cluster()
    at.add_pod("g-0", 0, gates=[OURS], gang="g", gang_size="2")
    at.settle()
    assert at.gates("g-0") == [OURS]
    at.add_pod("g-1", 8, gates=[OURS], gang="g", gang_size="2")
    at.settle()
    assert (at.gates("g-0"), at.gates("g-1")) == ([], [])


def test_what_fits_nowhere_stays_gated_takes_nothing_and_is_told_why() -> None:
    at = cluster("n1")
    at.add_pod("old", 4)
    at.schedule("old")
    at.add_pod("p", 8, gates=[OURS])
    at.settle()
    assert at.free("n1") == 4
    assert told(at, "p") == []  # not before it has waited for a moment
    at.pass_time(PATIENCE_SECONDS)
    assert told(at, "p") == [
        "pod ml/p: no node has room for it (fewer free GPUs than wanted); "
        "see `kubectl linkwise explain -n ml p`"
    ]
    assert at.gates("p") == [OURS]
    at.delete("old")
    at.settle()
    assert at.gates("p") == []
    assert at.schedule("p") == "n1"


def test_a_gang_that_does_not_fit_stays_gated_and_is_told_why() -> None:
    at = cluster("n1")
    at.add_gang("g", 2, gates=[OURS])
    at.pass_time(0)
    at.pass_time(PATIENCE_SECONDS)
    assert told(at, "g-0") == ["gang ml/g: no room for the whole gang"]
    assert at.gates("g-0") == [OURS]
    assert at.free("n1") == 8


def test_why_those_that_are_alike_wait_is_worked_out_once_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands may wait, and each time the extender looks at all nodes, under the lock."""
    asked: list[GpuRequest] = []

    def counted(
        books: Cache, best_node: BestNode, resource: str, wish: GpuRequest, way: int
    ) -> str:
        asked.append(wish)
        return why_no_node(books, best_node, resource, wish, way)

    monkeypatch.setattr(scheduling_gates, "why_no_node", counted)
    at = cluster("n1")
    at.add_pod("old", 7)
    at.schedule("old")
    at.add_pod("other", 8, gates=[OURS, KUEUE])
    for number in range(20):
        at.add_pod(f"p-{number}", 2 if number % 2 else 4, gates=[OURS])
    at.settle()
    at.pass_time(PATIENCE_SECONDS)
    assert sorted(wish.size for wish in asked) == [2, 4]
    assert {tuple(told(at, f"p-{number}")) for number in range(20)} == {
        (
            f"pod ml/p-{number}: no node has room for it (fewer free GPUs than wanted); "
            f"see `kubectl linkwise explain -n ml p-{number}`",
        )
        for number in range(20)
    }
    at.remove_node("n1")  # what was true a round ago is not reported forever
    at.pass_time(EVENT_SECONDS)
    assert "no node has room for it (there are no nodes);" in told(at, "p-0")[-1]


def test_a_gate_that_can_never_be_lifted_is_no_lack_of_room() -> None:
    at = cluster("n1")
    at.add_pod("p", 4, gates=[OURS])
    at.add_gang("g", 1, 4, gates=[OURS])
    for _ in range(470):  # nearly until they are tried again
        for action in at.core.decide(at.now):
            lifts = isinstance(action, LiftGate)
            outcome = Outcome.REFUSED if lifts else at.carry_out(action)
            at.core.done(action, outcome, at.now)
        at.now += 5
    assert at.free("n1") == 8
    assert told(at, "p") == [
        "pod ml/p: it was not bound in time",  # after the first plan
        "pod ml/p: it was not bound in time",  # after the last
        "pod ml/p: its plans came to nothing (it was not bound in time)",
    ]
    assert set(told(at, "g-0")) == {"gang ml/g: not all members were bound in time (g-0)"}


def test_the_reason_is_told_again_before_it_is_forgotten() -> None:
    at = cluster("n1")
    at.add_gang("g", 2, gates=[OURS])
    at.settle()
    at.pass_time(PATIENCE_SECONDS)
    at.pass_time(EVENT_SECONDS - 1)
    assert len(told(at, "g-0")) == 1
    at.pass_time(1)
    assert len(told(at, "g-0")) == 2


def test_a_pod_behind_another_gate_too_takes_no_gpus_yet() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[KUEUE, OURS])
    at.settle()
    at.pass_time(PATIENCE_SECONDS)
    assert at.free("n1") == 8
    assert at.gates("p") == [KUEUE, OURS]
    assert told(at, "p") == ["pod ml/p: waits behind another scheduling gate"]
    explained = at.core.explain("ml", "p", at.now)
    assert explained is not None
    assert "another scheduling gate" in explained.summary
    at.lift("p", KUEUE)
    at.settle()
    assert at.gates("p") == []


def test_a_pod_behind_the_gates_of_others_alone_is_left_alone() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[KUEUE])
    assert at.settle() == []
    at.lift("p", KUEUE)
    assert at.settle() == []  # filter decides on it, as on any pod
    assert at.schedule("p") == "n1"


def test_a_gang_waits_for_a_member_behind_the_gate_of_another() -> None:
    at = cluster()
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    at.add_pod("g-1", 8, gates=[KUEUE], gang="g", gang_size="2")
    assert at.settle() == []
    text = "linkwise: gang g waits for members behind another scheduling gate"
    assert set(at.filter("g-0").failed.values()) == {text}
    at.lift("g-1", KUEUE)
    at.settle()
    assert at.schedule("g-0")
    assert at.schedule("g-1")


def test_a_gang_waits_for_a_member_without_gpus_behind_the_gate_of_another() -> None:
    at = cluster()
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    at.add_pod("g-1", 0, gates=[KUEUE], gang="g", gang_size="2")
    assert at.settle() == []
    at.pass_time(LONGEST_SECONDS)
    assert at.plan("g-0") is None
    at.lift("g-1", KUEUE)
    at.settle()
    assert at.plan("g-0") is not None


def test_a_gate_with_nothing_behind_it_to_plan_is_lifted() -> None:
    at = cluster()
    at.add_pod("web", 0, gates=[KUEUE, OURS])
    assert [type(action) for action in at.settle()] == [LiftGate]
    assert at.gates("web") == [KUEUE]


def test_the_gate_of_a_member_without_gpus_stays_until_its_gang_is_known() -> None:
    at = cluster()
    by = job("lm", 2)
    there_is(at, by)
    said = {names.GANG: "g", names.GANG_SIZE: "2"}
    launcher = msgspec.convert(pod("lm-0-x", by, {}, {INDEX: "0", **said}, gpus=0), Pod)
    at.put_pod(change(launcher, spec=change(launcher.spec, scheduling_gates=(GATE,))))
    assert at.core.decide(at.now) == ()  # its owner was not read yet
    at.settle()
    assert at.gates("lm-0-x") == [OURS]
    at.add_pod("worker", 8, gang="g", gang_size="2", gates=[OURS])
    at.settle()
    assert (at.gates("lm-0-x"), at.gates("worker")) == ([], [])


def test_a_gated_pod_that_cannot_be_read_is_told_so_and_stays() -> None:
    at = cluster()
    at.add_pod("p", 2, gates=[OURS], require_link="wormhole")
    at.settle()
    (text,) = told(at, "p")
    assert "linkwise.dev/require-link" in text
    assert at.gates("p") == [OURS]
    at.annotate("p", require_link="nvlink")
    at.settle()
    assert at.gates("p") == []


def test_the_more_important_of_two_gated_pods_is_planned_first() -> None:
    at = cluster("n1")
    at.add_pod("low", 8, gates=[OURS])
    at.add_pod("high", 8, gates=[OURS], priority=5)
    at.settle()
    assert (at.gates("low"), at.gates("high")) == ([OURS], [])


def test_a_gated_pod_and_a_gang_are_planned_in_the_order_of_their_age() -> None:
    at = cluster("n1")
    at.add_pod("p", 8, gates=[OURS])
    at.now += 1
    at.add_gang("g", 1)
    at.settle()
    assert at.plan("p") is not None
    assert at.plan("g-0") is None


def test_a_gate_that_cannot_be_lifted_is_tried_again() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    (write,) = at.core.decide(at.now)
    at.core.done(write, at.carry_out(write), at.now)
    (lift,) = at.core.decide(at.now)
    assert isinstance(lift, LiftGate)
    at.core.done(lift, Outcome.UNKNOWN, at.now)
    assert at.core.decide(at.now) == ()
    at.pass_time(1.0)
    assert at.gates("p") == []


def test_a_gate_that_cannot_be_lifted_all_day_is_tried_twice_a_minute() -> None:
    at = cluster()
    at.add_pod("web", 0, gates=[OURS])
    (lift,) = at.core.decide(at.now)
    for _ in range(2000):
        at.core.done(lift, Outcome.REFUSED, at.now)
        assert at.core.decide(at.now) == ()
        at.now += LONGEST_PAUSE_SECONDS
        (lift,) = at.core.decide(at.now)
    assert isinstance(lift, LiftGate)


def test_a_gate_lifted_is_not_lifted_again_before_the_watch_could_show_it() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    (write,) = at.core.decide(at.now)
    at.core.done(write, at.carry_out(write), at.now)
    (lift,) = at.core.decide(at.now)
    at.core.done(lift, Outcome.DONE, at.now)
    at.now += 1
    assert at.core.decide(at.now) == ()


def test_the_bind_of_a_let_go_pod_confirms_its_plan() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    at.settle()
    assert isinstance(at.begin_bind("p", "n2"), BindRefusal)
    order = at.begin_bind("p", "n1")
    assert isinstance(order, BindOrder)
    assert order.annotations[names.PLAN] == at.pod("p").metadata.annotations[names.PLAN]


def test_writes_that_take_long_are_no_lack_of_room() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    (write,) = at.core.decide(at.now)
    assert isinstance(write, WritePlan)
    at.pass_time(2 * PATIENCE_SECONDS)
    at.annotate("p", rank="1")  # something about it changes meanwhile
    at.pass_time(2 * PATIENCE_SECONDS)
    assert told(at, "p") == []


def test_a_member_too_many_stays_gated_and_is_told_so() -> None:
    at = cluster()
    for rank in range(3):
        at.add_pod(f"g-{rank}", 4, gates=[OURS], gang="g", gang_size="2")
    at.settle()
    at.pass_time(PATIENCE_SECONDS)
    assert [at.gates(f"g-{rank}") for rank in range(3)] == [[], [], [OURS]]
    assert told(at, "g-2") == ["gang ml/g has all its members without this one"]


@pytest.mark.parametrize("end", ["ended", "leaving"])
def test_of_a_pod_that_ends_behind_its_gate_nothing_is_lifted(end: str) -> None:
    at = cluster()
    at.add_pod("web", 0, gates=[OURS])
    if end == "ended":
        at.set_phase("web", "Failed")
    else:
        at.terminate("web")
    assert at.settle() == []


def test_a_member_without_gpus_waits_for_the_room_of_the_others() -> None:
    at = cluster("n1")
    at.add_pod("old", 4)
    at.schedule("old")
    at.add_pod("g-0", 0, gates=[OURS], gang="g", gang_size="2")
    at.add_pod("g-1", 8, gates=[OURS], gang="g", gang_size="2")
    assert at.settle_but_notes() == []
    at.pass_time(PATIENCE_SECONDS)
    assert (at.gates("g-0"), at.gates("g-1")) == ([OURS], [OURS])
    assert told(at, "g-0") == ["gang ml/g: no room for the whole gang"]
    at.delete("old")
    at.settle()
    assert (at.gates("g-0"), at.gates("g-1")) == ([], [])


def test_a_member_that_is_replaced_in_a_running_gang_waits_for_no_other() -> None:
    at = cluster("n1", "n2", "n3")
    members = at.add_gang("g", 3, gates=[OURS])
    at.settle()
    assert all(at.schedule(member) for member in members)
    at.settle()
    assert at.phase("g") == "running"
    nodes = {at.pod(name).spec.node_name for name in ("g-1", "g-2")}
    at.delete("g-1")
    at.delete("g-2")
    at.settle()
    at.add_pod("g-1", 8, gates=[OURS], gang="g", gang_size="3", rank="1")
    assert [type(action) for action in at.settle()] == [WritePlan, LiftGate]
    assert at.schedule("g-1") in nodes


def test_his_gate_stays_until_his_plan_is_written() -> None:
    at = cluster("n1", "n2")
    for member in at.add_gang("g", 2, gates=[OURS]):
        at.settle()
        at.schedule(member)
    at.settle()
    at.delete("g-1")
    at.settle()
    at.add_pod("g-1", 8, gates=[OURS], gang="g", gang_size="2", rank="1")
    (write,) = at.core.decide(at.now)
    assert isinstance(write, WritePlan)
    at.core.done(write, Outcome.REFUSED, at.now)
    assert at.core.decide(at.now) == ()
    at.pass_time(2.0)
    assert at.gates("g-1") == []


def test_what_waits_for_evicted_members_to_leave_was_told_of_the_timeout() -> None:
    at = cluster()
    first, second = at.add_gang("g", 2, gates=[OURS])
    at.settle()
    at.schedule(first)
    at.delete(second)  # it never starts
    at.add_pod(second, 8, gates=[OURS, KUEUE], gang="g", gang_size="2", rank="1")
    at.settle()
    at.pass_time(600.0)
    assert at.evicted == [first]
    assert told(at, first)[-1] == "gang ml/g: not all members were bound in time (g-1)"
