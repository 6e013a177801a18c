"""The extender as the process that a Deployment runs."""

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn
from weakref import ref

import click
import pytest
import urllib3
from click.testing import CliRunner

from linkwise.extender.__main__ import ENV_PREFIX, _freeze, command, serve
from linkwise.extender.run.leader_endpoints import LeaderEndpoints
from linkwise.extender.run.loop import Loop
from linkwise.extender.run.ports.open_ports import Ports
from linkwise.extender.run.settings import Settings
from linkwise.simulator.api_server import ApiServer
from tests.extender.world import ApiObjects, wait_for

COMMAND = [sys.executable, "-m", "linkwise.extender"]
STATUS = "probes, metrics and views"


@dataclass
class Program:
    process: subprocess.Popen[str]
    log: list[str]

    def url(self, what: str) -> str:
        """The URL of the port that serves *what*."""
        found = re.search(rf"serving {what} on (http[^\s\"]+)", "".join(self.log))
        return found[1] if found else ""

    def status(self, path: str) -> int:
        url = f"{self.url(STATUS)}{path}"
        return urllib3.request("GET", url, retries=False, timeout=30).status

    def ask(self, verb: str, **members: Any) -> Any:
        url = f"{self.url('kube-scheduler')}/{verb}"
        return urllib3.request("POST", url, json=members, timeout=30).json()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def start(*flags: str, **environment: str) -> Program:
    process = subprocess.Popen(
        [*COMMAND, "--listen-address", "127.0.0.1", "--status-port=0", *flags],
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    program = Program(process, [])
    assert process.stderr is not None
    Thread(target=lambda: program.log.extend(process.stderr or ()), daemon=True).start()
    wait_for(lambda: program.url(STATUS) or process.poll() is not None, 30)
    assert program.url(STATUS), "".join(program.log)
    return program


@pytest.fixture
def world() -> Iterator[ApiObjects]:
    with ApiServer() as server:
        yield ApiObjects(server)


@pytest.fixture
def program(world: ApiObjects) -> Iterator[Program]:
    """One that finds no API server at first."""
    world.add_node("n1")
    world.server.pause()
    started = start(
        "--api-server", world.server.url, "--plain-http=true", LINKWISE_EXTENDER_LISTEN_PORT="0"
    )
    yield started
    started.process.kill()
    started.process.wait(60)
    assert started.process.stderr is not None
    started.process.stderr.close()


def test_each_line_of_its_log_is_an_object_if_it_is_told_so(world: ApiObjects) -> None:
    world.add_node("n1")
    flags = ("--api-server", world.server.url, "--plain-http=true", "--listen-port=0")
    program = start(*flags, "--log-format=json", "--log-level=DEBUG")
    program.process.send_signal(signal.SIGTERM)
    try:
        assert program.process.wait(60) == 0
    finally:
        program.process.kill()
    wait_for(lambda: "SIGTERM" in "".join(program.log))
    assert program.process.stderr is not None
    program.process.stderr.close()
    read = [json.loads(line) for line in program.log]
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(r) for r in read))
    assert "SIGTERM: ending" in [each["message"] for each in read]


def test_its_log_tells_of_decisions_and_of_the_steps_of_a_round(world: ApiObjects) -> None:
    world.add_node("n1")
    flags = ("--api-server", world.server.url, "--plain-http=true", "--listen-port=0")
    program = start(*flags, "--log-format=json", "--log-level=debug")
    try:
        wait_for(lambda: program.status("/readyz") == 200, 20)
        world.add_gang("train", 1)
        wait_for(lambda: program.status("/explain/ml/train-0") == 200, 20)
        assert program.ask("filter", Pod=world.pod("train-0"), Nodes=None, NodeNames=["n1"])
        wait_for(lambda: "planned ml/train-0 on n1" in "".join(program.log), 20)
        url = f"{program.url(STATUS)}/history?gang=ml/train"
        (planned,) = urllib3.request("GET", url, timeout=30).json()["decisions"]
        assert (planned["what"], planned["pod"]) == ("planned", "ml/train-0")
    finally:
        program.end()
    assert program.process.stderr is not None
    program.process.stderr.close()
    read = [json.loads(line) for line in program.log]
    (line,) = (each for each in read if each["message"] == "planned ml/train-0 on n1")
    assert (line["pod"], line["gang"], line["node"]) == ("ml/train-0", "ml/train", "n1")
    steps = [each["steps"] for each in read if each["message"].startswith("a round took ")]
    told = ["reconcile", "allocate", "reserve", "preempt", "publish"]
    assert told in [[*each] for each in steps]


