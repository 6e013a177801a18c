"""`bench.scheduler --as-deployed`: what people wait for, with the client limits that kube-scheduler
has by default: 50 requests a second, after a burst of 100.

At the offered loads pods come at random times (Poisson), and a gang's pods together. Latency runs
from the request that creates a pod (of a gang: its last pod) to the event that shows it bound (the
last one). All at once: four connections create the pods as fast as they can; pods a second count
from the first creation to the last pod bound.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import click

from bench.support.figures import percentile, print_table, ratio
from bench.support.scheduler_pods import Kind
from bench.support.scheduler_world import STOCK, LoadedScheduler, Setup

# Pods a second, and how many: as many as give a gang's p99 a meaning cost minutes.
RATES: Mapping[int, int] = {5: 60, 20: 160, 50: 500}
_AT_ONCE = 500
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


_STOCK, _NATIVE = "stock", "native gangs of 4"
CONTESTANTS = (
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
)


async def measure(world: LoadedScheduler, repeat: int, seed: int) -> bool:
    """Print the tables; return whether all bars are kept."""
    waits: dict[tuple[str, int], list[float]] = defaultdict(list)
    rates: dict[str, list[float]] = defaultdict(list)
    await world.come_and_go(Kind.SINGLE, _AT_ONCE, STOCK)  # the API server's slowest pods
    for repetition in range(repeat):
        for one in CONTESTANTS if repetition % 2 == 0 else reversed(CONTESTANTS):
            setup = one.setup.with_limits()
            for rate, pods in RATES.items():
                waited = await world.offered(one.kind, pods, setup, rate, seed + repetition)
                waits[one.name, rate] += waited
                _tell(one, f"{rate} pods/s offered: {1000 * statistics.median(waited):.1f} ms")
            done = await world.come_and_go(one.kind, _AT_ONCE, setup)
            rates[one.name].append(done.pods_per_second)
            _tell(one, f"all at once: {done.pods_per_second:.0f} pods/s")
    figures: dict[tuple[str, int, Figure], float] = {}
    for (name, rate), seconds in waits.items():
        figures[name, rate, "p50"] = percentile(seconds, 50)
        figures[name, rate, "p99"] = percentile(seconds, 99)
    for name, reached in rates.items():
        figures[name, 0, "pods/s"] = statistics.median(reached)
    return _show(figures)


def _tell(one: Contestant, text: str) -> None:
    click.echo(f"{one.name}, {text}", err=True)


def _show(figures: Mapping[tuple[str, int, Figure], float]) -> bool:
    header = [
        "",
        *(f"{rate}/s p50, p99 ms" for rate in RATES),
        f"{_AT_ONCE} at once, pods/s",
    ]
    rows, bars, kept = [], [], True
    for one in CONTESTANTS:
        latencies = (
            f"{figures[one.name, rate, 'p50']:.1f}, {figures[one.name, rate, 'p99']:.1f}"
            for rate in RATES
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
