"""The ring through a gang's members on one busy node, by policy: `python -m bench.gang_rings`.

This measures quality, not speed. Each case is a machine with some GPUs in use at random, and a gang
that fits. Its ring is the value of all its members' GPUs together. The result of a case is its
share of the best set of as many free GPUs. `own rings` gives each member by itself the best ring
for its own GPUs; `NVIDIA partition` chooses as NVIDIA's device plugin does.
"""

import random
from collections.abc import Callable

import click
import numpy as np

from bench.support.figures import print_table
from linkwise.extender.place.one_machine import gang_on
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.choose import choose
from linkwise.topology.sets.partition import choose_partition
from linkwise.topology.sets.tables import table_of

MACHINES = (
    *("dgx1-v100", "dgx1-p100", "v100-sxm2-8", "a100-pcie-8-bridged", "a100-pcie-4-bridged"),
    *("h200-nvl-2x4", "rtx8000-4", "p100-pcie-8", "plx-8-pxb", "rtx4090-8-phb"),
)
GANGS = ((2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (2, 2), (3, 2), (2, 3))  # members, GPUs of each
Rule = Callable[[MachineKind, int, int, int], int]
"""(machine, free GPUs, members, GPUs of each) → all GPUs of the gang, as a bitmask."""


def of_the_extender(kind: MachineKind, free: int, members: int, size: int) -> int:
    return sum(gang_on(kind, free, members, size))


def one_by_one(
    choice: Callable[[Machine, int, int], int | None],
) -> Rule:
    def choose_all(kind: MachineKind, free: int, members: int, size: int) -> int:
        taken = 0
        for _ in range(members):
            taken |= choice(kind.machine, free & ~taken, size) or 0
        return taken

    return choose_all


def _own_ring(machine: Machine, free: int, size: int) -> int | None:
    found = choose(machine, free, size)
    return None if found is None else found.gpus


RULES: dict[str, Rule] = {
    "Linkwise": of_the_extender,
    "own rings": one_by_one(_own_ring),
    "NVIDIA partition": one_by_one(choose_partition),
}


@click.command()
@click.option("--cases", default=400, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True)
def main(cases: int, seed: int) -> None:
    """Compare rings of gangs on busy machines with the best sets."""
    rows, all_of_them = [], []
    for name in MACHINES:
        machine = recorded_machine(name, node="n")
        shares = _shares(machine, random.Random(f"{seed}-{name}"), cases)
        all_of_them.append(shares)
        rows.append((name, *(f"{share:.3f}" for share in shares.mean(axis=0))))
    together = np.concatenate(all_of_them)
    rows.append(("all", *(f"{share:.3f}" for share in together.mean(axis=0))))
    rows.append(("the worst case", *(f"{share:.3f}" for share in together.min(axis=0))))
    print_table(("machine", *RULES), rows)


def _shares(
    machine: Machine, draw: random.Random, cases: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """[cases, rules] the gang's ring as a share of the best set of as many free GPUs."""
    kind, table = MachineKind(machine, 0), table_of(machine)
    count = len(machine.gpus)
    shares: list[list[float]] = []
    while len(shares) < cases:
        free = sum(1 << gpu for gpu in range(count) if draw.random() < draw.choice([0.5, 0.7, 0.9]))
        members, size = draw.choice(GANGS)
        if members * size <= free.bit_count():
            best = table.best[members * size, free]
            taken = [rule(kind, free, members, size) for rule in RULES.values()]
            shares.append([float(table.values[gpus] / best) for gpus in taken])
    return np.array(shares)


if __name__ == "__main__":
    main()
