"""kube-scheduler is served while strangers do all they can on its port, which needs no certificate.

They come from other addresses, as other pods do, and from its own, as other programs of its host.
"""

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from threading import Event, Thread

import pytest

from linkwise.extender.run.ports import scheduler_port as module
from linkwise.extender.run.ports.scheduler_port import VerbServer
from linkwise.serving.reply import Reply
from linkwise.serving.server import Places
from tests.extender.world import wait_for
from tests.serving.tls import Authority, ask, ask_once, stranger

CLIENT_HELLO = bytes.fromhex("160301020001")  # of one that is 512 bytes long, its first six
SOURCES = tuple(f"127.0.{number}.1" for number in range(1, 6))
STRANGERS = 100  # places of theirs


class Verbs:
    """Answers with what it was asked."""

    max_body = 100

    def answer(self, verb: str, body: bytes, waits: Callable[[], bool]) -> Reply | None:
        return Reply(200, verb.encode() + b" " + body) if waits() else None


class Running:
    def __init__(self, authority: Authority) -> None:
        self.authority, self.results = authority, Counter[str]()
        self.server = VerbServer(
            "127.0.0.1",
            0,
            Verbs(),  # type: ignore[arg-type]
            threads=4,
            call_seconds=30.0,
            secure=True,
            count=lambda result: self.results.update([result]),
        )
        self.server.use(authority.greeting())
        self.port = self.server.port
        self.shown = authority.context(authority.client())
        self._thread = Thread(target=self.server.run)
        self._thread.start()

    def calls_again(self, source: str = "127.0.0.1") -> int:
        connection = self.authority.connect(self.port, context=self.shown, source=source)
        try:
            return ask(connection, "/filter", b"x")[0]
        finally:
            connection.close()

    def stop(self) -> None:
        self.server.close()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def running(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", Places(strangers=STRANGERS, known=100))
    started = Running(authority)
    yield started
    started.stop()


@pytest.mark.parametrize(
    "said",
    [b"", CLIENT_HELLO, b"POST /filter HTTP/1.1\r\nContent-Length: 50\r\n\r\nslow"],
    ids=["idle", "half a handshake", "slow and without TLS"],
)
@pytest.mark.parametrize("sources", [SOURCES, ("127.0.0.1",)], ids=["others", "its own host"])
def test_connections_of_strangers_take_no_place_of_kube_scheduler(
    running: Running, said: bytes, sources: tuple[str, ...]
) -> None:
    kept = running.authority.connect(running.port, context=running.shown)
    assert ask(kept, "/filter", b"x") == (200, b"filter x")
    with ExitStack() as crowd:
        for number in range(6 * STRANGERS):
            each = stranger(running.port, sources[number % len(sources)])
            crowd.enter_context(each)
            with suppress(OSError):  # it has lost its place again
                each.sendall(said)
            if number % 60 == 0:
                assert ask(kept, "/filter", b"y") == (200, b"filter y")
                assert running.calls_again() == 200
        wait_for(lambda: running.results["sent-off"] + running.results["handshake"] > 400)
        assert ask(kept, "/bind", b"z") == (200, b"bind z")
        assert running.calls_again() == 200
        assert len(running.server._open) <= STRANGERS + 2
    kept.close()
    wait_for(lambda: not running.server._open)


def test_a_storm_of_whole_handshakes_without_certificate_is_lived_through(
    running: Running,
) -> None:
    """They cost processor time; of that, each source gets its turn."""
    stop, done = Event(), list[int]()
    nameless = running.authority.context()

    def storm(source: str) -> None:
        while not stop.is_set():
            with suppress(OSError):
                ask_once(running.authority.connect(running.port, context=nameless, source=source))
            done.append(1)

    threads = [Thread(target=storm, args=(source,)) for source in SOURCES]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            before = len(done)
            assert running.calls_again() == 200
            wait_for(lambda: len(done) > before)  # noqa: B023
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert running.results["handshake"] >= 20
    assert running.results["served"] == 20


def test_a_caller_of_another_name_never_gets_to_say_anything(running: Running) -> None:
    """Every kubelet has a certificate that the cluster's authority signed."""
    kubelet = running.authority.context(running.authority.client("system:node:n1"))
    for _ in range(20):
        with pytest.raises(OSError):  # noqa: PT011 # of several kinds
            ask_once(running.authority.connect(running.port, context=kubelet))
    wait_for(lambda: running.results["name"] == 20)
    assert running.calls_again() == 200
    assert running.results["served"] == 1


def test_what_a_stranger_costs_before_it_says_something_is_a_file_alone(running: Running) -> None:
    with ExitStack() as crowd:
        for number in range(STRANGERS):
            crowd.enter_context(stranger(running.port, SOURCES[number % len(SOURCES)]))
        wait_for(lambda: len(running.server._open) == STRANGERS)
        visits = list(running.server._open.values())
        assert all(type(visit.connection) is socket.socket for visit in visits), "no TLS yet"
        assert running.server._workers.idle == 0
