"""For how long the core's lock is held in one go: `python -m bench.lock`.

kube-scheduler's calls wait for the lock, so what holds it long makes them slow. This runs the core
alone, as the extender's shell drives it, in the situations with the most work at once.
"""

from collections.abc import Callable

import click

from bench.support.figures import milliseconds, print_table, this_machine
from bench.support.large_cluster import GPU, Holds, World, member
from linkwise.extender.core_settings import CoreSettings
from linkwise.extender.preemption.policy import Preempt

BAR_MS = 20.0
ENDING = 40  # pods, of two GPUs each


def binding(nodes: int, pods: int) -> Holds:
    """A gang comes, is planned and bound, pod after pod, with a round of the planner after each."""
    world = LoadedCore(nodes, "idle", 0)
    holds = Holds(world.lock)
    uids = _come(world, holds, pods, 0)
    world.carry_out(world.decide(holds), holds)
    for uid in uids:
        world.bind(uid, holds)
        world.carry_out(world.decide(holds), holds)
    for uid in world.released(holds):
        world.bind(uid, holds)
        world.carry_out(world.decide(holds), holds)
    return holds


def relist(nodes: int, pods: int) -> Holds:
    """The pods are listed again, and nothing has changed; then an audit and a scrape."""
    world = LoadedCore(nodes, "full", 0)
    gang = [member("gang", rank, pods, 1) for rank in range(pods)]
    holds = Holds(world.lock)
    everything = [*world.pods.values(), *gang]
    holds.of("a list of all pods", lambda: world.core.replace_pods(everything, world.now))
    world.decide(holds)
    holds.of("an audit", world.core.audit)
    holds.of("a scrape of the metrics", lambda: world.core.counts(world.now))
    taken = None
    while taken is None:
        taken = holds.of("a part of a snapshot", lambda: world.core.begin_snapshot(world.now))
    return holds


def victims(nodes: int, pods: int) -> Holds:
    """A more important gang comes into a full cluster, where it may evict all others."""
    world = LoadedCore(nodes, "full", 0, CoreSettings(preempt=Preempt.LOWER_PRIORITY))
    holds = Holds(world.lock)
    _come(world, holds, pods, 100)
    world.carry_out(world.decide(holds), holds)
    world.carry_out(world.decide(holds), holds)
    return holds


def waiting(nodes: int, pods: int) -> Holds:
    """Gangs of two pods wait in a full cluster, whose pods end one after the other."""
    world = LoadedCore(nodes, "full", 0)
    holds = Holds(world.lock)
    running = [*world.pods][:ENDING]
    for gang in range(pods // 2):
        for rank in range(2):
            world.put(member(f"gang-{gang}", rank, 2, 8), holds, "ADDED")
    world.carry_out(world.decide(holds), holds)
    for uid in running:
        world.put(world.pods[uid], holds, "DELETED")
        del world.pods[uid]
        world.carry_out(world.decide(holds), holds)
    return holds


def _come(world: LoadedCore, holds: Holds, pods: int, priority: int) -> list[str]:
    gang = [member("gang", rank, pods, 1, priority) for rank in range(pods)]
    for pod in gang:
        world.put(pod, holds, "ADDED")
    return [pod.metadata.uid for pod in gang]


SITUATIONS: dict[str, Callable[[int, int], Holds]] = {
    "a gang binds": binding,
    "a list comes": relist,
    "a gang evicts": victims,
    "many gangs wait": waiting,
}


@click.command(context_settings={"show_default": True})
@click.option("--nodes", type=int, default=5000, help="Size of the cluster.")
@click.option(
    "--pods",
    type=int,
    default=4096,
    help=f"Pods of the gang; each requests one {GPU}. Of many gangs: all their pods.",
)
def main(nodes: int, pods: int) -> None:
    """Measure for how long each kind of work holds the lock at most."""
    title = f"{nodes:,} nodes, a gang of {pods:,} pods, the longest times in ms"
    click.echo(f"The lock, {title}: {this_machine()}\n")
    rows, missed = [], []
    for name, situation in SITUATIONS.items():
        for kind, spent in situation(nodes, pods).longest.items():
            rows.append(
                [f"{name}, {kind}", *(milliseconds(s * 1000) for s in (spent.wall, spent.cpu))]
            )
            if spent.cpu * 1000 > BAR_MS:
                missed.append(f"{name}, {kind}")
    print_table(["situation, work", "longest", "its CPU"], rows)
    kept = "kept" if not missed else f"missed by {'; '.join(missed)}"
    click.echo(f"\nBar: {BAR_MS:.0f} ms of processor time in one go: {kept}")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
