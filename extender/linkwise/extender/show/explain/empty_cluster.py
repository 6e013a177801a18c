"""Recognises gangs and pods for which no cluster of these nodes has room, by counting GPUs.

`cycle.reserve` searches for a place on nodes without pods, but only for gangs that may reserve
GPUs. For those behind them this count is enough. It ignores CPU, taints and spans, so it rules out
less than a search. It rules out nothing while the machine of a node with GPUs is not known.
"""

from collections import Counter

from linkwise.extender.next.cycle.reserve import InVain
from linkwise.extender.next.gangs.members import needed
from linkwise.extender.show.explain.node_arrays import has_gpus
from linkwise.extender.show.explain.snapshot import GangState, Snapshot
from linkwise.extender.state.cache.machine_kind import GpuRequest, MachineKind
from linkwise.extender.state.records import PodRecord


class EmptyCluster:
    """The GPUs of all nodes, as if no pod had any."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._kinds: dict[int, MachineKind] = {}
        self._nodes: Counter[tuple[str, int]] = Counter()  # by resource and the id of their kind
        self._by_count: Counter[tuple[str, int]] = Counter()  # by resource and GPUs of a node
        self._is_known, self._are_shared = True, False
        for node in snapshot.nodes:
            # Replicas of a GPU may count as GPUs, for pods in no gang.
            self._are_shared |= any(map(node.shares.offers, snapshot.resources))
            resource = "" if node.record is None else node.record.resource
            if node.by_count is not None:
                self._by_count[resource, node.by_count.gpus] += 1
            elif node.kind is not None:
                self._kinds[id(node.kind)] = node.kind
                self._nodes[resource, id(node.kind)] += 1
            else:
                self._is_known &= not has_gpus(node)
        self._known: dict[_Wish, int] = {}

    def rules_out(self, record: PodRecord) -> bool:
        """Whether no node is large enough for the pod, which is in no gang."""
        if not record.demand.gpus or self._are_shared or not self._is_known:
            return False
        return not self._holds(_wish(record))

    def judged(self, gang: GangState) -> GangState:
        """*gang* with `in_vain`, even if no search has said it."""
        if gang.in_vain is not None or not self._rules_out(gang):
            return gang
        return gang._replace(in_vain=InVain.NEVER_FITS)

    def _rules_out(self, gang: GangState) -> bool:
        if gang.no_room is None or not self._is_known or (gang.alone and self._are_shared):
            return False
        members = needed(gang.found).open
        wanted = Counter(_wish(member) for member in members if member.demand.gpus)
        return any(pods > self._holds(wish) for wish, pods in wanted.items())

    def _holds(self, wish: "_Wish") -> int:
        """How many such pods it holds; not less than that."""
        if wish not in self._known:
            resource, request = wish
            self._known[wish] = sum(
                nodes * _most(self._kinds[number], request)
                for (of, number), nodes in self._nodes.items()
                if of == resource
            ) + sum(
                gpus // request.size * nodes
                for (of, gpus), nodes in self._by_count.items()
                if of == resource
            )
        return self._known[wish]


_Wish = tuple[str, GpuRequest]
"""The resource of a pod, and its request."""


def _wish(record: PodRecord) -> _Wish:
    return record.resource, GpuRequest(record.demand, record.ask.requirement)


def _most(kind: MachineKind, request: GpuRequest) -> int:
    """How many such pods one machine holds; not less than that."""
    usable = kind.allowed(request.requirement)
    if not kind.ever(request, usable):
        return 0
    return usable.bit_count() // request.size
