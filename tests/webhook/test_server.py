"""HTTPS: which calls get an answer, and that a new certificate and a shutdown lose no call."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event, Thread

import pytest

from linkwise.serving.certificates.pairs import Lifetime, Pair, make_pair
from linkwise.serving.server import Visit
from linkwise.topology import names
from linkwise.webhook.answers import Answers
from linkwise.webhook.patch import Rules
from linkwise.webhook.server import Answer, WebhookServer
from tests.pods.podgrouper.pods import pod
from tests.webhook.reviews import review

HOST = "127.0.0.1"
MOST = 64 << 10
BODY = json.dumps(
    review(pod("train-0", annotations={names.GANG: "train", names.GANG_SIZE: "4"}))
).encode()


def new_pair() -> Pair:
    return make_pair({HOST}, datetime.now(UTC), Lifetime())


class Client:
    """Keeps its connection, as the API server does."""

    def __init__(self, port: int, *trusted: Pair) -> None:
        context = ssl.create_default_context(
            cadata="".join(pair.certificate.decode() for pair in trusted)
        )
        self.connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=30)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        self.connection.request(method, path, body)
        answer = self.connection.getresponse()
        return answer.status, answer.read()


class Running:
    def __init__(self) -> None:
        self.held, self.release = Event(), Event()
        routes = {**Answers(Rules()).routes(), ("POST", "/slow"): self._slow}
        self.server = WebhookServer(HOST, 0, routes, max_body=MOST)
        self.port = self.server.port
        self.pair = new_pair()
        self._clients: list[Client] = []
        self._thread = Thread(target=self.server.run)
        self._thread.start()

    def _slow(self, body: bytes) -> Answer:
        self.held.set()
        assert self.release.wait(30)
        return 200, "text/plain", body

    def client(self, *trusted: Pair) -> Client:
        made = Client(self.port, *(trusted or (self.pair,)))
        self._clients.append(made)
        return made

    def stop(self) -> None:
        self.release.set()
        for client in self._clients:
            client.connection.close()
        self.server.end()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def running() -> Iterator[Running]:
    started = Running()
    started.server.show(started.pair)
    yield started
    started.stop()


def test_a_review_is_answered_over_a_connection_that_is_kept(running: Running) -> None:
    client = running.client()
    for _ in range(3):
        status, body = client.ask("POST", "/mutate", BODY)
        assert status == 200
        assert "patch" in json.loads(body)["response"]
    assert client.ask("GET", "/readyz") == (200, b"ok\n")
    assert client.ask("GET", "/nothing")[0] == 404
    assert client.ask("POST", "/readyz")[0] == 404
    first = client.connection.sock
    client.ask("GET", "/healthz")
    assert client.connection.sock is first


def test_before_there_is_a_certificate_nobody_is_answered() -> None:
    early = Running()
    try:
        with pytest.raises((ConnectionError, ssl.SSLEOFError)):
            early.client().ask("GET", "/readyz")
    finally:
        early.stop()


def test_a_body_that_is_too_large_is_refused_though_it_is_sent(running: Running) -> None:
    for length in (MOST + 1, 8 << 20):
        told = running.client().ask("POST", "/validate", b" " * length)
        assert told == (413, b"linkwise: more than 65536 bytes\n")
    assert running.client().ask("POST", "/validate", b" " * MOST)[0] == 400


def test_a_client_that_goes_away_in_the_middle_hurts_nobody(running: Running) -> None:
    context = ssl.create_default_context(cadata=running.pair.certificate.decode())
    with socket.create_connection((HOST, running.port), timeout=30) as raw:
        client = context.wrap_socket(raw, server_hostname=HOST)
        client.sendall(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        client.close()
    assert running.client().ask("GET", "/readyz")[0] == 200


def test_a_new_certificate_counts_for_new_connections_and_disturbs_no_old_one(
    running: Running,
) -> None:
    old = running.client()
    old.ask("GET", "/readyz")
    new = new_pair()
    running.server.show(new)
    assert old.ask("POST", "/mutate", BODY)[0] == 200
    assert running.client(new).ask("POST", "/mutate", BODY)[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        running.client().ask("GET", "/readyz")


def test_a_call_under_way_is_answered_at_the_end_and_told_to_go_elsewhere(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client()
    answers: list[tuple[int, bytes]] = []
    asking = Thread(target=lambda: answers.append(client.ask("POST", "/slow", b"last words")))
    asking.start()
    assert running.held.wait(30)
    hang_up, hung_up = Visit.hang_up, Event()

    def hang_up_and_tell(visit: Visit, how: int) -> None:
        hang_up(visit, how)
        hung_up.set()

    monkeypatch.setattr(Visit, "hang_up", hang_up_and_tell)
    closing = Thread(target=running.server.end)
    closing.start()
    assert hung_up.wait(30)
    running.release.set()
    asking.join(30)
    closing.join(30)
    assert not closing.is_alive()
    assert answers == [(200, b"last words")]
    assert client.connection.sock is None  # the answer said that the connection ends
    with pytest.raises(ConnectionError):
        running.client().ask("GET", "/readyz")
