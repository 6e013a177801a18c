"""Live through days, seed by seed: `python -m tests.liveness.days --seeds 0-999 --jobs 2`."""

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from traceback import format_exc
from unittest.mock import patch

import click

from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.extender.place.nodes import scheduler_feedback
from tests.liveness.fates import Fate, Plain, With
from tests.liveness.judge import Judge, delayed

LOOK_SECONDS = 900.0
HEALED_SECONDS = 7200.0


@dataclass(frozen=True, slots=True)
class Lived:
    seed: int
    seconds: float  # wall clock
    pods: int
    calls: int
    lost: int
    checks: int
    moves: int
    gangs: int  # that were moved, and got their targets
    alone: int  # members that were moved alone, and got theirs
    longer: float  # that jobs wait beside a hostile tenant than beside a plain one, in the mean
    failures: tuple[str, ...]


@contextmanager
def small_samples(sample: int) -> Iterator[None]:
    """kube-scheduler takes samples of 100 nodes and more; here of fewer."""
    with patch.object(scheduler_feedback, "LEAST_SAMPLE", sample):
        yield


def live(seed: int, days: float = 1.0, has: With | None = None) -> Lived:
    began, has = time.perf_counter(), has or With()
    fate = Fate(seed, days, has)
    judge = _live_through(fate)
    day = fate.day
    longer = 0.0
    if fate.is_calm and not day.failures:
        got = {} if fate.hostile is None else fate.hostile.got
        without = replace(has, other_filters=False)
        plains = [
            Fate(seed, days, without, Plain(got, is_closed))
            # A hostile node may be away all day, and may be there all day.
            for is_closed in ([False, True] if has.hostile_nodes else [False])
        ]
        for plain in plains:
            _live_through(plain)
            day.failures += plain.day.failures
        # What needs the hostile nodes too cannot start on a day without them.
        able = set(fate.jobs).intersection(*(one.started() for one in plains if has.hostile_nodes))
        waits, beside = fate.waits(able), max(plain.waits(able) for plain in plains)
        longer = waits - beside
        day.failures += delayed(waits, beside)
        if fate.hostile_nodes is not None:
            most = max(plain.day.writes for plain in plains)
            day.failures += fate.hostile_nodes.many_writes(most)
    return Lived(
        seed,
        time.perf_counter() - began,
        day.made,
        day.scheduler.wire.calls,
        day.scheduler.wire.lost,
        judge.checks,
        judge.moves.moves,
        judge.moves.gangs.arrived,
        judge.moves.gangs.alone,
        longer,
        tuple(dict.fromkeys(day.failures)),
    )


def _live_through(fate: Fate) -> Judge:
    day = fate.day
    with small_samples(day.sample):
        judge = Judge(day, fate.waves)
        try:
            _live_on(fate, judge)
        except Exception:
            day.failures.append(f"a call fails at {day.now:.0f}: {format_exc()}")
    return judge


def _live_on(fate: Fate, judge: Judge) -> None:
    day = fate.day
    fate.begin()
    ends = day.now + fate.seconds
    for until, then in ((ends, fate.heal), (ends + HEALED_SECONDS, lambda: None)):
        while day.now < until and not day.failures:
            day.live(min(day.now + LOOK_SECONDS, until), judge.before_jump)
            judge.look()
        then()
    if fate.hostile_nodes is not None and not day.failures:
        judge.nothing_stays()


def seeds_of(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


@click.command(context_settings={"show_default": True})
@click.option("--seeds", default="0-19", help="One, or the first and the last.")
@click.option("--days", default=1.0, help="That each lives through.")
@click.option(
    "--queue-order",
    default=QueueOrder.AGE.value,
    type=click.Choice([order.value for order in QueueOrder]),
)
@click.option(
    "--other-filters", is_flag=True, help="kube-scheduler has some that Linkwise does not know."
)
@click.option("--hostile", is_flag=True, help="A tenant writes whatever the API server accepts.")
@click.option("--hostile-nodes", is_flag=True, help="One or two kubelets write what they like.")
@click.option("--moves", is_flag=True, help="Some pods may be moved.")
@click.option("--claims", is_flag=True, help="The GPUs of some or all nodes come from claims.")
@click.option("--waves", is_flag=True, help="Some owners create pods only after others run.")
@click.option("--lazy", is_flag=True, help="kube-scheduler wakes no pod that did not fit.")
@click.option("--jobs", default=1, help="Seeds at the same time.")
def main(seeds: str, days: float, queue_order: str, jobs: int, **has: bool) -> None:
    """Live through simulated days, and say what promise was broken."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # a seed is to be the same each time
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.liveness.days", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    wanted = seeds_of(seeds)
    with ProcessPoolExecutor(jobs) as pool:
        lived = []
        day_with = With(QueueOrder(queue_order), **has)
        for one in pool.map(live, wanted, repeat(days), repeat(day_with)):
            lived.append(one)
            how = "; ".join(one.failures[:3]) or "ok"
            click.echo(f"seed {one.seed}: {how}, {one.seconds:.1f} s, {one.pods} pods")
    broken = [one for one in lived if one.failures]
    click.echo(
        f"{len(lived)} seeds, {days:g} days each: {len(lived) - len(broken)} kept every promise, "
        f"{len(broken)} broke one; {sum(one.pods for one in lived)} pods, "
        f"{sum(one.calls for one in lived)} calls, {sum(one.lost for one in lived)} of them lost, "
        f"{sum(one.checks for one in lived)} looks at who waits; "
        f"{sum(one.moves for one in lived)} pods moved, "
        f"{sum(one.gangs for one in lived)} gangs, "
        f"{sum(one.alone for one in lived)} members alone; "
        f"jobs wait for {max(one.longer for one in lived):.0f} s longer at most; "
        f"{sum(one.seconds for one in lived) / len(lived):.1f} s a seed"
    )
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
