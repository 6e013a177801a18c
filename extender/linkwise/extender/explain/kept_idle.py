"""Nodes that stay idle for a gang that they cannot hold, as its verdict `in_vain` says.

A node autoscaler that adds nodes up to a maximum brings some of those that the gang needs. It
removes none of them again, because each could take a member that waits. It counts pods by
themselves, and sees none behind a gate.
"""

from linkwise.extender.api.records import PodRecord
from linkwise.extender.api.views import KeptIdle
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.explain.empty_cluster import EmptyCluster
from linkwise.extender.explain.snapshot import NodeState, Snapshot
from linkwise.extender.explain.texts.reasons import in_vain_in_words


def kept_idle(snapshot: Snapshot) -> tuple[KeptIdle, ...]:
    """By gang, in the order of the names."""
    empty = EmptyCluster(snapshot)
    idle = [node for node in snapshot.nodes if _is_idle(node)]
    found = []
    for gang in sorted(snapshot.gangs, key=lambda gang: gang.key):
        seen = [member for member in gang.found.open if member.demand.gpus and not member.gated]
        if gang.no_room is None or not seen or not idle:
            continue
        in_vain = empty.judged(gang).in_vain
        if in_vain is None:
            continue
        nodes = tuple(sorted(node.name for node in idle if _takes_one(node, seen)))
        if nodes:
            name = f"{gang.key.namespace}/{gang.key.name}"
            since = min(member.created for member in seen)
            coming = len(gang.found.coming)
            found.append(KeptIdle(name, in_vain_in_words(in_vain), since, nodes, coming))
    return tuple(found)


def _is_idle(node: NodeState) -> bool:
    return node.kind is not None and node.closed is None and not node.used and node.free > 0


def _takes_one(node: NodeState, members: list[PodRecord]) -> bool:
    requests = {GpuRequest(member.demand, member.ask.requirement) for member in members}
    kind = node.kind
    return kind is not None and any(
        kind.ever(each, node.free & kind.allowed(each.requirement)) for each in requests
    )
