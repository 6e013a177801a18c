"""Idle pods as tables, and as marks in drawings."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from linkwise.drawing.tables import Column, Link, Links, Table, figure
from linkwise.drawing.words import gpus_in_words, pods_in_words
from linkwise.extender.show.explain.idle.idle_pods import Held, view_pod
from linkwise.extender.show.explain.texts.tables import busy_share, idle_columns, idle_for
from linkwise.extender.show.page import elements
from linkwise.extender.show.page.elements import Slots
from linkwise.extender.state.views import IdlePod, IdleView, WouldStartView

MOST_FIRST = 10  # on the first page
MOST_ROWS = 200  # of each table on the page of idle pods
NAME = "idle"  # of the mark; the text in the corner of a GPU
_MOST_NAMED = 4
_POD: Column[IdlePod] = Column("pod", lambda it: Link(it.pod, elements.to_pod(it.pod)), name="who")
_WOULD_START: Sequence[Column[WouldStartView]] = (
    Column("who waits", lambda it: _titled(it.who)),
    figure("GPUs", lambda it: it.gpus),
    Column(
        "would start without",
        lambda it: Links(
            tuple(map(_titled, it.without[:_MOST_NAMED])), max(len(it.without) - _MOST_NAMED, 0)
        ),
    ),
)


def _titled(title: str) -> Link:
    return Link(title, elements.to_titled(title))


def use_of(held: Held | None, at: float) -> tuple[str, str]:
    """For how long the pod has been idle, and in which share of the last day its GPUs worked.
    Empty: it is not idle; unknown."""
    if held is None or held.activity is None:
        return "", ""
    busy = busy_share(held.activity.day)
    return idle_for(view_pod(held, at, gang_works=False), at) if held.is_idle else "", busy


def masks_of(idle: Sequence[Held]) -> dict[str, int]:
    """The GPUs of idle pods: node -> bitmask."""
    found: dict[str, int] = {}
    for held in idle:
        found[held.node.name] = found.get(held.node.name, 0) | held.gpus
    return found


def first_table(idle: Sequence[Held], at: float) -> Table:
    """Of the first page; *idle*: those that have been idle for longest first."""
    pods = [view_pod(held, at, gang_works=False) for held in idle[:MOST_FIRST]]
    *columns, _gang, _evicted = idle_columns(at)
    return Table.of([_POD, *columns], pods, dash="–")


def first_slots(idle: Sequence[Held], table: Table) -> Slots:
    more = len(idle) - MOST_FIRST
    gpus = sum(held.gpus.bit_count() for held in idle)
    return {
        "i-pods": {"text": f"{len(idle):,}"},
        "i-none": elements.shown_if(not idle),
        "i-some": elements.shown_if(bool(idle)),
        "i-held": {"text": f"{pods_in_words(len(idle))} with {gpus_in_words(gpus)}"},
        "i-more": elements.shown(f"and {more:,} more" if more > 0 else ""),
        **elements.live("i", table, MOST_FIRST),
    }


@dataclass(frozen=True, slots=True)
class IdlePage:
    """All that `kubectl linkwise idle` says."""

    pods: Table
    would_start: Table
    slots: Slots

    @property
    def shape(self) -> Hashable:
        return len(self.pods.rows), self.would_start


def idle_page(view: IdleView) -> IdlePage:
    pods = Table.of([_POD, *idle_columns(view.at)], view.pods[:MOST_ROWS], dash="–")
    slots: dict[str, Mapping[str, str]] = {
        "at": {"text": elements.clock(view.at)},
        "counts": {"text": _counts(view)},
        "verdict": elements.shown(" ".join(_verdict(view))),
        **elements.live("i", pods, len(pods.rows)),
    }
    return IdlePage(pods, Table.of(_WOULD_START, view.would_start[:MOST_ROWS]), slots)


def _counts(view: IdleView) -> str:
    gpus = sum(pod.gpus for pod in view.pods)
    held = f", with {gpus_in_words(gpus)}" if gpus else ""
    unknown = f", {view.unknown:,} unknown" if view.unknown else ""
    return (
        f"Pods with whole GPUs: {len(view.pods):,} idle{held}, {view.not_idle:,} not idle{unknown}."
    )


def _verdict(view: IdleView) -> list[str]:
    """About those of whom nothing is said that they would start."""
    found = []
    if not view.would_start and view.pods:
        found.append(
            f"{view.waiting:,} gangs and pods wait for room; none of those that were tried would "
            "start without the idle pods."
            if view.waiting
            else "No gang and no pod waits for room."
        )
    if view.untried:
        found.append(f"Not tried, because the queue is long: {view.untried:,}.")
    for rows, what in ((view.pods, "idle pods"), (view.would_start, "gangs and pods")):
        if len(rows) > MOST_ROWS:
            found.append(f"{len(rows) - MOST_ROWS:,} more {what} are not shown.")
    return found
