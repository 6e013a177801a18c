"""What single pods get on a busy machine, by policy: `python -m bench.busy_machine`.

Jobs of random sizes wait in a queue that never empties and start in its order, each on the set
that the policy chooses from the free GPUs. No choice delays a job, so all policies see the same
jobs with the same numbers of free GPUs. The score is the value of each set as a share of the best
for its size on the idle machine; jobs of one GPU do not count.

`long run` is not a simulation but the exact mean over an endless queue, for jobs whose ends are
memoryless and alike. `best` is an upper bound for any policy that knows the running jobs and the
mix of sizes, but neither the jobs behind the first one nor when a job will end: the value of a
Markov decision process, with a bound that is proven in each step (Odoni 1969) and rounded up. Both
need a machine of at most 8 GPUs.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product

import click
import numpy as np

from bench.support.figures import print_table
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from linkwise.topology.sets import subsets
from linkwise.topology.sets.bandwidth import pair_gbytes_per_s
from linkwise.topology.sets.choose import choose
from linkwise.topology.sets.outlook import (
    MOST_GPUS,
    Floats,
    Outlook,
    one_request_more,
    shares_of_idle,
    states_of,
    wait,
)
from linkwise.topology.sets.partition import choose_partition, lowest_indices
from linkwise.topology.sets.tables import MachineTable, table_of

Running = tuple[int, ...]
Policy = Callable[[int, int, Running], int]
"""(free GPUs, size, running sets) -> the set to take."""

DURATIONS: dict[str, Callable[[random.Random], float]] = {  # of mean 1 each
    "exponential": lambda draw: draw.expovariate(1),
    "uniform": lambda draw: draw.uniform(0, 2),
    "fixed": lambda draw: draw.uniform(0.95, 1.05),
    "lognormal": lambda draw: draw.lognormvariate(-(1.5**2) / 2, 1.5),
}

OURS, OURS_KNOWING = "Linkwise, only of free GPUs", "Linkwise, with running sets"
_CLOSE = 1e-6  # between the two sides of a bound


@dataclass(frozen=True, slots=True)
class Mix:
    """[n+1] the probability of each size, and the share of jobs with two or more GPUs."""

    sizes: Floats

    @property
    def counted(self) -> float:
        return float(self.sizes[2:].sum())


@dataclass(frozen=True, slots=True)
class Job:
    size: int
    arrival: float
    duration: float


def mix_of(words: str, count: int) -> Mix:
    """Parse `1,2,4:0.5`: each size has the weight 1, or the weight after its colon. Sizes that do
    not fit are left out."""
    sizes = np.zeros(count + 1)
    for word in words.split(","):
        size, _, weight = word.partition(":")
        if int(size) <= count:
            sizes[int(size)] = float(weight or 1)
    return Mix(sizes / sizes.sum())


def jobs_of(seed: int, number: int, mix: Mix, durations: str, load: float | None) -> list[Job]:
    """*load* is the share of the machine's GPU time that jobs request; None: all wait at once."""
    draw, count = random.Random(seed), len(mix.sizes) - 1
    jobs, arrival = [], 0.0
    for _ in range(number):
        size = draw.choices(range(count + 1), mix.sizes.tolist())[0]
        if load is not None:
            mean_size = float(mix.sizes @ np.arange(count + 1))
            arrival += draw.expovariate(load * count / mean_size)
        jobs.append(Job(size, arrival, DURATIONS[durations](draw)))
    return jobs


def run(jobs: Iterable[Job], everything: int, policy: Policy) -> list[int]:
    """The sets that the jobs get, in the order of the queue."""
    free, now = everything, 0.0
    running: list[tuple[float, int]] = []
    taken = []
    for job in jobs:
        now = max(now, job.arrival)
        while running and (running[0][0] <= now or free.bit_count() < job.size):
            ended, gpus = heapq.heappop(running)
            now, free = max(now, ended), free | gpus
        gpus = policy(free, job.size, tuple(sorted(gpus for _, gpus in running)))
        if gpus & ~free or gpus.bit_count() != job.size:
            raise RuntimeError(f"{job.size} of {free:#b} wanted: {gpus:#b} taken")
        heapq.heappush(running, (now + job.duration, gpus))
        free &= ~gpus
        taken.append(gpus)
    return taken


def everything_of(table: MachineTable) -> int:
    return (1 << table.count) - 1


def ours(machine: Machine, free: int, size: int, running: Running | None) -> int:
    choice = choose(machine, free, size, running=running)
    if choice is None:
        raise RuntimeError(f"{size} of {free:#b}: no set")
    return choice.gpus


def blindly(machine: Machine, free: int, size: int, _: Running) -> int:
    return ours(machine, free, size, None)


