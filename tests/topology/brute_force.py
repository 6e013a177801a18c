"""An independent judge: the value of a GPU set, and which one to take, by exhaustive search.

It shares no code with `linkwise.topology` except the model, and takes its GB/s from the test. Rings
are permutations, and disjoint rings and sets come from trying all of them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise, permutations

from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from tests.machines import BRIDGED_8, DGX_1V, HGX_H100, TWO_ISLANDS

Edge = tuple[int, int]


@dataclass(frozen=True)
class Speeds:
    """GB/s: per NVLink, below one PCIe switch, through the CPU's root, between sockets; and the
    share of the NVLinks' speed that NVSwitches reduce at."""

    nvlink: float
    switch: float
    root: float
    sockets: float
    reducing: float = 0.0

    def of(self, pcie: LinkClass) -> float:
        if pcie in (LinkClass.PIX, LinkClass.PXB):
            return self.switch
        return self.sockets if pcie is LinkClass.SYS else self.root


def members(gpus: int) -> tuple[int, ...]:
    return tuple(gpu for gpu in range(16) if gpus >> gpu & 1)


def subsets(gpus: int, size: int) -> Iterator[int]:
    """Return all subsets of a size, by lowest indices."""
    for chosen in combinations(members(gpus), size):
        yield sum(1 << gpu for gpu in chosen)


def rings(gpus: tuple[int, ...]) -> Iterator[list[Edge]]:
    """Return every ring through three or more GPUs, as its hops (each ring in both directions)."""
    for rest in permutations(gpus[1:]):
        closed = (gpus[0], *rest, gpus[0])
        yield [(min(hop), max(hop)) for hop in pairwise(closed)]


def most_disjoint(links: Counter[Edge], found: list[Counter[Edge]]) -> int:
    """Take the first ring as often as possible or less often, then the others."""
    if not found:
        return 0
    first, others = found[0], found[1:]
    best, times = 0, 0
    while True:
        best = max(best, times + most_disjoint(links, others))
        if any(links[hop] < 1 for hop in first):
            return best
        links = links - first
        times += 1


