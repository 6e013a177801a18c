"""The test cluster is a real one: pods run, communicate and survive what they survive elsewhere.

All other tests with real kubelets depend on this. If one of these fails, fix it first.
"""

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.support.api.control_plane import ControlPlane, KubectlError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes.cluster import RealCluster
from tests.cluster.support.programs import busybox

SERVING = "echo serving; echo hello > /tmp/index.html; exec httpd -f -p 80 -h /tmp"


@pytest.fixture(scope="module")
def cluster(run_directory: Path) -> Iterator[RealCluster]:
    cluster = RealCluster(run_directory / "cluster")
    cluster.start()
    yield cluster
    cluster.stop()
    shutil.rmtree(cluster.control.directory)


@pytest.fixture(scope="module")
def control(cluster: RealCluster) -> ControlPlane:
    """A control plane with a web server on the first node and a client on the second."""
    web = pod("web", "node-1", SERVING) | {
        "metadata": {"name": "web", "labels": {"app": "web"}},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    }
    apply(cluster.control, web, pod("client", "node-2"), service)
    for name in ("web", "client"):
        wait_for(partial(is_ready, cluster.control, name), f"{name} runs")
    address = address_of_web(cluster.control)
    wait_for(
        lambda: says(cluster.control, "client", f"wget -qO- http://{address}") == "hello\n",
        "the web server listens, and kube-proxy has heard of it",
    )
    return cluster.control


def test_both_nodes_are_ready_at_their_own_addresses(cluster: RealCluster) -> None:
    rows = cluster.control.kubectl("get", "nodes", "--no-headers", "-o", "wide").splitlines()
    found = {name: (status, address) for name, status, _, _, _, address, *_ in map(str.split, rows)}
    assert found == {"node-1": ("Ready", "172.31.0.11"), "node-2": ("Ready", "172.31.0.12")}


def test_what_a_container_says_can_be_read(control: ControlPlane) -> None:
    assert control.kubectl("logs", "web") == "serving\n"


def test_a_command_runs_in_a_container(control: ControlPlane) -> None:
    assert inside(control, "client", "printenv KUBERNETES_SERVICE_HOST") == "10.96.0.1\n"
    assert inside(control, "client", "printenv NO_SUCH || echo none") == "none\n"


@pytest.mark.parametrize("caller", ["client", "web"])
def test_a_service_answers_pods_of_the_other_node_and_of_its_own(
    control: ControlPlane, caller: str
) -> None:
    assert inside(control, caller, f"wget -qO- http://{address_of_web(control)}") == "hello\n"


def test_a_service_answers_who_is_on_no_node(control: ControlPlane) -> None:
    said = subprocess.check_output(["busybox", "wget", "-qO-", f"http://{address_of_web(control)}"])
    assert said == b"hello\n"


def test_pods_reach_the_api_server_at_its_service_address(control: ControlPlane) -> None:
    assert inside(control, "client", "nc 10.96.0.1 443 < /dev/null && echo open") == "open\n"


def test_each_node_has_its_own_disk_and_its_pods_see_that_one(
    cluster: RealCluster, control: ControlPlane
) -> None:
    for node in cluster.nodes.values():
        (node.root / "var/lib/kubelet/device-plugins/whose").write_text(node.name)
    looking = pod("looking", "node-1")
    looking["spec"]["containers"][0]["volumeMounts"] = [{"name": "plugins", "mountPath": "/seen"}]
    looking["spec"]["volumes"] = [
        {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}
    ]
    apply(control, looking)
    wait_for(lambda: is_ready(control, "looking"), "the pod that looks runs")
    assert inside(control, "looking", "cat /seen/whose") == "node-1"
    seen = cluster.nodes["node-2"].enter(["cat", "/var/lib/kubelet/device-plugins/whose"])
    assert seen.stdout == "node-2"
    assert "kubelet.sock" in inside(control, "looking", "ls /seen").split()


def test_containers_outlive_their_kubelet_and_their_containerd(
    cluster: RealCluster, control: ControlPlane
) -> None:
    node, before = cluster.nodes["node-2"], container_of(control, "client")
    node.kubelet.kill()
    node.kubelet.start()
    node.wait_ready()
    node.containerd.restart()
    node.wait_containerd()
    wait_for(lambda: says(control, "client", "echo still here"), "commands run again")
    assert container_of(control, "client") == before


def test_a_power_cut_ends_every_process_and_the_disk_stays(
    cluster: RealCluster, control: ControlPlane
) -> None:
    node, before = cluster.nodes["node-1"], container_of(control, "web")
    kept = node.root / "var/lib/kept"
    kept.write_text("yes")
    (node.root / "run/forgotten").touch()
    assert running("httpd")
    node.stop()
    assert not running("httpd")
    assert not node.kubelet.alive
    assert running("/bin/sleep")  # on the other node
    node.start()
    assert kept.read_text() == "yes"
    assert not (node.root / "run/forgotten").exists()
    wait_for(lambda: running("httpd"), "the web server runs again")
    wait_for(
        lambda: container_of(control, "web")[0] not in ("", before[0]), "the API server knows it"
    )
    address = address_of_web(control)
    wait_for(lambda: says(control, "client", f"wget -qO- http://{address}"), "it answers again")


def test_the_logs_of_programs_and_pods_are_kept_together(cluster: RealCluster) -> None:
    logs = cluster.control.logs
    found = {str(path.relative_to(logs)) for path in logs.rglob("*.log")}
    assert {"kube-apiserver.log", "node-1.kubelet.log", "node-2.containerd.log"} <= found
    assert any(path.startswith("node-2/pods/default_client_") for path in found)


def pod(name: str, node: str, script: str = "exec sleep 100000") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": busybox.WORKLOAD,
                    "imagePullPolicy": "Never",
                    "command": ["sh", "-c", script],
                }
            ],
        },
    }


def apply(control: ControlPlane, *objects: dict[str, Any]) -> None:
    control.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))


def inside(control: ControlPlane, name: str, script: str) -> str:
    return control.kubectl("exec", name, "--", "sh", "-c", script)


def says(control: ControlPlane, name: str, script: str) -> str:
    """Return the result as `inside`; "" while the pod cannot be reached."""
    try:
        return inside(control, name, script)
    except KubectlError:
        return ""


def is_ready(control: ControlPlane, name: str) -> bool:
    path = "{.status.conditions[?(@.type=='Ready')].status}"
    return control.kubectl("get", "pod", name, "-o", f"jsonpath={path}") == "True"


def container_of(control: ControlPlane, name: str) -> tuple[str, str]:
    """Return its container's id ("" if there is none), and its number of restarts."""
    path = "{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}"
    said = control.kubectl("get", "pod", name, "-o", f"jsonpath={path}")
    identity, _, restarts = said.partition(" ")
    return identity, restarts


def address_of_web(control: ControlPlane) -> str:
    return control.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")


def running(program: str) -> bool:
    """True if a process of the sandbox runs *program*; all of them are visible here."""
    return any(command[0] == program for command in commands())


def commands() -> Iterator[list[str]]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_text().split("\0")
        except OSError:  # ended since the listing
            continue
        yield words
