"""The program as it runs in front of a vendor's plugin: processes, sockets, an API server."""

import time
from collections.abc import Iterator

import pytest

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.annotations.plan import read_in_use
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from tests.plugin.fake_kubelet import FakeKubelet
from tests.plugin.in_front.conftest import healthy
from tests.plugin.in_front.scripted import GPU, ScriptedVendor
from tests.plugin.pods import bind, manifest
from tests.plugin.process import Process
from tests.waiting import wait_for

MACHINE = recorded_machine("dgx1-v100", node="n1")
UUIDS = tuple(gpu.uuid for gpu in MACHINE.gpus)


class Started:
    """Linkwise's program in front, beside a vendor's plugin that runs before it starts."""

    def __init__(self, kubelet: FakeKubelet, server: ApiServer, *arguments: str) -> None:
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        self.registry = kubelet.directory / "linkwise" / "kubelet.sock"
        self.vendor = ScriptedVendor(kubelet.directory, self.registry)
        self.plugin = Process(
            kubelet.directory,
            *("--in-front", "--machine", "dgx1-v100", "--api-server", server.url),
            *("--in-use-seconds", "0.05", *arguments),
        )

    def notes(self) -> dict[str, str]:
        return self.client.get("/api/v1/nodes/n1", Node).metadata.annotations

    def published(self) -> Machine | None:
        notes = self.notes()
        return read_topology(notes[names.TOPOLOGY]) if names.TOPOLOGY in notes else None

    def in_use(self) -> dict[str, dict[str, tuple[str, ...]]]:
        notes = self.notes()
        return read_in_use(notes[names.IN_USE]).pods if names.IN_USE in notes else {}

    def stop(self) -> None:
        self.plugin.kill()
        self.vendor.leave()


@pytest.fixture
def started(kubelet: FakeKubelet, server: ApiServer) -> Iterator[Started]:
    running = Started(kubelet, server)
    yield running
    running.stop()


def test_a_node_from_start_to_stop(started: Started, kubelet: FakeKubelet) -> None:
    plugin, vendor = started.plugin, started.vendor
    wait_for(lambda: plugin.serves and "no vendor" in plugin.get("/readyz")[1], "the reason")
    assert plugin.get("/readyz")[0] == 503
    assert f"expected KUBELET_SOCKET={started.registry}" in plugin.get("/readyz")[1]
    wait_for(lambda: started.published() == MACHINE, "the topology, all GPUs healthy")
    assert not kubelet.plugins

    vendor.offer(GPU, UUIDS)
    vendor.begin()
    wait_for(plugin.ready, "readiness")
    assert kubelet.plugin.request.resource_name == GPU
    wait_for(lambda: healthy(kubelet.plugin) == set(UUIDS), "all GPUs")

    planned = {"main": (UUIDS[1], UUIDS[6])}
    bind(started.client, manifest("w", ("main", "2")), planned)
    ids = kubelet.plugin.preferred(UUIDS, 2)
    assert ids == [UUIDS[1], UUIDS[6]]
    assert kubelet.plugin.allocate(ids).envs["VENDOR_SAYS"] == ",".join(sorted(ids))
    kubelet.holds = {"ml/w": {"main": ids}, "ml/shared": {"main": [f"{UUIDS[0]}::3"]}}
    held = {"ml/w": {"main": tuple(sorted(ids))}}
    wait_for(lambda: started.in_use() == held, "the whole GPUs in use, on the Node")

    vendor.set(unhealthy=[UUIDS[3]])
    sick = {UUIDS[3]}
    wait_for(lambda: set(UUIDS) - healthy(kubelet.plugin) == sick, "the sick GPU")
    wait_for(lambda: started.published() != MACHINE, "the same on the Node")
    published = started.published()
    assert published is not None
    assert {gpu.uuid for gpu in published.gpus if not gpu.healthy} == sick
    why = f'device_unhealthy{{gpu="{UUIDS[3]}",reason="the vendor\'s plugin says so"}}'
    wait_for(lambda: plugin.metric(why) == 1, "the sick GPU in the metrics")
    assert plugin.metric('preferred_total{source="plan"}') == 1
    assert plugin.metric('planned_containers_total{outcome="kept"}') == 1
    assert plugin.metric('vendor_state{resource="nvidia.com/gpu",state="lists"}') == 1
    assert plugin.stop() == 0
    assert not started.registry.exists()
    assert list(kubelet.directory.glob("linkwise-*")) == []
    assert "Traceback" not in plugin.log