class BruteForceJudge:
    """All facts about one machine's sets, computed once."""

    def __init__(self, machine: Machine, speeds: Speeds) -> None:
        self.machine, self.speeds = machine, speeds
        self.everything = range(1 << len(machine.gpus))
        self.values = [self._value(members(gpus)) for gpus in self.everything]
        self.classes = [self._class(members(gpus)) for gpus in self.everything]
        self.tidiness = [self._tidiness(members(gpus)) for gpus in self.everything]

    def _hop(self, edge: Edge) -> float:
        link = self.machine.link(*edge)
        return link.nvlinks * self.speeds.nvlink if link.nvlinks else self.speeds.of(link.pcie)

    def _value(self, gpus: tuple[int, ...]) -> float:
        if len(gpus) < 3:
            return [0.0, 5000.0, self._hop(gpus) if len(gpus) == 2 else 0.0][len(gpus)]
        links = {edge: self.machine.link(*edge) for edge in combinations(gpus, 2)}
        if all(link.through_switch for link in links.values()):
            reducing = self.speeds.reducing if len(gpus) > 4 else 0.0
            gain = reducing * 2 * (len(gpus) - 1) / (len(gpus) + 1)
            speed = min(link.nvlinks for link in links.values()) * self.speeds.nvlink
            return max(1.0, gain) * speed
        left = Counter({edge: link.nvlinks for edge, link in links.items() if link.nvlinks})
        nvlink_rings = {
            frozenset(ring) for ring in rings(gpus) if all(edge in left for edge in ring)
        }
        if nvlink_rings:
            return 2 * self.speeds.nvlink * most_disjoint(left, [Counter(r) for r in nvlink_rings])
        return max(min(self._hop(edge) for edge in ring) for ring in rings(gpus))

    def _class(self, gpus: tuple[int, ...]) -> LinkClass:
        if len(gpus) < 2:
            return LinkClass.NVLINK
        if len(gpus) == 2:
            return self.machine.link(*gpus).kind
        return max(min(self.machine.link(*edge).kind for edge in ring) for ring in rings(gpus))

    def _nvlinks(self, gpu: int) -> int:
        others = (other for other in range(len(self.machine.gpus)) if other != gpu)
        links = [self.machine.link(gpu, other) for other in others]
        switched = max((link.nvlinks for link in links if link.through_switch), default=0)
        return switched + sum(link.nvlinks for link in links if not link.through_switch)

    def _tidiness(self, gpus: tuple[int, ...]) -> tuple[int, int]:
        """More is better: fewer NUMA nodes, then a nearer NIC for all."""
        nodes = {self.machine.gpus[gpu].numa_node for gpu in gpus}
        common = [min((nic.closeness[g] for g in gpus), default=5) for nic in self.machine.nics]
        return -len(nodes), max(common, default=-1)

    @cached_property
    def remaining_value(self) -> list[float]:
        total = [0.0] * len(self.everything)
        sizes = [size for size in (2, 4, 8) if size <= len(self.machine.gpus)]
        for size in sizes:
            packed = self.packed(size)
            for gpus in self.everything:
                total[gpus] += packed[gpus] / packed[-1] / len(sizes)
        return [round(share, 9) for share in total]

    @cached_property
    def remaining_gbytes_per_s(self) -> list[float]:
        packed = [self.packed(size) for size in (2, 4, 8) if size <= len(self.machine.gpus)]
        return [sum(row[gpus] for row in packed) / 4 for gpus in self.everything]

    def packed(self, size: int) -> list[float]:
        """Return the best total value of disjoint sets of *size* within each set."""
        packed = [0.0] * len(self.everything)
        for gpus in self.everything[1:]:
            packed[gpus] = max(
                [packed[gpus & (gpus - 1)]]
                + [
                    self.values[part] + packed[gpus & ~part]
                    for part in subsets(gpus, size)
                    if part & (gpus & -gpus)
                ]
            )
        return packed

    def order(self, free: int, size: int, require: LinkClass, prefer: LinkClass) -> list[int]:
        """Return all sets that fit, the best first, as `choose` promises."""
        sets = [gpus for gpus in subsets(free, size) if self.classes[gpus] >= require]

        def key(gpus: int) -> tuple[object, ...]:
            preferred = self.classes[gpus] >= prefer
            enough = preferred and prefer is not LinkClass.NVLINK
            worth = 0.0 if enough else self.values[gpus]
            models = {gpu.model for p, gpu in enumerate(self.machine.gpus) if gpus >> p & 1}
            return (
                preferred,
                worth,
                -len(models),
                0 if enough else self.classes[gpus],
                self.remaining_value[free & ~gpus],
                -sum(map(self._nvlinks, members(gpus))),
                self.tidiness[gpus],
            )

        return sorted(sets, key=key, reverse=True)  # stable: equals stay by lowest indices


JUDGES = {
    # Through a CPU the data goes through the host's memory: 1.2 twice, and again between sockets.
    "DGX-1V": (DGX_1V, Speeds(nvlink=20, switch=12, root=8.3333, sockets=6)),
    # Of 12 NVLinks of 20 GB/s, a bridge between two cards carries 7/8.
    "bridged pairs": (BRIDGED_8, Speeds(nvlink=17.5, switch=24, root=16.6667, sockets=13.8889)),
    "NVSwitch": (HGX_H100, Speeds(nvlink=20.6, switch=48, root=33.3333, sockets=22, reducing=0.85)),
    "two islands": (TWO_ISLANDS, Speeds(nvlink=20.6, switch=48, root=33.3333, sockets=22)),
}


@cache
def judge_of(name: str) -> BruteForceJudge:
    return BruteForceJudge(*JUDGES[name])


def _pcie_tree_16() -> Machine:
    """Two sockets with two switches of four GPUs each: no recorded machine has this shape."""

    def between(a: int, b: int) -> Link:
        near = [a // 4 == b // 4, a // 8 == b // 8]
        return Link([LinkClass.SYS, LinkClass.NODE, LinkClass.PIX][sum(near)])

    return Machine(
        tuple(
            Gpu(f"GPU-{index}", index, "Tesla V100-PCIE-16GB", 16384, numa_nodes=(index // 8,))
            for index in range(16)
        ),
        tuple(between(a, b) for a, b in combinations(range(16), 2)),
    )


PCIE_TREE_16 = _pcie_tree_16()
