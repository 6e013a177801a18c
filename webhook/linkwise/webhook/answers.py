"""The routes: each parses the request, calls the pure part, counts and writes the response."""

import logging
import secrets
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from linkwise.kube.quoted import one_line
from linkwise.webhook import review
from linkwise.webhook.claims import ReadTemplate
from linkwise.webhook.patch import Rules
from linkwise.webhook.server import Answer, Routes
from linkwise.webhook.template_reader import no_template

log = logging.getLogger(__name__)
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


def new_claim_name() -> str:
    return f"linkwise-{secrets.token_hex(10)}"


class Answers:
    """Thread-safe. *waits_for* says why this replica is not ready, *trouble* why it needs a
    restart. *read_template* must return soon: the API server waits."""

    def __init__(
        self,
        rules: Rules,
        *,
        waits_for: Callable[[], str] = str,
        trouble: Callable[[], str] = str,
        certificate_ends: Callable[[], float] = float,
        new_name: Callable[[], str] = new_claim_name,
        read_template: ReadTemplate = no_template,
    ) -> None:
        self._sources = review.ClaimSources(new_name, read_template)
        self._rules, self._waits_for, self._trouble = rules, waits_for, trouble
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "linkwise_webhook_requests",
            "AdmissionReviews by verb and result: untouched, patched, allowed, warned, refused, "
            "malformed (the body), failed (a defect; the object was allowed).",
            ("verb", "result"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "linkwise_webhook_request_seconds",
            "Time to answer an AdmissionReview, from its body to the reply.",
            ("verb",),
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0),
            registry=self.registry,
        )
        Gauge(
            "linkwise_webhook_certificate_ends_seconds",
            "When the served certificate ends, in seconds since 1970.",
            registry=self.registry,
        ).set_function(certificate_ends)

    def routes(self) -> Routes:
        return {
            ("POST", "/mutate"): lambda body: self._answer("mutate", body, self._mutate),
            ("POST", "/validate"): lambda body: self._answer("validate", body, self._validate),
            ("GET", "/healthz"): lambda _: _state(self._trouble(), 500),
            ("GET", "/readyz"): lambda _: _state(self._waits_for(), 503),
            ("GET", "/metrics"): lambda _: (200, _METRICS, generate_latest(self.registry)),
        }

    def _answer(
        self, verb: str, body: bytes, judge: Callable[[review.AdmissionRequest], tuple[bytes, str]]
    ) -> Answer:
        began = time.perf_counter()
        try:
            request = review.read_request(body)
        except review.ReviewError as error:
            why = one_line(str(error))
            log.warning("%s: %s", verb, why)
            self._requests.labels(verb, "malformed").inc()
            return 400, _TEXT, f"linkwise: {why}\n".encode()
        try:
            answered, result = judge(request)
        except Exception:
            # Allowed, as without a webhook: the extender judges every pod again.
            log.exception("%s of %s failed", verb, request.what, extra=request.about)
            answered, result = review.write_patch(request, ()), "failed"
        self._requests.labels(verb, result).inc()
        self._seconds.labels(verb).observe(time.perf_counter() - began)
        return 200, _JSON, answered

    def _mutate(self, request: review.AdmissionRequest) -> tuple[bytes, str]:
        steps = review.mutate(request, self._rules, self._sources)
        return review.write_patch(request, steps), "patched" if steps else "untouched"

    def _validate(self, request: review.AdmissionRequest) -> tuple[bytes, str]:
        verdict = review.validate(request, self._rules)
        if verdict.refused:
            why = "; ".join(verdict.refused)
            log.info("%s: refused: %s", request.what, why, extra=request.about)
        result = "refused" if verdict.refused else "warned" if verdict.warnings else "allowed"
        return review.write_verdict(request, verdict), result


def _state(text: str, status: int) -> Answer:
    return (status if text else 200), _TEXT, f"{text or 'ok'}\n".encode()
