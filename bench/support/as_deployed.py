"""`bench.scheduler --as-deployed` and `--claims`: what people wait for, with the client limits that
kube-scheduler has by default: 50 requests a second, after a burst of 100.

At the offered loads pods come at random times (Poisson), and a gang's pods together. Latency runs
from the request that creates a pod (of a gang: its last pod) to the event that shows it bound (the
last one). Refused: the share of single pods, or of gangs, of which kube-scheduler tried a pod in
vain. CPU: processor time of all programs for each pod.

With claims also all at once: four connections create the pods as fast as they can; pods a second
count from the first creation to the last pod bound.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import click

from bench.support.figures import percentile, print_table, ratio
from bench.support.scheduler_pods import Kind
from bench.support.scheduler_world import STOCK, LoadedScheduler, Offered, Setup, sample_of_second

Figure = Literal["p50 ms", "p90 ms", "p99 ms", "refused", "CPU ms", "pods/s"]
_OFFERED: tuple[Figure, ...] = ("p50 ms", "p90 ms", "p99 ms", "refused", "CPU ms")
_AT_ONCE = 0  # in place of a rate
_WARM_UP = 200  # pods: an API server's first ones are its slowest


@dataclass(frozen=True, slots=True)
class Bar:
    """The most that a contestant's figure may be, as a multiple of that of *against*, at the same
    rate or at *at*; without *against*, itself. Of pods/s, the least."""

    rate: int
    figure: Figure
    most: float
    against: str = ""
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    kind: Kind
    setup: Setup
    bars: Sequence[Bar] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """*rates*: pods a second, and how many pods; *at_once*: how many. *limited*: the clients of
    Kubernetes' programs keep their limits."""

    contestants: Sequence[Contestant]
    rates: Mapping[int, int]
    at_once: int = 0
    limited: bool = True


_STOCK, _NATIVE = "stock", "native gangs of 4"
_SINGLES, _GANGS = "Linkwise, single pods", "Linkwise, gangs of 4"
_SECOND = "Linkwise, gangs of 4, second scheduler"
_BUSY = 100
_ALL_NODES = 100  # below so many, kube-scheduler compares all of them


def deployed(nodes: int) -> Trial:
    """The second scheduler takes samples of more nodes only."""
    is_small = nodes < _ALL_NODES
    singles = [
        *(Bar(rate, "p50 ms", 1.3, _STOCK) for rate in (5, 20)),
        Bar(_BUSY, "p50 ms", 3.0, _SINGLES, at=5),
        Bar(_BUSY, "CPU ms", 1.15, _STOCK),
    ]
    gangs = [
        *(Bar(rate, "p50 ms", 1.0 if is_small else 1.1, _NATIVE) for rate in (5, 20)),
        Bar(5, "p90 ms", 1.3, _NATIVE),
        Bar(5, "refused", 0.05),
        Bar(_BUSY, "p50 ms", 3.0, _GANGS, at=5),
    ]
    second = [
        *(Bar(rate, "p50 ms", 1.2, _NATIVE) for rate in (5, 20)),
        Bar(5, "p90 ms", 1.5, _NATIVE),
        Bar(5, "refused", 0.05),
    ]
    contestants = (
        Contestant(_STOCK, Kind.SINGLE, STOCK),
        Contestant(_SINGLES, Kind.SINGLE, Setup(), singles),
        Contestant(_NATIVE, Kind.NATIVE, Setup(ours=False, native=True)),
        Contestant(_GANGS, Kind.GANGS, Setup(), gangs),
        Contestant(_SECOND, Kind.GANGS, Setup(percentage=sample_of_second()), second),
    )
    return Trial(contestants[: -1 if is_small else None], {5: 80, 20: 160, _BUSY: 1000})


_FIRST_FIT = "DRA's first fit"
_OF_CLAIMS = (
    Contestant(_FIRST_FIT, Kind.SINGLE, STOCK),
    *(
        Contestant(name, kind, Setup(), [Bar(_AT_ONCE, "pods/s", 0.8, _FIRST_FIT)])
        for name, kind in ((_SINGLES, Kind.SINGLE), (_GANGS, Kind.GANGS))
    ),
)
# GPUs from claims. Within its limits, Kubernetes creates claims of templates for 10 pods a second.
CLAIMS = (
    Trial(_OF_CLAIMS, {5: 60}, 200),
    Trial(_OF_CLAIMS, {5: 60, 20: 100}, 200, limited=False),
)
_Figures = Mapping[tuple[str, int, Figure], float]


