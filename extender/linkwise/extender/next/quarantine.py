"""Leaves out a pod or gang that a defect of the extender is about, so that it costs no other.

There is no list of what can go wrong. For any exception, the frames of the traceback tell which pod
or gang was worked on. It is left out for a while: nothing is decided about it, and what
it holds on a node counts. If it still does harm, it is not in the cache at all; what kubelets
report in use stays in use.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import FrameType

from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.preemption.victim_selection import Unit
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.timers import Agenda
from linkwise.kube.objects import Pod
from linkwise.pods.annotations import NOTHING_SAID

_FIRST_SECONDS, _LONGEST_SECONDS = 60.0, 3600.0
_MOST_DOUBLINGS = 6  # more make no difference
_MOST = 4096  # remembered
# Strikes until it is not in the cache at all: of one that waits, and of one that holds GPUs.
_DROPPED_WAITING, _DROPPED = 2, 3
LEFT_OUT = "internal error, see the extender's log; it is tried again later"
Culprit = GangKey | str
"""A gang, or the uid of a pod that is in none."""


@dataclass(slots=True)
class _Term:
    until: float
    times: int  # how often it was left out before
    strikes: int = 1  # since it is left out
    is_over: bool = False  # and its pods are to be looked at again


class Quarantine:
    def __init__(self, agenda: Agenda) -> None:
        agenda.ask(self._times)
        self._terms: dict[Culprit, _Term] = {}

    def hold(self, culprit: Culprit, now: float) -> bool:
        """Leave it out from now on, and if it is left out already, altogether. Returns whether that
        is a change."""
        term = self._terms.pop(culprit, None)
        if term is not None and now < term.until:
            self._terms[culprit] = term
            term.strikes += 1
            return term.strikes <= _DROPPED
        times = 0 if term is None else term.times
        if len(self._terms) >= _MOST:
            del self._terms[next(iter(self._terms))]
        until = now + min(_FIRST_SECONDS * 2.0**times, _LONGEST_SECONDS)
        self._terms[culprit] = _Term(until, min(times + 1, _MOST_DOUBLINGS))
        return True

    def seen(self, record: PodRecord, now: float) -> PodRecord | None:
        """The record as the core may see it now; None: not at all."""
        if not self._terms:
            return record
        keys = (record.uid,) if record.gang is None else (record.uid, record.gang)
        terms = [term for key in keys if (term := self._terms.get(key)) and now < term.until]
        strikes = max((term.strikes for term in terms), default=0)
        if strikes >= (_DROPPED if record.node else _DROPPED_WAITING):
            return None
        return _left_out(record) if strikes else record

    def take_over(self, now: float) -> bool:
        """Whether any term has ended since the last call."""
        over = [key for key, term in self._terms.items() if term.until <= now and not term.is_over]
        for key in over:
            self._terms[key].is_over = True
        return bool(over)

    def _times(self) -> Iterable[float]:
        return (term.until for term in self._terms.values() if not term.is_over)


def whose(record: PodRecord) -> Culprit:
    return record.uid if record.gang is None else record.gang


def _left_out(record: PodRecord) -> PodRecord:
    """Nothing is decided about it, and what it holds counts."""
    return replace(
        record,
        left_alone=bool(record.node),
        gang=None,
        ask=NOTHING_SAID,
        unschedulable=False,
        fits_nowhere="",
        awaits="",
        queue=None,
        invalid=record.invalid or LEFT_OUT,
        written=record.written if record.node else None,
        facts=None,
    )


def culprit_of(defect: BaseException) -> Culprit | None:
    """What was worked on when *defect* was raised: of the innermost frame that has a pod or gang,
    the one that got its name last, as in a loop over several."""
    frames: list[FrameType] = []
    trace = defect.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        for found in reversed([*_culprits_in(frame)]):
            return found
    return None


def _culprits_in(frame: FrameType) -> Iterator[Culprit]:
    here = frame.f_locals
    for name in frame.f_code.co_varnames:
        match here.get(name):
            case PodRecord() as record:
                yield whose(record)
            case Pod() as pod:
                yield pod.metadata.uid
            case GangKey() as key:
                yield key
            case Gang() as gang:
                yield gang.key
            case GangMembers() as members if members.all and members.all[0].gang is not None:
                yield members.all[0].gang
            case Unit() as unit if unit.pods:
                yield whose(unit.pods[0])
            case [PodRecord() as first, *others] if all(
                isinstance(other, PodRecord) and whose(other) == whose(first) for other in others
            ):
                yield whose(first)
