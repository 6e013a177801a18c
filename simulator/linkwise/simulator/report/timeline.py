"""The report's picture of the pods in time, with its words: rows on one common axis. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10

from linkwise.drawing.times import WIDTH, Lines, PodTimes, Scale
from linkwise.simulator.report.model import GpuTenant, PodReport, Report, WorkloadReport

MEASURED = (
    "the moments at which the simulator's own watch saw each change, because the API's "
    "times have whole seconds only."
)
HEADS = ("created", "bound", "runs", "ended")
MOST_ROWS = 48  # of one pod each; with more pods, each workload is one row
_ROW, _LANE = 16, 6  # height of a pod's lines alone in a row, and among others, in pixels
_MOST_TICKS = 6  # after 0
_LAST_TICK = 0.95  # of the width: the words beside it need room
_SHORTEST = 0.1  # seconds that the axis has at least


@dataclass(frozen=True, slots=True)
class Lane:
    """The lines of one pod, and what they show in words."""

    lines: Lines
    words: str


@dataclass(frozen=True, slots=True)
class Row:
    """One pod, or all pods of a workload below each other; or a sample of a line."""

    name: str  # as in the drawings of the nodes; "" if the row has all pods; what the sample means
    height: int  # in pixels
    lanes: tuple[Lane, ...]
    cells: Mapping[str, str]  # what, of HEADS -> when, in seconds


_MIDDLE = _ROW // 2
LEGEND = tuple(
    Row(words, _ROW, (Lane(lines, words),), {})
    for words, lines in (
        ("thin line: waits", Lines(waits=f"M0 {_MIDDLE}H{WIDTH}")),
        (
            "hollow bar: bound, its containers start",
            Lines(starts=f"M0 {_MIDDLE}H{WIDTH}", hollow=f"M20 {_MIDDLE}H{WIDTH - 20}"),
        ),
        ("full bar: runs", Lines(runs=f"M0 {_MIDDLE}H{WIDTH}")),
    )
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A workload, with a sentence about it."""

    workload: WorkloadReport
    words: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is drawn of a report. `ticks` are shares of the width, in percent, with their words."""

    width: int  # of a row's lines, in pixels
    ticks: tuple[tuple[float, str], ...]
    heads: tuple[str, ...]  # of HEADS
    parts: tuple[Drawn, ...]
    dense: bool  # a row has all pods of its workload


def timeline_of(report: Report) -> Timeline:
    scale = Scale(0.0, max(report.seconds, _SHORTEST))
    dense = sum(1 for _ in report.pods) > MOST_ROWS
    return Timeline(
        WIDTH,
        _ticks(scale.last),
        HEADS if any(pod.times.ended is not None for _, pod in report.pods) else HEADS[:-1],
        tuple(
            Drawn(workload, time_words(workload), tuple(_rows(workload, scale, dense=dense)))
            for workload in report.workloads
        ),
        dense,
    )


def time_words(workload: WorkloadReport) -> str:
    """Say how long the pods took to be bound, how many of them wait still, and how many failed."""
    pods, after = workload.pods, workload.bound_after
    parts = []
    if after is not None:
        bound = _some(len(workload.bound), len(pods), "bound", "bound")
        last = "it" if len(pods) == 1 else "the last of these"
        parts.append(f"{bound} {after:.2f} s after {last} was created")
    if waiting := sum(1 for pod in pods if _waits(pod.times)):
        parts.append(f"{_some(waiting, len(pods), 'wait', 'waits')} still")
    if failed := sum(1 for pod in pods if pod.failed):
        parts.append(_some(failed, len(pods), "failed", "failed"))
    return "; ".join(parts)


def _some(count: int, of: int, they: str, it: str) -> str:
    """Return what *count* pods of *of* do: `it` says it of one pod, `they` of several."""
    if of == 1:
        return it
    return f"{count} of {of} {it if count == 1 else they}"


def _waits(times: PodTimes) -> bool:
    return times.bound is None and times.ended is None


def _rows(workload: WorkloadReport, scale: Scale, *, dense: bool) -> Iterable[Row]:
    if dense:
        yield _row("", workload, workload.pods, scale, lane=_LANE)
        return
    for pod in workload.pods:
        yield _row(GpuTenant(workload, pod).short, workload, (pod,), scale, lane=_ROW)


def _row(
    name: str, workload: WorkloadReport, pods: tuple[PodReport, ...], scale: Scale, *, lane: int
) -> Row:
    lanes = tuple(
        Lane(
            scale.lines((number + 0.5) * lane, pod.times, waits=pod.times.bound is None),
            _words(workload, pod),
        )
        for number, pod in enumerate(pods)
    )
    return Row(name, lane * len(pods), lanes, _cells(pods))


def _words(workload: WorkloadReport, pod: PodReport) -> str:
    """Return what is known of one pod, as a text of its own."""
    cells = ", ".join(f"{what} {when}" for what, when in _cells((pod,)).items() if when)
    return f"{GpuTenant(workload, pod).short}: {cells}"


def _cells(pods: Sequence[PodReport]) -> dict[str, str]:
    """Return the moments of *pods*, by HEADS: of each kind the first and the last."""
    every = zip(*(pod.times for pod in pods), strict=True)
    cells = {what: _moments(times) for what, times in zip(HEADS, every, strict=True)}
    if waiting := sum(1 for pod in pods if _waits(pod.times)):
        bound = f"{cells['bound']}, {waiting} " if cells["bound"] else ""
        cells["bound"] = f"{bound}not yet"
    if len(pods) == 1 and pods[0].times.ended is not None:
        cells["runs"] = cells["runs"] or "not seen"
        cells["ended"] += ", failed" if pods[0].failed else ""
    return cells


def _moments(times: Iterable[float | None]) -> str:
    known = [f"{time:.2f}" for time in sorted(time for time in times if time is not None)]
    if not known:
        return ""
    return known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"


def _ticks(seconds: float) -> tuple[tuple[float, str], ...]:
    """Return round numbers from 0 on: steps of 1, 2 or 5 times a power of ten. The logarithm may
    be rounded down, so that only 20 is enough."""
    power = 10.0 ** ceil(log10(seconds / _MOST_TICKS) - 1)
    step = next(s for f in (1, 2, 5, 10, 20) if (s := f * power) * _MOST_TICKS >= seconds)
    count = int(seconds * _LAST_TICK / step)
    return tuple((round(100 * n * step / seconds, 2), f"{n * step:g} s") for n in range(count + 1))
