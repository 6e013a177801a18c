"""Connections that writes go over: kept, given up when the server has closed them, and trusted."""

import select
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import trustme
from kubernetes.client import Configuration

from linkwise.kube.connections import Answer, Connections, UnsentError

HEADERS = {"content-type": "text/plain"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Port", str(self.client_address[1]))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = body == b"and close"  # without saying so

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def connections(url: str, **attributes: object) -> Connections:
    configuration = Configuration()
    configuration.host = url
    for name, value in attributes.items():
        setattr(configuration, name, value)
    return Connections(configuration, connect_seconds=5, read_seconds=5, most=2)


def test_a_connection_is_used_again_until_the_server_has_closed_it() -> None:
    with serving() as server:
        made = connections(f"http://127.0.0.1:{server.server_port}")
        for body in (b"one", b"and close"):
            assert made.request("PATCH", "/x", body, HEADERS) == Answer(200, body)
        (kept,) = made._idle
        assert select.select([kept.sock], [], [], 5)[0]  # the end of it has arrived
        assert made.request("PATCH", "/x", b"three", HEADERS) == Answer(200, b"three")
        assert made._idle[0] is not kept


def test_a_server_that_is_not_there_was_asked_nothing() -> None:
    with serving() as server:
        gone = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(UnsentError):
        connections(gone).request("PATCH", "/x", b"", HEADERS)


def test_only_a_server_of_the_named_authority_is_trusted(tmp_path: Path) -> None:
    ours, strangers = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("127.0.0.1").configure_cert(context)
    for name, authority in (("ours", ours), ("strangers", strangers)):
        authority.cert_pem.write_to_path(tmp_path / name)
    with serving(context) as server:
        url = f"https://127.0.0.1:{server.server_port}"
        trusting = connections(url, ssl_ca_cert=str(tmp_path / "ours"))
        assert trusting.request("PATCH", "/x", b"one", HEADERS) == Answer(200, b"one")
        with pytest.raises(UnsentError, match="CERTIFICATE_VERIFY_FAILED"):
            connections(url, ssl_ca_cert=str(tmp_path / "strangers")).request(
                "PATCH", "/x", b"two", HEADERS
            )
        careless = connections(url, verify_ssl=False)
        assert careless.request("PATCH", "/x", b"three", HEADERS) == Answer(200, b"three")
