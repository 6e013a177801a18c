"""What the kubelet stand-in has beyond a kubelet, and which faults it survives.

tests/contract has what the two share, above all which calls a plugin gets and when.
"""

import shutil
import socket as sockets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Pod
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.kubelet import Kubelet, statuses
from linkwise.simulator.kubelet.outbox import StatusOutbox
from linkwise.simulator.kubelet.servers import wipe_sockets
from linkwise.simulator.manifests.object_reader import RUN_SECONDS, STOP_SECONDS
from tests.simulator.kubelet.node_with_plugins import HASTE, NodeWithPlugins
from tests.simulator.kubelet.tiny_plugin import RESOURCE, AllocateCall, PreferCall
from tests.waiting import wait_for

Start = Callable[..., NodeWithPlugins]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a node; the settings are HASTE with the test's changes."""
    directory = Path(tempfile.mkdtemp(prefix="lw"))  # pytest's own path is too long for a socket
    worlds: list[NodeWithPlugins] = []
    with ApiServer() as server:

        def start(**settings: object) -> NodeWithPlugins:
            world = NodeWithPlugins(server, directory, replace(HASTE, **settings))  # type: ignore[arg-type]
            worlds.append(world)
            world.kubelet.start()
            return world

        yield start
        for world in worlds:
            world.kubelet.stop()
            for plugin in world.plugins:
                plugin.stop()
    shutil.rmtree(directory)


# The node


def test_the_kubelet_registers_its_node_with_labels_and_what_it_has(start: Start) -> None:
    world = start(labels={"pool": "a"}, capacity={"cpu": "8", "memory": "1Gi", "pods": "9"})
    world.registered()
    node = world.node()
    assert node.metadata.labels["pool"] == "a"
    assert node.metadata.labels["kubernetes.io/hostname"] == "n1"
    assert node.status.allocatable == {"cpu": "8", "memory": "1Gi", "pods": "9"}
    assert [(c.type, c.status) for c in node.status.conditions] == [("Ready", "True")]


def test_a_node_that_exists_keeps_its_annotations(start: Start) -> None:
    world = start()
    world.registered()
    world.client.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"a": "b"}}})
    world.kubelet.restart()
    world.plugin()
    world.devices_are(8, 8)
    assert world.node().metadata.annotations == {"a": "b"}


def test_after_the_grace_capacity_is_zero_too(start: Start) -> None:
    world = start(endpoint_grace_seconds=0.0)
    world.plugin().end_stream()
    world.devices_are(0, 0)


def test_a_plugin_that_comes_back_within_the_grace_stays(start: Start) -> None:
    world = start(endpoint_grace_seconds=0.4)
    first = world.plugin()
    world.devices_are(8, 8)

    def healthy() -> int:
        return sum(device.healthy for device in world.kubelet.devices()[RESOURCE])

    first.end_stream()
    wait_for(lambda: not healthy(), "the stream's end")
    gone = time.monotonic()
    world.plugin(socket="again.sock")
    wait_for(lambda: time.monotonic() > gone + 0.6, "the grace is over")
    wait_for(lambda: healthy() == 8, "devices")
    world.devices_are(8, 8)


def test_a_directory_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    client = KubeClient.load(kubeconfig=None, server="http://127.0.0.1:1")
    kubelet = Kubelet("n1", tmp_path / ("d" * 107), client)
    with pytest.raises(ValueError, match="expected at most 107 bytes"):
        kubelet.start()


# Pods


def test_pods_are_admitted_one_after_the_other_in_order(start: Start) -> None:
    world = start()
    plugin = world.plugin(prefer=lambda asked: sorted(asked.available)[: asked.size])
    world.devices_are(8, 8)
    for name in "abcd":
        world.create(name, 2)
    world.phase_is("d", "Running")
    kinds = [type(call) for call in plugin.calls]
    assert kinds == [PreferCall, AllocateCall] * 4
    assert world.held() == {
        "a": {"main": {"GPU-0", "GPU-1"}},
        "b": {"main": {"GPU-2", "GPU-3"}},
        "c": {"main": {"GPU-4", "GPU-5"}},
        "d": {"main": {"GPU-6", "GPU-7"}},
    }


def test_a_kubelet_can_have_another_adviser_than_its_plugin(start: Start) -> None:
    world = start()
    plugin = world.plugin()
    world.devices_are(8, 8)
    drawn = []
    world.kubelet.adviser = lambda _available, _must, _size: ()
    for name in ("p", "q"):
        world.kubelet.reseed(3)
        world.create(name, 2)
        world.phase_is(name, "Running")
        drawn.append(world.held()[name])
        world.delete(name)
        wait_for(partial(world.gone, name), "gone")
    assert drawn[0] == drawn[1]
    world.kubelet.adviser = lambda _available, _must, _size: ("GPU-3", "GPU-6")
    world.create("s", 2)
    world.phase_is("s", "Running")
    assert world.held()["s"] == {"main": {"GPU-3", "GPU-6"}}
    world.kubelet.adviser = None
    world.create("r", 2)
    world.phase_is("r", "Running")
    kinds = [type(call) for call in plugin.calls]
    assert kinds == [AllocateCall, AllocateCall, AllocateCall, PreferCall, AllocateCall]


