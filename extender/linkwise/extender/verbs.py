"""kube-scheduler's four calls: a body in, a reply out, whatever happens in between.

`filter` and `bind` have an Error field, and of any status but 200 kube-scheduler logs the number
and drops our reason: so their errors are answered with 200 and that field. `prioritize` and
`preempt` have none: there a status and a JSON body with the reason must do.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from linkwise.extender import wire
from linkwise.extender.metrics import Metrics
from linkwise.extender.shell import NotReadyError, Shell

log = logging.getLogger(__name__)
DEFECT = "linkwise: internal error, the extender's log has it"
_ERROR_FIELD: Mapping[str, Callable[[str], bytes]] = {
    "filter": wire.write_filter_error,
    "bind": wire.write_bind_result,
}
VERBS = frozenset({"filter", "prioritize", "bind", "preempt"})


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes  # JSON
    timing: str = ""  # a Server-Timing header: the metric has buckets, a benchmark wants each call
    parting: bool = False  # the connection is to end, so that the next call goes to who can answer


class Verbs:
    """Safe for threads."""

    def __init__(self, shell: Shell, metrics: Metrics, *, max_body_mib: int) -> None:
        self._shell, self._metrics = shell, metrics
        self.max_body = max_body_mib << 20
        self._answers: Mapping[str, Callable[[bytes], tuple[bytes, str]]] = {
            "filter": self._filter,
            "prioritize": self._prioritize,
            "bind": self._bind,
            "preempt": self._preempt,
        }
        self._seconds = {v: metrics.request_seconds.labels(v) for v in VERBS}
        self._answered = {v: metrics.requests.labels(v, "ok") for v in VERBS}

    def answer(self, verb: str, body: bytes) -> Reply:
        began, began_cpu = time.perf_counter(), time.thread_time()
        reply, result = self._reply(verb, body)
        self._count(verb, result)
        took, cpu = time.perf_counter() - began, time.thread_time() - began_cpu
        self._seconds[verb].observe(took)
        timing = f"app;dur={took * 1000:.3f}, cpu;dur={cpu * 1000:.3f}"
        return replace(reply, timing=timing)

    def too_large(self, verb: str) -> Reply:
        self._count(verb, "malformed")
        text = f"linkwise: request body: more than {self.max_body >> 20} MiB"
        return _refusal(verb, 413, text)

    def _reply(self, verb: str, body: bytes) -> tuple[Reply, str]:
        try:
            answered, result = self._answers[verb](body)
        except wire.WireError as error:
            log.warning("%s: %s", verb, error)
            return _refusal(verb, 400, str(error)), "malformed"
        except NotReadyError as error:
            return replace(_refusal(verb, 503, str(error)), parting=True), "refused"
        except Exception:
            log.exception("%s failed", verb)
            self._metrics.errors.labels(verb).inc()
            return _refusal(verb, 500, DEFECT), "failed"
        return Reply(200, answered), result

    def _count(self, verb: str, result: str) -> None:
        # A counter is found by its labels more slowly than it counts.
        counter = self._answered[verb] if result == "ok" else None
        (counter or self._metrics.requests.labels(verb, result)).inc()

    def _filter(self, body: bytes) -> tuple[bytes, str]:
        asked = wire.read_nodes_call(body)
        answered = self._shell.filter(asked.call)
        result = "ok" if answered.node_names else "refused"
        return wire.write_filter_answer(answered, asked), result

    def _prioritize(self, body: bytes) -> tuple[bytes, str]:
        asked = wire.read_nodes_call(body)
        return wire.write_priorities(self._shell.prioritize(asked.call)), "ok"

    def _bind(self, body: bytes) -> tuple[bytes, str]:
        refusal = self._shell.bind(wire.read_bind_call(body))
        return wire.write_bind_result(refusal), "refused" if refusal else "ok"

    def _preempt(self, body: bytes) -> tuple[bytes, str]:
        answered = self._shell.preempt(wire.read_preempt_call(body))
        return wire.write_preempt_answer(answered), "ok" if answered.victims else "refused"


def _refusal(verb: str, status: int, text: str) -> Reply:
    if verb in _ERROR_FIELD:
        return Reply(200, _ERROR_FIELD[verb](text))
    return Reply(status, wire.write_error(text))
