"""Requests to a real HTTP server: their form, their answers, and every way to fail."""

import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from threading import Timer

import msgspec
import pytest
from kubernetes.client import Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader

from linkwise.kube.client import JSON_PATCH, ApiError, KubeClient, LoadError
from linkwise.kube.objects import Container, Node, ObjectMeta, Pod, PodSpec
from linkwise.simulator.api_server import ApiServer
from tests.kube.scripted_server import scripted

PODS = "/api/v1/namespaces/ml/pods"
N1 = {"kind": "Node", "name": "n1"}
WORKER = Pod(
    metadata=ObjectMeta(name="worker-0"), spec=PodSpec(containers=(Container(name="main"),))
)


def test_what_is_created_can_be_read_changed_and_deleted(client: KubeClient) -> None:
    client.post(PODS, WORKER)
    client.post(f"{PODS}/worker-0/binding", {"metadata": {"name": "worker-0"}, "target": N1})
    client.patch(f"{PODS}/worker-0", {"metadata": {"annotations": {"linkwise.dev/rank": "3"}}})
    found = client.get(f"{PODS}/worker-0", Pod)
    assert found.metadata.annotations == {"linkwise.dev/rank": "3"}
    client.delete(f"{PODS}/worker-0", uid=found.metadata.uid)  # it may take its time to end
    assert client.get(f"{PODS}/worker-0", Pod).is_leaving
    client.delete(f"{PODS}/worker-0", uid=found.metadata.uid, grace_seconds=0)
    with pytest.raises(ApiError, match='404 NotFound: pods "worker-0" not found'):
        client.get(f"{PODS}/worker-0", Pod)


def test_a_deletion_of_another_uid_is_a_conflict(client: KubeClient) -> None:
    client.post(PODS, WORKER)
    with pytest.raises(ApiError) as refused:
        client.delete(f"{PODS}/worker-0", uid="its-predecessor")
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert not refused.value.maybe_done


def test_an_object_is_replaced_only_over_the_version_it_names(client: KubeClient) -> None:
    client.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
    first = client.get("/api/v1/nodes/n1", Node)
    labelled = {"name": "n1", "labels": {"pool": "a"}}
    version = {"resourceVersion": first.metadata.resource_version}
    client.put("/api/v1/nodes/n1", {"metadata": labelled | version})
    with pytest.raises(ApiError, match="the object has been modified"):
        client.put("/api/v1/nodes/n1", {"metadata": {"name": "n1"} | version})
    assert client.get("/api/v1/nodes/n1", Node).metadata.labels == {"pool": "a"}


def test_a_patch_is_a_merge_patch_unless_said_otherwise(client: KubeClient) -> None:
    """A strategic one would keep entries that the new list lacks."""
    labels, taint = {"pool": "a", "rack": "7"}, {"key": "b", "effect": "NoSchedule"}
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Old", "status": "True"}]
    client.post(
        "/api/v1/nodes",
        {"metadata": {"name": "n1", "labels": labels}, "status": {"conditions": conditions}},
    )
    client.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"pool": None}}})
    client.patch("/api/v1/nodes/n1", {"spec": {"taints": [taint]}})
    client.patch("/api/v1/nodes/n1/status", {"status": {"conditions": conditions[:1]}})
    node = client.get("/api/v1/nodes/n1", Node)
    assert node.metadata.labels == {"rack": "7"}
    assert [taint.key for taint in node.spec.taints] == ["b"]
    assert [condition.type for condition in node.status.conditions] == ["Ready"]


def test_a_json_patch_says_its_content_type(client: KubeClient) -> None:
    client.post("/api/v1/nodes", {"metadata": {"name": "n1", "labels": {"a": "1"}}})
    operations = [{"op": "test", "path": "/metadata/labels/a", "value": "2"}]
    with pytest.raises(ApiError) as refused:
        client.patch("/api/v1/nodes/n1", operations, content_type=JSON_PATCH)
    assert refused.value.status == 422


def test_an_answer_of_another_shape_is_refused_with_its_path(client: KubeClient) -> None:
    class Odd(msgspec.Struct):
        metadata: int

    client.post(PODS, WORKER)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.metadata"):
        client.get(f"{PODS}/worker-0", Odd)


