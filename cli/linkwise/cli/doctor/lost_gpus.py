"""GPUs that a node has, and does not offer.

A GPU that goes out while the plugin runs stays in the node's topology. One that was gone before
the driver started is in no list of its own node: only machines with the same model show it.
"""

from collections.abc import Iterator, Sequence

from linkwise.cli.doctor.claims import GpuDriver
from linkwise.cli.doctor.facts import IN_FRONT, OBSERVES, Facts, SeenPod, amount_of, machine_on
from linkwise.cli.doctor.finding import Finding, note, problem
from linkwise.kube.objects import Node
from linkwise.topology.machine.model import Machine
from linkwise.topology.vendors.known import vendor_of

_COUNTS = ("linkwise.dev/gpu.count", "nvidia.com/gpu.count")  # labels, ours and GFD's
_PAGE = "docs/health.md"


class LostGpus:
    def __init__(self, facts: Facts) -> None:
        self._resource_on = facts.resource_on
        self._machines = {node.metadata.name: machine_on(node) for node in facts.nodes}
        self._largest: dict[frozenset[str], tuple[int, str]] = {}  # by models: GPUs, node
        for name, machine in self._machines.items():
            if machine is not None:
                before = self._largest.setdefault(_models(machine), (0, name))
                self._largest[_models(machine)] = max(before, (len(machine.gpus), name))

    def of(
        self, node: Node, plugin: SeenPod | None, drivers: Sequence[GpuDriver]
    ) -> Iterator[Finding]:
        """*drivers* are those that give out its GPUs to claims."""
        offered, has = (
            amount_of(amounts, self._resource_on(node))
            for amounts in (node.status.allocatable, node.status.capacity)
        )
        waits = plugin is not None and not plugin.ready
        if drivers or waits or not (offered or plugin):
            return  # another finding says so
        machine = self._machines[node.metadata.name]
        if plugin is None or plugin.mode == OBSERVES or _is_divided(machine):
            machine = None  # a vendor's plugin may offer its GPUs under other names
        if machine is not None and plugin is not None and plugin.mode == IN_FRONT:
            yield from _of_unread(has, len(machine.gpus))
        if machine is not None:
            counts = (amount_of(node.metadata.labels, label) for label in _COUNTS)
            has = max(has, len(machine.gpus), *counts)
        if offered < has:
            out = [str(gpu.index) for gpu in machine.gpus if not gpu.healthy] if machine else []
            which = f" (out: {', '.join(out)})" if out else ""
            yield problem(
                f"it offers {offered} of its {has} GPUs{which}",
                "read why in the log of its plugin pod, or in its metric device_unhealthy",
                _PAGE,
                passing=True,
            )
        elif machine is not None and offered & (offered - 1):  # machines have 1, 2, 4, 8 or 16
            most, other = self._largest[_models(machine)]
            if most > len(machine.gpus):
                what = f"it offers {offered} GPUs, where {other} has {most} of the same model"
                lspci = f"lspci -d {vendor_of(machine).pci_vendor}:"
                todo = f"nothing, if that is meant; else count them there: `{lspci}`"
                yield note(what, todo, f"{_PAGE}#what-stays-known")


def _of_unread(listed: int, read: int) -> Iterator[Finding]:
    if listed > read:
        yield note(
            f"the vendor's plugin lists {listed} devices, and Linkwise has read {read} GPUs: no "
            f"plan names the {'other' if listed - read == 1 else f'other {listed - read}'}",
            "read in the log of Linkwise's plugin pod which GPUs are left out, and why",
            "docs/in-front.md",
        )


def _is_divided(machine: Machine | None) -> bool:
    return machine is not None and any(gpu.parts is not None for gpu in machine.gpus)


def _models(machine: Machine) -> frozenset[str]:
    return frozenset(gpu.model for gpu in machine.gpus)
