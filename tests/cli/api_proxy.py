"""A minimal API server for the kubectl plugin: it proxies GETs to the extender's Service, for
clients with the right token, and notes what it should change."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from werkzeug.serving import make_server

TOKEN = "of-a-data-scientist"
SERVICE = "/api/v1/namespaces/kube-system/services/linkwise-extender:http"


class Proxy:
    """`refusal` replaces the extender's answer: status, reason, message. `objects` are those of the
    API server itself, by path; `patches` are the changes that it was asked for."""

    def __init__(self, extender: WSGIApplication) -> None:
        self._extender = extender
        self.refusal: tuple[str, str, str] | None = None
        self.objects: dict[str, object] = {}
        self.patches: list[tuple[str, object]] = []
        self.url = ""
        self.service = SERVICE

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        refusal = self.refusal
        if environ.get("HTTP_AUTHORIZATION") != f"Bearer {TOKEN}":
            refusal = ("401 Unauthorized", "Unauthorized", "Unauthorized")
        prefix, path = f"{self.service}/proxy", environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "PATCH" and refusal is None:
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            self.patches.append((path, json.loads(body)))
            start("200 OK", [("Content-Type", "application/json")])
            return [b"{}"]
        if path in self.objects:
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self.objects[path]).encode()]
        if refusal is None and not path.startswith(prefix):
            refusal = ("404 Not Found", "NotFound", 'services "elsewhere" not found')
        if refusal is not None:
            status, reason, message = refusal
            start(status, [("Content-Type", "application/json")])
            return [json.dumps({"kind": "Status", "reason": reason, "message": message}).encode()]
        return self._extender({**environ, "PATH_INFO": path.removeprefix(prefix)}, start)


@contextmanager
def served(extender: WSGIApplication) -> Iterator[Proxy]:
    proxy = Proxy(extender)
    server = make_server("127.0.0.1", 0, proxy, threaded=True)
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_kubeconfig(path: Path, url: str, token: str = TOKEN) -> Path:
    """Two contexts: `here`, whose namespace is `ml`, and `away`, where no server answers."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [
            {"name": "c", "cluster": {"server": url}},
            {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:9"}},
        ],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ml"}},
            {"name": "away", "context": {"cluster": "nowhere", "user": "u"}},
        ],
    }
    path.write_text(json.dumps(config))  # which is valid YAML too
    return path