def test_parameters_are_sent_quoted(client: KubeClient) -> None:
    class Names(msgspec.Struct):
        items: list[Pod]

    client.post(PODS, WORKER)
    found = client.get(PODS, Names, params={"fieldSelector": "metadata.name=worker-0", "limit": 5})
    assert [pod.metadata.name for pod in found.items] == ["worker-0"]
    with pytest.raises(ApiError, match="not supported"):
        client.get(PODS, Names, params={"fieldSelector": "spec.colour=red"})


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_write_that_breaks_is_not_repeated_and_may_have_happened(
    server: ApiServer, client: KubeClient, method: str
) -> None:
    path = f"{PODS}/worker-0"
    labelled = {"metadata": {"name": "worker-0", "labels": {"step": "1"}}}
    if method != "POST":
        client.post(PODS, WORKER)
    writes = {
        "POST": lambda: client.post(PODS, WORKER),
        "PUT": lambda: client.put(path, client.get(path, dict[str, object]) | labelled),
        "PATCH": lambda: client.patch(path, labelled),
        "DELETE": lambda: client.delete(path),
    }
    before = server.requests().get(f"{method} pods", 0)
    server.fail_next(method, "/pods", 0, carry_out=True)
    with pytest.raises(ApiError) as broken:
        writes[method]()
    assert (broken.value.status, broken.value.maybe_done) == (0, True)
    assert server.requests()[f"{method} pods"] == before + 1


def test_a_read_survives_one_broken_connection(server: ApiServer, client: KubeClient) -> None:
    client.post(PODS, WORKER)
    server.fail_next("GET", "/pods", 0)
    assert client.get(f"{PODS}/worker-0", Pod).metadata.name == "worker-0"


def test_a_busy_server_is_reported_at_once_and_not_asked_again() -> None:
    busy = b'{"reason":"TooManyRequests","message":"slow down","details":{"retryAfterSeconds":5}}'
    with scripted((429, busy), (200, b"{}")) as server:
        client = KubeClient.load(kubeconfig=None, server=server.url)
        began = time.monotonic()
        with pytest.raises(ApiError, match="429 TooManyRequests: slow down") as refused:
            client.get("/version", dict)
        assert time.monotonic() - began < 4
    assert refused.value.retry_after_seconds == 5
    assert server.asked == ["/version"]


def test_a_server_that_sends_us_elsewhere_is_not_followed() -> None:
    """The token is for this server alone."""
    with scripted((302, b""), (200, b"{}")) as server:
        client = KubeClient.load(kubeconfig=None, server=server.url)
        with pytest.raises(ApiError, match="302"):
            client.get("/version", dict)
    assert server.asked == ["/version"]


