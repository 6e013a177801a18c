"""An HTTP server that answers each GET with the next line of a script, and records its clients.

For answers that the stand-in never gives: mangled bytes, a proxy's page, an answer that breaks off.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

_HEADERS = {302: ("location", "/elsewhere"), 429: ("retry-after", "5")}


class ScriptedServer(ThreadingHTTPServer):
    """`script` holds (status, body) pairs. After the last one, the answer is 503."""

    daemon_threads = True

    def __init__(self, *script: tuple[int, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _ScriptedHandler)
        self.script = list(script)
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _ScriptedHandler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.authorizations.append(self.headers["authorization"])
        status, body = self.server.script.pop(0) if self.server.script else (503, b"")
        self.send_response(status)
        if status in _HEADERS:
            self.send_header(*_HEADERS[status])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent: pytest shows what matters."""


@contextmanager
def scripted(*script: tuple[int, bytes]) -> Iterator[ScriptedServer]:
    with ScriptedServer(*script) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
