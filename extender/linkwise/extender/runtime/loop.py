"""Puts the core to work: one lock around it, the cluster's changes in, its decisions out.

The core is not safe for threads and does no I/O; here are the threads and the I/O. Whatever asks
or tells the core holds the lock for just that, and nothing waits for the API server while holding
it. A worker thread asks the core for decisions whenever something has changed, and now and then
without a reason, for what time alone changes; the writes that come out run side by side.

A defect in the core must not end the process: it is logged, counted and answered, and the rest
goes on.
"""

import logging
import time
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import TypeVar

from linkwise.extender.api.actions import Action, Emit
from linkwise.extender.api.extender_calls import (
    AlreadyBound,
    BindCall,
    BindOrder,
    BindRefusal,
    FilterAnswer,
    FilterCall,
    Outcome,
    PreemptAnswer,
    PreemptCall,
    PriorityAnswer,
)
from linkwise.extender.core import Scheduler
from linkwise.extender.explain.snapshot import Snapshot
from linkwise.extender.podgrouper.owner_cache import FetchOwner
from linkwise.extender.runtime.informers import T, watch
from linkwise.extender.runtime.leadership import ALONE, Lead
from linkwise.extender.runtime.metrics import NOTHING, Census, ExtenderMetrics
from linkwise.extender.runtime.owner_reader import OwnerReads
from linkwise.extender.runtime.takeover import Succession
from linkwise.extender.runtime.workqueue import Lanes
from linkwise.extender.runtime.writer import KubeActions
from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node, Pod, PodDisruptionBudget
from linkwise.kube.reflector import Reflector
from linkwise.serving.gone import GoneError
from linkwise.topology.errors import LinkwiseError

log = logging.getLogger(__name__)
U = TypeVar("U")

# The longest and the shortest time the planner sleeps where the core says when it has something to
# do: the one so that a watch that broke is noticed, the other so that "now" is no busy loop.
_LONGEST_SLEEP_SECONDS, _SHORTEST_SLEEP_SECONDS = 1.0, 0.05
# The first change after a quiet moment is acted on at once; a flood of them, such as a job of a
# thousand pods, in rounds this far apart, so that calls of kube-scheduler get the lock in between.
_BREATH_SECONDS = 0.005
# Watches of one API server are milliseconds apart; kube-scheduler waits 5 s for the bind verb.
_BIND_PATIENCE_SECONDS, _BIND_POLL_SECONDS = 2.0, 0.01
_FILTER_POLL_SECONDS = 0.002  # an owner is read in less than 10
# Thousands of pods may be told at once why they wait; no plan may wait for that.
_EVENT_THREADS = 2
_GAP_SECONDS = 0.001  # in which calls get the lock
_READ_THREADS = 4  # of the objects that pods hang on, milliseconds each
# An audit recounts everything, 0.15 s at 5,000 nodes: often enough to be told of a defect the same
# hour, and not with every scrape.
_AUDIT_SECONDS = 60.0
# The worker takes milliseconds a round. A minute without one is a defect that a restart may cure.
_STUCK_SECONDS = 60.0


class NotReadyError(LinkwiseError):
    """Asked before the books are complete; its text says what is awaited."""


