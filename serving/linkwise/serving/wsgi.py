"""Serves a WSGI application to strangers: probes, Prometheus and users.

Clients are not authenticated, so this port changes nothing: it accepts GET and HEAD, one call for
each connection. A connection lasts no longer than the explanation of a large cluster takes.
"""

import logging
import socket
from collections.abc import Callable
from io import BytesIO, TextIOBase
from typing import IO, Any, cast
from urllib.parse import unquote
from wsgiref.handlers import SimpleHandler
from wsgiref.headers import Headers
from wsgiref.types import WSGIApplication

from linkwise.serving.handler import Handler
from linkwise.serving.server import Places, Server

log = logging.getLogger(__name__)
# Keys in the environ, of functions: does the caller wait? And: give the connection, once the answer
# is written, to a function that owns it from then on.
CALLER_WAITS, KEEP_OPEN = "linkwise.caller_waits", "linkwise.keep_open"
_PLACES = Places(strangers=64, stay_seconds=60.0)
_HEAD_SECONDS = 5.0


class WsgiServer(Server):
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
    server: WsgiServer
    methods = frozenset({"GET", "HEAD"})
    timeout = _HEAD_SECONDS
    heir: Callable[[socket.socket], object] | None = None

    def serve(self) -> None:
        self.close_connection = True
        with self.server.call():
            length = self.length()
            if length:
                self.refuse(413, "this port accepts no body")
            elif length == 0:
                _Answer(self).run(self.server.app)
                self.wfile.flush()
                if self.heir is not None:
                    self.server.give_away(self.connection)
                    self.heir(self.connection)

    def keep_open(self, heir: Callable[[socket.socket], object]) -> None:
        self.heir = heir


class _Answer(SimpleHandler):
    """Calls the application once, and writes its answer to the connection."""

    http_version = "1.1"
    server_software = "Linkwise"
    headers: Headers

    def __init__(self, call: _Handler) -> None:
        path, _, query = call.path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": call.command,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(path, "iso-8859-1"),
            "QUERY_STRING": query,
            "REMOTE_ADDR": str(call.client_address[0]),
            "SERVER_NAME": "linkwise",
            "SERVER_PORT": str(call.server.port),
            "SERVER_PROTOCOL": "HTTP/1.1",
            CALLER_WAITS: call.caller_waits,
            KEEP_OPEN: call.keep_open,
        }
        environ |= {f"HTTP_{k.upper().replace('-', '_')}": v for k, v in call.headers.items()}
        self.os_environ = {}  # nothing of this process's environment
        super().__init__(BytesIO(), cast("IO[bytes]", call.wfile), _Complaints(), environ)

    def cleanup_headers(self) -> None:
        super().cleanup_headers()
        self.headers["Connection"] = "close"

    def log_exception(self, exc_info: Any) -> None:
        log.error("the application failed", exc_info=exc_info)


class _Complaints(TextIOBase):
    """Logs what the application writes to `wsgi.errors`."""

    def write(self, text: str) -> int:
        log.error("%s", text.rstrip())
        return len(text)
