"""Finds the machines of nodes on which no Linkwise plugin has published one.

The labels of the vendor's own program give the GPUs' model, the kubelet their number. If all
recorded machines of that model and number have the same values, one of them stands for the node.
GPUs on a board with NVSwitches need no record: all sets of one size are equal. A cloud's
instance type may name the machine too. Otherwise the operator names it, or the node is left out.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import msgspec
import numpy as np

from linkwise.cli.choose.machine_source import read_machine
from linkwise.cli.errors import BadInputError
from linkwise.extender.state.cache.resources import resource_on
from linkwise.kube.objects import Node, whole
from linkwise.topology import names
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.hardware import facts_of, facts_of_gpu
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from linkwise.topology.machine.prints import NO_NVLINKS
from linkwise.topology.machine.recorded import machine_names, recorded_machine, records
from linkwise.topology.machine.topo_matrix import (
    UNKNOWN_MODEL,
    lacks_nvlinks,
    made_up_uuid,
    of_model,
)
from linkwise.topology.sets.tables import table_of
from linkwise.topology.vendors.known import vendor_of_resource
from linkwise.topology.vendors.nvidia import NVIDIA
from linkwise.topology.vendors.vendor import UNKNOWN, Vendor

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_NOT_REAL = frozenset({"mock", "fixture"})
# GPUs of a board that all reach NVSwitches, by NVML's names: HGX and DGX from A100 on, and trays of
# GB200 NVL72. Boards of four without Grace have no NVSwitch, or are a part of one of eight.
_BOARDS = (
    (8, re.compile(r"\b(?:A[18]00.SXM|H[128]00\b|H20\b|B[123]00\b)", re.IGNORECASE)),
    (4, re.compile(r"\bGB[23]00\b", re.IGNORECASE)),
)
_IN_A_SLOT = re.compile(r"PCIe|NVL", re.IGNORECASE)
_CLOUDS: dict[str, str] = {  # instance type -> recorded machine, where its own name is another
    "p3dn.24xlarge": "p3.16xlarge",
    "Standard_ND40rs_v2": "azure-ndv2",
    "Standard_ND96asr_v4": "azure-ndv4",
    "Standard_ND96isr_H100_v5": "azure-ndv5",
    "a3-ultragpu-8g": "a3-ultra-h200",
}
change = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class Assumption:
    """The operator's statement: nodes with these labels are such machines."""

    said: str
    labels: Mapping[str, str | None]  # None: the label exists, with any value
    name: str
    machine: Machine
    caveat: str  # what to know of the machine before its GB/s are believed: without a subject

    @property
    def is_printed(self) -> bool:
        """Whether the machine is of a table, which says no models."""
        return all(gpu.model == UNKNOWN_MODEL for gpu in self.machine.gpus)

    def because(self, machine: Machine) -> str:
        """Say why a node is *machine*, which has the model of the node's label, and what to know of
        it. A table without NVLinks needs no more words if that model has none."""
        said = f"--assume {self.said}"
        if self.caveat and (self.caveat != NO_NVLINKS or lacks_nvlinks(machine)):
            said += f"; it {self.caveat}"
        if self.is_printed and any(facts_of_gpu(gpu) is UNKNOWN for gpu in machine.gpus):
            said += "; its model is not known, and counts as the slowest"
        return said

    def holds_for(self, node: Node) -> bool:
        labels = node.metadata.labels
        return all(
            key in labels and value in (None, labels[key]) for key, value in self.labels.items()
        )


@dataclass(frozen=True, slots=True)
class Guess:
    """Nodes whose machine is assumed, although they do not name it."""

    machine: str
    because: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    because: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Known:
    nodes: tuple[Node, ...]  # all nodes, with a topology if it is known or assumed
    guesses: tuple[Guess, ...]
    left_out: tuple[LeftOut, ...]


