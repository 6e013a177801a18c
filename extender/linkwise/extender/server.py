"""Serves kube-scheduler with little ado, and everybody else by the Flask application.

Two calls a pod come over a handful of connections that are kept open, and every microsecond is
taken from the scheduler beside us: so a thread per connection reads a call, answers it and writes,
with the standard library's HTTP (docs/decisions/0009-http-server.md has the figures). For binds at
the same time kube-scheduler opens connections that it does not keep, so threads are used again.
"""

import errno
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from queue import SimpleQueue
from threading import BoundedSemaphore, Condition, Lock, Thread
from typing import Any
from urllib.parse import unquote
from wsgiref.types import WSGIApplication

from linkwise.extender.verbs import VERBS, Reply, Verbs

log = logging.getLogger(__name__)

# kube-scheduler keeps two connections, and opens more for binds at the same time.
MOST_CONNECTIONS = 1000
_MOST_IDLE = 32  # threads kept for the next connection
# Go keeps an idle connection for 90 s: whoever closes first must not be us, or a call gets lost.
IDLE_SECONDS = 120.0
# For a client to hear that what it still sends is refused.
_LAST_WORDS_SECONDS = 5.0
_LONGEST_LENGTH = 18  # digits of a Content-Length that anybody could mean
# Names of 5,000 nodes are a tenth of it; what is larger has whole nodes in it, or is no call.
_LARGE_BODY = 1 << 20
_LARGE_AT_ONCE = 2  # read and answered; more would cost memory that strangers choose
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PATHS = {f"/{verb}": verb for verb in VERBS}


