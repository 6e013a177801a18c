"""Recognises gangs and pods that have no room even on idle nodes, by counting GPUs.

The extender searches for a place on nodes without other pods only for gangs that may reserve GPUs.
For those behind them this count is enough: it takes no search, and is never wrong if it says that
something does not fit. It ignores CPU, taints and spans, so a gang may still have no room without
it saying so.
"""

from collections import Counter

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.machine_kind import GpuRequest, MachineKind
from linkwise.extender.cycle.reserve import NEVER_FITS
from linkwise.extender.explain.snapshot import GangState, Snapshot
from linkwise.extender.gangs.partial_admission import needed


class IdleCapacity:
    """How many pods the GPUs of all nodes would hold if all of them were free."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._kinds: dict[int, MachineKind] = {}
        counted: Counter[int] = Counter()
        self._by_count: Counter[int] = Counter()  # GPUs of a node -> nodes
        self._are_shared = False  # replicas of a GPU count as GPUs somewhere
        for node in snapshot.nodes:
            self._are_shared |= node.shares.offers(snapshot.managed)
            if node.by_count is not None:
                self._by_count[node.by_count.gpus] += 1
            elif node.kind is not None:
                self._kinds[id(node.kind)] = node.kind
                counted[id(node.kind)] += 1
        self._nodes = counted
        self._known: dict[GpuRequest, int] = {}

    def is_too_small(self, record: PodRecord) -> bool:
        """Whether no node has room for the pod, which is in no gang."""
        return bool(record.demand.gpus) and not self._are_shared and not self._of(record)

    def _of(self, record: PodRecord) -> int:
        """How many pods like *record*, which takes GPUs; at least as many as fit."""
        request = GpuRequest(record.demand, record.ask.requirement)
        if request not in self._known:
            self._known[request] = sum(
                self._nodes[number] * _most(kind, request) for number, kind in self._kinds.items()
            ) + sum(gpus // request.size * nodes for gpus, nodes in self._by_count.items())
        return self._known[request]

    def in_vain(self, gang: GangState) -> str:
        """`GangState.in_vain`, also of a gang without room for which no search has said it."""
        if gang.in_vain or gang.no_room is None or (gang.alone and self._are_shared):
            return gang.in_vain
        wanted: dict[object, list[PodRecord]] = {}
        for pod in needed(gang.found).open:
            if pod.demand.gpus:
                wanted.setdefault((pod.demand, pod.ask.requirement), []).append(pod)
        too_many = any(len(pods) > self._of(pods[0]) for pods in wanted.values())
        return NEVER_FITS if too_many else ""


def _most(kind: MachineKind, request: GpuRequest) -> int:
    """At least as many such pods as one machine holds."""
    usable = kind.allowed(request.requirement)
    if kind.take(request, usable) is None:
        return 0
    return usable.bit_count() // request.size
