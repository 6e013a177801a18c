"""What the extender knows of its own part: who asks it, which pods come past it, and which nodes
stay idle for a gang that they cannot hold."""

from linkwise.extender.show.explain.empty_cluster import EmptyCluster
from linkwise.extender.show.explain.moves import kept_waiting
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.show.explain.texts.reasons import in_vain_in_words
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import KeptIdle, StateView, UnplannedPod


def kept_idle(snapshot: Snapshot) -> tuple[KeptIdle, ...]:
    """By gang, in the order of the names.

    Nodes that stay idle for a gang that they cannot hold, as its verdict `in_vain` says.

    A node autoscaler that adds nodes up to a maximum brings some of those that the gang needs. It
    removes none of them again, because each could take a member that waits. It counts pods by
    themselves, and sees none behind a gate.
    """
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
    resource = None if node.record is None else node.record.resource
    requests = {
        GpuRequest(member.demand, member.ask.requirement)
        for member in members
        if member.resource == resource
    }
    kind = node.kind
    return kind is not None and any(
        kind.ever(each, node.free & kind.allowed(each.requirement)) for each in requests
    )


def view_state(snapshot: Snapshot) -> StateView:
    own = snapshot.own
    return StateView(
        at=snapshot.at,
        began=own.began,
        resource=snapshot.resources[0],
        more_resources=snapshot.resources[1:],
        namespaces=own.namespaces,
        calls=snapshot.calls,
        unplanned=tuple(_unplanned(snapshot, own.began)),
        failing=tuple(_failing(snapshot)),
        kept_idle=kept_idle(snapshot),
        uncreated={
            f"{gang.key.namespace}/{gang.key.name}": gang.uncreated
            for gang in snapshot.gangs
            if gang.uncreated
        },
        kept_waiting=kept_waiting(snapshot),
    )


def _failing(snapshot: Snapshot) -> list[str]:
    may_be_evicted = snapshot.own.may_be_evicted
    return [
        record.key
        for record in snapshot.pods
        if record.ask.eviction_fails_job
        and record.live
        and not record.left_alone
        and may_be_evicted(record.ref.namespace, record.ask)
    ]


def _unplanned(snapshot: Snapshot, began: float) -> list[UnplannedPod]:
    """The pods that were created since *began* and bound to a node with a topology, without a
    plan for it and without a call of their scheduler since. DaemonSets' pods count too: their
    scheduler is to ask as well. A scheduler that calls may have bound a pod by count, before its
    node had a topology."""
    return [
        UnplannedPod(record.key, record.node, record.scheduler)
        for record in snapshot.pods
        if record.node
        and record.live
        and record.demand.gpus
        and not record.left_alone
        and record.created > max(began, snapshot.calls.get(record.scheduler, 0.0))
        and record.plan_for(record.node) is None
        and (node := snapshot.node_named.get(record.node)) is not None
        and node.machine is not None
    ]
