"""The moves that are under way, or advised, as tables."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from linkwise.drawing.tables import Column, Link, Table, figure
from linkwise.drawing.words import indices, pods_in_words
from linkwise.extender.show.explain.texts.tables import (
    gpu_hours,
    kept_waiting_columns,
    plan_columns,
    why_no_moves,
)
from linkwise.extender.show.page import elements
from linkwise.extender.show.page.elements import Slots
from linkwise.extender.state.views import (
    KeptWaitingView,
    MovePlanView,
    MoveState,
    MovesView,
    MoveView,
)

MOST_ROWS = 200  # of each table
_PLANS: Sequence[Column[MovePlanView]] = plan_columns(
    Column("for", lambda it: Link(it.for_whom, elements.to_titled(it.for_whom)))
)
_MOVES: Sequence[Column[tuple[MovePlanView, MoveView]]] = (
    Column("pod", lambda row: Link(row[1].pod, elements.to_pod(row[1].pod))),
    Column("from", lambda row: row[1].node),
    Column("to", lambda row: _target(row[1])),
    figure("GPU hours lost", lambda row: gpu_hours(row[1].lost_gpu_seconds)),
    Column("state", lambda row: row[1].state.value),
    Column("for", lambda row: row[0].for_whom),
)
_KEPT_WAITING: Sequence[Column[KeptWaitingView]] = kept_waiting_columns(
    Column("kept waiting", lambda it: Link(it.waits, elements.to_titled(it.waits)), name="waits")
)


@dataclass(frozen=True, slots=True)
class MovesPage:
    """All that `kubectl linkwise moves` says."""

    plans: Table
    moves: Table
    kept_waiting: Table
    verdict: str
    slots: Slots

    @property
    def shape(self) -> Hashable:
        return self.plans, self.moves, self.kept_waiting, self.verdict


def moves_page(view: MovesView) -> MovesPage:
    moves = [(plan, move) for plan in view.plans for move in plan.moves]
    more = len(moves) - MOST_ROWS
    return MovesPage(
        Table.of(_PLANS, view.plans[:MOST_ROWS]),
        Table.of(_MOVES, moves[:MOST_ROWS]),
        Table.of(_KEPT_WAITING, view.kept_waiting[:MOST_ROWS]),
        why_no_moves(view) or f"{more:,} more pods are not shown." * (more > 0),
        {"at": {"text": elements.clock(view.at)}},
    )


def _target(move: MoveView) -> str:
    return f"{move.target}, GPUs {indices(move.gpus)}" if move.gpus else move.target


def first_slots(view: MovesView) -> Slots:
    """Of the first page's line; it is hidden if nothing moves."""
    moves = [move for plan in view.plans for move in plan.moves]
    states = Counter(move.state for move in moves)
    advised = states[MoveState.ADVISED]
    said = []
    if moving := len(moves) - advised:
        said.append(f"{pods_in_words(moving)} move{'s' * (moving == 1)}")
    if advised:
        said.append(f"{pods_in_words(advised)} would move with --moves=consent")
    if said:
        said[-1] += " so that others fit or a node is empty"
    return {"m-some": elements.shown_if(bool(said)), "m-text": {"text": ", ".join(said)}}
