"""The GPUs that pods had: by their plan or the plugin, else presumed.

If neither says it, NVIDIA's device plugin is assumed to have chosen, from the GPUs that were free
on the node when the pod came.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from linkwise.cli.what_if.past.ground import Ground
from linkwise.cli.what_if.past.lives import Life
from linkwise.kube.objects import Node
from linkwise.replay.jobs import OnNode
from linkwise.topology import names
from linkwise.topology.annotations.plan import (
    ContainerGpus,
    InUse,
    held_of,
    read_gpus,
    read_in_use,
    read_plan,
)
from linkwise.topology.errors import AnnotationError
from linkwise.topology.machine.model import Machine
from linkwise.topology.sets.partition import choose_partition


@dataclass(frozen=True, slots=True)
class Had:
    part: OnNode
    presumed: bool


def what_they_had(lives: Iterable[Life], listed: Iterable[Node], ground: Ground) -> dict[str, Had]:
    """Return each pod's GPUs by uid. A pod is missing if its node is, or if the node was too full.
    *listed* are the nodes as listed."""
    numbers = {node.metadata.name: number for number, (node, _) in enumerate(ground.nodes)}
    in_use = {node.metadata.name: _in_use(node) for node in listed}
    there: dict[str, list[Life]] = defaultdict(list)
    for life in lives:
        if life.bound is not None and life.pod.spec.node_name in numbers:
            there[life.pod.spec.node_name].append(life)
    found: dict[str, Had] = {}
    for node, on_it in there.items():
        machine = ground.nodes[numbers[node]][1]
        for uid, gpus, presumed in _on_one(on_it, machine, in_use[node]):
            found[uid] = Had(OnNode(numbers[node], gpus), presumed)
    return found


def _on_one(lives: list[Life], machine: Machine, in_use: InUse) -> list[tuple[str, int, bool]]:
    said = {life.pod.metadata.uid: _said(life, machine, in_use) for life in lives}
    found: list[tuple[str, int, bool]] = []
    given: list[tuple[Life, int]] = [
        (life, gpus) for life in lives if (gpus := said[life.pod.metadata.uid])
    ]
    for life in sorted(lives, key=lambda life: (life.bound or 0.0, life.created, life.key)):
        uid = life.pod.metadata.uid
        gpus = said[uid]
        if not gpus:
            taken = 0
            for other, its in given:
                taken |= its if _overlap(life, other) else 0
            gpus = choose_partition(machine, machine.all_gpus & ~taken, life.gpus) or 0
            if not gpus:
                continue
            given.append((life, gpus))
        found.append((uid, gpus, not said[uid]))
    return found


def _overlap(one: Life, other: Life) -> bool:
    never = float("inf")
    ends = (never if life.ended is None else life.ended for life in (one, other))
    my_end, its_end = ends
    return (one.bound or 0.0) < its_end and (other.bound or 0.0) < my_end


def _said(life: Life, machine: Machine, in_use: InUse) -> int:
    """Return the stated GPUs; 0 if they are not stated, or not of this machine."""
    planned = _planned(life)
    runs = life.ended is None and life.key in in_use.pods
    containers = held_of(in_use.pods, life.key, planned) if runs else planned
    gpus = machine.mask_of(frozenset().union(*containers.values()))
    return gpus if gpus.bit_count() == life.gpus else 0


def _planned(life: Life) -> ContainerGpus:
    meta = life.pod.metadata
    try:
        plan = read_plan(meta.annotations.get(names.PLAN, ""))
        if plan.uid not in ("", meta.uid) or plan.node != life.pod.spec.node_name:
            return {}
        return read_gpus(meta.annotations.get(names.GPUS, ""))
    except AnnotationError:
        return {}


def _in_use(node: Node) -> InUse:
    try:
        return read_in_use(node.metadata.annotations.get(names.IN_USE, ""))
    except AnnotationError:
        return InUse()
