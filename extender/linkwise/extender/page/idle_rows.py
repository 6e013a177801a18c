"""Idle pods as rows of tables, and as marks in drawings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from linkwise.extender.api.views import IdlePod, IdleView
from linkwise.extender.explain.idle.idle_pods import Held, view_pod
from linkwise.extender.explain.texts.format import (
    busy_share,
    evicted_if_needed,
    gpus_in_words,
    idle_for,
    pods_in_words,
)
from linkwise.extender.page import links
from linkwise.extender.page.slots import HIDDEN, SHOWN, Slots

MOST_FIRST = 10  # on the first page
MOST_ROWS = 200  # of each table on the page of idle pods
NAME = "idle"  # of the mark; the text in the corner of a GPU
_NONE = "–"
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class IdleRow:
    who: str
    link: str
    gpus: str
    idle: str  # for how long
    busy: str  # the share of the last day in which its GPUs worked
    memory: str
    node: str
    gang: str
    evicted: str  # when it may be evicted, if others need its GPUs


@dataclass(frozen=True, slots=True)
class WouldStartRow:
    who: str
    link: str
    gpus: str
    without: tuple[tuple[str, str], ...]  # names and links of idle pods and gangs
    more: int  # of them that are not named


def row_of(pod: IdlePod, at: float) -> IdleRow:
    works = ", which works" if pod.gang_works else ""
    return IdleRow(
        who=pod.pod,
        link=links.to_pod(pod.pod),
        gpus=str(pod.gpus),
        idle=idle_for(pod.since, at, at_least=pod.at_least),
        busy=busy_share(pod.day_percent).replace("-", _NONE),
        memory=_NONE if pod.memory_gib is None else f"{pod.memory_gib} GiB",
        node=pod.node,
        gang=f"{pod.gang}{works}" if pod.gang else _NONE,
        evicted=evicted_if_needed(pod.reclaim_from, at),
    )


def use_of(held: Held | None, at: float) -> tuple[str, str]:
    """For how long the pod has been idle, and in which share of the last day its GPUs worked.
    Empty: it is not idle; unknown."""
    if held is None or held.activity is None:
        return "", ""
    day = held.activity.day
    busy = "" if day is None else busy_share(day)
    if not held.is_idle:
        return "", busy
    pod = view_pod(held, at, gang_works=False)
    return idle_for(pod.since, at, at_least=pod.at_least), busy


def masks_of(idle: Sequence[Held]) -> dict[str, int]:
    """The GPUs of idle pods: node -> bitmask."""
    found: dict[str, int] = {}
    for held in idle:
        found[held.node.name] = found.get(held.node.name, 0) | held.gpus
    return found


def first_slots(idle: Sequence[Held], at: float) -> Slots:
    """Of the first page's table; *idle*: those that have been idle for longest first."""
    more = len(idle) - MOST_FIRST
    gpus = sum(held.gpus.bit_count() for held in idle)
    slots: dict[str, Mapping[str, str]] = {
        "i-pods": {"text": f"{len(idle):,}"},
        "i-none": {"hidden": HIDDEN if idle else SHOWN},
        "i-some": {"hidden": SHOWN if idle else HIDDEN},
        "i-held": {"text": f"{pods_in_words(len(idle))} with {gpus_in_words(gpus)}"},
        "i-more": {
            "hidden": SHOWN if more > 0 else HIDDEN,
            "text": f"and {more:,} more" if more > 0 else "",
        },
    }
    for number in range(MOST_FIRST):
        held = idle[number] if number < len(idle) else None
        row = None if held is None else row_of(view_pod(held, at, gang_works=False), at)
        slots[f"i{number}"] = {"hidden": HIDDEN if row is None else SHOWN}
        slots[f"i{number}-who"] = {
            "text": row.who if row else "",
            "href": row.link if row else links.OVERVIEW,
        }
        for name in ("gpus", "idle", "busy", "memory", "node"):
            slots[f"i{number}-{name}"] = {"text": getattr(row, name) if row else ""}
    return slots


@dataclass(frozen=True, slots=True)
class IdlePage:
    """All that `kubectl linkwise idle` says."""

    counts: str
    rows: tuple[IdleRow, ...]
    would_start: tuple[WouldStartRow, ...]
    verdict: str  # about those of whom `would_start` says nothing


def idle_page(view: IdleView) -> IdlePage:
    return IdlePage(
        counts=_counts(view),
        rows=tuple(row_of(pod, view.at) for pod in view.pods[:MOST_ROWS]),
        would_start=tuple(
            WouldStartRow(
                each.who,
                links.to_titled(each.who),
                str(each.gpus),
                tuple((name, links.to_titled(name)) for name in each.without[:_MOST_NAMED]),
                max(len(each.without) - _MOST_NAMED, 0),
            )
            for each in view.would_start[:MOST_ROWS]
        ),
        verdict=" ".join(_verdict(view)),
    )


def _counts(view: IdleView) -> str:
    gpus = sum(pod.gpus for pod in view.pods)
    held = f", with {gpus_in_words(gpus)}" if gpus else ""
    unknown = f", {view.unknown:,} unknown" if view.unknown else ""
    return (
        f"Pods with whole GPUs: {len(view.pods):,} idle{held}, {view.not_idle:,} not idle{unknown}."
    )


def _verdict(view: IdleView) -> list[str]:
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
