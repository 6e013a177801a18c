"""Single pods on a busy cluster of unlike nodes: `python -m bench.busy_cluster`.

This measures quality, not speed. Pods of 1, 2, 4 and 8 GPUs come at random and run for random
times, on three DGX-1V, two boxes of bridged A100 and four of L40S, through the extender's own
calls. A pod that finds no room at once is dropped. *served* is the GPU time of the pods that found
room, as a share of all that was asked for; *bandwidth* is the value of the sets of several GPUs,
each as a share of the best set of its size in the idle cluster, on average; the others count the
pods that were dropped, by GPUs.

Each pod takes 2, 6 or 12 CPUs for each GPU. `--cpu` says how many the nodes have.
"""

import heapq
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

import click

from bench.support.figures import print_table
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.tables import MachineTable, table_of
from tests.extender.cluster import Cluster

MACHINES = ("dgx1-v100",) * 3 + ("a100-pcie-8-bridged",) * 2 + ("l40s-4",) * 4
CPUS: Mapping[str, Mapping[str, int]] = {
    "plenty": {"dgx1-v100": 96, "a100-pcie-8-bridged": 96, "l40s-4": 64},
    "scarce": {"dgx1-v100": 64, "a100-pcie-8-bridged": 64, "l40s-4": 32},
    "scarce beside NVLinks": {"dgx1-v100": 40, "a100-pcie-8-bridged": 40, "l40s-4": 64},
}
SIZES, OFTEN = (1, 2, 4, 8), (6, 3, 2, 1)
CPUS_OF_A_GPU = (2, 6, 12)


@dataclass
class Found:
    asked: float = 0.0  # GPU time
    served: float = 0.0
    shares: list[float] = field(default_factory=list)
    dropped: Counter[int] = field(default_factory=Counter)  # pods by GPUs


def play(cpus: Mapping[str, int], load: float, pods: int, seed: int) -> Found:
    chance, at, found = random.Random(seed), Cluster(), Found()
    tables: dict[str, MachineTable] = {}
    left: dict[str, int] = {}
    for number, name in enumerate(MACHINES):
        node = f"n{number}"
        tables[node], left[node] = table_of(recorded_machine(name)), cpus[name]
        at.add_node(node, name, cpu=str(cpus[name]))
    best = {
        size: max(float(table.best[size][-1]) for table in tables.values() if size <= table.count)
        for size in SIZES
    }
    gpus = sum(table.count for table in tables.values())
    mean = sum(map(int.__mul__, SIZES, OFTEN)) / sum(OFTEN)
    running: list[tuple[float, str, str, int]] = []  # end, pod, node, CPUs
    now = 0.0
    for number in range(pods):
        now += chance.expovariate(load * gpus / mean)
        while running and running[0][0] <= now:
            _, name, node, cpu = heapq.heappop(running)
            left[node] += cpu
            at.delete(name)
        (size,) = chance.choices(SIZES, OFTEN)
        cpu, lasts, name = size * chance.choice(CPUS_OF_A_GPU), chance.expovariate(1), f"p{number}"
        at.add_pod(name, size, cpu=str(cpu))
        found.asked += size * lasts
        fitting = [node for node in left if left[node] >= cpu]
        passed = at.filter(name, fitting).node_names if fitting else ()
        if not passed:
            found.dropped[size] += 1
            at.delete(name)
            continue
        node = passed[0]
        at.bind(name, node)
        left[node] -= cpu
        found.served += size * lasts
        if size > 1:
            taken = sum(1 << gpu for gpu in at.indices(name))
            found.shares.append(float(tables[node].values[taken]) / best[size])
        heapq.heappush(running, (now + lasts, name, node, cpu))
    return found


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--cpu", "shapes", type=click.Choice([*CPUS]), multiple=True, default=[*CPUS])
@click.option("--load", "loads", type=float, multiple=True, default=[0.7, 1.0])
@click.option("--pods", type=click.IntRange(1), default=500, help="Pods of each run.")
@click.option("--seeds", type=click.IntRange(1), default=4, help="Runs of each row.")
def main(shapes: tuple[str, ...], loads: tuple[float, ...], pods: int, seeds: int) -> None:
    rows = []
    for shape in shapes:
        for load in loads:
            runs = [play(CPUS[shape], load, pods, seed) for seed in range(seeds)]
            served = sum(run.served for run in runs) / sum(run.asked for run in runs)
            bandwidth = fmean(share for run in runs for share in run.shares)
            dropped = [str(sum(run.dropped[size] for run in runs)) for size in SIZES]
            rows.append([f"{shape}, {load:g}", f"{served:.3f}", f"{bandwidth:.3f}", *dropped])
    header = ["CPU, load", "served", "bandwidth", *(f"dropped, {size}" for size in SIZES)]
    print_table(header, rows)


if __name__ == "__main__":
    main()
