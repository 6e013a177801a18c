"""A gang starts whole or not at all, whatever else its pods need.

The cause why a gang cannot start is one that the extender's planner counts or not: other resources
than GPUs, and filters of kube-scheduler that no extender can know.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from linkwise.kube.objects import Pod
from tests.all_or_nothing import gang_of
from tests.end_to_end import manifests
from tests.end_to_end.live_extender import GANG_TIMEOUT_SECONDS, HURRY
from tests.end_to_end.world import PODS, World, running_world
from tests.other_filters import Apart, Drawn
from tests.waiting import wait_for

MACHINE = "dgx-a100"
EFA = "vpc.amazonaws.com/efa"
# Of the wall clock: longer than a gang's timeout, so that a gang that started by half is evicted.
LOOK_SECONDS = GANG_TIMEOUT_SECONDS / HURRY + 1.0
# A refusal by a filter that no extender knows counts for up to 160 s of the world's clock.
SOON_SECONDS = 15.0
ROOM_FOR_ONE = {EFA: "4", "hugepages-2Mi": "8Gi", "ephemeral-storage": "900Gi"}


def only_on(workload: str, *nodes: str) -> Callable[[Pod, str, Sequence[Pod], float], str | None]:
    """A filter as of a volume: it refuses pods whose names begin so on all other nodes."""

    def refuses(pod: Pod, node: str, _there: Sequence[Pod], _now: float) -> str | None:
        is_elsewhere = pod.metadata.name.startswith(workload) and node not in nodes
        return "node(s) had volume node affinity conflict" if is_elsewhere else None

    return refuses


@dataclass(frozen=True, slots=True)
class Case:
    """A gang that cannot start whole: why, and its members' shape. The pod `holder` is the cause;
    without it the gang can start."""

    size: int
    gpus: int
    nodes: int
    other_filters: tuple[Callable[[Pod, str, Sequence[Pod], float], str | None], ...] = ()
    resource: str = ""
    holder_gpus: int = 8


CASES = {
    "anti-affinity": Case(3, 2, 3, (Apart(Drawn(0, 1)),)),
    "a volume on a full node": Case(2, 8, 3, (only_on("tr", "n1", "n2"),)),
    **{name: Case(2, 4, 2, resource=name, holder_gpus=4) for name in ROOM_FOR_ONE},
}


@contextmanager
def blocked(case: Case) -> Iterator[World]:
    with running_world([MACHINE] * case.nodes, other_filters=case.other_filters) as world:
        if case.resource:
            amounts = {case.resource: ROOM_FOR_ONE[case.resource]}
            for node in world.nodes:
                status = {"status": {"capacity": amounts, "allocatable": amounts}}
                world.client.patch(f"/api/v1/nodes/{node}/status", status)
        holder = asks(manifests.pod("holder", case.holder_gpus), case.resource)
        holder["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "n1"}
        world.submit(holder)
        wait_for(lambda: runs(world, "holder"), "the holder runs")
        yield world


def asks(pod: dict[str, Any], resource: str) -> dict[str, Any]:
    if resource:
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        limits[resource] = ROOM_FOR_ONE[resource]
    return pod


def runs(world: World, *pods: str) -> bool:
    phases = {pod.metadata.name: pod.status.phase for pod in world.read_pods()}
    return all(phases.get(name) == "Running" for name in pods)


def members_of(world: World, gang: str) -> list[Pod]:
    return [pod for pod in world.read_pods() if gang_of(pod) == f"ml/{gang}"]


def bound_of(world: World, gang: str) -> int:
    return sum(bool(pod.spec.node_name) for pod in members_of(world, gang))


def look_on(world: World, gang: str, seconds: float = LOOK_SECONDS) -> tuple[int, int]:
    """Return at how many looks a part of the gang was bound, and how many looks there were."""
    ends, partial, looks = time.monotonic() + seconds, 0, 0
    while time.monotonic() < ends:
        partial += bool(bound_of(world, gang))
        looks += 1
        time.sleep(0.05)
    return partial, looks


def wait_soon(so: Callable[[], object], what: str) -> None:
    wait_for(so, what, SOON_SECONDS)


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize("cause", CASES)
def test_a_gang_that_cannot_start_whole_does_not_start_and_then_does_at_once(
    cause: str, gated: bool
) -> None:
    case = CASES[cause]
    with blocked(case) as world:
        for member in manifests.gang("tr", case.size, case.gpus, gated=gated):
            world.submit(asks(member, case.resource))
        partial, looks = look_on(world, "tr")
        assert partial == 0, f"part of the gang was bound at {partial} of {looks} looks"
        world.delete(f"{PODS}/holder")
        members = [f"tr-{rank}" for rank in range(case.size)]
        wait_soon(lambda: runs(world, *members), "the gang runs, as its room is free")
        assert not world.broken


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
def test_a_job_that_cannot_start_whole_loses_no_pod(gated: bool) -> None:
    case = CASES["anti-affinity"]
    with blocked(case) as world:
        world.submit(manifests.gang_job("tr", case.size, case.gpus, gated=gated))
        wait_for(lambda: len(members_of(world, "tr")) == case.size, "the Job has its pods")
        partial, looks = look_on(world, "tr")
        assert partial == 0, f"part of the gang was bound at {partial} of {looks} looks"
        status = world.client.get("/apis/batch/v1/namespaces/ml/jobs/tr", dict).get("status", {})
        assert not status.get("failed"), status
        world.delete(f"{PODS}/holder")
        members = [pod.metadata.name for pod in members_of(world, "tr")]
        wait_soon(lambda: runs(world, *members), "the gang runs, as its room is free")
        assert not world.broken


def is_told_to_wait(world: World, name: str) -> bool:
    """By kube-scheduler, or behind the gate by the extender."""
    pod = world.pod(name)
    said = any(condition.reason == "Unschedulable" for condition in pod.status.conditions)
    uids = (event["involvedObject"]["uid"] for event in world.events())
    return said or pod.metadata.uid in uids


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
def test_a_pod_that_only_a_full_node_takes_keeps_no_other_node_from_others(gated: bool) -> None:
    with blocked(
        replace(CASES["a volume on a full node"], other_filters=(only_on("a", "n1"),))
    ) as w:
        w.submit(manifests.pod("a", 8, gated=gated))
        wait_for(lambda: is_told_to_wait(w, "a"), "the pod is told why it waits")
        for name in ("x0", "x1"):
            w.submit(manifests.pod(name, 8))
        wait_soon(lambda: runs(w, "x0", "x1"), "others run on the idle nodes")
        w.delete(f"{PODS}/holder")
        wait_soon(lambda: runs(w, "a"), "the pod runs, as its node is free")
