"""From standby to leader: what must have happened before the first decision of a term.

docs/decisions/0011-leader-and-fencing.md has the order of it, and why each step is needed.
"""

import logging
import math
import time
from collections.abc import Callable
from threading import Event, Lock

import msgspec

from linkwise.extender.core import Scheduler
from linkwise.extender.runtime.leadership import Lead
from linkwise.kube.errors import ApiError
from linkwise.kube.objects import Pod
from linkwise.kube.reflector import Reflector

log = logging.getLogger(__name__)

# What was on its way to the API server when its sender died, or was stopped, has arrived by then.
_SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.01
# The Lease may have been deleted, and its terms count from nought; plans name the old ones, and are
# outbid. But any kubelet may write a plan on its pods. A term further ahead than years of leaders
# could come is none, and the Lease might not be able to name a later one.
_MOST_AHEAD = 10_000
# Somebody may delete the EndpointSlice that leads kube-scheduler to us.
_CALLS_SECONDS = 5.0


class Succession:
    """For one thread, which asks `leads` again and again. `acts` may be read by any: whether the
    books are this leader's own, made anew since it leads."""

    def __init__(
        self,
        lead: Lead,
        core: Scheduler,
        lock: Lock,
        pods: Reflector[Pod],
        stopping: Event,
        *,
        clock: Callable[[], float],
        alive: Callable[[], object],
        on_led: Callable[[], object],
        take_calls: Callable[[], object],
    ) -> None:
        """*alive* is called while something is waited for."""
        self.acts = lead.act_seconds() == math.inf  # who leads alone takes over from nobody
        self._lead, self._core, self._lock, self._pods = lead, core, lock, pods
        self._stopping, self._clock, self._alive = stopping, clock, alive
        self._on_led, self._take_calls = on_led, take_calls
        self._called_at = -math.inf

    def leads(self) -> bool:
        """Whether to decide now; who has just come to lead takes over first."""
        if self._lead.act_seconds() <= 0:
            return False
        if not self.acts:
            try:
                self.acts = self._take_over()
            except (ApiError, msgspec.MsgspecError) as error:
                log.warning("the Lease cannot be told of a later term: %s", error)
        if self.acts and time.monotonic() - self._called_at > _CALLS_SECONDS:
            self._call()
        return self.acts

    def _take_over(self) -> bool:
        """Make the books complete up to the last write of the leader before, and decide by them
        from then on. Whether that came about."""
        if not self._lead.handed_over:
            self._stopping.wait(_SETTLE_SECONDS)
        number = self._pods.list_again()
        while not self._pods.has_listed(number):
            self._alive()
            if self._stopping.wait(_POLL_SECONDS) or self._lead.act_seconds() <= 0:
                return False
        with self._lock:
            latest = self._core.latest_term(self._lead.term + _MOST_AHEAD)
        if latest >= self._lead.term:
            self._lead.outbid(latest)
        with self._lock:
            self._core.lead(self._lead.term, self._clock())
        self._on_led()
        log.info("leading, term %d", self._lead.term)
        return True

    def _call(self) -> None:
        try:
            self._take_calls()
            self._called_at = time.monotonic()
        except (ApiError, msgspec.MsgspecError) as error:
            log.warning("kube-scheduler is not sent to us yet: %s", error)
