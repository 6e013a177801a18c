"""Leader election: of several equal programs, only the holder of a Lease acts.

As in client-go, the holder renews a record in a Lease object, and another program takes it over
once the record has stood unchanged for the lease's length. Every write names the version that it
replaces, so of two programs that take the Lease one succeeds.

No clocks of two machines are compared. A holder counts from the moment *before* it sent the renewal
that succeeded, a candidate from the moment *after* it saw the record change. So the holder stops
(`renew_deadline_seconds`) before another begins (`lease_seconds`), and writes under way end in
between. The clock runs on while the machine sleeps.

Each takeover raises the Lease's `leaseTransitions`. That number is the term, a fencing token for
everything written in it. If a holder could not renew and no other has taken the Lease, it goes on
in its term. If another has, it has lost for good.

docs/decisions/kubernetes.md#11-leader-and-fencing says why this is not the kubernetes package's
election.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from threading import Event, Lock, Thread
from typing import Any

import msgspec

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError

log = logging.getLogger(__name__)
_COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_MICROSECONDS = "%Y-%m-%dT%H:%M:%S.%fZ"  # a MicroTime always has six digits

steady_seconds: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Timing:
    """client-go's defaults. The elector tries a renewal every `retry_seconds`."""

    lease_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0

    @property
    def silence_seconds(self) -> float:
        """If the holder has not renewed for this time (three tries), do not count on it."""
        return 3 * self.retry_seconds

    @property
    def slack_seconds(self) -> float:
        """Time between the moment a holder stops and the first moment another may begin."""
        return self.lease_seconds - self.renew_deadline_seconds


