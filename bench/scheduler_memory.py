"""The memory of the extender's cache, on a real API server: `python -m bench.scheduler_memory`.

The nodes have 8 GPUs. The pods on them are as large as training pods, each with its plan and its
GPUs. The last few hundred pods have the scheduling gate, and are planned and bound during the
measurement.
"""

import asyncio
import sys

import click

from bench.support.figures import this_machine
from bench.support.scheduler_pods import Length
from bench.support.scheduler_world import Memory, world
from tests.cluster.support.host import sandbox
from tests.cluster.support.programs.binaries import NEWEST, kubernetes

_BARS = {(5_000, 20_000): 250.0, (15_000, 60_000): 700.0}  # (nodes, pods) -> MiB


async def measure(nodes: int, pods: int) -> Memory:
    directory = sandbox.directory()
    assert directory is not None
    async with world(directory / "memory", nodes, Length.TRAINING) as here:
        return await here.memory(pods, free_nodes=max(nodes // 20, 1))


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(20), default=5000, show_default=True)
@click.option("--pods", type=click.IntRange(20), default=20_000, show_default=True)
def main(nodes: int, pods: int) -> None:
    if sandbox.directory() is None:
        kubernetes()  # the sandbox has no network to build it from
        sys.exit(sandbox.run([sys.executable, "-m", "bench.scheduler_memory", *sys.argv[1:]]))
    click.echo(f"{NEWEST}, {nodes:,} nodes, {pods:,} pods: {this_machine()}\n")
    found = asyncio.run(measure(nodes, pods))
    click.echo(
        f"ready {found.ready_seconds:.1f} s after its start; resident {found.when_ready:.0f} MiB "
        f"then, {found.at_the_end:.0f} MiB at the end, {found.most:.0f} MiB at most"
    )
    bar = _BARS.get((nodes, pods))
    missed = bar is not None and found.most > bar
    if bar is not None:
        click.echo(f"Bar: at most {bar:g} MiB: {'MISSED' if missed else 'kept'}")
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
