"""Pods per second on a real kube-scheduler and API server, with Linkwise and without:
`python -m bench.scheduler`.

Every pod takes a whole 8-GPU machine. `stock` is kube-scheduler without an extender, and `native
gangs` are its own PodGroups. The variants of Linkwise are the same kube-scheduler with the deployed
configuration, and the extender as a process beside it. All programs share this machine's cores: API
server, etcd, kube-scheduler, the extender, and the one that creates the pods. The order of the
variants is reversed with every repetition, and all share one API server.

Planned: the pods exist, and are nominated where Linkwise plans them, before kube-scheduler starts;
counted from the first pod bound to the last. Created: four connections create the pods while they
are scheduled; counted from the first creation to the last pod bound. One gang: 512 pods, counted
from the last creation, as a gang can only start then; single pods beside it: as in planned.
Without GPUs: pods about which kube-scheduler does not ask Linkwise, with it and without.

`--claims`: GPUs come from ResourceSlices, and kube-scheduler has no configuration. Alone, it takes
the first free ones for claims of a template. With Linkwise, the webhook and the extender take over
the same pods.
"""

import asyncio
import shlex
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from bench.support import as_deployed
from bench.support.figures import print_table, ratio, this_machine
from bench.support.programs import in_sandbox, kubernetes_and_helm
from bench.support.scheduler_pods import Kind, Length
from bench.support.scheduler_world import (
    STOCK,
    LoadedScheduler,
    Round,
    Setup,
    claims_world,
    sample_of_second,
    world,
)
from tests.cluster.support.programs.binaries import NEWEST, kubernetes


@dataclass(frozen=True, slots=True)
class Variant:
    """*bars*: number of nodes -> the required pods per second as a share of another variant's:
    that named *against*, or the first one of the group."""

    name: str
    run: Callable[[LoadedScheduler, int], Awaitable[Round]]
    bars: dict[int, float]
    against: str = ""


Bars = dict[int, float]
_PLANNED, _CREATED, _GANGS = {1000: 1.5, 5000: 1.5}, {1000: 0.9, 5000: 1.0}, {1000: 1.2, 5000: 1.2}
_ONE_GANG, _NO_GPUS = {5000: 1.0}, {1000: 0.98, 5000: 0.98}


def _planned(name: str, kind: Kind, setup: Setup, bars: Bars | None = None) -> Variant:
    return Variant(name, lambda world, pods: world.planned(kind, pods, setup), bars or {})


def _created(
    name: str,
    kind: Kind,
    setup: Setup,
    bars: Bars | None = None,
    against: str = "",
    *,
    from_last: bool = False,
) -> Variant:
    def run(world: LoadedScheduler, pods: int) -> Awaitable[Round]:
        return world.come_and_go(kind, pods, setup, from_last=from_last)

    return Variant(name, run, bars or {}, against)


