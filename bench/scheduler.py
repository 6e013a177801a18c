"""Pods per second on a real kube-scheduler and API server, with Linkwise and without:
`python -m bench.scheduler`.

Every pod takes a whole 8-GPU machine. `stock` is kube-scheduler without an extender. The other
variants are the same kube-scheduler with the deployed configuration, and the extender as a process
beside it. All programs share this machine's cores: API server, etcd, kube-scheduler, the extender,
and the one that creates the pods. The order of the variants is reversed with every repetition, and
all share one API server.

Planned: the pods exist, and are nominated where Linkwise plans them, before kube-scheduler starts;
counted from the first pod bound to the last. Created: four connections create the pods while they
are scheduled; counted from the first creation to the last pod bound.
"""

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import click

from bench.support.figures import print_table, ratio, this_machine
from bench.support.scheduler_pods import Kind, Length
from bench.support.scheduler_world import Round, World, world
from tests.cluster.support.host import sandbox
from tests.cluster.support.programs.binaries import NEWEST, kubernetes


@dataclass(frozen=True, slots=True)
class Variant:
    """*bars*: number of nodes -> the required pods per second as a share of stock's."""

    name: str
    run: Callable[[World, int], Awaitable[Round]]
    bars: dict[int, float]


def _planned(name: str, kind: Kind, *, ours: bool = True, barred: bool = True) -> Variant:
    bars = {1000: 1.5, 5000: 1.2} if ours and barred else {}
    plain = name == _WITHOUT_TLS
    return Variant(
        name, lambda world, pods: world.planned(kind, pods, ours=ours, plain=plain), bars
    )


def _created(name: str, kind: Kind, *, ours: bool = True, barred: bool = True) -> Variant:
    bars = {1000: 0.9, 5000: 0.9} if ours and barred else {}
    plain = name == _WITHOUT_TLS
    return Variant(
        name, lambda world, pods: world.come_and_go(kind, pods, ours=ours, plain=plain), bars
    )


_WITHOUT_TLS, _WITH_TLS = "without TLS", "with TLS"
# The first variant of each group is the baseline of the others.
GROUPS = {
    "planned": (
        _planned("stock", Kind.SINGLE, ours=False),
        _planned("Linkwise, gangs of 4", Kind.GANGS),
        _planned("Linkwise, gated pods", Kind.GATED),
    ),
    "created": (
        _created("stock", Kind.SINGLE, ours=False),
        _created("Linkwise, as they come", Kind.SINGLE),
        _created("Linkwise, gated pods", Kind.GATED),
        _created("Linkwise, gangs of 4", Kind.GANGS, barred=False),
        Variant("gated, the writes alone", lambda world, pods: world.writes_alone(pods), {}),
    ),
}
# The variants of --tls, which replace the others.
TLS_GROUPS = {
    "planned": tuple(
        _planned(name, Kind.GATED, barred=False) for name in (_WITHOUT_TLS, _WITH_TLS)
    ),
    "created": tuple(
        _created(name, Kind.GATED, barred=False) for name in (_WITHOUT_TLS, _WITH_TLS)
    ),
}
MOST_PODS = 1500


@dataclass(frozen=True, slots=True)
class Result:
    nodes: int
    group: str
    variant: Variant
    rounds: Sequence[Round]
    stock: float  # pods per second

    @property
    def rate(self) -> float:
        return statistics.median(one.pods_per_second for one in self.rounds)

    @property
    def verdict(self) -> str | None:
        """Whether its bar is kept; None if it has none."""
        bar = self.variant.bars.get(self.nodes)
        if bar is None:
            return None
        return "MISSED" if self.rate < bar * self.stock else "kept"

    def row(self) -> tuple[str, ...]:
        rates = [one.pods_per_second for one in self.rounds]
        bar = self.variant.bars.get(self.nodes)
        programs = ("etcd", "apiserver", "scheduler", "extender", "load")
        return (
            f"{self.nodes:,}, {self.group}, {self.variant.name}",
            f"{self.rate:.0f}",
            f"{min(rates):.0f} to {max(rates):.0f}",
            ratio(self.rate, self.stock),
            "" if bar is None else f"{bar:g}, {self.verdict}",
            *(self._milliseconds(program) for program in programs),
        )

    def _milliseconds(self, program: str) -> str:
        """CPU milliseconds per pod."""
        worked = [one.cpu[program] / one.pods for one in self.rounds if program in one.cpu]
        return f"{1000 * statistics.median(worked):.2f}" if worked else ""


HEADER = (
    "nodes, pods",
    "pods/s",
    "least to most",
    "of stock's",
    "bar",
    *(f"{program} ms" for program in ("etcd", "apiserver", "scheduler", "extender", "load")),
)


async def measure(
    nodes: int, length: Length, groups: Mapping[str, Sequence[Variant]], repeat: int
) -> list[Result]:
    directory = sandbox.directory()
    assert directory is not None
    results = []
    async with world(directory / f"nodes-{nodes}", nodes, length) as here:
        for group, variants in groups.items():
            results += await _group(here, nodes, group, variants, repeat)
    return results


async def _group(
    here: World, nodes: int, group: str, variants: Sequence[Variant], repeat: int
) -> list[Result]:
    pods = min(nodes, MOST_PODS)
    rounds: dict[str, list[Round]] = {variant.name: [] for variant in variants}
    await variants[0].run(here, pods)  # an API server's first thousand pods are its slowest
    for repetition in range(repeat):
        for variant in variants if repetition % 2 == 0 else reversed(variants):
            done = await variant.run(here, pods)
            rounds[variant.name].append(done)
            click.echo(
                f"{nodes:,} nodes, {group}, {variant.name}: {done.pods_per_second:.0f} pods/s",
                err=True,
            )
    stock = statistics.median(one.pods_per_second for one in rounds[variants[0].name])
    return [Result(nodes, group, each, rounds[each.name], stock) for each in variants]


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(16), multiple=True, default=(100, 1000, 5000))
@click.option("--repeat", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--pods",
    type=click.Choice([length.value for length in Length]),
    default=Length.BARE.value,
    show_default=True,
    help="Pods with one container and nothing else, or as large as training pods.",
)
@click.option("--only", type=click.Choice(list(GROUPS)), help="Only one of the two groups.")
@click.option("--tls", is_flag=True, help="Compare with and without TLS instead of with stock.")
def main(nodes: tuple[int, ...], repeat: int, pods: str, only: str | None, tls: bool) -> None:
    if sandbox.directory() is None:
        kubernetes()  # the sandbox has no network to build it from
        sys.exit(sandbox.run([sys.executable, "-m", "bench.scheduler", *sys.argv[1:]]))
    click.echo(f"{NEWEST}, {pods} 8-GPU pods, {repeat} rounds each: {this_machine()}\n")
    all_groups = TLS_GROUPS if tls else GROUPS
    groups = {only: all_groups[only]} if only else all_groups
    results = []
    for count in nodes:
        results += asyncio.run(measure(count, Length(pods), groups, repeat))
    print_table(HEADER, [result.row() for result in results])
    verdicts = {each.verdict for each in results}
    # Without bars there is no verdict.
    said = "MISSED" if "MISSED" in verdicts else "kept" if "kept" in verdicts else "none here"
    click.echo(f"\nBars: {said}")
    raise SystemExit("MISSED" in verdicts)


if __name__ == "__main__":
    main()
