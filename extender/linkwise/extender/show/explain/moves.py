"""The moves that are under way, or that would be with `--moves=consent`: for whom, which pods move
and where to, what that loses, and what it saves. Which pods kept others waiting by not consenting.
"""

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from linkwise.extender.next.moves.may_move import Stays
from linkwise.extender.next.moves.plan import Move, MovePlan
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.state.records import PodRecord, natural
from linkwise.extender.state.views import (
    EmptiedNode,
    EmptyingView,
    KeptWaitingView,
    MovePlanView,
    MoveState,
    MovesView,
    MoveView,
    StaysView,
)


def view_moves(snapshot: Snapshot) -> MovesView:
    plans = (*_under_way(snapshot), *_advised(snapshot))
    return MovesView(snapshot.at, snapshot.policy.moves.value, plans, kept_waiting(snapshot))


def kept_waiting(snapshot: Snapshot) -> tuple[KeptWaitingView, ...]:
    return tuple(
        KeptWaitingView(
            *row.by, row.gpus, row.nodes, row.title, row.wanted, row.gpu_seconds, row.now
        )
        for row in snapshot.kept_waiting
    )


def _under_way(snapshot: Snapshot) -> Iterator[MovePlanView]:
    plans: dict[str, MovePlan] = {}
    moves: dict[str, list[MoveView]] = {}
    for each in snapshot.moves_under_way:
        empties = each.plan.empties
        for_whom = f"node {empties}" if empties else each.for_whom.title
        before = plans.get(for_whom) if empties else None  # each pod of a node has a plan
        moved = () if before is None else before.moves
        plans[for_whom] = replace(each.plan, moves=(*moved, *each.plan.moves))
        shown = view_move(snapshot, each.move, each.state, each.kept_until)
        moves.setdefault(for_whom, []).append(shown)
    for for_whom, plan in plans.items():
        yield _plan(for_whom, plan, moves[for_whom])


def _advised(snapshot: Snapshot) -> Iterator[MovePlanView]:
    advice = [(key.title, plan) for key, plan in snapshot.advice.items()]
    if snapshot.next_whole is not None:
        advice.append((f"node {snapshot.next_whole.empties}", snapshot.next_whole))
    for for_whom, plan in advice:
        moves = (view_move(snapshot, move, MoveState.ADVISED) for move in plan.moves)
        yield _plan(for_whom, plan, moves)


def _plan(for_whom: str, plan: MovePlan, moves: Iterable[MoveView]) -> MovePlanView:
    return MovePlanView(
        for_whom=for_whom,
        gpus=sum(spot.gpus.bit_count() for spot in plan.spots),
        lost_gpu_seconds=plan.lost,
        saved_gpu_seconds=plan.saved if plan.saved < math.inf else None,
        moves=tuple(moves),
    )


def view_move(
    snapshot: Snapshot, move: Move, state: MoveState, kept_until: float | None = None
) -> MoveView:
    node = snapshot.node_named.get(move.spot.node)
    machine = None if node is None else node.machine
    shared = 0 if node is None else node.shares.gpus_of(move.shares)
    return MoveView(
        pod=move.pod.key,
        node=move.pod.node,
        target=move.spot.node,
        gpus=() if machine is None else machine.indices_of(move.spot.gpus | shared),
        lost_gpu_seconds=move.lost,
        state=state,
        kept_until=kept_until,
    )


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
