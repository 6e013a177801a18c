"""The program as it runs: a process of its own, a kubelet's sockets, an API server over HTTP."""

import socket
import subprocess
import sys
import textwrap
import time
import tomllib
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node
from linkwise.plugin import node_program, program
from linkwise.plugin.__main__ import main
from linkwise.plugin.gpus.inventory import Stock
from linkwise.plugin.gpus.recorded import RecordedInventory
from linkwise.plugin.settings import Settings
from linkwise.plugin.start import Signals
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.activity import PodActivity, read_activity
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.annotations.plan import read_in_use
from linkwise.topology.machine.recorded import recorded_machine
from tests.plugin import pods
from tests.plugin.fake_kubelet import FakeKubelet
from tests.plugin.pods import manifest
from tests.plugin.process import Process
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
MACHINE = recorded_machine("dgx1-v100", node="n1")
UUIDS = tuple(gpu.uuid for gpu in MACHINE.gpus)


def bind(client: KubeClient, name: str, *gpus: str) -> None:
    """A pod with a plan, bound to n1."""
    pods.bind(client, manifest(name, ("main", str(len(gpus)))), {"main": gpus})


def test_a_node_with_a_recorded_machine_from_start_to_stop(
    kubelet: FakeKubelet, server: ApiServer
) -> None:
    client = KubeClient.load(kubeconfig=None, server=server.url)
    faults = kubelet.directory / "faults.json"
    plugin = Process(
        kubelet.directory,
        *("--machine", "dgx1-v100", "--machine-faults", str(faults)),
        # What is in use is read only where an Allocate asks for it.
        *("--health-seconds", "0.05", "--in-use-seconds", "3600"),
        # A flag may also come from the environment.
        environment={"LINKWISE_PLUGIN_API_SERVER": server.url},
    )
    try:
        wait_for(plugin.ready, "readiness")
        node = client.get("/api/v1/nodes/n1", Node)
        assert read_topology(node.metadata.annotations[names.TOPOLOGY]) == MACHINE
        assert node.metadata.labels["linkwise.dev/gpu.count"] == "8"

        bind(client, "w", UUIDS[1], UUIDS[6])
        ids = kubelet.plugin.preferred(UUIDS, 2)
        assert ids == [UUIDS[1], UUIDS[6]]
        kubelet.holds = {"ml/w": {"main": ids}}
        assert kubelet.plugin.allocate(ids).envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(ids)
        wait_for(lambda: "ml/w" in in_use(client), "what is in use, on the node")
        assert in_use(client) == {"ml/w": {"main": tuple(sorted(ids))}}

        faults.write_text('{"3": "XID 79"}')
        wait_for(lambda: kubelet.plugin.health[UUIDS[3]] == "Unhealthy", "the sick GPU")
        sick = f'linkwise_plugin_device_unhealthy{{gpu="{UUIDS[3]}",reason="XID 79"}} 1.0'
        wait_for(lambda: sick in plugin.get("/metrics")[1], "the reason among the metrics")
        faults.unlink()
        wait_for(lambda: kubelet.plugin.health[UUIDS[3]] == "Healthy", "its recovery")

        wait_for(lambda: "XID 79" not in plugin.get("/metrics")[1], "the end of the reason")
        metrics = plugin.get("/metrics")[1]
        assert 'linkwise_plugin_devices{health="healthy"} 8.0' in metrics
        assert 'linkwise_plugin_preferred_total{source="plan"} 1.0' in metrics
        assert 'linkwise_plugin_allocated_gpus{container="main",namespace="ml",pod="w"} 2.0' in (
            metrics
        )
        assert 'linkwise_plugin_planned_containers_total{outcome="kept"} 1.0' in metrics
        assert plugin.get("/healthz") == (200, "ok\n")
        kubelet.holds = {}
        kubelet.plugin.allocate(UUIDS[:1])
        wait_for(lambda: 'pod="w"' not in plugin.get("/metrics")[1], "the end of what it held")

        kubelet.stop()
        wait_for(lambda: plugin.get("/readyz")[0] == 503, "the loss of the kubelet")
        assert "not registered with the kubelet" in plugin.get("/readyz")[1]
        assert plugin.stop() == 0
    finally:
        plugin.kill()
    assert list(kubelet.directory.glob("linkwise-*")) == []
    assert "GPU 3" in plugin.log
    assert "is unhealthy: XID 79" in plugin.log
    assert "Traceback" not in plugin.log


