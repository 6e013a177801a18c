"""Connections for writes: kept, dropped when the server has closed them, and trusted."""

import math
import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme
from kubernetes.client import Configuration

from linkwise.kube.connections import Connections, HttpAnswer, UnsentError

HEADERS = {"content-type": "text/plain"}


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ConnectionHandler)
        self.asked: list[tuple[str, int]] = []  # path, the client's port
        self.codings: set[str | None] = set()  # that clients accept


class _Server6(_Server):
    address_family = socket.AF_INET6

    def __init__(self) -> None:
        ThreadingHTTPServer.__init__(self, ("::1", 0), _ConnectionHandler)
        self.asked, self.codings = [], set()


class _ConnectionHandler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append((self.path, self.client_address[1]))  # before any answer
        self.server.codings.add(self.headers["accept-encoding"])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = body == b"and close"  # without a header that says so

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def serving(
    context: ssl.SSLContext | None = None, kind: type[_Server] = _Server
) -> Iterator[_Server]:
    with kind() as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def connections(
    url: str, *, read_seconds: float = 5.0, idle_seconds: float = 60.0, **attributes: object
) -> Connections:
    configuration = Configuration()
    configuration.host = url
    for name, value in attributes.items():
        setattr(configuration, name, value)
    return Connections(
        configuration,
        connect_seconds=5,
        read_seconds=read_seconds,
        most=2,
        idle_seconds=idle_seconds,
    )


def patch_twice(made: Connections, server: _Server) -> bool:
    """True if both requests used the same connection."""
    for body in (b"one", b"two"):
        assert made.request("PATCH", "/x", body, HEADERS) == HttpAnswer(200, body)
    (_, first), (_, second) = server.asked[-2:]
    return first == second


def test_a_connection_is_used_again_until_the_server_has_closed_it() -> None:
    with serving() as server:
        made = connections(f"http://127.0.0.1:{server.server_port}")
        for body in (b"one", b"and close"):
            assert made.request("PATCH", "/x", body, HEADERS) == HttpAnswer(200, body)
        ((kept, _),) = made._idle
        (_, first), (_, second) = server.asked
        assert first == second
        assert select.select([kept.sock], [], [], 5)[0]  # the end of it has arrived
        assert made.request("PATCH", "/x", b"three", HEADERS) == HttpAnswer(200, b"three")
        assert made._idle[0][0] is not kept


def test_a_connection_that_lay_idle_for_long_is_not_trusted() -> None:
    with serving() as server:
        url = f"http://127.0.0.1:{server.server_port}"
        assert patch_twice(connections(url), server)
        assert server.codings == {"identity"}  # a proxy might compress the answer
        assert not patch_twice(connections(url, idle_seconds=0.0), server)


def test_one_connection_that_says_nothing_costs_the_others_their_trust() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        made = connections(url, read_seconds=0.1)
        fellow = made._open(math.inf)
        assert fellow.timeout == 5
        made._keep(fellow)
        made._keep(made._open(math.inf))
        with pytest.raises(TimeoutError):
            made.request("PATCH", "/x", b"one", HEADERS)
        assert not made._idle
        assert fellow.sock is None


def test_no_more_idle_connections_are_kept_than_asked_for() -> None:
    with serving() as server:
        made = connections(f"http://127.0.0.1:{server.server_port}")
        opened = [made._open(math.inf) for _ in range(3)]
        for each in opened:
            made._keep(each)
        assert len(made._idle) == 2
        assert [each.sock is None for each in opened] == [False, False, True]


def test_kept_connections_end_with_their_owner() -> None:
    with serving() as server:
        made = connections(f"http://127.0.0.1:{server.server_port}")
        kept = made._open(math.inf)
        made._keep(kept)
        del made
        assert kept.sock is None


def test_the_prefix_of_a_proxy_comes_before_the_path() -> None:
    with serving() as server:
        made = connections(f"http://127.0.0.1:{server.server_port}/k8s/clusters/c-1/")
        made.request("PATCH", "/x", b"", HEADERS)
    assert server.asked[0][0] == "/k8s/clusters/c-1/x"


