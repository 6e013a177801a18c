"""HTTP/2 as kube-scheduler speaks it: calls beside each other, given up one by one, none lost."""

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread
from unittest.mock import patch

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from linkwise.serving import http2 as module
from linkwise.serving.http2 import Http2
from linkwise.serving.reply import Reply, Waits, plain
from linkwise.serving.server import Places, Server
from tests.extender.world import wait_for
from tests.serving.http2_client import Client
from tests.serving.tls import HOST, Authority, stranger

MOST = 300_000
LARGE = 200_000  # bytes; the window of a connection is 65,535


class Calls:
    """`/echo` at once; `/slow` when it is let; `/large` is an answer larger than any window."""

    def __init__(self) -> None:
        self.let = Event()
        self.asked: list[str] = []
        self.gone: list[str] = []

    def refusal(self, method: str, path: str, length: int) -> Reply | None:
        assert path
        if method != "POST":
            return plain(405, "no")
        return plain(413, "too large") if length > MOST else None

    def waits_long(self, path: str) -> bool:
        return path.startswith(("/slow", "/large", "/gone"))

    def reply(self, path: str, body: bytes, waits: Waits) -> Reply | None:
        self.asked.append(path)
        if path == "/defect":
            raise ZeroDivisionError
        if path == "/large":
            return Reply(200, bytes(LARGE))
        if path.startswith("/slow"):
            assert self.let.wait(30)
        elif path == "/gone":
            wait_for(lambda: not waits(), 30)
        if not waits():
            self.gone.append(path)
            return None
        return Reply(200, path.encode() + b" " + body, parting=path == "/standby")


class Running:
    def __init__(self, authority: Authority, *, call_seconds: float = 60.0) -> None:
        self.calls, self.authority = Calls(), authority
        self.server = Server(HOST, 0, self._serve, Places(strangers=20, known=20), secure=True)
        self.server.use(authority.greeting())
        self.port, self._call_seconds = self.server.port, call_seconds
        self._thread = Thread(target=self.server.run)
        self._thread.start()

    def _serve(self, connection: socket.socket, _address: object, server: Server) -> None:
        assert isinstance(connection, ssl.SSLSocket)
        seconds = self._call_seconds
        Http2(connection, server, self.calls, call_seconds=seconds, most_bytes=2 * MOST).serve()

    def client(self, *, window: int = 1 << 20) -> Client:
        context = self.authority.context(self.authority.client())
        return Client(self.port, context, window=window)

    def stop(self) -> None:
        self.calls.let.set()
        self.server.close()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def running(authority: Authority) -> Iterator[Running]:
    started = Running(authority)
    yield started
    started.stop()


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with running.client() as made:
        yield made


def test_calls_one_after_the_other_share_a_connection(running: Running, client: Client) -> None:
    for number in range(50):
        assert client.ask("/echo", b"%d" % number) == (200, b"/echo %d" % number)
    assert len(running.server._open) == 1


def test_a_call_that_waits_keeps_no_other_waiting(running: Running, client: Client) -> None:
    slow = [client.begin(f"/slow-{number}", b"x") for number in range(20)]
    assert client.ask("/echo") == (200, b"/echo x")
    wait_for(lambda: running.server.calls == 20)
    running.calls.let.set()
    for number, call in enumerate(slow):
        assert client.answer(call).body == b"/slow-%d x" % number


def test_an_answer_says_what_it_is(client: Client) -> None:
    answer = client.answer(client.begin("/echo", b"x"))
    assert answer.headers == {":status": "200", "content-type": "application/json"}


@pytest.mark.parametrize("path", ["/slow", "/gone"])
def test_a_call_that_is_given_up_is_known_as_such_and_no_other(
    running: Running, client: Client, path: str
) -> None:
    given_up, kept = client.begin(path, b"x"), client.begin("/slow-2", b"y")
    wait_for(lambda: len(running.calls.asked) == 2)
    client.give_up(given_up)
    assert client.ask("/echo") == (200, b"/echo x"), "the server has heard of it by then"
    running.calls.let.set()
    wait_for(lambda: running.calls.gone == [path])
    assert client.answer(kept).body == b"/slow-2 y"
    assert not client.answers[given_up].whole


