"""`kubectl linkwise` with the real kubectl, through the real API server; and the Event that says
why a gang waits.

Neither needs a scheduler: the extender answers and reports alone.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3

from linkwise.topology import names
from tests.cluster.support.api.control_plane import ADDRESS, ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import (
    ADMISSION_OFF,
    GPU,
    ExtenderProcess,
    allow_extender,
    gpu_node,
)
from tests.parsed_page import ParsedPage

PODS = "/api/v1/namespaces/ml/pods"
SYSTEM = "/api/v1/namespaces/kube-system"
SECOND = ("explain", "second", "-n", "ml")
COMPLETE = "kubectl_complete-linkwise"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system"


class Meta(msgspec.Struct, rename="camel"):
    name: str = ""


class Event(msgspec.Struct, rename="camel"):
    involved_object: Meta
    reason: str = ""
    message: str = ""
    count: int = 0


class Events(msgspec.Struct):
    items: tuple[Event, ...]


class Kubectl:
    """kubectl as a user runs it, with the plugin on the PATH."""

    def __init__(self, control: ControlPlane, directory: Path) -> None:
        directory.mkdir()
        self._control = control
        self._path = f"{directory}{os.pathsep}{os.environ['PATH']}"
        # As the package installs them.
        for name, function in (("kubectl-linkwise", "main"), (COMPLETE, "complete")):
            call = f"from linkwise.cli.kubectl import {function}\n\n{function}()\n"
            (directory / name).write_text(f"#!{sys.executable}\n{call}")
            (directory / name).chmod(0o755)

    def run(self, *arguments: str, user: str = "scientist") -> subprocess.CompletedProcess[str]:
        return self.kubectl("linkwise", *arguments, user=user)

    def kubectl(self, *arguments: str, user: str = "scientist") -> subprocess.CompletedProcess[str]:
        kubeconfig = self._control.kubeconfig(user, "research")
        return subprocess.run(
            [self._control.programs / "kubectl", *arguments],
            env={**os.environ, "PATH": self._path, "KUBECONFIG": str(kubeconfig)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def open_page(
        self, user: str = "scientist", *, end: signal.Signals = signal.SIGINT
    ) -> Iterator[str]:
        """The address that `kubectl linkwise ui` prints; it serves inside the block, which sends
        *end* to that process alone."""
        kubeconfig = self._control.kubeconfig(user, "research")
        programs = str(self._control.programs)
        with subprocess.Popen(
            [self._control.programs / "kubectl", "linkwise", "ui", "--no-browser"],
            env={
                **os.environ,
                "PATH": f"{programs}{os.pathsep}{self._path}",
                "KUBECONFIG": str(kubeconfig),
                "PYTHONUNBUFFERED": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
            # In a background job of a shell, processes ignore Ctrl-C, and so do their children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip()
            finally:
                process.send_signal(end)
                process.wait(30)

    def says(self, *arguments: str) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def control(run_directory: Path) -> Iterator[ControlPlane]:
    directory = run_directory / "kubectl-plugin"
    control = ControlPlane(directory, controllers=False, disable_admission=ADMISSION_OFF)
    control.start()
    yield control
    control.stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def extender(control: ControlPlane) -> Iterator[ExtenderProcess]:
    control.kubectl("create", "namespace", "ml")
    allow_extender(control)
    client = control.client()
    client.post("/api/v1/nodes", gpu_node("n1"))
    extender = ExtenderProcess(control, address=ADDRESS)
    extender.start()
    port = int(extender.url.rpartition(":")[2])
    for path, body in _service(port):
        client.post(path, body)
    running = {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}], "phase": "Running"}
    client.patch(f"{SYSTEM}/pods/linkwise-extender/status", {"status": running})
    yield extender
    extender.process.stop()


@pytest.fixture(scope="module")
def kubectl(control: ControlPlane, extender: ExtenderProcess, run_directory: Path) -> Kubectl:
    assert extender.process.alive
    client = control.client()
    for name in ("busy", "second", "third"):
        client.post(PODS, _pod(name, 8 if name == "busy" else 2))
    client.post(f"{PODS}/busy/binding", _binding("busy", "n1"))
    for rank in range(2):
        client.post(PODS, _pod(f"train-{rank}", 8, **{names.GANG: "train", names.GANG_SIZE: "2"}))
    made = Kubectl(control, run_directory / "kubectl-path")
    # The API server learns of the role and of the Service, and the extender of the pods, each in
    # its own time.
    wait_for(lambda: "GPUs with 8 GPUs: ml/busy" in made.run(*SECOND).stdout, "it is answered")
    everything = "1 gang and 2 pods in no gang wait"
    wait_for(lambda: everything in made.run("explain", "-A").stdout, "all pods are known")
    return made


def _service(port: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Create a Service of the extender's process, and a role with verb get alone, so that no user
    can call /bind through it. The API server sends nothing to an address that is not a pod's. Up
    to Kubernetes 1.36 it reads the Endpoints, from 1.37 on the EndpointSlice."""
    name = "linkwise-extender"
    port_of = {"name": "http", "protocol": "TCP"}
    main = {"name": "main", "image": "none"}
    yield (
        f"{SYSTEM}/pods",
        {
            "metadata": {"name": name},
            "spec": {"nodeName": "n1", "containers": [main]},
        },
    )
    yield (
        f"{SYSTEM}/services",
        {
            "metadata": {"name": name},
            "spec": {"ports": [{**port_of, "port": 9402}]},
        },
    )
    pod = {"kind": "Pod", "namespace": "kube-system", "name": name}
    yield (
        f"{SYSTEM}/endpoints",
        {
            "metadata": {"name": name},
            "subsets": [
                {
                    "addresses": [{"ip": ADDRESS, "targetRef": pod}],
                    "ports": [{**port_of, "port": port}],
                }
            ],
        },
    )
    yield (
        "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
        {
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": [ADDRESS], "conditions": {"ready": True}, "targetRef": pod}
            ],
            "ports": [{**port_of, "port": port}],
        },
    )
    rule = {
        "apiGroups": [""],
        "resources": ["services/proxy"],
        "resourceNames": [f"{name}:http"],
        "verbs": ["get"],
    }
    yield f"{RIGHTS}/roles", {"metadata": {"name": "linkwise-explain"}, "rules": [rule]}
    yield (
        f"{RIGHTS}/rolebindings",
        {
            "metadata": {"name": "linkwise-explain"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": "linkwise-explain",
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "scientist"}
            ],
        },
    )


