"""From standby to leader: the steps before the first decision of a term.

docs/decisions/kubernetes.md#11-leader-and-fencing has their order, and why each one is needed.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from threading import Event, Lock

import msgspec

from linkwise.extender.core import Core
from linkwise.extender.run.leadership import Lead
from linkwise.extender.run.places import Places
from linkwise.kube.errors import ApiError
from linkwise.kube.objects import Pod
from linkwise.kube.reflector import Reflector

log = logging.getLogger(__name__)

# A write in flight when its sender died or was stopped has reached the API server by then.
_SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.01
# If the Lease was deleted, its terms restart at 0 while plans carry higher ones; the new leader
# then moves above those. But any kubelet may write a plan on its pods. A term that is further ahead
# than years of leaders could reach is ignored: the Lease might not be able to hold a later one.
_MOST_AHEAD = 10_000
# A user may delete the EndpointSlice that routes kube-scheduler's calls here, so it is rewritten.
_ROUTE_SECONDS = 5.0


class Takeover:
    """Takes over when this process becomes the leader.

    One thread calls `leads` repeatedly. Any thread may read `has_taken_over`: whether this
    process became the leader and has rebuilt its cache since.
    """

    def __init__(
        self,
        lead: Lead,
        core: Core,
        lock: Lock,
        pods: Reflector[Pod],
        places: Places,
        stopping: Event,
        *,
        clock: Callable[[], float],
        alive: Callable[[], object],
        on_led: Callable[[], object],
        route_calls: Callable[[], object],
    ) -> None:
        """The take-over calls *alive* while it waits."""
        self.has_taken_over = lead.act_seconds() == math.inf  # the only process has no predecessor
        self._lead, self._core, self._lock, self._pods = lead, core, lock, pods
        self._places, self._has_places = places, False
        self._stopping, self._clock, self._alive = stopping, clock, alive
        self._on_led, self._route_calls = on_led, route_calls
        self._routed_at = -math.inf

    def leads(self) -> bool:
        """Whether to decide now. If this process has just become the leader, it takes over
        first."""
        if self._lead.act_seconds() <= 0:
            return False
        if not self.has_taken_over:
            try:
                self.has_taken_over = self._take_over()
            except (ApiError, msgspec.MsgspecError) as error:
                log.warning("cannot take over: %s", error)
        elif not self._has_places and self._core.synced:  # the only process has begun
            try:
                self._restore(self._places.read())
            except (ApiError, msgspec.MsgspecError) as error:
                log.warning("cannot read the places of members to come: %s", error)
                return False
        if self.has_taken_over and time.monotonic() - self._routed_at > _ROUTE_SECONDS:
            self._route()
        return self.has_taken_over

    def _take_over(self) -> bool:
        """List the pods again, so that the cache has the last write of the previous leader, then
        lead. False: this process stopped or lost the Lease meanwhile."""
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
        texts = self._places.read()
        with self._lock:
            self._core.lead(self._lead.term, self._clock())
        self._restore(texts)
        self._on_led()
        log.info("leading, term %d", self._lead.term)
        return True

    def _restore(self, texts: Mapping[str, str]) -> None:
        with self._lock:
            self._core.restore_places(texts, self._clock())
        self._has_places = True

    def _route(self) -> None:
        try:
            self._route_calls()
            self._routed_at = time.monotonic()
        except (ApiError, msgspec.MsgspecError) as error:
            log.warning("cannot route kube-scheduler's calls here yet: %s", error)
