"""In front of a scripted vendor's plugin, under the simulator's kubelet, which admits pods by
itself: each pod holds, in podresources, exactly what its plan says."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from linkwise.simulator.api_server import ApiServer
from tests.plugin.in_front.scripted import GPU, ScriptedVendor
from tests.plugin.with_kubelet import UUIDS, PluginNode, as_held, shuffled_plans
from tests.waiting import wait_for


class InFront(PluginNode):
    """One node, with a vendor's plugin behind Linkwise's."""

    vendor: ScriptedVendor | None = None

    def start_plugin(self) -> None:
        self.settings = replace(self.settings, in_front=True)
        if self.vendor is None:
            self.start_vendor()
        super().start_plugin()

    def start_vendor(self, *, alone: bool = False) -> None:
        """With *alone* it registers with the kubelet itself."""
        where = self.settings.kubelet_socket if alone else self.settings.registry_socket
        self.vendor = ScriptedVendor(self.settings.kubelet_dir, where)
        self.vendor.offer(GPU, UUIDS)
        self.vendor.begin()

    def kill_vendor(self) -> None:
        assert self.vendor is not None
        self.vendor.leave()

    def starts(self) -> int:
        assert self.vendor is not None
        return int(self.vendor.do("starts"))

    def allocatable(self) -> int:
        return int(str(self.node().status.allocatable.get(GPU, 0)))

    def stop(self) -> None:
        super().stop()
        self.kill_vendor()


@pytest.fixture
def world() -> Iterator[InFront]:
    with tempfile.TemporaryDirectory(prefix="lw-") as directory, ApiServer() as server:
        running = InFront(Path(directory), server, seed=3)
        yield running
        running.stop()


def test_planned_is_real_over_every_restart(world: InFront) -> None:
    plans = shuffled_plans(11, [2] * 8)
    names = iter(plans)

    def admit(count: int, running: int) -> None:
        for _ in range(count):
            name = next(names)
            world.submit(name, plans[name])
        world.wait_for_running(running)

    admit(2, 2)
    world.kill_vendor()
    wait_for(lambda: world.allocatable() == 0, "no GPU to be had")
    world.start_vendor()
    world.wait_for_gpus()
    admit(2, 4)
    starts = world.starts()
    world.kubelet.restart()
    wait_for(lambda: world.starts() > starts, "the vendor's plugin, beginning again")
    world.wait_for_gpus()
    admit(2, 6)
    world.stop_plugin()
    wait_for(lambda: world.allocatable() == 0, "no GPU to be had")
    world.start_plugin()
    admit(2, 8)
    assert world.resources.read().pods == as_held(plans)
    wait_for(lambda: world.in_use() == as_held(plans), "the same on the node")


def test_pods_without_a_plan_get_what_is_free_beside_those_with_one(world: InFront) -> None:
    plans = shuffled_plans(5, [2, 2])
    for name, plan in plans.items():
        world.submit(name, plan)
    world.wait_for_running(2)
    world.submit("free", {"main": ()}, main=4)
    world.wait_for_running(3)
    held = world.resources.read().pods
    assert {name: held[name] for name in as_held(plans)} == as_held(plans)
    assert len(held["ml/free"]["main"]) == 4


def test_back_to_the_vendors_plugin_alone_and_forth_again_no_gpu_is_lost(world: InFront) -> None:
    """The kubelet knows plugins by their resource. If Linkwise's stream lived on, its end would
    cut the vendor's plugin off."""
    ours = world.settings.kubelet_dir
    world.kill_vendor()
    wait_for(lambda: not list(ours.glob("linkwise-*.sock")), "the end of our stream")
    wait_for(lambda: world.allocatable() == 0, "no GPU to be had")  # else the 16 are ours of before
    world.start_vendor(alone=True)
    wait_for(lambda: world.allocatable() == 16, "16 GPUs, of the vendor's plugin alone")
    world.stop_plugin()
    world.submit("w", {"main": UUIDS[:2]}, main=2)
    world.wait_for_running(1)
    assert world.allocatable() == 16
    world.kill_vendor()
    wait_for(lambda: world.allocatable() == 0, "no GPU to be had")
    world.start_vendor()
    world.start_plugin()
    world.submit("v", {"main": UUIDS[2:4]})
    world.wait_for_running(2)
