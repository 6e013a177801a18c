"""kube-scheduler's four calls: a body in, a reply out, never an exception.

The answers of `filter` and `bind` have an Error field. For any status but 200, kube-scheduler logs
only the number and drops the reason, so their errors have status 200 and that field. The answers
of `prioritize` and `preempt` have no such field: their errors have a status and a JSON body with
the reason.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock

from linkwise.extender.calls import wire
from linkwise.extender.run.loop import Loop, NotReadyError
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.kube.objects import Pod
from linkwise.serving.gone import GoneError
from linkwise.serving.reply import Reply, Waits
from linkwise.topology.names import DEFAULT_RESOURCES, is_share

# At most some 20 MB in total. By default kube-scheduler sends 500 of 5,000 nodes, and `filter`
# usually returns one of them.
_MOST_NAMES = 200_000
_MOST_ANSWERS = 256  # for one pod: more than the domains in which a PodGroup is tried

_Answer = tuple[str, tuple[str, ...]]
"""schedulerName, nodes."""


class PassedNodes:
    """The nodes that `filter` returned for each pod: kube-scheduler may bind the pod to these.

    kube-scheduler binds a pod to a node only after `filter` returned that node for it. Any other
    bind call is a mistake, or comes from another program. Earlier answers count too: for a
    PodGroup, kube-scheduler tries several placements and binds to the best one.

    The record is in this process's memory only. After a restart, the bind of a pod without a plan
    is refused once, and kube-scheduler schedules it again. A planned pod carries its plan and needs
    no record.

    Thread-safe.
    """

    def __init__(self, most_names: int = _MOST_NAMES) -> None:
        self._most_names, self._names = most_names, 0
        self._answers: dict[str, deque[_Answer]] = {}  # uid -> answers, oldest first
        self._lock = Lock()

    def note(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        """Record an answer of `filter`; *pod* is as kube-scheduler sent it."""
        if not nodes:
            return
        with self._lock:
            answers = self._take(pod.metadata.uid)
            answers.append((pod.spec.scheduler_name, nodes))
            self._answers[pod.metadata.uid] = answers
            self._names += sum(len(names) for _, names in answers)
            while self._names > self._most_names and len(self._answers) > 1:
                self._take(next(iter(self._answers)))
            while self._names > self._most_names and len(answers) > 1:
                self._names -= len(answers.popleft()[1])

    def as_whose(self, uid: str, node: str) -> str:
        """The schedulerName of the pod when `filter` last returned *node* for it; empty if it never
        did."""
        with self._lock:
            answers = self._answers.get(uid, ())
            return next((whose for whose, nodes in reversed(answers) if node in nodes), "")

    def forget(self, uid: str) -> None:
        with self._lock:
            self._take(uid)

    def _take(self, uid: str) -> deque[_Answer]:
        found = self._answers.pop(uid, None)
        if found is None:
            return deque(maxlen=_MOST_ANSWERS)
        self._names -= sum(len(names) for _, names in found)
        return found


log = logging.getLogger(__name__)
DEFECT = "linkwise: internal error, see the extender's log"
_OTHERS_POD = (
    "linkwise: the pod names no {0}: kube-scheduler's configuration must list it in "
    "managedResources of this extender"
)
_ERROR_FIELD: Mapping[str, Callable[[str], bytes]] = {
    "filter": wire.write_filter_error,
    "bind": wire.write_bind_result,
}
VERBS = frozenset({"filter", "prioritize", "bind", "preempt"})


class Verbs:
    """Thread-safe."""

    # Names of 5,000 nodes take 0.2 MiB, whole nodes (nodeCacheCapable: false) 50.
    max_body = 64 << 20

    def __init__(
        self,
        loop: Loop,
        metrics: ExtenderMetrics,
        *,
        resources: tuple[str, ...] = DEFAULT_RESOURCES,
    ) -> None:
        self._loop, self._metrics, self._resources = loop, metrics, resources
        self._answers: Mapping[str, Callable[[bytes, Waits], tuple[bytes, str]]] = {
            "filter": self._filter,
            "prioritize": self._prioritize,
            "bind": self._bind,
            "preempt": self._preempt,
        }
        self._others_pod = _OTHERS_POD.format(" or ".join(resources))
        self._let_through, self._lists = PassedNodes(), wire.NodeLists()
        self._seconds = {v: metrics.request_seconds.labels(v) for v in VERBS}
        self._answered = {v: metrics.requests.labels(v, "ok") for v in VERBS}

    def answer(self, verb: str, body: bytes, waits: Waits = lambda: True) -> Reply | None:
        """*waits* says whether the caller still waits. None if it does not: then the call was not
        carried out."""
        began, began_cpu = time.perf_counter(), time.thread_time()
        reply, result = self._reply(verb, body, waits)
        self._count(verb, result)
        took, cpu = time.perf_counter() - began, time.thread_time() - began_cpu
        self._seconds[verb].observe(took)
        timing = f"app;dur={took * 1000:.3f}, cpu;dur={cpu * 1000:.3f}"
        return None if reply is None else replace(reply, timing=timing)

    def too_large(self, verb: str) -> Reply:
        self._count(verb, "malformed")
        text = f"linkwise: request body: more than {self.max_body >> 20} MiB"
        return _refusal(verb, 413, text)

    def _reply(self, verb: str, body: bytes, waits: Waits) -> tuple[Reply | None, str]:
        try:
            if verb != "bind" and not waits():  # the core must record a bind that was given up
                raise GoneError
            answered, result = self._answers[verb](body, waits)
        except GoneError:
            log.info("%s: not carried out: the caller no longer waits", verb)
            return None, "gone"
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

    def _filter(self, body: bytes, waits: Waits) -> tuple[bytes, str]:
        asked = wire.read_nodes_call(body, self._lists)
        if not _names(asked.call.pod, self._resources):
            return wire.write_filter_error(self._others_pod), "refused"
        answered = self._loop.filter(asked.call, waits)
        self._let_through.note(asked.call.pod, answered.node_names)
        result = "ok" if answered.node_names else "refused"
        return wire.write_filter_answer(answered, asked, self._lists), result

    def _prioritize(self, body: bytes, _waits: Waits) -> tuple[bytes, str]:
        asked = wire.read_nodes_call(body, self._lists)
        return wire.write_priorities(self._loop.prioritize(asked.call)), "ok"

    def _bind(self, body: bytes, waits: Waits) -> tuple[bytes, str]:
        asked = wire.read_bind_call(body)
        call = replace(asked, let_through=self._let_through.as_whose(asked.uid, asked.node))
        refusal = self._loop.bind(call, waits)
        if not refusal:
            self._let_through.forget(asked.uid)
        return wire.write_bind_result(refusal), "refused" if refusal else "ok"

    def _preempt(self, body: bytes, _waits: Waits) -> tuple[bytes, str]:
        answered = self._loop.preempt(wire.read_preempt_call(body))
        return wire.write_preempt_answer(answered), "ok" if answered.victims else "refused"


def _names(pod: Pod, resources: Sequence[str]) -> bool:
    """Whether the pod names one of *resources* or shares of it, by kube-scheduler's rule for
    extenders: 0 counts too."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any(
        name == resource or is_share(name, resource)
        for container in containers
        for amounts in (container.resources.requests, container.resources.limits)
        for name in amounts
        for resource in resources
    )


def _refusal(verb: str, status: int, text: str) -> Reply:
    if verb in _ERROR_FIELD:
        return Reply(200, _ERROR_FIELD[verb](text))
    return Reply(status, wire.write_error(text))
