"""Clients of the API server that are slow, or die: what networks and kernels do to a program."""

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event, Lock
from typing import Self

from kubernetes.client import Configuration

from linkwise.kube.client import KubeClient, Stream
from linkwise.kube.clock import ServerClock
from linkwise.kube.errors import UNREACHED, ApiError


@dataclass(frozen=True, slots=True)
class Pace:
    """How late things are, in seconds on average; a few are ten times later."""

    writes: float = 0.0
    watches: float = 0.0
    seed: int = 0


AT_ONCE = Pace()


class SluggishClient(KubeClient):
    """Writes arrive late, and so do the changes that watches tell of; their order stays."""

    def __init__(self, configuration: Configuration, *, timeout_seconds: float = 10.0) -> None:
        super().__init__(configuration, timeout_seconds=timeout_seconds)
        self.pace = AT_ONCE
        self._random = random.Random()

    @classmethod
    def at(cls, url: str, pace: Pace, clock: Callable[[], float] = time.time) -> Self:
        """*clock*: of the machine that it runs on."""
        client = cls.load(kubeconfig=None, server=url)
        assert isinstance(client, cls)
        client.clock = ServerClock(clock)
        client.pace = pace
        client._random = random.Random(pace.seed)
        return client

    def dawdle(self, seconds: float) -> None:
        if seconds:
            often = 10 if self._random.random() < 0.03 else 1
            time.sleep(min(self._random.expovariate(1 / seconds) * often, 1.0))

    def _read(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None,
        body: object = None,
        content_type: str = "",
    ) -> bytes:
        if method != "GET":
            self.dawdle(self.pace.writes)
        return super()._read(method, path, params, body, content_type)

    def stream(self, path: str, *, params: Mapping[str, str | int], idle_seconds: float) -> Stream:
        return _Late(super().stream(path, params=params, idle_seconds=idle_seconds), self)


class _Late:
    def __init__(self, stream: Stream, client: SluggishClient) -> None:
        self._stream, self._client = stream, client

    def __iter__(self) -> Iterator[bytes]:
        for line in self._stream:
            self._client.dawdle(self._client.pace.watches)
            yield line

    def close(self) -> None:
        self._stream.close()


@dataclass(frozen=True, slots=True)
class Death:
    """Dies at the *at*th write (from 1) of this method whose path ends so (a pattern).
    *carried_out*: the write reaches the API server, and only its answer is lost."""

    method: str
    path_end: str
    at: int = 1
    carried_out: bool = False


class MortalClient(SluggishClient):
    """Nothing gets through once its owner is dead, whatever its threads still try."""

    def __init__(self, configuration: Configuration, *, timeout_seconds: float = 10.0) -> None:
        super().__init__(configuration, timeout_seconds=timeout_seconds)
        self.dead = Event()
        self._lock = Lock()
        self._death: Death | None = None
        self._seen = 0
        self._conflicts = 0
        self.binding_failed_at = -math.inf

    def will_die(self, death: Death) -> None:
        with self._lock:
            self._death, self._seen = death, 0

    def conflict_next(self, times: int) -> None:
        """The next patches are refused with 409, as if another writer was faster."""
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
        try:
            return self._read_or_die(method, path, params, body, content_type)
        except ApiError:
            if path.endswith("/binding"):
                self.binding_failed_at = time.monotonic()
            raise

    def _read_or_die(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None,
        body: object,
        content_type: str,
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
        if method == death.method and re.search(f"{death.path_end}$", path):
            self._seen += 1
        return self._seen >= death.at

    def stream(self, path: str, *, params: Mapping[str, str | int], idle_seconds: float) -> Stream:
        self._must_live()
        return super().stream(path, params=params, idle_seconds=idle_seconds)

    def dawdle(self, seconds: float) -> None:
        super().dawdle(seconds)
        self._must_live()  # what was not sent yet never is

    def _must_live(self, *, maybe_done: bool = False) -> None:
        if self.dead.is_set():
            raise ApiError(UNREACHED, "Dead", "its process has ended", maybe_done=maybe_done)
