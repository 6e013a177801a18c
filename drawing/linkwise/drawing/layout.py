"""The order and the groups in which a machine's GPUs are drawn.

GPUs that NVLinks join form one island, whatever their indices. GPUs without NVLink are grouped by
NUMA node. Drawings in a terminal and in HTML both use this. Pure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, groupby

from linkwise.topology.machine.model import Gpu, Link, Machine
from linkwise.topology.vendors.known import vendor_of


@dataclass(frozen=True, slots=True)
class Island:
    """Positions in `Machine.gpus` in drawing order, and a title for what joins them."""

    positions: tuple[int, ...]
    title: str
    nvlinked: bool = True
    switched: bool = False


def islands(machine: Machine) -> tuple[Island, ...]:
    """Return all GPUs, each in one island; islands are sorted by NUMA node, then by index."""
    joined = [group for group in _joined_by_nvlink(machine) if len(group) > 1]
    alone = sorted(set(range(len(machine.gpus))) - {p for group in joined for p in group})
    drawn = [_nvlink_island(machine, group) for group in joined]
    order = _by_numa(machine)
    for _, group in groupby(sorted(alone, key=order), key=lambda position: order(position)[0]):
        drawn.append(_pcie_island(machine, tuple(group)))
    return tuple(sorted(drawn, key=lambda island: _by_numa(machine)(island.positions[0])))


def numa_runs(machine: Machine, positions: Iterable[int]) -> tuple[tuple[str, int], ...]:
    """Group neighbours by NUMA node: (text below them, number of GPUs)."""
    runs = groupby(positions, key=lambda position: numa_title(machine.gpus[position]))
    return tuple((title, len(list(group))) for title, group in runs)


def numa_title(gpu: Gpu) -> str:
    """Return `NUMA 0`; "" if the node is unknown."""
    return "" if gpu.numa_node is None else f"NUMA {gpu.numa_node}"


def links_within(machine: Machine, positions: Iterable[int]) -> tuple[Link, ...]:
    """Return the link of every pair of these GPUs."""
    return tuple(machine.link(a, b) for a, b in combinations(sorted(positions), 2))


def _joined_by_nvlink(machine: Machine) -> list[tuple[int, ...]]:
    """Return the connected components of the graph of NVLinks."""
    group_of = {position: {position} for position in range(len(machine.gpus))}
    for first, second, link in machine.pairs():
        if link.nvlinks and group_of[first] is not group_of[second]:
            group_of[first] |= group_of[second]
            for position in group_of[second]:
                group_of[position] = group_of[first]
    return sorted({tuple(sorted(group)) for group in group_of.values()})


def _nvlink_island(machine: Machine, group: tuple[int, ...]) -> Island:
    links = links_within(machine, group)
    counts = sorted({link.nvlinks for link in links if link.nvlinks})
    vendor = vendor_of(machine)
    most = str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
    amount = f"{vendor.link_prefix}{most}"
    positions = tuple(sorted(group, key=_by_numa(machine)))
    if any(link.through_switch for link in links):
        return Island(positions, f"NVSwitch {amount}", switched=True)
    if len(group) > 2 and not all(link.nvlinks for link in links):
        return Island(positions, f"{vendor.link} mesh {amount}")
    return Island(positions, f"{vendor.link} {amount}")


def _pcie_island(machine: Machine, group: tuple[int, ...]) -> Island:
    classes = sorted({link.pcie for link in links_within(machine, group)}, reverse=True)
    title = "/".join(["PCIe", *(link.name for link in classes)])
    return Island(group, title, nvlinked=False)


def _by_numa(machine: Machine) -> Callable[[int], tuple[int, int]]:
    """Return a sort key: by NUMA node (GPUs without one first), then by position."""

    def key(position: int) -> tuple[int, int]:
        numa = machine.gpus[position].numa_node
        return (-1 if numa is None else numa, position)

    return key