def policies_of(machine: Machine, mix: Mix, draw: random.Random) -> dict[str, Policy]:
    table = table_of(machine)
    ids = range(table.count)
    pairs = {(a, b): pair_gbytes_per_s(machine, a, b) for a in ids for b in ids if a < b}
    aggregate = np.array(
        [
            sum(rate for (a, b), rate in pairs.items() if gpus >> a & gpus >> b & 1)
            for gpus in range(1 << table.count)
        ]
    ).round(4)

    def anything(free: int, size: int, _: Running) -> int:
        return int(draw.choice(subsets.within(subsets.layer(table.count, size), free)))

    def first(free: int, size: int, _: Running) -> int:
        return lowest_indices(free, size) or 0

    def nvidia(free: int, size: int, _: Running) -> int:
        return choose_partition(machine, free, size) or 0

    def mapa(free: int, size: int, _: Running) -> int:
        sets = subsets.within(subsets.layer(table.count, size), free)
        return int(sets[np.argmax(aggregate[sets])])

    def fastest(free: int, size: int, _: Running) -> int:
        sets = subsets.within(subsets.layer(table.count, size), free)
        return int(sets[np.argmax(table.units[sets])])

    found: dict[str, Policy] = {
        "random": anything,
        "first free": first,
        "NVIDIA partition": nvidia,
        "MAPA, most aggregate bandwidth": mapa,
        "only the most ring bandwidth": fastest,
        OURS: partial(blindly, machine),
        OURS_KNOWING: partial(ours, machine),
    }
    if table.count <= MOST_GPUS:
        shares, far = shares_of_idle(table), Outlook(table, mix.sizes, requests=100)

        def best(free: int, size: int, running: Running) -> int:
            sets = subsets.within(subsets.layer(table.count, size), free)
            return int(sets[np.argmax(shares[sets] + far.after(sets, free, running))])

        def best_of_fastest(free: int, size: int, running: Running) -> int:
            sets = subsets.within(subsets.layer(table.count, size), free)
            sets = sets[table.units[sets] == table.units[sets].max()]
            return int(sets[np.argmax(far.after(sets, free, running))])

        found["best of the fastest, knows the mix"] = best_of_fastest
        found["best, knows the mix"] = best
    return found


def bound(table: MachineTable, mix: Mix, seen: int) -> tuple[float, float]:
    """Lower and upper bound on the best policy's mean in the long run, if it sees the sizes of the
    *seen* jobs behind the first one."""
    states, shares = states_of(table.count), shares_of_idle(table)
    sizes = [int(size) for size in np.flatnonzero(mix.sizes)]
    worth = {ahead: np.zeros(len(states.busy)) for ahead in product(sizes, repeat=seen)}
    while True:
        gained = {}
        more = {}
        for ahead in worth:
            more[ahead] = np.zeros(len(states.busy))
            for last in sizes:
                size, *rest = (*ahead, last)
                certain = np.zeros(len(mix.sizes))
                certain[size] = 1.0
                then = one_request_more(states, shares, certain, worth[tuple(rest)])
                more[ahead] += mix.sizes[last] * then
            gained[ahead] = more[ahead] - worth[ahead]
        least = min(float(gain.min()) for gain in gained.values())
        most = max(float(gain.max()) for gain in gained.values())
        worth = {ahead: numbers - least for ahead, numbers in more.items()}
        if most - least < _CLOSE * (1 if seen == 0 else 100):
            return least / mix.counted, most / mix.counted


def best_of_first(table: MachineTable, mix: Mix, number: int) -> float:
    """The best policy's expected total over its first jobs, by the jobs that count among them."""
    idle = Outlook(table, mix.sizes, number).worth[0]
    return float(idle) / (number * mix.counted)


def long_run(table: MachineTable, mix: Mix, policy: Policy) -> float:
    """The exact mean of a deterministic policy."""
    states, shares, everything = states_of(table.count), shares_of_idle(table), everything_of(table)
    taken = {}
    for size in np.flatnonzero(mix.sizes).tolist():
        begins = np.flatnonzero(states.free >= size)
        sets, ends = [], []
        for state in begins.tolist():
            running, free = states.running(state), everything & ~int(states.busy[state])
            sets.append(policy(free, size, running))
            ends.append(states.key((*running, sets[-1]), free & ~sets[-1]))
        taken[size] = begins, shares[sets], states.find(np.array(ends))
    worth = np.zeros(len(states.busy))
    while True:
        more = np.zeros(len(worth))
        for size, (begins, got, afterwards) in taken.items():
            found = np.zeros(len(worth))
            found[begins] = got + worth[afterwards]
            wait(states, size, found)
            more += mix.sizes[size] * found
        gain = more - worth
        worth = more - gain.min()
        if np.ptp(gain) < _CLOSE:
            return float(gain.max()) / mix.counted


