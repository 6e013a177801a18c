"""The whole plugin in front of a scripted vendor's, under the simulator's kubelet: pods with shares
hold, in podresources, exactly what was planned, and the Node says so."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from linkwise.plugin.gpus.inventory import Finding, Probe
from linkwise.plugin.gpus.recorded import RecordedInventory
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.annotations.plan import PlannedShares, read_in_use
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.parts import Part
from linkwise.topology.machine.recorded import recorded_machine
from tests.divided import MIG_1G, MIG_3G, PROFILE_1G, PROFILE_3G, divided
from tests.plugin.in_front.scripted import GPU, ScriptedVendor
from tests.plugin.pods import bind, manifest
from tests.plugin.with_kubelet import MACHINE, UUIDS, PluginNode
from tests.waiting import wait_for

SHARED = "nvidia.com/gpu.shared"
REPLICAS = [f"{uuid}::{number}" for uuid in UUIDS[12:14] for number in range(4)]
MIG = ["MIG-a", "MIG-b", "MIG-c"]


class InMigMode(RecordedInventory):
    """A machine whose driver says of GPU 14 that its MIG mode is on."""

    def probe(self, machine: Machine) -> Probe:  # noqa: ARG002
        return Probe({UUIDS[14]: (Finding("mig", "MIG mode is on"),)})


class AllThree(PluginNode):
    """GPUs 0 to 11 whole, 12 and 13 with four replicas each, 14 cut into three MIG devices."""

    vendor: ScriptedVendor | None = None

    def start_plugin(self) -> None:
        if self.vendor is None:
            self.settings = replace(self.settings, in_front=True)
            self.vendor = ScriptedVendor(self.settings.kubelet_dir, self.settings.registry_socket)
            self.vendor.offer(GPU, UUIDS[:12])
            self.vendor.offer(SHARED, REPLICAS, socket="nvidia-gpu.shared.sock")
            self.vendor.offer(MIG_1G, MIG, socket="nvidia-mig-1g.10gb.sock")
            self.vendor.begin()
        self.inventory = InMigMode(recorded_machine(MACHINE, node="n1"))
        self.cut(14, *MIG)
        self.run(self.inventory)

    def cut(self, position: int, *uuids: str) -> None:
        """What the driver tells from the next reading on."""
        parts = tuple(Part(uuid, mig=PROFILE_1G) for uuid in uuids)
        self.inventory._machine = divided(self.inventory._machine, {position: parts})

    def wait_for_gpus(self) -> None:
        wait_for(lambda: self.program.not_ready() == "", "a ready plugin")
        offered = {GPU: 12, SHARED: 8, MIG_1G: 3}
        wait_for(lambda: self.offers() == offered, f"{offered} on the node")
        wait_for(self.published, "what the vendor's plugin offers in the annotation")

    def published(self) -> bool:
        machine = self.topology()
        shared = {part.resource for gpu in machine.gpus for part in gpu.parts or ()}
        return machine.healthy_gpus == 0xFFF and shared == {SHARED, MIG_1G}

    def topology(self) -> Machine:
        return read_topology(self.node().metadata.annotations[names.TOPOLOGY])

    def offers(self) -> dict[str, int]:
        there = self.node().status.allocatable
        return {each: int(there[each]) for each in (GPU, SHARED, MIG_1G) if each in there}

    def submit_shares(self, name: str, resource: str, *ids: str) -> None:
        """A pod with a plan, bound, as the extender's Binding leaves it."""
        body = manifest(name, ("main", None))
        limits = {"limits": {resource: str(len(ids))}}
        body["spec"]["containers"][0]["resources"] = limits
        bind(self.client, body, {}, PlannedShares("main", resource, ids))

    def shares_in_use(self) -> dict[str, dict[str, dict[str, tuple[str, ...]]]]:
        notes = self.node().metadata.annotations
        return read_in_use(notes[names.IN_USE]).shares if names.IN_USE in notes else {}

    def stop(self) -> None:
        super().stop()
        assert self.vendor is not None
        self.vendor.leave()


@pytest.fixture
def world() -> Iterator[AllThree]:
    with tempfile.TemporaryDirectory(prefix="lw-") as directory, ApiServer() as server:
        running = AllThree(Path(directory), server, seed=5)
        yield running
        running.stop()


