"""The sets that Linkwise chooses on busy machines beside the fastest: `python -m bench.sets`.

This measures quality, not speed. A case is a recorded machine, a state (which GPUs are free), and a
size from 2 to the number of free GPUs. Its result is the bandwidth of the chosen set as a share of
the best of all free sets of that size. That best comes from every combination by
`bandwidth.bandwidth`, the definition for one set, and not from the tables in which `choose` looks
values up. `NVIDIA partition` chooses as NVIDIA's device plugin does.

Up to 8 GPUs, every state is a case; of more GPUs, states drawn at random. Cases with too many
combinations are skipped and counted.
"""

import random
from collections.abc import Callable
from functools import cache
from math import comb

import click
import numpy as np
from numpy.typing import NDArray

from bench.support.figures import print_table
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from linkwise.topology.sets import subsets
from linkwise.topology.sets.bandwidth import bandwidth
from linkwise.topology.sets.choose import choose
from linkwise.topology.sets.partition import choose_partition

MOST_GPUS = 16
ALL_STATES_UP_TO = 8  # GPUs
MEAN_BAR, LEAST_BAR = 0.98, 0.9
Shares = NDArray[np.float64]


def ours(machine: Machine, free: int, size: int) -> int | None:
    choice = choose(machine, free, size)
    return None if choice is None else choice.gpus


RULES: dict[str, Callable[[Machine, int, int], int | None]] = {
    "Linkwise": ours,
    "NVIDIA partition": choose_partition,
}
HEADER = (
    *("machine", "GPUs", "cases", "skipped"),
    *(f"{rule}: {figure}" for rule in RULES for figure in ("mean", "least")),
)


@click.command(help=__doc__)
@click.option("--states", default=300, show_default=True, type=click.IntRange(min=1))
@click.option("--sets", "most_sets", default=3000, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True)
def main(states: int, most_sets: int, seed: int) -> None:
    rows, missed, parts, all_skipped = [], [], [], 0
    for name in machine_names():
        machine = recorded_machine(name)
        if not 2 <= len(machine.gpus) <= MOST_GPUS:
            continue
        drawn = states_of(len(machine.gpus), states, random.Random(f"{seed}-{name}"))
        shares, skipped = shares_of(machine, drawn, most_sets)
        rows.append(row(name, str(len(machine.gpus)), shares, skipped))
        parts.append(shares)
        all_skipped += skipped
        if shares[:, 0].mean() < MEAN_BAR or shares[:, 0].min() < LEAST_BAR:
            missed.append(name)
    rows.append(row("all", "", np.concatenate(parts), all_skipped))
    print_table(HEADER, rows)
    verdict = f"MISSED by {', '.join(missed)}" if missed else "kept"
    click.echo(f"\nBar: Linkwise, mean ≥ {MEAN_BAR} and least ≥ {LEAST_BAR}: {verdict}")
    raise SystemExit(bool(missed))


def row(name: str, gpus: str, shares: Shares, skipped: int) -> tuple[str, ...]:
    figures = [f"{each:.3f}" for rule in shares.T for each in (rule.mean(), rule.min())]
    return (name, gpus, str(len(shares)), str(skipped), *figures)


def states_of(count: int, number: int, draw: random.Random) -> list[int]:
    """The free GPUs of each state, two or more, as bitmasks. Drawn states differ in how likely a
    GPU is free: else nearly all would have half of their GPUs free."""
    if count <= ALL_STATES_UP_TO:
        return [free for free in range(1 << count) if free.bit_count() >= 2]
    drawn = dict[int, None]()
    while len(drawn) < number:
        likely = draw.random()
        free = sum(1 << gpu for gpu in range(count) if draw.random() < likely)
        if free.bit_count() >= 2:
            drawn[free] = None
    return [*drawn]


def shares_of(machine: Machine, states: list[int], most_sets: int) -> tuple[Shares, int]:
    """Return [cases, rules] the share of the best, and the number of skipped cases."""

    @cache
    def gbytes_per_s(gpus: int) -> float:
        return bandwidth(machine, gpus)

    shares, skipped = [], 0
    for free in states:
        for size in range(2, free.bit_count() + 1):
            if comb(free.bit_count(), size) > most_sets:
                skipped += 1
                continue
            sets = subsets.within(subsets.layer(len(machine.gpus), size), free).tolist()
            best = max(map(gbytes_per_s, sets))
            taken = [rule(machine, free, size) for rule in RULES.values()]
            if any(gpus not in sets for gpus in taken):
                raise RuntimeError(f"{size} of {free:#b}: {taken} taken")
            shares.append([gbytes_per_s(gpus) / best for gpus in taken if gpus is not None])
    return np.array(shares), skipped


if __name__ == "__main__":
    main()
