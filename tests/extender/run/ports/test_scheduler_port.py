"""The port of kube-scheduler: lengths, calls at the same time, and an end that loses no call.

Without TLS here; which callers it admits is in serving/test_server.py, and what a flood does in
test_flood.py."""

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event, Thread
from unittest.mock import patch

import pytest

from linkwise.extender.run.ports import scheduler_port as module
from linkwise.extender.run.ports.scheduler_port import VerbServer
from linkwise.serving import system
from linkwise.serving.handler import IDLE_SECONDS
from linkwise.serving.reply import Reply
from tests.extender.world import wait_for


class Verbs:
    """Answers with what it was asked; a call of `bind` waits until it is let, and the answer to
    `preempt` ends the connection."""

    max_body = 100

    def __init__(self) -> None:
        self.binding, self.let = Event(), Event()
        self.asked: list[str] = []
        self.gone: list[str] = []

    def answer(self, verb: str, body: bytes, waits: Callable[[], bool]) -> Reply | None:
        self.asked.append(verb)
        if verb == "bind":
            self.binding.set()
            assert self.let.wait(60)
        if not waits():
            self.gone.append(verb)
            return None
        said = verb.encode() + b" " + body
        return Reply(200, said, timing="app;dur=1", parting=verb == "preempt")

    def too_large(self, verb: str) -> Reply:
        return Reply(413, b"too large for " + verb.encode())


LARGE = 32 << 20  # bytes; more than any socket keeps for a server that does not read


def make_server(verbs: Verbs, address: str = "127.0.0.1", **settings: float) -> VerbServer:
    said = {"threads": 4, "call_seconds": 60.0, **settings}
    return VerbServer(address, 0, verbs, secure=False, **said)  # type: ignore[arg-type]


@pytest.fixture
def verbs() -> Verbs:
    return Verbs()


@pytest.fixture
def server(verbs: Verbs) -> Iterator[VerbServer]:
    made = make_server(verbs)
    thread = Thread(target=made.run, daemon=True)
    thread.start()
    yield made
    verbs.let.set()
    made.close()
    thread.join(5)
    assert not thread.is_alive()


@pytest.fixture
def connection(server: VerbServer) -> Iterator[http.client.HTTPConnection]:
    made = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    yield made
    made.close()


def ask(
    connection: http.client.HTTPConnection,
    path: str,
    body: bytes | None = None,
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_calls_one_after_the_other_share_a_connection(
    connection: http.client.HTTPConnection,
) -> None:
    assert ask(connection, "/filter", b"one") == (200, b"filter one")
    first = connection.sock
    assert ask(connection, "/prioritize", b"two") == (200, b"prioritize two")
    assert connection.sock is first is not None


def test_nothing_else_is_answered_here(
    connection: http.client.HTTPConnection, verbs: Verbs
) -> None:
    for path in ("/nodes", "/metrics", "/healthz", "/filter/", "/filter?x=1"):
        assert ask(connection, path, b"x")[0] == 404
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "filter"):
        assert ask(connection, "/filter", b"x", method=method)[0] == 405
    assert verbs.asked == []
    assert ask(connection, "/filter", b"x") == (200, b"filter x")


def test_an_idle_connection_is_kept_longer_than_go_keeps_it_and_not_for_ever() -> None:
    assert 90 < IDLE_SECONDS < 600


def test_a_head_without_end_is_read_to_its_limit(server: VerbServer) -> None:
    long = b"X: " + b"x" * 5000 + b"\r\n"
    for endless in (b"X: " + b"x" * 60_000, b"X: y\r\n" * 20_000, long * 20):
        with socket.create_connection(("127.0.0.1", server.port), 5) as greedy:
            greedy.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 0\r\n" + endless)
            greedy.shutdown(socket.SHUT_WR)
            assert greedy.recv(1000).startswith(b"HTTP/1.1 431 ")


