"""Finds the machines of nodes on which no Linkwise plugin has published one.

A node gives its GPUs' model and number in the labels of NVIDIA's GPU feature discovery. If all
recorded machines of that model and number have the same values, one of them stands for the node.
Otherwise the operator names the machine, or the node is left out.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import numpy as np

from linkwise.cli.choose.machine_source import read_machine
from linkwise.cli.errors import BadInputError
from linkwise.kube.objects import Node, whole
from linkwise.topology import names
from linkwise.topology.annotations.labels import GFD_PREFIX, node_labels
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.hardware import facts_of
from linkwise.topology.machine.model import Gpu, Machine
from linkwise.topology.machine.recorded import machine_names, recorded_machine, records
from linkwise.topology.machine.topo_matrix import made_up_uuid
from linkwise.topology.sets.tables import table_of

PRODUCT, COUNT = GFD_PREFIX + "gpu.product", GFD_PREFIX + "gpu.count"
REPLICAS, STRATEGY = GFD_PREFIX + "gpu.replicas", GFD_PREFIX + "mig.strategy"
_NOT_REAL = frozenset({"mock", "fixture"})
change = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class Assumption:
    """The operator's statement: nodes with these labels are such machines."""

    said: str
    labels: Mapping[str, str | None]  # None: the label exists, with any value
    name: str
    machine: Machine

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
            f"{PRODUCT}=NVIDIA-A100-SXM4-40GB=dgx-a100"
        )
    return Assumption(said, labels, source, read_machine(source, None, option="--assume").machine)


def know_machines(nodes: Sequence[Node], assumed: Sequence[Assumption], resource: str) -> Known:
    """Find every node's machine. Raises BadInputError for an impossible assumption."""
    known: list[Node] = []
    guesses: dict[tuple[str, str], list[str]] = defaultdict(list)
    left_out: dict[str, list[str]] = defaultdict(list)
    used: set[str] = set()
    for node in nodes:
        offered = _offered(node, resource)
        if names.TOPOLOGY in node.metadata.annotations or not (
            offered or PRODUCT in node.metadata.labels
        ):
            known.append(node)
            continue
        assumption = next((each for each in assumed if each.holds_for(node)), None)
        if assumption is not None:
            used.add(assumption.said)
            _check(assumption, node, offered)
            found: tuple[str, Machine] | str = (assumption.name, assumption.machine)
            because = f"--assume {assumption.said}"
        else:
            found = _guess(node, offered)
            because = f"{PRODUCT}={node.metadata.labels.get(PRODUCT)}, {offered} GPUs"
        if isinstance(found, str):
            left_out[found].append(node.metadata.name)
            known.append(node)
        else:
            guesses[found[0], because].append(node.metadata.name)
            known.append(_with_topology(node, *found))
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


def _offered(node: Node, resource: str) -> int:
    """Return the number that the kubelet reports, healthy or not; without one, the label's."""
    for text in (node.status.capacity.get(resource), node.status.allocatable.get(resource)):
        try:
            if text is not None and whole(text) > 0:
                return whole(text)
        except ValueError:
            return 0
    return 0


def _check(assumption: Assumption, node: Node, offered: int) -> None:
    have = len(assumption.machine.gpus)
    if offered and offered != have:
        raise BadInputError(
            f"--assume {assumption.said}: node {node.metadata.name} has {offered} GPUs, "
            f"{assumption.name} has {have}"
        )


def _guess(node: Node, offered: int) -> tuple[str, Machine] | str:
    """Return a machine and its name, or why there is none."""
    labels = node.metadata.labels
    product, said = labels.get(PRODUCT, ""), labels.get(COUNT, "")
    if not product:
        return f"no label {PRODUCT} and no topology annotation: --assume SELECTOR=MACHINE"
    if not offered:
        return "its kubelet offers no GPUs"
    if product.endswith("-SHARED") or labels.get(REPLICAS, "1") not in ("0", "1"):
        return "its GPUs are shared (time slicing or MPS)"
    if "-MIG-" in product or (said.isdigit() and int(said) != offered):
        return f"it offers {offered} GPUs and {COUNT} says {said or 'nothing'} (MIG?)"
    if offered == 1:
        return _single(product)
    found = _recorded(product, offered)
    if not found:
        return f"no recorded machine has {offered} x {product}: --assume SELECTOR=MACHINE"
    if len(found) > 1:
        several = ", ".join(found)
        return f"{offered} x {product} may be {several}: --assume SELECTOR=MACHINE"
    return found[0], recorded_machine(found[0])


@cache
def _recorded(product: str, count: int) -> tuple[str, ...]:
    """Return one machine for each distinct set of values with such labels."""
    found: list[str] = []
    for name in machine_names():
        machine = recorded_machine(name)
        labels = node_labels(machine)
        if (
            records()[name].kind not in _NOT_REAL
            and labels.get(PRODUCT) == product
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


def _single(product: str) -> tuple[str, Machine]:
    """Return a single GPU's machine, which has no links to know."""
    model = product.replace("-", " ")
    facts = facts_of(model)
    gpu = Gpu(
        "GPU-one", 0, model, facts.memory_mib or 0, compute_capability=facts.compute_capability
    )
    return "one GPU", Machine(gpus=(gpu,), links=())


def _with_topology(node: Node, name: str, machine: Machine) -> Node:
    meta = node.metadata
    gpus = tuple(
        replace(gpu, uuid=made_up_uuid(meta.name, name, gpu.index)) for gpu in machine.gpus
    )
    # The model does not say which other machines a machine shares a fabric with.
    clique = meta.labels.get(GFD_PREFIX + "gpu.clique")
    text = write_topology(replace(machine, gpus=gpus, clique=clique or None))
    return change(
        node, metadata=change(meta, annotations={**meta.annotations, names.TOPOLOGY: text})
    )
