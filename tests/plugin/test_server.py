"""The kubelet's calls over a real unix socket."""

import errno
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from linkwise.plugin.device_plugin.allocate import Pick, pick_ring
from linkwise.plugin.device_plugin.containers import Granting
from linkwise.plugin.device_plugin.preferred_allocation import Advisor
from linkwise.plugin.device_plugin.server import (
    Advice,
    DevicePlugin,
    PluginServer,
    remove_dead_sockets,
)
from linkwise.plugin.gpus.inventory import Finding, Probe, Stock
from linkwise.plugin.health.book import DeviceBook
from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.metrics import Metrics
from linkwise.topology.machine.model import Gpu, Machine
from tests.machines import DGX_1V
from tests.plugin.fake_kubelet import Plugin
from tests.plugin.grants import NO_CDI
from tests.plugin.pods import RESOURCE, decided, pod
from tests.waiting import wait_for

UUIDS = tuple(gpu.uuid for gpu in DGX_1V.gpus)


class Node:
    """A served plugin without its registration, and the kubelet's end of it."""

    def __init__(
        self, directory: Path, machine: Machine = DGX_1V, *, pick: Pick = pick_ring
    ) -> None:
        self.book = DeviceBook(Stock(machine, {u: i for i, u in enumerate(UUIDS)}))
        self.advisor = Advisor(node="n1", resource=RESOURCE, pick=pick, pod_wait_seconds=0.0)
        self.metrics = Metrics()
        self.allocated = 0
        self.service = DevicePlugin(
            self.book,
            Advice(self.advisor, self.metrics),
            Granting(NO_CDI),
            self.metrics,
            on_allocated=self._count,
        )
        self.server = PluginServer(directory, RESOURCE, self.service)
        self.server.start()
        self.kubelet = self.connect()

    def _count(self) -> None:
        self.allocated += 1

    def connect(self) -> Plugin:
        plugin = Plugin(self.server.socket, api.RegisterRequest())
        plugin.listen()
        return plugin

    def close(self) -> None:
        self.kubelet.close()
        self.server.stop()

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"linkwise_plugin_{name}", labels) or 0.0


@pytest.fixture
def node(kubelet_dir: Path) -> Iterator[Node]:
    with closing(Node(kubelet_dir)) as running:
        yield running


def test_every_device_is_listed_and_again_whenever_one_changes(node: Node) -> None:
    wait_for(lambda: node.kubelet.lists, "the first list")
    assert list(node.kubelet.health) == list(UUIDS)
    node.book.probed(Probe({UUIDS[2]: (Finding("lost", "GPU is lost"),)}), now=1)
    wait_for(lambda: node.kubelet.health[UUIDS[2]] == "Unhealthy", "the bad GPU")
    assert [u for u, health in node.kubelet.health.items() if health == "Healthy"] == [
        uuid for uuid in UUIDS if uuid != UUIDS[2]
    ]


def test_numa_nodes_are_told_and_minus_one_is_not(kubelet_dir: Path) -> None:
    machine = Machine(
        gpus=(
            Gpu("GPU-a", 0, "T4", 15360, numa_nodes=(-1, 1)),
            Gpu("GPU-b", 1, "T4", 15360, numa_nodes=(-1,)),
        ),
        links=(DGX_1V.link(0, 1),),
    )
    with closing(Node(kubelet_dir, machine)) as node:
        wait_for(lambda: node.kubelet.lists, "the first list")
        first, second = node.kubelet.lists[0].devices
    assert [numa.ID for numa in first.topology.nodes] == [1]
    assert not second.HasField("topology")


def test_one_pod_after_the_other_as_the_kubelet_does_it(node: Node) -> None:
    free = set(UUIDS)
    plans = [(0, 5), (1, 6), (2, 7), (3, 4)]
    for number, plan in enumerate(plans):
        notes = decided(f"uid-w{number}", {"main": tuple(UUIDS[i] for i in plan)})
        node.advisor.pod_event("ADDED", pod(f"w{number}", ("main", 2), annotations=notes))
    for seed, plan in enumerate(plans):
        ids = node.kubelet.preferred(free, 2, seed=seed)
        assert ids == [UUIDS[index] for index in plan]
        answer = node.kubelet.allocate(ids)
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(ids)
        free -= set(ids)
    assert node.allocated == 4
    assert node.metric("allocations_total", outcome="as-preferred") == 4


def test_an_allocate_of_other_gpus_than_preferred_is_served_and_counted(node: Node) -> None:
    preferred = node.kubelet.preferred(UUIDS, 1)
    other = next(uuid for uuid in UUIDS if uuid not in preferred)
    assert node.kubelet.allocate([other]).envs["NVIDIA_VISIBLE_DEVICES"] == other
    assert node.metric("allocations_total", outcome="mismatch") == 1


