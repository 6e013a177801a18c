"""The status port: probes, Prometheus, and users' views of the cache.

Clients are not authenticated, so this port changes nothing: it accepts GET and HEAD, one call for
each connection. A connection lasts no longer than the explanation of a large cluster takes.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote
from wsgiref.types import WSGIApplication

from linkwise.serving.handler import Handler
from linkwise.serving.server import Places, Server

log = logging.getLogger(__name__)
CALLER_WAITS = "linkwise.caller_waits"  # key in the environ of a function: does the caller wait?
_PLACES = Places(strangers=64, stay_seconds=60.0)
_HEAD_SECONDS = 5.0


class StatusServer(Server):
    """*app* answers every request; it must be thread-safe."""

    def __init__(
        self,
        address: str,
        port: int,
        app: WSGIApplication,
        *,
        count: Callable[[str], object] = lambda _result: None,
    ) -> None:
        self.app = app
        super().__init__(address, port, _Handler, _PLACES, secure=False, count=count)


class _Handler(Handler):
    server: StatusServer
    methods = frozenset({"GET", "HEAD"})
    timeout = _HEAD_SECONDS

    def serve(self) -> None:
        self.close_connection = True
        with self.server.call():
            length = self.length()
            if length:
                self.refuse(413, "this port accepts no body")
            elif length == 0:
                self._say(*self._ask(self._environ()))
                self.wfile.flush()

    def _environ(self) -> dict[str, Any]:
        path, _, query = self.path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": self.command,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(path, "iso-8859-1"),
            "QUERY_STRING": query,
            "REMOTE_ADDR": str(self.client_address[0]),
            "SERVER_NAME": "linkwise-extender",
            "SERVER_PORT": str(self.server.port),
            "SERVER_PROTOCOL": self.request_version,
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.errors": _Complaints(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            CALLER_WAITS: self.caller_waits,
        }
        environ |= {f"HTTP_{k.upper().replace('-', '_')}": v for k, v in self.headers.items()}
        return environ

    def _ask(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        """The application's status, headers and body."""
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
                length = value  # of the body that a GET would get
        self.send_header("Content-Length", length)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Complaints:
    """Logs what the application writes to `wsgi.errors`."""

    def write(self, text: str) -> int:
        log.error("%s", text.rstrip())
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        pass
