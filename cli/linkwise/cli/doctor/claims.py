"""What DRA drivers publish on each node, and what is wrong with it.

A node's GPUs come from a device plugin or from claims, never from both: neither knows what the
other has given out.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from linkwise.cli.doctor.facts import Facts, amount_of, machine_on
from linkwise.cli.doctor.finding import Finding, note, problem
from linkwise.drawing.words import some
from linkwise.kube.device_claims import uuid_of
from linkwise.kube.objects import Node

_PAGE = "claims.md"
BOTH = f"{_PAGE}#one-of-the-two"


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """A DRA driver on one node that gives out GPUs, as far as its name or its UUIDs tell."""

    name: str
    devices: int
    uuids: frozenset[str]


def drivers_on(facts: Facts) -> Mapping[str, list[GpuDriver]]:
    """By node, the drivers that give out its GPUs."""
    found: dict[str, dict[str, GpuDriver]] = {}
    gpus = {node.metadata.name: _gpus_of(node) or () for node in facts.nodes}
    for each in facts.slices:
        name, node = each.spec.driver, each.spec.node_name
        if not node:
            continue
        before = found.setdefault(node, {}).get(name, GpuDriver(name, 0, frozenset()))
        uuids = {uuid for device in each.spec.devices if (uuid := uuid_of(device, name))}
        devices = before.devices + len(each.spec.devices)
        found[node][name] = GpuDriver(name, devices, before.uuids | uuids)
    expected = {f"gpu.{each.partition('/')[0]}" for each in facts.resources}
    return {
        node: those
        for node, by_name in found.items()
        if (
            those := [
                driver
                for driver in by_name.values()
                if driver.name in expected or driver.uuids & frozenset(gpus.get(node, ()))
            ]
        )
    }


def of_claims(facts: Facts, node: Node, drivers: Collection[GpuDriver]) -> Iterator[Finding]:
    """*drivers* are those that give out the node's GPUs."""
    known = _gpus_of(node)
    for driver in drivers:
        if amount_of(node.status.allocatable, facts.resource_on(node)):
            yield problem(
                f"two give out its GPUs: a device plugin and the DRA driver {driver.name}",
                "keep one of the two there",
                BOTH,
            )
        else:
            what = f"its GPUs come from claims, by the DRA driver {driver.name}"
            todo = (
                "nothing: Linkwise shows them, and plans pods there if its webhook has "
                "--gpus-from-claims"
            )
            yield note(what, todo, _PAGE)
        if driver.devices and not driver.uuids:
            yield problem(
                f"the DRA driver {driver.name} publishes no uuid of its devices",
                "use a version of the driver that does: Linkwise knows GPUs by it",
                f"{_PAGE}#what-the-driver-must-publish",
            )
        missing = sorted(driver.uuids - known) if known is not None else []
        if missing:
            yield problem(
                f"the DRA driver {driver.name} publishes {some(missing, 1)}, "
                "and the topology lacks it",
                "read the log of Linkwise's plugin pod; restart the one that is out of date",
                f"{_PAGE}#what-the-driver-must-publish",
            )


def _gpus_of(node: Node) -> frozenset[str] | None:
    """The UUIDs in the topology annotation; None: there is none that can be read."""
    machine = machine_on(node)
    return None if machine is None else frozenset(gpu.uuid for gpu in machine.gpus)
