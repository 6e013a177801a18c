"""Builds a report from the recorded pods: workloads, places, and what their GPUs are worth.

Pods with the same `linkwise.dev/gang` form one workload, else pods of one manifest (of a
LeaderWorkerSet, of one group), else each pod alone.
Pod names end in random letters, so a pod and its counterpart in a draw of the baseline are matched
by workload and member. Pure.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from linkwise.kube.filters.requests import pod_requests
from linkwise.kube.labels import COMPLETION_INDEX, LWS
from linkwise.kube.objects import Pod, whole
from linkwise.pods.annotations import resource_of
from linkwise.simulator.report.model import (
    GangSeen,
    MovedPod,
    NodeReport,
    PodPlace,
    PodReport,
    Report,
    Rival,
    SeenPod,
    WaitingMember,
    WorkloadReport,
    faults,
    letters,
)
from linkwise.simulator.report.pod_recorder import Sighting
from linkwise.topology import names
from linkwise.topology.machine.model import Machine
from linkwise.topology.sets.bandwidth import bandwidth, ring_class
from linkwise.topology.sets.network import network_gbytes_per_s
from linkwise.topology.vendors.known import RESOURCES, vendor_of

Held = Mapping[str, Mapping[str, tuple[str, ...]]]
"""namespace/name -> container -> GPU uuids, as the kubelets list them."""


def takes_gpus(pod: Pod) -> bool:
    return any(_wanted(pod).values())


def _wanted(pod: Pod) -> dict[str, int]:
    """Return container -> GPUs that it requests."""
    resource = resource_of(pod, RESOURCES)
    return {
        c.name: whole((c.resources.requests | c.resources.limits).get(resource, 0))
        for c in (*pod.spec.init_containers, *pod.spec.containers)
    }


def seen_pods(
    sightings: Sequence[Sighting],
    held: Held,
    had: Mapping[str, frozenset[str]],
    waits: Mapping[str, str],
    gangs: Mapping[str, GangSeen],
    workloads: Mapping[str, str],
    invalid: Collection[str] = (),
    chosen: Mapping[str, str] = MappingProxyType({}),
) -> tuple[SeenPod, ...]:
    """Return the record of every pod that takes GPUs, in the order of *sightings*.

    The mappings are by namespace/name. *held*: its GPUs now. *had*: all GPUs it was seen with.
    *waits*: why it has no node. *gangs*: its gang, as the extender has it.
    *workloads* is by the uid of a pod's owner: the name of the manifest from which it comes.
    *invalid*: those that cannot be placed, because of what they ask for. *chosen*: why it is where
    it is.
    """
    beside = _without_gpus(sightings, gangs)
    found = [
        SeenPod(
            pod=sighting.pod.key,
            workload=_workload(sighting.pod, workloads),
            needed=_needed(sighting.pod, gangs, beside),
            gang=_gang(sighting.pod, gangs),
            member=sighting.pod.metadata.annotations.get(COMPLETION_INDEX, ""),
            times=sighting.times,
            node=sighting.pod.spec.node_name,
            planned=sighting.planned,
            wanted=_wanted(sighting.pod),
            held=held.get(sighting.pod.key, {}),
            had=had.get(sighting.pod.key, frozenset()),
            ended=sighting.pod.status.phase == "Succeeded",
            waits=waits.get(sighting.pod.key, "") or _holds_none(sighting.pod),
            invalid=sighting.pod.key in invalid,
            chosen=chosen.get(sighting.pod.key, ""),
        )
        for sighting in sightings
        if takes_gpus(sighting.pod) and not _was_replaced(sighting, sightings)
    ]
    return tuple(_with_members(found))


def waiting_members(
    sightings: Sequence[Sighting],
    workloads: Mapping[str, str],
    allocatable: Sequence[Mapping[str, int]],
) -> tuple[WaitingMember, ...]:
    """Return the pods without GPUs that have no node. *allocatable*: what each node has."""
    return tuple(
        WaitingMember(
            sighting.pod.key,
            _workload(sighting.pod, workloads),
            _why_no_node(sighting.pod, allocatable),
        )
        for sighting in sightings
        if not (sighting.pod.spec.node_name or takes_gpus(sighting.pod))
    )


def _why_no_node(pod: Pod, allocatable: Sequence[Mapping[str, int]]) -> str:
    """kube-scheduler's message, and what no node has."""
    refused = (c.message for c in pod.status.conditions if c.type == "PodScheduled")
    parts = [next(refused, "") or "kube-scheduler has not tried it."]
    for name, wanted in sorted(pod_requests(pod).items()):
        most = max((each.get(name, 0) for each in allocatable), default=0)
        if wanted > most:
            asked, most_there = (_in_units(name, each) for each in (wanted, most))
            parts.append(
                f"It requests {name} {asked}, and the most that a node has is {most_there}."
            )
    return " ".join(parts)