def test_addresses_of_ipv6_are_reached() -> None:
    with serving(kind=_Server6) as server:
        made = connections(f"http://[::1]:{server.server_port}")
        assert made.request("PATCH", "/x", b"one", HEADERS) == HttpAnswer(200, b"one")


@pytest.mark.parametrize(("scheme", "port"), [("https", 443), ("http", 80)])
@pytest.mark.parametrize("host", ["[fd00::1]", "[fd00::5000]", "api.example.com"])
def test_the_port_is_the_scheme_s_own_where_none_is_named(
    scheme: str, port: int, host: str
) -> None:
    opened = connections(f"{scheme}://{host}")._new(5.0)
    assert (opened.host, opened.port) == (host.strip("[]"), port)


def test_a_host_that_cannot_be_one_was_asked_nothing() -> None:
    with pytest.raises(UnsentError):
        connections(f"http://{'x' * 64}.example").request("PATCH", "/x", b"", HEADERS)


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
        assert trusting.request("PATCH", "/x", b"one", HEADERS) == HttpAnswer(200, b"one")
        with pytest.raises(UnsentError, match="CERTIFICATE_VERIFY_FAILED"):
            connections(url, ssl_ca_cert=str(tmp_path / "strangers")).request(
                "PATCH", "/x", b"two", HEADERS
            )
        careless = connections(url, verify_ssl=False)
        assert careless.request("PATCH", "/x", b"three", HEADERS) == HttpAnswer(200, b"three")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def test_connections_of_tls_are_kept_too(authority: trustme.CA, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca")
    with serving(context) as server:
        url = f"https://127.0.0.1:{server.server_port}"
        assert patch_twice(connections(url, ssl_ca_cert=str(tmp_path / "ca")), server)


def test_the_name_of_a_server_counts_unless_told_otherwise(
    authority: trustme.CA, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.example").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca")
    with serving(context) as server:
        url, file = f"https://127.0.0.1:{server.server_port}", str(tmp_path / "ca")
        with pytest.raises(UnsentError, match=r"127\.0\.0\.1"):
            connections(url, ssl_ca_cert=file).request("PATCH", "/x", b"one", HEADERS)
        lenient = connections(url, ssl_ca_cert=file, assert_hostname=False)
        assert lenient.request("PATCH", "/x", b"two", HEADERS) == HttpAnswer(200, b"two")


def test_a_client_s_certificate_is_shown_and_read_again_for_each_connection(
    authority: trustme.CA, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.cert_pem.write_to_path(tmp_path / "ca")
    file = tmp_path / "client.pem"
    trustme.CA().issue_cert("linkwise").private_key_and_cert_chain_pem.write_to_path(file)
    with serving(context) as server:
        made = connections(
            f"https://127.0.0.1:{server.server_port}",
            ssl_ca_cert=str(tmp_path / "ca"),
            cert_file=str(file),
        )
        with pytest.raises((ssl.SSLError, ConnectionError)):  # which error it is depends on a race
            made.request("PATCH", "/x", b"one", HEADERS)
        authority.issue_cert("linkwise").private_key_and_cert_chain_pem.write_to_path(file)
        assert made.request("PATCH", "/x", b"two", HEADERS) == HttpAnswer(200, b"two")


class _NotingSocket:
    """A socket that notes its limits whenever something is sent."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.limits: list[tuple[float | None, int]] = []

    def sendall(self, data: bytes) -> None:
        kernel = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        self.limits.append((self._sock.gettimeout(), kernel))
        self._sock.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def test_neither_we_nor_the_kernel_ask_later_than_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = connections(f"http://127.0.0.1:{silent.getsockname()[1]}")
        used = made._open(math.inf)
        made._keep(used)
        noting = _NotingSocket(used.sock)
        used.sock, limits = noting, noting.limits
        with pytest.raises(TimeoutError):
            made.request("PATCH", "/x", b"one", HEADERS, seconds=0.2)
        ((ours, kernels),) = limits
        assert ours is not None
        assert 0.1 < ours <= 0.2
        assert 100 < kernels <= 200
        with pytest.raises(UnsentError, match="no time left"):
            made.request("PATCH", "/x", b"two", HEADERS, seconds=0.0)
        assert len(limits) == 1


@contextmanager
def answering(*pieces: bytes) -> Iterator[Connections]:
    """A server that sends *pieces* one by one in answer to a request, and ends the connection."""

    def serve() -> None:
        client, _ = server.accept()
        with client:
            client.recv(1 << 16)
            for piece in pieces:
                client.sendall(piece)
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=serve)
        thread.start()
        try:
            yield connections(f"http://127.0.0.1:{server.getsockname()[1]}")
        finally:
            thread.join()


HEAD = b"HTTP/1.1 201 Created\r\nDate: Fri, 27 Nov 2026 10:00:00 GMT\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((HEAD + b"Content-Length: 4\r\n\r\nfour",), id="at once"),
        pytest.param((HEAD[:9], HEAD[9:], b"content-length: 4\r\n", b"\r\nfo", b"ur"), id="split"),
        pytest.param(
            (HEAD, b"Transfer-Encoding: chunked\r\n\r\n3\r\nfou\r\n", b"1\r\nr\r\n0\r\n\r\n"),
            id="chunked",
        ),
        pytest.param((HEAD, b"\r\n", b"fo", b"ur"), id="until the end of the connection"),
        pytest.param(
            (
                b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
                HEAD + b"Content-Length: 4\r\n\r\nfour",
            ),
            id="after hints",
        ),
    ],
)
def test_an_answer_is_read_in_each_form(pieces: tuple[bytes, ...]) -> None:
    with answering(*pieces) as made:
        answer = made.request("PATCH", "/x", b"one", HEADERS)
    assert (answer.status, answer.body) == (201, b"four")
    assert answer.date == "Fri, 27 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((), id="nothing"),
        pytest.param((HEAD,), id="half a head"),
        pytest.param((HEAD + b"Content-Length: 4\r\n\r\nfou",), id="too little"),
        pytest.param(
            (HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n",), id="no last chunk"
        ),
        pytest.param((b"SSH-2.0-OpenSSH_9.2\r\n",), id="another protocol"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(pieces: tuple[bytes, ...]) -> None:
    with answering(*pieces) as made, pytest.raises((HTTPException, OSError)):
        made.request("PATCH", "/x", b"one", HEADERS)


def test_no_text_adds_a_request_to_another() -> None:
    with serving() as server:
        made = connections(f"http://127.0.0.1:{server.server_port}")
        for path, headers in (
            ("/x HTTP/1.1\r\n\r\nDELETE /y", HEADERS),
            ("/x", {"authorization": "Bearer a\r\nhost: other"}),
            ("/x", {"authorization": "Bearer a\rhost: other"}),
            ("/ä", HEADERS),
        ):
            with pytest.raises(UnsentError, match=r"not one request|ascii"):
                made.request("PATCH", path, b"", headers)
        assert not server.asked
        assert patch_twice(made, server)


@pytest.mark.parametrize(
    "surplus",
    [
        pytest.param(b"HTTP/1.1 500 Oh\r\nDate: no\r\nContent-Length: 3\r\n\r\nbad", id="answer"),
        pytest.param(b"garbage", id="garbage"),
    ],
)
def test_what_follows_an_answer_is_not_read_and_ends_the_connection(surplus: bytes) -> None:
    with answering(HEAD + b"Content-Length: 4\r\n\r\nfour" + surplus) as made:
        answer = made.request("PATCH", "/x", b"one", HEADERS)
    assert (answer.status, answer.body) == (201, b"four")
    assert answer.date == "Fri, 27 Nov 2026 10:00:00 GMT"
    assert not made._idle