def test_odd_words_of_a_pod_harm_neither_it_nor_others(start: Start) -> None:
    world = start()
    world.plugin()
    world.devices_are(8, 8)
    world.create("odd", 2, annotations={RUN_SECONDS: "soon", STOP_SECONDS: "nan"})
    world.phase_is("odd", "Running")
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worse"}}
    limits = {"limits": {RESOURCE: "many"}}
    containers = [{"name": "main", "image": "x", "resources": limits}]
    spec = {"nodeName": "n1", "containers": containers}
    world.client.post("/api/v1/namespaces/ml/pods", {**body, "spec": spec})
    world.create("next", 2)
    world.phase_is("next", "Running")
    world.delete("odd")
    wait_for(lambda: world.gone("odd"), "gone")


def test_a_pod_that_ended_is_not_run_again_by_older_news_of_it(start: Start) -> None:
    world = start()
    plugin = world.plugin()
    world.devices_are(8, 8)
    world.create("p", 8, annotations={RUN_SECONDS: "0.5"})
    world.phase_is("p", "Running")
    world.server.fail_next("PATCH", "/pods/p/status", 503, times=1000)
    wait_for(lambda: not world.held(), "p ended")
    world.client.patch("/api/v1/namespaces/ml/pods/p", {"metadata": {"annotations": {"a": "b"}}})
    assert world.pod("p").status.phase == "Running"  # the API server hears it only now
    world.server.clear_faults()
    world.phase_is("p", "Succeeded")
    assert [type(call) for call in plugin.calls] == [PreferCall, AllocateCall]


# Restart


def test_a_pod_in_the_middle_of_allocate_is_admitted_again_after_a_restart(start: Start) -> None:
    entered, leave = Event(), Event()

    def hang(_: object) -> None:
        entered.set()
        leave.wait(10)

    world = start()
    world.plugin(allocate=hang)
    world.devices_are(8, 8)
    world.create("p", 2)
    assert entered.wait(10)
    world.kubelet.stop()
    leave.set()
    assert world.pod("p").status.phase == "Pending"
    world.kubelet.restart()
    failed = world.phase_is("p", "Failed")  # its plugin has not registered again
    assert "no healthy devices present" in failed.status.message


def test_what_the_api_server_did_not_take_is_told_again(start: Start) -> None:
    world = start()
    world.plugin()
    world.devices_are(8, 8)
    world.server.fail_next("PATCH", "/pods/p/status", 503, times=2)
    world.create("p", 2, annotations={STOP_SECONDS: "3600"})
    world.phase_is("p", "Running")
    world.delete("p")
    world.server.fail_next("DELETE", "/pods/p", 503, times=2)
    ends = {"metadata": {"annotations": {STOP_SECONDS: "0"}}}
    world.client.patch("/api/v1/namespaces/ml/pods/p", ends)
    wait_for(lambda: world.gone("p"), "p gone")


@pytest.fixture
def told(start: Start) -> tuple[NodeWithPlugins, StatusOutbox, Pod]:
    """A pod of a node without a kubelet, and an outbox."""
    world = start()
    world.registered()
    world.kubelet.stop()
    world.create("p")
    return world, StatusOutbox(world.client), world.pod("p")


def test_a_pod_is_not_deleted_before_its_end_was_told(
    told: tuple[NodeWithPlugins, StatusOutbox, Pod],
) -> None:
    world, outbox, pod = told
    world.server.fail_next("PATCH", "/pods/p/status", 503)
    outbox.say(pod, statuses.ended(pod, "2026-01-02T00:00:00Z", well=False))
    outbox.delete(pod)
    outbox.flush()
    assert outbox
    assert not world.gone("p")
    outbox.flush()
    assert not outbox
    assert world.gone("p")


def test_nothing_is_told_of_a_pod_whose_name_another_has_now(
    told: tuple[NodeWithPlugins, StatusOutbox, Pod],
) -> None:
    world, outbox, pod = told
    world.client.delete("/api/v1/namespaces/ml/pods/p", grace_seconds=0)
    world.create("p")
    outbox.say(pod, statuses.ended(pod, "2026-01-02T00:00:00Z", well=False))
    outbox.delete(pod)
    outbox.flush()
    assert not outbox
    assert world.pod("p").status.phase == "Pending"


def test_a_lost_watch_loses_no_pod(start: Start) -> None:
    world = start()
    world.plugin()
    world.devices_are(8, 8)
    world.create("before", 1)
    world.phase_is("before", "Running")
    world.server.pause()
    world.server.resume()
    world.create("after", 1)
    world.phase_is("after", "Running")


def test_a_pod_that_went_while_nobody_watched_gives_its_devices_back(start: Start) -> None:
    world = start()
    world.plugin()
    world.devices_are(8, 8)
    world.create("p", 8)
    world.phase_is("p", "Running")
    world.server.fail_next("GET", "/api/v1/pods", 503, times=1000)
    world.server.cut_watches()
    world.client.delete("/api/v1/namespaces/ml/pods/p", grace_seconds=0)
    world.server.compact()
    assert set(world.held()) == {"p"}
    world.server.clear_faults()
    wait_for(lambda: not world.held(), "devices free")


def test_sockets_that_vanish_while_they_are_wiped_are_no_error(tmp_path: Path) -> None:
    class Changing(type(tmp_path)):  # type: ignore[misc]
        def iterdir(self) -> Iterator[Path]:
            yield tmp_path / "gone.sock"  # an ending plugin removes its own socket
            yield from tmp_path.iterdir()

    with sockets.socket(sockets.AF_UNIX) as left, (tmp_path / "a-file").open("w"):
        left.bind(str(tmp_path / "left.sock"))
        wipe_sockets(Changing(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["a-file"]
