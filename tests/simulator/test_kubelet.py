"""The kubelet stand-in, with a real plugin's calls over its sockets and the API server stand-in."""

import shutil
import socket as sockets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import grpc
import pytest

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.objects import Node, Pod
from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet import podresources_pb2 as resources
from linkwise.plugin.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.kubelet import Kubelet, KubeletSettings, endpoint, statuses
from linkwise.simulator.kubelet.outbox import Outbox
from linkwise.simulator.kubelet.servers import wipe_sockets
from linkwise.simulator.manifests import RUN_SECONDS, STOP_SECONDS
from tests.simulator.tiny_plugin import RESOURCE, Allocated, Preferred, TinyPlugin
from tests.simulator.waiting import wait_for

EIGHT = tuple(f"GPU-{n}" for n in range(8))
HASTE = KubeletSettings(status_seconds=0.02, stop_seconds=0.0)
MANY_SECONDS = 3600.0


class World:
    """One node: API server, kubelet, and plugins as a test starts them."""

    def __init__(self, server: ApiServer, directory: Path, settings: KubeletSettings) -> None:
        self.server = server
        self.client = client = KubeClient.load(kubeconfig=None, server=server.url)
        self.kubelet = Kubelet("n1", directory, client, seed=7, settings=settings)
        self.plugins: list[TinyPlugin] = []

    def plugin(self, devices: tuple[str, ...] = EIGHT, **more: object) -> TinyPlugin:
        plugin = TinyPlugin(self.kubelet.device_plugin_directory, devices, **more)  # type: ignore[arg-type]
        self.plugins.append(plugin)
        plugin.start()
        return plugin

    def node(self) -> Node:
        return self.client.get("/api/v1/nodes/n1", Node)

    def devices_are(self, capacity: int, allocatable: int) -> None:
        self.registered()

        def shown() -> bool:
            status = self.node().status
            found = (status.capacity.get(RESOURCE), status.allocatable.get(RESOURCE))
            return found == (str(capacity), str(allocatable))

        wait_for(shown, f"node with {capacity} devices, {allocatable} of them allocatable")

    def registered(self) -> None:
        def there() -> bool:
            try:
                return bool(self.node().status.conditions)
            except ApiError:
                return False

        wait_for(there, "the node")

    def create(self, name: str, gpus: int = 0, **more: object) -> None:
        limits = {RESOURCE: str(gpus)} if gpus else {}
        spec = {
            "nodeName": "n1",
            "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        body["metadata"] = {"name": name, **more}
        self.client.post("/api/v1/namespaces/ml/pods", body)

    def pod(self, name: str) -> Pod:
        return self.client.get(f"/api/v1/namespaces/ml/pods/{name}", Pod)

    def phase_is(self, name: str, phase: str) -> Pod:
        wait_for(lambda: self.pod(name).status.phase == phase, f"{name} {phase}")
        return self.pod(name)

    def gone(self, name: str) -> bool:
        try:
            self.pod(name)
        except ApiError as error:
            return error.status == 404
        return False

    def delete(self, name: str) -> None:
        self.client.delete(f"/api/v1/namespaces/ml/pods/{name}")

    def held(self) -> dict[str, dict[str, set[str]]]:
        """pod -> container -> devices, as podresources lists them."""
        with self.pod_resources() as lister:
            pods = lister.List(resources.ListPodResourcesRequest()).pod_resources
        return {
            pod.name: {
                container.name: {d for entry in container.devices for d in entry.device_ids}
                for container in pod.containers
            }
            for pod in pods
        }

    def pod_resources(self) -> "_Lister":
        return _Lister(self.kubelet.pod_resources_socket)


class _Lister:
    def __init__(self, socket: Path) -> None:
        options = [("grpc.default_authority", "localhost")]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=options)

    def __enter__(self) -> PodResourcesListerStub:
        return PodResourcesListerStub(self._channel)

    def __exit__(self, *_: object) -> None:
        self._channel.close()


