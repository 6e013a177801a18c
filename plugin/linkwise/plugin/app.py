"""The plugin over HTTP: metrics for Prometheus, probes for the kubelet."""

from collections.abc import Callable

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


def create_app(registry: CollectorRegistry, not_ready: Callable[[], str]) -> Flask:
    """*not_ready* returns what is missing; empty if the plugin is ready."""
    app = Flask(__name__)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz")
    def alive() -> Response:
        return Response("ok\n", mimetype="text/plain")

    @app.get("/readyz")
    def ready() -> Response:
        missing = not_ready()
        status = 503 if missing else 200
        return Response(f"{missing or 'ok'}\n", status=status, mimetype="text/plain")

    return app
