"""GPUs of whose PCIe lanes some are not up: the card or its slot, not the cluster, has to be seen
to."""

from collections.abc import Iterator

from linkwise.cli.doctor.facts import machine_on
from linkwise.cli.doctor.finding import Finding, note
from linkwise.kube.objects import Node


def of_pcie_lanes(node: Node) -> Iterator[Finding]:
    machine = machine_on(node)
    narrow: dict[str, list[str]] = {}
    for gpu in machine.gpus if machine else ():
        if gpu.pcie_lanes < gpu.most_pcie_lanes:
            lanes = f"{gpu.pcie_lanes} of {gpu.most_pcie_lanes} PCIe lanes"
            narrow.setdefault(lanes, []).append(str(gpu.index))
    for lanes, gpus in narrow.items():
        whose = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}"
        todo = "drain the node, reseat the card or its riser, and restart"
        yield note(f"{whose}: {lanes} are up", todo, "docs/topology.md#pcie-lanes")
