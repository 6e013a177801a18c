"""The real extender in this process, with a life that can end at any write, as by `kill -9`.

Its clock runs faster than ours, so its pauses, doubts and timeouts pass in a test's time.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread

from kubernetes.client import Configuration
from waitress.server import create_server

from linkwise.extender.app import create_app
from linkwise.extender.metrics import Metrics
from linkwise.extender.scheduler import CoreSettings, Scheduler
from linkwise.extender.shell import Shell
from linkwise.kube.client import KubeClient, Stream
from linkwise.kube.errors import UNREACHED, ApiError
from tests.end_to_end.journal import Journal

HURRY = 30.0  # of its seconds pass in one of ours
GANG_TIMEOUT_SECONDS = 120.0  # of its own; 4 of ours
_BEGAN = time.time()


def hurried_clock() -> float:
    """Seconds since 1970 for all extenders of this process."""
    return _BEGAN + (time.time() - _BEGAN) * HURRY


@dataclass(frozen=True, slots=True)
class Death:
    """Dies at the *at*th write (from 1) of this method whose path ends so. *carried_out*: the
    write reaches the API server, and only its answer finds nobody."""

    method: str
    path_end: str
    at: int = 1
    carried_out: bool = False


class MortalClient(KubeClient):
    """Nothing gets through once its owner is dead, whatever its threads still try."""

    def __init__(self, configuration: Configuration, *, timeout_seconds: float = 10.0) -> None:
        super().__init__(configuration, timeout_seconds=timeout_seconds)
        self.dead = Event()
        self._lock = Lock()
        self._death: Death | None = None
        self._seen = 0
        self._conflicts = 0

    def will_die(self, death: Death) -> None:
        with self._lock:
            self._death, self._seen = death, 0

    def conflict_next(self, times: int) -> None:
        """The next patches are refused with 409, as where somebody else was faster."""
        with self._lock:
            self._conflicts += times

    def _read(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None,
        body: object = None,
        content_type: str = "",
    ) -> bytes:
        self._must_live()
        with self._lock:
            conflict = method == "PATCH" and self._conflicts > 0
            self._conflicts -= conflict
            death = self._death
            dies = death is not None and self._reaches(death, method, path)
        if conflict:
            raise ApiError(409, "Conflict", f"{method} {path}: a test says so")
        if dies and death is not None:
            if not death.carried_out:
                self.dead.set()
                self._must_live()
            answer = super()._read(method, path, params, body, content_type)
            self.dead.set()
        else:
            answer = super()._read(method, path, params, body, content_type)
        self._must_live(maybe_done=True)
        return answer

    def _reaches(self, death: Death, method: str, path: str) -> bool:
        self._seen += method == death.method and path.endswith(death.path_end)
        return self._seen >= death.at

    def stream(self, path: str, *, params: Mapping[str, str | int], idle_seconds: float) -> Stream:
        self._must_live()
        return super().stream(path, params=params, idle_seconds=idle_seconds)

    def _must_live(self, *, maybe_done: bool = False) -> None:
        if self.dead.is_set():
            raise ApiError(UNREACHED, "Dead", "its process has ended", maybe_done=maybe_done)


class LiveExtender:
    """One life; the next one takes over its port."""

    def __init__(self, url: str, journal: Journal, port: int = 0) -> None:
        self._journal = journal
        self.client = MortalClient.load(kubeconfig=None, server=url)
        assert isinstance(self.client, MortalClient)
        self.mortal: MortalClient = self.client
        self.metrics = Metrics()
        self.core = Scheduler(CoreSettings(gang_timeout_seconds=GANG_TIMEOUT_SECONDS))
        self.shell = Shell(self.core, self.client, self.metrics, clock=hurried_clock)
        app = create_app(self.shell, self.metrics)
        self._server = create_server(app, host="127.0.0.1", port=port, threads=8)
        self.port = int(self._server.effective_port)
        self._thread = Thread(target=self._server.run, name="extender", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._journal.say("extender", "starts")
        self.shell.start()
        self._thread.start()

    def die(self) -> None:
        """From here on nothing it does reaches anybody."""
        self._journal.say("extender", "dies")
        self.mortal.dead.set()
        self._close()

    def stop(self) -> None:
        """As on SIGTERM."""
        self._close()

    def _close(self) -> None:
        self._server.asyncore.close_all(self._server._map)  # ends its loop, and every connection
        self._thread.join(5)
        self._server.task_dispatcher.shutdown(timeout=1)
        self.shell.stop()

    def counted(self, metric: str) -> float:
        """The sum of a counter's samples over all its labels."""
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == metric
        )
