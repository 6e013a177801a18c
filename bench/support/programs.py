"""Runs the programs as in a cluster: in processes of their own, which share no lock with the
benchmark."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import urllib3

from tests.cluster.support.host import sandbox
from tests.cluster.support.programs.binaries import helm, kubernetes

_START_SECONDS = 120.0


class Program:
    """A child process, and the lines it has logged so far."""

    def __init__(self, module: str, *flags: str) -> None:
        self.began = time.monotonic()
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *flags], stderr=subprocess.PIPE, text=True
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.lines.extend(self._process.stderr)

    def logged(self, pattern: str) -> str:
        """The first group of *pattern*, as soon as it is logged."""
        self.wait(lambda: self._find(pattern), f"{pattern!r} in its log")
        return self._find(pattern)

    def wait(self, predicate: Callable[[], object], what: str) -> float:
        """Poll until it holds; return the seconds since the process began. Raises RuntimeError."""
        deadline = time.monotonic() + _START_SECONDS
        while not predicate():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"waited too long for {what}:\n{''.join(self.lines[-20:])}")
            time.sleep(0.01)
        return time.monotonic() - self.began

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) / 1024 if found else 0.0

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _find(self, pattern: str) -> str:
        found = re.search(pattern, "".join(self.lines))
        return found[1] if found else ""


@contextmanager
def running(module: str, *flags: str) -> Iterator[Program]:
    program = Program(module, *flags)
    try:
        yield program
    finally:
        program.end()


@contextmanager
def ready_extender(url: str) -> Iterator[tuple[Program, str, str, float]]:
    """The extender of the API server at *url*, once it is ready: its addresses for people and for
    kube-scheduler, and the seconds until it was ready."""
    # The running pods have the plans of an older extender. A leader believes those.
    flags = f"""--api-server {url} --listen-address 127.0.0.1 --plain-http true
        --leader-elect true --listen-port 0 --status-port 0""".split()
    with running("linkwise.extender", *flags) as program:
        status = program.logged(r"serving probes, metrics and views on (http://\S+)")
        calls = program.logged(r"serving kube-scheduler on (http://\S+)")
        ready = program.wait(lambda: _is_ready(status), "readiness")
        yield program, status, calls, ready


def _is_ready(status: str) -> bool:
    return urllib3.request("GET", f"{status}/readyz", timeout=10).status == 200


def kubernetes_and_helm() -> None:
    kubernetes()
    helm()


def in_sandbox(module: str, build: Callable[[], object] = kubernetes) -> Path:
    """Return the directory of the sandbox. Outside of one, *build* what it needs, as it has no
    network, and run *module* inside instead."""
    directory = sandbox.directory()
    if directory is None:
        build()
        sys.exit(sandbox.run([sys.executable, "-m", module, *sys.argv[1:]]))
    return directory
