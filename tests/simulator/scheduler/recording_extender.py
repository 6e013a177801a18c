"""An extender over real HTTP that records every call and answers as the test says.

It records a call before it computes the answer. The test sees an answer's effect, such as a bind,
at once, and needs the record by then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

import msgspec


@dataclass(frozen=True, slots=True)
class Call:
    """`nodes`: the candidates; for a bind, the node to bind to."""

    verb: str
    pod: str
    nodes: tuple[str, ...]


Answer = Callable[[dict[str, Any]], Any]


def pass_all(body: dict[str, Any]) -> Any:
    return {"NodeNames": body["NodeNames"]}


def refuse_all(reason: str) -> Answer:
    return lambda body: {"NodeNames": [], "FailedNodes": dict.fromkeys(body["NodeNames"], reason)}


class RecordingExtender:
    """Answers: a JSON value to send with 200, or an int to send as a status.

    Port 0 takes a free one.
    """

    def __init__(self, port: int = 0) -> None:
        self.calls: list[Call] = []
        self.bodies: list[dict[str, Any]] = []
        self.answers: dict[str, Answer] = {
            "filter": pass_all,
            "prioritize": lambda _: [],
            "bind": lambda _: {"Error": "no bind is set up"},
            "preempt": lambda body: {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]},
        }
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                answer = outer._answer(self.path, msgspec.json.decode(self.rfile.read(length)))
                status, body = (answer, b"") if isinstance(answer, int) else (200, answer)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def verbs(self) -> list[str]:
        return [call.verb for call in self.calls]

    def of(self, verb: str) -> list[Call]:
        return [call for call in self.calls if call.verb == verb]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str, body: dict[str, Any]) -> bytes | int:
        verb = path.strip("/")
        if verb == "bind":
            call = Call(verb, body["PodName"], (body["Node"],))
        else:
            nodes = body.get("NodeNames") or body.get("NodeNameToMetaVictims") or ()
            call = Call(verb, body["Pod"]["metadata"]["name"], tuple(nodes))
        self.bodies.append(body)
        self.calls.append(call)
        answer = self.answers[verb](body)
        return answer if isinstance(answer, int) else msgspec.json.encode(answer)