@dataclass(frozen=True, slots=True)
class Figures:
    """For jobs of two and more GPUs: their share of the idle best, and the error of its mean."""

    mean: float
    error: float  # standard error over the seeds
    at_best: float
    without_nvlink: float


def figures_of(table: MachineTable, runs: list[list[int]]) -> Figures:
    shares = shares_of_idle(table)
    linked = [np.array([gpus for gpus in run if gpus.bit_count() > 1]) for run in runs]
    means = [float(shares[sets].mean()) for sets in linked]
    sets = np.concatenate(linked)
    return Figures(
        mean=float(shares[sets].mean()),
        error=float(np.std(means, ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0,
        at_best=float((shares[sets] > 1 - 1e-9).mean()),
        without_nvlink=float((table.ring_classes[sets] < LinkClass.NVLINK).mean()),
    )


HEADER = (
    "policy",
    "share of the idle best",
    "± s.e.",
    "jobs at the best",
    "jobs without NVLink",
    "long run",
)


def compare_machines(words: str) -> None:
    """Print the long run on every recorded machine of at most `MOST_GPUS`, each kind once."""
    kinds: dict[MachineTable, str] = {}
    for name in machine_names():
        machine = recorded_machine(name)
        if 2 <= len(machine.gpus) <= MOST_GPUS:
            kinds.setdefault(table_of(machine), name)
    rows, all_alike = [], []
    for table, name in kinds.items():
        machine, mix = recorded_machine(name), mix_of(words, table.count)
        alone = long_run(table, mix, partial(blindly, machine))
        known = long_run(table, mix, partial(ours, machine))
        _, most = bound(table, mix, 0)
        if alone > 1 - _CLOSE:
            all_alike.append(name)
        else:
            rows.append((name, f"{alone:.4f}", f"{known:.4f}", f"{up(most):.5f}"))
    print_table((f"long run, sizes {words}", OURS, OURS_KNOWING, "best possible, at most"), rows)
    click.echo(f"\nAlways at the best: {', '.join(all_alike)}")


@click.command(help=__doc__)
@click.option(
    "--machine", "name", type=click.Choice(machine_names()), default="dgx1-v100", show_default=True
)
@click.option("--mix", "words", default="1,2,3,4,5", show_default=True, help="SIZE[:WEIGHT],…")
@click.option("--jobs", "number", type=click.IntRange(1), default=300, show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True)
@click.option("--first-seed", type=int, default=100, show_default=True)
@click.option(
    "--durations", type=click.Choice(sorted(DURATIONS)), default="exponential", show_default=True
)
@click.option("--load", type=click.FloatRange(min=0.01), help="Jobs arrive; else all wait at once.")
@click.option(
    "--seen",
    type=click.IntRange(0, 3),
    default=0,
    show_default=True,
    help="Also bound a policy that sees this many more jobs of the queue.",
)
@click.option("--every", is_flag=True, help="Only the long run, on every recorded machine.")
def main(
    name: str,
    words: str,
    number: int,
    seeds: int,
    first_seed: int,
    durations: str,
    load: float | None,
    seen: int,
    every: bool,
) -> None:
    if every:
        compare_machines(words)
        return
    machine = recorded_machine(name)
    table = table_of(machine)
    mix = mix_of(words, table.count)
    exact = table.count <= MOST_GPUS
    click.echo(
        f"{name}, sizes {words}, {number} jobs, seeds {first_seed} to {first_seed + seeds - 1}, "
        f"{durations} durations, " + ("a full queue" if load is None else f"load {load:g}") + "\n"
    )
    queues = [
        jobs_of(seed, number, mix, durations, load)
        for seed in range(first_seed, first_seed + seeds)
    ]
    rows = []
    for label, policy in policies_of(machine, mix, random.Random(first_seed)).items():
        figures = figures_of(table, [run(jobs, everything_of(table), policy) for jobs in queues])
        endless = f"{long_run(table, mix, policy):.4f}" if exact and label != "random" else "-"
        rows.append(
            (
                label,
                f"{figures.mean:.3f}",
                f"{figures.error:.3f}",
                f"{figures.at_best:.2f}",
                f"{figures.without_nvlink:.2f}",
                endless,
            )
        )
    print_table(HEADER, rows)
    if exact:
        first = best_of_first(table, mix, number)
        click.echo(f"\nBest possible for the first {number} jobs of an idle machine: {first:.5f}")
        for ahead in range(seen + 1):
            least, most = bound(table, mix, ahead)
            knows = f", which sees {ahead} more of the queue" if ahead else ""
            click.echo(f"Best possible in the long run{knows}: {least:.5f} to {up(most):.5f}")


def up(number: float) -> float:
    return math.ceil(number * 1e5) / 1e5


if __name__ == "__main__":
    main()