_OURS, _PLAIN = Setup(), Setup(tls=False)
_SECOND = Setup(percentage=sample_of_second())
_NATIVE, _NATIVE_SETUP = "native gangs of 4", Setup(ours=False, native=True)
# The first variant of each group is the baseline of the others.
GROUPS = {
    "planned": (
        _planned("stock", Kind.SINGLE, STOCK),
        _planned("Linkwise, gangs of 4", Kind.GANGS, _OURS, _PLANNED),
        _planned("Linkwise, gated pods", Kind.GATED, _OURS, _PLANNED),
    ),
    "created": (
        _created("stock", Kind.SINGLE, STOCK),
        _created("Linkwise, as they come", Kind.SINGLE, _OURS, _CREATED),
        _created("Linkwise, second scheduler", Kind.SINGLE, _SECOND, _CREATED),
        _created("Linkwise, gated pods", Kind.GATED, _OURS, _CREATED),
        _created(_NATIVE, Kind.NATIVE, _NATIVE_SETUP),
        _created("Linkwise, gangs of 4", Kind.GANGS, _OURS, _GANGS, against=_NATIVE),
        _created(
            "Linkwise, gangs of 4, second scheduler", Kind.GANGS, _SECOND, _GANGS, against=_NATIVE
        ),
        Variant("gated, only the writes", lambda world, pods: world.writes_alone(pods), {}),
    ),
    "one gang": (
        _planned("stock, single pods", Kind.SINGLE, STOCK),
        _created("native gang", Kind.ONE_NATIVE, _NATIVE_SETUP, from_last=True),
        _created("Linkwise, gang", Kind.ONE_GANG, _OURS, _ONE_GANG, from_last=True),
        _created("Linkwise, gang, second scheduler", Kind.ONE_GANG, _SECOND, from_last=True),
    ),
    "without GPUs": (
        _created("stock", Kind.NO_GPUS, STOCK),
        _created("with Linkwise", Kind.NO_GPUS, _OURS, _NO_GPUS),
    ),
}
# How many pods the rounds of a group have, if not one for each node.
_PODS = {"one gang": 512}
# The variants of --tls, which replace the others.
TLS_GROUPS = {
    "planned": (
        _planned("without TLS", Kind.GATED, _PLAIN),
        _planned("with TLS", Kind.GATED, _OURS),
    ),
    "created": (
        _created("without TLS", Kind.GATED, _PLAIN),
        _created("with TLS", Kind.GATED, _OURS),
    ),
}
# The variants of --levers, which replace the others.
_LEVERS = {
    "": _OURS,
    ", no policies": Setup(guarded=False),
    ", no TLS": _PLAIN,
    ", as second scheduler": _SECOND,
}
LEVER_GROUPS = {
    "created": (
        _created("stock", Kind.SINGLE, STOCK),
        *(_created(f"as they come{name}", Kind.SINGLE, each) for name, each in _LEVERS.items()),
        *(_created(f"gangs of 4{name}", Kind.GANGS, each) for name, each in _LEVERS.items()),
    ),
}
MOST_PODS = 1500
_SEED = 1  # of the random times at which pods come


@dataclass(frozen=True, slots=True)
class Result:
    nodes: int
    group: str
    variant: Variant
    rounds: Sequence[Round]
    stock: float  # pods per second of the group's first variant
    rival: float  # of the variant that the bar is about

    @property
    def rate(self) -> float:
        return statistics.median(one.pods_per_second for one in self.rounds)

    @property
    def verdict(self) -> str | None:
        """Whether its bar is kept; None if it has none."""
        bar = self.variant.bars.get(self.nodes)
        if bar is None:
            return None
        return "MISSED" if self.rate < bar * self.rival else "kept"

    def row(self) -> tuple[str, ...]:
        rates = [one.pods_per_second for one in self.rounds]
        bar = self.variant.bars.get(self.nodes)
        programs = ("etcd", "apiserver", "scheduler", "extender", "load")
        return (
            f"{self.nodes:,}, {self.group}, {self.variant.name}",
            f"{self.rate:.0f}",
            f"{min(rates):.0f} to {max(rates):.0f}",
            ratio(self.rate, self.stock),
            "" if bar is None else f"{ratio(self.rate, self.rival)} of {bar:g}, {self.verdict}",
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
    "of the first",
    "bar",
    *(f"{program} ms" for program in ("etcd", "apiserver", "scheduler", "extender", "load")),
)


async def measure(
    directory: Path,
    nodes: int,
    length: Length,
    groups: Mapping[str, Sequence[Variant]],
    repeat: int,
) -> list[Result]:
    results = []
    async with world(directory / f"nodes-{nodes}", nodes, length) as here:
        for group, variants in groups.items():
            results += await _group(here, nodes, group, variants, repeat)
    return results


async def _deployed(directory: Path, nodes: int, length: Length, repeat: int) -> bool:
    async with world(directory / f"nodes-{nodes}", nodes, length) as here:
        return await as_deployed.measure(here, as_deployed.deployed(nodes), repeat, _SEED)