def test_it_waits_for_the_api_server_places_a_pod_and_ends_when_told(
    world: ApiObjects, program: Program
) -> None:
    assert program.status("/healthz") == 200
    assert program.status("/readyz") == 503

    world.server.resume()
    wait_for(lambda: program.status("/readyz") == 200, 20)

    pod = world.add_pod("single", 4)
    assert program.ask("filter", Pod=pod, Nodes=None, NodeNames=["n1"])["NodeNames"] == ["n1"]
    assert program.ask("bind", **bind_args(pod, "n1")) == {"Error": ""}
    assert world.read("single").spec.node_name == "n1"
    scrape = urllib3.request("GET", f"{program.url(STATUS)}/metrics", timeout=30).data.decode()
    assert 'linkwise_extender_requests_total{result="ok",verb="bind"} 1.0' in scrape
    assert "process_resident_memory_bytes" in scrape

    began = time.monotonic()
    assert program.end() == 0
    assert time.monotonic() - began < 5
    assert "SIGTERM: ending" in "".join(program.log)


def bind_args(pod: dict[str, Any], node: str) -> dict[str, str]:
    meta = pod["metadata"]
    return {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": node,
    }


def test_it_ends_at_once_even_while_it_waits_for_the_api_server(program: Program) -> None:
    began = time.monotonic()

    assert program.end(signal.SIGINT) == 0
    assert time.monotonic() - began < 5


def serve_and_end(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Serve, with a SIGTERM once all is started."""

    def told_to_end(_: Ports) -> NoReturn:
        raise SystemExit(0)

    monkeypatch.setattr(Ports, "run", told_to_end)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        serve(
            Settings(
                api_server="http://127.0.0.1:1",
                listen_address="127.0.0.1",
                listen_port=0,
                status_port=0,
                plain_http=True,
                **settings,
            )
        )


def test_nothing_is_asked_of_a_shell_that_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    close, stop = Ports.close, Loop.stop

    def closing(ports: Ports) -> None:
        ended.append("ports")
        close(ports)

    def stopping(loop: Loop) -> None:
        ended.append("loop")
        stop(loop)

    monkeypatch.setattr(Ports, "close", closing)
    monkeypatch.setattr(Loop, "stop", stopping)
    serve_and_end(monkeypatch)
    assert ended == ["ports", "loop"]


@pytest.mark.parametrize(("stands_by", "withdrawn"), [(False, ["calls"]), (True, [])])
def test_only_one_that_leads_takes_its_address_out_as_it_ends(
    monkeypatch: pytest.MonkeyPatch, stands_by: bool, withdrawn: list[str]
) -> None:
    """What a standby would take out is the leader's."""
    taken_out: list[str] = []

    monkeypatch.setattr(LeaderEndpoints, "withdraw", lambda _: taken_out.append("calls"))
    serve_and_end(
        monkeypatch,
        leader_elect=stands_by,
        service="linkwise-extender",
        pod_name="linkwise-extender-0",
        pod_ip="10.0.0.7",
    )
    assert taken_out == withdrawn


def test_what_became_garbage_after_it_was_frozen_is_collected() -> None:
    """The objects of a standby, once it leads."""

    class Frozen:
        def __init__(self) -> None:
            self.itself = self

    threshold = gc.get_threshold()
    try:
        frozen = Frozen()
        there = ref(frozen)
        _freeze()
        del frozen
        _freeze()
        assert there() is None
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


def refused(*flags: str) -> str:
    """The last line of what it says; in this process, as it ends before it listens."""
    done = CliRunner().invoke(command, flags)
    assert done.exit_code == 2
    return done.stderr.strip().rpartition("\n")[2]


def test_a_kubeconfig_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "kubeconfig"
    broken.write_text(json.dumps({"clusters": 7}))

    assert f"linkwise-extender: kubeconfig {broken}" in refused("--kubeconfig", str(broken))


def test_outside_a_cluster_it_says_what_is_missing() -> None:
    assert "no kubeconfig, and not in a pod" in refused()


@pytest.mark.parametrize("flag", ["listen-port", "status-port"])
def test_a_port_that_is_taken_is_named(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = {"listen-port": "0", "status-port": "0", flag: port}
        flags = (f"--{name}={text}" for name, text in said.items())
        given = ("--api-server=http://127.0.0.1:1", "--listen-address=127.0.0.1", *flags)
        done = subprocess.run([*COMMAND, *given], capture_output=True, text=True, timeout=30)

    assert done.returncode == 2
    (*_, text) = done.stderr.strip().splitlines()
    assert text.startswith(f"linkwise-extender: --listen-address, --{flag}: 127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--reclaim-idle", "ml"], "'ml': expected NAMESPACE=DURATION, like ml=4h"),
        (["--reclaim-idle", "ml=4"], "'ml=4': expected NAMESPACE=DURATION, like ml=4h"),
        (["--gang-timeout", "soon"], "'soon': expected a duration like 10m, 1h30m or 90s"),
        (["--listen-port", "65536"], "65536 is not in the range 0<=x<=65535"),
        (["--certificates", "linkwise"], "'linkwise': expected NAMESPACE/NAME"),
        (["--max-refusals", "0"], "0 is not in the range x>=1"),
        (["--indexed-jobs", "some"], "'some' is not one of 'all', 'with-subdomain', 'none'"),
        (["--log-level", "loud"], "'loud' is not one of"),
        (["--no-such-flag"], "No such option"),
        (["stray"], "unexpected extra argument"),
    ],
)
def test_a_bad_flag_is_refused_by_name(arguments: list[str], text: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(text)) as found:
        command.make_context("linkwise-extender", arguments)

    assert found.value.exit_code == 2


