"""The HTTP routes, for people and for kube-scheduler: each reads, asks the shell and writes.

kube-scheduler's calls are answered here and, with less ado, in `server`: by the same `verbs`.
"""

import logging
from functools import partial

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from linkwise.extender import explain_text, wire
from linkwise.extender.metrics import CONTENT_TYPE, Metrics
from linkwise.extender.shell import NotReadyError, Shell
from linkwise.extender.verbs import DEFECT, VERBS, Verbs

log = logging.getLogger(__name__)


def create_app(shell: Shell, metrics: Metrics, *, max_body_mib: int = 64) -> Flask:
    app = Flask("linkwise.extender", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body_mib << 20
    verbs = Verbs(shell, metrics, max_body_mib=max_body_mib)
    _add_verbs(app, verbs)
    _add_views(app, shell)

    @app.get("/metrics")
    def metrics_text() -> Response:
        return Response(metrics.text(), content_type=CONTENT_TYPE)

    @app.get("/healthz")
    def healthz() -> Response:
        trouble = shell.trouble()
        return _text(trouble or "ok", 500 if trouble else 200)

    @app.get("/readyz")
    def readyz() -> Response:
        waits = shell.waits_for()
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
    @app.get("/explain/<namespace>/<pod>")
    def explain(namespace: str, pod: str) -> Response:
        found = shell.explain(namespace, pod)
        if found is None:
            text = f"linkwise: no pod {namespace}/{pod} is known"
            return _text(text, 404) if _wants_text() else _json(wire.write_error(text), 404)
        if _wants_text():
            return _text(explain_text.render(found))
        return _json(msgspec.json.encode(found))

    @app.get("/gangs")
    def gangs() -> Response:
        return _json(msgspec.json.encode(shell.gangs()))

    @app.get("/nodes")
    def nodes() -> Response:
        return _json(msgspec.json.encode(shell.nodes()))


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
