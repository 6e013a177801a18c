"""Kubernetes' own gangs (PodGroup, beta in 1.37) whose GPUs come from claims for planned ones:
kube-scheduler binds all members or none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.claim_races import race
from tests.cluster.support.scheduling.dra import DEVICES, DRIVER
from tests.cluster.support.scheduling.late_claims import (
    GROUPS,
    NODES,
    allocated,
    claims_of,
    create,
    create_group,
    native_claims_world,
    planned,
)
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld

RULES = f"{DEVICES}/devicetaintrules"


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with native_claims_world(run_directory / "native-claims") as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    for pod in started.pods():
        started.delete(pod.metadata.name)
    wait_for(lambda: not (claims_of(started) or started.taken()), "all GPUs are free")


def taint_last_gpu(world: SchedulingWorld, node: str) -> None:
    """The extender does not see the taint, as if the GPU had been lost at this moment."""
    selector = {"driver": DRIVER, "pool": node, "device": "gpu-7"}
    spec = {"deviceSelector": selector, "taint": {"key": "example.com/bad", "effect": "NoSchedule"}}
    world.client.post(RULES, {"metadata": {"name": node}, "spec": spec})


def create_gang(world: SchedulingWorld, name: str, size: int, gpus: int) -> list[str]:
    spec = create_group(world, name, size)
    members = [f"{name}-{rank}" for rank in range(size)]
    for member in members:
        create(world, member, gpus, spec=spec)
    return members


def scheduled(world: SchedulingWorld, group: str) -> str:
    """kube-scheduler's status of the group; "" before it has tried the group."""
    status = world.client.get(f"{GROUPS}/{group}", dict[str, Any]).get("status", {})
    told = {each["type"]: str(each["status"]) for each in status.get("conditions", ())}
    return told.get("PodGroupInitiallyScheduled", "")


def test_a_native_gang_starts_whole_with_its_planned_gpus(world: SchedulingWorld) -> None:
    members = create_gang(world, "train", 4, 4)
    world.wait_bound(members)
    for member in members:
        assert allocated(world, member) == planned(world, member) != []
    wait_for(lambda: scheduled(world, "train") == "True", "kube-scheduler says it was one group")


def test_a_native_gang_without_room_has_no_claims(world: SchedulingWorld) -> None:
    members = create_gang(world, "big", 3, 8)
    wait_for(
        lambda: "no room" in world.extender.explain(NAMESPACE, members[0]),
        "the extender has looked for room",
    )
    assert claims_of(world) == []


def test_if_one_member_cannot_have_its_gpus_none_is_bound_and_all_are_planned_again(
    world: SchedulingWorld,
) -> None:
    taint_last_gpu(world, "c1")
    members = create_gang(world, "unlucky", 2, 4)
    world.wait_bound(members)
    # A member that was bound by the first plan, on c1, would still be there.
    assert [world.node_of(member) for member in members] == ["c2", "c2"]
    log = (world.control.logs / "linkwise-extender.log").read_text()
    for member in members:
        assert f"planned {NAMESPACE}/{member} on c1" in log
        assert allocated(world, member) == planned(world, member) != []
    world.client.delete(f"{RULES}/c1")


def test_plans_that_are_refused_in_the_same_words_are_made_again(world: SchedulingWorld) -> None:
    for node in NODES:
        taint_last_gpu(world, node)
    members = create_gang(world, "twice", 2, 4)
    world.wait_bound(members)
    assert {world.node_of(member) for member in members} == {*NODES}
    for node in NODES:
        world.client.delete(f"{RULES}/{node}")


def test_in_races_with_other_claims_no_native_gang_is_partial(world: SchedulingWorld) -> None:
    print(race(world, 15, seed=0, native=True))