def test_a_server_named_outright_is_reached_without_a_proxy(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = KubeClient.load(kubeconfig=None, server=server.url)
    assert client.get("/version", dict)["major"] == "1"


def test_a_server_that_cannot_be_reached_was_not_asked(
    server: ApiServer, client: KubeClient
) -> None:
    server.pause()
    with pytest.raises(ApiError) as refused:
        client.post(PODS, WORKER)
    assert (refused.value.status, refused.value.reason) == (0, "Unreachable")
    assert not refused.value.maybe_done


def test_a_server_error_may_have_happened(server: ApiServer, client: KubeClient) -> None:
    server.fail_next("POST", "/binding", 504)
    with pytest.raises(ApiError) as failed:
        client.post(f"{PODS}/worker-0/binding", {})
    assert (failed.value.status, failed.value.maybe_done) == (504, True)


def test_a_stream_gives_lines_until_another_thread_closes_it(client: KubeClient) -> None:
    client.post(PODS, WORKER)
    stream = client.stream(PODS, params={"watch": "true"}, idle_seconds=30)
    lines = iter(stream)
    assert b'"ADDED"' in next(lines)
    closing = Timer(0.1, stream.close)
    closing.start()
    began = time.monotonic()
    assert next(lines, None) is None
    assert time.monotonic() - began < 5
    closing.join()


def test_a_stream_that_says_nothing_for_too_long_ends(client: KubeClient) -> None:
    stream = client.stream(PODS, params={"watch": "true"}, idle_seconds=0.05)
    began = time.monotonic()
    assert list(stream) == []
    assert time.monotonic() - began < 5


def test_a_stream_that_breaks_is_an_error(server: ApiServer, client: KubeClient) -> None:
    stream = client.stream(PODS, params={"watch": "true"}, idle_seconds=30)
    assert server.cut_watches() == 1
    with pytest.raises(ApiError) as broken:
        list(stream)
    assert broken.value.status == 0


def test_a_refused_stream_says_why(client: KubeClient) -> None:
    with pytest.raises(ApiError, match="resourceVersion"):
        client.stream(PODS, params={"watch": "true", "resourceVersion": "x"}, idle_seconds=1)


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "%s"}}]
users: [{name: u, user: {token: "sesame"}}]
"""


def test_a_kubeconfig_names_the_server_and_the_token(tmp_path: Path) -> None:
    # The page of a proxy in front of a server that is down.
    with scripted((502, b"<html>Bad gateway</html>")) as proxy:
        file = tmp_path / "config"
        file.write_text(KUBECONFIG % proxy.url)
        client = KubeClient.load(kubeconfig=str(file))
        with pytest.raises(ApiError, match="502 Unknown: <html>Bad gateway"):
            client.get("/version", dict)
    assert proxy.authorizations == ["Bearer sesame"]


def test_a_pod_s_token_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    token, certificate = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    certificate.write_text("unused: this server speaks plain HTTP")
    place = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    loader = InClusterConfigLoader(str(token), str(certificate), environ=place)  # type: ignore[no-untyped-call]
    configuration = Configuration()
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    with scripted((200, b"{}"), (200, b"{}")) as server:
        configuration.host = server.url
        configuration.ssl_ca_cert = None
        client = KubeClient(configuration, token_seconds=0)
        client.get("/version", dict)
        token.write_text("second")
        loader.token_expires_at = datetime.now() - timedelta(seconds=1)
        client.get("/version", dict)
        assert server.authorizations == ["bearer first", "bearer second"]
        token.unlink()
        loader.token_expires_at = datetime.now() - timedelta(seconds=1)
        with pytest.raises(ApiError, match=r"NoCredentials: GET /version: .*token"):
            client.get("/version", dict)


@pytest.mark.parametrize(("seconds", "asked"), [(60.0, 1), (0.0, 3)])
def test_a_token_is_looked_for_once_in_a_while_and_not_for_each_request(
    seconds: float, asked: int
) -> None:
    looks = []

    def look(configuration: Configuration) -> None:
        looks.append(1)
        configuration.api_key["BearerToken"] = "Bearer sesame"

    configuration = Configuration()
    configuration.refresh_api_key_hook = look  # type: ignore[assignment]
    with scripted(*3 * [(200, b"{}")]) as server:
        configuration.host = server.url
        client = KubeClient(configuration, token_seconds=seconds)
        for _ in range(3):
            client.get("/version", dict)
    assert server.authorizations == 3 * ["Bearer sesame"]
    assert len(looks) == asked


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no-such-file"):
        KubeClient.load(kubeconfig=str(tmp_path / "no-such-file"))


@pytest.mark.parametrize("content", [b"- 1\n", b"contexts: 3\n", b"{", b"\xff\xfe\x00", b"a: b: c"])
def test_a_file_that_is_no_kubeconfig_is_named_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config"
    file.write_bytes(content)
    with pytest.raises(LoadError, match=f"^kubeconfig {file}: ") as refusal:
        KubeClient.load(kubeconfig=str(file))
    assert "\n" not in str(refusal.value)


def test_outside_a_pod_a_kubeconfig_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(os.environ, "KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(LoadError, match="not in a pod"):
        KubeClient.load(kubeconfig=None)


def test_requests_within_a_time_are_over_in_it(server: ApiServer, client: KubeClient) -> None:
    client.post(PODS, WORKER)
    server.pause()
    for ask in (
        lambda: client.get(f"{PODS}/worker-0", Pod),
        lambda: client.patch(f"{PODS}/worker-0", {}),
    ):
        began = time.monotonic()
        with pytest.raises(ApiError), client.within(0.2):
            ask()
        assert time.monotonic() - began < 2  # of the 10 s that they would have
    server.resume()
    with pytest.raises(ApiError, match="no time left") as unsent, client.within(0):
        client.patch(f"{PODS}/worker-0", {})
    assert not unsent.value.maybe_done
    client.patch(f"{PODS}/worker-0", {})


def test_what_was_stored_is_told(client: KubeClient) -> None:
    made = client.create(PODS, WORKER, Pod)
    assert made.metadata.uid
    path = f"{PODS}/worker-0"
    body = client.get(path, dict[str, object])
    stored = client.replace(path, {**body, "status": {}}, Pod)
    assert stored.metadata.uid == made.metadata.uid
