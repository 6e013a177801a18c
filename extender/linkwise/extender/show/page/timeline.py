"""The steps of a gang, from its first member to its end, and a picture of them: a bar for each
member, from its creation on.

The extender knows when pods were created and planned. When they were bound and began to run is in
their own statuses, of which the cache keeps nothing: the caller reads them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from linkwise.drawing.times import PodTimes, Scale
from linkwise.drawing.words import duration
from linkwise.extender.next.gangs.gang import Phase
from linkwise.extender.show.explain.snapshot import GangState, Snapshot
from linkwise.extender.show.page.elements import Slots, clock
from linkwise.extender.state.records import PodRecord

DONE, NOW, AHEAD = "done", "now", "ahead"
MOST_DRAWN = 64  # members
HEIGHT = 16  # of a member's picture, in pixels
_MARGIN = 0.15  # of the time that is shown, after the last change


Times = Mapping[str, PodTimes]
"""By the uid of the pod, in seconds since 1970. It runs from its last container's start on."""


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    at: float | None  # None: unknown
    state: str  # DONE, NOW: it waits for this, AHEAD


@dataclass(frozen=True, slots=True)
class Picture:
    """A row for each of the first MOST_DRAWN members."""

    pods: tuple[str, ...]  # namespace/name
    more: int  # members that are not drawn
    slots: Slots


def drawn(gang: GangState) -> tuple[PodRecord, ...]:
    """The members in the picture."""
    return gang.found.all[:MOST_DRAWN]


def timeline_of(snapshot: Snapshot, gang: GangState, times: Times) -> tuple[Step, ...]:
    steps = [*_to_its_start(gang, times), *_to_its_end(snapshot, gang)]
    first = next((place for place, step in enumerate(steps) if step[2] is False), len(steps))
    return tuple(
        Step(what, at, DONE if done else NOW if place == first else AHEAD)
        for place, (what, at, done) in enumerate(steps)
    )


def _to_its_start(gang: GangState, times: Times) -> Iterator[tuple[str, float | None, bool | None]]:
    found, size = gang.found, gang.found.size
    there = len(found.exist) + found.done
    placed = found.placed
    bound = len(found.bound) + found.done
    running = sum(member.running for member in found.bound) + found.done
    last = max((member.created for member in found.exist), default=None)
    enough = f"; {found.minimum} are enough" if found.minimum < size else ""
    ended = [member for member in found.all if member.ended and not member.failed]
    known = len(ended) >= found.done  # pods that have ended may be deleted
    were_bound = [_times_of(member, times) for member in (*found.bound, *ended)]
    have_run = [
        _times_of(member, times)
        for member in (*found.bound, *ended)
        if member.running or member.ended
    ]
    yield "first member created", found.since or None, True
    exist = there + len(found.coming) * (placed >= found.minimum) >= found.minimum
    yield f"{there} of {size} members exist{enough}", last, exist
    yield f"GPUs planned for {placed} of {size} members", gang.made, placed >= found.minimum
    yield (
        f"{bound} of {size} members bound",
        _last([each.bound for each in were_bound]) if known else None,
        bound >= found.minimum,
    )
    yield (
        f"{running} of {size} members run",
        _last([each.running for each in have_run]) if known else None,
        running >= found.minimum,
    )


def _times_of(pod: PodRecord, times: Times) -> PodTimes:
    return times.get(pod.uid, PodTimes(pod.created))


def _last(times: Sequence[float | None]) -> float | None:
    """None if one of them is unknown."""
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None


def _to_its_end(
    snapshot: Snapshot, gang: GangState
) -> Iterator[tuple[str, float | None, bool | None]]:
    if gang.phase is Phase.RELEASED:
        yield "ended", None, True
        return
    if gang.deadline is not None and not gang.found.started:
        yield "gives its GPUs back if it has not started", gang.deadline, None
    ends = [_end(snapshot, member) for member in gang.found.seats]
    known = [end for end in ends if end is not None]
    if known and len(known) == len(ends):
        yield "expected to end", max(known), None


def _end(snapshot: Snapshot, member: PodRecord) -> float | None:
    written = snapshot.plan_of(member)
    expected = member.declared_seconds(written)
    if written is None or expected is None:
        return None
    return written.plan.made + expected


# The picture


def picture_of(gang: GangState, times: Times, at: float) -> Picture:
    pods = drawn(gang)
    known = [(pod, _times_of(pod, times)) for pod in pods]
    first, last = _span(known, gang.made, at)
    slots: dict[str, Mapping[str, str]] = {
        "t-from": {"text": clock(first)},
        "t-to": {"text": clock(last)},
    }
    for number, (pod, its) in enumerate(known):
        slots |= _row(f"m{number}", pod, its, Scale(first, last), gang.made)
    return Picture(tuple(pod.key for pod in pods), len(gang.found.all) - len(pods), slots)


def _span(
    known: Sequence[tuple[PodRecord, PodTimes]], made: float | None, at: float
) -> tuple[float, float]:
    """From the first creation until now; until shortly after the last change, if all run or have
    ended."""
    changes = [time for _, its in known for time in its if time is not None and 0 < time <= at]
    if made is not None and 0 < made <= at:
        changes.append(made)
    first, last = min(changes, default=at), max(changes, default=at)
    settled = known and all(pod.running or pod.ended for pod, _ in known)
    end = min(at, last + _MARGIN * (last - first) + 5) if settled else at
    return first, max(end, first + 1)


def _row(name: str, pod: PodRecord, its: PodTimes, scale: Scale, made: float | None) -> Slots:
    lines = scale.lines(HEIGHT // 2, its, waits=not pod.node and not pod.ended)
    planned = made is not None and pod.created <= made and scale.first <= made <= scale.last
    plan = f"M{scale.x(made):g} 0V{HEIGHT}" if made is not None and planned else ""
    return {
        **{f"{name}-{what}": {"d": path} for what, path in lines._asdict().items()},
        f"{name}-plan": {"d": plan},
        f"{name}-created": {"text": clock(pod.created)},
        f"{name}-bound": {"text": _after(pod.created, its.bound, happened=bool(pod.node))},
        f"{name}-running": {
            "text": _after(pod.created, its.running, happened=pod.running or pod.ended)
        },
        f"{name}-state": {"text": _state(pod)},
    }


def _after(created: float, time: float | None, *, happened: bool) -> str:
    if time is None:
        return "not known" if happened else ""
    return duration(time - created)


def _state(pod: PodRecord) -> str:
    if pod.ended:
        return "failed" if pod.failed else "ended"
    if pod.leaving:
        return "ending"
    if not pod.node:
        return "waits"
    return "runs" if pod.running else "starts"