class _Spec(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: Mapping[str, Any]  # kept as received, so that a write preserves labels
    spec: _Spec = _Spec()

    @property
    def version(self) -> str:
        return str(self.metadata.get("resourceVersion", ""))

    @property
    def holder(self) -> str:
        return self.spec.holder_identity or ""

    @property
    def term(self) -> int:
        return self.spec.lease_transitions or 0


class Elector:
    """Takes and renews the Lease after `start()`.

    *identity* must be unique to this process, at any time. A holder whose identity begins with
    *predecessors* has ended, as this process replaces it; the elector then takes the Lease at once.

    *on_lost* is called once, in its own thread, when another process holds the Lease: this process
    must not act again. *on_silence* is called from the elector's thread when another's Lease was
    not renewed for `silence_seconds`: its holder may live, but do not count on it. It may raise
    ApiError.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing,
        on_lost: Callable[[str], object],
        on_silence: Callable[[], object] = lambda: None,
        predecessors: str = "",
        clock: Callable[[], float] = steady_seconds,
    ) -> None:
        self.identity, self.timing = identity, timing
        self.holder = ""  # as last seen
        self.switches = 0  # number of changes of the holder that were seen
        self.handed_over = (
            False  # True if the previous holder gave the Lease back with no write under way
        )
        self._client, self._clock, self._on_lost = client, clock, on_lost
        self._on_silence = on_silence
        self._predecessors = predecessors
        self._collection = _COLLECTION.format(namespace)
        self._path, self._name = f"{self._collection}/{name}", name
        self._on_change: Callable[[], object] = lambda: None
        self._lock = Lock()  # held during one round
        self._seen: _Lease | None = None  # the Lease as last read or written
        self._seen_at = 0.0  # when it was first seen in that state
        self._silence_told = False
        self._absent_since: float | None = None  # None: there is a Lease
        self._term = 0  # 0: this process never held the Lease
        self._may_until = -math.inf
        self._lost = False
        self._trouble = ""
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="elector", daemon=True)

    @property
    def term(self) -> int:
        """The term of this process; 0 before it holds the Lease."""
        return self._term

    def act_seconds(self) -> float:
        """Seconds for which this process may still begin to act; 0 or less: not at all."""
        return self._may_until - self._clock()

    def write_seconds(self) -> float:
        """Longest duration in seconds of a write that begins now; 0: none may begin.

        Another leader may begin after that.
        """
        left = self.act_seconds()
        return left + self.timing.slack_seconds if left > 0 else 0.0

    def refusal(self) -> str:
        """Say why this process may not act; "" while it may."""
        if self.act_seconds() > 0:
            return ""
        if self._term and not self._lost:
            return "the lease could not be renewed in time"
        return f"standby: the leader is {self.holder or 'yet to be found'}"

    def on_lead(self, on_change: Callable[[], object]) -> None:
        """Call *on_change* when this process gets the Lease."""
        self._on_change = on_change

    def start(self) -> None:
        """Start the election. A second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def outbid(self, term: int) -> None:
        """Raise this process's term above *term*, which no holder can have had. That happens if the
        Lease was deleted and counts from 0 again. Raises ApiError."""
        with self._lock:
            if self._seen is not None and 0 < self._term <= term:
                self._write(self._seen, term + 1, self._seen.spec.acquire_time)

    def stop(self, *, release: bool) -> None:
        """Stop holding the Lease. If no write is under way, *release* it, so that the next holder
        need not wait for its end."""
        self._stopping.set()
        held = self.act_seconds() > 0
        if not self._lock.acquire(timeout=self.timing.retry_seconds):
            self._may_until = -math.inf
            return  # the API server is away
        try:
            self._may_until = -math.inf
            if release and held and self._seen is not None:
                self._release(self._seen)
        finally:
            self._lock.release()

    def _release(self, seen: _Lease) -> None:
        spec = msgspec.structs.replace(
            seen.spec, holder_identity=None, lease_duration_seconds=1, renew_time=_now()
        )
        try:
            with self._client.within(self.timing.retry_seconds):
                self._client.replace(self._path, msgspec.structs.replace(seen, spec=spec), _Lease)
        except (ApiError, msgspec.MsgspecError) as error:
            log.warning("lease %s: not given back: %s", self._name, error)
        else:
            log.info("lease %s: given back", self._name)

    # Rounds

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._lost:
            try:
                with self._lock:
                    if not self._stopping.is_set():
                        # A longer try is useless, and two tries fit into the deadline.
                        with self._client.within(self.timing.renew_deadline_seconds / 2):
                            self._round()
                self._trouble = ""
            except ApiError as error:
                self._note(error.reason, error)
            except msgspec.MsgspecError as error:
                self._note("Unreadable", error)
            except Exception:
                log.exception("lease %s: a defect", self._name)
            self._stopping.wait(self.timing.retry_seconds)

    def _note(self, trouble: str, error: Exception) -> None:
        if trouble != self._trouble:
            log.warning("lease %s: %s; trying again", self._name, error)
        self._trouble = trouble

    def _round(self) -> None:
        if self._term and self._seen is not None:
            self._renew(self._seen)
            return
        found = self._read()
        if found is None:
            self._create_if_still_absent()
            return
        self._absent_since = None
        if self._is_free(found):
            self._take(found)
        elif self._clock() >= self._seen_at + self.timing.silence_seconds:
            self._tell_silence(found)

    def _tell_silence(self, found: _Lease) -> None:
        if not self._silence_told:
            log.warning("lease %s: %s does not renew it", self._name, found.holder)
            self._on_silence()
            self._silence_told = True

    def _read(self) -> _Lease | None:
        try:
            found = self._client.get(self._path, _Lease)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        if self._seen is None or found.version != self._seen.version:
            self._note_holder(found.holder)
            self._seen, self._seen_at = found, self._clock()
            self._silence_told = False
        return found

    def _is_free(self, found: _Lease) -> bool:
        # this process holds it: the answer to its write was lost
        if not found.holder or found.holder == self.identity:
            return True
        if self._predecessors and found.holder.startswith(self._predecessors):
            return True
        # The holder's own length, if it is longer than this process's.
        length = max(self.timing.lease_seconds, found.spec.lease_duration_seconds or 0)
        return self._clock() >= self._seen_at + length

    def _create_if_still_absent(self) -> None:
        """Create the Lease when it has been absent for `silence_seconds`. Manifests bring it, after
        the Deployment: `kubectl apply` fails if a process creates it in that moment."""
        now = self._clock()
        if self._absent_since is None:
            self._absent_since = now
        if now >= self._absent_since + self.timing.silence_seconds:
            self._create()

    def _create(self) -> None:
        sent = self._clock()
        lease = _Lease(metadata={"name": self._name}, spec=self._spec(1, None))
        try:
            stored = self._client.create(self._collection, lease, _Lease)
        except ApiError as error:
            if error.status != 409:
                raise
            return  # another process was faster
        self._hold(stored, sent)

    def _take(self, found: _Lease) -> None:
        self.handed_over = not found.holder
        try:
            self._write(found, found.term + 1, None)
        except ApiError as error:
            if error.status != 409:
                raise
            return  # another process was faster
        before = f"after {found.holder}" if found.holder else "given back by the one before"
        log.info("lease %s: held, term %d, %s", self._name, self._term, before)

    def _renew(self, seen: _Lease) -> None:
        try:
            self._write(seen, self._term, seen.spec.acquire_time)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            found = self._read()
            if found is None or found.holder != self.identity or found.term != self._term:
                self._lose(found)
            else:  # this process's write, whose answer was lost
                self._write(found, self._term, found.spec.acquire_time)

    def _write(self, old: _Lease, term: int, acquired: str | None) -> None:
        sent = self._clock()
        lease = msgspec.structs.replace(old, spec=self._spec(term, acquired))
        self._hold(self._client.replace(self._path, lease, _Lease), sent)

    def _spec(self, term: int, acquired: str | None) -> _Spec:
        now = _now()
        return _Spec(
            holder_identity=self.identity,
            lease_duration_seconds=math.ceil(self.timing.lease_seconds),
            acquire_time=acquired or now,
            renew_time=now,
            lease_transitions=term,
        )

    def _hold(self, stored: _Lease, sent: float) -> None:
        first = not self._term
        self._note_holder(self.identity)
        self._seen, self._seen_at = stored, self._clock()
        self._term = stored.term
        self._may_until = sent + self.timing.renew_deadline_seconds
        if first:
            self._on_change()

    def _note_holder(self, holder: str) -> None:
        if holder and holder != self.holder:
            self.switches += bool(self.holder)
            self.holder = holder

    def _lose(self, found: _Lease | None) -> None:
        self._lost, self._may_until = True, -math.inf
        who = "it is gone" if found is None else f"{found.holder or 'no process'} has it"
        why = f"lease {self._name}: lost: {who}, term {found.term if found else 0}"
        log.error("%s", why)
        Thread(target=self._on_lost, args=(why,), name="lease lost", daemon=True).start()


def _now() -> str:
    return datetime.now(UTC).strftime(_MICROSECONDS)