def test_an_idle_pod_is_told_to_the_cluster_and_one_that_works_again_too(
    kubelet: FakeKubelet, server: ApiServer
) -> None:
    client = KubeClient.load(kubeconfig=None, server=server.url)
    kubelet.holds = {"ml/nb": {"main": list(UUIDS[:2])}}
    loads = kubelet.directory / "loads.json"
    loads.write_text('{"0": 0, "1": 0}')
    plugin = Process(
        kubelet.directory,
        *("--machine", "dgx1-v100", "--machine-loads", str(loads)),
        *("--health-seconds", "0.05", "--idle-seconds", "0.2"),
        environment={"LINKWISE_PLUGIN_API_SERVER": server.url},
    )

    def pod() -> PodActivity | None:
        notes = client.get("/api/v1/nodes/n1", Node).metadata.annotations
        if names.ACTIVITY not in notes:
            return None
        return read_activity(notes[names.ACTIVITY]).pods.get("ml/nb")

    def is_idle() -> bool:
        found = pod()
        return found is not None and found.idle is not None

    try:
        wait_for(is_idle, "an idle pod")
        metrics = plugin.get("/metrics")[1]
        assert 'linkwise_plugin_pod_busy_share{namespace="ml",pod="nb",window="1h"} 0.0' in metrics
        assert 'linkwise_plugin_pod_quiet_seconds{namespace="ml",pod="nb"}' in metrics
        assert "linkwise_plugin_pod_gpu_memory_bytes{" not in metrics  # a played machine has none
        loads.write_text('{"0": 0, "1": 1}')
        wait_for(lambda: not is_idle(), "a pod that works")
        loads.unlink()
        kubelet.holds = {}
        wait_for(lambda: 'pod="nb"' not in plugin.get("/metrics")[1], "the end of its metrics")
        wait_for(lambda: pod() is None, "the end of what it did")
        assert plugin.stop() == 0
    finally:
        plugin.kill()
    assert "Traceback" not in plugin.log


def in_use(client: KubeClient) -> dict[str, dict[str, tuple[str, ...]]]:
    notes = client.get("/api/v1/nodes/n1", Node).metadata.annotations
    return read_in_use(notes[names.IN_USE]).pods if names.IN_USE in notes else {}


def test_a_plugin_that_restarts_knows_which_pods_have_been_served(
    kubelet: FakeKubelet, server: ApiServer
) -> None:
    client = KubeClient.load(kubeconfig=None, server=server.url)
    arguments = ("--machine", "dgx1-v100", "--api-server", server.url)
    bind(client, "first", UUIDS[1], UUIDS[6])
    bind(client, "second", UUIDS[0], UUIDS[3])
    plugin = Process(kubelet.directory, *arguments)
    try:
        wait_for(plugin.ready, "readiness")
        given = kubelet.plugin.preferred(UUIDS, 2)
        assert given == [UUIDS[1], UUIDS[6]]
        kubelet.plugin.allocate(given)
        kubelet.holds = {"ml/first": {"main": given}}
    finally:
        plugin.kill()  # no goodbye: its socket stays behind
    assert len(list(kubelet.directory.glob("linkwise-*"))) == 1
    plugin = Process(kubelet.directory, *arguments)
    try:
        wait_for(plugin.ready, "readiness again")
        free = set(UUIDS) - set(given)
        assert kubelet.plugin.preferred(free, 2) == [UUIDS[0], UUIDS[3]]
        assert len(list(kubelet.directory.glob("linkwise-*"))) == 1
        assert plugin.stop() == 0
    finally:
        plugin.kill()


@pytest.mark.parametrize("removed", [True, False])
def test_it_cleans_its_node_where_linkwise_is_removed_and_not_where_it_is_updated(
    kubelet: FakeKubelet, server: ApiServer, removed: bool
) -> None:
    client = KubeClient.load(kubeconfig=None, server=server.url)
    metadata = {"name": "n1", "labels": {"machine": "dgx1-v100"}}
    client.patch("/api/v1/nodes/n1", {"metadata": metadata})
    path = "/apis/apps/v1/namespaces/gpus/daemonsets"
    body = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ours"}}
    client.post(path, body)
    plugin = Process(
        kubelet.directory,
        *("--machine-from-label", "machine", "--daemonset", "gpus/ours"),
        *("--api-server", server.url),
    )
    try:
        wait_for(plugin.ready, "readiness")
        node = client.get("/api/v1/nodes/n1", Node).metadata
        assert read_topology(node.annotations[names.TOPOLOGY]) == MACHINE
        if removed:
            client.delete(f"{path}/ours")
        assert plugin.stop() == 0
    finally:
        plugin.kill()
    after = client.get("/api/v1/nodes/n1", Node).metadata
    wanted = ({"machine": "dgx1-v100"}, {}) if removed else (node.labels, node.annotations)
    assert (after.labels, after.annotations) == wanted
    assert list(kubelet.directory.glob("linkwise-*")) == []