class _Workers:
    """Threads for connections: one that is done with its own waits a while for another."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = Lock()
        self._idle = 0

    def run(self, job: Callable[[], None]) -> None:
        with self._lock:
            free = self._idle > 0
            if free:
                self._idle -= 1
        if free:
            self._waiting.put(job)
        else:
            Thread(target=self._work, args=(job,), name="connection", daemon=True).start()

    def _work(self, job: Callable[[], None]) -> None:
        while True:
            job()
            with self._lock:
                if self._idle >= _MOST_IDLE:
                    return
                self._idle += 1
            job = self._waiting.get()


class Server(HTTPServer):
    """`run()` until an exception ends it; `close()` lets calls under way come to their end.

    *threads* pods are bound at the same time, and as many other calls answered: binds wait for the
    API server, and nobody else may wait for them. Raises OSError where it cannot listen.
    """

    request_queue_size = 128

    def __init__(
        self, address: str, port: int, verbs: Verbs, app: WSGIApplication, *, threads: int
    ) -> None:
        self.verbs, self.app = verbs, app
        self.answering, self.binding = BoundedSemaphore(threads), BoundedSemaphore(threads)
        self._large = BoundedSemaphore(_LARGE_AT_ONCE)
        self._calls = 0
        self._ended = Condition()  # around the count of calls
        self._open: set[socket.socket] = set()
        self._lock = Lock()  # around what is open
        self._workers = _Workers()
        self._runs = False
        family, _, _, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        super().__init__(where[:2], _Handler)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def run(self) -> None:
        self._runs = True
        try:
            self.serve_forever(poll_interval=0.1)
        finally:
            self._runs = False

    def close(self, timeout_seconds: float = 3.0) -> None:
        if self._runs:
            self.shutdown()
        self.server_close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # it has just ended
                    connection.shutdown(socket.SHUT_RD)  # no further call; a reply still goes out
        with self._ended:
            self._ended.wait_for(lambda: not self._calls, timeout_seconds)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call, to the last byte of its reply: `close()` waits for it."""
        with self._ended:
            self._calls += 1
        try:
            yield
        finally:
            with self._ended:
                self._calls -= 1
                self._ended.notify_all()

    @contextmanager
    def room_for(self, length: int) -> Iterator[None]:
        """Around a body of *length* bytes, from its first byte to its answer."""
        with self._large if length > _LARGE_BODY else nullcontext():
            yield

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection that cannot be taken is offered again at once: without end, and with all of
        a processor's time."""
        try:
            return self.socket.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                log.warning("no connection can be taken: %s", error)
                time.sleep(0.1)
            raise

    def server_bind(self) -> None:
        """Without the look-up of our own name in the DNS that the base class makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= MOST_CONNECTIONS
            if not full:
                self._open.add(request)
        if full:
            log.warning("more than %d connections: one refused", MOST_CONNECTIONS)
            self.shutdown_request(request)
        else:
            self._workers.run(partial(self._serve, request, client_address))

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that went away in the middle is its own affair."""
        log.debug("connection of %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    wbufsize = -1  # headers and body in one write
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        verb = _PATHS.get(self.path.partition("?")[0])
        if verb is None:
            self._serve_app()
            return
        with self.server.call():
            self._serve_verb(verb)
            self.wfile.flush()

    def __getattr__(self, name: str) -> Any:
        """The application answers every other method, if only to refuse it."""
        if name.startswith("do_"):
            return self._serve_app
        raise AttributeError(name)

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return True

    def _serve_verb(self, verb: str) -> None:
        server = self.server
        length = self._length()
        if length is None:
            return
        if length > server.verbs.max_body:
            self.close_connection = True
            self._write(server.verbs.too_large(verb))
            self._hear_out()
            return
        with server.room_for(length):
            body = self._body(length)
            if body is None:
                return
            with server.binding if verb == "bind" else server.answering:
                reply = server.verbs.answer(verb, body)
        self._write(reply)

    def _serve_app(self) -> None:
        with self.server.call():
            environ = self._environ()
            if environ is None:
                return
            with self.server.answering:
                said = self._ask_app(environ)
            self._say(*said)  # whoever reads it slowly, keeps nobody else waiting
            self.wfile.flush()

    def _environ(self) -> dict[str, Any] | None:
        length = self._length()
        if length is None:
            return None
        if length > min(_LARGE_BODY, self.server.verbs.max_body):  # no route of it reads any
            self._refuse(413, "")
            return None
        body = self._body(length)
        if body is None:
            return None
        path, _, query = self.path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": self.command,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(path, "iso-8859-1"),
            "QUERY_STRING": query,
            "CONTENT_LENGTH": str(length),
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "SERVER_NAME": "linkwise-extender",
            "SERVER_PORT": str(self.server.port),
            "SERVER_PROTOCOL": self.request_version,
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": BytesIO(body),
            "wsgi.errors": _Complaints(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        environ |= {f"HTTP_{k.upper().replace('-', '_')}": v for k, v in self.headers.items()}
        return environ

    def _ask_app(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        """Its status, headers and body."""
        said: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], _error: Any = None) -> Any:
            said[:] = [(status, headers)]
            return lambda _: None

        chunks: Iterable[bytes] = self.server.app(environ, start)
        try:
            body = b"".join(chunks)
        finally:
            getattr(chunks, "close", lambda: None)()
        return *said[0], body

    def _say(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        code, _, phrase = status.partition(" ")
        self.send_response_only(int(code), phrase)
        length = str(len(body))
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
            elif self.command == "HEAD":
                length = value  # of what a GET would be answered
        self.send_header("Content-Length", length)
        if int(code) == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Connection", "close")  # for the reason that `_write` has
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _length(self) -> int | None:
        """Of the body; None where that is not to be known, and has been answered."""
        texts = self.headers.get_all("content-length", ["0"])
        text = texts[0]
        if "transfer-encoding" in self.headers:
            self._refuse(411, "a Content-Length is wanted")
        elif not (text.isascii() and text.isdigit()) or len(text) > _LONGEST_LENGTH:
            self._refuse(400, "Content-Length: expected a whole number")
        elif any(other != text for other in texts):
            self._refuse(400, "Content-Length: expected one, not several")
        else:
            return int(text)
        return None

    def _body(self, length: int) -> bytes | None:
        """None where the client went away in the middle: half a call is none."""
        body = self.rfile.read(length)
        if len(body) == length:
            return body
        self.close_connection = True
        return None

    def _refuse(self, status: int, text: str) -> None:
        """Without reading the body."""
        self.send_error(status, text or None)  # and says that the connection ends
        self._hear_out()

    def _hear_out(self) -> None:
        """To close a connection over what its client still sends would wipe our answer out."""
        self.wfile.flush()
        ends = time.monotonic() + _LAST_WORDS_SECONDS
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while (left := ends - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.rfile.read1(1 << 16):
                    return

    def _write(self, reply: Reply) -> None:
        # A kept connection would bring every further call here, whomever the Service leads to.
        self.close_connection |= reply.parting
        head = (
            f"HTTP/1.1 {reply.status} {self.responses[reply.status][0]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(reply.body)}\r\n"
            f"Server-Timing: {reply.timing}\r\n"
            f"{'Connection: close' if self.close_connection else 'Connection: keep-alive'}\r\n\r\n"
        )
        self.wfile.write(head.encode("latin-1") + reply.body)

    def version_string(self) -> str:
        return "linkwise-extender"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug(format, *args)


class _Complaints:
    """What an application says to `wsgi.errors` goes to the log."""

    def write(self, text: str) -> int:
        log.error("%s", text.rstrip())
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        pass
