"""The HTTP routes of the status port: each reads the request, asks the loop and writes the answer.

No route changes anything. The server answers probes at once. Routes that take the core's lock or
much time share a part of a processor (`serving.fair_share`).
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from linkwise.extender.calls import wire
from linkwise.extender.run.loop import Loop, NotReadyError
from linkwise.extender.run.metrics import CONTENT_TYPE, ExtenderMetrics
from linkwise.extender.run.page.live_page import LivePage
from linkwise.extender.run.page.routes import page_routes
from linkwise.extender.run.ports.dispatch import DEFECT
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.history import Asked, view_history
from linkwise.extender.show.explain.idle.idle_pods import view_idle
from linkwise.extender.show.explain.moves import emptied_nodes, view_emptying, view_moves
from linkwise.extender.show.explain.names_said import why_unknown
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.show.explain.state import view_state
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.show.explain.usage import view_nodes, view_use
from linkwise.serving.fair_share import FairShare
from linkwise.serving.gone import GoneError
from linkwise.serving.wsgi import CALLER_WAITS

log = logging.getLogger(__name__)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Response])
_VIEWS: Mapping[str, Callable[[Snapshot], object]] = {
    "/nodes": view_nodes,
    "/use": view_use,
    "/state": view_state,
    "/idle": view_idle,
    "/moves": view_moves,
}
_OF_HISTORY = ("namespace", "pod", "gang", "node")
_SHARE = 0.25  # of a processor's time, for all views together


def create_app(
    loop: Loop,
    metrics: ExtenderMetrics,
    *,
    live: LivePage | None = None,
    waits_for: Callable[[], str] = str,
    trouble: Callable[[], str] = str,
) -> Flask:
    """*live* is the live page; if None, it sends no changes to open pages.

    *waits_for* says why this process is not ready yet, *trouble* why it needs a restart, in
    addition to the loop's own reasons. Both are empty if all is well."""
    app = Flask("linkwise.extender", static_folder=None)
    views = FairShare(_SHARE)
    _add_views(app, loop, views)
    page = live or LivePage(lambda: loop.snapshot())
    app.register_blueprint(page_routes(page, partial(_share, views)))
    scrapes = FairShare(_SHARE)

    @app.get("/")
    def start() -> Response:
        # Relative, because the API server's proxy has a path of its own before it.
        return Response(status=302, headers={"Location": "ui/"})

    @app.get("/metrics")
    def metrics_text() -> Response:
        with _share(scrapes):
            return Response(metrics.text(), content_type=CONTENT_TYPE)

    @app.get("/livez")
    @app.get("/healthz")
    def healthz() -> Response:
        ill = loop.trouble() or trouble()
        return _text(ill or "ok", 500 if ill else 200)

    @app.get("/readyz")
    def readyz() -> Response:
        # The parameter of the API server's own /readyz: `?exclude=leader` asks if a standby could
        # lead.
        waits = loop.reads() if request.args.get("exclude") == "leader" else loop.waits_for()
        waits = waits or waits_for()
        return _text(waits or "ok", 503 if waits else 200)

    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        text = f"linkwise: {request.method} {request.path}: {error.name}"
        return _json(wire.write_error(text), error.code or 500)

    @app.errorhandler(NotReadyError)
    def not_ready(error: NotReadyError) -> Response:
        text = str(error)
        return _text(text, 503) if _wants_text() else _json(wire.write_error(text), 503)

    @app.errorhandler(GoneError)
    def gone(_error: GoneError) -> Response:
        return _text("linkwise: the caller no longer waits", 408)

    @app.errorhandler(Exception)
    def fail(_error: Exception) -> Response:
        log.exception("%s %s failed", request.method, request.path)
        metrics.errors.labels("view").inc()
        return _json(wire.write_error(DEFECT), 500)

    return app


def _add_views(app: Flask, loop: Loop, share: FairShare) -> None:
    view = _shared(app, share)
    _add_explanations(view, loop)

    @view("/gangs")
    def gangs() -> Response:
        namespace = request.args.get("namespace", "")
        runner_up = request.args.get("runner-up", "") == "true"
        found = Explainer(loop.snapshot()).gangs(namespace, runner_up=runner_up)
        return _json(msgspec.json.encode(found))

    for rule, make in _VIEWS.items():
        view(rule)(partial(_view, loop, make))

    @view("/history")
    def history() -> Response:
        asked = Asked(**{name: request.args.get(name, "") for name in _OF_HISTORY})
        for name, said in (("pod", asked.pod), ("gang", asked.gang)):
            if said and not all(said.partition("/")):
                text = f"linkwise: {name}={said}: expected NAMESPACE/NAME"
                return _json(wire.write_error(text), 400)
        found = view_history(loop.snapshot(), asked)
        return _unknown(found) if isinstance(found, str) else _json(msgspec.json.encode(found))

    @view("/empty")
    def empty() -> Response:
        snapshot, said = loop.snapshot(), request.args.get("nodes", "")
        names = list(dict.fromkeys(said.split(","))) if said else emptied_nodes(snapshot)
        unknown = [name for name in names if name not in snapshot.node_named]
        if unknown:
            return _unknown(f"no node {unknown[0]} is known")
        found = view_emptying(snapshot, names, loop.look_at_emptying(names))
        return _json(msgspec.json.encode(found))


def _add_explanations(view: "_AddView", loop: Loop) -> None:
    @view("/explain")
    def explain_all() -> Response:
        namespace = request.args.get("namespace", "")
        found = Explainer(loop.snapshot()).everything(namespace)
        return _told(found, partial(explanation_text.all_that_waits, namespace=namespace))

    @view("/explain/<namespace>/<pod>")
    def explain_pod(namespace: str, pod: str) -> Response:
        snapshot = loop.snapshot()
        found = Explainer(snapshot).pod(namespace, pod, runner_up=True)
        if found is None:
            return _unknown(why_unknown(snapshot, "pod", namespace, pod))
        return _told(found, partial(explanation_text.pod, at=snapshot.at))

    @view("/explain/<namespace>/gangs/<path:gang>")
    def explain_gang(namespace: str, gang: str) -> Response:
        snapshot = loop.snapshot()
        found = Explainer(snapshot).gang(namespace, gang, runner_up=True)
        if found is None:
            return _unknown(why_unknown(snapshot, "gang", namespace, gang))
        return _told(found, partial(explanation_text.gang, at=snapshot.at))


class _AddView(Protocol):
    def __call__(self, rule: str) -> Callable[[F], F]: ...


def _shared(app: Flask, share: FairShare) -> _AddView:
    """Like `app.get`, but these routes share one FairShare: one runs at a time."""

    def view(rule: str) -> Callable[[F], F]:
        def add(answer: F) -> F:
            def in_share(**parts: str) -> Response:
                with _share(share):
                    return answer(**parts)

            app.add_url_rule(rule, rule, in_share)
            return answer

        return add

    return view


def _view(loop: Loop, make: Callable[[Snapshot], object]) -> Response:
    return _json(msgspec.json.encode(make(loop.snapshot())))


def _share(share: FairShare) -> AbstractContextManager[None]:
    """The share of the current request's client."""
    waits = request.environ.get(CALLER_WAITS, lambda: True)
    return share.of(request.remote_addr or "", waits)


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
    return best == "text/plain" or request.blueprint is not None


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, content_type="application/json")


def _text(text: str, status: int = 200) -> Response:
    return Response(text + "\n", status, content_type="text/plain; charset=utf-8")
