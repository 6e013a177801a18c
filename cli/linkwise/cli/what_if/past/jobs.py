"""Which pods formed one job: gangs by the extender's recogniser, other pods one by one.

A gang may have run more than once, as a Job whose pods failed and were created again. Pods that
come after the gang has all its members, or after one of these has ended, are its next run.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count

import msgspec

from linkwise.cli.documents import Fields
from linkwise.cli.what_if.past.lives import Life, Useless
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.records import natural
from linkwise.kube.objects import Container, ObjectMeta, Pod, PodSpec, Resources
from linkwise.pods.annotations import ask_of
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import NeedsOwner, ObjectRef, Recognised, Refused
from linkwise.replay.jobs import Job
from linkwise.topology import names
from linkwise.topology.errors import AnnotationError

change = msgspec.structs.replace
_NOT_COUNTED = frozenset({"cpu", "memory"})
_OF_GANG = (names.GANG, names.GANG_SIZE, names.GANG_MIN, names.GANG_TIMEOUT, names.RANK)


@dataclass(frozen=True, slots=True)
class PastJob:
    """Pods that started together; `members` are in the order of their ranks."""

    name: str  # namespace/name, and the number of the run
    is_gang: bool
    members: tuple[Life, ...]
    expected: float | None  # seconds, as its pods state
    apart: bool  # each pod is a communicator of its own

    @property
    def gpus(self) -> int:
        return sum(life.gpus for life in self.members)

    @property
    def submit(self) -> float:
        """The creation of its last pod."""
        return max(life.created for life in self.members)

    @property
    def start(self) -> float | None:
        """The time when its last pod got a node; None: it waits."""
        bound = [life.bound for life in self.members if life.bound is not None]
        return max(self.submit, *bound) if len(bound) == len(self.members) else None

    @property
    def end(self) -> float | None:
        ended = [life.ended for life in self.members if life.ended is not None]
        return max(ended) if len(ended) == len(self.members) else None

    def as_job(self, begin: float) -> Job:
        """Return it for the replay, whose second 0 is *begin*. The end of a running job is
        unknown."""
        start, end = self.start, self.end
        seconds = float("inf") if start is None or end is None else max(end - start, 0.0)
        return Job(
            self.name,
            self.submit - begin,
            seconds,
            self.gpus,
            self.members[0].pod.metadata.namespace,
            max(life.gpus for life in self.members),
            self.expected,
        )


@dataclass(frozen=True, slots=True)
class PastJobs:
    jobs: tuple[PastJob, ...]  # by time of submission
    useless: tuple[Useless, ...]
    not_given: tuple[ObjectRef, ...]  # owners of pods that were not listed: their pods count alone


@dataclass(frozen=True, slots=True)
class _Seat:
    """A pod, and its position in its gang."""

    life: Life
    gang: tuple[str, str] | None  # name and uid
    size: int
    minimum: int  # pods with GPUs that are enough for the gang to start
    rank: int | None


def jobs_of(
    lives: Iterable[Life],
    objects: Mapping[str, Mapping[ObjectRef, Fields]],
    settings: CoreSettings,
) -> PastJobs:
    """Return the jobs. *objects*: by uid of a pod, the objects listed with it."""
    known: dict[int, Mapping[ObjectRef, Fields]] = {}
    gangs: dict[tuple[str, str], list[_Seat]] = defaultdict(list)
    singles: list[_Seat] = []
    useless: list[Useless] = []
    not_given: dict[ObjectRef, None] = {}
    for life in lives:
        its = objects[life.pod.metadata.uid]
        if id(its) not in known:
            known[id(its)] = _without_status(its)
        answer = recognise(
            life.pod,
            known[id(its)],
            resources=settings.resource_names,
            indexed_jobs=settings.indexed_jobs,
        )
        if isinstance(answer, Refused):
            useless.append(Useless(life.key, answer.because))
        elif isinstance(answer, Recognised):
            gang = str(answer.gang), answer.gang.uid
            gangs[gang].append(
                _Seat(life, gang, answer.gpu_size, answer.gpu_minimum, answer.member.rank)
            )
        else:
            if isinstance(answer, NeedsOwner):
                not_given[answer.owner] = None
            singles.append(_Seat(life, None, 1, 1, None))
    runs: list[Sequence[_Seat]] = [(seat,) for seat in singles]
    for seats in gangs.values():
        of_gang = _runs(seats)
        if _never_began(of_gang):
            because = "too few of its gang's pods are known, and none has run"
            useless += [Useless(seat.life.key, because) for seat in seats]
        else:
            runs += of_gang
    jobs: list[PastJob] = []
    names_given: set[str] = set()
    for run in sorted(runs, key=lambda run: max(seat.life.created for seat in run)):
        over = any(seat.life.ended is not None for seat in run)
        if over and any(seat.life.bound is None for seat in run):
            because = "of its gang some ended while others had no node"
            useless += [Useless(seat.life.key, because) for seat in run]
            continue
        first = run[0]
        name = first.life.key if first.gang is None else first.gang[0]
        numbered = (f"{name} (run {number})" for number in count(2))
        name = next(each for each in chain((name,), numbered) if each not in names_given)
        names_given.add(name)
        jobs.append(_job(name, run))
    return PastJobs(tuple(jobs), tuple(useless), tuple(not_given))


def _without_status(objects: Mapping[ObjectRef, Fields]) -> Mapping[ObjectRef, Fields]:
    """Drop the status, as before the pods came: a Job that has ended needs no more pods."""
    return {
        ref: {key: value for key, value in fields.items() if key != "status"}
        for ref, fields in objects.items()
    }


def pods_of(job: PastJob, number: int, now: float) -> list[Pod]:
    """Return its pods as created, with everything that restricts their nodes. Annotations name the
    gang, so that nothing has to be read; CPU and memory are left out."""
    return [
        _as_created(life, number, rank, len(job.members), now)
        for rank, life in enumerate(job.members)
    ]


def _runs(seats: Sequence[_Seat]) -> list[tuple[_Seat, ...]]:
    """Split into runs. *seats* are in order of creation."""
    runs: list[list[_Seat]] = []
    for seat in seats:
        if not runs or _is_closed(runs[-1], seat):
            runs.append([])
        runs[-1].append(seat)
    return [tuple(run) for run in runs]


def _never_began(runs: Sequence[Sequence[_Seat]]) -> bool:
    """Whether too few of a gang's pods are known to start it. If one has run, the others may be
    gone from the listing, or those that wait replace members."""
    return all(
        len(run) < run[0].minimum and all(seat.life.bound is None for seat in run) for run in runs
    )


def _is_closed(run: Sequence[_Seat], seat: _Seat) -> bool:
    return (
        len(run) >= max(seat.size, 1)
        or any(
            other.life.ended is not None and other.life.ended <= seat.life.created for other in run
        )
        or (seat.rank is not None and seat.rank in {other.rank for other in run})
    )


def _job(name: str, run: Sequence[_Seat]) -> PastJob:
    def order(seat: _Seat) -> tuple[object, ...]:
        no_rank = seat.rank is None
        return no_rank, seat.rank or 0, natural(seat.life.pod.metadata.name)

    members = tuple(seat.life for seat in sorted(run, key=order))
    asks = []
    for life in members:
        try:
            asks.append(ask_of(life.pod.metadata.annotations, life.pod.metadata.labels))
        except AnnotationError:
            continue
    said = [ask.expected_seconds for ask in asks if ask.expected_seconds is not None]
    return PastJob(
        name,
        len(members) > 1,
        members,
        max(said, default=None),
        len(members) > 1 and all(ask.spans.apart for ask in asks),
    )


def _as_created(life: Life, number: int, rank: int, size: int, now: float) -> Pod:
    meta, spec = life.pod.metadata, life.pod.spec
    said = {
        key: text
        for key, text in meta.annotations.items()
        if key.startswith(names.PREFIX) and key not in (*names.BY_EXTENDER, *_OF_GANG)
    }
    if size > 1:
        said |= {
            names.GANG: f"past-{number}",
            names.GANG_SIZE: str(size),
            names.RANK: str(rank),
        }
    of_job = any(owner.kind.endswith("Job") for owner in meta.owner_references)
    name = f"past-{number}-{rank}"
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=meta.namespace,
            uid=name,
            annotations=said,
            creation_timestamp=datetime.fromtimestamp(now, UTC),
        ),
        spec=PodSpec(
            node_selector=spec.node_selector,
            affinity=spec.affinity,
            tolerations=spec.tolerations,
            init_containers=tuple(_gpus_alone(each) for each in spec.init_containers),
            containers=tuple(_gpus_alone(each) for each in spec.containers),
            resource_claims=spec.resource_claims if names.CLAIMS in said else (),
            priority=spec.priority,
            preemption_policy=spec.preemption_policy,
            restart_policy="Never" if of_job else spec.restart_policy,
        ),
    )


def _gpus_alone(container: Container) -> Container:
    asked = container.resources
    return change(
        container,
        resources=Resources(
            requests={k: v for k, v in asked.requests.items() if k not in _NOT_COUNTED},
            limits={k: v for k, v in asked.limits.items() if k not in _NOT_COUNTED},
        ),
    )
