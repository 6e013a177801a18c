"""Of single pods that are alike the first speaks for those behind it: nothing else comes of it."""

import random
from unittest.mock import patch

import pytest

from linkwise.extender.roll import Roll
from linkwise.extender.scheduler import CoreSettings
from linkwise.kube.objects import Condition, Pod
from tests.extender.cluster import Cluster, change

NO_GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
TURNED_AWAY = (Condition("PodScheduled", "False", "Unschedulable", NO_GPUS),)


def turned_away(pod: Pod) -> Pod:
    return change(pod, status=change(pod.status, conditions=TURNED_AWAY))


def live_through(seed: int) -> tuple[list[object], Cluster]:
    """What was held and where everybody was after each event."""
    draw = random.Random(seed)
    at = Cluster(CoreSettings())
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
        at.settle()
        for name in there:
            pod = at.find(name)
            if pod is not None and pod.status.nominated_node_name and not pod.spec.node_name:
                at.schedule(name)
        holds = [(hold.key.title, dict(hold.gpus)) for hold in at.core.holds.all()]
        nodes = {pod.metadata.name: pod.spec.node_name for pod in at.pods.values()}
        seen.append((holds, nodes))
    return seen, at


@pytest.mark.parametrize("seed", range(5))
def test_one_speaks_for_all_and_nothing_else_comes_of_it(seed: int) -> None:
    quick, at = live_through(seed)
    with patch.object(Roll, "wishes_alone", lambda *_: None):  # each speaks for itself
        slow, _ = live_through(seed)
    assert quick == slow
    assert at.sound()
