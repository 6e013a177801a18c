"""The program as it observes, beside a vendor's plugin that serves the kubelet."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node
from linkwise.plugin.__main__ import main
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.annotations.plan import read_in_use
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.claimed import DRIVER, slice_of
from tests.plugin.fake_kubelet import FakeKubelet
from tests.plugin.in_front.scripted import GPU, ScriptedVendor
from tests.plugin.process import Process
from tests.waiting import wait_for

MACHINE = recorded_machine("dgx1-v100", node="n1")
UUIDS = tuple(gpu.uuid for gpu in MACHINE.gpus)


@pytest.fixture
def vendor(kubelet: FakeKubelet) -> Iterator[ScriptedVendor]:
    """Registered with the kubelet itself."""
    running = ScriptedVendor(kubelet.directory, kubelet.socket)
    running.offer(GPU, UUIDS)
    running.begin()
    wait_for(lambda: kubelet.plugins, "the vendor's registration")
    yield running
    running.leave()


def start(kubelet: FakeKubelet, server: ApiServer, *mode: str) -> Process:
    flags = ("--machine", "dgx1-v100", "--api-server", server.url, "--in-use-seconds", "0.05")
    return Process(kubelet.directory, *flags, *mode)


def annotations(server: ApiServer) -> dict[str, str]:
    client = KubeClient.load(kubeconfig=None, server=server.url)
    return client.get("/api/v1/nodes/n1", Node).metadata.annotations


def in_use(server: ApiServer) -> dict[str, dict[str, tuple[str, ...]]]:
    text = annotations(server).get(names.IN_USE)
    return read_in_use(text).pods if text else {}


@pytest.mark.usefixtures("vendor")
def test_it_publishes_and_the_kubelet_keeps_the_vendors_plugin(
    kubelet: FakeKubelet, server: ApiServer
) -> None:
    before = {path.name for path in kubelet.directory.iterdir()}
    plugin = start(kubelet, server, "--observe")
    try:
        wait_for(plugin.ready, "readiness")
        assert read_topology(annotations(server)[names.TOPOLOGY]) == MACHINE
        kubelet.holds = {
            "ml/w": {"main": [UUIDS[2], UUIDS[5]]},
            "ml/shared": {"main": [f"{UUIDS[0]}::1"]},
        }
        held = {"ml/w": {"main": (UUIDS[2], UUIDS[5])}}
        wait_for(lambda: in_use(server) == held, "the whole GPUs in use, on the Node")
        kubelet.holds = {}
        wait_for(lambda: not in_use(server), "none in use")
        assert len(kubelet.plugins) == 1
        assert not kubelet.plugin.ended
        assert {path.name for path in kubelet.directory.iterdir()} - before <= {"log"}
        assert plugin.stop() == 0
    finally:
        plugin.kill()
    assert not kubelet.plugin.ended
    assert "Traceback" not in plugin.log


def test_beside_a_dra_driver_it_publishes_the_topology_and_the_gpus_of_claims(
    kubelet: FakeKubelet, server: ApiServer
) -> None:
    """No device plugin is there. The kubelet names devices, and their slices name the GPUs."""
    client = KubeClient.load(kubeconfig=None, server=server.url)
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    for node, uuids in (("n1", (UUIDS[0], UUIDS[3], "GPU-of-another-machine")), ("n2", UUIDS[:1])):
        client.post(slices, slice_of(node, uuids, name=node))
    plugin = start(kubelet, server, "--observe")
    try:
        wait_for(plugin.ready, "readiness")
        assert read_topology(annotations(server)[names.TOPOLOGY]) == MACHINE
        kubelet.claimed = {
            "ml/w": {"main": [(DRIVER, "n1", "gpu-1"), (DRIVER, "n1", "gpu-2")]},
            "ml/other": {"main": [(DRIVER, "n2", "gpu-0"), ("dra.net", "n1", "nic-0")]},
        }
        held: dict[str, dict[str, tuple[str, ...]]] = {"ml/w": {"main": (UUIDS[3],)}}
        wait_for(lambda: in_use(server) == held, "the GPUs of claims, on the Node")
        client.delete(f"{slices}/n1")
        wait_for(lambda: not in_use(server), "none that is known")
        client.post(slices, slice_of("n1", UUIDS, name="n1"))
        held = {"ml/w": {"main": (UUIDS[1], UUIDS[2])}}
        wait_for(lambda: in_use(server) == held, "the GPUs of the new slice")
        assert not kubelet.plugins
        assert plugin.stop() == 0
    finally:
        plugin.kill()
    assert "Traceback" not in plugin.log


def test_from_observing_to_in_front_and_back(
    kubelet: FakeKubelet, server: ApiServer, vendor: ScriptedVendor
) -> None:
    plugin = start(kubelet, server, "--observe")
    try:
        wait_for(plugin.ready, "readiness")
        assert plugin.stop() == 0
        plugin = start(kubelet, server, "--in-front")
        registry = kubelet.directory / "linkwise" / "kubelet.sock"
        wait_for(registry.exists, "the socket for the vendor's plugin")
        vendor.kill()
        moved = ScriptedVendor(kubelet.directory, registry)
        moved.offer(GPU, UUIDS)
        moved.begin()
        wait_for(plugin.ready, "readiness in front")
        moved.leave()
        assert plugin.stop() == 0
        back = ScriptedVendor(kubelet.directory, kubelet.socket)
        back.offer(GPU, UUIDS)
        back.begin()
        wait_for(lambda: set(kubelet.plugin.health) == set(UUIDS), "the vendor's plugin again")
        plugin = start(kubelet, server, "--observe")
        wait_for(plugin.ready, "readiness as it observes")
        assert not kubelet.plugin.ended
        assert plugin.stop() == 0
        back.leave()
    finally:
        plugin.kill()


def test_it_cannot_stand_in_front_too() -> None:
    answer = CliRunner().invoke(main, ["--node-name", "n1", "--observe", "--in-front"])
    assert answer.exit_code == 2
    assert "expected without --in-front" in answer.output