def test_with_its_connection_all_of_its_calls_are_given_up(running: Running) -> None:
    with running.client() as client:
        for number in range(5):
            client.begin(f"/slow-{number}", b"x")
        wait_for(lambda: len(running.calls.asked) == 5)
    running.calls.let.set()
    wait_for(lambda: len(running.calls.gone) == 5)
    wait_for(lambda: not running.server._open)


def test_a_call_that_is_older_than_its_caller_waits_is_not_carried_out(
    authority: Authority, request: pytest.FixtureRequest
) -> None:
    """The process may have been stopped, and not have heard that it was given up."""
    started = Running(authority, call_seconds=0.05)
    request.addfinalizer(started.stop)
    with started.client() as client:
        answer = client.answer(client.begin("/gone", b"x"))
        assert (answer.whole, answer.reset) == (False, ErrorCodes.CANCEL)
        assert client.ask("/echo") == (200, b"/echo x")


def test_what_is_larger_than_all_windows_comes_whole(running: Running) -> None:
    with running.client(window=1000) as client:
        assert client.ask("/large") == (200, bytes(LARGE))
        assert client.ask("/echo", b"x" * MOST) == (200, b"/echo " + b"x" * MOST)


def test_who_takes_nothing_keeps_no_other_call_waiting(running: Running) -> None:
    with running.client(window=1000) as client:
        client.acknowledges = False
        large = client.begin("/large", b"x")
        wait_for(lambda: running.calls.asked == ["/large"])
        assert client.ask("/echo") == (200, b"/echo x")
        client.give_up(large)
        assert client.ask("/echo") == (200, b"/echo x")
        wait_for(lambda: running.server.calls == 0)


def test_who_takes_nothing_for_long_is_given_up(running: Running) -> None:
    with patch.object(module, "_UNREAD_SECONDS", 0.2), running.client(window=1000) as client:
        client.acknowledges = False
        client.begin("/large", b"x")
        wait_for(lambda: running.calls.asked == ["/large"])
        wait_for(lambda: running.server.calls == 0)
        assert client.ask("/echo") == (200, b"/echo x")


@pytest.mark.parametrize(
    ("method", "length", "status"), [("GET", -1, 405), ("POST", MOST + 1, 413), ("PUT", 5, 405)]
)
def test_what_cannot_be_is_refused_unread(
    running: Running, client: Client, method: str, length: int, status: int
) -> None:
    answer = client.answer(client.begin("/echo", b"", method=method, length=length))
    assert answer.status == status
    assert client.ask("/echo") == (200, b"/echo x")
    assert running.calls.asked == ["/echo"]
    assert answer.reset == (None if length == -1 else ErrorCodes.NO_ERROR), "no more is to be sent"


def test_a_body_that_grows_too_large_is_refused(running: Running, client: Client) -> None:
    number = client.begin("/echo", b"", length=5)
    with suppress(Exception):  # the library sees that it is longer than it said
        client.send(number, b"x" * (MOST + 1))
    with running.client() as honest:
        assert honest.ask("/echo") == (200, b"/echo x")
    assert running.calls.asked == ["/echo"]


def test_bodies_that_never_end_take_no_more_than_their_room(running: Running) -> None:
    """What comes beyond it closes no window: the connection goes on forever."""
    with patch.object(module, "_CONNECTION_WINDOW", 100_000), running.client() as client:
        kept = [client.begin("/echo", b"", length=MOST) for _ in range(2)]
        for call in kept:
            for _ in range(29):
                client.send(call, b"x" * 10_000, ends=False)
        for _ in range(10):
            more = client.begin("/echo", b"", length=MOST)
            client.send(more, b"x" * 30_000, ends=False)
            assert client.answer(more).reset == ErrorCodes.ENHANCE_YOUR_CALM
        for call in kept:
            client.send(call, b"x" * 10_000)
            assert client.answer(call).status == 200


