"""The worth of a gang's GPUs together, computed from a snapshot."""

from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.place.communicator import Share, estimate
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.state.records import natural
from linkwise.extender.state.views import CommunicatorView, RingView
from linkwise.pods.spans import CLIQUE, NODE, ordered, spans_of


def communicator_of(
    snapshot: Snapshot, levels: tuple[str, ...], members: GangMembers
) -> CommunicatorView | None:
    """The communicator of the members that are bound or planned.

    None for fewer than two GPUs, and for members that do not communicate. *levels* are those in
    which at least one node has a domain.
    """
    spans = spans_of(member.ask.spans for member in members.seats)
    if spans.apart:
        return None
    levels = tuple(
        level
        for level in ordered(levels, spans)
        if level in levels or any(domain_of(node, level) for node in snapshot.nodes)
    )
    uids = {member.uid for member in members.seats}
    names = {member.node for member in members.bound}
    names |= {plan.plan.node for uid in uids if (plan := snapshot.plans.get(uid))}
    nodes = [snapshot.node_named[name] for name in names if name in snapshot.node_named]
    parts = [
        (node.name, Share(node.kind, gpus, tuple(domain_of(node, level) for level in levels)))
        for node in sorted(nodes, key=lambda node: natural(node.name))
        if node.kind is not None
        and (gpus := sum(mask for uid, mask in node.owned.items() if uid in uids))
    ]
    if sum(share.gpus.bit_count() for _, share in parts) < 2:
        return None
    worth = estimate([share for _, share in parts], levels)
    return CommunicatorView(
        round(worth.together, 1),
        tuple(
            RingView(name, share.gpus.bit_count(), round(inside, 1))
            for (name, share), inside in zip(parts, worth.inside, strict=True)
        ),
        None if worth.between is None else round(worth.between, 1),
    )


def levels_of(snapshot: Snapshot) -> tuple[str, ...]:
    """The levels in which at least one node has a domain, nearest first."""
    nodes = snapshot.nodes
    return tuple(
        level for level in snapshot.levels if any(domain_of(node, level) for node in nodes)
    )


def domain_of(node: NodeState, level: str) -> str:
    """The node's domain at *level*; empty if it has none. As in `NodeInfo.labels`, the machine's
    clique counts as a label."""
    if level == NODE:
        return node.name
    if level == CLIQUE and node.machine is not None and node.machine.clique is not None:
        return node.machine.clique
    return node.record.labels.get(level, "") if node.record is not None else ""
