"""The machines that tests are told on: recorded ones an operator recognises, and drawn tables."""

from linkwise.topology.model import Machine
from linkwise.topology.recorded import recorded_machine
from linkwise.topology.topo_matrix import read_matrix

DGX_1V = recorded_machine("dgx1-v100")  # 8 GPUs, a cube of NVLinks: pairs have two, one or none
BRIDGED_8 = recorded_machine("a100-pcie-8-bridged")  # NVLink pairs (0,2) (1,3) (4,5) (6,7)
DGX_A100 = recorded_machine("dgx-a100")  # 8 GPUs on an NVSwitch, NUMA order unlike GPU order
HGX_H100 = recorded_machine("hgx-h100")  # 8 GPUs on an NVSwitch
TWO_ISLANDS = recorded_machine("h200-nvl-2x4")  # GPUs 0-3 and 4-7, each four joined by a bridge
DGX_2 = recorded_machine("dgx2-v100")  # 16 GPUs on an NVSwitch
PCIE_8 = recorded_machine("p100-pcie-8")  # no NVLink: 0-3 and 4-7 behind a PCIe switch each
MIXED_5 = recorded_machine("mixed-5")  # GPU 0 alone on its NUMA node


def machine(table: str) -> Machine:
    """The machine that a table of `nvidia-smi topo -m` shows; its GPUs are of no known model."""
    return read_matrix(table)
