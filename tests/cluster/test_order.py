"""Order, holds and preemption with the real kube-scheduler, which asks when it likes, and may
preempt by itself."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path

import msgspec
import pytest

from linkwise.topology import names
from linkwise.topology.annotations.plan import InUse, write_in_use
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.claims_world import both_ways, by_plugin, world_with
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    NODES,
    PATIENCE_SECONDS,
    PODS,
    SchedulingWorld,
)

BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
YES = {names.PREEMPTIBLE: "true"}
LONGEST_ROUNDS = 4  # of the longest pods of the stream
# The extender reviews reservations every 30 s. A busy kube-scheduler may refuse a planned node
# before it learns that the node is free; then the pod waits for the next review.
STREAM_SECONDS = 120.0


@pytest.fixture(scope="module")
def started(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[SchedulingWorld]:
    with world_with(request.param, run_directory / "order") as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    started.clear()


def create_gang(
    world: SchedulingWorld,
    name: str,
    size: int,
    *,
    priority: int = 0,
    said: Mapping[str, str] | None = None,
) -> list[str]:
    annotations = {names.GANG: name, names.GANG_SIZE: str(size), **(said or {})}
    return [
        world.create(f"{name}-{rank}", annotations=annotations, priority=priority)
        for rank in range(size)
    ]


def terminating(world: SchedulingWorld) -> set[str]:
    pods = world.pods()
    return {pod.metadata.name for pod in pods if pod.is_leaving}


def guard(world: SchedulingWorld, pod: str) -> None:
    """Create a budget that forbids the eviction of this running, ready pod."""
    world.client.patch(f"{PODS}/{pod}", {"metadata": {"labels": {"app": "guarded"}}})
    ready = {"type": "Ready", "status": "True"}
    world.client.patch(
        f"{PODS}/{pod}/status", {"status": {"phase": "Running", "conditions": [ready]}}
    )
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    wait_for(lambda: budgets_seen(world), "the extender has listed the budgets")
    world.client.post(BUDGETS, {"metadata": {"name": "guard"}, "spec": spec})
    status = {
        "observedGeneration": 1,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
        "disruptionsAllowed": 0,
    }
    seen = budgets_seen(world)
    world.client.patch(f"{BUDGETS}/guard/status", {"status": status})
    # Budgets and pods come in two watches: the budget must be known before the first eviction.
    wait_for(lambda: budgets_seen(world) > seen, "the extender has seen the budget")
    world.create("witness", gpus=1, scheduler="none")
    wait_for(lambda: is_known(world, "witness"), "and all that happened to pods before")
    world.delete("witness")


def is_known(world: SchedulingWorld, pod: str) -> bool:
    return "state" in msgspec.json.decode(world.asked(f"/explain/{NAMESPACE}/{pod}"))


def budgets_seen(world: SchedulingWorld) -> float:
    """Return how often the extender received budgets, as an event or as a list."""
    told = re.escape('linkwise_extender_watch_events_total{kind="poddisruptionbudgets",type="')
    said = re.findall(rf'^{told}\w+"}} (\S+)$', world.asked("/metrics"), re.MULTILINE)
    return sum(map(float, said))


@both_ways
def test_a_gang_evicts_whole_gangs_but_none_that_a_budget_forbids(world: SchedulingWorld) -> None:
    """Without the budget, the youngest single pods would go."""
    first = create_gang(world, "first", 2, said=YES)
    world.wait_bound(first)
    singles = [world.create(f"single-{number}", annotations=YES) for number in range(2)]
    world.wait_bound(singles)
    guard(world, singles[0])
    try:
        urgent = create_gang(world, "urgent", 2, priority=1000)
        wait_for(lambda: terminating(world), "victims are chosen", PATIENCE_SECONDS)
        wait_for(lambda: terminating(world) == set(first), "the whole gang is", PATIENCE_SECONDS)
        assert not any(world.node_of(name) for name in urgent)
        assert "reserved for gang ml/urgent" in why_not(world)
        world.bury_terminating()
        world.wait_bound(urgent)
        assert {pod.metadata.name for pod in world.pods()} >= {*singles, *urgent}
        assert terminating(world) == set()
    finally:
        world.client.delete(f"{BUDGETS}/guard")


def why_not(world: SchedulingWorld) -> str:
    """Return a later pod's refusal while one of the victims is terminating. It gets no GPU
    meanwhile, although kube-scheduler sees room where the other victim was."""
    world.delete(min(terminating(world)))
    wait_for(lambda: "reserved" in states(world), "the extender has seen that it is gone")
    world.create("later", gpus=8)
    wait_for(
        lambda: "reserved for" in world.reason("later"), "its refusal says so", PATIENCE_SECONDS
    )
    reason = world.reason("later")
    world.delete("later")
    return reason


@both_ways
def test_a_gang_that_waits_for_all_nodes_starts_under_a_stream_of_single_pods(
    world: SchedulingWorld,
) -> None:
    numbers = count()
    ends: dict[str, int] = {}

    def another(number: int) -> None:
        name = world.create(f"small-{number}", gpus=4)
        ends[name] = -1  # not bound yet

    for _ in range(12):  # eight run at a time, so some always wait
        another(next(numbers))
    wait_for(lambda: len(bound(world, ends)) == 8, "the nodes are full", PATIENCE_SECONDS)
    gang: list[str] = []
    ends_at = time.monotonic() + STREAM_SECONDS
    for turn in count():
        if turn == 2:
            gang = create_gang(world, "large", 4)
        for name in bound(world, ends):
            if ends[name] < 0:
                ends[name] = turn + 1 + len(name + str(turn)) % LONGEST_ROUNDS
            elif ends[name] <= turn:
                world.delete(name)
                del ends[name]
                another(next(numbers))
        if gang and all(world.node_of(name) for name in gang):
            break
        assert time.monotonic() < ends_at, "the gang waits still"
        settle(world, ends)
    assert len({world.node_of(name) for name in gang}) == len(NODES)


def bound(world: SchedulingWorld, among: Mapping[str, int]) -> list[str]:
    pods = world.pods()
    return [p.metadata.name for p in pods if p.spec.node_name and p.metadata.name in among]


def settle(world: SchedulingWorld, among: Mapping[str, int]) -> None:
    """Wait until kube-scheduler has tried every unbound pod of the stream."""
    wait_for(
        lambda: all(world.node_of(name) or world.reason(name) for name in among),
        "all were tried",
        PATIENCE_SECONDS,
    )


@both_ways
def test_two_gangs_that_would_each_take_half_start_one_after_the_other(
    world: SchedulingWorld,
) -> None:
    said = [{names.GANG: name, names.GANG_SIZE: "3"} for name in ("one", "two")]
    for rank in range(3):
        for annotations in said:
            world.create(f"{annotations[names.GANG]}-{rank}", annotations=annotations)
    gangs = {name: [f"{name}-{rank}" for rank in range(3)] for name in ("one", "two")}

    def whole() -> list[str]:
        return [n for n, pods in gangs.items() if all(world.node_of(pod) for pod in pods)]

    wait_for(whole, "one is bound", PATIENCE_SECONDS)
    (first,) = whole()
    (second,) = gangs.keys() - {first}
    assert not any(world.node_of(name) for name in gangs[second])
    for name in gangs[first]:
        world.delete(name)
    world.wait_bound(gangs[second])


@by_plugin
def test_kube_scheduler_preempts_nobody_for_a_member_of_a_gang_that_waits(
    world: SchedulingWorld,
) -> None:
    humble = [world.create(f"humble-{number}") for number in range(4)]
    world.wait_bound(humble)
    urgent = create_gang(world, "urgent", 5, priority=1000)
    wait_for(lambda: all(map(world.reason, urgent)), "all were tried", PATIENCE_SECONDS)
    alone = world.create("alone", priority=2000)
    wait_for(lambda: terminating(world), "only a single pod may", PATIENCE_SECONDS)
    (victim,) = terminating(world)
    world.bury_terminating()
    world.wait_bound([alone])
    assert running(world, humble) == {*humble} - {victim}


@by_plugin
def test_nobody_else_goes_while_a_node_has_not_given_back_the_gpus_of_the_victim(
    world: SchedulingWorld,
) -> None:
    """kube-scheduler sees room on the node as soon as the victim is gone."""
    humble = [world.create(f"humble-{number}") for number in range(4)]
    world.wait_bound(humble)
    nodes = {name: world.node_of(name) for name in humble}
    try:
        for name, node in nodes.items():
            given = {f"{NAMESPACE}/{name}": {"main": world.gpus_of(name)}}
            say_in_use(world, node, write_in_use(InUse(pods=given)))
        wait_for(lambda: states(world) == {"used"}, "the extender has seen what is in use")
        alone = world.create("alone", priority=2000)
        wait_for(lambda: terminating(world), "room is made for it", PATIENCE_SECONDS)
        (victim,) = terminating(world)
        world.bury_terminating()
        world.wait_waiting(alone, "linkwise: fewer free GPUs than wanted")
        say_in_use(world, nodes[victim], None)
        world.wait_bound([alone])
        assert world.node_of(alone) == nodes[victim]
        assert running(world, humble) == {*humble} - {victim}
    finally:
        for node in NODES:
            say_in_use(world, node, None)


def running(world: SchedulingWorld, pods: Iterable[str]) -> set[str]:
    """Return the pods that were not evicted."""
    return {pod.metadata.name for pod in world.pods()} & set(pods) - terminating(world)


def say_in_use(world: SchedulingWorld, node: str, text: str | None) -> None:
    """Annotate the node as its plugin does."""
    annotations = {names.IN_USE: text}
    world.client.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": annotations}})


def states(world: SchedulingWorld) -> set[str]:
    """Return the states of all GPUs that the extender knows."""
    nodes = msgspec.json.decode(world.asked("/nodes"))
    return {gpu["state"] for node in nodes for gpu in node["gpus"]}
