"""`bench.scheduler --as-deployed` and `--claims`: what people wait for, with the client limits that
kube-scheduler has by default: 50 requests a second, after a burst of 100.

At the offered loads pods come at random times (Poisson), and a gang's pods together. Latency runs
from the request that creates a pod (of a gang: its last pod) to the event that shows it bound (the
last one). All at once: four connections create the pods as fast as they can; pods a second count
from the first creation to the last pod bound.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import click

from bench.support.figures import percentile, print_table, ratio
from bench.support.scheduler_pods import Kind
from bench.support.scheduler_world import STOCK, LoadedScheduler, Setup

Figure = Literal["p50", "p99", "pods/s"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """*bars*: pods a second offered (0: all at once), figure -> the most it may be of *against*'s;
    of pods/s, the least."""

    name: str
    kind: Kind
    setup: Setup
    against: str
    bars: Mapping[tuple[int, Figure], float]


@dataclass(frozen=True, slots=True)
class Trial:
    """*rates*: pods a second, and how many pods; *at_once*: how many. *limited*: the clients of
    Kubernetes' programs keep their limits."""

    contestants: Sequence[Contestant]
    rates: Mapping[int, int]
    at_once: int
    limited: bool = True


_STOCK, _NATIVE = "stock", "native gangs of 4"
# As many pods as give a gang's p99 a meaning cost minutes.
DEPLOYED = Trial(
    (
        Contestant(_STOCK, Kind.SINGLE, STOCK, _STOCK, {}),
        Contestant(
            "Linkwise, single pods",
            Kind.SINGLE,
            Setup(),
            _STOCK,
            {(50, "p50"): 1.2, (50, "p99"): 1.2, (0, "pods/s"): 2.6},
        ),
        Contestant(_NATIVE, Kind.NATIVE, Setup(ours=False, native=True), _NATIVE, {}),
        Contestant(
            "Linkwise, gangs of 4",
            Kind.GANGS,
            Setup(),
            _NATIVE,
            {(5, "p50"): 1.1, (20, "p50"): 1.1, (0, "pods/s"): 6.0},
        ),
    ),
    {5: 60, 20: 160, 50: 500},
    500,
)
_FIRST_FIT = "DRA's first fit"
_OF_CLAIMS = (
    Contestant(_FIRST_FIT, Kind.SINGLE, STOCK, _FIRST_FIT, {}),
    Contestant("Linkwise, single pods", Kind.SINGLE, Setup(), _FIRST_FIT, {(0, "pods/s"): 0.8}),
    Contestant("Linkwise, gangs of 4", Kind.GANGS, Setup(), _FIRST_FIT, {(0, "pods/s"): 0.8}),
)
# GPUs from claims. Within its limits, Kubernetes creates claims of templates for 10 pods a second.
CLAIMS = (
    Trial(_OF_CLAIMS, {5: 60}, 200),
    Trial(_OF_CLAIMS, {5: 60, 20: 100}, 200, limited=False),
)


async def measure(world: LoadedScheduler, trial: Trial, repeat: int, seed: int) -> bool:
    """Print the tables; return whether all bars are kept."""
    waits: dict[tuple[str, int], list[float]] = defaultdict(list)
    rates: dict[str, list[float]] = defaultdict(list)
    # The API server's slowest pods.
    await world.come_and_go(Kind.SINGLE, trial.at_once, replace(STOCK, limited=trial.limited))
    for repetition in range(repeat):
        for one in trial.contestants if repetition % 2 == 0 else reversed(trial.contestants):
            setup = replace(one.setup, limited=trial.limited)
            for rate, pods in trial.rates.items():
                waited = await world.offered(one.kind, pods, setup, rate, seed + repetition)
                waits[one.name, rate] += waited
                _tell(one, f"{rate} pods/s offered: {1000 * statistics.median(waited):.1f} ms")
            done = await world.come_and_go(one.kind, trial.at_once, setup)
            rates[one.name].append(done.pods_per_second)
            _tell(one, f"all at once: {done.pods_per_second:.0f} pods/s, ms of each: {done.cost()}")
    figures: dict[tuple[str, int, Figure], float] = {}
    for (name, rate), seconds in waits.items():
        figures[name, rate, "p50"] = percentile(seconds, 50)
        figures[name, rate, "p99"] = percentile(seconds, 99)
    for name, reached in rates.items():
        figures[name, 0, "pods/s"] = statistics.median(reached)
    return _show(trial, figures)


def _tell(one: Contestant, text: str) -> None:
    click.echo(f"{one.name}, {text}", err=True)


def _show(trial: Trial, figures: Mapping[tuple[str, int, Figure], float]) -> bool:
    header = [
        "",
        *(f"{rate}/s p50, p99 ms" for rate in trial.rates),
        f"{trial.at_once} at once, pods/s",
    ]
    rows, bars, kept = [], [], True
    for one in trial.contestants:
        latencies = (
            f"{figures[one.name, rate, 'p50']:.1f}, {figures[one.name, rate, 'p99']:.1f}"
            for rate in trial.rates
        )
        rows.append((one.name, *latencies, f"{figures[one.name, 0, 'pods/s']:.0f}"))
        for (rate, figure), bar in one.bars.items():
            ours, theirs = figures[one.name, rate, figure], figures[one.against, rate, figure]
            is_kept = ours >= bar * theirs if figure == "pods/s" else ours <= bar * theirs
            kept &= is_kept
            load = f"{rate}/s" if rate else "at once"
            verdict = "kept" if is_kept else "MISSED"
            bars.append(
                (f"{one.name}, {load}, {figure}", ratio(ours, theirs), f"{bar:g}×", verdict)
            )
    print_table(header, rows)
    click.echo()
    print_table(("bar", "measured", "bar", "verdict"), bars)
    return kept
