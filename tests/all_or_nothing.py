"""The law of gangs, by what the API server shows of their pods.

- While a gang has a bound member it has at least its minimum, members that succeeded included.
  Excused: a gang that had its minimum once, or of which a member ended, left or was deleted since
  the last look. Such a member may have been bound in between. So is one of which a member was
  deleted, as long as the extender cannot know it.
- No member of a gang is evicted because the gang started by half.

A gang is judged from its first Binding until none of its pods has a node. What Linkwise itself says
of the start excuses only a gang that had begun before the first look.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import Pod
from linkwise.topology import names

_BACKOFF_SECONDS = 10.0  # kube-scheduler's longest (podMaxBackoffSeconds)


@dataclass(slots=True)
class _Seen:
    live: set[str] = field(default_factory=set)  # uids, at the last look
    was_idle: bool = False  # at some look it had no pod on a node
    is_excused: bool = False
    partial_since: float | None = None
    is_by_fault: bool = False
    is_reported: bool = False


@dataclass(slots=True)
class AllOrNothing:
    """*grace_seconds*: between the first and the last Binding of a gang that starts. They are sent
    at once, and arrive one by one. *after_fault_seconds*: how long it may be partial after a lost
    write. kube-scheduler backs off, and a controller may have to create a pod again."""

    grace_seconds: float = 0.0
    after_fault_seconds: float = 180.0
    partial: float = 0.0  # the longest that a gang without excuse was partial, in seconds
    _seen: defaultdict[str, _Seen] = field(default_factory=lambda: defaultdict(_Seen))
    _evicted: set[str] = field(default_factory=set)

    def look(
        self,
        pods: Iterable[Pod],
        now: float,
        faults_at: float = -math.inf,
        unseen: Collection[str] = (),
    ) -> list[str]:
        """Return each broken law once. *faults_at*: when a write was last lost. *unseen*: gangs of
        which a member was deleted, and the extender's watch has not shown it."""
        gangs: defaultdict[str, list[Pod]] = defaultdict(list)
        for pod in pods:
            if gang := gang_of(pod):
                gangs[gang].append(pod)
        for gone in self._seen.keys() - gangs.keys():
            del self._seen[gone]
        return [
            text
            for gang, members in gangs.items()
            for text in self._judge(gang, members, now, faults_at, unseen=gang in unseen)
        ]

    def evicted(self, pod: Pod) -> str:
        """Return what is wrong with the eviction of *pod*, which is still as `look` saw it."""
        seen = self._seen.get(gang_of(pod))
        is_excused = seen is None or seen.is_excused or seen.is_by_fault
        if is_excused or pod.metadata.uid in self._evicted:
            return ""
        self._evicted.add(pod.metadata.uid)
        return f"{pod.metadata.name} is evicted, and gang {gang_of(pod)} never had its minimum"

    def _judge(
        self, gang: str, members: list[Pod], now: float, faults_at: float, *, unseen: bool
    ) -> Iterator[str]:
        seen = self._seen[gang]
        on_nodes = [p for p in members if p.spec.node_name and not p.has_ended]
        bound = {p.metadata.uid for p in on_nodes if not p.is_leaving}
        succeeded = {p.metadata.uid for p in members if p.status.phase == "Succeeded"}
        least = minimum_of(members[0])
        began = any(names.STARTED in pod.metadata.annotations for pod in members)
        ended = {p.metadata.uid for p in members if p.has_ended}
        leaves = {p.metadata.uid for p in members if p.metadata.deletion_timestamp}
        live = {p.metadata.uid for p in members} - ended - leaves
        if not on_nodes and (seen.was_idle or not began):
            self._seen[gang] = _Seen(live, was_idle=True)
            return
        evicted = [pod for pod in members if _is_evicted(pod)]
        lost = seen.live - live - succeeded
        seen.is_excused |= (
            (began and not seen.was_idle)
            or not lost <= {pod.metadata.uid for pod in evicted}
            or len(bound) + len(succeeded) >= least
        )
        for pod in evicted:
            if broken := self.evicted(pod):
                yield broken
        seen.is_excused |= bool(lost) or unseen
        seen.live = live
        if seen.is_excused or not bound:
            seen.partial_since = None
            return
        if seen.partial_since is None:
            seen.partial_since = now
        since = seen.partial_since
        allowed = self.grace_seconds
        # Members whose Bindings were lost together are tried again one by one.
        seen.is_by_fault |= faults_at >= since - max(self.grace_seconds, _BACKOFF_SECONDS)
        if seen.is_by_fault:
            since, allowed = max(since, faults_at), allowed + self.after_fault_seconds
        else:
            self.partial = max(self.partial, now - since)
        if now - since >= allowed and not seen.is_reported:
            seen.is_reported = True
            yield f"gang {gang}: {len(bound)} of {least} bound from {since:.1f} to {now:.1f}"


def gang_of(pod: Pod) -> str:
    """Mirror pods are in none."""
    if MIRROR_POD in pod.metadata.annotations:
        return ""
    gang = pod.metadata.annotations.get(names.GANG, "")
    return f"{pod.metadata.namespace}/{gang}" if gang else ""


def minimum_of(pod: Pod) -> int:
    said = pod.metadata.annotations
    return int(said.get(names.GANG_MIN, said[names.GANG_SIZE]))


def _is_evicted(pod: Pod) -> bool:
    return pod.is_leaving and any(
        condition.type == "DisruptionTarget" and condition.reason == "EvictionByEvictionAPI"
        for condition in pod.status.conditions
    )
