"""The moves that are under way, or advised, as rows of tables."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from linkwise.drawing.layout import written
from linkwise.extender.api.views import MovePlanView, MoveState, MovesView, MoveView
from linkwise.extender.explain.texts.format import pods_in_words
from linkwise.extender.page import links
from linkwise.extender.page.slots import HIDDEN, SHOWN, Slots

MOST_ROWS = 200  # of each table


@dataclass(frozen=True, slots=True)
class PlanRow:
    who: str
    link: str  # empty: none
    gpus: str  # that it gets
    pods: str
    lost: str
    saved: str


@dataclass(frozen=True, slots=True)
class MoveRow:
    pod: str
    link: str
    node: str
    target: str
    lost: str
    state: str
    who: str  # for whom


@dataclass(frozen=True, slots=True)
class MovesTables:
    """All that `kubectl linkwise moves` says."""

    plans: tuple[PlanRow, ...]
    moves: tuple[MoveRow, ...]
    verdict: str


def tables_of(view: MovesView) -> MovesTables:
    moves = [_move(plan, move) for plan in view.plans for move in plan.moves]
    return MovesTables(
        tuple(map(_plan, view.plans[:MOST_ROWS])), tuple(moves[:MOST_ROWS]), _verdict(view, moves)
    )


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
    slots: dict[str, Mapping[str, str]] = {
        "m-some": {"hidden": SHOWN if said else HIDDEN},
        "m-text": {"text": ", ".join(said)},
    }
    return slots


def _plan(plan: MovePlanView) -> PlanRow:
    saved = plan.saved_gpu_seconds
    return PlanRow(
        who=plan.for_whom,
        link=links.to_titled(plan.for_whom),
        gpus=str(plan.gpus or "-"),
        pods=str(len(plan.moves)),
        lost=_hours(plan.lost_gpu_seconds),
        saved="no end" if saved is None else _hours(saved) if saved else "-",
    )


def _move(plan: MovePlanView, move: MoveView) -> MoveRow:
    gpus = f", GPUs {written(move.gpus)}" if move.gpus else ""
    return MoveRow(
        pod=move.pod,
        link=links.to_pod(move.pod),
        node=move.node,
        target=f"{move.target}{gpus}",
        lost=_hours(move.lost_gpu_seconds),
        state=move.state.value,
        who=plan.for_whom,
    )


def _hours(gpu_seconds: float) -> str:
    return f"{gpu_seconds / 3600:.1f}"


def _verdict(view: MovesView, moves: list[MoveRow]) -> str:
    if view.allowed == "never":
        return "Moves are off: the extender runs with --moves=never."
    if not moves:
        return "Nothing to move: no gang or pod waits for which moves are found that are worth it."
    more = len(moves) - MOST_ROWS
    return f"{more:,} more pods are not shown." if more > 0 else ""
