"""A port with TLS: which callers it admits, and that certificates change without a lost call."""

import errno
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from threading import Thread
from unittest.mock import patch

import pytest

from linkwise.serving import server as module
from linkwise.serving.certificates.pairs import Lifetime, Pair, issue_server, make_pair
from linkwise.serving.greeting import Caller, Welcome, greet_any_client, greet_known
from linkwise.serving.handler import Handler
from linkwise.serving.reply import Reply
from linkwise.serving.server import Places, Server
from linkwise.serving.system import raise_limit
from tests.extender.world import wait_for
from tests.serving.tls import HOST, SCHEDULER, Authority, ask, ask_once, stranger

Refused = (ssl.SSLError, ConnectionError)


class Echo(Handler):
    methods = frozenset({"POST"})

    def serve(self) -> None:
        with self.server.call():
            length = self.length()
            body = None if length is None else self.body(length)
            if body is None:
                return
            self.say(Reply(200, body))
            self.wfile.flush()
        self.server.was_useful(self.connection)


class Running:
    def __init__(self, places: Places, *, secure: bool = True) -> None:
        self.results: Counter[str] = Counter()
        self.met: list[Caller] = []
        self.server = Server(
            HOST,
            0,
            Echo,
            places,
            secure=secure,
            count=lambda result: self.results.update([result]),
            met=self.met.append,
        )
        self.port = self.server.port
        self._thread = Thread(target=self.server.run)
        self._thread.start()

    def stop(self) -> None:
        self.server.close()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def running(authority: Authority) -> Iterator[Running]:
    started = Running(Places(strangers=8, known=20))
    started.server.use(authority.greeting())
    yield started
    started.stop()


def test_a_known_caller_is_served_over_a_connection_that_it_keeps(
    running: Running, authority: Authority
) -> None:
    with closing(authority.connect(running.port, authority.client())) as client:
        for number in range(3):
            assert ask(client, "/", b"%d" % number) == (200, b"%d" % number)
        assert running.results == {"served": 1}
        (caller,) = running.met
        assert (caller.welcome, caller.name) == (Welcome.KNOWN, SCHEDULER)
        assert caller.certificate_ends == authority.client().ends.timestamp()


def client_of(kind: str, authority: Authority) -> Pair | None:
    other = Authority()
    return {
        "nothing": None,
        "another name": authority.client("system:node:n1"),
        "a name that only begins so": authority.client(f"{SCHEDULER}2"),
        "another authority": other.client(),
        "its time is over": authority.client(expired=True),
        "a server's": issue_server(authority.pair, [SCHEDULER], authority.now, Lifetime()),
        "signed by itself": make_pair([SCHEDULER], authority.now, Lifetime()),
        "the authority's own": authority.pair,
    }[kind]


@pytest.mark.parametrize(
    ("shown", "result"),
    [
        ("nothing", "handshake"),
        ("another name", "name"),
        ("a name that only begins so", "name"),
        ("another authority", "handshake"),
        ("its time is over", "handshake"),
        ("a server's", "handshake"),
        ("signed by itself", "handshake"),
        ("the authority's own", "handshake"),
    ],
)
def test_nobody_else_is_served(
    running: Running, authority: Authority, shown: str, result: str
) -> None:
    with pytest.raises(Refused):
        ask_once(authority.connect(running.port, client_of(shown, authority)))
    wait_for(lambda: running.results[result] == 1)
    assert running.results["served"] == 0
    wait_for(lambda: not running.server._open)


def test_no_plain_text_is_answered(running: Running) -> None:
    with stranger(running.port) as plain:
        plain.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        heard = b""
        with suppress(ConnectionResetError):
            while more := plain.recv(100):
                heard += more
        assert b"HTTP" not in heard


def test_before_there_is_a_certificate_nobody_is_served(
    authority: Authority, request: pytest.FixtureRequest
) -> None:
    early = Running(Places(strangers=8, known=20))
    request.addfinalizer(early.stop)
    with pytest.raises(Refused):
        ask_once(authority.connect(early.port, authority.client()))
    wait_for(lambda: early.results["not-ready"] == 1)


def test_a_handshake_that_says_nothing_has_its_time(
    running: Running, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 0.2)
    silent, half = stranger(running.port), stranger(running.port)
    half.sendall(b"\x16\x03\x01\x02\x00\x01")  # a greeting that goes on
    for each in (silent, half):
        with each:
            assert each.recv(1) == b""
    assert running.results["late"] == 2
    assert ask_once(authority.connect(running.port, authority.client())) == 200


def test_places_of_strangers_go_to_whoever_comes_and_known_callers_keep_theirs(
    running: Running, authority: Authority
) -> None:
    with closing(authority.connect(running.port, authority.client())) as kept:
        assert ask(kept, "/", b"x")[0] == 200
        with ExitStack() as strangers:
            crowd = [strangers.enter_context(stranger(running.port)) for _ in range(20)]
            wait_for(lambda: running.results["sent-off"] == 12)
            assert [each.recv(1) for each in crowd[:12]] == [b""] * 12
            assert ask(kept, "/", b"y") == (200, b"y")
            assert ask_once(authority.connect(running.port, authority.client())) == 200
            # Of equally many a stranger's last places are his; it was the ninth.
            assert running.results["sent-off"] == 13


