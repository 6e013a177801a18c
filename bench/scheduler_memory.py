"""The memory of the extender's cache, on a real API server: `python -m bench.scheduler_memory`.

The nodes have 8 GPUs. The pods on them are as large as training pods, each with its plan and its
GPUs. The last pods, one for every twentieth node, have the scheduling gate, and are planned and
bound during the measurement. *At most* is the process's peak (`VmHWM`). With
`--claims`, GPUs come from ResourceSlices, and pods have ResourceClaims.
"""

import asyncio
from pathlib import Path

import click

from bench.support.figures import this_machine
from bench.support.programs import in_sandbox, kubernetes_and_helm
from bench.support.scheduler_pods import Length
from bench.support.scheduler_world import Memory, claims_world, world
from tests.cluster.support.programs.binaries import NEWEST

# (nodes, pods, claims) -> MiB
_BARS = {
    (5_000, 20_000, False): 250.0,
    (15_000, 60_000, False): 700.0,
    (5_000, 20_000, True): 300.0,
}


async def measure(directory: Path, nodes: int, pods: int, *, claims: bool) -> Memory:
    length = Length.TRAINING
    made = (
        claims_world(directory, nodes, length, limited=False)
        if claims
        else world(directory, nodes, length)
    )
    async with made as here:
        return await here.memory(pods, free_nodes=max(nodes // 20, 1))


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(20), default=5000, show_default=True)
@click.option("--pods", type=click.IntRange(20), default=20_000, show_default=True)
@click.option("--claims", is_flag=True, help="GPUs come from claims, one for each pod with GPUs.")
def main(nodes: int, pods: int, claims: bool) -> None:
    directory = in_sandbox("bench.scheduler_memory", kubernetes_and_helm) / "memory"
    click.echo(f"{NEWEST}, {nodes:,} nodes, {pods:,} pods: {this_machine()}\n")
    found = asyncio.run(measure(directory, nodes, pods, claims=claims))
    click.echo(
        f"ready {found.ready_seconds:.1f} s after its start; resident {found.when_ready:.0f} MiB "
        f"then, {found.at_the_end:.0f} MiB at the end, {found.most:.0f} MiB at most"
    )
    bar = _BARS.get((nodes, pods, claims))
    missed = bar is not None and found.most > bar
    if bar is not None:
        click.echo(f"Bar: at most {bar:g} MiB: {'MISSED' if missed else 'kept'}")
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
