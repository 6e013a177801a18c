"""Idle pods make room for those that wait, with the real API server, scheduler and permissions."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from linkwise.topology import names
from linkwise.topology.annotations.activity import Activity, PodActivity, write_activity
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    PATIENCE_SECONDS,
    SchedulingWorld,
    started_world,
)

TWO_LOOKS_SECONDS = 25.0
ANNOUNCED, EVICTED = "WillBeReclaimed: no GPU of this pod", "Reclaimed: evicted to make room for"


@pytest.fixture
def world(run_directory: Path) -> Iterator[SchedulingWorld]:
    control = ControlPlane(
        run_directory / "reclaim", controllers=False, disable_admission=ADMISSION_OFF
    )
    control.start()
    flags = (f"--reclaim-idle={NAMESPACE}=1s", "--reclaim-notice=3s")
    world = SchedulingWorld(control, extender_flags=flags)
    with started_world(world, nodes=("n1", "n2", "n3")) as started:
        yield started


def say(world: SchedulingWorld, idle: Mapping[str, bool]) -> None:
    """Annotate the pods' nodes as their plugins do: whether each pod is idle."""
    now = int(time.time())
    for name, is_idle in idle.items():
        node = world.node_of(name)
        pod = PodActivity(since=now - 900, whole=True, idle=now - 600 if is_idle else None)
        text = write_activity(Activity(at=now, pods={f"{NAMESPACE}/{name}": pod}))
        said = {"metadata": {"annotations": {names.ACTIVITY: text}}}
        world.client.patch(f"/api/v1/nodes/{node}", said)


def has_event(world: SchedulingWorld, pod: str, text: str) -> bool:
    return any(event.startswith(text) for event in world.events(pod))


def terminating(world: SchedulingWorld) -> set[str]:
    pods = world.pods()
    return {pod.metadata.name for pod in pods if pod.is_leaving}


def test_an_idle_pod_goes_for_a_gang_and_no_pod_that_woke_up_or_does_not_consent(
    world: SchedulingWorld,
) -> None:
    for name in ("asleep", "woken"):
        world.create(name)
    world.create("never", annotations={names.RECLAIM: "never"})
    world.wait_bound(["asleep", "woken", "never"])
    activity = {"asleep": True, "woken": True, "never": True}

    def are_announced() -> bool:
        say(world, activity)
        return all(has_event(world, name, ANNOUNCED) for name in ("asleep", "woken"))

    wait_for(are_announced, "both are announced", PATIENCE_SECONDS)
    activity["woken"] = False
    say(world, activity)
    place = world.node_of("asleep")
    gang = world.create_gang("train", 1)

    def is_evicted() -> bool:
        say(world, activity)
        return terminating(world) == {"asleep"}

    wait_for(is_evicted, "the idle pod goes", PATIENCE_SECONDS)
    # Events have a lane of their own.
    wait_for(lambda: has_event(world, "asleep", f"{EVICTED} gang ml/train"), "an Event says so")
    world.bury_terminating()
    world.wait_bound(gang)
    assert world.node_of(gang[0]) == place
    del activity["asleep"]
    world.create_gang("next", 1)
    ends_at = time.monotonic() + TWO_LOOKS_SECONDS
    while time.monotonic() < ends_at:
        say(world, activity)
        assert terminating(world) == set()
        time.sleep(1)
    assert not has_event(world, "never", ANNOUNCED)
