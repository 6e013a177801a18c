"""The HTTP routes: each reads, asks the shell and writes; none decides.

`filter` and `bind` have an Error field, and of any status but 200 kube-scheduler logs the number
and drops our reason: so their errors are answered with 200 and that field. `prioritize` and
`preempt` have none: there a status and a JSON body with the reason must do.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from linkwise.extender import explain_text, wire
from linkwise.extender.metrics import CONTENT_TYPE, Metrics
from linkwise.extender.shell import NotReadyError, Shell

log = logging.getLogger(__name__)
DEFECT = "linkwise: internal error, the extender's log has it"


@dataclass(frozen=True, slots=True)
class _Verbs:
    """Answers a call of kube-scheduler whatever happens, and counts it."""

    metrics: Metrics

    def serve(
        self,
        verb: str,
        answer: Callable[[bytes], tuple[bytes, str]],
        write_error: Callable[[str], bytes] | None = None,
    ) -> Response:
        """*answer* turns a body into a reply and a result word; without *write_error* the verb
        has no Error field."""
        began, began_cpu = time.perf_counter(), time.thread_time()
        try:
            body, result = answer(request.get_data(cache=False))
            status = 200
        except wire.WireError as error:
            log.warning("%s: %s", verb, error)
            text, result, status = str(error), "malformed", 400
        except RequestEntityTooLarge:
            limit = (request.max_content_length or 0) >> 20
            text, result, status = (
                f"linkwise: request body: more than {limit} MiB",
                "malformed",
                413,
            )
        except NotReadyError as error:
            text, result, status = str(error), "refused", 503
        except Exception:
            log.exception("%s failed", verb)
            self.metrics.errors.labels(verb).inc()
            text, result, status = DEFECT, "failed", 500
        if status != 200:
            body = (write_error or wire.write_error)(text)
            status = 200 if write_error else status
        self.metrics.requests.labels(verb, result).inc()
        took = time.perf_counter() - began
        self.metrics.request_seconds.labels(verb).observe(took)
        response = _json(body, status)
        # The metric has buckets; a benchmark wants each call, and what of it was work, not waiting.
        cpu = time.thread_time() - began_cpu
        response.headers["Server-Timing"] = f"app;dur={took * 1000:.3f}, cpu;dur={cpu * 1000:.3f}"
        return response


def create_app(shell: Shell, metrics: Metrics, *, max_body_mib: int = 64) -> Flask:
    app = Flask("linkwise.extender", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body_mib << 20
    _add_verbs(app, shell, _Verbs(metrics))
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


def _add_verbs(app: Flask, shell: Shell, verbs: _Verbs) -> None:
    @app.post("/filter")
    def filter_nodes() -> Response:
        def answer(body: bytes) -> tuple[bytes, str]:
            asked = wire.read_nodes_call(body)
            answered = shell.filter(asked.call)
            result = "ok" if answered.node_names else "refused"
            return wire.write_filter_answer(answered, asked), result

        return verbs.serve("filter", answer, wire.write_filter_error)

    @app.post("/prioritize")
    def prioritize() -> Response:
        def answer(body: bytes) -> tuple[bytes, str]:
            asked = wire.read_nodes_call(body)
            return wire.write_priorities(shell.prioritize(asked.call)), "ok"

        return verbs.serve("prioritize", answer)

    @app.post("/bind")
    def bind() -> Response:
        def answer(body: bytes) -> tuple[bytes, str]:
            refusal = shell.bind(wire.read_bind_call(body))
            return wire.write_bind_result(refusal), "refused" if refusal else "ok"

        return verbs.serve("bind", answer, wire.write_bind_result)

    @app.post("/preempt")
    def preempt() -> Response:
        def answer(body: bytes) -> tuple[bytes, str]:
            answered = shell.preempt(wire.read_preempt_call(body))
            return wire.write_preempt_answer(answered), "ok" if answered.victims else "refused"

        return verbs.serve("preempt", answer)


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