Start = Callable[..., World]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a node; the settings are HASTE with what the test changes."""
    directory = Path(tempfile.mkdtemp(prefix="lw"))  # pytest's own is too long for a socket
    worlds: list[World] = []
    with ApiServer() as server:

        def start(**settings: object) -> World:
            world = World(server, directory, replace(HASTE, **settings))  # type: ignore[arg-type]
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


def test_healthy_devices_are_allocatable_and_each_list_replaces_the_last(start: Start) -> None:
    world = start()
    plugin = world.plugin(("GPU-0", "GPU-1", "bad-2"))
    world.devices_are(3, 2)
    plugin.list_devices(("GPU-0",))
    world.devices_are(1, 1)
    plugin.list_devices(())
    world.devices_are(0, 0)


def test_after_the_stream_s_end_allocatable_is_zero_and_capacity_stays(start: Start) -> None:
    world = start()
    world.plugin().end_stream()
    world.devices_are(8, 0)


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


def test_a_second_registration_takes_the_first_one_s_place(start: Start) -> None:
    world = start()
    first = world.plugin()
    world.devices_are(8, 8)
    second = world.plugin(EIGHT[:4], socket="second.sock")
    wait_for(first.stream_over.is_set, "the first stream over")
    world.devices_are(4, 4)
    first.stop()
    world.create("p", 1)
    world.phase_is("p", "Running")
    world.devices_are(4, 4)
    assert not first.calls
    assert second.calls


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"version": "v1alpha"}, "requested API version 'v1alpha' is not supported"),
        ({"resource": "gpu"}, 'the ResourceName "gpu" is invalid'),
        ({"resource": "kubernetes.io/gpu"}, 'the ResourceName "kubernetes.io/gpu" is invalid'),
        ({"resource": "requests.a.io/gpu"}, 'the ResourceName "requests.a.io/gpu" is invalid'),
        ({"resource": "nvidia.com/my gpu"}, 'the ResourceName "nvidia.com/my gpu" is invalid'),
    ],
)
def test_a_bad_registration_is_refused(start: Start, more: dict[str, object], refusal: str) -> None:
    world = start()
    with pytest.raises(grpc.RpcError) as caught:
        world.plugin(EIGHT, **more)
    assert refusal in str(caught.value)


def test_the_plugin_is_reached_and_asked_its_options_while_it_registers(start: Start) -> None:
    world = start()
    assert world.plugin().options_asked == 1  # Register has returned
    world.devices_are(8, 8)


def test_a_plugin_that_does_not_serve_when_it_registers_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "DIAL_SECONDS", 0.2)
    world = start()
    directory = world.kubelet.device_plugin_directory
    with pytest.raises(grpc.RpcError) as caught:
        TinyPlugin(directory, EIGHT).register()
    assert f"failed to dial device plugin at {directory}/tiny.sock" in str(caught.value)
    assert world.kubelet.devices() == {}


def test_the_endpoint_is_a_file_name_and_no_path(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet appends it to its directory, so a whole path leads nowhere."""
    monkeypatch.setattr(endpoint, "DIAL_SECONDS", 0.2)
    world = start()
    directory = world.kubelet.device_plugin_directory
    with pytest.raises(grpc.RpcError) as caught:
        world.plugin(socket=str(directory / "tiny.sock"))
    assert f"failed to dial device plugin at {directory}{directory}/tiny.sock" in str(caught.value)


def test_sockets_of_plugins_that_are_gone_are_wiped_and_other_files_stay(start: Start) -> None:
    world = start()
    directory = world.kubelet.device_plugin_directory
    world.kubelet.stop()
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    with sockets.socket(sockets.AF_UNIX) as stale:
        stale.bind(str(directory / "stale.sock"))
    world.kubelet.start()
    names = {file.name for file in directory.iterdir()}
    assert names == {"kubelet.sock", "kubelet_internal_checkpoint"}


def test_a_directory_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    client = KubeClient.load(kubeconfig=None, server="http://127.0.0.1:1")
    kubelet = Kubelet("n1", tmp_path / ("d" * 107), client)
    with pytest.raises(ValueError, match="expected at most 107 bytes"):
        kubelet.start()


# Pods


