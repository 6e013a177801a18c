"""How room is made for a more important pod, and what an extender has to say about it."""

from typing import Any

from tests.cluster.support.host.waiting import wait_for
from tests.contract.scheduler_world import Scenario
from tests.simulator.scheduler.recording_extender import Call, refuse_all


def full(world: Scenario) -> None:
    """Two nodes, all GPUs in use: `a` is less important than `b`."""
    world.nodes("n1", "n2")
    world.start()
    for name, priority in (("a", 1), ("b", 2)):
        world.create(name, 8, priority=priority)
        world.node_of(name)
    world.extender.calls.clear()
    world.extender.bodies.clear()


def is_leaving(world: Scenario, name: str) -> bool:
    return "deletionTimestamp" in world.pod(name)["metadata"]


def test_the_extender_is_asked_about_the_victims_and_the_pod_is_nominated(world: Scenario) -> None:
    full(world)
    node, uids = world.node_of("a"), {n: world.pod(n)["metadata"]["uid"] for n in "ab"}
    urgent = world.create("urgent", 8, priority=10)
    wait_for(lambda: is_leaving(world, "a"), "room is made")
    wait_for(lambda: world.nominated("urgent") == node, "nominated")
    (asked,) = world.extender.bodies
    assert set(asked) == {"Pod", "NodeNameToVictims", "NodeNameToMetaVictims"}
    assert asked["Pod"]["metadata"]["uid"] == urgent["metadata"]["uid"]
    assert asked["NodeNameToVictims"] is None
    assert asked["NodeNameToMetaVictims"] == {
        world.node_of(name): {"Pods": [{"UID": uids[name]}], "NumPDBViolations": 0} for name in "ab"
    }
    assert not is_leaving(world, "b")
    world.delete("a")  # as its kubelet does when its containers have ended
    assert world.node_of("urgent") == node
    filtered, bound = world.extender.calls[1:]
    assert (filtered, bound) == (
        Call("filter", "urgent", (node,)),
        Call("bind", "urgent", (node,)),
    )


def test_the_extender_may_refuse_to_make_room(world: Scenario) -> None:
    full(world)
    world.extender.answers["preempt"] = lambda _: {"NodeNameToMetaVictims": {}}
    world.create("urgent", 8, priority=10)
    world.says("urgent", "Unschedulable")
    world.quiet()
    assert not any(is_leaving(world, name) for name in "ab")
    assert world.nominated("urgent") == ""


def test_where_the_extender_fails_about_making_room_nobody_goes(world: Scenario) -> None:
    full(world)
    world.extender.answers["preempt"] = lambda _: 500
    world.create("urgent", 8, priority=10)
    world.says("urgent", "Unschedulable")
    world.quiet()
    assert not any(is_leaving(world, name) for name in "ab")
    assert world.nominated("urgent") == ""


def test_the_extender_may_choose_the_node(world: Scenario) -> None:
    full(world)
    node = world.node_of("b")

    def only_b(body: dict[str, Any]) -> Any:
        return {"NodeNameToMetaVictims": {node: body["NodeNameToMetaVictims"][node]}}

    world.extender.answers["preempt"] = only_b
    world.create("urgent", 8, priority=10)
    wait_for(lambda: is_leaving(world, "b"), "b goes")
    assert not is_leaving(world, "a")


def test_where_the_extender_alone_refuses_nobody_is_evicted_nor_is_it_asked(
    world: Scenario,
) -> None:
    world.nodes("n1")
    world.start()
    world.create("a", 4, priority=1)
    world.node_of("a")
    world.extender.calls.clear()
    world.extender.answers["filter"] = refuse_all("no pair of GPUs left")
    world.create("urgent", 4, priority=10)
    world.says("urgent", "Unschedulable")
    world.quiet()
    assert set(world.extender.verbs()) == {"filter"}
    assert not is_leaving(world, "a")


def test_only_as_many_are_evicted_as_must_be(world: Scenario) -> None:
    world.nodes("n1")
    world.start(alone=True)
    for name, gpus, priority in (("a", 2, 3), ("b", 2, 1), ("c", 4, 2)):
        world.create(name, gpus, priority=priority)
        world.node_of(name)
    world.create("urgent", 4, priority=10)
    wait_for(lambda: world.nominated("urgent"), "nominated")
    wait_for(lambda: is_leaving(world, "c"), "c goes")
    assert not any(is_leaving(world, name) for name in "ab")


def test_a_victim_is_told_why_it_goes(world: Scenario) -> None:
    full(world)
    world.create("urgent", 8, priority=10)
    wait_for(lambda: is_leaving(world, "a"), "room is made")
    conditions = {c["type"]: c for c in world.pod("a")["status"]["conditions"]}
    target = conditions["DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
