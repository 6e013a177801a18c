"""The real extender in this process, with a life that can end at any write, as by `kill -9`.

Its clock mostly runs faster than the wall clock, so that pauses and timeouts pass in a test's time.
"""

import time
from collections.abc import Callable
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from threading import Thread

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.run.loop import BARRIER_SECONDS, Loop
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.dispatch import Verbs
from linkwise.extender.run.ports.scheduler_port import VerbServer
from tests.end_to_end.clients import MortalClient, Pace
from tests.end_to_end.journal import Journal

HURRY = 30.0  # seconds of its clock pass in one of the wall clock
GANG_TIMEOUT_SECONDS = 120.0  # of its clock; 4 of the wall clock
HURRIED = CoreSettings(gang_timeout_seconds=GANG_TIMEOUT_SECONDS, wave_seconds=GANG_TIMEOUT_SECONDS)
_BEGAN = time.time()


def reserved_port() -> socket:
    """A port that nothing else gets while this socket is open, though a server may listen on it.
    Otherwise any connection of this machine could take it between two lives."""
    reservation = socket()
    reservation.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation


def hurried_clock() -> float:
    """Seconds since 1970 for all extenders of this process."""
    return _BEGAN + (time.time() - _BEGAN) * HURRY


class LiveExtender:
    """One life; the next one takes over its port."""

    def __init__(
        self,
        url: str,
        journal: Journal,
        port: int,
        pace: Pace,
        settings: CoreSettings,
        clock: Callable[[], float],
        hurry: float,
    ) -> None:
        """*clock*: of its machine; *hurry*: its seconds in one of the wall clock."""
        self._journal = journal
        self.client = MortalClient.at(url, pace, clock)
        self.metrics = ExtenderMetrics()
        self.core = Core(settings)
        self.loop = Loop(
            self.core, self.client, self.metrics, barrier_seconds=BARRIER_SECONDS / hurry
        )
        verbs = Verbs(self.loop, self.metrics)
        # A call of a scheduler that has given up is known by its hang-up, as time runs here faster.
        self._server = VerbServer(
            "127.0.0.1", port, verbs, threads=8, call_seconds=60.0, secure=False
        )
        self.url = f"http://127.0.0.1:{port}"
        self._thread = Thread(target=self._server.run, name="extender", daemon=True)

    def start(self) -> None:
        self._journal.say("extender", "starts")
        self.loop.start()
        self._thread.start()

    def die(self) -> None:
        """From here on nothing it does reaches another component."""
        self._journal.say("extender", "dies")
        self.client.dead.set()
        self._close()

    def stop(self) -> None:
        """As on SIGTERM."""
        self._close()

    def _close(self) -> None:
        self._server.close()
        self._thread.join(5)
        self.loop.stop()

    def counted(self, metric: str) -> float:
        """The sum of a counter's samples over all its labels."""
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == metric
        )