def test_a_pod_runs_with_exactly_the_devices_that_the_plugin_preferred(start: Start) -> None:
    world = start()
    plugin = world.plugin()
    world.devices_are(8, 8)
    world.create("p", 2)
    pod = world.phase_is("p", "Running")
    assert {(c.type, c.status) for c in pod.status.conditions} >= {("Ready", "True")}
    preferred, allocated = plugin.calls
    assert isinstance(preferred, Preferred)
    assert isinstance(allocated, Allocated)
    assert set(preferred.available) == set(EIGHT)
    assert (preferred.must_include, preferred.size) == ((), 2)
    assert set(allocated.devices) == {"GPU-6", "GPU-7"}
    assert world.held() == {"p": {"main": {"GPU-6", "GPU-7"}}}


def test_pods_are_admitted_one_after_the_other_in_order(start: Start) -> None:
    world = start()
    plugin = world.plugin(prefer=lambda asked: sorted(asked.available)[: asked.size])
    world.devices_are(8, 8)
    for name in "abcd":
        world.create(name, 2)
    world.phase_is("d", "Running")
    kinds = [type(call) for call in plugin.calls]
    assert kinds == [Preferred, Allocated] * 4
    assert world.held() == {
        "a": {"main": {"GPU-0", "GPU-1"}},
        "b": {"main": {"GPU-2", "GPU-3"}},
        "c": {"main": {"GPU-4", "GPU-5"}},
        "d": {"main": {"GPU-6", "GPU-7"}},
    }


def test_a_plugin_that_offers_no_preference_is_not_asked(start: Start) -> None:
    world = start()
    plugin = world.plugin(prefer=None)
    world.devices_are(8, 8)
    world.create("p", 2)
    world.phase_is("p", "Running")
    assert [type(call) for call in plugin.calls] == [Allocated]


def test_a_kubelet_can_be_told_not_to_ask(start: Start) -> None:
    world = start()
    plugin = world.plugin()
    world.devices_are(8, 8)
    drawn = []
    world.kubelet.asks_preference = False
    for name in ("p", "q"):
        world.kubelet.reseed(3)
        world.create(name, 2)
        world.phase_is(name, "Running")
        drawn.append(world.held()[name])
        world.delete(name)
        wait_for(partial(world.gone, name), "gone")
    assert drawn[0] == drawn[1]
    world.kubelet.asks_preference = True
    world.create("r", 2)
    world.phase_is("r", "Running")
    kinds = [type(call) for call in plugin.calls]
    assert kinds == [Allocated, Allocated, Preferred, Allocated]


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


def test_a_resource_that_the_node_does_not_show_yet_is_dropped_from_the_pod(start: Start) -> None:
    world = start(status_seconds=MANY_SECONDS)
    world.registered()
    plugin = world.plugin()
    wait_for(lambda: world.kubelet.devices().get(RESOURCE), "the plugin's devices")
    world.create("p", 2)
    world.phase_is("p", "Running")
    assert plugin.calls == []
    assert world.held() == {"p": {"main": set()}}


def test_too_few_devices_fail_the_pod_for_good(start: Start) -> None:
    world = start()
    world.plugin()
    world.devices_are(8, 8)
    world.create("big", 7)
    world.phase_is("big", "Running")
    world.create("late", 2)
    late = world.phase_is("late", "Failed")
    assert late.status.reason == "UnexpectedAdmissionError"
    assert late.status.message == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        "nvidia.com/gpu. Requested: 2, Available: 1, which is unexpected"
    )
    world.delete("big")
    wait_for(lambda: world.gone("big"), "big gone")
    world.client.patch("/api/v1/namespaces/ml/pods/late", {"metadata": {"annotations": {"a": "b"}}})
    world.create("next", 8)
    world.phase_is("next", "Running")
    assert set(world.held()) == {"next"}


def test_an_error_of_allocate_fails_the_pod(start: Start) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("no such GPU")

    world = start()
    world.plugin(allocate=refuse)
    world.devices_are(8, 8)
    world.create("p", 2)
    status = world.phase_is("p", "Failed").status
    assert status.reason == "UnexpectedAdmissionError"
    assert "rpc error: code = Unknown desc = Exception calling application: no such GPU" in (
        status.message
    )
    assert world.held() == {}