def _pod(name: str, gpus: int, **annotations: str) -> dict[str, Any]:
    amounts = {"limits": {GPU: str(gpus)}, "requests": {GPU: str(gpus)}}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": amounts}]},
    }


def _binding(name: str, node: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}


def test_the_real_kubectl_finds_the_plugin_and_the_api_server_passes_it_on(
    kubectl: Kubectl,
) -> None:
    told = kubectl.says(*SECOND)
    assert told.startswith("ml/second: has waited ")
    assert "  nearest   n1: 0 of 8 suitable GPUs are free, 2 more are needed\n" in told
    assert "  GPUs with 8 GPUs: ml/busy, planned, not started yet" in told


def test_kubectl_completes_commands_and_options(kubectl: Kubectl) -> None:
    asked = [("ex",), ("explain", "--all-n")]
    told = [kubectl.kubectl("__complete", "linkwise", *words).stdout.split("\n") for words in asked]
    assert [lines[0].partition("\t")[0] for lines in told] == ["explain", "--all-namespaces"]
    assert all(lines[1:] == [":4", ""] for lines in told)  # and no files


def test_a_gang_and_everything_that_waits_are_explained(kubectl: Kubectl) -> None:
    wait_for(
        lambda: "no room for the whole gang" in kubectl.says("explain", "gang/train", "-n", "ml"),
        "the extender has tried the gang",
    )
    told = kubectl.says("explain", "-A")
    assert "1 gang and 2 pods in no gang wait, the most urgent first.\n" in told
    assert "gang ml/train: has waited " in told
    assert ", and 1 more like it: has waited " in told


