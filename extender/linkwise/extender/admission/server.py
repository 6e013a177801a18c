"""HTTPS for the API server, with the standard library: a thread for each connection it keeps.

A new certificate counts from the next connection on; those that are open go on undisturbed, so a
rotation is noticed by nobody.
"""

import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition, Thread
from typing import Any

from linkwise.extender.admission.pairs import Pair

log = logging.getLogger(__name__)
# Go keeps an idle connection for 90 s: whoever closes first must not be us, or a call gets lost.
IDLE_SECONDS = 120.0
_HANDSHAKE_SECONDS = 5.0
_MOST_CONNECTIONS = 500  # a thread each; an API server keeps 25 at rest
_LAST_CALLS_SECONDS = 1.0
_LAST_WORDS_SECONDS = 5.0
_LONGEST_LENGTH = 18  # digits of a Content-Length that anybody could mean

Answer = tuple[int, str, bytes]  # status, content type, body
Routes = Mapping[tuple[str, str], Callable[[bytes], Answer]]  # by method and path


def context_of(pair: Pair) -> ssl.SSLContext:
    """Of the files that OpenSSL wants, none is left behind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    with TemporaryDirectory() as directory:  # for this user alone
        certificate, key = Path(directory) / "certificate", Path(directory) / "key"
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)
    return context


class Server(HTTPServer):
    """`run()` until an exception ends it; `close()` lets calls under way come to their end.

    Before the first `use()` every connection is refused. Raises OSError where it cannot listen.
    """

    request_queue_size = 128

    def __init__(self, address: str, port: int, routes: Routes, *, max_body: int) -> None:
        self.routes, self.max_body = routes, max_body
        self.closing = False
        self._context: ssl.SSLContext | None = None
        self._open: set[socket.socket] = set()
        self._changed = Condition()  # around what is open and how many calls are answered
        self._calls = 0
        self._runs = False
        family, _, _, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        super().__init__(where[:2], _Handler)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def use(self, pair: Pair) -> None:
        """For every connection from now on."""
        self._context = context_of(pair)

    def run(self) -> None:
        self._runs = True
        try:
            self.serve_forever(poll_interval=0.1)
        finally:
            self._runs = False

    def close(self, timeout_seconds: float = 3.0) -> None:
        self.closing = True
        if self._runs:
            self.shutdown()
        self.server_close()
        with self._changed:
            # Whoever asks meanwhile is told to ask elsewhere from now on.
            self._changed.wait_for(lambda: not self._open, _LAST_CALLS_SECONDS)
            for connection in self._open:
                self.hang_up(connection)
            self._changed.wait_for(lambda: not self._calls, timeout_seconds)

    def hang_up(self, connection: socket.socket) -> None:
        """Hear no further call; a reply still goes out."""
        with suppress(OSError):  # it has just ended
            # Not the method of the TLS socket, which would go on in plain text.
            socket.socket.shutdown(connection, socket.SHUT_RD)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        route = self.routes.get((method, path))
        if route is None:
            return 404, "text/plain", b"no such route\n"
        return route(body)

    def begin_call(self) -> None:
        with self._changed:
            self._calls += 1

    def end_call(self) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def server_bind(self) -> None:
        """Without the look-up of our own name in the DNS that the base class makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return self.socket.accept()
        except OSError as error:
            # It is offered again at once: without end, and with all of a processor's time.
            log.warning("no connection can be taken: %s", error)
            time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            taken = self._context is not None and len(self._open) < _MOST_CONNECTIONS
            if taken:
                self._open.add(request)
        if not taken:
            self.shutdown_request(request)
            return
        arguments = (request, client_address, self._context)
        Thread(target=self._serve, args=arguments, name="connection", daemon=True).start()

    def _serve(self, request: socket.socket, client_address: Any, context: ssl.SSLContext) -> None:
        connection = request
        try:
            request.settimeout(_HANDSHAKE_SECONDS)
            connection = context.wrap_socket(request, server_side=True)
            with self._changed:
                self._open.discard(request)
                self._open.add(connection)
            self.finish_request(connection, client_address)
        except Exception:  # a client that went away, or that does not trust us
            log.debug("connection of %s broke", client_address, exc_info=True)
        finally:
            with self._changed:
                self._open -= {request, connection}
                self._changed.notify_all()
            self.shutdown_request(connection)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    wbufsize = -1  # headers and body in one write
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        self.server.begin_call()
        try:
            length = self._length()
            if length is None:
                return
            body = self.rfile.read(length)
            if len(body) < length:  # half a call is none
                self.close_connection = True
                return
            self._write(*self.server.answer(self.command, self.path.partition("?")[0], body))
            self.wfile.flush()
        finally:
            self.server.end_call()

    def _length(self) -> int | None:
        """Of the body; None where that is not to be known or too long, and has been answered."""
        said = self.headers.get_all("content-length", ["0"])
        text = said[0]
        if "transfer-encoding" in self.headers:
            self._refuse(411, b"a Content-Length is wanted\n")
        elif not (text.isascii() and text.isdigit()) or len(text) > _LONGEST_LENGTH or said[1:]:
            self._refuse(400, b"Content-Length: expected one whole number\n")
        elif int(text) > self.server.max_body:
            self._refuse(413, f"more than {self.server.max_body} bytes\n".encode())
        else:
            return int(text)
        return None

    def _refuse(self, status: int, text: bytes) -> None:
        """And hear out whatever is still sent: to close a connection over it would wipe our answer
        out."""
        self.close_connection = True
        self._write(status, "text/plain", text)
        self.wfile.flush()
        ends = time.monotonic() + _LAST_WORDS_SECONDS
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_WR)
            while (left := ends - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.rfile.read1(1 << 16):
                    return

    def _write(self, status: int, content_type: str, body: bytes) -> None:
        if self.server.closing:
            self.close_connection = True
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close" if self.close_connection else "keep-alive")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug(format, *args)