def test_an_empty_answer_to_allocate_fails_the_pod(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TinyPlugin, "Allocate", lambda *_: api.AllocateResponse())
    world = start()
    world.plugin()
    world.devices_are(8, 8)
    world.create("p", 2)
    status = world.phase_is("p", "Failed").status
    assert "no containers return in allocation response" in status.message


def test_an_error_of_the_advice_fails_the_pod(start: Start) -> None:
    def refuse(_: Preferred) -> tuple[str, ...]:
        raise RuntimeError("confused")

    world = start()
    world.plugin(prefer=refuse)
    world.devices_are(8, 8)
    world.create("p", 2)
    status = world.phase_is("p", "Failed").status
    assert "GetPreferredAllocation rpc failed" in status.message


def test_a_pod_with_a_time_to_run_succeeds_and_frees_its_devices(start: Start) -> None:
    world = start()
    world.plugin()
    world.devices_are(8, 8)
    world.create("p", 8, annotations={RUN_SECONDS: "0.01"})
    world.phase_is("p", "Succeeded")
    assert world.held() == {}
    world.create("q", 8)
    world.phase_is("q", "Running")


def test_a_pod_that_ended_is_not_run_again_by_older_news_of_it(start: Start) -> None:
    world = start()
    plugin = world.plugin()
    world.devices_are(8, 8)
    world.create("p", 8, annotations={RUN_SECONDS: "0.5"})
    world.phase_is("p", "Running")
    world.server.fail_next("PATCH", "/pods/p/status", 503, times=1000)
    wait_for(lambda: not world.held(), "p ended")
    world.client.patch("/api/v1/namespaces/ml/pods/p", {"metadata": {"annotations": {"a": "b"}}})
    assert world.pod("p").status.phase == "Running"  # the API server is told only now
    world.server.clear_faults()
    world.phase_is("p", "Succeeded")
    assert [type(call) for call in plugin.calls] == [Preferred, Allocated]


def test_a_terminating_pod_keeps_its_devices_until_its_containers_are_gone(start: Start) -> None:
    world = start()
    world.plugin()
    world.devices_are(8, 8)
    world.create("old", 7, annotations={STOP_SECONDS: "3600"})
    world.phase_is("old", "Running")
    world.delete("old")
    world.create("new", 2)
    new = world.phase_is("new", "Failed")
    assert "Requested: 2, Available: 1" in new.status.message
    assert set(world.held()) == {"old"}
    ends = {"metadata": {"annotations": {STOP_SECONDS: "0"}}}
    world.client.patch("/api/v1/namespaces/ml/pods/old", ends)
    wait_for(lambda: world.gone("old"), "old gone")
    assert world.held() == {}


def test_a_pod_deleted_by_force_keeps_its_devices_until_its_containers_are_gone(
    start: Start,
) -> None:
    world = start(stop_seconds=2.0)
    world.plugin()
    world.devices_are(8, 8)
    world.create("old", 8)
    world.phase_is("old", "Running")
    world.client.delete("/api/v1/namespaces/ml/pods/old", grace_seconds=0)
    assert world.gone("old")
    assert set(world.held()) == {"old"}
    wait_for(lambda: not world.held(), "devices free")