def test_a_body_that_comes_too_slowly_is_none(verbs: Verbs) -> None:
    made = make_server(verbs)
    thread = Thread(target=made.run, daemon=True)
    thread.start()
    with (
        patch.object(module._Handler, "body_seconds", 0.3),
        socket.create_connection(("127.0.0.1", made.port), 5) as slow,
    ):
        slow.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf")
        assert slow.recv(100) == b""
    assert verbs.asked == []
    made.close()
    thread.join(5)


def test_a_call_whose_caller_hung_up_is_known_as_such(server: VerbServer, verbs: Verbs) -> None:
    """Also one that only ended its own side: kube-scheduler does neither while it waits."""
    for how in (socket.SHUT_RDWR, socket.SHUT_WR):
        verbs.binding.clear()
        verbs.let.clear()
        verbs.gone.clear()
        with socket.create_connection(("127.0.0.1", server.port), 5) as caller:
            caller.sendall(b"POST /bind HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
            assert verbs.binding.wait(60)
            caller.shutdown(how)
            wait_for(lambda: server.calls == 1)
            verbs.let.set()
            wait_for(lambda: verbs.gone == ["bind"])
            wait_for(lambda: not server._open)


def test_a_call_that_is_older_than_its_caller_waits_is_known_as_such(verbs: Verbs) -> None:
    made = make_server(verbs, call_seconds=0.01)
    thread = Thread(target=made.run, daemon=True)
    thread.start()
    with socket.create_connection(("127.0.0.1", made.port), 5) as caller:
        caller.sendall(b"POST /bind HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
        assert verbs.binding.wait(60)
        assert not verbs.let.wait(0.05)
        verbs.let.set()
        assert caller.recv(100) == b""
    assert verbs.gone == ["bind"]
    made.close()
    thread.join(5)


def test_a_body_that_is_too_large_is_refused_unread(
    connection: http.client.HTTPConnection,
) -> None:
    connection.request("POST", "/filter", headers={"content-length": "101"})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (413, b"too large for filter")
    assert answer.headers["connection"] == "close"


def test_who_sends_too_much_in_one_go_hears_why(
    connection: http.client.HTTPConnection,
) -> None:
    assert ask(connection, "/filter", bytes(LARGE))[0] == 413


def test_of_a_body_without_a_length_nothing_is_read(
    connection: http.client.HTTPConnection, verbs: Verbs
) -> None:
    assert ask(connection, "/filter", headers={"transfer-encoding": "chunked"})[0] == 411
    for length in ("-1", "\xb2", "", "9" * 5000):
        assert ask(connection, "/filter", headers={"content-length": length})[0] == 400
    assert verbs.asked == []


def test_of_a_body_with_two_lengths_nothing_is_read(
    connection: http.client.HTTPConnection, verbs: Verbs
) -> None:
    connection.putrequest("POST", "/filter")
    connection.putheader("content-length", "3")
    connection.putheader("content-length", "5")
    connection.endheaders(b"12345")
    assert connection.getresponse().status == 400
    assert verbs.asked == []


def test_half_a_call_is_none(server: VerbServer, verbs: Verbs) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as broken:
        broken.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 30\r\n\r\nhalf")
        broken.shutdown(socket.SHUT_WR)
        assert broken.recv(100) == b""
    assert verbs.asked == []


def test_a_client_that_asks_whether_to_go_on_is_told_so(server: VerbServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as careful:
        head = b"POST /filter HTTP/1.1\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
        careful.sendall(head)
        assert careful.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        careful.sendall(b"x")
        assert careful.recv(1000).endswith(b"filter x")


def test_the_end_of_a_connection_is_said(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", "/filter", b"x", {"connection": "close"})
    answer = connection.getresponse()
    assert (answer.headers["connection"], answer.read()) == ("close", b"filter x")
    connection.request("POST", "/filter", b"x")
    answer = connection.getresponse()
    assert (answer.headers["connection"], answer.read()) == ("keep-alive", b"filter x")
    assert answer.headers["server-timing"] == "app;dur=1"
    connection.request("POST", "/preempt", b"x")
    answer = connection.getresponse()
    assert (answer.headers["connection"], answer.read()) == ("close", b"preempt x")


def test_binds_that_wait_for_the_api_server_keep_nobody_else_waiting(
    server: VerbServer, verbs: Verbs, connection: http.client.HTTPConnection
) -> None:
    with ExitStack() as binds:
        for _ in range(5):  # more than the server answers of other calls at the same time
            bind = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            binds.callback(bind.close)
            bind.request("POST", "/bind", b"x")
        wait_for(lambda: server.calls == 5 and len(verbs.asked) == 5)
        assert ask(connection, "/filter", b"x") == (200, b"filter x")


def test_large_calls_are_answered_two_at_a_time_and_small_ones_beside_them(
    server: VerbServer,
    verbs: Verbs,
    connection: http.client.HTTPConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LARGE_BODY", 50)
    with ExitStack() as clients:
        large = []
        for _ in range(3):
            client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            clients.callback(client.close)
            client.request("POST", "/bind", b"x" * 60)
            large.append(client)
        wait_for(lambda: server.calls == 3 and verbs.asked == ["bind", "bind"])
        assert ask(connection, "/filter", b"small") == (200, b"filter small")
        verbs.let.set()
        assert [client.getresponse().status for client in large] == [200] * 3
    assert verbs.asked == ["bind", "bind", "filter", "bind"]
    assert server._large._value == 2


def test_what_is_no_http_is_refused_and_others_go_on(
    server: VerbServer, connection: http.client.HTTPConnection
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as stranger:
        stranger.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert b"400" in stranger.recv(1000)
    assert ask(connection, "/filter", b"x") == (200, b"filter x")


def test_a_call_under_way_is_answered_before_the_end_and_none_after(
    server: VerbServer, verbs: Verbs, connection: http.client.HTTPConnection
) -> None:
    connection.request("POST", "/bind", b"x")
    assert verbs.binding.wait(60)
    closing = Thread(target=server.close)
    closing.start()
    wait_for(lambda: server._listener.fileno() == -1)
    assert closing.is_alive()
    verbs.let.set()
    assert connection.getresponse().read() == b"bind x"
    closing.join(5)
    assert not closing.is_alive()
    connection.auto_open = 0  # else it connects again, to any server on that port
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(connection, "/filter", b"x")


def test_the_end_waits_for_no_client_that_is_idle_or_sends_half_a_call(server: VerbServer) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as idle,
        socket.create_connection(("127.0.0.1", server.port), 5) as half,
    ):
        half.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 30\r\n\r\nhalf")
        wait_for(lambda: server.calls == 1 and len(server._open) == 2)
        server.close()
        assert server.calls == 0
        assert (idle.recv(1), half.recv(1)) == (b"", b"")
        wait_for(lambda: not server._open)


def test_a_server_that_never_ran_can_be_closed(verbs: Verbs) -> None:
    made = make_server(verbs)
    port = made.port
    made.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_it_listens_on_addresses_of_ipv6(verbs: Verbs) -> None:
    made = make_server(verbs, "::1")
    thread = Thread(target=made.run, daemon=True)
    thread.start()
    one = http.client.HTTPConnection("::1", made.port, timeout=30)
    assert ask(one, "/filter", b"x") == (200, b"filter x")
    one.close()
    made.close()
    thread.join(5)


def test_a_few_idle_threads_are_kept(server: VerbServer) -> None:
    with patch.object(system, "_MOST_IDLE", 1), ExitStack() as clients:
        for _ in range(3):
            one = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            clients.callback(one.close)
            assert ask(one, "/filter", b"x")[0] == 200
        assert server._workers.idle == 0
        clients.close()
        wait_for(lambda: not server._open and server._workers.idle == 1)


def test_threads_are_used_again(server: VerbServer) -> None:
    for _ in range(30):
        one = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        assert ask(one, "/filter", b"x")[0] == 200
        one.close()
        wait_for(lambda: server._workers.idle)
    assert server._workers.idle == 1
