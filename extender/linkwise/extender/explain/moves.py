"""The moves that are under way, or that would be with `--moves=consent`: for whom, which pods move
and where to, what that loses, and what it saves."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from linkwise.extender.api.views import MovePlanView, MoveState, MovesView, MoveView
from linkwise.extender.explain.snapshot import Snapshot
from linkwise.extender.moves.plan import Move, MovePlan


def view_moves(snapshot: Snapshot) -> MovesView:
    plans = (*_under_way(snapshot), *_advised(snapshot))
    return MovesView(snapshot.at, snapshot.policy.moves.value, plans)


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
