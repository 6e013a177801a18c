"""A watch that is closed over TLS: nothing that is still on its way passes for an event."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
import trustme
from kubernetes.client import Configuration

from linkwise.kube.client import KubeClient

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'{"type": "ADDED"}'
MANY = 500  # events of the second chunk


class Watched:
    """Answers one request with two chunks. The second one begins in the TLS record of the first, so
    that a client knows its length, and ends in the next record."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._context, self.all_sent, self._ends = context, Event(), Event()
        self._thread = Thread(target=self._serve)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        plain, _ = self._listener.accept()
        with self._context.wrap_socket(plain, server_side=True) as connection:
            connection.recv(1 << 16)
            connection.sendall(HEAD)
            connection.sendall(_chunk(1) + _chunk(MANY)[:50])
            connection.sendall(_chunk(MANY)[50:])
            self.all_sent.set()
            self._ends.wait(10)

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._listener.close()


def _chunk(events: int) -> bytes:
    body = (EVENT + b"\n") * events
    return b"%x\r\n%s\r\n" % (len(body), body)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def watched(authority: trustme.CA) -> Iterator[Watched]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = Watched(context)
    yield server
    server.close()


def test_what_arrives_before_the_end_of_a_closed_stream_is_not_read(
    watched: Watched, authority: trustme.CA, tmp_path: Path
) -> None:
    """To shut down a TLS socket lets Python forget its session: it would give the records to the
    reading thread as they are, encrypted."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    configuration = Configuration()
    configuration.host, configuration.ssl_ca_cert = watched.url, str(tmp_path / "ca")
    stream = KubeClient(configuration).stream("/pods", params={}, idle_seconds=10)
    lines = iter(stream)
    assert next(lines) == EVENT
    assert watched.all_sent.wait(10)
    stream.close()
    assert {*lines} <= {EVENT}
