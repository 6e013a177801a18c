"""Pods of another priority than their PodGroup's: kube-scheduler 1.37 tries none of them, so they
get no GPUs, evict none, and say why, unless kube-scheduler calls about them in spite of it."""

import msgspec
import pytest

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.kube.objects import Condition, Pod, SchedulingGate
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.owned import SURELY, create, planned, there_is
from tests.pods.podgrouper.pods import Object, owner, pod

MEMBERS = ("w-0", "w-1")
WHY = (
    "its PodGroup has priority 0, pod w-0 has 100: kube-scheduler 1.37 tries no such group; "
    "write one priorityClassName on both"
)
REFUSED = (
    "all pods in a single pod group should have the same priority as the pod group's priority, "
    "got 100 and 0"
)


def group(**spec: object) -> Object:
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    return owner("scheduling.k8s.io/v1beta1 PodGroup", "g", {**policy, **spec})


def members(priority: int = 100, *, gated: bool = False) -> list[Pod]:
    gates = (SchedulingGate(name=names.GATE),) if gated else ()
    made = [
        msgspec.convert(
            pod(name, gpus=8, schedulingGroup={"podGroupName": "g"}, priority=priority), Pod
        )
        for name in MEMBERS
    ]
    return [change(each, spec=change(each.spec, scheduling_gates=gates)) for each in made]


def full() -> Cluster:
    """Two nodes, and on each a pod that may be evicted for more important ones."""
    at = Cluster(CoreSettings(preempt=Preempt.LOWER_PRIORITY))
    for number in range(2):
        at.add_node(f"n{number}", "dgx-a100")
        at.add_pod(f"humble-{number}", 8, priority=1)
        at.bind(f"humble-{number}", f"n{number}")
    at.settle()
    at.add_pod("before", 8)
    assert not at.schedule("before")  # so this scheduler calls
    return at


def say(at: Cluster, name: str, reason: str, message: str) -> None:
    made = at.pod(name)
    said = (Condition("PodScheduled", "False", reason=reason, message=message),)
    at.put_pod(change(made, status=change(made.status, conditions=said)))


@pytest.mark.parametrize("gated", [False, True])
def test_such_a_gang_evicts_none_and_says_why(*, gated: bool) -> None:
    at = full()
    there_is(at, group(priority=0))
    create(at, *members(gated=gated))
    at.pass_time(SURELY)
    assert (at.evicted, planned(at)) == ([], [])
    told = f"gang ml/PodGroup.scheduling.k8s.io/g: {WHY}"
    assert {e.message for e in at.events if e.reason == "GangWaiting"} == {told}
    # Only a pod without gates is tried, and so gets kube-scheduler's own words too.
    assert [at.gates(name) for name in MEMBERS] == [[], []]
    for name in MEMBERS:
        say(at, name, "SchedulerError", REFUSED)
    at.pass_time(SURELY)
    assert (at.evicted, planned(at)) == ([], [])


@pytest.mark.parametrize("spec", [{"priority": 100}, {}])
def test_a_gang_of_its_groups_priority_evicts_others(spec: dict[str, object]) -> None:
    """An object without the field is of 1.36, which asks for no priority."""
    at = full()
    there_is(at, group(**spec))
    create(at, *members())
    at.pass_time(SURELY)
    assert sorted(at.evicted) == ["humble-0", "humble-1"]


@pytest.mark.parametrize("gated", [False, True])
def test_a_scheduler_that_tries_its_pods_in_spite_of_it_gets_a_plan(*, gated: bool) -> None:
    """Without the feature gate, as the second scheduler has it, kube-scheduler calls about each."""
    at = full()
    there_is(at, group(priority=0))
    create(at, *members(gated=gated))
    at.pass_time(SURELY)
    assert not at.filter("w-0").node_names
    at.settle()
    at.pass_time(SURELY)
    assert sorted(at.evicted) == ["humble-0", "humble-1"]