def read_assumption(said: str) -> Assumption:
    """Read `key=value,key2=MACHINE`; the last `=` separates. Raises BadInputError."""
    selector, sign, source = said.rpartition("=")
    labels: dict[str, str | None] = {}
    for part in selector.split(","):
        key, equals, value = part.strip().partition("=")
        value = value.removeprefix("=")
        if not key or (equals and not value) or key.endswith("!"):
            sign = ""
        labels[key] = value if equals else None
    if not sign or not source:
        raise BadInputError(
            f"--assume {said}: expected SELECTOR=MACHINE, like "
            f"{NVIDIA.product_label}=NVIDIA-A100-SXM4-40GB=dgx-a100"
        )
    named = read_machine(source, None, option="--assume")
    return Assumption(said, labels, source, named.machine, named.caveat)


def know_machines(
    nodes: Sequence[Node], assumed: Sequence[Assumption], resources: Sequence[str]
) -> Known:
    """Find every node's machine. Raises BadInputError for an impossible assumption."""
    known: list[Node] = []
    guesses: dict[tuple[str, str], list[str]] = defaultdict(list)
    left_out: dict[str, list[str]] = defaultdict(list)
    used: set[str] = set()
    for node in nodes:
        resource = resource_on(node, resources)
        offered = _offered(node, resource)
        vendor = _vendor_on(node, (resource, *resources))
        if names.TOPOLOGY in node.metadata.annotations or not (
            offered or vendor.product_label in node.metadata.labels
        ):
            known.append(node)
            continue
        assumption = next((each for each in assumed if each.holds_for(node)), None)
        if assumption is not None:
            used.add(assumption.said)
            _check(assumption, node, offered)
            machine = _as_labelled(assumption, vendor.labelled_model(node.metadata.labels))
            found: tuple[str, Machine] | str = (assumption.name, machine)
            because = assumption.because(machine)
        else:
            found = _guess(node, vendor, offered)
            because = _because(node, vendor, offered)
        if isinstance(found, str):
            left_out[found].append(node.metadata.name)
            known.append(node)
        else:
            guesses[found[0], because].append(node.metadata.name)
            known.append(_with_topology(node, *found, resource))
    for each in assumed:
        if each.said not in used:
            raise BadInputError(
                f"--assume {each.said}: no node without a topology annotation has such labels"
            )
    return Known(
        tuple(known),
        tuple(Guess(name, because, tuple(those)) for (name, because), those in guesses.items()),
        tuple(LeftOut(because, tuple(those)) for because, those in left_out.items()),
    )


def _vendor_on(node: Node, resources: Sequence[str]) -> Vendor:
    """Return the vendor whose label the node has; without one, that of the first resource."""
    vendors = [vendor_of_resource(resource) or NVIDIA for resource in resources]
    labelled = (each for each in vendors if each.product_label in node.metadata.labels)
    return next(labelled, vendors[0])


def _offered(node: Node, resource: str) -> int:
    """Return the number that the kubelet reports, healthy or not; without one, the label's."""
    for text in (node.status.capacity.get(resource), node.status.allocatable.get(resource)):
        try:
            if text is not None and whole(text) > 0:
                return whole(text)
        except ValueError:
            return 0
    return 0


def _healthy(node: Node, resource: str, gpus: int) -> int:
    """Return how many of the GPUs the kubelet offers; all if it does not say."""
    text = node.status.allocatable.get(resource)
    try:
        return gpus if text is None else whole(text)
    except ValueError:
        return gpus


def _check(assumption: Assumption, node: Node, offered: int) -> None:
    have = len(assumption.machine.gpus)
    if offered and offered != have:
        raise BadInputError(
            f"--assume {assumption.said}: node {node.metadata.name} has {offered} GPUs, "
            f"{assumption.name} has {have}"
        )


def _guess(node: Node, vendor: Vendor, offered: int) -> tuple[str, Machine] | str:
    """Return a machine and its name, or why there is none."""
    labels = node.metadata.labels
    product, model = labels.get(vendor.product_label, ""), vendor.labelled_model(labels)
    of_cloud = _of_cloud(labels.get(INSTANCE_TYPE, ""), model, offered)
    if not product:
        why = (
            f"no label {vendor.product_label} and no topology annotation: --assume SELECTOR=MACHINE"
            " (`linkwise machines` lists them)"
        )
        return of_cloud or why
    if not offered:
        return "its kubelet offers no GPUs"
    if why := vendor.not_whole(labels, offered):
        return why
    if offered == 1:
        return _single(model, vendor)
    found = _recorded(vendor.product_label, product, offered)
    if len(found) == 1:
        return found[0], recorded_machine(found[0])
    if of_cloud is not None:
        return of_cloud
    boards = (count == offered and on_it.search(model) for count, on_it in _BOARDS)
    if any(boards) and not _IN_A_SLOT.search(model):
        return "a board with NVSwitches", _board(model, offered)
    if not found:
        return f"no recorded machine has {offered} x {product}: --assume SELECTOR=MACHINE"
    several = ", ".join(found)
    return f"{offered} x {product} may be {several}: --assume SELECTOR=MACHINE"