def test_an_unknown_device_is_refused_by_name(node: Node) -> None:
    with pytest.raises(grpc.RpcError, match="unknown devices GPU-x: expected some of this node's"):
        node.kubelet.allocate([UUIDS[0], "GPU-x"])
    assert node.metric("allocations_total", outcome="refused") == 1
    assert node.allocated == 0


@pytest.mark.parametrize(
    ("available", "must", "size"),
    [([], [], 1), (["GPU-x"], [], 1), (UUIDS, UUIDS[:3], 2), (UUIDS, [], 0), (UUIDS, [], -1)],
)
def test_a_question_without_sense_is_answered_and_never_refused(
    node: Node, available: list[str], must: list[str], size: int
) -> None:
    """An error would fail the pod for good; the kubelet corrects a strange answer by itself."""
    answer = node.kubelet.preferred(available, size, must)
    assert set(answer) >= set(must)
    assert len(answer) == max(len(must), min(size, len(available)), 0)


def test_a_judgement_that_fails_still_gives_the_lowest(
    kubelet_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError

    with closing(Node(kubelet_dir, pick=broken)) as node:
        assert node.kubelet.preferred(UUIDS, 2, seed=9) == list(UUIDS[:2])
    assert node.metric("preferred_total", source="fallback") == 1
    assert "GetPreferredAllocation of 2: lowest indices given" in caplog.text


def test_a_second_stream_replaces_the_first(node: Node) -> None:
    wait_for(lambda: node.kubelet.lists, "the first list")
    second = node.connect()
    wait_for(lambda: node.kubelet.ended and second.lists, "the first stream's end")
    assert node.service.streams.alive
    second.close()
    wait_for(lambda: not node.service.streams.alive, "the second stream's end")


def test_many_streams_leave_workers_for_other_calls(node: Node) -> None:
    others = [node.connect() for _ in range(8)]
    wait_for(lambda: others[-1].lists, "the last stream's list")
    assert len(node.kubelet.preferred(UUIDS, 2)) == 2
    for other in others:
        other.close()


def test_stopping_removes_our_socket_and_never_that_of_the_next(kubelet_dir: Path) -> None:
    with closing(Node(kubelet_dir)) as second:
        with closing(Node(kubelet_dir)) as first:
            first.server.stop()
            assert not first.server.socket.exists()
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                first.kubelet.preferred(UUIDS, 1)
        assert second.server.socket.exists()
        assert len(second.kubelet.preferred(UUIDS, 1)) == 1
    assert list(kubelet_dir.iterdir()) == []


def leave_socket(path: Path) -> Path:
    """As a process that was killed leaves it."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return path


def test_a_dead_socket_that_cannot_be_removed_is_named_and_left(
    kubelet_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    dead = leave_socket(kubelet_dir / "linkwise-nvidia-com-gpu-0a1b.sock")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", read_only)
        remove_dead_sockets(kubelet_dir, RESOURCE)
    assert f"{dead}: [Errno 30] Read-only file system; left alone" in caplog.text


def test_a_directory_where_no_socket_can_be_made_is_named(kubelet_dir: Path) -> None:
    advisor, metrics = Advisor(node="n1", resource=RESOURCE, pick=pick_ring), Metrics()
    book = DeviceBook(Stock(DGX_1V))
    service = DevicePlugin(book, Advice(advisor, metrics), Granting(NO_CDI), metrics)
    server = PluginServer(kubelet_dir / "absent", RESOURCE, service)
    try:
        with pytest.raises(OSError, match="/absent: no socket can be made there: No such file or"):
            server.start()
    finally:
        server.stop()


def test_sockets_of_a_killed_process_are_removed_and_living_ones_left(
    node: Node, kubelet_dir: Path
) -> None:
    dead = leave_socket(kubelet_dir / "linkwise-nvidia-com-gpu-0a1b.sock")
    foreign = leave_socket(kubelet_dir / "other.sock")
    remove_dead_sockets(kubelet_dir, RESOURCE)
    assert not dead.exists()
    assert foreign.exists()
    assert node.server.socket.exists()


@pytest.mark.parametrize(
    "name",
    ["linkwise-nvidia-com-gpu-shared-0a1b.sock", "linkwise-nvidia-com-gpu-0a1b.sock.old.sock"],
)
def test_a_dead_socket_whose_name_only_begins_as_ours_is_left(kubelet_dir: Path, name: str) -> None:
    other = leave_socket(kubelet_dir / name)
    remove_dead_sockets(kubelet_dir, RESOURCE)
    assert other.exists()
