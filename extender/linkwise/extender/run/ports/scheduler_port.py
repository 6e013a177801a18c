"""The call port: kube-scheduler's four calls, from known callers, and nothing else.

kube-scheduler schedules one pod at a time and waits for each call, so every microsecond counts
(docs/decisions/kubernetes.md#9-http-server has the figures).
"""

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import nullcontext
from threading import BoundedSemaphore
from typing import Any

from linkwise.extender.run.ports.dispatch import VERBS, Verbs
from linkwise.serving.greeting import Caller
from linkwise.serving.handler import Handler
from linkwise.serving.http2 import ALPN, Http2
from linkwise.serving.reply import Reply, Waits, plain
from linkwise.serving.server import Places, Server

# kube-scheduler needs one connection with HTTP/2. With HTTP/1.1 it has two idle ones, and opens
# more for concurrent binds. Handshakes, whether of kube-scheduler or of strangers, share the
# strangers' places.
MOST_CONNECTIONS = Places(strangers=1000, known=1000)
# The names of 5,000 nodes take a tenth of it; a larger body has whole nodes in it, or is no call.
_LARGE_BODY = 1 << 20
_LARGE_AT_ONCE = 2  # calls; a parsed body takes ten times as much memory
_PATHS = {f"/{verb}": verb for verb in VERBS}


class VerbServer(Server):
    """Answers up to *threads* calls at the same time, and any number of binds: these wait for the
    API server and for other members of a gang, and no other call may wait for them. A call that is
    older than *call_seconds* is not carried out, because its caller has given up.

    Without *secure*, any client that reaches the port is served.
    """

    def __init__(
        self,
        address: str,
        port: int,
        verbs: Verbs,
        *,
        threads: int,
        call_seconds: float,
        secure: bool,
        count: Callable[[str], object] = lambda _result: None,
        met: Callable[[Caller], object] = lambda _caller: None,
    ) -> None:
        self.verbs, self.call_seconds = verbs, call_seconds
        self.answering = BoundedSemaphore(threads)
        self._large = BoundedSemaphore(_LARGE_AT_ONCE)
        places = MOST_CONNECTIONS
        super().__init__(address, port, _serve, places, secure=secure, count=count, met=met)

    # The methods of `serving.reply.Calls`.

    def refusal(self, method: str, path: str, length: int) -> Reply | None:
        if method != "POST":
            return plain(405, f"{method}: this port accepts only POST")
        if path not in _PATHS:
            return plain(404, f"{path}: no such call; views are on the status port")
        return self.verbs.too_large(_PATHS[path]) if length > self.verbs.max_body else None

    def waits_long(self, path: str) -> bool:
        """Whether it is a bind, which waits for the API server. kube-scheduler sends all other
        calls one after the other."""
        return _PATHS[path] == "bind"

    def reply(self, path: str, body: bytes, waits: Waits) -> Reply | None:
        verb = _PATHS[path]
        large = self._large if len(body) > _LARGE_BODY else nullcontext()
        with large, nullcontext() if verb == "bind" else self.answering:
            return self.verbs.answer(verb, body, waits)


def _serve(connection: socket.socket, address: Any, server: VerbServer) -> None:
    """Serve the protocol that the TLS handshake negotiated."""
    if isinstance(connection, ssl.SSLSocket) and connection.selected_alpn_protocol() == ALPN:
        most = 2 * server.verbs.max_body
        seconds = server.call_seconds
        Http2(connection, server, server, call_seconds=seconds, most_bytes=most).serve()
    else:
        _Handler(connection, address, server)  # type: ignore[arg-type]


class _Handler(Handler):
    server: VerbServer
    methods = frozenset({"POST"})

    def serve(self) -> None:
        with self.server.call():
            self._answer()
            self.wfile.flush()

    def _answer(self) -> None:
        length = self.length()
        if length is None:
            return
        refusal = self.server.refusal(self.command, self.path, length)
        if refusal is not None:
            self.turn_away(refusal)
            return
        body = self.body(length)
        if body is None:
            return
        reply = self.server.reply(self.path, body, self._waits)
        if reply is None:  # the caller has gone
            self.close_connection = True
        else:
            self.say(reply)

    def _waits(self) -> bool:
        """Whether the caller still waits for the answer."""
        age = time.monotonic() - self.arrived
        return age < self.server.call_seconds and self.caller_waits()
