"""Recognises gangs and pods for which no cluster of these nodes has room, by counting GPUs.

`cycle.reserve` searches for a place on nodes without pods, but only for gangs that may reserve
GPUs. For those behind them this count is enough. It ignores CPU, taints and spans, so it rules out
less than a search. It rules out nothing while the machine of a node with GPUs is not known.
"""

from collections import Counter

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.machine_kind import GpuRequest, MachineKind
from linkwise.extender.cycle.reserve import InVain
from linkwise.extender.explain.node_arrays import has_gpus
from linkwise.extender.explain.snapshot import GangState, Snapshot
from linkwise.extender.gangs.partial_admission import needed


class EmptyCluster:
    """The GPUs of all nodes, as if no pod had any."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._kinds: dict[int, MachineKind] = {}
        self._nodes: Counter[int] = Counter()  # by the id of their kind
        self._by_count: Counter[int] = Counter()  # GPUs of a node -> nodes
        self._is_known, self._are_shared = True, False
        for node in snapshot.nodes:
            # Replicas of a GPU may count as GPUs, for pods in no gang.
            self._are_shared |= node.shares.offers(snapshot.managed)
            if node.by_count is not None:
                self._by_count[node.by_count.gpus] += 1
            elif node.kind is not None:
                self._kinds[id(node.kind)] = node.kind
                self._nodes[id(node.kind)] += 1
            else:
                self._is_known &= not has_gpus(node)
        self._known: dict[GpuRequest, int] = {}

    def rules_out(self, record: PodRecord) -> bool:
        """Whether no node is large enough for the pod, which is in no gang."""
        if not record.demand.gpus or self._are_shared or not self._is_known:
            return False
        return not self._holds(_request(record))

    def judged(self, gang: GangState) -> GangState:
        """*gang* with `in_vain`, even if no search has said it."""
        if gang.in_vain is not None or not self._rules_out(gang):
            return gang
        return gang._replace(in_vain=InVain.NEVER_FITS)

    def _rules_out(self, gang: GangState) -> bool:
        if gang.no_room is None or not self._is_known or (gang.alone and self._are_shared):
            return False
        members = needed(gang.found).open
        wanted = Counter(_request(member) for member in members if member.demand.gpus)
        return any(pods > self._holds(request) for request, pods in wanted.items())

    def _holds(self, request: GpuRequest) -> int:
        """How many such pods it holds; not less than that."""
        if request not in self._known:
            self._known[request] = sum(
                self._nodes[number] * _most(kind, request) for number, kind in self._kinds.items()
            ) + sum(gpus // request.size * nodes for gpus, nodes in self._by_count.items())
        return self._known[request]


def _request(record: PodRecord) -> GpuRequest:
    return GpuRequest(record.demand, record.ask.requirement)


def _most(kind: MachineKind, request: GpuRequest) -> int:
    """How many such pods one machine holds; not less than that."""
    usable = kind.allowed(request.requirement)
    if not kind.ever(request, usable):
        return 0
    return usable.bit_count() // request.size
