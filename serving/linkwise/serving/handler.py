"""Reads HTTP/1.1 calls from a connection, and writes the replies: the part common to all ports."""

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import Any

from linkwise.serving.reply import Reply, plain
from linkwise.serving.server import Server
from linkwise.serving.system import is_established

log = logging.getLogger(__name__)

# Go closes an idle connection after 90 s. The server must not close it first, or a call gets lost.
IDLE_SECONDS = 120.0
# The time for a client to read the refusal while it still sends.
LAST_WORDS_SECONDS = 5.0
_LONGEST_LENGTH = 18  # digits of a Content-Length
_MOST_OF_A_HEAD = 32 << 10  # bytes; kube-scheduler's head has 200, a proxied user's has more
_SHORTEST_SECONDS = 0.001  # 0 would mean: do not wait at all


class _Head:
    """The lines of a request's head, limited to _MOST_OF_A_HEAD bytes."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._left = file, _MOST_OF_A_HEAD

    def readline(self, size: int) -> bytes:
        """Raises LineTooLong, which the base class turns into a reply."""
        if self._left <= 0:
            raise LineTooLong("head")
        line: bytes = self._file.readline(min(size, self._left))
        self._left -= len(line)
        return line

    def read1(self, size: int) -> bytes:
        """Read what a refused caller still sends."""
        return self._file.read1(size)


class Handler(BaseHTTPRequestHandler):
    """A subclass sets the `methods` that it accepts, and serves them."""

    server: Server  # type: ignore[assignment]
    methods: frozenset[str] = frozenset()
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    wbufsize = -1  # headers and body in one write
    body_seconds = 5.0  # from the first line to the last byte of the body
    arrived = 0.0  # when the call's first line was read, by the monotonic clock

    def parse_request(self) -> bool:
        self.arrived = time.monotonic()
        whole = self.rfile
        self.rfile = _Head(whole)  # type: ignore[assignment]
        try:
            return super().parse_request()
        finally:
            self.rfile = whole

    def caller_waits(self) -> bool:
        return is_established(self.connection)

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return True

    def length(self) -> int | None:
        """The body's length; None if it cannot be known: then the call has been refused."""
        texts = self.headers.get_all("content-length", ["0"])
        text = texts[0]
        if "transfer-encoding" in self.headers:
            self.refuse(411, "Content-Length: required")
        elif not (text.isascii() and text.isdigit()) or len(text) > _LONGEST_LENGTH:
            self.refuse(400, "Content-Length: expected a whole number")
        elif any(other != text for other in texts):
            self.refuse(400, "Content-Length: expected one, not several")
        else:
            return int(text)
        return None

    def body(self, length: int) -> bytes | None:
        """The body; None if it did not arrive completely and in time."""
        chunks, left = [], length
        ends = self.arrived + self.body_seconds
        try:
            while left:
                self.connection.settimeout(max(ends - time.monotonic(), _SHORTEST_SECONDS))
                chunk = self.rfile.read1(left)
                if not chunk:
                    break
                chunks.append(chunk)
                left -= len(chunk)
        except TimeoutError:
            log.debug("body of %s: too slow", self.client_address)
        finally:
            self.connection.settimeout(self.timeout)
        if not left:
            return b"".join(chunks)
        self.close_connection = True
        return None

    def refuse(self, status: int, text: str) -> None:
        """Refuse the call without reading its body."""
        self.turn_away(plain(status, text))

    def turn_away(self, reply: Reply) -> None:
        """Send *reply* as the last one of the connection, without reading the body."""
        self.close_connection = True
        self.say(reply)
        self.hear_out()

    def hear_out(self) -> None:
        """Read what the client still sends: an earlier close would discard the reply."""
        self.wfile.flush()
        ends = time.monotonic() + LAST_WORDS_SECONDS
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_WR)
            while (left := ends - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.rfile.read1(1 << 16):
                    return

    def say(self, reply: Reply) -> None:
        # A reused connection would bring further calls here even if the Service leads elsewhere.
        self.close_connection |= reply.parting or self.server.closing
        head = (
            f"HTTP/1.1 {reply.status} {self.responses[reply.status][0]}",
            f"Content-Type: {reply.content_type}",
            f"Content-Length: {len(reply.body)}",
            *([f"Server-Timing: {reply.timing}"] if reply.timing else []),
            f"Connection: {'close' if self.close_connection else 'keep-alive'}",
            "\r\n",
        )
        self.wfile.write("\r\n".join(head).encode("latin-1"))
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def send_error(
        self,
        code: int,
        message: str | None = None,
        explain: str | None = None,  # noqa: ARG002
    ) -> None:
        """The base class's own refusals, before `serve` is called."""
        self.command = getattr(self, "command", None) or ""
        self.refuse(code, message or self.responses[code][0])

    def serve(self) -> None:
        """Read the call's body, answer it and write. `self.command` is its method."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Callable[[], Any]:
        """The base class looks for `do_…` of the call's method."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        if name.removeprefix("do_") in self.methods:
            return self.serve
        return lambda: self.refuse(405, f"{self.command}: this port does not accept the method")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug(format, *args)
