"""HTTPS for the API server.

The API server presents no client certificate, so its connections count as a stranger's. If no
place is left, the source with the most connections loses one.
"""

from collections.abc import Callable, Mapping

from linkwise.serving.certificates.pairs import Pair
from linkwise.serving.greeting import greet_any_client
from linkwise.serving.handler import Handler
from linkwise.serving.reply import Reply
from linkwise.serving.server import Places
from linkwise.serving.server import Server as BaseServer

_MOST_CONNECTIONS = 500  # a thread each; an API server keeps 25 at rest
_LAST_CALLS_SECONDS = 1.0

Answer = tuple[int, str, bytes]  # status, content type, body
Routes = Mapping[tuple[str, str], Callable[[bytes], Answer]]  # by method and path


class WebhookServer(BaseServer):
    """`run()` serves until an exception; `end()` lets calls in flight finish."""

    def __init__(self, address: str, port: int, routes: Routes, *, max_body: int) -> None:
        self.routes, self.max_body = routes, max_body
        super().__init__(address, port, _Handler, Places(_MOST_CONNECTIONS), secure=True)

    def show(self, pair: Pair) -> None:
        """Present *pair* on new connections."""
        self.use(greet_any_client(pair))

    def end(self) -> None:
        """Close the server. Clients with open connections get a reply that ends the connection."""
        self.close(last_calls_seconds=_LAST_CALLS_SECONDS)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        route = self.routes.get((method, path))
        if route is None:
            return 404, "text/plain", b"no such route\n"
        return route(body)


class _Handler(Handler):
    server: WebhookServer
    methods = frozenset({"GET", "POST"})

    def serve(self) -> None:
        with self.server.call():
            length = self.length()
            if length is None:
                return
            if length > self.server.max_body:
                self.refuse(413, f"more than {self.server.max_body} bytes")
                return
            body = self.body(length)
            if body is None:
                return
            path = self.path.partition("?")[0]
            status, content_type, answer = self.server.answer(self.command, path, body)
            self.say(Reply(status, answer, content_type))
            self.wfile.flush()
        self.server.was_useful(self.connection)
