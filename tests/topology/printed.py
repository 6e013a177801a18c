"""A machine as AMD's tools print it, and as RCCL dumps it, in the shape of real prints."""

from collections.abc import Callable, Sequence

from linkwise.topology.machine.model import Link, LinkClass, Machine
from linkwise.topology.machine.recorded import recorded_machine

FRONTIER = recorded_machine("mi250x-frontier")


def table(names: Sequence[str], cell: Callable[[int, int], object], own: str) -> str:
    """Rows and columns as both tools print them."""
    lines = [["", *names]]
    for row, name in enumerate(names):
        cells = (own if row == column else cell(row, column) for column in range(len(names)))
        lines.append([name, *map(str, cells)])
    return "".join("".join(f"{cell:<14}" for cell in line).rstrip() + "\n" for line in lines)


def weight(link: Link) -> int:
    return 15 if link.nvlinks else 30 if link.routed else 40 if link.pcie > LinkClass.SYS else 72


def kind(link: Link) -> str:
    return "XGMI" if link.nvlinks or link.routed else "PCIE"


def rocm_smi(machine: Machine) -> str:
    names = [f"GPU{gpu.index}" for gpu in machine.gpus]
    numa = "".join(
        f"GPU[{gpu.index}]\t\t: (Topology) Numa Node: {gpu.numa_node}\n"
        f"GPU[{gpu.index}]\t\t: (Topology) Numa Affinity: {gpu.numa_node}\n"
        for gpu in machine.gpus
    )
    return (
        "========== ROCm System Management Interface ==========\n"
        "=============== Weight between two GPUs ==============\n"
        + table(names, lambda a, b: weight(machine.link(a, b)), "0")
        + "\n=============== Hops between two GPUs ================\n"
        + table(names, lambda *_: 1, "0")
        + "\n============= Link Type between two GPUs =============\n"
        + table(names, lambda a, b: kind(machine.link(a, b)), "0")
        + f"\n===================== Numa Nodes =====================\n{numa}"
        "================= End of ROCm SMI Log ================\n"
    )


def amd_smi(machine: Machine, *, bandwidths: bool = True) -> str:
    names = [str(gpu.pci_bus_id) for gpu in machine.gpus]

    def speed(a: int, b: int) -> str:
        link = machine.link(a, b)
        return f"50000-{50000 * link.nvlinks}" if link.nvlinks and bandwidths else "N/A"

    return (
        "ACCESS TABLE:\n"
        + table(names, lambda *_: "ENABLED", "ENABLED")
        + "\nWEIGHT TABLE:\n"
        + table(names, lambda a, b: weight(machine.link(a, b)), "0")
        + "\nHOPS TABLE:\n"
        + table(names, lambda *_: 1, "0")
        + "\nLINK TYPE TABLE:\n"
        + table(names, lambda a, b: kind(machine.link(a, b)), "SELF")
        + "\nNUMA BW TABLE:\n"
        + table(names, speed, "N/A")
        + "\nDMA TABLE:\n"
        + table(names, lambda *_: "T", "SELF")
    )


def rccl(machine: Machine) -> str:
    """Each GPU below a switch of its own, with a network card."""
    parts = ['<system version="2">\n']
    for a, gpu in enumerate(machine.gpus):
        parts.append(
            f'  <cpu numaid="{gpu.numa_node}" affinity="0000ffff" arch="x86_64">\n'
            f'    <pci busid="0000:{a:x}0:00.0" class="0x060400" vendor="0x1000">\n'
            f'      <pci busid="{gpu.pci_bus_id}" class="0x038000" vendor="0x1002">\n'
            f'        <gpu dev="{gpu.index}" sm="104" gcn="910" rank="{a}" gdr="1">\n'
        )
        parts += [
            f'          <xgmi target="{machine.gpus[b].pci_bus_id}" count="{links}"/>\n'
            for b in range(len(machine.gpus))
            if a != b and (links := machine.link(a, b).nvlinks)
        ]
        parts.append(
            "        </gpu>\n      </pci>\n"
            f'      <pci busid="0000:{a:x}1:00.0" class="0x020000" vendor="0x15b3">\n'
            f'        <nic><net name="mlx5_{a}" speed="200000" port="1" gdr="1"/></nic>\n'
            "      </pci>\n    </pci>\n"
            '    <nic><net name="docker0" speed="10000"/></nic>\n  </cpu>\n'
        )
    return "".join(parts) + "</system>\n"