def test_planned_is_real_for_whole_gpus_replicas_and_mig_devices(world: AllThree) -> None:
    machine = world.topology()
    assert machine.healthy_gpus == 0xFFF
    assert machine.gpus[12].parts == (Part(UUIDS[12], SHARED, 4),)
    mig = tuple(Part(uuid, MIG_1G, mig=PROFILE_1G) for uuid in MIG)
    assert machine.gpus[14].parts == mig

    world.submit("whole", {"main": (UUIDS[7], UUIDS[2])})
    plans = {
        "shared": (SHARED, (REPLICAS[6],)),
        "two": (SHARED, (REPLICAS[1], REPLICAS[5])),
        "mig": (MIG_1G, ("MIG-b",)),
    }
    for name, (resource, ids) in plans.items():
        world.submit_shares(name, resource, *ids)
    world.wait_for_running(4)
    expected = {
        f"ml/{name}": {"main": {resource: tuple(sorted(ids))}}
        for name, (resource, ids) in plans.items()
    }
    wait_for(lambda: world.shares_in_use() == expected, "the planned shares on the node")
    assert world.in_use() == {"ml/whole": {"main": tuple(sorted((UUIDS[7], UUIDS[2])))}}

    world.stop_plugin()
    world.start_plugin()
    world.submit_shares("late", SHARED, REPLICAS[0])
    world.wait_for_running(5)
    expected["ml/late"] = {"main": {SHARED: (REPLICAS[0],)}}
    wait_for(lambda: world.shares_in_use() == expected, "the same after a restart")


def test_divided_gpus_are_no_broken_ones(world: AllThree) -> None:
    """15 is one: no plugin offers it, whole or in parts."""
    sample = world.program._metrics.registry.get_sample_value
    of = "linkwise_plugin_device_unhealthy"
    why = "the vendor's plugin does not offer it as a whole"

    def shown() -> list[float | None]:
        states = ("healthy", "divided", "unhealthy")
        return [sample("linkwise_plugin_devices", {"health": state}) for state in states]

    def sick(index: int, reason: str) -> float | None:
        return sample(of, {"gpu": UUIDS[index], "reason": reason})

    wait_for(lambda: shown() == [12, 3, 1], "12 whole GPUs, 3 divided ones and 1 that is neither")
    assert [sick(index, why) for index in (12, 14, 15)] == [None, None, 1]
    assert sick(14, "MIG mode is on") is None

    assert world.vendor is not None
    world.vendor.set(SHARED, unhealthy=[REPLICAS[6]])
    wait_for(lambda: shown() == [12, 2, 2], "the GPU of a sick replica")
    assert sick(13, "the vendor's plugin says so") == 1


def test_an_old_reader_of_the_node_sees_twelve_gpus_and_no_share(world: AllThree) -> None:
    fields = json.loads(world.node().metadata.annotations[names.TOPOLOGY])
    assert fields["unhealthy"] == [12, 13, 14, 15]
    assert [index for index, _ in fields["divided"]] == [12, 13, 14]


def test_a_new_mig_layout_is_read_as_soon_as_the_vendors_plugin_lists_it(world: AllThree) -> None:
    """Long before the next reading is due."""
    world.cut(14, "MIG-new")
    assert world.vendor is not None
    world.vendor.set(MIG_1G, devices={"MIG-new": []})
    new = (Part("MIG-new", MIG_1G, mig=PROFILE_1G),)

    def published() -> bool:
        text = world.node().metadata.annotations[names.TOPOLOGY]
        return read_topology(text).gpus[14].parts == new

    wait_for(published, "the new MIG device on the node")


def test_gpus_that_are_whole_again_are_planned_whole_at_once(world: AllThree) -> None:
    """The vendor's plugin starts again without time-slicing and without MIG."""
    vendor = world.vendor
    assert vendor is not None
    world.inventory._machine = recorded_machine(MACHINE, node="n1")
    for gone in (SHARED, MIG_1G):
        vendor.do("drop", resource=gone)
    vendor.set(devices=dict.fromkeys(UUIDS, ()))
    wait_for(lambda: world.topology().healthy_gpus == 0xFFFF, "16 whole GPUs on the node")
    assert not any(gpu.parts for gpu in world.topology().gpus)
    wait_for(lambda: world.program.not_ready() == "", "a ready plugin")


def test_a_new_mig_layout_leaves_nothing_of_the_old_one(world: AllThree) -> None:
    """Its resource goes with it, and GPU 15 is offered whole."""
    vendor = world.vendor
    assert vendor is not None
    layout = (Part("MIG-big", mig=PROFILE_3G),)
    world.inventory._machine = divided(recorded_machine(MACHINE, node="n1"), {14: layout})
    vendor.do("drop", resource=MIG_1G)
    vendor.offer(MIG_3G, ["MIG-big"], socket="nvidia-mig-3g.40gb.sock")
    vendor.set(devices=dict.fromkeys([*UUIDS[:12], UUIDS[15]], ()))
    vendor.begin()
    big = (Part("MIG-big", MIG_3G, mig=PROFILE_3G),)
    wait_for(lambda: world.topology().gpus[14].parts == big, "the new layout on the node")
    wait_for(lambda: world.topology().healthy_gpus == 0x8FFF, "13 whole GPUs on the node")
    wait_for(lambda: world.program.not_ready() == "", "a ready plugin")
