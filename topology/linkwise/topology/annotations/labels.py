"""Labels of a Node, for a nodeSelector about its machine (docs/annotations.md).

Linkwise's own are below `linkwise.dev/`. On a node with several GPU models they are `mixed` and the
least memory, which every GPU has. Those of the vendor are below the vendor's prefix (`vendors/`).
"""

import re
from collections.abc import Callable

from linkwise.topology.machine.model import Link, LinkClass, Machine
from linkwise.topology.names import PREFIX
from linkwise.topology.vendors.known import vendor_of

MIXED = "mixed"
LONGEST = 63  # Kubernetes' limit on a label value

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_. -]")


def node_labels(machine: Machine) -> dict[str, str]:
    """Return every label of the machine, without unknown ones. All values are legal."""
    labels = {PREFIX + name: value for name, value in _own_labels(machine).items()}
    vendor = vendor_of(machine)
    labels |= {vendor.label_prefix + name: value for name, value in vendor.labels(machine).items()}
    return {name: label_value(value) for name, value in labels.items()}


def label_value(text: str) -> str:
    """Turn *text* into a label value as GFD does (spaces to `-`, illegal characters removed), cut
    to 63 characters that begin and end with a letter or digit."""
    words = _NOT_ALLOWED.sub("", text).split()
    return "-".join(words).lstrip("-_.")[:LONGEST].rstrip("-_.")


def _own_labels(machine: Machine) -> dict[str, str]:
    models = {gpu.model for gpu in machine.gpus}
    memory = min(gpu.memory_mib for gpu in machine.gpus)
    numa_nodes = {node for gpu in machine.gpus for node in gpu.numa_nodes if node >= 0}
    labels = {
        "gpu.count": str(len(machine.gpus)),
        "gpu.model": models.pop() if len(models) == 1 else MIXED,
        "nvlink": nvlink_kind(machine),
        "nvlink.island": str(max(_group_sizes(machine, lambda link: link.nvlinks > 0))),
        "pcie.switches": str(pcie_switches(machine)),
    }
    if memory:
        labels["gpu.memory"] = str(memory)
    if numa_nodes:
        labels["numa.nodes"] = str(len(numa_nodes))
    if machine.clique:
        labels["clique"] = machine.clique
    return labels


def nvlink_kind(machine: Machine) -> str:
    """Return `none`; `NV12`, links of each joined pair; `NV1-2`, fewest and most; `NV18-switch`."""
    joined = [link for link in machine.links if link.nvlinks]
    if not joined:
        return "none"
    fewest, most = min(link.nvlinks for link in joined), max(link.nvlinks for link in joined)
    count = str(most) if fewest == most else f"{fewest}-{most}"
    switch = "-switch" if all(link.through_switch for link in joined) else ""
    return f"{vendor_of(machine).link_prefix}{count}{switch}"


def pcie_switches(machine: Machine) -> int:
    """Count the PCIe switches that join GPUs; one with a single GPU below is invisible."""
    sizes = _group_sizes(machine, lambda link: link.pcie >= LinkClass.PXB)
    return sum(size > 1 for size in sizes)


def _group_sizes(machine: Machine, joins: Callable[[Link], bool]) -> list[int]:
    """Return the sizes of the groups of GPUs that such links join, directly or in a chain."""
    group = list(range(len(machine.gpus)))  # GPU -> the lowest GPU of its group
    for first, second, link in machine.pairs():
        if joins(link):
            low, high = sorted((group[first], group[second]))
            group = [low if member == high else member for member in group]
    return [group.count(member) for member in set(group)]
