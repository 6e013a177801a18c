"""The pods that use the GPUs of a node, and when these GPUs come free; reservations depend on it.

- A pod declares with `linkwise.dev/expected-duration` how long it runs, counted from its plan.
- If a pod runs longer than it declared, or declares nothing, `queue.run_times` estimates its end.
- A server, whose containers the kubelet restarts however they end, never ends by itself.
- A pod that is ending is the next to end. If it takes far longer than its grace period, it is
  stuck.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

from linkwise.extender.next.queue.run_times import RunTimes, broken_after
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.records import PodRecord, ResourceList

# After the grace period of a pod, or its end, the kubelet and the plugin return its GPUs within
# seconds. A pod that takes longer is stuck: a dead node, a process in the driver, a finalizer.
STUCK_SECONDS = 60.0
_FRESH_SECONDS = 30.0  # how long an estimate is reused
_NOTHING = ResourceList()


@dataclass(frozen=True, slots=True)
class Tenant:
    uid: str
    gpus: int  # bitmask
    needs: ResourceList  # the resources that come free with the GPUs
    pods: int  # 1; 0 for a pod that has ended, and whose GPUs are not yet returned
    end: float  # when its GPUs come free; infinity: never by itself
    sure: bool  # the pod declares its end, or is ending, or never ends; else it is an estimate
    known: bool = True  # False: the estimate has no ground, as no such pod has ended yet
    late: bool = False  # it runs for longer than it declared

    @property
    def endless(self) -> bool:
        return self.end == math.inf


@dataclass(frozen=True, slots=True)
class OnNode:
    """The running pods of one node."""

    all: tuple[Tenant, ...]
    until: float  # when this has to be computed again

    def without(self, uids: Container[str]) -> tuple[Tenant, ...]:
        return tuple(tenant for tenant in self.all if tenant.uid not in uids)


class RunningPods:
    """Computes the running pods of a node again only if the node changed or an estimate is old."""

    def __init__(self, cache: Cache, run_times: RunTimes) -> None:
        self._cache, self._run_times = cache, run_times
        self._known: dict[str, tuple[object, OnNode]] = {}
        # node -> uid -> since when the cache shows that the pod has ended or is gone
        self._ended: dict[str, dict[str, float]] = {}

    def on(self, info: NodeInfo, now: float) -> OnNode:
        state = (info.settled, info.version)
        known = self._known.get(info.name)
        if known is not None and known[0] == state and now < known[1].until:
            return known[1]
        found = self._on_node(info, now)
        self._known[info.name] = (state, found)
        return found

    def tenant(self, record: PodRecord, now: float) -> Tenant:
        """A live pod on its node; one with shares alone has no GPUs."""
        info = self._cache.nodes[record.node]
        known = next((each for each in self.on(info, now).all if each.uid == record.uid), None)
        return self._running(info, record, 0, now) if known is None else known

    def leaving(self, info: NodeInfo, now: float) -> Mapping[str, int]:
        """uid -> GPUs of the pods that are about to return them."""
        return {
            tenant.uid: tenant.gpus
            for tenant in self.on(info, now).all
            if tenant.sure and tenant.end <= now
        }

    def forget_all_but(self, names: Container[str]) -> None:
        for known in (self._known, self._ended):
            for name in [name for name in known if name not in names]:
                del known[name]

    def _on_node(self, info: NodeInfo, now: float) -> OnNode:
        ended = self._note_ended(info, now)
        running_pods, until = [], now + _FRESH_SECONDS
        for uid, gpus in info.owned.items():
            record = self._cache.pods.get(uid)
            since = ended.get(uid)
            if since is None and record is not None and record.leaving:
                since = record.leaving_until
            if since is not None:
                stuck_at = since + STUCK_SECONDS
                tenant = self._ending(record, uid, gpus, since, now)
                until = min(until, stuck_at) if now < stuck_at else until
            else:
                assert record is not None, "a pod that is gone is in *ended*"
                tenant = self._running(info, record, gpus, now)
                until = min(until, tenant.end) if tenant.sure else until
            running_pods.append(tenant)
        return OnNode(tuple(running_pods), until)

    def _note_ended(self, info: NodeInfo, now: float) -> Mapping[str, float]:
        before = self._ended.get(info.name, {})
        ended = {
            uid: before.get(uid, now)
            for uid in info.owned
            if (record := self._cache.pods.get(uid)) is None or record.ended
        }
        if ended:
            self._ended[info.name] = ended
        else:
            self._ended.pop(info.name, None)
        return ended

    @staticmethod
    def _ending(record: PodRecord | None, uid: str, gpus: int, since: float, now: float) -> Tenant:
        is_stuck = now >= since + STUCK_SECONDS
        end = now + (now - since) if is_stuck else now
        if record is None or record.ended:
            return Tenant(uid, gpus, _NOTHING, 0, end, sure=not is_stuck, known=not is_stuck)
        return Tenant(uid, gpus, record.needs, 1, end, sure=not is_stuck, known=not is_stuck)

    def _running(self, info: NodeInfo, record: PodRecord, gpus: int, now: float) -> Tenant:
        written = record.plan_for(info.name) if record.node else self._cache.plans.get(record.uid)
        since = record.created if written is None else written.plan.made
        said = record.declared_seconds(written)
        late = said is not None and now > since + broken_after(said)
        if not self._run_times.word_counts(record.ref.namespace):
            said = None
        if said is not None and written is not None and since + said > now:
            return Tenant(record.uid, gpus, record.needs, 1, since + said, sure=True)
        if record.endless:
            return Tenant(record.uid, gpus, record.needs, 1, math.inf, sure=True)
        age = max(now - since, 0.0)
        end, known = now + self._run_times.left(record, age), self._run_times.learnt(record, age)
        return Tenant(
            record.uid, gpus, record.needs, 1, end, sure=False, known=known is not None, late=late
        )
