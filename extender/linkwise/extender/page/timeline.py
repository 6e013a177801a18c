"""The steps of a gang, from its first member to its end, with the times that the extender knows."""

from collections.abc import Iterator
from dataclasses import dataclass

from linkwise.extender.api.records import PodRecord
from linkwise.extender.explain.snapshot import GangState, Snapshot
from linkwise.extender.gangs.gang import Phase

DONE, NOW, AHEAD = "done", "now", "ahead"


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    at: float | None  # None: unknown
    state: str  # DONE, NOW: it waits for this, AHEAD


def timeline_of(snapshot: Snapshot, gang: GangState) -> tuple[Step, ...]:
    steps = [*_to_its_start(gang), *_to_its_end(snapshot, gang)]
    first = next((place for place, step in enumerate(steps) if step[2] is False), len(steps))
    return tuple(
        Step(what, at, DONE if done else NOW if place == first else AHEAD)
        for place, (what, at, done) in enumerate(steps)
    )


def _to_its_start(gang: GangState) -> Iterator[tuple[str, float | None, bool | None]]:
    found, size = gang.found, gang.found.size
    there = len(found.seats) + found.done
    placed = found.placed
    bound = len(found.bound) + found.done
    running = sum(member.running for member in found.bound) + found.done
    last = max((member.created for member in found.seats), default=None)
    enough = f"; {found.minimum} are enough" if found.minimum < size else ""
    yield "first member created", found.since or None, True
    yield f"{there} of {size} members exist{enough}", last, there >= found.minimum
    yield f"GPUs planned for {placed} of {size} members", gang.made, placed >= found.minimum
    yield f"{bound} of {size} members bound", None, bound >= found.minimum
    yield f"{running} of {size} members run", None, running >= found.minimum


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
    expected = member.ask.expected_seconds
    if written is None or expected is None:
        return None
    return written.plan.made + expected
