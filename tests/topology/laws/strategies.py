"""Machines of up to six GPUs, odder than any on the market."""

from dataclasses import replace
from itertools import combinations

from hypothesis import strategies as st

from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine, Nic

MODELS = [
    "Tesla V100-SXM2-16GB",
    "NVIDIA A40",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA L4",
    "AMD Instinct MI300X OAM",
    "unknown",
]

pcie_classes = st.sampled_from([c for c in LinkClass if c is not LinkClass.NVLINK])
link_classes = st.sampled_from(LinkClass)


@st.composite
def links(draw: st.DrawFn) -> Link:
    nvlinks = draw(st.integers(0, 2))
    switched = bool(nvlinks) and draw(st.booleans())
    routed = not nvlinks and draw(st.booleans())
    return Link(draw(pcie_classes), nvlinks, switched, draw(st.booleans()), routed)


@st.composite
def machines(draw: st.DrawFn, *, fewest: int = 1) -> Machine:
    count = draw(st.integers(fewest, 6))
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{index}",
            index=index,
            model=draw(st.sampled_from(MODELS)),
            memory_mib=1024,
            numa_nodes=draw(st.sampled_from([(), (-1,), (0,), (1,), (0, 1)])),
            pcie_lanes=draw(st.sampled_from([4, 8, 16, 16])),
        )
        for index in range(count)
    )
    pairs = len(list(combinations(range(count), 2)))
    nics = tuple(
        Nic(
            f"nic{number}",
            tuple(draw(pcie_classes) for _ in range(count)),
            draw(st.none() | st.integers(1, 800)),
        )
        for number in range(draw(st.integers(0, 2)))
    )
    return Machine(gpus, tuple(draw(links()) for _ in range(pairs)), nics)


def with_access(machine: Machine) -> Machine:
    """The same machine, with peer-to-peer access between all its GPUs."""
    links = tuple(replace(link, peer_to_peer=True) for link in machine.links)
    return replace(machine, links=links)


@st.composite
def questions(draw: st.DrawFn) -> tuple[Machine, int, int]:
    """Draw a machine, some free GPUs of it, and how many are wanted."""
    machine = draw(machines())
    return machine, draw(st.integers(0, machine.all_gpus)), draw(st.integers(1, 6))


def renamed(machine: Machine, order: list[int]) -> Machine:
    """The same hardware, with the GPU that was at `order[i]` now at i."""
    gpus = tuple(
        replace(machine.gpus[old], uuid=f"GPU-r{new}", index=new) for new, old in enumerate(order)
    )
    pairs = combinations(range(len(order)), 2)
    return Machine(
        gpus,
        tuple(machine.link(order[a], order[b]) for a, b in pairs),
        tuple(
            replace(nic, closeness=tuple(nic.closeness[old] for old in order))
            for nic in machine.nics
        ),
    )


def renamed_set(gpus: int, order: list[int]) -> int:
    return sum(1 << new for new, old in enumerate(order) if gpus >> old & 1)