def test_told_to_end_it_ends_at_once_whatever_hangs(started: Started, kubelet: FakeKubelet) -> None:
    """The vendor's plugin is stopped, and calls of the kubelet and of its probes are under way."""
    started.vendor.offer(GPU, UUIDS)
    started.vendor.begin()
    wait_for(started.plugin.ready, "readiness")
    started.vendor.freeze()
    allocate = kubelet.plugin.channel.unary_unary("/v1beta1.DevicePlugin/Allocate")  # type: ignore[var-annotated]
    under_way = allocate.future(b"")
    assert kubelet.plugin.preferred(UUIDS, 2)  # passes after a second, by Linkwise's own judgement
    began = time.monotonic()
    assert started.plugin.stop() == 0
    assert time.monotonic() - began < 5
    assert under_way.exception() is not None
    assert "Traceback" not in started.plugin.log


def test_replaced_by_another_of_us_nothing_is_lost(
    started: Started, kubelet: FakeKubelet, server: ApiServer
) -> None:
    started.vendor.offer(GPU, UUIDS)
    started.vendor.begin()
    wait_for(started.plugin.ready, "readiness")
    started.plugin.kill()  # its sockets stay where they are
    wait_for(lambda: kubelet.plugin.ended, "the end of the kubelet's stream")
    starts = started.vendor.do("starts")
    flags = ("--in-front", "--machine", "dgx1-v100", "--api-server", server.url)
    started.plugin = Process(kubelet.directory, *flags)
    wait_for(started.plugin.ready, "readiness again")
    wait_for(lambda: healthy(kubelet.plugin) == set(UUIDS), "all GPUs")
    assert started.vendor.do("starts") > starts
    assert len(list(kubelet.directory.glob("linkwise-*.sock"))) == 1


def test_in_front_of_our_own_plugin(kubelet: FakeKubelet, server: ApiServer) -> None:
    """It has the path compiled in, so to say: the directory that it sees is another one."""
    inner_directory = kubelet.directory / "linkwise"
    inner_directory.mkdir()
    faults = kubelet.directory / "faults.json"
    outer = Started(kubelet, server, "--health-seconds", "0.05")
    inner = Process(
        inner_directory,
        *("--machine", "dgx1-v100", "--machine-faults", str(faults), "--health-seconds", "0.05"),
        *("--api-server", "http://127.0.0.1:9"),
    )
    try:
        wait_for(outer.plugin.ready, "readiness")
        wait_for(lambda: list(kubelet.plugin.health) == list(UUIDS), "all GPUs")
        ids = kubelet.plugin.preferred(UUIDS, 4)
        assert kubelet.plugin.allocate(ids).envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(ids)
        faults.write_text('{"3": "XID 79"}')
        wait_for(lambda: healthy(kubelet.plugin) == set(UUIDS) - {UUIDS[3]}, "the sick GPU")
        faults.unlink()
        wait_for(lambda: healthy(kubelet.plugin) == set(UUIDS), "its recovery")
        assert inner.stop() == 0
        wait_for(lambda: not healthy(kubelet.plugin), "nothing to be had")
        assert outer.plugin.stop() == 0
    finally:
        inner.kill()
        outer.stop()
    assert "Traceback" not in inner.log + outer.plugin.log