def _in_units(resource: str, amount: int) -> str:
    if resource == "cpu":
        return f"{amount / 1000:g}"
    return f"{amount / 2**30:g}Gi" if resource == "memory" else str(amount)


def report_of(
    nodes: Sequence[NodeReport],
    ours: Sequence[SeenPod],
    draws: Sequence[Sequence[SeenPod]],
    *,
    seed: int,
    rival: Rival = Rival.NVIDIA,
    at: float = 0.0,
    moved: Sequence[MovedPod] = (),
    without_gpus: Sequence[WaitingMember] = (),
    to_come: Sequence[str] = (),
) -> Report:
    """*draws* are the runs of the baseline. *at*: when *ours* were looked at, on the clock of their
    times; their last change, if that is later. *without_gpus* wait. *to_come*: what is not created
    yet."""
    start = min((seen.times.created for seen in ours), default=at)
    machines = {node.name: node.machine for node in nodes}
    stock = [{(s.workload, s.member): place_of(s, machines) for s in draw} for draw in draws]
    letter = letters()
    workloads = []
    for name in dict.fromkeys(seen.workload for seen in ours):
        members = [seen for seen in ours if seen.workload == name]
        pods = tuple(
            PodReport(
                pod=seen.pod,
                member=seen.member,
                place=place_of(seen, machines),
                times=seen.times.since(start),
                waits=seen.waits,
                invalid=seen.invalid,
                ended=seen.ended,
                chosen=seen.chosen,
                stock=tuple(draw.get((name, seen.member)) for draw in stock),
            )
            for seen in sorted(members, key=_rank)
        )
        needed = max(seen.needed for seen in members)
        draws_of_it = zip(*(pod.stock for pod in pods), strict=True)
        workloads.append(
            WorkloadReport(
                name,
                next(letter),
                pods,
                needed,
                _worth([pod.place for pod in pods], machines, is_gang=needed > 0),
                tuple(_worth(places, machines, is_gang=needed > 0) for places in draws_of_it),
                tuple(each for each in without_gpus if each.workload == name),
            )
        )
    return Report(
        nodes=tuple(nodes),
        moved=tuple(moved),
        to_come=tuple(to_come),
        workloads=tuple(workloads),
        compared=sum(1 for seen in ours if seen.held),
        faults=faults(ours),
        draws=len(draws),
        seed=seed,
        rival=rival,
        seconds=max((at, *(seen.times.last for seen in ours))) - start,
    )


def place_of(seen: SeenPod, machines: Mapping[str, Machine]) -> PodPlace | None:
    """Return the pod's GPUs and what they are worth; None if it never had any."""
    gpus = seen.held_gpus or (seen.had if seen.ended else frozenset())
    if not gpus:
        return None
    machine = machines[seen.node]
    mask = machine.mask_of(gpus)
    return PodPlace(
        node=seen.node,
        gpus=machine.indices_of(mask),
        link=vendor_of(machine).word_of(ring_class(machine, mask)),
        gbytes_per_s=bandwidth(machine, mask),
    )


def _worth(
    places: Sequence[PodPlace | None], machines: Mapping[str, Machine], *, is_gang: bool
) -> float | None:
    """Return a gang's all-reduce GB/s, or that of the slowest of several pods.

    None if no GPU has another one to talk to. docs/topology.md has the model; all simulated nodes
    share one network.
    """
    found = [place for place in places if place]
    if not is_gang:
        return min((place.gbytes_per_s for place in found if place.talks), default=None)
    on_node: dict[str, set[int]] = {}
    for place in found:
        on_node.setdefault(place.node, set()).update(place.gpus)
    parts = [(machines[node], _mask(machines[node], gpus)) for node, gpus in on_node.items()]
    if sum(mask.bit_count() for _, mask in parts) < 2:
        return None
    inside = min(bandwidth(machine, mask) for machine, mask in parts)
    if len(parts) == 1:
        return inside
    return min(inside, *(float(network_gbytes_per_s(machine)[mask]) for machine, mask in parts))


