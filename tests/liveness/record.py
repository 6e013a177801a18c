"""What the core decides and says on days of its own: `python -m tests.liveness.record`.

Each answer, each action with its outcome, and every explanation at each look is one line. A change
that only moves code leaves the hash of all lines as it is.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from unittest.mock import patch

import click

from linkwise.extender.core import Core
from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.actions import Action
from linkwise.extender.state.extender_calls import FilterAnswer, FilterCall, Outcome, PriorityAnswer
from tests.liveness.day import Day
from tests.liveness.days import LOOK_SECONDS, seeds_of, small_samples
from tests.liveness.fates import Fate, With

_WAYS = (
    With(),
    With(moves=True),
    With(claims=True),
    With(waves=True),
    With(other_filters=True),
    With(claims=True, moves=True),
    With(hostile=True),
    With(hostile_nodes=True),
)


def recorded(seed: int, days: float) -> list[str]:
    """Live through *days* in the way of this *seed*, and return the lines."""
    orders = tuple(QueueOrder)
    order = orders[seed // len(_WAYS) % len(orders)]
    fate = Fate(seed, days, replace(_WAYS[seed % len(_WAYS)], order=order))
    day, lines = fate.day, list[str]()
    with small_samples(day.sample), _writing(lines.append):
        fate.begin()
        ends = day.now + fate.seconds
        while day.now < ends:
            day.live(min(day.now + LOOK_SECONDS, ends), lambda _: None)
            lines += (f"{day.now:.3f} {text}" for text in _explained(day))
    return lines


@contextmanager
def _writing(write: Callable[[str], object]) -> Iterator[None]:
    carry_out = Day.carry_out
    filter_, prioritize = Core.filter, Core.prioritize

    def carried_out(day: Day, action: Action) -> Outcome:
        outcome = carry_out(day, action)
        write(f"{day.now:.3f} {action} {outcome.name}")
        return outcome

    def filtered(core: Core, call: FilterCall, now: float) -> FilterAnswer:
        answer = filter_(core, call, now)
        write(f"{now:.3f} {call.pod.metadata.name} {answer}")
        return answer

    def prioritized(core: Core, call: FilterCall, now: float) -> PriorityAnswer:
        answer = prioritize(core, call, now)
        write(f"{now:.3f} {call.pod.metadata.name} {answer}")
        return answer

    with (
        patch.object(Day, "carry_out", carried_out),
        patch.object(Core, "filter", filtered),
        patch.object(Core, "prioritize", prioritized),
    ):
        yield


def _explained(day: Day) -> Iterator[str]:
    snapshot = day.core.snapshot(day.now)
    explainer = Explainer(snapshot)
    yield explanation_text.all_that_waits(explainer.everything())
    for pod in sorted(day.pods.values(), key=lambda pod: pod.metadata.uid):
        found = explainer.pod(pod.metadata.namespace, pod.metadata.name, runner_up=True)
        if found is not None:
            yield explanation_text.pod(found, snapshot.at)


def _hash_of(seed: int, days: float, folder: Path | None) -> tuple[int, int, str]:
    lines = recorded(seed, days)
    text = "\n".join(lines)
    if folder is not None:
        (folder / f"{seed}.txt").write_text(text, encoding="utf-8")
    return seed, len(lines), hashlib.sha256(text.encode()).hexdigest()


@click.command(context_settings={"show_default": True})
@click.option("--seeds", default="0-499", help="One, or the first and the last.")
@click.option("--days", default=0.05, help="That each lives through.")
@click.option("--jobs", default=1, help="Seeds at the same time.")
@click.option("--folder", type=click.Path(path_type=Path), help="For the lines of each seed.")
def main(seeds: str, days: float, jobs: int, folder: Path | None) -> None:
    """Print a hash of all that the core decides and says, for each seed and for all."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # a seed is to be the same each time
        arguments = [sys.executable, "-m", "tests.liveness.record", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    total = hashlib.sha256()
    with ProcessPoolExecutor(jobs) as pool:
        for seed, lines, one in pool.map(_hash_of, seeds_of(seeds), repeat(days), repeat(folder)):
            click.echo(f"seed {seed}: {lines} lines, {one[:16]}")
            total.update(one.encode())
    click.echo(total.hexdigest()[:16])


if __name__ == "__main__":
    main()
