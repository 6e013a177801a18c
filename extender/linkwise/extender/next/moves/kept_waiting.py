"""Which pods that do not consent to moves kept large jobs waiting, and for how long.

A search for moves that finds none is repeated as if all pods consented that could. If it finds
moves then, the pods among them that do not consent keep the gang or pod waiting from that time on:
until it starts, moves without them make room, or one of these pods goes or consents. They share the
wait by their GPUs. Each gang or pod counts by itself, as if the others did not wait.

The account is by workload, as its pods come and go. It has at most MOST rows: the one with the
fewest GPU seconds goes first, and only those that keep nothing waiting now.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.kube.labels import deployment_of

MOST = 256  # rows, and gangs and pods that are kept waiting now
_LONGEST_KIND, _LONGEST_NAME = 63, 253  # the API server does not bound those in ownerReferences


class Workload(NamedTuple):
    namespace: str
    kind: str  # of the controller, such as Deployment
    name: str


@dataclass(frozen=True, slots=True)
class KeptWaiting:
    """One workload's part in the wait of one gang or pod."""

    by: Workload
    title: str  # of what waits, like "gang ml/train"
    wanted: int  # GPUs that it waits for
    gpus: int  # of the pods that would have to move
    nodes: tuple[str, ...]  # where these are
    gpu_seconds: float = 0.0
    now: bool = False  # it is kept waiting still


@dataclass(frozen=True, slots=True)
class _Wait:
    since: float
    pods: tuple[PodRecord, ...]
    rows: tuple[KeptWaiting, ...]

    def until(self, now: float) -> Iterable[KeptWaiting]:
        """The rows, with this wait alone."""
        all_gpus = sum(row.gpus for row in self.rows)
        for row in self.rows:
            share = row.gpus / all_gpus
            yield replace(row, gpu_seconds=max(now - self.since, 0.0) * row.wanted * share)


class WaitAccount:
    def __init__(self) -> None:
        self._waits: dict[GangKey, _Wait] = {}
        self._rows: dict[tuple[Workload, str], KeptWaiting] = {}

    @property
    def waits(self) -> dict[GangKey, tuple[PodRecord, ...]]:
        """What is kept waiting now, and by which pods."""
        return {key: wait.pods for key, wait in self._waits.items()}

    def begin(self, key: GangKey, wanted: int, pods: Sequence[PodRecord], now: float) -> None:
        """From now on *pods* keep waiting what waits for so many GPUs."""
        before = self._waits.get(key)
        if before is not None and {pod.uid for pod in before.pods} == {pod.uid for pod in pods}:
            return
        self.end(key, now)
        if len(self._waits) == MOST:
            return
        by: dict[Workload, list[PodRecord]] = {}
        for pod in pods:
            by.setdefault(workload_of(pod), []).append(pod)
        rows = (
            KeptWaiting(
                workload,
                key.title,
                wanted,
                sum(pod.demand.gpus for pod in its),
                tuple(dict.fromkeys(pod.node for pod in its)),
                now=True,
            )
            for workload, its in by.items()
        )
        self._waits[key] = _Wait(now, tuple(pods), tuple(rows))

    def end(self, key: GangKey, now: float) -> None:
        wait = self._waits.pop(key, None)
        if wait is None:
            return
        for row in wait.until(now):
            self._rows[row.by, row.title] = replace(_added(self._rows, row), now=False)
        while len(self._rows) > MOST:
            least = min(self._rows.items(), key=lambda each: each[1].gpu_seconds)
            del self._rows[least[0]]

    def rows(self, now: float) -> tuple[KeptWaiting, ...]:
        """At most MOST, those with the most GPU seconds first."""
        found = dict(self._rows)
        for wait in self._waits.values():
            for row in wait.until(now):
                found[row.by, row.title] = _added(found, row)
        by_worth = sorted(found.values(), key=lambda row: (-row.gpu_seconds, row.by, row.title))
        return tuple(by_worth[:MOST])


def _added(rows: dict[tuple[Workload, str], KeptWaiting], row: KeptWaiting) -> KeptWaiting:
    before = rows.get((row.by, row.title))
    seconds = 0.0 if before is None else before.gpu_seconds
    return replace(row, gpu_seconds=seconds + row.gpu_seconds)


def workload_of(pod: PodRecord) -> Workload:
    """Its controller; of a Deployment's ReplicaSet, the Deployment."""
    kind, name = pod.owner_kind, pod.owner_name
    if kind == "ReplicaSet" and (deployment := deployment_of(name, pod.labels)):
        kind, name = "Deployment", deployment
    return Workload(pod.ref.namespace, kind[:_LONGEST_KIND], name[:_LONGEST_NAME])