def test_init_containers_leave_podresources_when_they_end_and_sidecars_stay(start: Start) -> None:
    world = start(init_seconds=1.0)
    plugin = world.plugin()
    world.devices_are(8, 8)
    limits = {"limits": {RESOURCE: "2"}}
    side = {"name": "side", "restartPolicy": "Always", "resources": {"limits": {RESOURCE: "1"}}}
    spec = {
        "nodeName": "n1",
        "initContainers": [{"name": "i1", "image": "x", "resources": limits}, side],
        "containers": [{"name": "c1", "image": "x", "resources": limits}],
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    world.client.post("/api/v1/namespaces/ml/pods", body)
    wait_for(lambda: set(world.held().get("p", {})) == {"i1", "side", "c1"}, "i1 is listed")
    world.phase_is("p", "Running")
    held = world.held()["p"]
    assert {name: len(devices) for name, devices in held.items()} == {"side": 1, "c1": 2}
    of_i1, to_i1, to_side, of_c1, to_c1 = plugin.calls
    assert isinstance(of_i1, Preferred)
    assert isinstance(of_c1, Preferred)
    (left,) = {"GPU-6", "GPU-7"} - held["side"]
    assert [of_i1.must_include, of_c1.must_include] == [(), (left,)]
    assert set(of_c1.available) == set(EIGHT) - held["side"]
    allocated = [set(call.devices) for call in (to_i1, to_side, to_c1) if type(call) is Allocated]
    assert allocated == [{"GPU-6", "GPU-7"}, held["side"], {left, "GPU-5"}]


# Restart


def test_after_a_restart_running_pods_keep_their_devices_without_a_new_allocate(
    start: Start,
) -> None:
    world = start()
    plugin = world.plugin()
    world.devices_are(8, 8)
    world.create("p", 2)
    world.phase_is("p", "Running")
    held, calls = world.held(), list(plugin.calls)
    world.kubelet.restart()
    world.devices_are(0, 0)
    assert not (world.kubelet.device_plugin_directory / "tiny.sock").exists()
    assert world.held() == held
    world.create("early", 1)
    world.phase_is("early", "Failed")
    again = world.plugin(socket="again.sock")
    world.devices_are(8, 8)
    assert plugin.calls == calls
    world.create("q", 6)
    world.phase_is("q", "Running")
    assert [type(call) for call in again.calls] == [Preferred, Allocated]
    assert world.held() == {**held, "q": {"main": set(EIGHT[:6])}}


def test_a_pod_in_the_middle_of_allocate_is_admitted_anew_after_a_restart(start: Start) -> None:
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
    failed = world.phase_is("p", "Failed")  # for its plugin has not registered again
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
def told(start: Start) -> tuple[World, Outbox, Pod]:
    """A pod of a node without kubelet, and the outbox of one."""
    world = start()
    world.registered()
    world.kubelet.stop()
    world.create("p")
    return world, Outbox(world.client), world.pod("p")


def test_a_pod_is_not_deleted_before_its_end_was_told(told: tuple[World, Outbox, Pod]) -> None:
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
    told: tuple[World, Outbox, Pod],
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


# podresources


def test_podresources_lists_one_entry_per_device_with_its_numa_node(start: Start) -> None:
    world = start()
    world.plugin((*EIGHT, "bad-8"), numa_node=1)
    world.devices_are(9, 8)
    world.create("p", 2)
    world.phase_is("p", "Running")
    with world.pod_resources() as lister:
        request = resources.GetPodResourcesRequest(pod_name="p", pod_namespace="ml")
        pod = lister.Get(request).pod_resources
        allocatable = lister.GetAllocatableResources(resources.AllocatableResourcesRequest())
    entries = [
        (e.resource_name, list(e.device_ids), [n.ID for n in e.topology.nodes])
        for e in pod.containers[0].devices
    ]
    assert entries == [(RESOURCE, ["GPU-6"], [1]), (RESOURCE, ["GPU-7"], [1])]
    assert {device for entry in allocatable.devices for device in entry.device_ids} == set(EIGHT)


def test_podresources_says_which_pod_it_does_not_know(start: Start) -> None:
    world = start()
    with world.pod_resources() as lister, pytest.raises(grpc.RpcError) as caught:
        lister.Get(resources.GetPodResourcesRequest(pod_name="p", pod_namespace="ml"))
    assert "pod p in namespace ml not found" in str(caught.value)


def test_sockets_that_vanish_while_they_are_wiped_are_no_error(tmp_path: Path) -> None:
    class Changing(type(tmp_path)):  # type: ignore[misc]
        def iterdir(self) -> Iterator[Path]:
            yield tmp_path / "gone.sock"  # a plugin that ends removes its own
            yield from tmp_path.iterdir()

    with sockets.socket(sockets.AF_UNIX) as left, (tmp_path / "a-file").open("w"):
        left.bind(str(tmp_path / "left.sock"))
        wipe_sockets(Changing(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["a-file"]