def test_too_many_connections_of_known_callers_are_refused(
    running: Running, authority: Authority
) -> None:
    shown = authority.context(authority.client())
    clients = [authority.connect(running.port, context=shown) for _ in range(20)]
    for client in clients:
        assert ask(client, "/", b"x")[0] == 200
    with pytest.raises(Refused):
        ask_once(authority.connect(running.port, context=shown))
    assert running.results["crowded"] == 1
    clients.pop().close()
    wait_for(lambda: running.server._known == 19)
    assert ask_once(authority.connect(running.port, context=shown)) == 200
    for client in clients:
        client.close()
    wait_for(lambda: not running.server._open)
    assert running.server._known == 0


def test_a_new_certificate_counts_for_new_connections_and_disturbs_no_old_one(
    running: Running, authority: Authority
) -> None:
    old = authority.connect(running.port, authority.client())
    assert ask(old, "/", b"x") == (200, b"x")
    other = Authority()
    running.server.use(other.greeting())
    assert ask(old, "/", b"y") == (200, b"y")
    old.close()
    assert ask_once(other.connect(running.port, other.client())) == 200
    with pytest.raises(Refused):
        ask_once(authority.connect(running.port, authority.client()))


def test_while_certificates_change_no_call_is_lost(running: Running, authority: Authority) -> None:
    shown = authority.context(authority.client())

    def once(_: int) -> int:
        return ask_once(authority.connect(running.port, context=shown))

    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(once, number) for number in range(60)]
        for _ in range(10):
            running.server.use(authority.greeting())
        assert {answer.result() for answer in answers} == {200}


def test_without_client_certificates_everybody_is_a_stranger(
    authority: Authority, request: pytest.FixtureRequest
) -> None:
    """As the API server is to the webhook: a client that asks often stays."""
    started = Running(Places(strangers=3))
    request.addfinalizer(started.stop)
    shown = make_pair([HOST], datetime.now(UTC), Lifetime())
    started.server.use(greet_any_client(shown))
    context = ssl.create_default_context(cadata=shown.certificate.decode())
    with ExitStack() as connections:
        client = authority.connect(started.port, context=context, source="127.0.0.3")
        connections.callback(client.close)
        assert ask(client, "/", b"x")[0] == 200
        for _ in range(10):
            connections.enter_context(stranger(started.port))
        wait_for(lambda: started.results["sent-off"] == 8)
        assert ask(client, "/", b"y") == (200, b"y")


def test_a_stranger_that_is_served_leaves_when_its_time_is_over(
    request: pytest.FixtureRequest,
) -> None:
    started = Running(Places(strangers=3, stay_seconds=0.2), secure=False)
    request.addfinalizer(started.stop)
    with socket.create_connection((HOST, started.port), 30) as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf")
        assert slow.recv(1) == b""
    assert started.results["late"] == 1


def test_authorities_that_are_none_are_refused(authority: Authority) -> None:
    shown = authority.pair
    with pytest.raises(ssl.SSLError):
        greet_known(shown, b"nonsense", [SCHEDULER])
    with pytest.raises((ValueError, ssl.SSLError)):
        greet_known(shown, b"", [SCHEDULER])


def test_without_file_descriptors_it_pauses_and_sends_a_stranger_off(
    running: Running, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    class Exhausted:
        left = 2

        def accept(self) -> None:
            Exhausted.left -= 1
            raise OSError(errno.EMFILE, "too many open files")

    with stranger(running.port) as idle:
        wait_for(lambda: len(running.server._open) == 1)
        listener = running.server._listener
        with patch.object(running.server, "_listener", Exhausted()):
            running.server._accept()
        assert listener.fileno() != -1
        assert idle.recv(1) == b""
    assert Exhausted.left == 1, "it pauses before it tries again"
    assert "too many open files" in caplog.text
    assert ask_once(authority.connect(running.port, authority.client())) == 200


def test_a_defect_costs_one_connection(
    running: Running,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    met, tripped = running.met.append, list[Caller]()

    def trips_once(caller: Caller) -> None:
        if not tripped:
            tripped.append(caller)
            raise ZeroDivisionError
        met(caller)

    monkeypatch.setattr(running.server, "_met", trips_once)
    with pytest.raises(Refused):
        ask_once(authority.connect(running.port, authority.client()))
    assert ask_once(authority.connect(running.port, authority.client())) == 200
    assert "ZeroDivisionError" in caplog.text


def test_a_busy_port_is_said(running: Running) -> None:
    with pytest.raises(OSError, match="in use"):
        Server(HOST, running.port, Echo, Places(strangers=1), secure=False)


def test_the_limit_of_files_is_raised_as_far_as_it_may_be() -> None:
    limits: list[tuple[int, int]] = []
    for soft, hard, wanted in ((1024, 524288, 8192), (1024, 4096, 4096), (20000, 20000, None)):
        limits.clear()
        with (
            patch("resource.getrlimit", return_value=(soft, hard)),
            patch("resource.setrlimit", lambda _, both: limits.append(both)),
        ):
            raise_limit()
        assert limits == ([] if wanted is None else [(wanted, hard)])