def test_the_tables_come_by_the_same_way(kubectl: Kubectl) -> None:
    (gang,) = kubectl.says("gangs", "-n", "ml").splitlines()[1:]
    assert gang.split()[:6] == ["train", "forming", "0", "0", "2", "2"]
    (node,) = kubectl.says("nodes").splitlines()[1:]
    assert node.split()[:6] == ["n1", "8", "0", "8", "0", "0"]
    assert kubectl.says("top").startswith("8 GPUs on 1 node: 0 in use (0 %), 8 planned, 0 free\n")
    shown = msgspec.json.decode(kubectl.says("nodes", "-o", "json"))
    assert shown[0]["name"] == "n1"


def test_the_live_page_comes_by_the_same_way_and_so_do_its_changes(
    kubectl: Kubectl, control: ControlPlane
) -> None:
    with kubectl.open_page() as url:
        page = urllib3.request("GET", url, timeout=30)
        html = ParsedPage(page.data.decode())
        assert page.status == 200
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert "8 GPUs on 1 node." in html.text
        assert "gang ml/train" in html.text
        for file in ("page.css", "page.js"):
            assert urllib3.request("GET", f"{url}{file}", timeout=30).status == 200
        links = {str(link["href"]) for link in html.named("a") if "hidden" not in link}
        for link in ("group?key=0", "gang?namespace=ml&name=train"):
            assert link in links
            assert urllib3.request("GET", f"{url}{link}", timeout=30).status == 200
        events = f"{url}{html.named('body')[0]['data-events']}"
        stream = urllib3.request("GET", events, timeout=60, preload_content=False)
        assert stream.headers["content-type"] == "text/event-stream"
        control.client().post(PODS, _pod("fourth", 1))
        lines = iter(stream.readline, b"")
        assert b"event: change\n" in lines
        assert b"ml/fourth" in next(lines)
        stream.close()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_when_the_command_ends_nothing_serves_the_page(
    kubectl: Kubectl, end: signal.Signals
) -> None:
    with kubectl.open_page(end=end) as url:
        assert urllib3.request("GET", url, timeout=30).status == 200
    with pytest.raises(urllib3.exceptions.HTTPError):
        urllib3.request("GET", url, timeout=30, retries=False)


def test_the_page_of_a_user_lets_nothing_else_through(kubectl: Kubectl) -> None:
    with kubectl.open_page() as url:
        host = url.split("/api/")[0]
        for path in ("/api/v1/pods", "/", f"{SYSTEM}/services/linkwise-extender:http/proxy/nodes"):
            assert urllib3.request("GET", f"{host}{path}", timeout=30).status == 403
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert urllib3.request(method, url, timeout=30).status == 403
        other = {"Host": "evil.example"}  # as after a DNS rebinding
        assert urllib3.request("GET", url, headers=other, timeout=30).status == 403
    ended = kubectl.run("ui", "--no-browser", user="stranger")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "you may not ask the extender" in ended.stderr


def test_who_may_not_is_told_which_right_it_takes(kubectl: Kubectl) -> None:
    ended = kubectl.run("top", user="stranger")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert 'User "stranger" cannot get resource "services/proxy"' in ended.stderr
    assert ended.stderr.endswith(
        "A Role in namespace kube-system is needed with verb get on services/proxy, "
        "resourceNames [linkwise-extender:http]\n"
    )


def test_a_gang_that_waits_has_one_event_also_after_a_restart(
    control: ControlPlane, kubectl: Kubectl, extender: ExtenderProcess
) -> None:
    assert kubectl.says("gangs", "-n", "ml")
    client = control.client()

    def told() -> list[tuple[str, str, str]]:
        events = client.get("/api/v1/namespaces/ml/events", Events).items
        return [(event.involved_object.name, event.reason, event.message) for event in events]

    only = [("train-0", "GangWaiting", "gang ml/train: no room for the whole gang")]
    wait_for(lambda: told() == only, "the Event")
    extender.process.kill()
    extender.start()
    done = 'linkwise_extender_actions_total{action="Emit",outcome="done"} 1.0'
    wait_for(lambda: done in extender.get("/metrics"), "the new extender has reported it again")
    assert told() == only