def _because(node: Node, vendor: Vendor, offered: int) -> str:
    labels = node.metadata.labels
    key = vendor.product_label if vendor.product_label in labels else INSTANCE_TYPE
    return f"{key}={labels.get(key)}, {offered} GPUs"


def _of_cloud(instance_type: str, model: str, offered: int) -> tuple[str, Machine] | None:
    """Return the recorded machine of a cloud's instance type, unless its GPUs are others."""
    name = _CLOUDS.get(instance_type, instance_type)
    if name not in machine_names():
        return None
    machine = recorded_machine(name)
    same = not model or facts_of(model).family == facts_of(machine.gpus[0].model).family
    return (name, machine) if same and len(machine.gpus) == offered else None


def _board(model: str, count: int) -> Machine:
    """Return GPUs that all reach NVSwitches, one half of them on each of two sockets."""
    facts = facts_of(model)
    gpus = tuple(
        Gpu(
            f"GPU-{number}",
            number,
            model,
            facts.memory_mib or 0,
            numa_nodes=(number * 2 // count,),
            compute_capability=facts.compute_capability,
        )
        for number in range(count)
    )
    links = (
        Link(
            LinkClass.NODE if one.numa_nodes == other.numa_nodes else LinkClass.SYS,
            facts.nvlinks,
            through_switch=True,
        )
        for one, other in combinations(gpus, 2)
    )
    return Machine(gpus=gpus, links=tuple(links))


def _as_labelled(assumption: Assumption, model: str) -> Machine:
    """Return the machine with the *model* that the node's label says, if a table does not say
    it."""
    machine = assumption.machine
    return of_model(machine, model) if model and assumption.is_printed else machine


@cache
def _recorded(label: str, product: str, count: int) -> tuple[str, ...]:
    """Return one machine for each distinct set of values with such labels."""
    found: list[str] = []
    for name in machine_names():
        machine = recorded_machine(name)
        labels = node_labels(machine)
        if (
            records()[name].kind not in _NOT_REAL
            and labels.get(label) == product
            and len(machine.gpus) == count
            and not any(_worth_the_same(machine, recorded_machine(other)) for other in found)
        ):
            found.append(name)
    return tuple(found)


def _worth_the_same(one: Machine, other: Machine) -> bool:
    mine, its = table_of(one), table_of(other)
    return np.array_equal(mine.values, its.values) and np.array_equal(
        mine.ring_classes, its.ring_classes
    )


def _single(model: str, vendor: Vendor) -> tuple[str, Machine]:
    """Return a single GPU's machine, which has no links to know."""
    facts = facts_of(model)
    gpu = Gpu(
        "GPU-one", 0, model, facts.memory_mib or 0, compute_capability=facts.compute_capability
    )
    return "one GPU", Machine(gpus=(gpu,), links=(), vendor=vendor.name)


def _with_topology(node: Node, name: str, machine: Machine, resource: str) -> Node:
    """Write the machine on the node. Which GPUs are unhealthy is not known: the last ones count
    as such, as many as the kubelet does not offer."""
    meta = node.metadata
    healthy = _healthy(node, resource, len(machine.gpus))
    gpus = tuple(
        replace(gpu, uuid=made_up_uuid(meta.name, name, gpu.index), healthy=place < healthy)
        for place, gpu in enumerate(machine.gpus)
    )
    # The model does not say which other machines a machine shares a fabric with.
    clique = meta.labels.get(NVIDIA.label_prefix + "gpu.clique")
    text = write_topology(replace(machine, gpus=gpus, clique=clique or None))
    return change(
        node, metadata=change(meta, annotations={**meta.annotations, names.TOPOLOGY: text})
    )
