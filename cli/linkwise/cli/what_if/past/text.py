"""What the last weeks would have been, for people."""

from collections.abc import Callable, Iterator

from linkwise.cli.what_if.cluster_text import about_machines, about_presumed
from linkwise.cli.what_if.past.answer import (
    AS_IT_WAS,
    LINKWISE,
    STOCK,
    JobThere,
    Outcome,
    PastAnswer,
)
from linkwise.cli.what_if.past.figures import LARGE
from linkwise.drawing.tables import aligned
from linkwise.drawing.words import (
    counted,
    duration,
    fact,
    gpus_in_words,
    minute,
    pods_in_words,
)

_TITLES = {AS_IT_WAS: "as it was", STOCK: "kube-scheduler", LINKWISE: "Linkwise"}
_MOST_JOBS = 10
_LEGEND = """
GB/s: estimated all-reduce bus bandwidth of all of a job's GPUs; best: alone on the idle cluster.
kube-scheduler, Linkwise: the jobs that are known, created at the same times, replayed. Pods that
were deleted are not known, so the two have more room than there was: compare their waits.
"""


def write_past(answer: PastAnswer) -> str:
    lines = [*_about(answer), "", *_figures(answer), *_jobs(answer)]
    return "".join(f"{line}\n" for line in lines) + _LEGEND


def _about(answer: PastAnswer) -> Iterator[str]:
    yield fact("cluster", f"{gpus_in_words(answer.gpus)} on {counted(answer.nodes, 'node')}")
    yield from about_machines(answer)
    yield fact("history", f"{minute(answer.begin)} to {minute(answer.at)}")
    gangs = f"{counted(answer.gangs, 'gang')} among them"
    pods = f"{pods_in_words(answer.pods)}, {answer.running} of the jobs running"
    yield fact("jobs", f"{answer.jobs}, {gangs}: {pods}")
    for ignored in answer.ignored:
        yield fact("ignored", f"{pods_in_words(len(ignored.pods))}: {ignored.because}")
    yield from about_presumed(answer)
    for note in answer.notes:
        yield fact("note", note)


def _figures(answer: PastAnswer) -> Iterator[str]:
    outcomes = [answer.outcomes[name] for name in _TITLES]

    def row(title: str, text: Callable[[Outcome], str]) -> tuple[str, ...]:
        return title, *(text(each) for each in outcomes)

    several = f"jobs with several GPUs ({answer.judged}), GB/s"
    rows = [
        ("", *_TITLES.values()),
        row(several, lambda each: _number(each.gbytes_per_s)),
        row("  of the best", lambda each: _share(each.of_best)),
        row("waits, mean", lambda each: _wait(each.queue_mean_s)),
        row("  nine of ten less than", lambda each: _wait(each.queue_p90_s)),
        row("  longest", lambda each: _wait(each.queue_longest_s)),
        row(f"  {LARGE} GPUs and more, mean", lambda each: _wait(each.large_queue_mean_s)),
        row("waiting at the end", lambda each: str(each.waiting)),
        row("hours in which a job waited", lambda each: f"{each.waited_hours:,.1f}"),
        row("  GPU hours unallocated then", lambda each: f"{each.idle_gpu_hours:,.1f}"),
    ]
    yield from aligned(rows, (1, 2, 3)).splitlines()


def _jobs(answer: PastAnswer) -> Iterator[str]:
    """Show the jobs that would have gained the most GB/s."""
    gains = [(_gain(there), there) for there in answer.there]
    most = sorted((each for each in gains if each[0] > 0), key=lambda each: (-each[0], each[1].job))
    if not most:
        return
    yield ""
    yield "GB/s, where Linkwise would have gained most:"
    shown = [there for _, there in most[:_MOST_JOBS]]
    rows = [("JOB", "GPUS", *(title.upper() for title in _TITLES.values()), "BEST")]
    rows += [_row(there) for there in shown]
    yield from aligned(rows, range(1, 6)).splitlines()
    if len(most) > len(shown):
        yield f"and {len(most) - len(shown)} more; -o json has all"


def _gain(there: JobThere) -> float:
    before, after = there.gbytes_per_s[AS_IT_WAS], there.gbytes_per_s[LINKWISE]
    return 0.0 if before is None or after is None else after - before


def _row(there: JobThere) -> tuple[str, ...]:
    got = [_number(there.gbytes_per_s[name]) for name in _TITLES]
    return there.job, str(there.gpus), *got, _number(there.best_gbytes_per_s)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _wait(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)
