"""The server beneath the routes: connections, lengths, and an end that loses no call."""

import errno
import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import pytest

from linkwise.extender import server as module
from linkwise.extender.server import Server
from linkwise.extender.verbs import Reply
from tests.extender.world import wait_for


class Verbs:
    """Answers with what it was asked; a call of `bind` waits until it is let."""

    max_body = 100

    def __init__(self) -> None:
        self.binding, self.let = Event(), Event()
        self.asked: list[str] = []

    def answer(self, verb: str, body: bytes) -> Reply:
        self.asked.append(verb)
        if verb == "bind":
            self.binding.set()
            assert self.let.wait(10)
        return Reply(200, verb.encode() + b" " + body, "app;dur=1")

    def too_large(self, verb: str) -> Reply:
        return Reply(413, b"too large for " + verb.encode())


LARGE = 32 << 20  # bytes; more than any socket keeps for a client that does not read


class Chunks(list[bytes]):
    closed = 0

    def close(self) -> None:
        Chunks.closed += 1


def app(environ: dict[str, Any], start: Any) -> list[bytes]:
    if environ["PATH_INFO"] == "/large":
        start("200 OK", [])
        return Chunks([bytes(LARGE)])
    if environ["PATH_INFO"] == "/standby":
        start("503 Service Unavailable", [])
        return [b"another leads"]
    if environ["PATH_INFO"] == "/length":
        start("200 OK", [("Content-Length", "12345")])
        return []
    if environ["PATH_INFO"] == "/heard":
        start("200 OK", [])
        print("a complaint", file=environ["wsgi.errors"])
        heard = ("CONTENT_TYPE", "HTTP_ACCEPT", "HTTP_X_ASKED_BY")
        return [" ".join(environ[name] for name in heard).encode()]
    start("200 OK", [("Content-Type", "text/plain"), ("X-Query", environ["QUERY_STRING"])])
    body = environ["wsgi.input"].read().decode()
    return [f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {body}".encode()]


@pytest.fixture
def verbs() -> Verbs:
    return Verbs()


@pytest.fixture
def server(verbs: Verbs) -> Iterator[Server]:
    made = Server("127.0.0.1", 0, verbs, app, threads=4)  # type: ignore[arg-type]
    thread = Thread(target=made.run, daemon=True)
    thread.start()
    yield made
    verbs.let.set()
    made.close()
    thread.join(5)
    assert not thread.is_alive()


@pytest.fixture
def connection(server: Server) -> Iterator[http.client.HTTPConnection]:
    made = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
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


def test_everything_else_is_the_applications(connection: http.client.HTTPConnection) -> None:
    assert ask(connection, "/no%20verb", b"x") == (200, b"POST /no verb x")
    assert ask(connection, "/filter", method="GET") == (200, b"GET /filter ")
    assert ask(connection, "/filter", b"x", method="PUT") == (200, b"PUT /filter x")
    connection.request("GET", "/nodes?format=text")
    answer = connection.getresponse()
    assert (answer.headers["x-query"], answer.read()) == ("format=text", b"GET /nodes ")
    connection.request("HEAD", "/nodes")
    answer = connection.getresponse()
    assert (answer.headers["content-length"], answer.read()) == ("12", b"")
    assert ask(connection, "/filter", b"x") == (200, b"filter x")  # nothing lies in between


def test_an_idle_connection_is_kept_longer_than_go_keeps_it_and_not_for_ever() -> None:
    assert 90 < (module._Handler.timeout or 0) < 600


def test_a_body_that_is_too_large_is_refused_unread(
    connection: http.client.HTTPConnection,
) -> None:
    connection.request("POST", "/filter", headers={"content-length": "101"})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (413, b"too large for filter")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/filter", "/nodes"])
def test_who_sends_too_much_in_one_go_hears_why(
    connection: http.client.HTTPConnection, path: str
) -> None:
    assert ask(connection, path, bytes(LARGE))[0] == 413


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


@pytest.mark.parametrize("path", ["/filter", "/nodes"])
def test_half_a_call_is_none(server: Server, verbs: Verbs, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as broken:
        broken.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: 30\r\n\r\nhalf".encode())
        broken.shutdown(socket.SHUT_WR)
        assert broken.recv(100) == b""
    assert verbs.asked == []


def test_a_client_that_asks_whether_to_go_on_is_told_so(server: Server) -> None:
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


def test_the_application_hears_the_headers_and_its_complaints_are_logged(
    connection: http.client.HTTPConnection, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"content-type": "text/x", "accept": "text/plain", "x-asked-by": "me"}
    assert ask(connection, "/heard", b"x", headers=headers) == (200, b"text/x text/plain me")
    assert "a complaint" in caplog.text


def test_head_tells_the_length_of_what_get_would_be_answered(
    connection: http.client.HTTPConnection,
) -> None:
    connection.request("HEAD", "/length")
    assert connection.getresponse().headers["content-length"] == "12345"


def test_binds_that_wait_for_the_api_server_keep_nobody_else_waiting(
    server: Server, verbs: Verbs, connection: http.client.HTTPConnection
) -> None:
    with ExitStack() as binds:
        for _ in range(5):  # one more than the server lets through
            bind = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
            binds.callback(bind.close)
            bind.request("POST", "/bind", b"x")
        wait_for(lambda: server._calls == 5 and len(verbs.asked) == 4)
        assert ask(connection, "/filter", b"x") == (200, b"filter x")
        assert ask(connection, "/healthz", method="GET") == (200, b"GET /healthz ")


def test_large_bodies_come_two_at_a_time_and_small_ones_beside_them(
    server: Server,
    verbs: Verbs,
    connection: http.client.HTTPConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LARGE_BODY", 50)
    with ExitStack() as clients:
        unfinished = []
        for _ in range(3):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
            client.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 60\r\n\r\n" + b"x" * 59)
            unfinished.append(client)
        wait_for(lambda: server._calls == 3 and not server._large._value)
        assert ask(connection, "/filter", b"small") == (200, b"filter small")

        unfinished[2].sendall(b"x")  # whole; but which two are read is for the threads to say
        for client in unfinished[:2]:
            client.sendall(b"x")
        for client in unfinished:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert verbs.asked == ["filter"] * 4
    assert server._large._value == 2


def test_the_application_is_asked_no_more_often_at_once_than_allowed(
    server: Server, verbs: Verbs
) -> None:
    inside: list[int] = []

    def slow(environ: dict[str, Any], start: Any) -> list[bytes]:
        inside.append(1)
        assert verbs.let.wait(10)
        return app(environ, start)

    with patch.object(server, "app", slow), ExitStack() as clients:
        asked = []
        for _ in range(5):
            one = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
            clients.callback(one.close)
            one.request("GET", "/nodes")
            asked.append(one)
        wait_for(lambda: server._calls == 5 and len(inside) == 4)
        assert not server.answering.acquire(blocking=False)
        verbs.let.set()
        assert [one.getresponse().status for one in asked] == [200] * 5
    assert len(inside) == 5


def test_who_reads_slowly_keeps_nobody_else_waiting(
    server: Server, connection: http.client.HTTPConnection
) -> None:
    Chunks.closed = 0
    with ExitStack() as readers:
        for _ in range(5):
            reader = readers.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
            reader.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert ask(connection, "/filter", b"x") == (200, b"filter x")
        assert ask(connection, "/nodes", method="GET") == (200, b"GET /nodes ")
        wait_for(lambda: Chunks.closed == 5)


def test_without_file_descriptors_it_pauses_instead_of_spinning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    class Exhausted:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "too many open files")

    pauses: list[float] = []
    with (
        patch.object(server, "socket", Exhausted()),
        patch("time.sleep", pauses.append),
        pytest.raises(OSError, match="too many"),
    ):
        server.get_request()
    assert pauses == [0.1]
    assert "too many open files" in caplog.text


def test_what_is_no_http_is_refused_and_others_go_on(
    server: Server, connection: http.client.HTTPConnection
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as stranger:
        stranger.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert b"400" in stranger.recv(1000)
    assert ask(connection, "/filter", b"x") == (200, b"filter x")


def test_one_connection_too_many_is_closed(
    server: Server, connection: http.client.HTTPConnection
) -> None:
    assert ask(connection, "/filter", b"x")[0] == 200
    with (
        patch.object(module, "MOST_CONNECTIONS", 1),
        socket.create_connection(("127.0.0.1", server.port), 5) as another,
    ):
        assert another.recv(1) == b""
    assert ask(connection, "/filter", b"x")[0] == 200


def test_a_call_under_way_is_answered_before_the_end_and_none_after(
    server: Server, verbs: Verbs, connection: http.client.HTTPConnection
) -> None:
    connection.request("POST", "/bind", b"x")
    assert verbs.binding.wait(5)
    closing = Thread(target=server.close)
    closing.start()
    wait_for(lambda: server.socket.fileno() == -1)
    assert closing.is_alive()
    verbs.let.set()
    assert connection.getresponse().read() == b"bind x"
    closing.join(5)
    assert not closing.is_alive()
    connection.auto_open = 0  # else it connects again, to whoever has that port by then
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(connection, "/filter", b"x")


def test_whoever_asks_a_standby_is_not_kept(connection: http.client.HTTPConnection) -> None:
    """Else all that people ask over that connection would go to it, whoever leads by then."""
    connection.request("GET", "/standby")
    reply = connection.getresponse()
    assert (reply.status, reply.read()) == (503, b"another leads")
    assert reply.getheader("Connection") == "close"
    assert connection.sock is None


def test_it_has_not_ended_before_the_last_reply_is_written(
    server: Server, connection: http.client.HTTPConnection
) -> None:
    order, closed = [], Event()
    write = module._Handler._write

    def close() -> None:
        server.close()
        order.append("closed")
        closed.set()

    def write_late(handler: module._Handler, reply: Reply) -> None:
        closing.start()
        closed.wait(0.2)  # the end does not come
        order.append("written")
        write(handler, reply)

    closing = Thread(target=close)
    with patch.object(module._Handler, "_write", write_late):
        assert ask(connection, "/filter", b"x") == (200, b"filter x")
    closing.join(5)
    assert order == ["written", "closed"]


def test_the_end_waits_for_no_client_that_is_idle_or_sends_half_a_call(server: Server) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as idle,
        socket.create_connection(("127.0.0.1", server.port), 5) as half,
    ):
        half.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 30\r\n\r\nhalf")
        wait_for(lambda: server._calls == 1 and len(server._open) == 2)
        server.close()
        assert server._calls == 0
        assert (idle.recv(1), half.recv(1)) == (b"", b"")
        wait_for(lambda: not server._open)


def test_a_server_that_never_ran_can_be_closed(verbs: Verbs) -> None:
    made = Server("127.0.0.1", 0, verbs, app, threads=1)  # type: ignore[arg-type]
    made.close()
    assert made.socket.fileno() == -1


def test_it_listens_on_addresses_of_ipv6(verbs: Verbs) -> None:
    made = Server("::1", 0, verbs, app, threads=1)  # type: ignore[arg-type]
    thread = Thread(target=made.run, daemon=True)
    thread.start()
    one = http.client.HTTPConnection("::1", made.port, timeout=5)
    assert ask(one, "/filter", b"x") == (200, b"filter x")
    one.close()
    made.close()
    thread.join(5)


def test_a_few_idle_threads_are_kept(server: Server) -> None:
    with patch.object(module, "_MOST_IDLE", 1), ExitStack() as clients:
        for _ in range(3):
            one = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
            clients.callback(one.close)
            assert ask(one, "/filter", b"x")[0] == 200
        assert server._workers._idle == 0
        clients.close()
        wait_for(lambda: not server._open and server._workers._idle == 1)


def test_threads_are_used_again(server: Server) -> None:
    for _ in range(30):
        one = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        assert ask(one, "/filter", b"x")[0] == 200
        one.close()
        wait_for(lambda: server._workers._idle)
    assert server._workers._idle == 1