async def measure(world: LoadedScheduler, trial: Trial, repeat: int, seed: int) -> bool:
    """Print the tables; return whether all bars are kept."""
    offered: dict[tuple[str, int], list[Offered]] = defaultdict(list)
    at_once: dict[str, list[float]] = defaultdict(list)
    warm_up = replace(STOCK, limited=trial.limited)
    await world.offered(Kind.SINGLE, _WARM_UP, warm_up, _BUSY, seed)
    for repetition in range(repeat):
        for one in trial.contestants if repetition % 2 == 0 else reversed(trial.contestants):
            setup = replace(one.setup, limited=trial.limited)
            for rate, pods in trial.rates.items():
                done = await world.offered(one.kind, pods, setup, rate, seed + repetition)
                offered[one.name, rate].append(done)
                waited = 1000 * statistics.median(done.waits)
                _tell(one, f"{rate} pods/s offered: {waited:.1f} ms")
            if trial.at_once:
                came = await world.come_and_go(one.kind, trial.at_once, setup)
                at_once[one.name].append(came.pods_per_second)
                speed, cost = came.pods_per_second, came.cost()
                _tell(one, f"all at once: {speed:.0f} pods/s, ms of each: {cost}")
    figures: dict[tuple[str, int, Figure], float] = {}
    for (name, rate), rounds in offered.items():
        waits = [wait for done in rounds for wait in done.waits]
        figures[name, rate, "p50 ms"] = percentile(waits, 50)
        figures[name, rate, "p90 ms"] = percentile(waits, 90)
        figures[name, rate, "p99 ms"] = percentile(waits, 99)
        figures[name, rate, "refused"] = statistics.mean(done.refused for done in rounds)
        figures[name, rate, "CPU ms"] = 1000 * statistics.mean(done.cpu for done in rounds)
    for name, reached in at_once.items():
        figures[name, _AT_ONCE, "pods/s"] = statistics.median(reached)
    return _show(trial, figures)


def _tell(one: Contestant, text: str) -> None:
    click.echo(f"{one.name}, {text}", err=True)


def _show(trial: Trial, figures: _Figures) -> bool:
    rows = [
        (
            f"{one.name}, {rate}/s",
            *(_said(figures[one.name, rate, each], each) for each in _OFFERED),
        )
        for rate in trial.rates
        for one in trial.contestants
    ]
    print_table(("", *_OFFERED), rows)
    if trial.at_once:
        click.echo()
        reached = [(one.name, figures[one.name, _AT_ONCE, "pods/s"]) for one in trial.contestants]
        print_table((f"{trial.at_once} at once", "pods/s"), [(n, f"{f:.0f}") for n, f in reached])
    bars, kept = [], True
    for one in trial.contestants:
        for bar in one.bars:
            ours = figures[one.name, bar.rate, bar.figure]
            at = bar.rate if bar.at is None else bar.at
            theirs = figures[bar.against, at, bar.figure] if bar.against else 1.0
            measured = ratio(ours, theirs) if bar.against else _said(ours, bar.figure)
            is_more = ours > bar.most * theirs
            is_kept = ours >= bar.most * theirs if bar.figure == "pods/s" else not is_more
            kept &= is_kept
            load = f"{bar.rate}/s" if bar.rate else "at once"
            against = f" of {bar.against}'s" * bool(bar.against) + f" at {at}/s" * (at != bar.rate)
            what = f"{one.name}, {load}, {bar.figure}{against}"
            most = f"{bar.most:g}×" if bar.against else _said(bar.most, bar.figure)
            bars.append((what, measured, most, "kept" if is_kept else "MISSED"))
    click.echo()
    print_table(("bar", "measured", "bar", "verdict"), bars)
    return kept


def _said(value: float, figure: Figure) -> str:
    return f"{value:.0%}" if figure == "refused" else f"{value:.1f}"
