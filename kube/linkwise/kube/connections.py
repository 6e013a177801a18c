"""Connections to the API server that are kept open, for writes: thousands of short requests.

The standard library's client takes less than half of urllib3's processor time for one, and what
urllib3 does beside, following and repeating, no write may do.
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
from dataclasses import dataclass
from urllib.parse import urlsplit

from kubernetes.client import Configuration

# The API server closes after 90 s, and load balancers forget in silence. A write that meets with
# that may have been done, so nobody knows: better not to meet it.
IDLE_SECONDS = 60.0
_SHORTEST_SECONDS = 0.001  # 0 would mean: do not wait at all


_Kept = tuple[http.client.HTTPConnection, float]  # idle since when


class UnsentError(Exception):
    """No connection could be made, so nothing was asked; the cause says why."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes


class Connections:
    """Safe for threads; at most *most* idle connections are kept."""

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
        self._host, self._prefix = where.hostname or "", where.path
        # Named always: the library takes the end of an IPv6 address for one.
        self._port = where.port or (443 if self._secure else 80)
        # The one used last comes first, so that those too many grow old and are closed.
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
        """Ask once, and wait no longer than *seconds*. Raises UnsentError; HTTPException or OSError
        where it may have been done."""
        ends = time.monotonic() + seconds
        connection = self._take(seconds)
        left = ends - time.monotonic()
        if left <= 0:
            self._keep(connection)
            raise UnsentError("there was no time left to ask")
        try:
            self._limit(connection.sock, left)
            connection.request(method, self._prefix.rstrip("/") + path, body, dict(headers))
            response = connection.getresponse()
            answer = HttpAnswer(response.status, response.read())
        except TimeoutError:
            connection.close()
            _close(self._idle)  # they lead to the same place, and each would cost such a wait
            raise
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        return answer

    def _limit(self, sock: socket.socket, seconds: float) -> None:
        """For the answer; and for the kernel, which else would go on sending for minutes what we
        have given up, even when we are stopped or dead."""
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
            context=_context(self._configuration),  # anew, as certificates are replaced on disk
        )


def _close(idle: deque[_Kept]) -> None:
    with suppress(IndexError):  # another thread may take the last
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
    """Whether the server has closed it while it lay idle: then there is something to read."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
