"""Runs random worlds: `python -m tests.end_to_end.random_workload --seeds 0-199 --jobs 2`.

A seed decides what happens; then all is healed, and when the world has come to rest every promise
must hold. Then every pod is deleted, and nothing may be left. See docs/testing.md.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from random import Random
from traceback import format_exc

import click

from tests.end_to_end import hostile, promises
from tests.end_to_end.workload import Step, Workload, bring_back, cordon, workload
from tests.end_to_end.world import JOBS, PODS, World, running_world
from tests.other_filters import drawn_filters

REST_SECONDS = 25.0  # wall clock; the longest wait inside is 10, for kube-scheduler's five minutes
# Half an hour of the world's clock, as in a day: gangs that filters refuse take turns meanwhile.
_FILTERED_REST_SECONDS = 60.0
_HOSTILE = 4  # one world of so many has a hostile tenant
_STORY_SECONDS = 6.0  # about, from the start of the world to its healing
# How far the extender's clock is before the API server's, one world after the other.
_WRONG_SECONDS = (0.0, 0.0, 0.0, 300.0, 0.0, 0.0, 0.0, -300.0)
_STILL_SECONDS = 0.15  # for so long nothing may change before a world counts as at rest


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    other_filters: bool
    seconds: float
    broken: tuple[str, ...]
    pods: int
    running: int  # at rest
    swaps: int
    refusals: int
    turned_away: int  # pods that a kubelet could not give the devices they were promised
    extenders: int
    journal: str


def run(seed: int, *, other_filters: bool = False) -> Result:
    """Live through one world. *other_filters*: kube-scheduler has some that Linkwise does not
    know."""
    began = time.monotonic()
    script = workload(seed)
    if seed % _HOSTILE == 2:
        script = beside(hostile.Hostile(seed).acts(), script, seed)
    nodes = [f"n{number}" for number in range(1, len(script.machines) + 1)]
    rest_seconds = _FILTERED_REST_SECONDS if other_filters else REST_SECONDS
    filters = drawn_filters(seed, nodes, began, _STORY_SECONDS) if other_filters else ()
    ahead = _WRONG_SECONDS[seed % len(_WRONG_SECONDS)]
    with running_world(
        script.machines, seed, script.pace, other_filters=filters, ahead_seconds=ahead
    ) as world:
        world.journal.say("WORLD", f"{', '.join(script.machines)}; {script.pace}")
        running = 0
        try:
            live_through(world, script)
            broken = rest(world, promises.unsettled, rest_seconds)
            running = sum(pod.status.phase == "Running" for pod in world.read_pods())
            if not broken:
                delete_all(world)
                broken = rest(world, promises.leaks, rest_seconds)
            if world.counted_by_all("errors"):
                broken.append("the extender caught a defect of its own; see its traceback")
        except Exception:  # of the test itself, or of a stand-in: the journal says more
            broken = [format_exc()]
        journal = world.journal.text()
        return Result(
            seed,
            other_filters,
            time.monotonic() - began,
            tuple(broken),
            pods=world.journal.pods_seen,
            running=running,
            swaps=world.counted_by_all("swaps"),
            refusals=world.counted_by_all("refusals"),
            turned_away=journal.count("requested number of devices unavailable"),
            extenders=journal.count("extender  starts"),
            journal=journal,
        )


def beside(acts: Sequence[hostile.Act], script: Workload, seed: int) -> Workload:
    """*script* with *acts* in between, in their order."""
    places = sorted(Random(seed).choices(range(len(script.steps)), k=len(acts)))
    steps = list(script.steps)
    for place, act in reversed([*zip(places, acts, strict=True)]):
        steps.insert(place, Step(0.0, act.what, act.do))
    return replace(script, steps=tuple(steps))


def live_through(world: World, script: Workload) -> None:
    for step in script.steps:
        time.sleep(step.pause_seconds)
        world.journal.say("FATE", step.what)
        step.do(world)
    heal(world)


def heal(world: World) -> None:
    """End every misfortune, and wait until everything that suffers one is through with it."""
    world.journal.say("FATE", "all is healed")
    world.server.clear_faults()
    hostile.leave(world)
    world.wait_for_errands()
    for name, node in world.nodes.items():
        node.happens(partial(bring_back, world, name)).result(30)
        node.set_faults({})
        cordon(world, name, cordoned=False)
    world.server.clear_faults()


def delete_all(world: World) -> None:
    world.journal.say("FATE", "everything is deleted")
    world.retire_workloads()
    for collection in (JOBS, PODS):
        for name in world.names(collection):
            world.delete(f"{collection}/{name}")


def rest(
    world: World, judge: Callable[[World], list[str]], seconds: float = REST_SECONDS
) -> list[str]:
    """Wait until nothing is amiss, and stays so while nothing changes; what is amiss if not."""
    deadline = time.monotonic() + seconds
    before: str | None = None
    noted = ""
    while True:
        version = world.version()
        amiss = judge(world)
        note = "; ".join(text[:150] for text in amiss[:4]) + "; …" * (len(amiss) > 4)
        if note != noted:
            noted = note
            world.journal.say("JUDGE", note or "all is well")
        if not amiss and before == version:
            return []
        before = None if amiss else version
        if world.broken:
            return list(world.broken)
        if time.monotonic() > deadline:
            return amiss or ["it never comes to rest"]
        time.sleep(_STILL_SECONDS)


def told(result: Result) -> str:
    """A readable account of a seed that broke a promise."""
    lines = "\n".join(f"  BROKEN: {text}" for text in dict.fromkeys(result.broken))
    return f"--- seed {result.seed}\n{result.journal}\n{lines}\n  replay: {replay(result)}"


def replay(result: Result) -> str:
    filters = " --other-filters" if result.other_filters else ""
    return f"python -m tests.end_to_end.random_workload --seeds {result.seed}{filters} --journal"


def summary(results: list[Result]) -> str:
    bad = [result for result in results if result.broken]
    slowest = max(results, key=lambda result: result.seconds)
    mean = sum(result.seconds for result in results) / len(results)
    numbers = ", ".join(str(result.seed) for result in sorted(bad, key=lambda r: r.seed))
    return (
        f"{len(results)} seeds: {len(results) - len(bad)} kept every promise, {len(bad)} broke one"
        f"{f' ({numbers})' if bad else ''}; {sum(r.pods for r in results)} pods, "
        f"{sum(r.running for r in results)} running at rest, "
        f"{sum(r.extenders for r in results)} extenders, "
        f"{sum(r.swaps for r in results)} swaps repaired, "
        f"{sum(r.refusals for r in results)} plans refused or late, "
        f"{sum(r.turned_away for r in results)} pods turned away by a kubelet; "
        f"{mean:.1f} s a seed, the slowest {slowest.seconds:.1f} s (seed {slowest.seed})"
    )


def seeds_of(text: str) -> list[int]:
    """`0-9,17` -> the ten and the one. Raises ValueError."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _run_all(seeds: list[int], jobs: int, *, other_filters: bool) -> Iterator[Result]:
    live = partial(run, other_filters=other_filters)
    if len(seeds) == 1:
        yield live(seeds[0])
        return
    # Spawned: gRPC does not survive a fork. New processes after some worlds: each world leaves
    # connections behind, and a process may have 1,024 files open.
    for some in batched(seeds, 20 * jobs):
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            for future in as_completed([pool.submit(live, seed) for seed in some]):
                yield future.result()


