"""Counts the kinds of pods that came, so that room is kept for others like them.

All pods that the API server lists count, each once, however they end. The counts are halved when
there are many, so that a kind that stopped coming is forgotten. They are in memory only: a new
leader begins with the pods that are there.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from linkwise.extender.api.records import PodRecord
from linkwise.pods.requirement import ANYTHING, TopologyRequirement

MOST_KINDS = 32  # the most frequent ones; rarer pods find room by chance
MOST_PODS = 4096  # counted before the counts are halved
_GROWTH = 1.5  # the counts differ so little before that prices would stay as they are


@dataclass(frozen=True, slots=True)
class Ask:
    """What pods take of one node: *size* whole GPUs with the required models and memory, or as many
    shares of *resource*."""

    size: int
    requirement: TopologyRequirement = ANYTHING
    resource: str = ""  # empty: whole GPUs


class PodKind(NamedTuple):
    ask: Ask
    milli_cpu: int = 0
    memory: int = 0  # bytes


class PodMix:
    def __init__(self) -> None:
        self._counts: Counter[PodKind] = Counter()
        self._pods = 0
        self._next = 1.0
        self.version = 0  # rises when the counts have changed much

    def came(self, record: PodRecord) -> None:
        """Count a pod that was not there before."""
        if record.left_alone or record.invalid:
            return
        for kind in _kinds_of(record):
            self._counts[kind] += 1
            self._pods += 1
        if self._pods >= MOST_PODS:
            self._counts = Counter({k: n // 2 for k, n in self._counts.items() if n > 1})
            self._pods = self._counts.total()
            self._next = self._pods
        if self._pods >= self._next:
            self._next = max(self._pods * _GROWTH, 1.0)
            self.version += 1

    def shares(self) -> dict[PodKind, float]:
        """The most frequent kinds of pods, and how often each comes, of 1."""
        counts = self._counts.most_common(MOST_KINDS)
        total = sum(count for _, count in counts)
        return {kind: count / total for kind, count in counts}


def _kinds_of(record: PodRecord) -> Iterator[PodKind]:
    """One kind for the pod's whole GPUs, and one for each resource of which it takes shares."""
    on = TopologyRequirement(hardware=record.ask.requirement.hardware)
    wants = [(resource, demand.gpus) for resource, demand in record.shares]
    for resource, size in [("", record.demand.gpus), *wants]:
        if size:
            yield PodKind(Ask(size, on, resource), record.needs.milli_cpu, record.needs.memory)
