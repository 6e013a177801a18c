"""The nodes for the replay of the past: those of the listing, idle, healthy and in service.

The listing does not say which of them were cordoned, unhealthy or absent in the past.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from linkwise.cli.what_if.given.machines import Known, LeftOut
from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.place.communicator import Share, estimate
from linkwise.extender.place.nodes.reasons import why_closed_exactly
from linkwise.extender.show.explain.snapshot import NodeState
from linkwise.extender.show.explain.worth_view import domain_of, levels_of
from linkwise.kube.filters.taints import lasting
from linkwise.kube.objects import Condition, Node, NodeSpec, NodeStatus, Quantity
from linkwise.replay.jobs import OnNode
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology, write_topology
from linkwise.topology.errors import AnnotationError
from linkwise.topology.machine.model import Machine
from linkwise.topology.vendors.known import resource_of_machine

change = msgspec.structs.replace


@dataclass(frozen=True)
class Ground:
    """`OnNode.node` is the index of a node in `nodes`."""

    nodes: tuple[tuple[Node, Machine], ...]
    states: tuple[NodeState, ...]
    levels: tuple[str, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def gpus(self) -> int:
        return sum(len(machine.gpus) for _, machine in self.nodes)

    def worth(self, parts: Sequence[OnNode]) -> float:
        """Return the extender's estimate of an all-reduce over these two or more GPUs, in GB/s."""
        return estimate([self._share(part) for part in parts], self.levels).together

    def _share(self, part: OnNode) -> Share:
        state = self.states[part.node]
        assert state.kind is not None, "it has a machine"
        domains = tuple(domain_of(state, level) for level in self.levels)
        return Share(state.kind, part.gpus, domains)


def ground_of(known: Known, settings: CoreSettings) -> Ground:
    idle = {}
    left_out: dict[str, list[str]] = {}
    for node in known.nodes:
        text = node.metadata.annotations.get(names.TOPOLOGY)
        if text is None:
            continue  # no GPUs, or `known.left_out` says why
        try:
            machine = read_topology(text)
        except AnnotationError as error:
            left_out.setdefault(str(error), []).append(node.metadata.name)
            continue
        idle[node.metadata.name] = _idle(node, machine, settings.resource_names)
    core = Core(settings)
    core.replace_nodes([node for node, _ in idle.values()], 0.0)
    snapshot = core.snapshot(0.0)
    usable = [state for state in snapshot.nodes if state.kind is not None and not state.closed]
    for state in snapshot.nodes:
        if state not in usable:
            left_out.setdefault(why_closed_exactly(state.closed), []).append(state.name)
    return Ground(
        tuple(idle[state.name] for state in usable),
        tuple(usable),
        levels_of(snapshot),
        tuple(LeftOut(because, tuple(those)) for because, those in left_out.items()),
    )


def _idle(node: Node, seen: Machine, resources: tuple[str, ...]) -> tuple[Node, Machine]:
    machine = replace(seen, gpus=tuple(replace(gpu, healthy=True) for gpu in seen.gpus))
    offers: dict[str, Quantity] = {
        "cpu": "1000",
        "memory": "1Pi",
        "pods": "1000",
        resource_of_machine(machine, resources): len(machine.gpus),
    }
    return change(
        node,
        metadata=change(node.metadata, annotations={names.TOPOLOGY: write_topology(machine)}),
        spec=NodeSpec(taints=lasting(node.spec.taints)),
        status=NodeStatus(
            capacity=dict(offers),
            allocatable=dict(offers),
            conditions=(Condition(type="Ready", status="True"),),
        ),
    ), machine