def batched(seeds: list[int], size: int) -> list[list[int]]:
    return [seeds[first : first + size] for first in range(0, len(seeds), size)]


@click.command()
@click.option("--seeds", default="0-19", show_default=True, help="Like 7 or 0-199 or 3,10-19.")
@click.option("--jobs", default=1, show_default=True, help="Worlds at the same time.")
@click.option(
    "--other-filters", is_flag=True, help="kube-scheduler has some that Linkwise does not know."
)
@click.option("--journal", is_flag=True, help="Print what happened even where all went well.")
def main(seeds: str, jobs: int, other_filters: bool, journal: bool) -> None:
    """Live through random worlds and check every promise in each."""
    try:
        numbers = seeds_of(seeds)
    except ValueError:
        raise click.BadParameter(f"{seeds!r}: expected numbers like 0-199 or 3,7") from None
    results: list[Result] = []
    for result in _run_all(numbers, jobs, other_filters=other_filters):
        results.append(result)
        if result.broken or journal:
            click.echo(told(result))
        click.echo(
            f"seed {result.seed}: {'BROKEN' if result.broken else 'ok'}, {result.seconds:.1f} s, "
            f"{result.pods} pods, {result.running} running at rest"
        )
    click.echo(summary(results))
    sys.exit(any(result.broken for result in results))


if __name__ == "__main__":
    main()
