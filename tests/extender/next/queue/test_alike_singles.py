"""Of single pods that are alike the first speaks for those behind it: nothing else comes of it."""

import random
from collections.abc import Callable
from unittest.mock import patch

import pytest

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.extender.next.gangs.registry import GangRegistry
from linkwise.extender.next.queue.run_times import MANY
from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.kube.objects import Condition, OwnerReference, Pod
from tests.extender.cluster import Cluster, change

NO_GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
TURNED_AWAY = (Condition("PodScheduled", "False", "Unschedulable", NO_GPUS),)


def turned_away(pod: Pod) -> Pod:
    return change(pod, status=change(pod.status, conditions=TURNED_AWAY))


def live_through(seed: int, order: QueueOrder) -> tuple[list[object], Cluster]:
    """What was reserved and where every pod was after each event."""
    draw = random.Random(seed)
    at = Cluster(CoreSettings(queue_order=order))
    for number in range(3):
        at.add_node(f"n{number}", draw.choice(("hgx-h100", "dgx1-v100")))
    seen: list[object] = []
    for number in range(60):
        at.now += draw.choice((1, 60, 900))
        there = sorted(pod.metadata.name for pod in at.pods.values())
        what = draw.random()
        if what < 0.5 or not there:
            said = {"expected_duration": "10m"} if draw.random() < 0.2 else {}
            gates = ["linkwise.dev/plan"] if draw.random() < 0.2 else []
            size, priority = draw.choice((1, 2, 2, 8, 8)), draw.choice((0, 0, 0, 1))
            at.add_pod(f"p{number}", size, said=said, gates=gates, priority=priority)
            if not gates and not at.schedule(f"p{number}"):
                at.put_pod(turned_away(at.pod(f"p{number}")))
        elif what < 0.9:
            at.delete(draw.choice(there))
        else:
            at.restart()
        for bound in [pod for pod in at.pods.values() if pod.spec.node_name]:
            at.set_phase(bound.metadata.name, "Running")
        at.settle()
        for name in there:
            pod = at.find(name)
            if pod is not None and pod.status.nominated_node_name and not pod.spec.node_name:
                at.schedule(name)
        holds = [(hold.key.title, dict(hold.gpus)) for hold in at.core.reservations.all()]
        nodes = {pod.metadata.name: pod.spec.node_name for pod in at.pods.values()}
        seen.append((holds, nodes))
    return seen, at


@pytest.mark.parametrize("order", QueueOrder)
@pytest.mark.parametrize("seed", range(5))
def test_one_speaks_for_all_and_nothing_else_comes_of_it(seed: int, order: QueueOrder) -> None:
    quick, at = live_through(seed, order)
    with patch.object(GangRegistry, "request_of_single", lambda *_: None):  # each speaks for itself
        slow, _ = live_through(seed, order)
    assert quick == slow
    assert at.sound()


def run(at: Cluster, name: str, node: str, **said: str) -> None:
    at.add_pod(name, 8, said=said)
    at.bind(name, node)
    at.settle()


def of_a_job(pod: Pod) -> Pod:
    owner = OwnerReference(kind="Job", name=pod.metadata.name, uid="job", controller=True)
    return change(pod, metadata=change(pod.metadata, owner_references=(owner,)))


def as_it_says(at: Cluster) -> None:
    at.add_pod("short", 8, said={"expected_duration": "10m"}, alter=turned_away)


def as_its_like_did(at: Cluster) -> None:
    at.add_pod("short", 8, alter=lambda pod: of_a_job(turned_away(pod)))


@pytest.mark.parametrize("waits", [as_it_says, as_its_like_did])
def test_one_that_may_pass_is_not_spoken_for_by_one_that_may_not(
    waits: Callable[[Cluster], None],
) -> None:
    at = Cluster(CoreSettings())
    for node in ("n1", "n2"):
        at.add_node(node)
    for number in range(MANY):
        at.add_pod(f"before-{number}", 8, alter=of_a_job)
        at.bind(f"before-{number}", "n1")
        at.set_phase(f"before-{number}", "Running")
        at.pass_time(600)
        at.delete(f"before-{number}")
    run(at, "first-n1", "n1", expected_duration="2m")
    run(at, "first-n2", "n2", expected_duration="2h")
    at.add_gang("g", 2, 8)
    at.settle()
    at.now += 1
    at.add_pod("long", 8, alter=turned_away)
    at.settle()
    at.now += 1
    waits(at)
    at.settle()
    at.delete("first-n1")
    at.settle()
    assert at.plan("long") is None
    plan = at.plan("short")
    assert plan is not None
    assert plan.node == "n1"


def test_each_keeps_what_others_are_evicted_for() -> None:
    at = Cluster(CoreSettings(preempt=Preempt.LOWER_PRIORITY))
    for node in ("n1", "n2"):
        at.add_node(node)
        run(at, f"humble-{node}", node)
        at.start(f"humble-{node}")
    for name in ("a", "b"):
        at.add_pod(name, 8, priority=1, gates=["linkwise.dev/plan"])
    at.settle()
    at.pass_time(5)
    assert sorted(at.evicted) == ["humble-n1", "humble-n2"]
    assert [hold.by_preemption for hold in at.core.reservations.all()] == [True, True]
