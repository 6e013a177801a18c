"""What becomes of the pods with GPUs of some nodes, if these are emptied."""

from collections.abc import Collection, Iterable

from linkwise.extender.api.records import PodRecord, natural
from linkwise.extender.api.views import EmptiedNode, EmptyingView, MoveState, StaysView
from linkwise.extender.explain.moves import view_move
from linkwise.extender.explain.snapshot import Snapshot
from linkwise.extender.moves.may_move import Stays
from linkwise.extender.moves.plan import Move


def emptied_nodes(snapshot: Snapshot) -> list[str]:
    """The nodes that a person wants empty."""
    found = (node.name for node in snapshot.nodes if node.record and node.record.emptied)
    return sorted(found, key=natural)


def view_emptying(
    snapshot: Snapshot,
    names: Collection[str],
    found: Iterable[tuple[str, PodRecord, Move | Stays]],
) -> EmptyingView:
    """*found*: the pods there that have no target yet (`Emptying.look`)."""
    moves = [
        view_move(snapshot, each.move, each.state, each.kept_until)
        for each in snapshot.moves_under_way
        if each.move.pod.node in names
    ]
    stays: list[StaysView] = []
    for node, pod, what in found:
        if isinstance(what, Move):
            moves.append(view_move(snapshot, what, MoveState.ADVISED))
        else:
            stays.append(StaysView(pod.key, node, pod.demand.gpus, what.value))
    return EmptyingView(
        at=snapshot.at,
        allowed=snapshot.policy.moves.value,
        nodes=tuple(_node(snapshot, name) for name in names),
        moves=tuple(sorted(moves, key=lambda move: (natural(move.node), natural(move.pod)))),
        stays=tuple(sorted(stays, key=lambda pod: (natural(pod.node), natural(pod.pod)))),
    )


def _node(snapshot: Snapshot, name: str) -> EmptiedNode:
    node = snapshot.node_named[name]
    whole = sum(gpus.bit_count() for gpus in node.owned.values())
    return EmptiedNode(
        name,
        whole + node.shares.opened.bit_count(),
        node.record is not None and node.record.emptied,
    )
