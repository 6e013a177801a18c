"""How long it takes to explain all waiting pods, and how long it holds the lock:
`python -m bench.explain`.

This runs the core alone. A snapshot is taken under the lock, for which kube-scheduler's calls wait.
Everything else is computed without the lock, so it may take longer.
"""

import sys
from collections.abc import Iterator

import click
import msgspec

from bench.support.figures import milliseconds, percentile, print_table, this_machine
from bench.support.gpu_objects import START, pod_of
from bench.support.large_cluster import Spent, freeze
from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.kube.objects import Node, Pod
from linkwise.replay.gpu_objects import node_of
from linkwise.topology import names
from linkwise.topology.machine.recorded import recorded_machine

BAR_MS = 20.0
MACHINES = ("hgx-h100", "dgx-a100")
GANG = 8
KINDS = 20  # of single pods; pods of one kind are alike


def measure(rounds: int, core: Core) -> tuple[list[list[Spent]], Spent, Spent]:
    """For how long each part of each snapshot holds the lock, as `Loop.snapshot` takes it; the
    times of an explanation, and of its JSON and text."""
    holds: list[list[Spent]] = []
    for _ in range(rounds):
        holds.append([])
        ready = False
        while not ready:
            begun = Spent.so_far()
            ready = core.begin_snapshot(START) is not None
            holds[-1].append(Spent.so_far().since(begun))
    explainer = Explainer(core.snapshot(START))
    begun = Spent.so_far()
    found = explainer.everything()
    explained = Spent.so_far().since(begun)
    begun = Spent.so_far()
    msgspec.json.encode(found)
    explanation_text.all_that_waits(found)
    return holds, explained, Spent.so_far().since(begun)


def cluster(nodes: int, waiting: int) -> Core:
    """A cluster where 5 of 8 GPUs of each node are taken; half of the *waiting* pods are single,
    half in gangs."""
    core = Core(CoreSettings())
    core.replace_nodes([gpu_node(number) for number in range(nodes)], START)
    core.replace_pods([*_tenants(nodes), *_singles(waiting // 2), *_gangs(waiting // 2)], START)
    core.decide(START)
    return core


def _tenants(nodes: int) -> Iterator[Pod]:
    return (pod_of(f"tenant-{number}", 5, cpu=1, node=f"node-{number}") for number in range(nodes))


def _singles(count: int) -> Iterator[Pod]:
    for number in range(count):
        yield pod_of(f"single-{number}", 6 + number % 2, cpu=1 + number % KINDS, gated=True)


def _gangs(pods: int) -> Iterator[Pod]:
    for number in range(pods):
        said = {names.GANG: f"gang-{number // GANG}", names.GANG_SIZE: str(GANG)}
        yield pod_of(f"member-{number}", 8, said, cpu=1)


def gpu_node(number: int) -> Node:
    name = f"node-{number}"
    machine = recorded_machine(MACHINES[number % len(MACHINES)], node=name)
    return node_of(name, machine, cpu="192")


@click.command()
@click.option("--nodes", default=5000, show_default=True)
@click.option("--waiting", default=4000, show_default=True, help="Pods, half of them in gangs.")
@click.option("--rounds", type=click.IntRange(2), default=50, show_default=True)
def main(nodes: int, waiting: int, rounds: int) -> None:
    """Print milliseconds by the clock, and the thread's CPU time in brackets."""
    core = cluster(nodes, waiting)
    freeze()
    (first, *others), explained, written = measure(rounds, core)
    click.echo(f"{this_machine()}: {nodes} nodes, {waiting} waiting pods\n")
    rows = []
    for what, spent in (
        ("a snapshot, under the lock", [each for parts in others for each in parts]),
        ("each part of the first one", first),
        ("explain everything, beside it", [explained]),
        ("as JSON and as text", [written]),
    ):
        wall, cpu = [each.wall for each in spent], [each.cpu for each in spent]
        figures = (
            f"{milliseconds(percentile(wall, percent))} ({milliseconds(percentile(cpu, percent))})"
            for percent in (50, 99)
        )
        rows.append((what, *figures))
    print_table(("", "median", "p99"), rows)
    kept = percentile([each.cpu for parts in (first, *others) for each in parts], 100) <= BAR_MS
    click.echo(f"\nThe lock is held for {BAR_MS:g} ms at most: {'kept' if kept else 'missed'}")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
