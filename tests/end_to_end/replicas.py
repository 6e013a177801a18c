"""Two extenders as processes, with what stands between them and the rest of a cluster.

Each reaches the API server over a wire of its own, which can be cut, can keep a request back for as
long as a test likes, and tells when a certain one passes. kube-scheduler reaches them as over a
Service: each new connection goes to the one that says it is ready.
"""

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread

import urllib3

from linkwise.simulator.processes.child_process import Child

# As short as a busy machine can keep to: a leader that was not heard for 6 s is given up.
TIMES = ("--lease-duration=6s", "--renew-deadline=4s", "--retry-period=500ms")
_CHUNK = 1 << 16


def wait_for(predicate: Callable[[], object], what: str, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, f"after {seconds:g} s still not so: {what}"
        time.sleep(0.02)


class Wire:
    """A TCP relay to *target*, which reads the first line of each request that passes."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._cut = False
        self._match, self._left = "", 0
        self._strike: Callable[[], object] = lambda: None
        self._kept = Event()  # cleared while a request is being kept back
        self._kept.set()
        self._after = False
        self.struck = Event()
        Thread(target=self._accept, daemon=True).start()

    def at(
        self, match: str, number: int, strike: Callable[[], object], *, after: bool = False
    ) -> None:
        """At the *number*th request whose first line matches: strike, and keep it back until
        `let_go`; *after*: let it pass first, so that only its answer is lost."""
        with self._lock:
            self._match, self._left, self._strike, self._after = match, number, strike, after
            self.struck.clear()

    def let_go(self) -> None:
        self._kept.set()

    def cut(self) -> None:
        """Nothing gets through any more, and no message says so."""
        self._end_all()

    def mend(self) -> None:
        self._cut = False

    def close(self) -> None:
        self._kept.set()
        _stop_listening(self._listener)
        self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            self._cut = True
            _end(*self._open)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:  # else a connection that begins at this moment would survive the cut
                is_cut = self._cut
                if not is_cut:
                    self._open |= {near, far}
            if is_cut:
                near.close()
                far.close()
                continue
            Thread(target=self._relay, args=(near, far, True), daemon=True).start()
            Thread(target=self._relay, args=(far, near, False), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK):
                if asks and self._is_struck(chunk):
                    chunk = _whole_request(source, chunk)
                    if self._after:
                        sink.sendall(chunk)
                    self._strike()
                    self._kept.clear()
                    self.struck.set()
                    self._kept.wait(60)
                    if not self._after:
                        sink.sendall(chunk)
                else:
                    sink.sendall(chunk)
        _end(source, sink)
        with self._lock:
            self._open.discard(source)
        source.close()

    def _is_struck(self, chunk: bytes) -> bool:
        line = chunk.partition(b"\r\n")[0].decode("latin-1")
        with self._lock:
            if not self._left or not re.match(self._match, line):
                return False
            self._left -= 1
            return not self._left


def _whole_request(source: socket.socket, begun: bytes) -> bytes:
    """With the body, which may come after the headers: a struck client may never send it."""
    head, _, body = begun.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    missing = int(length[1]) - len(body) if length else 0
    while missing > 0 and (more := source.recv(missing)):
        begun, missing = begun + more, missing - len(more)
    return begun


class Replica:
    """One extender. `flags` are those beside its address and the election; kube-scheduler asks it
    at `calls`, other clients at `url`."""

    def __init__(self, name: str, directory: Path, flags: Sequence[str]) -> None:
        self.name = name
        self._directory, self._flags, self._lives = directory, tuple(flags), 0
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return self._said("probes, metrics and views")

    @property
    def calls(self) -> str:
        return self._said("kube-scheduler")

    def _said(self, what: str) -> str:
        assert self._child is not None
        found = re.search(rf"serving {what} on (http\S+)\n", self._child.log())
        return found[1] if found else ""

    @property
    def runs(self) -> bool:
        return self._child is not None and self._child.runs

    def start(self) -> None:
        self._lives += 1
        flags = (
            "--listen-address=127.0.0.1",
            "--listen-port=0",
            "--status-port=0",
            "--leader-elect=true",
            *TIMES,
            *self._flags,
        )
        log = self._directory / f"{self.name}-{self._lives}.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LINKWISE_")}
        self._child = Child(self.name, "linkwise.extender", flags, log, environment)

    def status(self, path: str = "/readyz") -> int:
        """0 where it says nothing."""
        url = self.url
        if not url:
            return 0
        try:
            return urllib3.request("GET", f"{url}{path}", timeout=1, retries=False).status
        except urllib3.exceptions.HTTPError:
            return 0

    def text(self, path: str) -> str:
        answer = urllib3.request("GET", f"{self.url}{path}", timeout=5, retries=False)
        return answer.data.decode()

    def log(self) -> str:
        return self._child.log() if self._child is not None else ""

    def signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        os.kill(self._child.pid, number)

    def ended(self, seconds: float = 60.0) -> None:
        wait_for(lambda: not self.runs, f"{self.name} ends", seconds)

    def kill(self) -> None:
        if self.runs:
            self.signal(signal.SIGKILL)
            self.ended()

    def stop(self) -> None:
        if self.runs:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self.ended()


class Service:
    """New connections go to the replica that says it is ready; those that are open stay open."""

    def __init__(self, replicas: Sequence[Replica], *, scheme: str = "http") -> None:
        self._replicas = replicas
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        _stop_listening(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._lead, args=(near,), daemon=True).start()

    def _lead(self, near: socket.socket) -> None:
        ready = next((each for each in self._replicas if each.runs and each.status() == 200), None)
        if ready is None:
            near.close()  # as of a Service without endpoints
            return
        host, _, port = ready.calls.partition("://")[2].partition(":")
        try:
            far = socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        for source, sink in ((near, far), (far, near)):
            Thread(target=_pour, args=(source, sink), daemon=True).start()


def _pour(source: socket.socket, sink: socket.socket) -> None:
    """The thread that reads from an end closes it."""
    with source, suppress(OSError):
        while chunk := source.recv(_CHUNK):
            sink.sendall(chunk)
    _end(sink)


def _end(*connections: socket.socket) -> None:
    for each in connections:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _stop_listening(listener: socket.socket) -> None:
    _end(listener)  # wakes who accepts; to close does not
    listener.close()


def leader_of(replicas: Sequence[Replica]) -> Replica | None:
    ready = [each for each in replicas if each.runs and each.status() == 200]
    return ready[0] if len(ready) == 1 else None