def test_a_kubelet_that_restarts_before_it_allocates_is_told_the_same_again(
    kubelet: FakeKubelet, server: ApiServer
) -> None:
    client = KubeClient.load(kubeconfig=None, server=server.url)
    bind(client, "w", UUIDS[1], UUIDS[6])
    plugin = Process(kubelet.directory, "--machine", "dgx1-v100", "--api-server", server.url)
    try:
        wait_for(plugin.ready, "readiness")
        assert kubelet.plugin.preferred(UUIDS, 2) == [UUIDS[1], UUIDS[6]]
        registered = len(kubelet.plugins)  # more than one, if a slow stream made it try again
        kubelet.restart()
        wait_for(
            lambda: len(kubelet.plugins) > registered and kubelet.plugin.health, "the GPUs again"
        )
        assert kubelet.plugin.preferred(UUIDS, 2) == [UUIDS[1], UUIDS[6]]
        assert plugin.stop() == 0
    finally:
        plugin.kill()


def without_driver(directory: Path) -> dict[str, str]:
    """As on a node without one, also where this computer has a driver: the loader stops at a
    library that is none."""
    (directory / "libnvidia-ml.so.1").touch()
    return {"LD_LIBRARY_PATH": str(directory)}


def test_without_a_driver_it_says_so_and_waits(kubelet_dir: Path) -> None:
    plugin = Process(
        kubelet_dir, "--api-server", "http://127.0.0.1:9", environment=without_driver(kubelet_dir)
    )
    try:
        wait_for(lambda: "no GPUs yet: nvmlInit: " in plugin.log, "the reason, in the log")
        assert plugin.get("/healthz")[0] == 200
        wait_for(lambda: plugin.get("/readyz")[1].startswith("no GPUs: nvmlInit"), "the reason")
        assert plugin.get("/readyz")[0] == 503
        assert plugin.stop() == 0
    finally:
        plugin.kill()


def refused(directory: Path, *arguments: str) -> str:
    """What the command prints; in this process, as it ends before it starts anything."""
    words = ("--node-name", "n1", "--kubelet-dir", str(directory), *arguments)
    unheard = object.__new__(Signals)  # the signals are this process's own
    result = CliRunner().invoke(main, words, obj=unheard)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code != 0
    return result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--machine", "dgx9"), "dgx9"),
        (("--machine-file", "/nonexistent"), "machine file /nonexistent: "),
        (("--machine", "dgx1-v100", "--machine-file", "x"), "expected one of them"),
        (("--machine", "dgx1-v100", "--kubeconfig", "/nonexistent"), "kubeconfig /nonexistent"),
        (("--treat", "xid-79=dead"), "Invalid value for '--treat': 'xid-79=dead': expected one of"),
        (("--treat", "79=ignore"), "'79=ignore': expected NAME=TREATMENT with xid-NUMBER or one"),
        (("--policy", "worst"), "Invalid value for '--policy': 'worst'"),
        (("--health-seconds", "0"), "Invalid value for '--health-seconds'"),
        (("--api-server", "nonsense"), "'nonsense': expected http://HOST:PORT or https://HOST"),
        (("--kubelet-dir", "/etc/passwd"), "Invalid value for '--kubelet-dir'"),
        (("--machine", "a", "--machine-from-label", "b"), "expected one of them"),
        (("--daemonset", "linkwise-plugin"), "'linkwise-plugin': expected NAMESPACE/NAME"),
        (("--machine-faults", "x"), "--machine-faults: expected beside a played machine only"),
    ],
)
def test_what_cannot_work_is_refused_with_one_clear_line(
    kubelet_dir: Path, arguments: tuple[str, ...], said: str
) -> None:
    server = () if "--kubeconfig" in arguments else ("--api-server", "http://127.0.0.1:9")
    assert said in refused(kubelet_dir, *server, *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--no-driver", "exit"), "Error: nvmlInit: "),
        (
            ("--machine", "dgx1-v100", "--listen-address", "absent.invalid"),
            "--listen-address absent.invalid --listen-port 0: ",
        ),
    ],
)
def test_what_cannot_work_ends_the_program_at_once(
    kubelet_dir: Path, arguments: tuple[str, ...], said: str
) -> None:
    flags = ("--api-server", "http://127.0.0.1:9", *arguments)
    plugin = Process(kubelet_dir, *flags, environment=without_driver(kubelet_dir))
    assert plugin.process.wait(60) != 0
    assert said in plugin.log
    assert "Traceback" not in plugin.log


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe", b"[]", b"clusters: 7"])
def test_a_kubeconfig_that_is_none_is_named_in_one_line(kubelet_dir: Path, content: bytes) -> None:
    file = kubelet_dir / "config"
    file.write_bytes(content)
    said = refused(kubelet_dir, "--machine", "dgx1-v100", "--kubeconfig", str(file))
    assert said.startswith(f"Error: kubeconfig {file}: ")
    assert said.count("\n") == 1


