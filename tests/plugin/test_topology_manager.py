"""What the plugin learns of its kubelet's Topology Manager, from whom, and when it says so."""

import json
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from kubernetes.client import Configuration

from linkwise.kube.client import KubeClient
from linkwise.plugin.node.topology_manager import (
    KubeletReader,
    NotSaidError,
    TopologyManagerWatch,
)
from linkwise.topology.machine.topology_manager import Policy, Scope, Source, TopologyManager
from tests.cluster.support.api.pki import CertificateAuthority

NRT = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1"


class Server:
    """API server and kubelet at one address, by TLS: answers what is put into *said*."""

    def __init__(self, directory: Path) -> None:
        self.said: dict[str, object] = {}
        self.asked: list[tuple[str, str]] = []  # path, authorization
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("authorization", "")))
                found = outer.said.get(self.path)
                body = json.dumps(found if found is not None else {"code": 404}).encode()
                self.send_response(200 if found is not None else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        authority = CertificateAuthority(directory)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.server("kubelet", "127.0.0.1"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, daemon=True).start()
        configuration = Configuration()
        configuration.host = f"https://127.0.0.1:{self.port}"
        configuration.ssl_ca_cert = str(authority.certificate)
        configuration.api_key["authorization"] = "Bearer a-token"
        self.client = KubeClient(configuration)
        self.node(self.port)

    def node(self, kubelet_port: int) -> None:
        self.said["/api/v1/nodes/n1"] = {
            "status": {
                "addresses": [
                    {"type": "Hostname", "address": "n1"},
                    {"type": "InternalIP", "address": "127.0.0.1"},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
            }
        }

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.stop()


def configuration(policy: str, **more: object) -> dict[str, object]:
    return {"kind": "KubeletConfiguration", "topologyManagerPolicy": policy, **more}


def test_the_kubelet_itself_is_asked_with_the_plugins_own_token(server: Server) -> None:
    server.said["/configz"] = {
        "kubeletconfig": configuration(
            "restricted",
            topologyManagerScope="pod",
            topologyManagerPolicyOptions={"prefer-closest-numa-nodes": "true"},
        )
    }
    found = KubeletReader(server.client, "n1", None).read()
    options = (("prefer-closest-numa-nodes", "true"),)
    assert found == TopologyManager(Policy.RESTRICTED, Scope.POD, options, Source.CONFIGZ)
    assert found.prefers_closest
    assert ("/configz", "Bearer a-token") in server.asked


def test_where_the_kubelet_does_not_answer_its_file_counts(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("kind: KubeletConfiguration\ntopologyManagerPolicy: single-numa-node\n")
    found = KubeletReader(server.client, "n1", file).read()
    assert found == TopologyManager(Policy.SINGLE_NUMA_NODE, source=Source.FILE)


def test_a_file_that_says_nothing_of_it_has_the_kubelets_defaults(
    server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("kind: KubeletConfiguration\nmaxPods: 110\n")
    found = KubeletReader(server.client, "n1", file).read()
    assert found == TopologyManager(Policy.NONE, source=Source.FILE)


def test_without_both_what_another_agent_wrote_counts(server: Server) -> None:
    server.said[NRT] = {
        "attributes": [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "pod"},
        ]
    }
    found = KubeletReader(server.client, "n1", None).read()
    assert found.source is Source.NODE_RESOURCE_TOPOLOGY
    assert (found.policy, found.scope) == (Policy.SINGLE_NUMA_NODE, Scope.POD)


def test_a_token_is_sent_to_no_kubelet_that_the_clusters_authority_does_not_vouch_for(
    server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "other").mkdir()
    other = Server(tmp_path / "other")
    request.addfinalizer(other.stop)
    other.said["/configz"] = {"kubeletconfig": configuration("restricted")}
    server.node(other.port)
    with pytest.raises(NotSaidError, match=r"configz: .*certificate"):
        KubeletReader(server.client, "n1", None).read()
    assert other.asked == []


@pytest.mark.parametrize(
    "content",
    ["kind: [", "kind: Pod", "42", "kind: KubeletConfiguration\ntopologyManagerPolicy: 1"],
)
def test_a_file_that_is_none_is_named(server: Server, tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(NotSaidError, match=r"of_file|config\.yaml"):
        KubeletReader(server.client, "n1", file).read()


def test_a_policy_of_a_later_kubernetes_is_unknown(server: Server) -> None:
    server.said["/configz"] = {"kubeletconfig": configuration("whole-rack")}
    with pytest.raises(NotSaidError, match="whole-rack"):
        KubeletReader(server.client, "n1", None).read()


def test_what_was_read_stays_while_nothing_answers(server: Server) -> None:
    told: list[TopologyManager | None] = []
    watch = TopologyManagerWatch(
        KubeletReader(server.client, "n1", None), on_change=lambda: told.append(watch.now)
    )
    server.said["/configz"] = {"kubeletconfig": configuration("restricted")}
    watch.look()
    watch.look()
    del server.said["/configz"]
    watch.look()
    assert [manager.policy for manager in told if manager] == [Policy.RESTRICTED]
    server.said["/configz"] = {"kubeletconfig": configuration("none")}
    watch.look()
    assert watch.now == TopologyManager(Policy.NONE)
    assert len(told) == 2
