"""If its DaemonSet is gone when the plugin ends, it removes what it wrote from its Node."""

import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import ObjectMeta
from linkwise.plugin.node import cleanup
from linkwise.plugin.node.cleanup import Leaving
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from tests.kube.scripted_server import scripted

NODE = "/api/v1/nodes/n1"
DAEMONSETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
OURS = "kube-system/linkwise-plugin"
PRODUCT = "nvidia.com/gpu.product"
OF_OTHERS = {"zone": "a", "nvidia.com/gpu.present": "true"}


@dataclass
class Labelled:
    metadata: ObjectMeta


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> KubeClient:
    client = KubeClient.load(kubeconfig=None, server=server.url)
    metadata = {
        "name": "n1",
        "labels": {**OF_OTHERS, "linkwise.dev/nvlink": "NV12", PRODUCT: "A100"},
        "annotations": {
            names.TOPOLOGY: "{}",
            names.IN_USE: "{}",
            names.OWN_LABELS: f"linkwise.dev/nvlink,{PRODUCT},linkwise.dev/gone-already",
            "of/others": "stays",
        },
    }
    client.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    return client


def daemonset(client: KubeClient, **selector: str) -> None:
    metadata = {"name": "linkwise-plugin", "namespace": "kube-system"}
    spec = {"template": {"spec": {"nodeSelector": selector}}} if selector else {}
    made = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}
    client.post(DAEMONSETS, made)


def clean_up_if_removed(client: KubeClient, node: str, daemonset: str) -> None:
    Leaving(client, node, daemonset).clean_up_if_removed()


def keys(client: KubeClient) -> tuple[set[str], set[str]]:
    metadata = client.get(NODE, Labelled).metadata
    return set(metadata.labels), set(metadata.annotations)


def test_when_the_daemonset_is_gone_all_of_ours_goes_and_nothing_else(client: KubeClient) -> None:
    clean_up_if_removed(client, "n1", OURS)
    assert keys(client) == (set(OF_OTHERS), {"of/others"})


def test_while_the_daemonset_is_there_everything_stays(client: KubeClient) -> None:
    before = keys(client)
    daemonset(client)
    clean_up_if_removed(client, "n1", OURS)
    assert keys(client) == before


def test_while_the_daemonset_selects_the_node_everything_stays(client: KubeClient) -> None:
    before = keys(client)
    daemonset(client, zone="a")
    clean_up_if_removed(client, "n1", OURS)
    assert keys(client) == before


def test_when_the_daemonset_no_longer_selects_the_node_all_of_ours_goes(client: KubeClient) -> None:
    """The way back from a canary by node."""
    daemonset(client, zone="a", canary="true")
    clean_up_if_removed(client, "n1", OURS)
    assert keys(client) == (set(OF_OTHERS), {"of/others"})


def test_a_daemonset_that_waits_for_its_pods_to_end_is_as_good_as_gone() -> None:
    going = b'{"metadata": {"name": "x", "deletionTimestamp": "2026-01-02T03:04:05Z"}}'
    with scripted((200, going), (200, b'{"metadata": {"name": "n1"}}')) as removed:
        asked = KubeClient.load(kubeconfig=None, server=removed.url)
        clean_up_if_removed(asked, "n1", OURS)
        assert removed.asked == [f"{DAEMONSETS}/linkwise-plugin", NODE]


def test_a_node_that_is_gone_too_is_no_trouble(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    clean_up_if_removed(KubeClient.load(kubeconfig=None, server=server.url), "n1", OURS)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_node_that_says_nothing_of_us_is_not_written(
    server: ApiServer, client: KubeClient
) -> None:
    clean_up_if_removed(client, "n1", OURS)
    clean_up_if_removed(client, "n1", OURS)
    assert server.requests()["PATCH nodes"] == 1


def test_without_the_right_to_ask_everything_stays_and_the_log_says_why(
    server: ApiServer, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    before = keys(client)
    server.fail_next("GET", "daemonsets", 403)
    clean_up_if_removed(client, "n1", OURS)
    assert keys(client) == before
    assert "labels and annotations stay as they are" in caplog.text


def test_an_api_server_that_is_busy_is_asked_again(server: ApiServer, client: KubeClient) -> None:
    server.fail_next("GET", "daemonsets", 503)
    server.fail_next("PATCH", "nodes", 429)
    clean_up_if_removed(client, "n1", OURS)
    assert keys(client)[0] == set(OF_OTHERS)


def test_an_api_server_that_is_away_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cleanup, "_SILENT_SECONDS", 0.1)
    client = KubeClient.load(kubeconfig=None, server="http://127.0.0.1:9")
    going = Leaving(client, "n1", OURS)
    going.clean_up_if_removed()
    assert "labels and annotations stay as they are" in caplog.text
    assert not going.answered.is_set()


def test_an_api_server_that_takes_calls_and_says_nothing_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cleanup, "_SILENT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        going = Leaving(KubeClient.load(kubeconfig=None, server=url), "n1", OURS)
        going.clean_up_if_removed()
    assert "labels and annotations stay as they are" in caplog.text
    assert not going.answered.is_set()


def test_one_that_has_answered_is_worth_waiting_for(server: ApiServer, client: KubeClient) -> None:
    server.fail_next("GET", "daemonsets", 503)
    going = Leaving(client, "n1", OURS)
    going.clean_up_if_removed()
    assert going.answered.is_set()
    assert keys(client)[0] == set(OF_OTHERS)
