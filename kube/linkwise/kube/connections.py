"""Persistent connections to the API server, for writes: thousands of short requests.

http.client makes the connections, and httptools reads the answers: one request so takes a quarter
of urllib3's processor time. urllib3 would also follow redirects and retry, which a write must not
do.
"""

import http.client
import math
import select
import socket
import ssl
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools
from kubernetes.client import Configuration

# The API server closes an idle connection after 90 s, and load balancers drop one silently. The
# outcome of a write on such a connection is unknown, so do not use it that long.
IDLE_SECONDS = 60.0
_CHUNK = 1 << 16
_SHORTEST_SECONDS = 0.001  # 0 would mean: do not wait


_Kept = tuple[http.client.HTTPConnection, float]  # idle since when


class UnsentError(Exception):
    """No connection could be made, so no request was sent; the cause says why."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes
    date: str | None = field(default=None, compare=False)  # the server's


class _Reader:
    """Reads one answer, called by httptools as its bytes come. What follows the answer is not read:
    such a connection is not used again."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._status = 0
        self._date: str | None = None
        self._has_head = self._has_length = self._is_complete = False
        self.will_close = False

    def on_message_begin(self) -> None:
        self.will_close = self._is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_complete:
            return
        match name.lower():
            case b"date":
                self._date = value.decode("latin-1")
            case b"content-length" | b"transfer-encoding":
                self._has_length = True

    def on_headers_complete(self) -> None:
        if not self._is_complete:
            self._status = self._parser.get_status_code()
            self._has_head = self._status >= 200  # else another answer follows
            self.will_close = not self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if not self._is_complete:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = self._has_head

    def read(self, sock: socket.socket) -> HttpAnswer:
        """Raises OSError, and HTTPException if this is no answer, or not a whole one."""
        while not self._is_complete:
            data = sock.recv(_CHUNK)
            if not data:
                if self._has_head and not self._has_length:
                    break  # it lasts as long as its connection
                raise http.client.RemoteDisconnected("the server ended the connection")
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                if not self._is_complete:
                    raise http.client.BadStatusLine(str(error)) from error
        return HttpAnswer(self._status, b"".join(self._body), self._date)


class Connections:
    """A pool of connections, safe for threads. Keeps at most *most* idle ones."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        connect_seconds: float,
        read_seconds: float,
        most: int,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._configuration = configuration
        self._connect_seconds, self._read_seconds = connect_seconds, read_seconds
        self._idle_seconds = idle_seconds
        where = urlsplit(configuration.host)
        self._secure = where.scheme == "https"
        self._host, self._prefix = where.hostname or "", where.path.rstrip("/")
        self._authority = where.netloc.rpartition("@")[2]
        # Always set: http.client takes the end of an IPv6 address for a port.
        self._port = where.port or (443 if self._secure else 80)
        # The most recent one comes first, so surplus ones get old and are closed.
        self._idle: deque[_Kept] = deque(maxlen=most)
        weakref.finalize(self, _close, self._idle)

    def request(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        seconds: float = math.inf,
    ) -> HttpAnswer:
        """Send one request and wait up to *seconds*.

        Raises UnsentError if nothing was sent, and HTTPException or OSError if the request may have
        been carried out.
        """
        ends = time.monotonic() + seconds
        head = self._head(method, path, body, headers)
        connection = self._take(seconds)
        left = ends - time.monotonic()
        if left <= 0:
            self._keep(connection)
            raise UnsentError("no time left for the request")
        try:
            self._limit(connection.sock, left)
            connection.sock.sendall(head + body)
            reader = _Reader()
            answer = reader.read(connection.sock)
        except TimeoutError:
            connection.close()
            _close(self._idle)  # they lead to the same server, and each would cost the same wait
            raise
        except BaseException:
            connection.close()
            raise
        if reader.will_close:
            connection.close()
        else:
            self._keep(connection)
        return answer

    def _head(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = (
            f"{method} {self._prefix}{path} HTTP/1.1",
            f"host: {self._authority}",
            "accept-encoding: identity",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        )
        # A line break in a name or a token would be a request of its own.
        if " " in path or any("\r" in line or "\n" in line for line in lines):
            raise UnsentError(f"{method} {path!r}: not one request")
        try:
            return "\r\n".join((*lines, "", "")).encode("ascii")
        except UnicodeEncodeError as error:
            raise UnsentError(f"{method} {path!r}: {error}") from error

    def _limit(self, sock: socket.socket, seconds: float) -> None:
        """Limit the wait for the answer, and the kernel's retransmissions too. Otherwise the kernel
        would go on sending an abandoned request for minutes, even after this process has ended."""
        timeout = max(min(self._read_seconds, seconds), _SHORTEST_SECONDS)
        sock.settimeout(timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(timeout * 1000))

    def _take(self, seconds: float) -> http.client.HTTPConnection:
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                return self._open(seconds)
            if time.monotonic() < since + self._idle_seconds and not _has_ended(connection):
                return connection
            connection.close()

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        if len(self._idle) == self._idle.maxlen:
            connection.close()
        else:
            self._idle.append((connection, time.monotonic()))

    def _open(self, seconds: float) -> http.client.HTTPConnection:
        timeout = max(min(self._connect_seconds, seconds), _SHORTEST_SECONDS)
        try:
            connection = self._new(timeout)
            connection.connect()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnsentError(str(error)) from error
        return connection

    def _new(self, timeout: float) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        return http.client.HTTPSConnection(
            self._host,
            self._port,
            timeout=timeout,
            # new each time, as certificates are replaced on disk
            context=_context(self._configuration),
        )


def _close(idle: deque[_Kept]) -> None:
    with suppress(IndexError):  # another thread may take the last one
        while True:
            idle.pop()[0].close()


def _context(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.assert_hostname is False:
        context.check_hostname = False
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """True if the server has closed the idle connection: then it is readable."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