def test_without_flags_times_are_those_of_the_settings() -> None:
    """Found: --call-timeout was 5s, and members of gangs never met at the barrier."""
    said, settings = command.make_context("linkwise-extender", []).params, Settings()
    times = {n: v for n, v in said.items() if hasattr(settings, f"{n}_seconds") and v is not None}
    assert len(times) >= 4
    assert times == {name: getattr(settings, f"{name}_seconds") for name in times}


def test_a_setting_that_only_we_can_judge_is_refused_too() -> None:
    assert refused("--resource-name=gpu") == (
        "linkwise-extender: --resource-name gpu: expected like nvidia.com/gpu"
    )


def test_every_flag_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "kubeconfig": "/k",
        "api_server": "http://a",
        "resource_names": ("example.com/gpu", "amd.com/gpu"),
        "listen_address": "::1",
        "listen_port": 7,
        "status_port": 8,
        "plain_http": True,
        "hosts": ("a.example", "10.0.0.1"),
        "certificates": ("gpu", "extender"),
        "certificate_lifetime": 90.0,
        "callers": ("first", "second"),
        "caller_secret": ("gpu", "scheduler"),
        "call_timeout": 90.0,
        "gang_timeout": 90.0,
        "wave_timeout": 90.0,
        "replacement_timeout": 90.0,
        "indexed_jobs": "with-subdomain",
        "max_refusals": 2,
        "lift_gates_after": 90.0,
        "reserve_share": 0.25,
        "reserve_limit": 90.0,
        "preempt": "never",
        "reclaim_idle": (("ml", 14400.0), ("notebooks", 1800.0)),
        "reclaim_notice": 90.0,
        "moves": "consent",
        "movable_after": 90.0,
        "movable_namespaces": (("ml", 0.0), ("web", 3600.0)),
        "move_cost": 90.0,
        "whole_nodes": 3,
        "whole_nodes_cost": 90.0,
        "queue_order": "multifactor",
        "span_levels": ("nvidia.com/gpu.clique", "rack"),
        "namespaces": ("team-a", "team-b"),
        "leader_elect": True,
        "lease_namespace": "gpu",
        "lease_duration": 90.0,
        "renew_deadline": 90.0,
        "retry_period": 90.0,
        "service": "linkwise-extender",
        "pod_name": "linkwise-extender-0",
        "pod_ip": "10.0.0.7",
        "device_class": "gpu.example.com",
        "log_level": "debug",
        "log_format": "json",
    }
    for name, value in said.items():
        text = str(value)
        if name == "reclaim_idle":
            text = "ml=4h notebooks=30m"
        elif name == "movable_namespaces":
            text = "ml web=1h"
        elif isinstance(value, tuple):
            text = {"certificates": "/", "caller_secret": "/", "span_levels": ", "}.get(
                name, " "
            ).join(value)
        monkeypatch.setenv(f"{ENV_PREFIX}_{name.upper()}", "1m30s" if value == 90.0 else text)

    params = command.make_context("linkwise-extender", []).params

    assert {name: value for name, value in params.items() if name != "version"} == said
    named = {
        "hosts": "host",
        "resource_names": "resource-name",
        "callers": "caller",
        "movable_namespaces": "movable-namespace",
        "namespaces": "namespace",
    }
    flags = {named.get(name, name).replace("_", "-") for name in said}
    assert {p.opts[0].removeprefix("--") for p in command.params} == flags | {"version"}
