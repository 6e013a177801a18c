"""What reaches the application, and that no client delays another."""

import http.client
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Thread
from typing import Any
from unittest.mock import patch

import pytest

from linkwise.serving import wsgi as module
from linkwise.serving.server import Places
from linkwise.serving.wsgi import CALLER_WAITS, WsgiServer
from tests.extender.world import wait_for

HOST = "127.0.0.1"
LARGE = 32 << 20  # bytes; more than any socket keeps for a client that does not read


class Chunks(list[bytes]):
    closed = 0

    def close(self) -> None:
        Chunks.closed += 1


def app(environ: dict[str, Any], start: Any) -> list[bytes]:
    if environ["PATH_INFO"] == "/large":
        start("200 OK", [])
        return Chunks([bytes(LARGE)])
    if environ["PATH_INFO"] == "/length":
        start("200 OK", [("Content-Length", "12345")])
        return []
    if environ["PATH_INFO"] == "/waits":
        start("200 OK", [])
        wait_for(lambda: not environ[CALLER_WAITS]())
        return Chunks()
    if environ["PATH_INFO"] == "/heard":
        start("200 OK", [])
        print("a complaint", file=environ["wsgi.errors"])
        heard = ("REMOTE_ADDR", "HTTP_ACCEPT", "HTTP_X_ASKED_BY")
        return [" ".join(environ[name] for name in heard).encode()]
    start("200 OK", [("Content-Type", "text/plain"), ("X-Query", environ["QUERY_STRING"])])
    return [f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}".encode()]


class Running:
    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        count = self.results.update
        self.server = WsgiServer(HOST, 0, app, count=lambda result: count([result]))
        self.port = self.server.port
        self._thread = Thread(target=self.server.run)
        self._thread.start()

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        try:
            connection.request(method, path, body, headers=headers or {})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        self.server.close()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def running() -> Iterator[Running]:
    started = Running()
    yield started
    started.stop()


def test_the_application_is_asked_and_the_connection_ends_with_its_answer(
    running: Running,
) -> None:
    answer, body = running.ask("/no%20verb?format=text")
    assert (answer.status, body) == (200, b"GET /no verb")
    assert (answer.headers["x-query"], answer.headers["connection"]) == ("format=text", "close")


def test_the_application_hears_who_asks_and_its_complaints_are_logged(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    _, body = running.ask("/heard", headers={"accept": "text/plain", "x-asked-by": "me"})
    assert body == b"127.0.0.1 text/plain me"
    assert "a complaint" in caplog.text


def test_head_tells_the_length_of_what_get_would_be_answered(running: Running) -> None:
    for path, length in (("/length", "12345"), ("/nodes", "11")):
        answer, body = running.ask(path, method="HEAD")
        assert (answer.headers["content-length"], body) == (length, b"")


def test_nothing_can_be_sent_here(running: Running) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "CONNECT"):
        assert running.ask("/filter", method=method)[0].status == 405
    assert running.ask("/nodes", body=b"x")[0].status == 413
    assert running.ask("/nodes", headers={"transfer-encoding": "chunked"})[0].status == 411


def test_of_two_requests_in_one_only_the_first_is_heard(running: Running) -> None:
    with socket.create_connection((HOST, running.port), 30) as client:
        client.sendall(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
        heard = b""
        with ExitStack() as ignored:
            ignored.push(lambda *error: error[0] is ConnectionResetError)
            while more := client.recv(1000):
                heard += more
    assert heard.count(b"HTTP/1.1 200") == 1
    assert heard.endswith(b"GET /a")


def test_who_reads_slowly_keeps_nobody_else_waiting(running: Running) -> None:
    Chunks.closed = 0
    with ExitStack() as readers:
        for _ in range(5):
            reader = readers.enter_context(socket.create_connection((HOST, running.port), 30))
            reader.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        wait_for(lambda: Chunks.closed == 5)
        assert running.ask("/healthz")[1] == b"GET /healthz"


def test_whoever_comes_is_served_whatever_strangers_do(running: Running) -> None:
    """Probes, while others hold connections open: silent, in the middle of a head, not reading."""
    said = (b"", b"GET /x HTTP/1.1\r\nX: y", b"GET /large HTTP/1.1\r\n\r\n")
    with ExitStack() as strangers:
        for number in range(300):
            stranger = socket.create_connection((HOST, running.port), 30)
            strangers.enter_context(stranger).sendall(said[number % 3])
            if number % 20 == 0:
                assert running.ask("/healthz")[1] == b"GET /healthz"
        assert running.ask("/readyz")[1] == b"GET /readyz"
    assert running.results["sent-off"] > 200
    wait_for(lambda: not running.server._open)


def test_who_stays_too_long_is_sent_away() -> None:
    with patch.object(module, "_PLACES", Places(strangers=64, stay_seconds=0.2)):
        started = Running()
        with socket.create_connection((HOST, started.port), 30) as slow:
            slow.sendall(b"GET /x HTTP/1.1\r\nX: y")
            assert slow.recv(1) == b""
        assert started.results["late"] == 1
        started.stop()


def test_an_answer_that_nobody_waits_for_can_be_left(running: Running) -> None:
    Chunks.closed = 0
    with socket.create_connection((HOST, running.port), 30) as client:
        client.sendall(b"GET /waits HTTP/1.1\r\n\r\n")
    wait_for(lambda: Chunks.closed == 1)
