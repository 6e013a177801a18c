"""How long an unschedulable pod waits until it is bound once it fits, with a real kube-scheduler:
`python -m bench.wake_ups`.

There are four nodes, and as many pods that take a whole node each. The clock starts at the API
server's answer to the write that makes room or creates the last member. It stops when a list of
all pods, one every few milliseconds, shows the last of them bound.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from bench.support.figures import milliseconds, percentile, print_table, this_machine
from bench.support.programs import in_sandbox
from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.programs.binaries import NEWEST
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF
from tests.cluster.support.scheduling.scheduling_world import NODES, SchedulingWorld

BAR_SECONDS = 5.0
_LOOK_SECONDS = 0.003
_PATIENCE_SECONDS = 60.0
_SAID = {names.GANG: "g", names.GANG_SIZE: str(len(NODES))}


def last_member(world: SchedulingWorld) -> float:
    """The other members have the condition that they wait for it."""
    gang = [world.create(f"g-{rank}", annotations=_SAID) for rank in range(len(NODES) - 1)]
    _wait_told(world, gang)
    gang.append(world.create(f"g-{len(NODES) - 1}", annotations=_SAID))
    return _seconds_until_bound(world, gang)


def room_for_a_gang(world: SchedulingWorld) -> float:
    return _when_freed(world, NODES, lambda: world.create_gang("g", len(NODES)))


def room_for_a_gated_gang(world: SchedulingWorld) -> float:
    return _when_freed(world, NODES, lambda: world.create_gang("g", len(NODES), gated=True))


def room_for_a_pod(world: SchedulingWorld) -> float:
    return _when_freed(world, NODES[:1], lambda: [world.create("single")])


def room_for_a_gated_pod(world: SchedulingWorld) -> float:
    return _when_freed(world, NODES[:1], lambda: [world.create("single", gated=True)])


EVENTS: dict[str, Callable[[SchedulingWorld], float]] = {
    "the last member of a gang is created": last_member,
    "room for a gang": room_for_a_gang,
    "room for a gated gang": room_for_a_gated_gang,
    "room for a single pod": room_for_a_pod,
    "room for a gated single pod": room_for_a_gated_pod,
}


def _when_freed(
    world: SchedulingWorld, freed: Sequence[str], create: Callable[[], Iterable[str]]
) -> float:
    for node in NODES:
        world.place(f"on-{node}", node, 8)
    wait_for(lambda: len(world.taken()) == 8 * len(NODES), "the extender has seen all of them")
    waiting = list(create())
    _wait_told(world, waiting)
    for node in freed:
        world.delete(f"on-{node}")
    return _seconds_until_bound(world, waiting)


def _wait_told(world: SchedulingWorld, pods: Sequence[str]) -> None:
    """Wait until each pod has a condition that says why it waits; gated pods get one too."""
    wait_for(lambda: all(map(world.reason, pods)), "all were tried", _PATIENCE_SECONDS)


def _seconds_until_bound(world: SchedulingWorld, pods: Sequence[str]) -> float:
    began = time.perf_counter()
    while True:
        nodes = {pod.metadata.name: pod.spec.node_name for pod in world.pods()}
        now = time.perf_counter() - began
        if all(nodes[name] for name in pods):
            return now
        if now > _PATIENCE_SECONDS:
            raise click.ClickException(f"after {now:.0f} s not bound: {nodes}")
        time.sleep(_LOOK_SECONDS)


def measure(directory: Path, rounds: int) -> dict[str, list[float]]:
    control = ControlPlane(directory, controllers=False, disable_admission=ADMISSION_OFF)
    control.start()
    world = SchedulingWorld(control)
    seconds: dict[str, list[float]] = {what: [] for what in EVENTS}
    try:
        world.start()
        for _ in range(rounds):
            for what, event in EVENTS.items():
                seconds[what].append(event(world))
                world.clear()
        return seconds
    finally:
        world.extender.process.stop()
        control.stop()
        shutil.rmtree(directory, ignore_errors=True)


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
def main(rounds: int) -> None:
    directory = in_sandbox("bench.wake_ups") / "wake-ups"
    click.echo(f"{NEWEST}, {rounds} rounds, ms from the event to the bind: {this_machine()}\n")
    seconds = measure(directory, rounds)
    rows = [
        [what, *(milliseconds(percentile(times, percent)) for percent in (50, 90, 100))]
        for what, times in seconds.items()
    ]
    print_table(["event", "p50", "p90", "longest"], rows)
    missed = max(map(max, seconds.values())) > BAR_SECONDS
    click.echo(f"\nBar: {BAR_SECONDS:g} s at most: {'MISSED' if missed else 'kept'}")
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
