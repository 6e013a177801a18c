"""An idle pod, from the driver to the answer of who would start without it, and to its eviction."""

import time
from collections.abc import Iterator

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.show.explain.idle.idle_pods import view_idle
from linkwise.extender.state.views import IdlePod, IdleView
from tests.end_to_end import manifests
from tests.end_to_end.world import PODS, World, running_world
from tests.waiting import wait_for


@pytest.fixture
def world() -> Iterator[World]:
    with running_world(["dgx1-v100", "dgx1-v100"], seed=1) as world:
        yield world


def idle(world: World) -> IdleView:
    return view_idle(world.extender.loop.snapshot())


def names(it: IdleView) -> list[str]:
    return sorted(pod.pod for pod in it.pods)


def runs(world: World, *pods: str) -> None:
    wait_for(lambda: all(world.pod(name).status.phase == "Running" for name in pods), f"{pods} run")


def test_a_gang_that_would_start_without_an_idle_pod_does_start_without_it(
    world: World,
) -> None:
    for name in ("notebook", "job"):
        world.submit(manifests.pod(name, 8))
    runs(world, "notebook", "job")
    wait_for(lambda: idle(world).unknown == 2, "pods of which nothing is known")
    place = {name: world.nodes[world.pod(name).spec.node_name] for name in ("notebook", "job")}
    place["notebook"].set_loads(0.0)
    place["job"].set_loads(0.9)
    wait_for(lambda: names(idle(world)) == ["ml/notebook"], "an idle pod")
    for member in manifests.gang("train", 2, 4):
        world.submit(member)
    wait_for(lambda: idle(world).would_start, "what would start")
    it = idle(world)
    assert [(each.who, each.gpus, each.without) for each in it.would_start] == [
        ("gang ml/train", 8, ("pod ml/notebook",))
    ]
    assert (it.not_idle, it.unknown) == (1, 0)
    world.delete(f"{PODS}/notebook")
    runs(world, "train-0", "train-1")
    assert world.pod("job").status.phase == "Running"


def test_a_pod_that_works_again_and_a_plugin_that_restarts_end_what_was_said(
    world: World,
) -> None:
    world.submit(manifests.pod("notebook", 2))
    runs(world, "notebook")
    node = world.nodes[world.pod("notebook").spec.node_name]
    node.set_loads(0.0)
    wait_for(lambda: names(idle(world)) == ["ml/notebook"], "an idle pod")
    node.set_loads(1.0)
    wait_for(lambda: idle(world).not_idle == 1, "a pod that works")
    node.set_loads(0.0)
    wait_for(lambda: names(idle(world)) == ["ml/notebook"], "an idle pod again")
    (before,) = idle(world).pods
    assert not before.at_least
    node.restart_plugin()
    again = until_restarted(world)
    assert again.since >= before.since


def until_restarted(world: World) -> IdlePod:
    """The one idle pod, once it is known to have been idle for so long *at least*: its plugin has
    begun to watch it again."""
    found: list[IdlePod] = []

    def is_there() -> bool:
        found[:] = [pod for pod in idle(world).pods if pod.at_least]
        return bool(found)

    wait_for(is_there, "a lower bound")
    return found[0]


@pytest.fixture
def patient_world() -> Iterator[World]:
    """The extender has the plugins' clock."""
    settings = CoreSettings(reclaim_notice_seconds=3.0)
    machines = ["dgx1-v100", "dgx1-v100", "dgx1-v100"]
    with running_world(machines, seed=2, settings=settings, clock=time.time) as world:
        yield world


def told(world: World, reason: str) -> list[str]:
    return sorted(
        event["involvedObject"]["name"] for event in world.events() if event["reason"] == reason
    )


def test_an_idle_pod_that_consents_makes_room_for_a_gang_and_one_that_woke_up_stays(
    patient_world: World,
) -> None:
    world = patient_world
    consent = {"reclaim-when-idle": "1s"}
    for name, said in (("asleep", consent), ("woken", consent), ("kept", {})):
        world.submit(manifests.pod(name, 8, said=said))
    runs(world, "asleep", "woken", "kept")
    place = {
        name: world.nodes[world.pod(name).spec.node_name] for name in ("asleep", "woken", "kept")
    }
    for node in place.values():
        node.set_loads(0.0)
    wait_for(lambda: told(world, "WillBeReclaimed") == ["asleep", "woken"], "both are warned", 60)
    place["woken"].set_loads(0.9)
    wait_for(lambda: names(idle(world)) == ["ml/asleep", "ml/kept"], "one woke up")
    assert told(world, "Reclaimed") == []
    for member in manifests.gang("train", 2, 4):
        world.submit(member)
    runs_in_the_end = ("train-0", "train-1")
    wait_for(
        lambda: all(world.pod(name).status.phase == "Running" for name in runs_in_the_end),
        "the gang runs",
        60,
    )
    assert {world.pod(name).spec.node_name for name in runs_in_the_end} == {place["asleep"].name}
    assert told(world, "Reclaimed") == ["asleep"]
    runs(world, "woken", "kept")
    for member in manifests.gang("next", 2, 4):
        world.submit(member)
    time.sleep(12)  # longer than between two looks, and than the notice
    assert told(world, "Reclaimed") == ["asleep"]
    runs(world, "woken", "kept")
