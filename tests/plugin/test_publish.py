"""What the plugin writes to its Node: only what differs, and only what is its own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tenacity.wait import wait_fixed

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node
from linkwise.plugin.node import publish
from linkwise.plugin.node.publish import NodePublisher, Wanted, difference, wanted
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.activity import Activity, read_activity
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.annotations.plan import InUse, read_in_use
from tests.machines import BRIDGED_8, DGX_A100
from tests.waiting import wait_for

PRODUCT = "nvidia.com/gpu.product"
IN_USE = InUse(pods={"ml/w": {"main": ("GPU-a",)}})


def node(
    labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> Node:
    metadata = {"name": "n1", "labels": labels or {}, "annotations": annotations or {}}
    return msgspec.json.decode(msgspec.json.encode({"metadata": metadata}), type=Node)


def test_a_bare_node_is_told_everything() -> None:
    patch = difference(node({"zone": "a"}), wanted(DGX_A100, IN_USE))
    assert patch["labels"]["linkwise.dev/gpu.count"] == "8"
    assert patch["labels"][PRODUCT] == "NVIDIA-A100-SXM4-40GB"
    assert "zone" not in patch["labels"]
    assert read_topology(str(patch["annotations"][names.TOPOLOGY])) == DGX_A100
    assert read_in_use(str(patch["annotations"][names.IN_USE])) == IN_USE


def test_a_node_that_says_it_all_is_left_alone() -> None:
    want = Wanted({"a": "1"}, {"linkwise.dev/x": "1"})
    told = node({"linkwise.dev/x": "1"}, {"a": "1", names.OWN_LABELS: "linkwise.dev/x"})
    assert difference(told, want) == {}


def test_before_the_kubelet_has_spoken_nothing_is_said_of_what_is_in_use() -> None:
    assert names.IN_USE not in wanted(DGX_A100, None).annotations


def test_before_the_first_look_nothing_is_said_of_what_pods_do() -> None:
    """The Node keeps what an earlier plugin wrote, and no time without a look is added."""
    was = node(annotations={names.ACTIVITY: "of an earlier plugin"})
    assert names.ACTIVITY not in difference(was, wanted(DGX_A100, IN_USE))["annotations"]
    first = Activity(at=1_763_000_000)
    patch = difference(was, wanted(DGX_A100, IN_USE, first))
    assert read_activity(str(patch["annotations"][names.ACTIVITY])) == first


def test_labels_of_ours_that_are_true_no_more_are_taken_away() -> None:
    was = node(
        {"linkwise.dev/clique": "c.1", "linkwise.dev/x": "1", "mine": "yes"},
        {names.OWN_LABELS: "linkwise.dev/clique,linkwise.dev/x,gone-already"},
    )
    assert difference(was, Wanted({}, {"linkwise.dev/x": "1"})) == {
        "labels": {"linkwise.dev/clique": None},
        "annotations": {names.OWN_LABELS: "linkwise.dev/x"},
    }


def test_labels_that_feature_discovery_wrote_are_its_own() -> None:
    was = node({PRODUCT: "A100-SXM4-40GB-SHARED", "nvidia.com/gpu.present": "true"})
    patch = difference(was, Wanted({}, {PRODUCT: "NVIDIA-A100-SXM4-40GB", "linkwise.dev/x": "1"}))
    assert patch["labels"] == {"linkwise.dev/x": "1"}
    assert patch["annotations"][names.OWN_LABELS] == "linkwise.dev/x"


def test_labels_of_ours_under_nvidias_names_follow_the_machine() -> None:
    was = node({PRODUCT: "Tesla-T4"}, {names.OWN_LABELS: PRODUCT})
    assert difference(was, Wanted({}, {PRODUCT: "NVIDIA-L4"}))["labels"] == {PRODUCT: "NVIDIA-L4"}


def test_labels_under_our_own_name_are_ours_whoever_wrote_them() -> None:
    was = node({"linkwise.dev/x": "0"})
    patch = difference(was, Wanted({}, {"linkwise.dev/x": "1"}))
    assert patch["labels"] == {"linkwise.dev/x": "1"}


class OneNode:
    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        self.client.post(
            "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        )
        self.errors = 0

    def count_error(self) -> None:
        self.errors += 1

    def annotation(self, key: str) -> str | None:
        return self.client.get("/api/v1/nodes/n1", Node).metadata.annotations.get(key)

    def label(self, key: str) -> str | None:
        return self.client.get("/api/v1/nodes/n1", Node).metadata.labels.get(key)

    def patches(self) -> int:
        return self.server.requests().get("PATCH nodes", 0)


@pytest.fixture
def cluster() -> Iterator[OneNode]:
    with ApiServer() as server:
        yield OneNode(server)


@pytest.fixture
def publisher(cluster: OneNode) -> Iterator[Callable[..., NodePublisher]]:
    made: list[NodePublisher] = []

    def make(**options: Any) -> NodePublisher:
        each = NodePublisher(cluster.client, "n1", on_error=cluster.count_error, **options)
        made.append(each)
        each.start()
        return each

    yield make
    for each in made:
        each.stop()


def test_the_node_follows_what_it_is_told_with_one_write_for_each_change(
    cluster: OneNode, publisher: Callable[..., NodePublisher]
) -> None:
    ours = publisher()
    assert not ours.published
    ours.machine(DGX_A100)
    wait_for(lambda: ours.published, "the first write")
    assert cluster.label("linkwise.dev/gpu.count") == "8"
    ours.in_use(IN_USE)
    wait_for(lambda: cluster.annotation(names.IN_USE), "what is in use")
    ours.in_use(IN_USE)  # the same again
    sick = replace(DGX_A100.gpus[0], healthy=False)
    ours.machine(replace(DGX_A100, gpus=(sick, *DGX_A100.gpus[1:])))
    wait_for(
        lambda: not read_topology(cluster.annotation(names.TOPOLOGY) or "").gpus[0].healthy,
        "the sick GPU",
    )
    assert cluster.patches() == 3


def test_the_node_is_not_read_again_for_each_gpu_that_is_taken(
    cluster: OneNode, publisher: Callable[..., NodePublisher]
) -> None:
    ours = publisher()
    ours.machine(DGX_A100)
    wait_for(lambda: ours.published, "the first write")
    cluster.server.fail_next("GET", "/nodes/n1", 500)
    ours.in_use(IN_USE)
    wait_for(lambda: cluster.patches() == 2, "the second write")
    assert cluster.errors == 0
    cluster.server.clear_faults()
    wait_for(lambda: cluster.annotation(names.IN_USE), "what is in use")  # a request counts early


def test_a_write_that_was_done_though_it_failed_is_found_and_corrected(
    cluster: OneNode, publisher: Callable[..., NodePublisher]
) -> None:
    ours = publisher()
    ours.machine(DGX_A100)
    ours.in_use(InUse())
    wait_for(lambda: cluster.annotation(names.IN_USE), "the first write")
    cluster.server.fail_next("PATCH", "/nodes/n1", 500, carry_out=True)
    ours.in_use(IN_USE)
    wait_for(lambda: cluster.errors, "the failed write")
    ours.in_use(InUse())
    wait_for(
        lambda: read_in_use(cluster.annotation(names.IN_USE) or "") == InUse() and ours.published,
        "the correction",
    )


def test_a_failed_write_is_counted_and_done_again(
    cluster: OneNode, publisher: Callable[..., NodePublisher]
) -> None:
    cluster.server.fail_next("PATCH", "/nodes/n1", 500, times=2)
    ours = publisher()
    ours.machine(DGX_A100)
    wait_for(lambda: ours.published, "the write")
    assert cluster.errors == 2
    assert cluster.annotation(names.TOPOLOGY)


def test_a_fault_of_ours_does_not_end_the_writing(
    cluster: OneNode,
    publisher: Callable[..., NodePublisher],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(publish, "wanted", lambda *_: 1 // 0)
    ours = publisher()
    ours.machine(DGX_A100)
    wait_for(lambda: cluster.errors, "a failed write")
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.setattr(publish, "wanted", wanted)
    wait_for(lambda: ours.published, "the write")


def test_each_new_reason_of_a_failure_is_said_once(
    cluster: OneNode,
    publisher: Callable[..., NodePublisher],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.server.fail_next("GET", "/nodes/n1", 500, times=2)
    cluster.client.delete("/api/v1/nodes/n1")
    ours = publisher()
    ours.machine(DGX_A100)
    wait_for(lambda: cluster.errors >= 4, "failed writes")
    assert "404 NotFound" in ours.trouble
    said = [record.message[:9] for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["node: 500", "node: 404"]


def test_a_node_that_is_not_there_yet_is_waited_for(
    cluster: OneNode, publisher: Callable[..., NodePublisher]
) -> None:
    cluster.client.delete("/api/v1/nodes/n1")
    ours = publisher()
    ours.machine(DGX_A100)
    wait_for(lambda: cluster.errors, "a failed write")
    assert not ours.published
    cluster.client.post(
        "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    )
    wait_for(lambda: ours.published, "the write")


def uid_of(cluster: OneNode) -> str:
    return cluster.client.get("/api/v1/nodes/n1", Node).metadata.uid


def made_again(cluster: OneNode) -> str:
    cluster.client.delete("/api/v1/nodes/n1")
    cluster.client.post(
        "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    )
    return uid_of(cluster)


def test_a_node_made_again_is_told_everything_once_it_is_seen(
    cluster: OneNode, publisher: Callable[..., NodePublisher]
) -> None:
    ours = publisher(resync_seconds=3600)
    ours.node_seen(uid_of(cluster))
    ours.machine(DGX_A100)
    ours.in_use(IN_USE)
    wait_for(lambda: cluster.annotation(names.IN_USE), "the first writes")
    ours.node_seen(uid_of(cluster))  # as after every change of the Node
    ours.node_seen(made_again(cluster))
    wait_for(lambda: cluster.label("linkwise.dev/gpu.count") == "8", "its labels")
    assert cluster.annotation(names.IN_USE)
    assert cluster.annotation(names.OWN_LABELS)


def test_a_node_made_again_is_not_told_by_half_where_a_write_comes_before_it_is_seen(
    cluster: OneNode, publisher: Callable[..., NodePublisher]
) -> None:
    ours = publisher(resync_seconds=3600)
    ours.node_seen(uid_of(cluster))
    ours.machine(DGX_A100)
    wait_for(lambda: ours.published, "the first write")
    new = made_again(cluster)
    ours.in_use(IN_USE)
    wait_for(lambda: cluster.annotation(names.IN_USE), "what is in use, on a Node without labels")
    ours.node_seen(new)
    wait_for(lambda: cluster.label("linkwise.dev/gpu.count") == "8", "its labels")
    wait_for(lambda: ours.published, "the end of the write")


def test_a_node_that_comes_back_does_not_wait_for_the_end_of_a_back_off(
    cluster: OneNode,
    publisher: Callable[..., NodePublisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "wait_random_exponential", lambda **_: wait_fixed(3600))
    cluster.client.delete("/api/v1/nodes/n1")
    ours = publisher()
    ours.machine(DGX_A100)
    wait_for(lambda: cluster.errors, "a failed write")
    cluster.client.post(
        "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    )
    ours.node_seen(uid_of(cluster))
    wait_for(lambda: ours.published, "the write")


def test_what_somebody_else_took_away_is_written_again(
    cluster: OneNode, publisher: Callable[..., NodePublisher]
) -> None:
    ours = publisher(resync_seconds=0.02)
    ours.machine(BRIDGED_8)
    wait_for(lambda: ours.published, "the first write")
    cluster.client.patch(
        "/api/v1/nodes/n1",
        {
            "metadata": {
                "labels": {"linkwise.dev/nvlink": None},
                "annotations": {names.TOPOLOGY: "x"},
            }
        },
    )
    wait_for(
        lambda: cluster.label("linkwise.dev/nvlink") and cluster.annotation(names.TOPOLOGY) != "x",
        "the repair",
    )


def test_stopping_while_the_api_server_is_gone_does_not_hang(
    cluster: OneNode, publisher: Callable[..., NodePublisher]
) -> None:
    cluster.server.pause()
    ours = publisher()
    ours.machine(DGX_A100)
    wait_for(lambda: cluster.errors, "a failed write")
    ours.stop()
    assert not ours.published
    cluster.server.resume()
