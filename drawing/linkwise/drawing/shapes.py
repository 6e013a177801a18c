"""Computes the shapes of a machine's drawing: a row of GPUs, and the links above and below it.

NVLinks are arcs above the GPUs, or lines to a bar if an NVSwitch joins them. PCIe switches and NUMA
nodes are below. `templates/drawing.html` only writes these shapes down, and `templates/drawing.css`
styles their classes. Lengths in pixels. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from math import log2
from typing import Literal

from linkwise.drawing.layout import Island, islands, numa_title
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from linkwise.topology.vendors.known import vendor_of

_BOX_WIDTH, _BOX_HEIGHT = 46, 44
_GAP, _NUMA_GAP = 9, 20
_MARGIN = 14
_ARC_BASE, _ARC_STEP = 15, 11  # height of an arc between neighbours; what each further GPU adds
_SWITCH_HEIGHT = 46
COLOURS = 8  # in templates/drawing.css
How = Literal["taken", "planned", "reserved"]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a GPU. Two GPUs have the same holder if all of this is equal."""

    label: str  # some letters, written on the GPU
    colour: int  # 0 to COLOURS - 1
    words: str  # what a reader reads about the GPU, such as `held by ml/train-0`
    how: How = "taken"  # filled, outlined, or dashed
    note: str = ""  # a short word, written in the GPU's corner


@dataclass(frozen=True, slots=True)
class GpuBox:
    x: float
    y: float
    index: int
    label: str
    hover: str
    classes: str  # of CSS, for the box and its texts
    note: str


@dataclass(frozen=True, slots=True)
class NvlinkPath:
    """An NVLink as an SVG path: thicker for more links, coloured if one pod holds both ends."""

    path: str
    width: float
    colour: int | None
    hover: str

    @property
    def classes(self) -> str:
        return "link" if self.colour is None else f"link s{self.colour}"


