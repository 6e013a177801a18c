"""A server of the API group external.metrics.k8s.io with one number, for HorizontalPodAutoscalers.

Behind the API server as a metrics adapter is: an APIService, a Service, and an address.
"""

import json
import ssl
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from tests.cluster.support.api.control_plane import ControlPlane, free_port

METRIC = "requests"
_GROUP, _VERSION = "external.metrics.k8s.io", "v1beta1"
_NAME, _NAMESPACE = "external-metrics", "kube-system"


class ExternalMetrics:
    """Every request for a metric of any name gets `value`."""

    def __init__(self, control: ControlPlane) -> None:
        self.value = 0
        self._control = control
        self._port = free_port(control.address)
        self._server = ThreadingHTTPServer((control.address, self._port), self._handler())
        host = f"{_NAME}.{_NAMESPACE}.svc"
        certificate, key = control.authority.server(_NAME, host)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )

    def start(self) -> None:
        """Return when the API server passes requests on."""
        Thread(target=self._server.serve_forever, daemon=True).start()
        self._control.kubectl("apply", "-f", "-", stdin=json.dumps(self._objects()))
        self._control.kubectl(
            *("wait", f"apiservice/{_VERSION}.{_GROUP}"),
            *("--for=condition=Available", "--timeout=60s"),
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _objects(self) -> dict[str, Any]:
        named = {"name": _NAME, "namespace": _NAMESPACE}
        ports = [{"port": 443, "targetPort": self._port, "protocol": "TCP"}]
        return {
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": named,
                    "spec": {"ports": ports},
                },
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {**named, "labels": {"kubernetes.io/service-name": _NAME}},
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [self._control.address]}],
                    "ports": [{"port": self._port, "protocol": "TCP"}],
                },
                {
                    "apiVersion": "apiregistration.k8s.io/v1",
                    "kind": "APIService",
                    "metadata": {"name": f"{_VERSION}.{_GROUP}"},
                    "spec": {
                        "group": _GROUP,
                        "version": _VERSION,
                        "service": {**named, "port": 443},
                        "caBundle": b64encode(self._control.ca.read_bytes()).decode(),
                        "groupPriorityMinimum": 100,
                        "versionPriority": 100,
                    },
                },
            ],
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(metrics._answer(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Stay silent: pytest shows what a test prints."""

        return Handler

    def _answer(self, path: str) -> dict[str, Any]:
        version = f"{_GROUP}/{_VERSION}"
        if "/namespaces/" not in path:
            return {"kind": "APIResourceList", "groupVersion": version, "resources": []}
        now = "2026-01-01T00:00:00Z"
        item = {
            "metricName": METRIC,
            "metricLabels": {},
            "timestamp": now,
            "value": str(self.value),
        }
        return {"kind": "ExternalMetricValueList", "apiVersion": version, "items": [item]}
