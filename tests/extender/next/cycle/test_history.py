"""What was decided, for whom and why, is told once: as it is carried out."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.extender.next.preemption.gang_preemption import IDLING_SECONDS, TRY_SECONDS
from linkwise.extender.state.actions import (
    Action,
    Beneficiary,
    Correct,
    Evict,
    LiftGate,
    Nominate,
    PodRef,
    WithdrawPlan,
    WritePlan,
)
from linkwise.extender.state.decisions import Decision, History, What, of_action, of_reservation
from linkwise.extender.state.extender_calls import Outcome
from linkwise.extender.state.records import GangKey
from linkwise.topology import names
from tests.extender.cluster import Cluster, container

POD = PodRef("ml", "w-0", "uid-w-0")
GANG = GangKey("ml", "big")
TO = Beneficiary("gang ml/big", 100, PodRef("ml", "big-0", "uid-big-0"))
GPUS = {names.GPUS: '{"main":["GPU-1","GPU-2"]}'}


def told(at: Cluster) -> list[str]:
    return [decision.sentence for decision in at.core.take_decisions()]


def cluster(nodes: int = 1, preempt: Preempt = Preempt.CONSENTING) -> Cluster:
    at = Cluster(CoreSettings(preempt=preempt))
    for number in range(1, nodes + 1):
        at.add_node(f"n{number}", "hgx-h100")
    return at


def add_gang(at: Cluster, name: str, size: int, gpus: int = 8, priority: int = 0) -> None:
    for rank in range(size):
        said = {"gang": name, "gang_size": str(size), "rank": str(rank)}
        at.add_pod(f"{name}-{rank}", gpus, priority=priority, said=said)
    at.settle()


def run(at: Cluster, name: str, gpus: int, node: str, **said: str) -> None:
    at.add_pod(name, gpus, said=said)
    at.bind(name, node)
    at.settle()


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (WritePlan(POD, "n1", GPUS), "planned ml/w-0 on n1"),
        (
            WithdrawPlan(POD, (names.PLAN,), "for gang ml/big, which is more important", "n1"),
            "withdrew the plan of ml/w-0: for gang ml/big, which is more important",
        ),
        (LiftGate(POD), "lifted the gate of ml/w-0"),
        (Correct(POD, GPUS), "corrected the GPUs of ml/w-0"),
        (
            Evict(POD, "to make room for gang ml/big", priority=7, for_whom=TO),
            "evicted ml/w-0: to make room for gang ml/big (priority 7, for priority 100)",
        ),
        (Evict(POD, "gang low: not all members came"), "evicted ml/w-0: gang low: not all members"),
    ],
)
def test_a_decision_is_a_sentence(action: Action, sentence: str) -> None:
    decision = of_action(action, None, 5.0)
    assert decision is not None
    assert (decision.at, decision.pod) == (5.0, "ml/w-0")
    assert decision.sentence.startswith(sentence)


@pytest.mark.parametrize("action", [Nominate(POD, "n1"), WithdrawPlan(POD, ())])
def test_what_only_wakes_a_pod_is_no_decision(action: Action) -> None:
    assert of_action(action, None, 5.0) is None


def test_a_reason_is_one_line_also_if_a_tenant_wrote_it() -> None:
    decision = of_action(Evict(POD, "gang a\nevicted ml/b\x1b[31m"), None, 5.0)
    assert decision is not None
    assert decision.why == "gang a evicted ml/b [31m"


def test_a_long_reason_and_many_nodes_are_cut() -> None:
    gpus = {f"n{number:04}": 0xFF for number in range(1000)}
    decision = of_reservation(What.RESERVED, GANG, 5.0, "x" * 5000, gpus)
    assert decision.where.startswith("n0000, n0001, ")
    assert decision.where.endswith(", n0015 and 984 more")
    assert decision.count == 8000
    assert decision.why == "x" * 1023 + "…"
    assert decision.bytes < 2000


def test_the_ring_is_bounded_in_number_and_in_bytes() -> None:
    ring = History(most=3)
    ring.add(Decision(float(at), What.PLANNED, "ml/a") for at in range(5))
    assert [decision.at for decision in ring.decisions] == [2.0, 3.0, 4.0]
    assert ring.dropped == 2
    small = History(most_bytes=5000)
    small.add(Decision(float(at), What.EVICTED, "ml/a", why="x" * 1000) for at in range(9))
    assert [decision.at for decision in small.decisions] == [6.0, 7.0, 8.0]


def test_no_namespace_drops_the_decisions_about_others() -> None:
    ring = History(most=6)
    ring.add(Decision(float(at), What.PLANNED, f"{'ab'[at % 2]}/x") for at in range(4))
    ring.add(Decision(float(at), What.PLANNED, "busy/x") for at in range(4, 100))
    assert [decision.at for decision in ring.decisions] == [0.0, 1.0, 2.0, 3.0, 98.0, 99.0]
    assert ring.dropped == 94


def test_each_decision_is_told_once() -> None:
    ring = History()
    ring.add([Decision(1.0, What.PLANNED, "ml/a")])
    assert len(ring.take_untold()) == 1
    assert ring.take_untold() == ()
    assert len(ring.decisions) == 1


def test_a_plan_and_its_end() -> None:
    at = cluster()
    add_gang(at, "train", 2, 4)
    assert told(at) == ["planned ml/train-0 on n1", "planned ml/train-1 on n1"]
    for rank in range(2):
        assert at.schedule(f"train-{rank}") == "n1"
    at.settle()
    (first, second) = at.core.take_decisions()
    assert first.sentence == "bound ml/train-0 to n1"
    assert (first.gang, first.count, [*first.gpus]) == ("ml/train", 4, ["main"])
    assert second.what is What.BOUND


def test_gpus_that_an_init_container_hands_on_count_once() -> None:
    at = cluster()
    at.add_pod("a", init=[container("init", 4)], containers=[container("main", 2)])
    at.schedule("a")
    (decision,) = at.core.take_decisions()
    assert (decision.count, [*decision.gpus]) == (4, ["init", "main"])


def test_a_nomination_that_is_repeated_is_no_second_plan() -> None:
    at = cluster()
    add_gang(at, "train", 1)
    assert told(at) == ["planned ml/train-0 on n1"]
    at.nominate("train-0", "")
    for _ in range(10):
        at.pass_time(1.0)
    assert at.pod("train-0").status.nominated_node_name == "n1"
    assert told(at) == []


def test_a_withdrawal_says_for_whom_as_its_event_does() -> None:
    at = cluster()
    add_gang(at, "hog", 2, 4)
    add_gang(at, "urgent", 2, 4, priority=1000)
    told(at)
    for _ in range(int(IDLING_SECONDS + 2 * TRY_SECONDS)):
        at.pass_time(1.0)
    (event,) = (event for event in at.events if event.reason == "Withdrawn")
    lost = [each for each in at.core.take_decisions() if each.what is What.WITHDRAWN]
    assert [each.pod for each in lost] == ["ml/hog-0", "ml/hog-1"]
    assert {each.nodes for each in lost} == {("n1",)}
    assert {f"its plan was withdrawn {each.why}" for each in lost} == {event.message}


def test_a_plan_that_replaces_one_says_why() -> None:
    at = cluster()
    add_gang(at, "late", 2, 4)
    told(at)
    for _ in range(70):
        at.pass_time(10.0)
    assert told(at) == [
        f"planned ml/late-{rank} on n1: the plan before was withdrawn: "
        "not all members were bound in time (late-0, late-1)"
        for rank in range(2)
    ]


def test_an_eviction_says_for_whom_and_the_priorities() -> None:
    at = cluster()
    run(at, "low", 8, "n1", preemptible="true")
    told(at)
    add_gang(at, "big", 1, priority=100)
    (evicted,) = (each for each in at.core.take_decisions() if each.what is What.EVICTED)
    assert (evicted.pod, evicted.for_whom, evicted.nodes) == ("ml/low", "gang ml/big", ("n1",))
    assert (evicted.priority, evicted.for_priority) == (0, 100)


def test_an_eviction_has_events_on_the_victim_and_on_who_gets_the_room() -> None:
    at = cluster()
    run(at, "low", 8, "n1", preemptible="true")
    add_gang(at, "big", 1, priority=100)
    events = [
        (event.pod.name, event.reason, event.message)
        for event in at.events
        if "evicted" in event.message
    ]
    why = "evicted to make room for gang ml/big, which is more important"
    assert events == [
        ("low", "Preempted", why),
        ("big-0", "OthersEvicted", f"pod ml/low was {why}"),
    ]


def test_a_reservation_is_told_of_once_and_when_it_ends() -> None:
    at = cluster()
    run(at, "busy", 2, "n1", expected_duration="1h")
    told(at)
    add_gang(at, "big", 1)
    (line,) = told(at)
    assert line.startswith("reserved 8 GPUs on n1 for gang ml/big: all are free at 1970-01-12 ")
    assert "estimate" not in line
    for _ in range(100):
        at.pass_time(10.0)
    assert told(at) == []
    at.delete("busy")
    at.settle()
    assert sorted(told(at)) == [
        "gave up the reservation of gang ml/big: it got GPUs",
        "planned ml/big-0 on n1",
    ]


def test_a_reservation_of_one_that_is_gone_is_given_up() -> None:
    at = cluster()
    run(at, "busy", 2, "n1", expected_duration="1h")
    add_gang(at, "big", 1)
    told(at)
    at.delete("big-0")
    at.settle()
    assert told(at) == ["gave up the reservation of gang ml/big: it no longer waits for GPUs"]


def test_a_reservation_that_is_better_elsewhere_moves() -> None:
    at = cluster(nodes=2)
    run(at, "long", 2, "n1", expected_duration="3h")
    run(at, "longer", 2, "n2", expected_duration="6h")
    add_gang(at, "big", 1)
    assert told(at)[-1].startswith("reserved 8 GPUs on n1 for gang ml/big")
    at.cordon("n1")
    at.settle()
    (line,) = told(at)
    assert line.startswith("moved the reservation of gang ml/big to 8 GPUs on n2: all are free at ")


def test_a_new_leader_tells_of_the_reservation_that_it_restores() -> None:
    at = cluster()
    run(at, "busy", 2, "n1", expected_duration="1h")
    add_gang(at, "big", 1)
    at.restart()
    at.settle()
    (line,) = (line for line in told(at) if "reserv" in line)
    assert line.startswith("reserved 8 GPUs on n1")


def test_a_write_that_failed_is_no_decision() -> None:
    at = cluster()
    at.add_pod("w-0", 8, said={"gang": "w", "gang_size": "1"})
    (plan,) = (each for each in at.core.decide(at.now) if isinstance(each, WritePlan))
    at.core.done(plan, Outcome.UNKNOWN, at.now)
    assert told(at) == []
