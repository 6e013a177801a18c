"""The machines of the tests: recorded ones that an operator recognises, and drawn tables."""

from dataclasses import replace

from hypothesis import strategies as st

from linkwise.topology.machine.model import (
    MAX_GPUS,
    MAX_NVLINKS,
    Gpu,
    Link,
    LinkClass,
    Machine,
    Nic,
)
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.machine.topo_matrix import read_matrix

DGX_1V = recorded_machine("dgx1-v100")  # 8 GPUs, a cube of NVLinks: pairs have two, one or none
BRIDGED_8 = recorded_machine("a100-pcie-8-bridged")  # NVLink pairs (0,2) (1,3) (4,5) (6,7)
DGX_A100 = recorded_machine("dgx-a100")  # 8 GPUs on an NVSwitch, NUMA order unlike GPU order
HGX_H100 = recorded_machine("hgx-h100")  # 8 GPUs on an NVSwitch
TWO_ISLANDS = recorded_machine("h200-nvl-2x4")  # GPUs 0-3 and 4-7, each four joined by a bridge
DGX_2 = recorded_machine("dgx2-v100")  # 16 GPUs on an NVSwitch
PCIE_8 = recorded_machine("p100-pcie-8")  # no NVLink: 0-3 and 4-7 behind a PCIe switch each
MIXED_5 = recorded_machine("mixed-5")  # GPU 0 alone on its NUMA node

T4_4 = read_matrix(
    """
        GPU0  GPU1  GPU2  GPU3  NUMA Affinity
  GPU0   X    NODE  NODE  NODE  0
  GPU1  NODE   X    PHB   PHB   0
  GPU2  NODE  PHB    X    PHB   0
  GPU3  NODE  PHB   PHB    X    0
""",
    model="Tesla T4",
)
"""GPU 0 alone at its host bridge; every pair has 8.3 GB/s."""

TWO_SWITCHES = """
        GPU0  GPU1  GPU2  GPU3  NUMA Affinity
  GPU0   X    PIX   SYS   SYS   0
  GPU1  PIX    X    SYS   SYS   0
  GPU2  SYS   SYS    X    PIX   1
  GPU3  SYS   SYS   PIX    X    1
"""
GEFORCE_4 = read_matrix(TWO_SWITCHES, model="NVIDIA GeForce RTX 4090")
"""Two GPUs below each of two PCIe switches, without peer-to-peer access."""


def machine(table: str) -> Machine:
    """The machine that a table of `nvidia-smi topo -m` shows; its GPUs are of no known model."""
    return read_matrix(table)


@st.composite
def any_machine(draw: st.DrawFn, most_gpus: int = MAX_GPUS) -> Machine:
    """Any machine that the model allows, likely or not."""
    count = draw(st.integers(1, most_gpus))
    indices = sorted(draw(st.sets(st.integers(0, 99), min_size=count, max_size=count)))
    kinds = draw(st.lists(_KINDS, min_size=1, max_size=3))
    gpus = tuple(
        Gpu(
            f"GPU-{index}",
            index,
            *draw(st.sampled_from(kinds)),
            pci_bus_id=draw(st.none() | st.just(f"{index:08x}:0a:00.0")),
            numa_nodes=tuple(draw(st.lists(st.integers(-1, 9), max_size=3))),
            healthy=draw(st.booleans()),
            pcie_lanes=draw(st.integers(1, 16)),
        )
        for index in indices
    )
    pairs = count * (count - 1) // 2
    closeness = st.lists(_PCIE, min_size=count, max_size=count).map(tuple)
    nic = st.builds(Nic, st.text(), closeness, st.none() | st.integers(1, 100_000))
    return Machine(
        gpus=tuple(replace(gpu, compute_capability=_CAPABILITIES.get(gpu.model)) for gpu in gpus),
        links=tuple(draw(st.lists(_LINKS, min_size=pairs, max_size=pairs))),
        nics=tuple(draw(st.lists(nic, max_size=3))),
        clique=draw(st.none() | st.text()),
        driver_version=draw(st.none() | st.text() | st.just("550.54.15")),
        cuda_version=draw(st.none() | st.text() | st.just("12.4")),
        vendor=draw(st.sampled_from(("nvidia", "amd"))),
    )


_CAPABILITIES = {"NVIDIA H200": (9, 0), "Tesla T4": (7, 5)}
_KINDS = st.tuples(
    st.text() | st.sampled_from(sorted(_CAPABILITIES)), st.integers(0, 2**40)
)  # model, memory in MiB
_PCIE = st.sampled_from([link for link in LinkClass if link is not LinkClass.NVLINK])
_LINKS = st.builds(Link, _PCIE, peer_to_peer=st.booleans(), routed=st.booleans()) | st.builds(
    Link,
    _PCIE,
    st.integers(1, MAX_NVLINKS),
    through_switch=st.booleans(),
    peer_to_peer=st.booleans(),
)
