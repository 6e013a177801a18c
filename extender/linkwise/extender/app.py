"""The HTTP routes, for people and for kube-scheduler: each reads, asks the shell and writes.

kube-scheduler's calls are answered here and, with less ado, in `server`: by the same `verbs`.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from linkwise.extender import explain_text, wire
from linkwise.extender.explain import Explainer
from linkwise.extender.metrics import CONTENT_TYPE, Metrics
from linkwise.extender.shell import NotReadyError, Shell
from linkwise.extender.survey import view_nodes, view_use
from linkwise.extender.verbs import DEFECT, VERBS, Verbs

log = logging.getLogger(__name__)
T = TypeVar("T")


def create_app(shell: Shell, metrics: Metrics, *, max_body_mib: int = 64) -> Flask:
    app = Flask("linkwise.extender", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body_mib << 20
    verbs = Verbs(shell, metrics, max_body_mib=max_body_mib)
    _add_verbs(app, verbs)
    _add_views(app, shell)

    @app.get("/metrics")
    def metrics_text() -> Response:
        return Response(metrics.text(), content_type=CONTENT_TYPE)

    @app.get("/livez")
    @app.get("/healthz")
    def healthz() -> Response:
        trouble = shell.trouble()
        return _text(trouble or "ok", 500 if trouble else 200)

    @app.get("/readyz")
    def readyz() -> Response:
        # As the API server's own: `?exclude=leader` asks whether a standby could lead.
        waits = shell.reads() if request.args.get("exclude") == "leader" else shell.waits_for()
        return _text(waits or "ok", 503 if waits else 200)

    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        text = f"linkwise: {request.method} {request.path}: {error.name}"
        return _json(wire.write_error(text), error.code or 500)

    @app.errorhandler(NotReadyError)
    def not_ready(error: NotReadyError) -> Response:
        text = str(error)
        return _text(text, 503) if _wants_text() else _json(wire.write_error(text), 503)

    @app.errorhandler(Exception)
    def fail(_error: Exception) -> Response:
        log.exception("%s %s failed", request.method, request.path)
        metrics.errors.labels("view").inc()
        return _json(wire.write_error(DEFECT), 500)

    return app


def _add_verbs(app: Flask, verbs: Verbs) -> None:
    def serve(verb: str) -> Response:
        try:
            reply = verbs.answer(verb, request.get_data(cache=False))
        except RequestEntityTooLarge:
            reply = verbs.too_large(verb)
        response = _json(reply.body, reply.status)
        response.headers["Server-Timing"] = reply.timing
        return response

    for verb in sorted(VERBS):
        app.add_url_rule(f"/{verb}", verb, partial(serve, verb), methods=["POST"])


def _add_views(app: Flask, shell: Shell) -> None:
    @app.get("/explain")
    def explain_all() -> Response:
        namespace = request.args.get("namespace", "")
        found = Explainer(shell.snapshot()).everything(namespace)
        return _told(found, partial(explain_text.all_that_waits, namespace=namespace))

    @app.get("/explain/<namespace>/<pod>")
    def explain_pod(namespace: str, pod: str) -> Response:
        snapshot = shell.snapshot()
        found = Explainer(snapshot).pod(namespace, pod)
        if found is None:
            return _unknown(f"no pod {namespace}/{pod} is known")
        return _told(found, partial(explain_text.pod, at=snapshot.at))

    @app.get("/explain/<namespace>/gangs/<path:gang>")
    def explain_gang(namespace: str, gang: str) -> Response:
        snapshot = shell.snapshot()
        found = Explainer(snapshot).gang(namespace, gang)
        if found is None:
            return _unknown(f"no gang {namespace}/{gang} is known")
        return _told(found, partial(explain_text.gang, at=snapshot.at))

    @app.get("/gangs")
    def gangs() -> Response:
        return _json(msgspec.json.encode(Explainer(shell.snapshot()).gangs()))

    @app.get("/nodes")
    def nodes() -> Response:
        return _json(msgspec.json.encode(view_nodes(shell.snapshot())))

    @app.get("/use")
    def use() -> Response:
        return _json(msgspec.json.encode(view_use(shell.snapshot())))


def _told(found: T, in_words: Callable[[T], str]) -> Response:
    return _text(in_words(found)) if _wants_text() else _json(msgspec.json.encode(found))


def _unknown(what: str) -> Response:
    text = f"linkwise: {what}"
    return _text(text, 404) if _wants_text() else _json(wire.write_error(text), 404)


def _wants_text() -> bool:
    asked = request.args.get("format", "")
    if asked:
        return asked == "text"
    best = request.accept_mimetypes.best_match(["application/json", "text/plain"])
    return best == "text/plain"


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, content_type="application/json")


def _text(text: str, status: int = 200) -> Response:
    return Response(text + "\n", status, content_type="text/plain; charset=utf-8")
