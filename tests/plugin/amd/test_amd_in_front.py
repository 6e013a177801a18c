"""The program in front of AMD's plugin, on a /sys that is built here: whole GPUs, and partitions
under both of the names that AMD's plugin may give them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node
from linkwise.plugin.__main__ import main
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.annotations.plan import PlannedShares, read_in_use
from linkwise.topology.machine.model import Machine
from tests.plugin.amd.tree import ROUTED, AmdTree, xgmi
from tests.plugin.fake_kubelet import FakeKubelet
from tests.plugin.in_front.conftest import healthy
from tests.plugin.in_front.scripted import ROOT, ScriptedVendor
from tests.plugin.pods import bind, manifest
from tests.plugin.process import Process
from tests.waiting import wait_for

GPU, WHOLE, PARTITION = "amd.com/gpu", "amd.com/spx_nps1", "amd.com/cpx_nps4"
IDS = tuple(f"0000:{bus}:00.0" for bus in ("c1", "c6", "c9", "ce"))
DISPLAY = "0000:ea:00.0"  # AMD's plugin lists it, and KFD does not


class AmdNode:
    def __init__(self, kubelet: FakeKubelet, server: ApiServer, root: Path) -> None:
        self.kubelet, self.server, self.tree = kubelet, server, AmdTree(root)
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        registry = kubelet.directory / "linkwise" / "kubelet.sock"
        self.vendor = ScriptedVendor(kubelet.directory, registry)
        self.plugin: Process | None = None

    def start(self, managed: str) -> Process:
        self.plugin = Process(
            self.kubelet.directory,
            *("--in-front", "--resource-name", managed, "--api-server", self.server.url),
            *("--in-use-seconds", "0.05", "--health-seconds", "0.1"),
            program=("-m", "tests.plugin.amd.played_program", str(self.tree.root)),
            environment={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        self.vendor.begin()
        wait_for(self.plugin.ready, "readiness")
        return self.plugin

    def node(self) -> Node:
        return self.client.get("/api/v1/nodes/n1", Node)

    def topology(self) -> Machine:
        return read_topology(self.node().metadata.annotations[names.TOPOLOGY])

    def bind_shares(self, name: str, resource: str, *ids: str) -> None:
        body = requesting(name, resource, len(ids))
        bind(self.client, body, {}, PlannedShares("main", resource, ids))

    def stop(self) -> None:
        if self.plugin is not None:
            self.plugin.kill()
        self.vendor.leave()


def requesting(name: str, resource: str, count: int) -> dict[str, Any]:
    body = manifest(name, ("main", None))
    body["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
    return body


@pytest.fixture
def amd(kubelet: FakeKubelet, server: ApiServer, tmp_path: Path) -> Iterator[AmdNode]:
    node = AmdNode(kubelet, server, tmp_path / "sys")
    yield node
    node.stop()


def test_whole_gpus_from_start_to_stop(amd: AmdNode) -> None:
    for place, bus_id in enumerate(IDS):
        amd.tree.gpu(bus_id, numa=place // 2, model="AMD Instinct MI250X")
    a, b, c, d = IDS
    amd.tree.ways(
        {(a, b): xgmi(4), (c, d): xgmi(4), (a, c): xgmi(1), (b, d): xgmi(1)}
        | {(a, d): ROUTED, (b, c): ROUTED}
    )
    amd.vendor.offer(GPU, (*IDS, DISPLAY), socket="amd.com_gpu", preference=[a, d])
    plugin = amd.start(GPU)
    kubelet = amd.kubelet.plugin
    wait_for(lambda: healthy(kubelet) == {*IDS, DISPLAY}, "all devices")
    machine = amd.topology()
    assert machine.vendor == "amd"
    assert [link.nvlinks for link in machine.links] == [4, 1, 0, 0, 1, 4]
    labels = amd.node().metadata.labels
    assert labels["amd.com/gpu.product-name"] == "AMD_Instinct_MI250X"
    assert not any(key.startswith("nvidia.com/") for key in labels)
    assert plugin.metric(f'vendor_devices{{health="not-read",resource="{GPU}"}}') == 1

    bind(amd.client, requesting("w", GPU, 2), {"main": (b, d)})
    assert kubelet.preferred((*IDS, DISPLAY), 2) == [b, d]
    assert kubelet.allocate([b, d]).envs["VENDOR_SAYS"] == ",".join(sorted([b, d]))
    # Without a plan Linkwise knows better than AMD's plugin, which sees no number of links.
    assert set(kubelet.preferred((a, c, d), 2)) == {c, d}

    amd.tree.write(c, "ras/umc_err_count", "ue: 3\nce: 0")
    wait_for(lambda: healthy(kubelet) == {a, b, d, DISPLAY}, "the ill GPU")
    assert plugin.stop() == 0
    assert "Traceback" not in plugin.log


@pytest.mark.parametrize("resource", [PARTITION, GPU])
def test_partitions_are_shares_under_either_name(amd: AmdNode, resource: str) -> None:
    """Strategy mixed: they have a name of their own, and whole GPUs too. Strategy single: none."""
    parts = [part for bus_id in IDS[:2] for part in amd.tree.gpu(bus_id, partitions=4, mode="CPX")]
    assert parts[0] == IDS[0]
    amd.tree.gpu(IDS[2], mode="SPX")
    managed = WHOLE if resource == PARTITION else GPU
    if resource == PARTITION:
        amd.vendor.offer(WHOLE, IDS[2:3], socket="amd.com_spx_nps1")
    amd.vendor.offer(resource, parts, socket="amd.com_partitions", preference=parts[4:6])
    plugin = amd.start(managed)
    of = amd.kubelet.of
    wait_for(lambda: of(resource) and healthy(of(resource)[-1]) == {*parts}, "all partitions")
    kubelet = of(resource)[-1]

    def published() -> bool:
        gpus = amd.topology().gpus
        listed = {part.resource for gpu in gpus for part in gpu.parts or ()}
        return listed == {resource} and [len(gpu.parts or ()) for gpu in gpus] == [4, 4, 0]

    wait_for(published, "the partitions on the Node")
    assert amd.topology().healthy_gpus == (0b100 if resource == PARTITION else 0)
    # The health of partitions is AMD's matter, also that of the first, which has its GPU's id.
    amd.tree.write(IDS[0], "ras/umc_err_count", "ue: 1\nce: 0")
    ill = f'device_unhealthy{{gpu="{IDS[0]}",reason="uncorrectable errors: umc"}}'
    wait_for(lambda: plugin.metric(ill) == 1, "the ill GPU")
    assert healthy(kubelet) == {*parts}
    # Without a plan AMD's answer passes: it asks for partitions of one GPU.
    assert kubelet.preferred(parts, 2) == parts[4:6]
    planned = (parts[0], parts[2], parts[6])
    amd.bind_shares("w", resource, *planned)
    wait_for(lambda: set(kubelet.preferred(parts, 3)) == set(planned), "the plan")
    amd.kubelet.held_resource = resource
    amd.kubelet.holds = {"ml/w": {"main": list(planned)}}

    def held() -> bool:
        notes = amd.node().metadata.annotations
        in_use = read_in_use(notes[names.IN_USE]) if names.IN_USE in notes else None
        return in_use is not None and not in_use.pods and bool(in_use.shares)

    wait_for(held, "the partitions in use, as shares and not as GPUs")


def test_amds_gpus_need_amds_plugin() -> None:
    """What a container gets is the vendor's matter."""
    words = ["--node-name", "n1", "--resource-name", GPU, "--api-server", "http://127.0.0.1:9"]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 1
    assert f"--resource-name={GPU}: expected --in-front or --observe" in ended.output