async def _claims(directory: Path, nodes: int, length: Length, repeat: int) -> bool:
    kept = True
    for trial in as_deployed.CLAIMS:
        limits = "client limits as they come" if trial.limited else "client limits lifted"
        click.echo(f"\n{nodes:,} nodes, {limits}\n")
        made = claims_world(directory / f"{nodes}-{limits}", nodes, length, limited=trial.limited)
        async with made as here:
            kept &= await as_deployed.measure(here, trial, repeat, _SEED)
    return kept


async def _group(
    here: LoadedScheduler, nodes: int, group: str, variants: Sequence[Variant], repeat: int
) -> list[Result]:
    pods = min(nodes, _PODS.get(group, MOST_PODS))
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
    rates = {
        name: statistics.median(one.pods_per_second for one in done)
        for name, done in rounds.items()
    }
    stock = rates[variants[0].name]
    return [
        Result(nodes, group, each, rounds[each.name], stock, rates.get(each.against, stock))
        for each in variants
    ]


def _peers(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> tuple[Variant, ...]:
    found = []
    for value in values:
        name, equals, command = value.partition("=")
        if not (name and equals and command.strip()):
            raise click.BadParameter(f"{value!r}: expected NAME=COMMAND")
        setup = Setup(ours=False, peer=name, command=tuple(shlex.split(command)))
        found.append(_created(name, Kind.SINGLE, setup))
    return tuple(found)


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
@click.option("--only", type=click.Choice(list(GROUPS)), help="Only one of the groups.")
@click.option("--tls", is_flag=True, help="Compare with and without TLS instead of with stock.")
@click.option("--levers", is_flag=True, help="Compare with what costs time left out, one by one.")
@click.option(
    "--as-deployed",
    "deployed",
    is_flag=True,
    help="Instead of all this: how long pods and gangs wait, and pods per second, with "
    "kube-scheduler's client limits as they come.",
)
@click.option(
    "--claims",
    is_flag=True,
    help="Instead of all this: the same where GPUs come from ResourceClaims, beside kube-scheduler "
    "alone, with client limits as they come, and without.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    callback=_peers,
    metavar="NAME=COMMAND",
    help="Another scheduler beside these: NAME is its schedulerName, COMMAND starts it with "
    "KUBECONFIG in its environment, SIGTERM ends it.",
)
def main(
    nodes: tuple[int, ...],
    repeat: int,
    pods: str,
    only: str | None,
    tls: bool,
    levers: bool,
    deployed: bool,
    claims: bool,
    peers: tuple[Variant, ...],
) -> None:
    directory = in_sandbox("bench.scheduler", kubernetes_and_helm if claims else kubernetes)
    click.echo(f"{NEWEST}, {pods} 8-GPU pods, {repeat} rounds each: {this_machine()}\n")
    if deployed or claims:
        run = _claims if claims else _deployed
        kept = [asyncio.run(run(directory, count, Length(pods), repeat)) for count in nodes]
        raise SystemExit(not all(kept))
    all_groups = TLS_GROUPS if tls else LEVER_GROUPS if levers else GROUPS
    groups: dict[str, tuple[Variant, ...]] = {
        name: (*variants, *(peers if name == "created" else ()))
        for name, variants in all_groups.items()
        if only in (None, name)
    }
    results = []
    for count in nodes:
        results += asyncio.run(measure(directory, count, Length(pods), groups, repeat))
    print_table(HEADER, [result.row() for result in results])
    verdicts = {each.verdict for each in results}
    # Without bars there is no verdict.
    said = "MISSED" if "MISSED" in verdicts else "kept" if "kept" in verdicts else "none here"
    click.echo(f"\nBars: {said}")
    raise SystemExit("MISSED" in verdicts)


if __name__ == "__main__":
    main()
