"""Runs the core: one lock around it, the cluster's changes in, its decisions out.

The core is not thread-safe and does no I/O; the loop has the threads and the I/O. Each call of
the core holds the lock for that call only, and no thread waits for the API server while it holds
the lock. A worker thread asks the core for decisions after each change, and periodically for what
time alone changes. The resulting writes run in parallel.

A defect in the core must not end the process: the loop logs and counts it, answers the call with
an error, and continues.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Condition, Event, Lock, Thread
from typing import TypeVar

from linkwise.extender.core import Core
from linkwise.extender.next.gangs.uncreated import FetchRefusals
from linkwise.extender.next.moves.may_move import Stays
from linkwise.extender.next.moves.plan import Move
from linkwise.extender.run.informers import Informers
from linkwise.extender.run.leadership import ALONE, Lead
from linkwise.extender.run.logs import RoundLog, log_decisions
from linkwise.extender.run.metrics import NOTHING, Census, ExtenderMetrics
from linkwise.extender.run.places import Places
from linkwise.extender.run.reads import OwnerReads, RefusalReads
from linkwise.extender.run.takeover import Takeover
from linkwise.extender.run.workqueue import Lanes
from linkwise.extender.run.writer import Writer
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.show.explain.state import kept_idle
from linkwise.extender.state.actions import Action, Emit
from linkwise.extender.state.extender_calls import (
    AlreadyBound,
    BindCall,
    BindOrder,
    BindRefusal,
    BindWaits,
    FilterAnswer,
    FilterCall,
    Outcome,
    PreemptAnswer,
    PreemptCall,
    PriorityAnswer,
)
from linkwise.extender.state.membership.owner_cache import FetchOwner
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.kube.client import KubeClient
from linkwise.pods.claims import DEVICE_CLASS
from linkwise.serving.gone import GoneError
from linkwise.topology.errors import LinkwiseError

log = logging.getLogger(__name__)
U = TypeVar("U")

# Bounds on the planner's sleep until the core's next due time: the longest, so that it notices a
# broken watch; the shortest, so that "now" does not become a busy loop.
_LONGEST_SLEEP_SECONDS, _SHORTEST_SLEEP_SECONDS = 1.0, 0.05
# The planner acts on the first urgent change after a quiet period at once. During a burst, such as
# a job of a thousand pods, its rounds are this far apart, so that kube-scheduler's calls get the
# lock.
_BREATH_SECONDS = 0.005
# Other changes wait for so long for an urgent one, or for more of them: most are about what was
# decided, such as a pod that is bound, and one round looks at all of them.
_CALM_SECONDS = 0.1
# Watches on one API server differ by milliseconds; kube-scheduler waits 15 s for the bind verb.
_BIND_PATIENCE_SECONDS, _BIND_POLL_SECONDS = 2.0, 0.01
# How long a member's bind waits for the others. Longer than kube-scheduler's longest back-off of
# 10 s, or members that were refused once never meet. And shorter than its httpTimeout of 15 s by
# what it takes to post a thousand Bindings, or some callers have given up by then.
BARRIER_SECONDS = 12.0
# Bindings. More would wait for connections, and a caller could give up between this process's last
# look at it and the request.
_POSTED_AT_ONCE = 64
_LOOK_SECONDS = 1.0  # whether a caller that waits for other members has given up
# An answer that may be better in a moment is looked at again after each change, and this late.
_FILTER_LOOK_SECONDS = 0.005
# kube-scheduler tries a pod some 10 ms after it was created. The plan of its gang waits as long for
# that call, which names the nodes that kube-scheduler looks at.
_CALL_SECONDS = 0.012
_WRITE_THREADS = 16  # a gang's members are written in parallel; half of the client's pool
# Thousands of waiting pods may get Events at once; no plan may wait for those writes.
_EVENT_THREADS = 2
_GAP_SECONDS = 0.001  # in which calls get the lock
_READ_THREADS = 4  # for the objects that pods depend on; a read takes milliseconds
# An audit recounts everything, some nodes at a time; 0.15 s in all at 5,000 nodes. That is too long
# for every scrape, and short enough to report a defect within a minute.
_AUDIT_SECONDS = 60.0
# A round of the worker takes milliseconds. A minute without one is a defect that a restart may
# cure.
_STUCK_SECONDS = 60.0


class NotReadyError(LinkwiseError):
    """A call before the cache is complete; the text says what is missing."""


class Loop:
    """Thread-safe between `start()` and `stop()`; it cannot be started again."""

    def __init__(
        self,
        core: Core,
        client: KubeClient,
        metrics: ExtenderMetrics,
        *,
        barrier_seconds: float = BARRIER_SECONDS,
        on_complete: Callable[[], object] = lambda: None,
        lead: Lead = ALONE,
        route_calls: Callable[[], object] = lambda: None,
        device_class: str = DEVICE_CLASS,
        namespace: str = "kube-system",
    ) -> None:
        """A bind waits for other members of its gang for *barrier_seconds* at most. *on_complete*
        is called when the cache is complete, and again when it has been rebuilt by a new leader.
        *route_calls* is called every few seconds while this process leads, and may raise
        ApiError. *device_class*: as of `Writer`. *namespace*: of the ConfigMap with
        the places of members to come."""
        self._on_complete = on_complete
        self._lead = lead
        self._core, self._metrics = core, metrics
        self._clock = client.clock
        self._lock = Lock()  # around every use of the core
        self._changes = 0  # of the core
        self._has_changed = Condition(self._lock)
        core.set_unlocker(self._aside)
        self._rounds = RoundLog()
        core.set_stopwatch(self._rounds.step)
        places = Places(client, namespace)
        self._kube = Writer(client, metrics, lead=lead, device_class=device_class, places=places)
        self._writes: Lanes[Action] = Lanes(self._act, namespace=_namespace, threads=_WRITE_THREADS)
        self._events: Lanes[Action] = Lanes(self._act, namespace=_namespace, threads=_EVENT_THREADS)
        self._owners = OwnerReads(client, metrics)
        self._refusals = RefusalReads(client)
        self._reads: Lanes[FetchOwner | FetchRefusals] = Lanes(
            self._read, namespace=lambda read: read.namespace, threads=_READ_THREADS
        )
        self._informers = Informers(client, metrics, core, self._tell, self._clock)
        self._changed = Event()
        self._urgent = Event()
        self._hurry = Event()  # a call waits for the planner
        self._stopping = Event()
        self._ending = Event()  # no bind waits for others any more
        self._beat = self._audited = time.monotonic()
        self._broken = 0  # invariants, at the last audit
        self._binding = 0  # Bindings in flight
        self._posting = BoundedSemaphore(
            _POSTED_AT_ONCE
        )  # a bind that waits for others posts nothing
        self._barrier_seconds = barrier_seconds
        self._released: dict[GangKey, Event] = {}  # set once the binds of a gang should ask again
        self._written: dict[str, Event] = {}  # by uid: binds that wait for a write on their pod
        self._has_decided = False  # since it became the leader
        self._worker = Thread(target=self._work, name="planner", daemon=True)
        self._takeover = Takeover(
            lead,
            core,
            self._lock,
            self._informers.pods,
            places,
            self._stopping,
            clock=self._clock,
            alive=self._note_alive,
            on_led=on_complete,
            route_calls=route_calls,
        )
        lead.on_lead(self._wake_at_once)
        metrics.watch_lead(lead)
        metrics.watch_books(self._census)

    def start(self) -> None:
        self._informers.start()
        self._worker.start()

    def stop(self, timeout_seconds: float = 3.0) -> bool:
        """End the watches and the planner; writes in flight get *timeout_seconds* to finish.

        True: no write and no Binding is in flight any more.
        """
        self.end_waits()
        self._stopping.set()
        self._wake_at_once()
        self._informers.stop(timeout_seconds)
        if self._worker.is_alive():
            self._worker.join(timeout_seconds)
        writes_end = time.monotonic() + timeout_seconds
        written = self._writes.stop(timeout_seconds)
        self._events.stop(max(writes_end - time.monotonic(), 0.0))
        self._reads.stop(max(writes_end - time.monotonic(), 0.0))
        return written and not self._binding

    def end_waits(self) -> None:
        """Let no bind wait for other members any more: each is refused at once."""
        self._ending.set()
        with self._lock:
            self._release(everyone=True)

    # kube-scheduler's calls

    def filter(self, call: FilterCall, waits: Callable[[], bool] = lambda: True) -> FilterAnswer:
        """*waits* says whether the caller still waits. Raises NotReadyError, GoneError."""
        self._require_ready()
        while True:
            with self._changing():  # the core may learn from a call that a plan was refused
                if not waits():
                    raise GoneError
                answer = self._core.filter(call, self._clock())
                seen = self._changes + 1  # this look itself counts as one
            if not answer.passing or self._stopping.is_set():
                return answer
            self._hurry.set()
            with self._lock:
                if self._changes == seen:
                    self._has_changed.wait(_FILTER_LOOK_SECONDS)

    def prioritize(self, call: FilterCall) -> PriorityAnswer:
        self._require_ready()
        with self._lock:
            return self._core.prioritize(call, self._clock())

    def preempt(self, call: PreemptCall) -> PreemptAnswer:
        self._require_ready()
        with self._lock:
            return self._core.preempt(call, self._clock())

    def bind(self, call: BindCall, waits: Callable[[], bool] = lambda: True) -> str:
        """Bind the pod. Return why not; empty if it is bound.

        *waits* says whether the caller still waits: once kube-scheduler has given up a bind call,
        it treats the pod as not bound. Raises NotReadyError, GoneError.
        """
        self._require_ready()
        order: BindOrder | AlreadyBound | BindRefusal | None = None
        try:
            order = self._begin_bind(call, waits)
        finally:
            self._written.pop(call.uid, None)
            if order is None or isinstance(order, BindRefusal):
                with self._changing():
                    self._core.bind_refused(call)
        if isinstance(order, BindRefusal):
            return order.reason
        if not isinstance(order, BindOrder):
            return ""  # AlreadyBound to that node
        outcome, refusal = Outcome.UNKNOWN, ""
        try:
            with self._posting:
                if not waits():
                    outcome = Outcome.REFUSED  # nothing is sent, so the assumed GPUs become free
                    raise GoneError
                outcome, refusal = self._kube.bind(order)
        finally:
            with self._changing():
                self._core.end_bind(order, outcome, self._clock(), refusal)
                self._binding -= 1
                decisions = self._core.take_decisions()
            log_decisions(decisions)
        return refusal

    def _begin_bind(
        self, call: BindCall, waits: Callable[[], bool]
    ) -> BindOrder | AlreadyBound | BindRefusal:
        """Ask the core, and retry for a moment while a refusal may pass; wait longer for the other
        members of a gang that start together.

        kube-scheduler's watch may show it a pod before the extender's does, and it may bind while
        the plan is still being written. A refusal would cost the pod a second and more.
        """
        began = time.monotonic()
        while True:
            with self._lock:
                if not waits():
                    raise GoneError
                order = self._core.begin_bind(call, self._clock())
                self._binding += isinstance(order, BindOrder)
                released = (
                    self._released.setdefault(order.gang, Event())
                    if isinstance(order, BindWaits)
                    else None
                )
                passing = isinstance(order, BindRefusal) and order.passing
                written = self._written.setdefault(call.uid, Event()) if passing else None
                self._release()
            if isinstance(order, BindWaits):
                assert released is not None, "it was made beside the answer"
                if not self._await(released, began + self._barrier_seconds, waits):
                    with self._lock:
                        refusal = self._core.bind_gave_up(call, self._clock())
                    if refusal is not None:
                        return refusal
                self._require_ready()  # another replica may lead by now
                continue
            if written is None or time.monotonic() > began + _BIND_PATIENCE_SECONDS:
                return order
            written.wait(_BIND_POLL_SECONDS)
            if self._stopping.is_set():
                return order  # the watches have stopped, so no retry can succeed

    def _await(self, released: Event, until: float, waits: Callable[[], bool]) -> bool:
        """Wait until the gang is *released*; False: it was not in time, or the loop stops. Raises
        GoneError."""
        while not self._ending.is_set() and (left := until - time.monotonic()) > 0:
            if released.wait(min(left, _LOOK_SECONDS)):
                return not self._ending.is_set()
            if not waits():
                raise GoneError
        return False

    def _release(self, *, everyone: bool = False) -> None:
        """Wake the binds that wait for other members and should ask the core again. The caller
        holds the lock."""
        keys = [*self._released] if everyone else self._core.take_released()
        for key in keys:
            if (event := self._released.pop(key, None)) is not None:
                event.set()

    # Users' requests and probes

    def snapshot(self) -> Snapshot:
        """The input of explanations, which take long and need no lock. Raises NotReadyError."""
        self._require_ready()
        while True:
            with self._lock:
                if (taken := self._core.begin_snapshot(self._clock())) is not None:
                    return taken
            time.sleep(_GAP_SECONDS)

    def look_at_emptying(
        self, nodes: Collection[str]
    ) -> Iterator[tuple[str, PodRecord, Move | Stays]]:
        """What becomes of each pod of these nodes, if they are emptied. Raises NotReadyError."""
        self._require_ready()
        with self._lock:
            steps = self._core.look_at_emptying(nodes, self._clock())
        while True:
            with self._lock:
                step = next(steps, None)
            if step is None:
                return
            yield step
            time.sleep(_GAP_SECONDS)

    def waits_for(self) -> str:
        """What is missing before a call can be answered; empty once ready."""
        if missing := self.reads():
            return missing
        # Before the first decision of a term, no GPUs are reserved for the oldest waiting gangs.
        has_taken_over = self._takeover.has_taken_over and self._has_decided
        refusal = self._lead.refusal() or ("" if has_taken_over else "not ready: taking over")
        return f"linkwise: {refusal}" if refusal else ""

    def reads(self) -> str:
        """What must still be read before the cache is complete, on the leader and on a standby."""
        missing = self._informers.missing()
        return f"linkwise: not ready: still reading {' and '.join(missing)}" if missing else ""

    def trouble(self) -> str:
        """Why the process should be restarted; empty while it is alive."""
        if not self._worker.is_alive():
            return "linkwise: the planner has ended"
        if (silent := time.monotonic() - self._beat) > _STUCK_SECONDS:
            return f"linkwise: the planner has not finished a round for {silent:.0f} s"
        return ""

    def _require_ready(self) -> None:
        if missing := self.waits_for():
            raise NotReadyError(missing)

    def audit(self) -> list[str]:
        """Recount the cache from scratch; log and count the invariants that do not hold."""
        with self._lock:
            broken = self._core.audit()
        for text in broken:
            log.error("broken invariant: %s", text)
        self._broken, self._audited = len(broken), time.monotonic()
        return broken

    def _census(self) -> Census:
        silent = self._informers.failing_seconds()
        # A sum over both replicas must not count twice, even while a Lease has just lapsed.
        if not self._takeover.has_taken_over or self._lead.act_seconds() <= 0:
            return Census(NOTHING.counts, 0, silent)
        with self._lock:
            counts = self._core.counts(self._clock())
        return Census(counts, self._broken, silent, self._kept_idle() if counts.waiting else 0)

    def _kept_idle(self) -> int:
        try:
            kept = kept_idle(self.snapshot())
        except NotReadyError:
            return 0
        return len({node for each in kept for node in each.nodes})

    # The cluster's changes

    def _tell(self, plural: str, tell: Callable[[float], None]) -> None:
        """Pass a change to the core. If the core cannot process it, the watch must go on, and must
        not repeat that change forever."""
        try:
            with self._changing():
                tell(self._clock())
        except Exception:
            self._defect(plural, f"the core could not process a change of {plural}")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock while the core changes; the planner's next round looks at that."""
        with self._lock:
            try:
                yield
            finally:
                if self._core.any_urgent():
                    self._urgent.set()
                self._changed.set()
                self._note_change()

    def _note_change(self) -> None:
        """Let calls whose answers may be better now look again. The caller holds the lock."""
        self._changes += 1
        self._has_changed.notify_all()

    def _wake_at_once(self) -> None:
        self._urgent.set()
        self._changed.set()

    # The core's decisions

    def _note_alive(self) -> None:
        self._beat = time.monotonic()

    def _work(self) -> None:
        sleep_seconds, complete = _LONGEST_SLEEP_SECONDS, False
        while not self._stopping.is_set():
            if self._changed.wait(sleep_seconds):
                self._urgent.wait(_CALM_SECONDS)
            self._changed.clear()
            self._urgent.clear()
            self._note_alive()
            if self._stopping.is_set() or self.reads():
                continue  # with an incomplete cache every plan would look impossible
            if not complete:
                self._on_complete()
                complete = True
            with self._lock:
                expects_call = self._core.expects_call()
            if expects_call:
                self._hurry.clear()  # of an earlier call
                self._hurry.wait(_CALL_SECONDS)
            try:
                leads = self._takeover.leads()
                sleep_seconds = self._decide() if leads else self._stand_by()
            except Exception:
                self._defect("decide", "this round made no decisions")
                self._stopping.wait(_LONGEST_SLEEP_SECONDS)
            if self._takeover.has_taken_over and time.monotonic() - self._audited > _AUDIT_SECONDS:
                self._audit_now()
            self._hurry.wait(_BREATH_SECONDS)
            self._hurry.clear()

    def _stand_by(self) -> float:
        with self._lock:
            self._release(everyone=True)
            if not self._takeover.has_taken_over:
                self._core.stand_by()
            reads = self._core.owners_to_read(self._clock())
        for read in reads:
            self._reads.add(read.ref, read)
        return _LONGEST_SLEEP_SECONDS

    def _decide(self) -> float:
        """Queue the core's actions for the writers. Return the seconds until the next round."""
        with self._lock:
            if self._informers.pods.failing_seconds:
                self._core.unheard(self._clock())
            self._rounds.begin()
            try:
                with self._metrics.decide_seconds.time():
                    actions = self._core.decide(self._clock())
            finally:
                self._has_decided = True  # a defect must not keep this process from being ready
            self._release()
            reads = self._core.owners_to_read(self._clock())
            refusals = self._core.refusals_to_read(self._clock())
            due = self._core.next_due()
            defects = self._core.take_defects()
            decisions = self._core.take_decisions()
            self._note_change()
        for read in reads:
            self._reads.add(read.ref, read)
        for asked in refusals:
            self._reads.add(asked, asked)
        for defect in defects:
            self._defect("decide", "this round left out a gang or a pod", defect)
        for action in actions:
            lanes = self._events if isinstance(action, Emit) else self._writes
            lanes.add(action.pod.uid, action)
        self._rounds.end()
        log_decisions(decisions)
        if due is None:
            return _LONGEST_SLEEP_SECONDS
        left = due - self._clock()
        return min(max(left, _SHORTEST_SLEEP_SECONDS), _LONGEST_SLEEP_SECONDS)

    def _aside(self, work: Callable[[], U]) -> U:
        """Run the planner's long work, which does not need the cache, without the lock."""
        self._lock.release()
        try:
            return work()
        finally:
            time.sleep(_GAP_SECONDS)  # a release alone would not let a waiting thread acquire it
            self._lock.acquire()

    def _audit_now(self) -> None:
        try:
            self.audit()
        except Exception:
            self._defect("audit", "the audit of the cache failed")
            self._audited = time.monotonic()

    def _act(self, action: Action) -> None:
        outcome = Outcome.UNKNOWN
        try:
            outcome = self._kube.perform(action)
        except Exception:
            self._defect("act", f"{type(action).__name__} {action.pod} failed")
        try:
            with self._changing():
                self._core.done(action, outcome, self._clock())
                decisions = self._core.take_decisions()
                if (written := self._written.pop(action.pod.uid, None)) is not None:
                    written.set()
            log_decisions(decisions)
        except Exception:
            self._defect("done", f"{type(action).__name__} {action.pod}: outcome not recorded")

    def _rejudge(self) -> bool:
        with self._lock:
            self._note_change()
            return self._core.rejudge(self._clock())

    def _read(self, read: FetchOwner | FetchRefusals) -> None:
        if isinstance(read, FetchOwner):
            self._read_owner(read)
            return
        found = None
        try:
            found = self._refusals.read(read)
        except Exception:
            self._defect("owners", f"{read} could not be read")
        with self._lock:
            self._core.refusals_read(read, found, self._clock())
        self._wake_at_once()

    def _read_owner(self, read: FetchOwner) -> None:
        found = None
        try:
            found = self._owners.read(read)
        except Exception:
            self._defect("owners", f"{read} could not be read")
        try:
            with self._lock:
                self._core.owner_read(read, found, self._clock())
                steps = self._core.steps_to_rejudge
                self._note_change()
            for _ in range(steps):
                self._rejudge()
                self._stopping.wait(_GAP_SECONDS)
        except Exception:
            self._defect("owners", f"the core could not process {read}")
        self._wake_at_once()

    def _defect(self, where: str, text: str, defect: Exception | None = None) -> None:
        log.error("%s", text, exc_info=defect or True)
        self._metrics.errors.labels(where).inc()


def _namespace(action: Action) -> str:
    return action.pod.namespace