@dataclass(frozen=True, slots=True)
class Bar:
    """A switch, or the background of a NUMA node."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Drawing:
    width: float
    height: float
    box_width: float
    box_height: float
    gpus: tuple[GpuBox, ...]
    lines: tuple[NvlinkPath, ...]
    nvswitches: tuple[Bar, ...]
    pcie_switches: tuple[Bar, ...]
    numa_nodes: tuple[Bar, ...]


def draw(machine: Machine, holders: Mapping[int, Holder]) -> Drawing:
    """Draw *machine*. *holders* by GPU index.

    Machines of the same GPUs and links have the same shapes. What pods hold changes only labels,
    colours and texts.
    """
    order = drawing_order(machine)
    place = _places(machine, order)
    groups = islands(machine)
    above = _height_above(groups, order, machine)
    lines: list[NvlinkPath] = []
    bars: list[Bar] = []
    for island in groups:
        if island.switched:
            bars.append(_switch(island, place))
            lines += _switch_lines(machine, island, place, above, holders)
    lines += _direct_lines(machine, order, place, above, holders)
    pcie = _pcie_switches(machine, order, place, above)
    return Drawing(
        width=max(place.values()) + _BOX_WIDTH + _MARGIN,
        height=above + _BOX_HEIGHT + 44,
        box_width=_BOX_WIDTH,
        box_height=_BOX_HEIGHT,
        gpus=tuple(
            _box(machine.gpus[p], place[p], above, holders.get(machine.gpus[p].index))
            for p in order
        ),
        lines=tuple(lines),
        nvswitches=tuple(bars),
        pcie_switches=pcie,
        numa_nodes=_numa_nodes(machine, order, place, above),
    )


def drawing_order(machine: Machine) -> tuple[int, ...]:
    """Return positions from left to right: by NUMA node, islands together within each."""
    order = [position for island in islands(machine) for position in island.positions]
    numas = [machine.gpus[position].numa_node for position in order]
    first_seen = {numa: numas.index(numa) for numa in numas}
    return tuple(sorted(order, key=lambda p: first_seen[machine.gpus[p].numa_node]))


def _places(machine: Machine, order: tuple[int, ...]) -> dict[int, float]:
    """Return the left edge of every GPU, with a gap between NUMA nodes."""
    place: dict[int, float] = {}
    x: float = _MARGIN
    for before, position in zip((None, *order), order, strict=False):
        if before is not None:
            apart = machine.gpus[before].numa_node != machine.gpus[position].numa_node
            x += _BOX_WIDTH + (_NUMA_GAP if apart else _GAP)
        place[position] = x
    return place


def _height_above(groups: tuple[Island, ...], order: tuple[int, ...], machine: Machine) -> float:
    """Return the height that the highest arc or the switch needs."""
    reach = [
        abs(order.index(a) - order.index(b))
        for a, b, link in machine.pairs()
        if link.nvlinks and not link.through_switch
    ]
    arcs = _arc_height(max(reach)) if reach else 0
    return max(arcs, _SWITCH_HEIGHT if any(g.switched for g in groups) else 0, 8) + 10


def _arc_height(reach: int) -> float:
    return _ARC_BASE + _ARC_STEP * (reach - 1)


def _middle(x: float) -> float:
    return x + _BOX_WIDTH / 2


def _switch(island: Island, place: Mapping[int, float]) -> Bar:
    left = min(place[p] for p in island.positions)
    right = max(place[p] for p in island.positions) + _BOX_WIDTH
    return Bar(left, 8, right - left, 20, island.title)


def _switch_lines(
    machine: Machine,
    island: Island,
    place: Mapping[int, float],
    bottom: float,
    holders: Mapping[int, Holder],
) -> list[NvlinkPath]:
    lines = []
    for position in island.positions:
        gpu = machine.gpus[position]
        links = max(machine.link(position, q).nvlinks for q in island.positions if q != position)
        holder = holders.get(gpu.index)
        lines.append(
            NvlinkPath(
                path=f"M{_middle(place[position]):g} 28V{bottom:g}",
                width=_width(links),
                colour=holder.colour if holder else None,
                hover=f"GPU {gpu.index}: {links} NVLinks to the NVSwitch",
            )
        )
    return lines


def _direct_lines(
    machine: Machine,
    order: tuple[int, ...],
    place: Mapping[int, float],
    bottom: float,
    holders: Mapping[int, Holder],
) -> list[NvlinkPath]:
    lines = []
    for a, b, link in machine.pairs():
        if not link.nvlinks or link.through_switch:
            continue
        left, right = sorted((_middle(place[a]), _middle(place[b])))
        # A cubic Bézier reaches three quarters of its handles' height.
        handle = bottom - _arc_height(abs(order.index(a) - order.index(b))) * 4 / 3
        first, second = machine.gpus[a].index, machine.gpus[b].index
        holder = holders.get(first)
        shared = holder is not None and holder == holders.get(second)
        lines.append(
            NvlinkPath(
                path=f"M{left:g} {bottom:g}C{left:g} {handle:g} {right:g} {handle:g} "
                f"{right:g} {bottom:g}",
                width=_width(link.nvlinks),
                colour=holder.colour if holder and shared else None,
                hover=_link_words(machine, first, second, link),
            )
        )
    return lines


def _link_words(machine: Machine, first: int, second: int, link: Link) -> str:
    vendor = vendor_of(machine)
    links = f"{link.nvlinks} {vendor.links if link.nvlinks > 1 else vendor.link}"
    return f"GPU {first} – GPU {second}: {links}, PCIe {link.pcie.name}"


def _width(nvlinks: int) -> float:
    """Grow with the links, but keep eighteen of them readable."""
    return round(0.6 + 1.1 * log2(nvlinks + 1), 2)


def _pcie_switches(
    machine: Machine, order: tuple[int, ...], place: Mapping[int, float], above: float
) -> tuple[Bar, ...]:
    """Return a bar for each run of neighbours behind one PCIe switch."""
    bars: list[Bar] = []
    group: list[int] = []
    for position in (*order, None):
        joins = position is not None and (
            not group or machine.link(group[-1], position).pcie is LinkClass.PIX
        )
        if not joins:
            if len(group) > 1:
                left, right = place[group[0]], place[group[-1]] + _BOX_WIDTH
                y = above + _BOX_HEIGHT + 7
                bars.append(Bar(left + 6, y, right - left - 12, 5, "PCIe switch"))
            group = []
        if position is not None:
            group.append(position)
    return tuple(bars)


def _numa_nodes(
    machine: Machine, order: tuple[int, ...], place: Mapping[int, float], above: float
) -> tuple[Bar, ...]:
    bars = []
    for _, run in groupby(order, key=lambda p: machine.gpus[p].numa_node):
        positions = tuple(run)
        left = place[positions[0]] - 8
        right = place[positions[-1]] + _BOX_WIDTH + 8
        title = numa_title(machine.gpus[positions[0]])
        bars.append(Bar(left, above - 8, right - left, _BOX_HEIGHT + 44, title))
    return tuple(bars)


def _box(gpu: Gpu, x: float, y: float, holder: Holder | None) -> GpuBox:
    words = [f"GPU {gpu.index}", gpu.model]
    if gpu.memory_mib:
        words.append(f"{gpu.memory_mib} MiB")
    if gpu.pci_bus_id:
        words.append(gpu.pci_bus_id)
    words.append(gpu.uuid)
    words.append(holder.words if holder else "free" if gpu.healthy else "unhealthy")
    state = f"{holder.how} f{holder.colour}" if holder else "free"
    return GpuBox(
        x=x,
        y=y,
        index=gpu.index,
        label=holder.label if holder else "",
        hover=", ".join(words),
        classes=f"gpu {state}" if gpu.healthy else f"gpu {state} broken",
        note=holder.note if holder else "",
    )