def test_a_port_that_is_taken_is_named(kubelet_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        flags = ("--machine", "dgx1-v100", "--api-server", "http://127.0.0.1:9")
        plugin = Process(kubelet_dir, *flags, "--listen-port", port)
        assert plugin.process.wait(60) == 1
    assert f"--listen-address 127.0.0.1 --listen-port {port}: [Errno 98]" in plugin.log


def test_without_an_api_server_gpus_are_offered_and_when_it_comes_plans_are_kept(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`early` is admitted before the plugin can see any pod, and does not count as waiting."""
    monkeypatch.setattr(node_program, "_FIRST_PODS_SECONDS", 0.1)
    monkeypatch.setattr(node_program, "_WATCH_DEAD_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    client = KubeClient.load(kubeconfig=None, server=f"http://127.0.0.1:{port}")
    settings = Settings(
        node_name="n1",
        kubelet_dir=kubelet.directory,
        pod_resources_socket=kubelet.pod_resources_socket,
        listen_address="127.0.0.1",
        listen_port=0,
        in_use_seconds=0.05,
    )
    running = program.Program(settings, RecordedInventory(MACHINE), client)
    thread = Thread(target=running.run)
    thread.start()
    try:
        wait_for(lambda: kubelet.plugins and len(kubelet.plugin.health) == 8, "the GPUs")
        assert "topology not published on the node: Unreachable: GET" in running.not_ready()
        early = kubelet.plugin.preferred(UUIDS, 2)
        kubelet.plugin.allocate(early)
        kubelet.holds = {"ml/early": {"main": early}}
        with ApiServer(port=port) as server:
            client.post(
                "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
            )
            planned = [uuid for uuid in UUIDS if uuid not in early]
            bind(client, "early", planned[0], planned[1])
            bind(client, "next", planned[2], planned[5])
            wait_for(lambda: running.not_ready() == "", "readiness")
            swapped = 'planned_containers_total{outcome="swapped"} 1.0'
            wait_for(lambda: swapped in metrics_of(running), "the early pod, accounted for")
            assert kubelet.plugin.preferred(planned, 2) == [planned[2], planned[5]]
            assert server.url.endswith(str(port))
    finally:
        running.stop()
        thread.join(20)
    assert not thread.is_alive()


def metrics_of(running: program.Program) -> str:
    with urlopen(f"http://127.0.0.1:{running.port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("crowd", [200, 600], ids=["some", "more than there are places"])
def test_idle_connections_of_strangers_do_not_keep_the_kubelets_probes_out(
    kubelet_dir: Path, crowd: int
) -> None:
    """A probe that fails for a minute has the plugin killed, and its node without GPUs."""
    plugin = Process(kubelet_dir, "--machine", "dgx1-v100", "--api-server", "http://127.0.0.1:9")
    try:
        wait_for(lambda: plugin.serves, "HTTP")
        port = plugin.port
        with ExitStack() as strangers:
            for _ in range(crowd):
                address = ("127.0.0.1", port)
                each = socket.create_connection(address, 30, source_address=("127.0.0.2", 0))
                strangers.enter_context(each)
            with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=40) as answer:
                assert answer.read() == b"ok\n"
    finally:
        plugin.kill()


def test_a_body_is_refused_unread(kubelet_dir: Path) -> None:
    plugin = Process(kubelet_dir, "--machine", "dgx1-v100", "--api-server", "http://127.0.0.1:9")
    try:
        wait_for(lambda: plugin.serves, "HTTP")
        connection = HTTPConnection("127.0.0.1", plugin.port, timeout=20)
        connection.putrequest("GET", "/metrics")
        connection.putheader("Content-Length", str(1 << 29))
        connection.endheaders()
        assert connection.getresponse().status == 413
    finally:
        plugin.kill()


def test_a_node_made_again_under_its_name_is_told_at_once(
    kubelet: FakeKubelet, server: ApiServer
) -> None:
    """Not with the next look at the Node, which is a minute away."""
    client = KubeClient.load(kubeconfig=None, server=server.url)
    kubelet.holds = {"ml/w": {"main": list(UUIDS[:2])}}
    plugin = Process(kubelet.directory, "--machine", "dgx1-v100", "--api-server", server.url)
    try:
        wait_for(plugin.ready, "readiness")
        wait_for(lambda: in_use(client), "what is in use")
        for _ in range(3):
            client.delete("/api/v1/nodes/n1")
            client.post(
                "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
            )
            wait_for(lambda: "linkwise.dev/gpu.count" in labels(client), "its labels", seconds=20)
            assert in_use(client) == {"ml/w": {"main": tuple(sorted(UUIDS[:2]))}}
        assert plugin.stop() == 0
    finally:
        plugin.kill()


def labels(client: KubeClient) -> dict[str, str]:
    return client.get("/api/v1/nodes/n1", Node).metadata.labels


def test_a_signal_that_another_thread_gets_is_heard_too() -> None:
    """The kernel may give it to any thread; a main thread that waits for a lock then sleeps on."""
    script = """
        import signal, threading
        from linkwise.plugin.start import Signals
        signals = Signals()
        other = threading.Thread(target=threading.Event().wait, daemon=True)
        other.start()
        kill = lambda: signal.pthread_kill(other.ident, signal.SIGTERM)
        threading.Timer(0.2, kill).start()
        assert signals.next() == signal.SIGTERM
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert ended.returncode == 0


def test_a_signal_while_the_program_loads_ends_it(kubelet_dir: Path) -> None:
    """The stand-in for process 1 of a container loses a SIGTERM where no handler is set."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["linkwise-plugin"].partition(":")
    script = f"""
        import os, signal, sys

        class AsTheProgramLoads:
            def find_spec(self, name, path, target=None):
                own = name in ("linkwise", "linkwise.plugin", "{module}")
                if own or name.partition(".")[0] in sys.stdlib_module_names:
                    return
                sys.meta_path.remove(self)
                if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
                    os.kill(os.getpid(), signal.SIGTERM)

        sys.meta_path.insert(0, AsTheProgramLoads())
        from {module} import {function}
        {function}()
    """
    flags = ("--machine", "dgx1-v100", "--api-server", "http://127.0.0.1:9")
    plugin = Process(kubelet_dir, *flags, program=("-c", textwrap.dedent(script)))
    try:
        assert plugin.process.wait(60) == 0
        assert "stopped" in plugin.log
    finally:
        plugin.kill()


def test_a_scraper_that_stays_connected_does_not_delay_the_end(
    kubelet: FakeKubelet, server: ApiServer
) -> None:
    flags = ("--machine", "dgx1-v100", "--api-server", server.url)
    plugin = Process(kubelet.directory, *flags)
    try:
        wait_for(plugin.ready, "readiness")
        port = int(plugin.log.split("HTTP on port ")[1].split("\n")[0])
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as scraper:
            scraper.request("GET", "/metrics")
            assert b"linkwise_plugin_devices" in scraper.getresponse().read()
            began = time.monotonic()
            assert plugin.stop() == 0
            assert time.monotonic() - began < 4.0
    finally:
        plugin.kill()


def test_a_defect_in_the_first_reading_ends_the_program_and_is_told(
    kubelet_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting forever, it would look like a node without a driver."""
    inventory = RecordedInventory(MACHINE)

    def fail() -> Stock:
        raise ZeroDivisionError

    monkeypatch.setattr(inventory, "read", fail)
    settings = Settings(
        "n1",
        kubelet_dir=kubelet_dir,
        pod_resources_socket=kubelet_dir / "pod-resources",
        listen_address="127.0.0.1",
        listen_port=0,
    )
    client = KubeClient.load(kubeconfig=None, server="http://127.0.0.1:9")
    running = program.Program(settings, inventory, client)
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            running.run()
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    Thread(target=run, daemon=True).start()
    wait_for(lambda: not ended.empty(), "its end")
    assert isinstance(ended.get(), ZeroDivisionError)
