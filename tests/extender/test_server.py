"""The server beneath the routes: connections, lengths, and an end that loses no call."""

import http.client
import socket
from collections.abc import Iterator
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

    def answer(self, verb: str, body: bytes) -> Reply:
        if verb == "bind":
            self.binding.set()
            assert self.let.wait(10)
        return Reply(200, verb.encode() + b" " + body, "app;dur=1")

    def too_large(self, verb: str) -> Reply:
        return Reply(413, b"too large for " + verb.encode())


def app(environ: dict[str, Any], start: Any) -> list[bytes]:
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


def test_a_body_that_is_too_large_is_refused_unread(
    connection: http.client.HTTPConnection,
) -> None:
    assert ask(connection, "/filter", headers={"content-length": "101"}) == (
        413,
        b"too large for filter",
    )


def test_of_a_body_without_a_length_nothing_is_read(
    connection: http.client.HTTPConnection,
) -> None:
    assert ask(connection, "/filter", headers={"transfer-encoding": "chunked"})[0] == 411
    assert ask(connection, "/filter", headers={"content-length": "-1"})[0] == 400


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
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(connection, "/filter", b"x")


def test_threads_are_used_again(server: Server) -> None:
    for _ in range(30):
        one = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        assert ask(one, "/filter", b"x")[0] == 200
        one.close()
        wait_for(lambda: server._workers._idle)
    assert server._workers._idle == 1