def test_a_connection_takes_more_in_its_life_than_its_windows_and_its_room(
    running: Running,
) -> None:
    with patch.object(module, "_CONNECTION_WINDOW", 100_000), running.client() as client:
        for _ in range(30):
            assert client.ask("/echo", b"x" * 50_000)[0] == 200


def test_a_defect_costs_one_call(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    assert client.ask("/defect")[0] == 500
    assert "ZeroDivisionError" in caplog.text
    assert client.ask("/echo") == (200, b"/echo x")


def test_whoever_asks_a_standby_is_sent_away_and_its_other_calls_are_answered(
    running: Running, client: Client
) -> None:
    slow = client.begin("/slow", b"x")
    assert client.ask("/standby") == (200, b"/standby x")
    while not client.parted:
        client.hear()
    assert client.last_taken > slow, "Go would ask again what was not taken"
    running.calls.let.set()
    # The library takes nothing more on such a connection; Go's client does.
    wait_for(lambda: running.server.calls == 0)
    assert running.calls.asked == ["/slow", "/standby"]
    assert running.calls.gone == []
    assert not client.answers[slow].reset


def test_pings_are_answered_while_calls_wait(running: Running, client: Client) -> None:
    """kube-scheduler gives up a connection on which they are not."""
    client.begin("/slow", b"x")
    wait_for(lambda: running.calls.asked == ["/slow"])
    client.h2.ping(b"12345678")
    client.flush()
    while not client.pings:
        client.hear()
        assert not client.ended


def test_it_says_how_much_it_takes_at_once(client: Client) -> None:
    client.ask("/echo")
    assert client.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] >= 100
    assert client.h2.remote_settings.initial_window_size >= 1 << 20


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\1" + b"\0" * 6 + b"x",  # for no call
    ],
)
def test_who_speaks_something_else_is_hung_up_on(
    running: Running, client: Client, said: bytes
) -> None:
    context = running.authority.context(running.authority.client())
    context.set_alpn_protocols(["h2"])
    with (
        stranger(running.port) as raw,
        context.wrap_socket(raw, server_hostname=HOST) as odd,
    ):
        odd.sendall(said)
        with suppress(ConnectionError):
            while odd.recv(1000):
                pass
    assert client.ask("/echo") == (200, b"/echo x")
    wait_for(lambda: len(running.server._open) == 1)


def test_an_idle_connection_ends_after_a_while(running: Running) -> None:
    with patch.object(module, "_IDLE_SECONDS", 0.2), running.client() as idle:
        while not idle.ended:
            idle.hear()
    wait_for(lambda: not running.server._open)


def test_the_end_answers_who_has_asked_and_sends_others_elsewhere(
    running: Running, client: Client
) -> None:
    slow = client.begin("/slow", b"last words")
    wait_for(lambda: running.calls.asked == ["/slow"])
    closing = Thread(target=running.server.close)
    closing.start()
    while not client.parted:
        client.hear()
    assert (closing.is_alive(), client.last_taken) == (True, slow)
    running.calls.let.set()
    closing.join(30)
    assert not closing.is_alive()
    assert running.calls.gone == []
    # Its answer is there, though the library does not take it any more.
    client.connection.settimeout(5)
    heard = b""
    while more := client.connection.recv(1000):
        heard += more
    assert b"/slow last words" in heard


def test_the_end_waits_for_no_client_that_is_idle(running: Running, client: Client) -> None:
    assert client.ask("/echo") == (200, b"/echo x")
    began = time.monotonic()
    running.server.close()
    assert time.monotonic() - began < 3
    while not client.ended:
        client.hear()
    assert client.parted
