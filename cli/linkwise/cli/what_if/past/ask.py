"""Replays the past: with the core, with kube-scheduler alone, and as it was."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from linkwise.cli.errors import BadInputError
from linkwise.cli.what_if.given.machines import Known
from linkwise.cli.what_if.past.answer import (
    AS_IT_WAS,
    LINKWISE,
    STOCK,
    Ignored,
    JobThere,
    PastAnswer,
)
from linkwise.cli.what_if.past.as_it_was import Had, what_they_had
from linkwise.cli.what_if.past.figures import Fate, Fates, GpuUse, outcome, queue_of, worth_of
from linkwise.cli.what_if.past.ground import Ground, ground_of
from linkwise.cli.what_if.past.history import History
from linkwise.cli.what_if.past.jobs import PastJob, jobs_of, pods_of
from linkwise.cli.what_if.past.lives import Useless
from linkwise.cli.what_if.past.stock import KubeScheduler
from linkwise.drawing.words import some
from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.replay.core.contestant import LinkwiseContestant, PodsOf
from linkwise.replay.driver import Contestant, replay
from linkwise.replay.jobs import Job, OnNode, Run

_LONGEST_SECONDS = 60.0  # time limit of the core for a job that is alone
_STEP_SECONDS = 1.0

Progress = Callable[[str, int, int], object]
"""(scheduler, jobs that have ended, all jobs)."""


def ask_past(
    history: History, known: Known, settings: CoreSettings, at: float, progress: Progress
) -> PastAnswer:
    """Replay the *history* until *at*, the time of the listing. Raises BadInputError if nothing can
    be replayed."""
    settings = replace(settings, preempt=Preempt.NEVER)
    ground = ground_of(known, settings)
    if not ground.nodes:
        raise BadInputError("-f: no node there whose GPUs are known: see --assume")
    found = jobs_of(history.lives, history.objects, settings)
    alone_best = _alone_best(found.jobs, ground, settings)
    jobs = [job for job in found.jobs if alone_best[job.name] is not None]
    if not jobs:
        raise BadInputError("-f: no job there fits these nodes: nothing to replay")
    never = [job for job in found.jobs if alone_best[job.name] is None]
    ignored = _ignored([*history.useless, *found.useless, *_never(never)])

    begin = jobs[0].submit
    had = what_they_had((life for job in found.jobs for life in job.members), known.nodes, ground)
    runs = _replayed(jobs, begin, at, ground, settings, progress)
    fates: dict[str, Fates] = {AS_IT_WAS: {job.name: _fate(job, had) for job in jobs}}
    fates |= {name: _fates(jobs, begin, its) for name, its in runs.items()}
    uses = {AS_IT_WAS: _uses(found.jobs, had)} | {
        name: [GpuUse(begin + run.start, begin + run.end, run.job.gpus) for run in its.values()]
        for name, its in runs.items()
    }
    worths = {
        name: {job.name: worth_of(job, its[job.name], ground) for job in jobs}
        for name, its in fates.items()
    }
    best = {job.name: _best(alone_best[job.name], worths, job) for job in jobs}
    judged = frozenset(
        job.name for job in jobs if all(its[job.name] is not None for its in worths.values())
    )
    presumed = tuple(
        life.key
        for job in jobs
        for life in job.members
        if life.pod.metadata.uid in had and had[life.pod.metadata.uid].presumed
    )
    return PastAnswer(
        begin=begin,
        at=at,
        nodes=len(ground.nodes),
        gpus=ground.gpus,
        jobs=len(jobs),
        gangs=sum(job.is_gang for job in jobs),
        pods=sum(len(job.members) for job in jobs),
        running=sum(job.start is not None and job.end is None for job in jobs),
        judged=len(judged),
        outcomes={
            name: outcome(jobs, its, uses[name], _pairs(worths[name], best, judged), ground, at)
            for name, its in fates.items()
        },
        there=tuple(
            _there(job, fates, worths, best[job.name], at, had)
            for job in jobs
            if job.gpus > 1 or any(queue_of(job, its[job.name], at) for its in fates.values())
        ),
        guesses=known.guesses,
        left_out=(*known.left_out, *ground.left_out),
        ignored=ignored,
        presumed=presumed,
        notes=tuple(_notes(history, [str(ref) for ref in found.not_given], jobs, had)),
    )


def _alone_best(
    jobs: Sequence[PastJob], ground: Ground, settings: CoreSettings
) -> dict[str, float | None]:
    """Return by job the GB/s of the core's placement if the job has the cluster to itself, 0 for a
    single GPU; None: it never starts on these nodes."""
    known: dict[str, float | None] = {}  # by what is equal for jobs that are alike
    found: dict[str, float | None] = {}
    core: LinkwiseContestant | None = None
    now = 0.0
    for job in jobs:
        alike = repr([(pod.metadata.annotations, pod.spec) for pod in pods_of(job, 0, 0.0)])
        if alike not in known:
            core = core or LinkwiseContestant(ground.nodes, settings, _pods_of(jobs))
            coming = replace(job.as_job(0.0), submit=now, seconds=0.0)
            run = next(iter(replay([coming], core, until=now + _LONGEST_SECONDS)), None)
            if run is None:
                known[alike], core = None, None  # it still holds the job
            else:
                worth = worth_of(job, Fate(run.start, run.parts), ground)
                known[alike], now = worth or 0.0, run.end + _STEP_SECONDS
        found[job.name] = known[alike]
    return found


def _pods_of(jobs: Iterable[PastJob]) -> PodsOf:
    of_job = {job.name: job for job in jobs}
    return lambda job, number, now: pods_of(of_job[job.name], number, now)


def _replayed(
    jobs: Sequence[PastJob],
    begin: float,
    at: float,
    ground: Ground,
    settings: CoreSettings,
    progress: Progress,
) -> dict[str, Mapping[str, Run]]:
    """Replay by scheduler; returns fates by job name. Seconds count from *begin*."""
    pods = _pods_of(jobs)
    contestants: dict[str, Contestant] = {
        STOCK: KubeScheduler(ground, pods, settings.resource_names),
        LINKWISE: LinkwiseContestant(ground.nodes, settings, pods),
    }
    coming = [job.as_job(begin) for job in jobs]
    return {
        name: _replay(coming, contestant, at - begin, name, progress)
        for name, contestant in contestants.items()
    }


def _fates(jobs: Sequence[PastJob], begin: float, runs: Mapping[str, Run]) -> Fates:
    started = {name: Fate(begin + run.start, run.parts) for name, run in runs.items()}
    return {job.name: started.get(job.name, Fate(None, None)) for job in jobs}


def _replay(
    jobs: Sequence[Job], contestant: Contestant, until: float, name: str, progress: Progress
) -> Mapping[str, Run]:
    shown = -1

    def advance(ended: int) -> None:
        nonlocal shown
        if 100 * ended // len(jobs) > shown:
            shown = 100 * ended // len(jobs)
            progress(name, ended, len(jobs))

    runs = replay(jobs, contestant, advance, until=until)
    return {run.job.name: run for run in runs}


def _fate(job: PastJob, had: Mapping[str, Had]) -> Fate:
    parts: dict[int, int] = defaultdict(int)
    for life in job.members:
        its = had.get(life.pod.metadata.uid)
        if its is None:
            return Fate(job.start, None)
        parts[its.part.node] |= its.part.gpus
    return Fate(job.start, tuple(OnNode(*part) for part in sorted(parts.items())))


def _uses(jobs: Iterable[PastJob], had: Mapping[str, Had]) -> list[GpuUse]:
    return [
        GpuUse(life.bound, math.inf if life.ended is None else life.ended, life.gpus)
        for job in jobs
        for life in job.members
        if life.bound is not None and life.pod.metadata.uid in had
    ]


def _best(
    alone: float | None, worths: Mapping[str, Mapping[str, float | None]], job: PastJob
) -> float | None:
    """Return the best GB/s known. The search is only near the best, so a better placement replaces
    it."""
    seen = [worth for its in worths.values() if (worth := its[job.name]) is not None]
    return max([alone or 0.0, *seen]) or None


def _pairs(
    worths: Mapping[str, float | None], best: Mapping[str, float | None], judged: frozenset[str]
) -> dict[str, tuple[float, float]]:
    return {name: (worths[name] or 0.0, best[name] or 1.0) for name in judged}


def _there(
    job: PastJob,
    fates: Mapping[str, Fates],
    worths: Mapping[str, Mapping[str, float | None]],
    best: float | None,
    at: float,
    had: Mapping[str, Had],
) -> JobThere:
    def queued(fate: Fate) -> float | None:
        return None if fate.start is None else queue_of(job, fate, at)

    mine = [had[uid] for life in job.members if (uid := life.pod.metadata.uid) in had]
    return JobThere(
        job=job.name,
        gpus=job.gpus,
        pods=len(job.members),
        submit=job.submit,
        queued_s={name: queued(its[job.name]) for name, its in fates.items()},
        nodes={
            name: len(parts) if (parts := its[job.name].parts) else None
            for name, its in fates.items()
        },
        gbytes_per_s={name: its[job.name] for name, its in worths.items()},
        best_gbytes_per_s=best,
        presumed=any(its.presumed for its in mine),
    )


def _never(jobs: Iterable[PastJob]) -> Iterable[Useless]:
    because = "its job fits these nodes not even when they are idle"
    return [Useless(life.key, because) for job in jobs for life in job.members]


def _ignored(useless: Iterable[Useless]) -> tuple[Ignored, ...]:
    found: dict[str, list[str]] = defaultdict(list)
    for each in useless:
        found[each.because].append(each.key)
    return tuple(Ignored(because, tuple(sorted(pods))) for because, pods in sorted(found.items()))


def _notes(
    history: History,
    not_given: Sequence[str],
    jobs: Sequence[PastJob],
    had: Mapping[str, Had],
) -> Iterable[str]:
    if not_given:
        yield (
            "pods count as pods of their own, as what they hang on was not given: "
            + some(not_given)
        )
    if history.vanished:
        yield (
            "pods that a later listing does not have count as ended when they were listed for the "
            "last time: " + some(history.vanished)
        )
    elsewhere = [
        life.key
        for job in jobs
        for life in job.members
        if life.bound is not None and life.pod.metadata.uid not in had
    ]
    if elsewhere:
        yield (
            "not known which GPUs these pods had (their node is not there, or was fuller than it "
            "can be): " + some(elsewhere)
        )