def _mask(machine: Machine, indices: Collection[int]) -> int:
    return sum(1 << p for p, gpu in enumerate(machine.gpus) if gpu.index in indices)


def _workload(pod: Pod, workloads: Mapping[str, str]) -> str:
    meta = pod.metadata
    owner = next((owner for owner in meta.owner_references if owner.controller), None)
    made = workloads.get(owner.uid, owner.name) if owner else ""
    if LWS + "group-index" in meta.labels:  # each group is a gang of its own
        made = f"{made}-{meta.labels[LWS + 'group-index']}"
    name = meta.annotations.get(names.GANG) or made or meta.name
    return name if meta.namespace == "default" else f"{meta.namespace}/{name}"


def _needed(pod: Pod, gangs: Mapping[str, GangSeen], beside: Mapping[str, int]) -> int:
    """Return how many pods with GPUs its gang needs; 0 if it is in none. What the pod says counts,
    then what the extender says."""
    gang = gangs.get(pod.key)
    needed = _size_said(pod) or (gang.minimum if gang else 0)
    return max(needed - beside.get(_gang(pod, gangs), 0), 1) if needed else 0


def _gang(pod: Pod, gangs: Mapping[str, GangSeen]) -> str:
    gang, said = gangs.get(pod.key), pod.metadata.annotations.get(names.GANG)
    name = said or (gang.name if gang else "")
    return f"{pod.metadata.namespace}/{name}" if name else ""


def _size_said(pod: Pod) -> int:
    """Return the gang size in the pod's annotation; 0 if it is absent or wrong."""
    if names.GANG not in pod.metadata.annotations:
        return 0
    size = pod.metadata.annotations.get(names.GANG_SIZE, "")
    return int(size) if size.isascii() and size.isdecimal() else 0


def _without_gpus(
    sightings: Sequence[Sighting], gangs: Mapping[str, GangSeen]
) -> Mapping[str, int]:
    """Count the members of each gang that take no GPUs and have a node."""
    return Counter(
        _gang(each.pod, gangs)
        for each in sightings
        if each.pod.spec.node_name and not takes_gpus(each.pod)
    )


def _holds_none(pod: Pod) -> str:
    """Say why a pod with a node holds no GPU: init containers give theirs back when they end, and
    a kubelet may refuse a pod."""
    where = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    if pod.status.message:
        return f"{pod.status.phase}{where}: {pod.status.message}"
    return f"{pod.status.phase or 'Pending'}{where}, and holds no GPU."


def _was_replaced(sighting: Sighting, others: Sequence[Sighting]) -> bool:
    """True for a failed pod of a Job that has created another one for it."""
    if sighting.pod.status.phase != "Failed":
        return False
    uids = {owner.uid for owner in sighting.pod.metadata.owner_references}
    index = sighting.pod.metadata.annotations.get(COMPLETION_INDEX)
    return any(
        other.order > sighting.order
        and other.pod.metadata.annotations.get(COMPLETION_INDEX) == index
        and uids & {owner.uid for owner in other.pod.metadata.owner_references}
        for other in others
    )


def _with_members(found: Sequence[SeenPod]) -> Iterator[SeenPod]:
    """Number the pods of a workload in order of creation if completion indices are not unique."""
    counted = Counter((seen.workload, seen.member) for seen in found)
    by_order = {seen.workload for seen in found if counted[seen.workload, seen.member] > 1}
    numbers: Counter[str] = Counter()
    for seen in found:
        if seen.workload in by_order or not seen.member:
            yield replace(seen, member=str(numbers[seen.workload]))
            numbers[seen.workload] += 1
        else:
            yield seen


def _rank(seen: SeenPod) -> tuple[int, str]:
    """Sort by completion index. A pod's own annotation may hold any text."""
    return (int(seen.member), "") if seen.member.isdecimal() else (-1, seen.member)
