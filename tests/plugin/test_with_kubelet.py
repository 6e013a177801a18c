"""The whole plugin under the simulator's kubelet, which admits pods by itself and shuffles its ids:
each pod holds, in podresources, exactly what its plan says."""

import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from linkwise.plugin.node.pods import demand_of
from linkwise.simulator.api_server import ApiServer
from linkwise.topology.demand import split
from tests.plugin.pods import RESOURCE, bind, manifest, pod
from tests.plugin.with_kubelet import UUIDS, PluginNode, as_held, shuffled_plans
from tests.waiting import wait_for


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[PluginNode]:
    seed = getattr(request, "param", 0)
    with tempfile.TemporaryDirectory(prefix="lw-") as directory, ApiServer() as server:
        running = PluginNode(Path(directory), server, seed)
        yield running
        running.stop()


@pytest.mark.parametrize(
    ("world", "sizes"),
    [(1, [2] * 8), (2, [1] * 16), (3, [4, 4, 2, 2, 1, 1, 1, 1]), (4, [8, 8]), (5, [3] * 5)],
    indirect=["world"],
)
def test_pods_that_arrive_at_once_hold_what_was_planned(
    world: PluginNode, sizes: list[int]
) -> None:
    plans = shuffled_plans(len(sizes), sizes)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: world.submit(*item), plans.items()))
    world.wait_for_running(len(sizes))
    assert world.resources.read().pods == as_held(plans)
    wait_for(lambda: world.in_use() == as_held(plans), "the same on the node")


def test_init_containers_sidecars_and_containers_stay_within_the_pods_plan(
    world: PluginNode,
) -> None:
    """The pod recorded on kubelet v1.36.3, four times, beside each other."""
    init: list[tuple[str, object] | tuple[str, object, str]] = [
        ("i1", "2"),
        ("side", "1", "Always"),
    ]
    demand = demand_of(pod("x", ("c1", "2"), ("c2", "1"), init=init), RESOURCE)
    order = list(UUIDS)
    random.Random(7).shuffle(order)
    plans = {f"job{n}": order[n * demand.gpus : (n + 1) * demand.gpus] for n in range(4)}
    for name, gpus in plans.items():
        body = manifest(name, ("c1", "2"), ("c2", "1"), init=init)
        bind(world.client, body, split(demand, gpus))
    world.wait_for_running(4)
    held = world.resources.read().pods
    for name, gpus in plans.items():
        assert {gpu for share in held[f"ml/{name}"].values() for gpu in share} <= set(gpus)


def test_plans_are_kept_over_restarts_of_the_kubelet_and_of_the_plugin(world: PluginNode) -> None:
    plans = shuffled_plans(11, [2] * 8)
    names_ = list(plans)
    for name in names_[:3]:
        world.submit(name, plans[name])
    world.wait_for_running(3)
    world.kubelet.restart()
    world.wait_for_gpus()
    for name in names_[3:6]:
        world.submit(name, plans[name])
    world.wait_for_running(6)
    world.stop_plugin()
    world.start_plugin()
    for name in names_[6:]:
        world.submit(name, plans[name])
    world.wait_for_running(8)
    assert world.resources.read().pods == as_held(plans)