def steady_clock(
    wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Seconds since 1970 that never jump: where somebody sets the machine's clock back by an hour,
    no pause before a second try, and no gang's timeout, may last an hour longer."""
    offset = wall() - steady()
    return lambda: steady() + offset


class Shell:
    """`start()` it, ask it from any thread, `stop()` it; it cannot be started again."""

    def __init__(
        self,
        core: Scheduler,
        client: KubeClient,
        metrics: ExtenderMetrics,
        *,
        write_threads: int = 16,
        clock: Callable[[], float] | None = None,
        on_complete: Callable[[], object] = lambda: None,
        lead: Lead = ALONE,
        take_calls: Callable[[], object] = lambda: None,
    ) -> None:
        """*on_complete* is called when the books are complete, and when they have been made anew to
        lead; *take_calls* every few seconds while it leads. It may raise ApiError."""
        self._on_complete = on_complete
        self._lead = lead
        self._core, self._metrics = core, metrics
        self._clock = clock or steady_clock()
        self._lock = Lock()  # around every use of the core
        core.set_unlocker(self._aside)
        self._kube = KubeActions(client, metrics, clock or time.time, lead)
        self._writes: Lanes[Action] = Lanes(self._act, threads=write_threads)
        self._events: Lanes[Action] = Lanes(self._act, threads=_EVENT_THREADS)
        self._owners = OwnerReads(client, metrics)
        self._reads: Lanes[FetchOwner] = Lanes(self._read_owner, threads=_READ_THREADS)
        self._nodes = self._reflector(client, "nodes", Node, core.replace_nodes, core.node_event)
        self._pods = self._reflector(client, "pods", Pod, core.replace_pods, core.pod_event)
        self._budgets = self._reflector(
            client,
            "poddisruptionbudgets",
            PodDisruptionBudget,
            core.replace_budgets,
            core.budget_event,
        )
        self._changed = Event()
        self._stopping = Event()
        self._beat = self._audited = time.monotonic()
        self._broken = 0  # invariants, at the last audit
        self._binding = 0  # Bindings under way
        self._has_decided = False  # since it leads
        self._worker = Thread(target=self._work, name="planner", daemon=True)
        self._succession = Succession(
            lead,
            core,
            self._lock,
            self._pods,
            self._stopping,
            clock=self._clock,
            alive=self._note_alive,
            on_led=on_complete,
            take_calls=take_calls,
        )
        lead.tell(self._changed.set)
        metrics.watch_lead(lead)
        metrics.watch_books(self._census)

    def start(self) -> None:
        self._nodes.start()
        self._pods.start()
        self._budgets.start()
        self._worker.start()

    def stop(self, timeout_seconds: float = 3.0) -> bool:
        """End the watches and the planner; writes under way get so long to finish. Whether nothing
        is under way any more."""
        self._stopping.set()
        self._changed.set()
        self._nodes.stop(timeout_seconds)
        self._pods.stop(timeout_seconds)
        self._budgets.stop(timeout_seconds)
        if self._worker.is_alive():
            self._worker.join(timeout_seconds)
        writes_end = time.monotonic() + timeout_seconds
        written = self._writes.stop(timeout_seconds)
        self._events.stop(max(writes_end - time.monotonic(), 0.0))
        self._reads.stop(max(writes_end - time.monotonic(), 0.0))
        return written and not self._binding

    # What kube-scheduler asks

    def filter(self, call: FilterCall, waits: Callable[[], bool] = lambda: True) -> FilterAnswer:
        """*waits* says whether the caller still does. Raises GoneError."""
        self._require_ready()
        while True:
            with self._lock:
                if not waits():
                    raise GoneError
                answer = self._core.filter(call, self._clock())
            self._changed.set()  # a call can teach the core that a plan was refused
            if not answer.passing or self._stopping.wait(_FILTER_POLL_SECONDS):
                return answer

    def prioritize(self, call: FilterCall) -> PriorityAnswer:
        self._require_ready()
        with self._lock:
            return self._core.prioritize(call, self._clock())

    def preempt(self, call: PreemptCall) -> PreemptAnswer:
        self._require_ready()
        with self._lock:
            return self._core.preempt(call, self._clock())

    def bind(self, call: BindCall, waits: Callable[[], bool] = lambda: True) -> str:
        """Bind the pod; the text says why not, and is empty where it is bound. *waits* says whether
        the caller still does: kube-scheduler takes a pod whose call it has given up for one that is
        not bound. Raises GoneError."""
        self._require_ready()
        order: BindOrder | AlreadyBound | BindRefusal | None = None
        try:
            order = self._begin_bind(call, waits)
        finally:
            if order is None or isinstance(order, BindRefusal):
                with self._lock:
                    self._core.bind_refused(call)
                self._changed.set()
        if isinstance(order, BindRefusal):
            return order.reason
        if not isinstance(order, BindOrder):
            return ""  # it is bound already, and there
        outcome, refusal = Outcome.UNKNOWN, ""
        try:
            if not waits():
                outcome = Outcome.REFUSED  # nothing is sent, and what was held is free
                raise GoneError
            outcome, refusal = self._kube.bind(order)
        finally:
            with self._lock:
                self._core.end_bind(order, outcome, self._clock())
                self._binding -= 1
            self._changed.set()
        return refusal

    def _begin_bind(
        self, call: BindCall, waits: Callable[[], bool]
    ) -> BindOrder | AlreadyBound | BindRefusal:
        """kube-scheduler's watch may show it a pod before ours does, and it may bind while we
        still write: a refusal costs the pod a second and more, so wait a moment."""
        patience_ends = time.monotonic() + _BIND_PATIENCE_SECONDS
        while True:
            with self._lock:
                if not waits():
                    raise GoneError
                order = self._core.begin_bind(call, self._clock())
                self._binding += isinstance(order, BindOrder)
            passing = isinstance(order, BindRefusal) and order.passing
            if not passing or time.monotonic() > patience_ends:
                return order
            if self._stopping.wait(_BIND_POLL_SECONDS):
                return order  # no watch will show it any more

    # What people ask

    def snapshot(self) -> Snapshot:
        """What explanations are made of; to make them takes its time, and needs no lock."""
        self._require_ready()
        with self._lock:
            return self._core.snapshot(self._clock())

    def waits_for(self) -> str:
        """What is missing before a question can be answered; empty once ready."""
        missing = self.reads()
        if missing:
            return missing
        # Before the first decision of a term nothing is kept for those who wait for longest.
        has_taken_over = self._succession.acts and self._has_decided
        refusal = self._lead.refusal() or ("" if has_taken_over else "not ready: taking over")
        return f"linkwise: {refusal}" if refusal else ""

    def reads(self) -> str:
        """What is still to be read before the books are complete; a standby's are, too."""
        missing = [
            what
            for what, reflector in (("nodes", self._nodes), ("pods", self._pods))
            if not reflector.synced.is_set()
        ]
        return f"linkwise: not ready: still reading {' and '.join(missing)}" if missing else ""

    def trouble(self) -> str:
        """Why the process should be started anew; empty while it is alive."""
        if not self._worker.is_alive():
            return "linkwise: the planner has ended"
        silent = time.monotonic() - self._beat
        if silent > _STUCK_SECONDS:
            return f"linkwise: the planner has not come round for {silent:.0f} s"
        return ""

    def _require_ready(self) -> None:
        missing = self.waits_for()
        if missing:
            raise NotReadyError(missing)

    def audit(self) -> list[str]:
        """Recount the books from scratch; what does not hold is logged and counted."""
        with self._lock:
            broken = self._core.audit()
        for text in broken:
            log.error("broken invariant: %s", text)
        self._broken, self._audited = len(broken), time.monotonic()
        return broken

    def _census(self) -> Census:
        silent = {"nodes": self._nodes.failing_seconds, "pods": self._pods.failing_seconds}
        if not self._succession.acts:  # else sums over both replicas would be twice what there is
            return Census(NOTHING.counts, 0, silent)
        with self._lock:
            counts = self._core.counts(self._clock())
        return Census(counts, self._broken, silent)

    # What the cluster tells

    def _reflector(
        self,
        client: KubeClient,
        plural: str,
        kind: type[T],
        replace: Callable[[list[T], float], None],
        change: Callable[[str, T, float], None],
    ) -> Reflector[T]:
        """A watch of all objects of *kind*, told to the core by *replace* and *change*."""
        return watch(
            client,
            self._metrics,
            plural,
            kind,
            replace=lambda objects: self._tell(plural, lambda now: replace(objects, now)),
            change=lambda what, one: self._tell(plural, lambda now: change(what, one, now)),
        )

    def _tell(self, plural: str, tell: Callable[[float], None]) -> None:
        """A change the core cannot take must not stop those after it, nor be told for ever."""
        try:
            with self._lock:
                tell(self._clock())
        except Exception:
            self._defect(plural, f"a change of {plural} was not understood")
        self._changed.set()

    # What the core decides

    def _note_alive(self) -> None:
        self._beat = time.monotonic()

    def _work(self) -> None:
        sleep_seconds, complete = _LONGEST_SLEEP_SECONDS, False
        while not self._stopping.is_set():
            self._changed.wait(sleep_seconds)
            self._changed.clear()
            self._note_alive()
            if self._stopping.is_set() or self.reads():
                continue  # half of the books would make every plan look impossible
            if not complete:
                self._on_complete()
                complete = True
            try:
                leads = self._succession.leads()
                sleep_seconds = self._decide() if leads else self._stand_by()
            except Exception:
                self._defect("decide", "no decisions this time")
                self._stopping.wait(_LONGEST_SLEEP_SECONDS)
            if self._succession.acts and time.monotonic() - self._audited > _AUDIT_SECONDS:
                self._audit_now()
            self._stopping.wait(_BREATH_SECONDS)

    def _stand_by(self) -> float:
        with self._lock:
            if not self._succession.acts:
                self._core.stand_by()
            reads = self._core.owners_to_read(self._clock())
        for read in reads:
            self._reads.add(read.ref, read)
        return _LONGEST_SLEEP_SECONDS

    def _decide(self) -> float:
        """Hand out what the core wants written; for how long it then has nothing to do."""
        with self._lock:
            if self._pods.failing_seconds:
                self._core.unheard(self._clock())
            try:
                with self._metrics.decide_seconds.time():
                    actions = self._core.decide(self._clock())
            finally:
                self._has_decided = True  # a mistake of ours must not keep everybody waiting
            reads = self._core.owners_to_read(self._clock())
            due = self._core.next_due()
            defects = self._core.take_defects()
        for read in reads:
            self._reads.add(read.ref, read)
        for defect in defects:
            self._defect("decide", "left out of this round", defect)
        for action in actions:
            lanes = self._events if isinstance(action, Emit) else self._writes
            lanes.add(action.pod.uid, action)
        if due is None:
            return _LONGEST_SLEEP_SECONDS
        left = due - self._clock()
        return min(max(left, _SHORTEST_SLEEP_SECONDS), _LONGEST_SLEEP_SECONDS)

    def _aside(self, work: Callable[[], U]) -> U:
        """What takes the planner long, and needs no books, keeps nobody from the core."""
        self._lock.release()
        try:
            return work()
        finally:
            time.sleep(_GAP_SECONDS)  # who waits would not get it by a mere release
            self._lock.acquire()

    def _audit_now(self) -> None:
        try:
            self.audit()
        except Exception:
            self._defect("audit", "the books were not audited")
            self._audited = time.monotonic()

    def _act(self, action: Action) -> None:
        outcome = Outcome.UNKNOWN
        try:
            outcome = self._kube.perform(action)
        except Exception:
            self._defect("act", f"{type(action).__name__} {action.pod} failed")
        try:
            with self._lock:
                self._core.done(action, outcome, self._clock())
        except Exception:
            self._defect("done", f"{type(action).__name__} {action.pod} was not taken note of")
        self._changed.set()

    def _judge_anew(self) -> bool:
        with self._lock:
            return self._core.judge_anew(self._clock())

    def _read_owner(self, read: FetchOwner) -> None:
        found = None
        try:
            found = self._owners.read(read)
        except Exception:
            self._defect("owners", f"{read} could not be read")
        try:
            with self._lock:
                self._core.owner_read(read, found, self._clock())
            while self._judge_anew():
                self._stopping.wait(_GAP_SECONDS)
        except Exception:
            self._defect("owners", f"what {read} says was not understood")
        self._changed.set()

    def _defect(self, where: str, text: str, defect: Exception | None = None) -> None:
        log.error("%s", text, exc_info=defect or True)
        self._metrics.errors.labels(where).inc()
