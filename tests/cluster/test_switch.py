"""Two extenders on the real control plane with the real scheduler: the leader is killed or cut off.

tests/end_to_end/test_leader_switch.py covers each phase of a gang. These tests cover what only real
programs show: rights, kube-scheduler's connections to a former leader, and the API server's refusal
of what that one sends.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linkwise.topology import names
from linkwise.topology.annotations.plan import read_plan
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, NODES
from tests.cluster.support.scheduling.two_extenders import SwitchWorld, switch_world
from tests.end_to_end.replicas import Replica, wait_for

BINDING = rf"POST /api/v1/namespaces/{NAMESPACE}/pods/\w+/binding"


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SwitchWorld]:
    with switch_world(run_directory / "switch") as world:
        yield world


@pytest.fixture
def world(started: SwitchWorld) -> Iterator[SwitchWorld]:
    started.clear()
    yield started
    started.assert_given_once()


Strike = Callable[[SwitchWorld, Replica], None]


def killed(_world: SwitchWorld, leader: Replica) -> None:
    leader.signal(signal.SIGKILL)


def told_to_end(_world: SwitchWorld, leader: Replica) -> None:
    leader.signal(signal.SIGTERM)


def frozen(_world: SwitchWorld, leader: Replica) -> None:
    leader.signal(signal.SIGSTOP)


def cut_off(world: SwitchWorld, leader: Replica) -> None:
    world.pair.wires[leader.name].cut()


STRIKES = [killed, told_to_end, frozen, cut_off]


def wait_for_switch(world: SwitchWorld, before: Replica) -> None:
    after = world.pair.other(before)
    wait_for(lambda: after.status() == 200, f"{after.name} leads")


@pytest.mark.parametrize("strike", STRIKES)
def test_gangs_that_contend_while_the_leader_is_struck(world: SwitchWorld, strike: Strike) -> None:
    before = world.pair.leader
    gangs = [world.create_small_gang(f"gang-{number}") for number in range(4)]
    wait_for(lambda: any(pod.spec.node_name for pod in world.pods()), "the first is bound")
    strike(world, before)
    wait_for_switch(world, before)
    for gang in gangs:
        world.wait_bound(gang)
    assert len({world.node_of(name) for gang in gangs for name in gang}) == len(NODES)


@pytest.mark.parametrize("strike", [killed, frozen])
def test_a_gang_that_is_planned_when_the_leader_is_struck(
    world: SwitchWorld, strike: Strike
) -> None:
    before = world.pair.leader
    with world.scheduler_stopped():
        gang = world.create_gang("g", 3)
        wait_for(lambda: all(world.read(n).status.nominated_node_name for n in gang), "planned")
        plans = {name: world.read(name).metadata.annotations[names.GPUS] for name in gang}
        strike(world, before)
        wait_for_switch(world, before)
    world.wait_bound(gang)
    assert {name: world.read(name).metadata.annotations[names.GPUS] for name in gang} == plans
    terms = {read_plan(world.read(n).metadata.annotations[names.PLAN]).leader for n in gang}
    assert len(terms) == 1, "who binds says in which term"


def test_a_binding_that_arrives_when_another_leads_is_refused(world: SwitchWorld) -> None:
    """Frozen with its Binding on the wire, which the process cannot call back."""
    before, refused = world.pair.leader, world.refused_bindings()
    wire = world.pair.wires[before.name]
    wire.at(BINDING, 1, lambda: before.signal(signal.SIGSTOP))
    world.create("late")
    assert wire.struck.wait(60)
    with world.scheduler_stopped():
        wait_for_switch(world, before)
        wire.let_go()
        wait_for(lambda: world.refused_bindings() > refused, "the API server refuses it")
        assert world.node_of("late") == ""
    world.wait_bound(["late"])
    before.signal(signal.SIGCONT)
    before.ended()


def test_kube_scheduler_does_not_stay_with_a_leader_that_lost(world: SwitchWorld) -> None:
    """It keeps connections open, on which it would call the standby forever."""
    world.create("first")
    world.wait_bound(["first"])
    before = world.pair.leader
    before.signal(signal.SIGSTOP)
    wait_for_switch(world, before)
    before.signal(signal.SIGCONT)
    before.ended()
    world.create("second")
    world.wait_bound(["second"])
