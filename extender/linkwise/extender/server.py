"""Serves kube-scheduler with little ado, and everybody else by the Flask application.

Two calls a pod come over a handful of connections that are kept open, and every microsecond is
taken from the scheduler beside us: so a thread per connection reads a call, answers it and writes,
with the standard library's HTTP (docs/decisions/0009-http-server.md has the figures). For binds at
the same time kube-scheduler opens connections that it does not keep, so threads are used again.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from queue import SimpleQueue
from threading import BoundedSemaphore, Lock, Thread
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

    *threads* calls are answered at the same time. Raises OSError where it cannot listen.
    """

    request_queue_size = 128

    def __init__(
        self, address: str, port: int, verbs: Verbs, app: WSGIApplication, *, threads: int
    ) -> None:
        self.verbs, self.app = verbs, app
        self.answering = BoundedSemaphore(threads)
        self._most_calls = threads
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
        self.serve_forever(poll_interval=0.1)

    def close(self, timeout_seconds: float = 3.0) -> None:
        if self._runs:
            self.shutdown()
        self.server_close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # it has just ended
                    connection.shutdown(socket.SHUT_RD)  # no further call; a reply still goes out
        deadline = time.monotonic() + timeout_seconds
        for _ in range(self._most_calls):
            self.answering.acquire(timeout=max(0.0, deadline - time.monotonic()))

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
        verbs = self.server.verbs
        length = self._length()
        if length is None:
            return
        if length > verbs.max_body:
            self.close_connection = True  # what it sends is not read
            reply = verbs.too_large(verb)
        else:
            body = self.rfile.read(length)
            with self.server.answering:
                reply = verbs.answer(verb, body)
        self._write(reply)

    def _serve_app(self) -> None:
        length = self._length()
        if length is None:
            return
        if length > self.server.verbs.max_body:
            self.send_error(413)
            return
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
            "wsgi.input": BytesIO(self.rfile.read(length)),
            "wsgi.errors": _Complaints(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        environ |= {f"HTTP_{k.upper().replace('-', '_')}": v for k, v in self.headers.items()}
        with self.server.answering:
            self._run(environ)

    def __getattr__(self, name: str) -> Any:
        """The application answers every other method, if only to refuse it."""
        if name.startswith("do_"):
            return self._serve_app
        raise AttributeError(name)

    def _run(self, environ: dict[str, Any]) -> None:
        said: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], _error: Any = None) -> Any:
            said[:] = [(status, headers)]
            return lambda _: None

        chunks: Iterable[bytes] = self.server.app(environ, start)
        body = b"".join(chunks)
        status, headers = said[0]
        code, _, phrase = status.partition(" ")
        self.send_response_only(int(code), phrase)
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _length(self) -> int | None:
        """Of the body; None where that is not to be known, and has been answered."""
        text = self.headers.get("content-length", "0")
        if "transfer-encoding" in self.headers:
            self.send_error(411, "a Content-Length is wanted")
        elif not (text.isascii() and text.isdigit()):
            self.send_error(400, "Content-Length: expected a whole number")
        else:
            return int(text)
        return None

    def _write(self, reply: Reply) -> None:
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
