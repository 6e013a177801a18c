"""Every node with its GPUs and their holders, and the use of the cluster as a whole."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_

from linkwise.extender.next.cycle.planner import Planner
from linkwise.extender.show.explain.node_arrays import (
    closed_by_cluster,
    has_gpus,
    refused_pod,
    why_closed,
)
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.records import PodRecord, natural
from linkwise.extender.state.views import (
    BestSet,
    ClosedNodes,
    ClusterUse,
    Counts,
    GpuView,
    KindUse,
    NamespaceUse,
    NodeView,
    PartView,
    ShareUse,
)
from linkwise.pods.annotations import link_word
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.machine.parts import Part
from linkwise.topology.vendors.known import vendor_of

_SIZES = (1, 2, 4, 8, 16)  # GPUs of the pods for which `KindUse.room` counts


def view_nodes(snapshot: Snapshot) -> tuple[NodeView, ...]:
    best: dict[tuple[int, int], BestSet | None] = {}
    return tuple(
        NodeView(
            name=node.name,
            usable=not (reason := why_closed(node)),
            reason=": ".join(filter(None, (reason, refused_pod(node)))),
            clique=(node.machine.clique or "") if node.machine else "",
            gpus=_gpus_of(snapshot, node),
            kind=kind_in_words(node.machine) if node.machine else "",
            best=_best_of(best, node),
            free=(node.free | node.reserved).bit_count(),
            reserved=node.reserved.bit_count(),
            future=float(node.kind.table.remaining_value[node.free]) if node.kind else 0.0,
            by_count=node.by_count,
            shares=_share_use(node),
            topology_manager=_topology_manager(node.machine),
            closed="" if node.closed is None else node.closed.by,
        )
        for node in sorted(snapshot.nodes, key=lambda node: node.name)
        if has_gpus(node)
    )


def view_use(snapshot: Snapshot) -> ClusterUse:
    nodes = [node for node in snapshot.nodes if has_gpus(node)]
    by_kind: dict[str, list[NodeState]] = {}
    for node in nodes:
        kind = kind_in_words(node.machine) if node.machine else "unknown GPUs"
        by_kind.setdefault(kind, []).append(node)
    return ClusterUse(
        at=snapshot.at,
        gpus=gpus_by_state(nodes),
        nodes=len(nodes),
        kinds=tuple(_use_of(kind, those) for kind, those in sorted(by_kind.items())),
        namespaces=_namespaces(snapshot, nodes),
        closed=closed_nodes(nodes),
    )


def closed_nodes(nodes: Iterable[NodeState]) -> tuple[ClosedNodes, ...]:
    """Those of *nodes* that take no new pods, by the reason."""
    by_reason: dict[str, list[NodeState]] = {}
    for node in nodes:
        reason = why_closed(node) if node.by_count is None else closed_by_cluster(node)
        if reason:
            by_reason.setdefault(reason, []).append(node)
    return tuple(
        ClosedNodes(
            reason,
            tuple(sorted((node.name for node in those), key=natural)),
            sum(node.free.bit_count() for node in those),
        )
        for reason, those in sorted(by_reason.items())
    )


def view_counts(cache: Cache, planner: Planner, now: float) -> Counts:
    gpus: list[Mapping[str, int]] = []  # of each node
    nodes: Counter[str] = Counter(
        {"usable": 0, "unusable": 0, "emptied": 0, "by-count": 0, "claims": 0}
    )
    pods_by_count = 0
    for info in cache.nodes.values():
        if info.record is None or (info.machine is None and not info.record.offers.gpus):
            continue
        if info.by_count:
            nodes["by-count"] += 1
            pods_by_count += len(info.bound)
            continue
        nodes[_state_of(info)] += 1
        if info.machine is not None:
            states = info.machine, info.owned, info.used, info.free, info.set_aside
            gpus.append(gpus_in_states(*states))
    gangs = Counter(gang.phase.value for gang in planner.registry.gangs.values() if not gang.alone)
    waiting = [now - planner.queue.created(gang.key) for gang in planner.queue.without_room()]
    return Counts(
        gangs,
        _counted(gpus),
        nodes,
        planner.swaps,
        planner.lifecycle.refusals,
        planner.placed,
        pods_by_count,
        sum(record.uid in cache.plans for record in planner.to_come.records()),
        len(waiting),
        max(waiting, default=0.0),
        planner.targets.counts,
    )


def _state_of(info: NodeInfo) -> str:
    if info.closed is not None:
        return "emptied" if info.emptied else "unusable"
    return "claims" if info.gives_by_claims else "usable"


def gpus_by_state(nodes: Iterable[NodeState]) -> Mapping[str, int]:
    return _counted(
        gpus_in_states(node.machine, node.owned, node.used, node.free, node.reserved)
        for node in nodes
        if node.machine is not None
    )


def kind_in_words(machine: Machine) -> str:
    models = Counter(gpu.model for gpu in machine.gpus)
    return " + ".join(f"{count} x {model}" for model, count in sorted(models.items()))


def _topology_manager(machine: Machine | None) -> str:
    manager = None if machine is None else machine.topology_manager
    return "" if manager is None else f"{manager.policy}, scope {manager.scope} ({manager.source})"


def gpus_in_states(
    machine: Machine, owned: Mapping[str, int], used: int, free: int, reserved: int
) -> dict[str, int]:
    """State -> bitmask of the GPUs of one node that are in it."""
    taken = reduce(or_, owned.values(), 0)
    rest = machine.all_gpus & ~(taken | free | reserved)
    divided = rest and rest & sum(
        1 << p for p, gpu in enumerate(machine.gpus) if gpu.parts is not None
    )
    return {
        "used": used & taken,
        "held": taken & ~used,
        "reserved": reserved,
        "free": free,
        "unhealthy": rest & ~divided,
        "divided": divided,
    }


def _counted(masks: Iterable[Mapping[str, int]]) -> Counter[str]:
    """State -> GPUs; *masks* of each node. Few clusters have divided GPUs."""
    gpus: Counter[str] = Counter(free=0, reserved=0, held=0, used=0, unhealthy=0)
    for state, mask in (item for each in masks for item in each.items()):
        if mask:
            gpus[state] += mask.bit_count()
    return gpus


def _best_of(known: dict[tuple[int, int], BestSet | None], node: NodeState) -> BestSet | None:
    if node.kind is None or not node.free or node.closed:
        return None
    key = (id(node.kind), node.free)
    if key not in known:
        known[key] = _best_set(node.kind, node.free)
    return known[key]


def _best_set(kind: MachineKind, free: int) -> BestSet:
    own_words = vendor_of(kind.machine).own_words
    joined = kind.table.best_with(LinkClass.NVLINK)
    for size in range(free.bit_count(), 1, -1):
        value = float(joined[size][free])
        if value > 0:
            return BestSet(size, own_words(link_word(LinkClass.NVLINK)), value)
    count = free.bit_count()
    link = LinkClass(int(kind.table.ring_classes[free]))
    # The value of a single GPU is not a bandwidth: it communicates with no other.
    value = float(kind.table.values[free]) if count > 1 else 0.0
    return BestSet(count, own_words(link_word(link)), value)


def _use_of(kind: str, nodes: Sequence[NodeState]) -> KindUse:
    usable = [node for node in nodes if node.kind is not None and not why_closed(node)]
    free = sum(node.free.bit_count() for node in usable)
    most = max((len(node.machine.gpus) for node in nodes if node.machine), default=0)
    whole = free / most if most else 0.0  # idle machines with as many GPUs as are free
    worth = sum(float(node.kind.table.remaining_value[node.free]) for node in usable if node.kind)
    return KindUse(
        kind=kind,
        nodes=len(nodes),
        gpus=gpus_by_state(nodes),
        largest_free=max((node.free.bit_count() for node in usable), default=0),
        room={
            size: sum(node.free.bit_count() // size for node in usable)
            for size in _SIZES
            if size <= most
        },
        fragmented=max(0.0, 1 - worth / whole) if whole else 0.0,
    )


def _namespaces(snapshot: Snapshot, nodes: Iterable[NodeState]) -> tuple[NamespaceUse, ...]:
    used: Counter[str] = Counter()
    held: Counter[str] = Counter()
    pods: dict[str, set[str]] = {}
    for node in nodes:
        for uid, mask in node.owned.items():
            name = _holder(snapshot, node, uid)
            namespace = name.partition("/")[0]
            used[namespace] += (mask & node.used).bit_count()
            held[namespace] += (mask & ~node.used).bit_count()
            pods.setdefault(namespace, set()).add(uid)
    waiting: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for record in snapshot.pods:
        if waits(snapshot, record):
            waiting[record.ref.namespace] += 1
            wanted[record.ref.namespace] += record.demand.gpus
    found = (
        NamespaceUse(
            namespace,
            used[namespace],
            held[namespace],
            len(pods.get(namespace, ())),
            waiting[namespace],
            wanted[namespace],
        )
        for namespace in {*pods, *waiting}
    )
    return tuple(
        sorted(found, key=lambda use: (-use.used - use.held, -use.waiting_gpus, use.namespace))
    )


def waits(snapshot: Snapshot, record: PodRecord) -> bool:
    """Whether a pod requests GPUs and has neither a node nor a plan."""
    return (
        record.live
        and not record.node
        and record.demand.gpus > 0
        and record.uid not in snapshot.plans
    )


def _holder(snapshot: Snapshot, node: NodeState, uid: str) -> str:
    record = snapshot.by_uid.get(uid)
    if record is not None:
        return record.key
    return node.name_of(uid)


def _gpus_of(snapshot: Snapshot, node: NodeState) -> tuple[GpuView, ...]:
    if node.machine is None:
        return ()
    holder_of = {
        position: _holder(snapshot, node, uid)
        for uid, mask in node.owned.items()
        for position in range(mask.bit_length())
        if mask >> position & 1
    }
    views = []
    for position, gpu in enumerate(node.machine.gpus):
        holder = holder_of.get(position)
        is_closed = bool(node.claimed.gpus) and gpu.uuid not in node.claimed.open
        usable = gpu.healthy and not is_closed
        if holder is None:
            reserved = node.reserved >> position & 1
            state = "reserved" if reserved else "free" if usable else "unhealthy"
            state = state if gpu.parts is None else "divided"
        else:
            state = "used" if node.used >> position & 1 else "held"
        parts = tuple(_part(snapshot, node, part) for part in gpu.parts or ())
        healthy = usable if gpu.parts is None else all(part.healthy for part in gpu.parts)
        views.append(GpuView(gpu.index, gpu.uuid, gpu.model, healthy, state, holder or "", parts))
    return tuple(views)


def _part(snapshot: Snapshot, node: NodeState, part: Part) -> PartView:
    held = [node.shares.holders[each] for each in part.ids if each in node.shares.holders]
    holders = Counter(_share_holder(snapshot, uid) for uid in held)
    can_be_had = any(place.part is part for place in node.shares.of(part.resource))
    return PartView(
        uuid=part.uuid,
        resource=part.resource,
        profile=part.mig.name if part.mig is not None else "",
        shares=part.shares,
        free=part.shares - len(held) if can_be_had and part.resource else 0,
        healthy=part.healthy,
        holders=dict(sorted(holders.items())),
    )


def _share_holder(snapshot: Snapshot, uid: str) -> str:
    record = snapshot.by_uid.get(uid)
    return uid if record is None else record.key


def _share_use(node: NodeState) -> tuple[ShareUse, ...]:
    total: Counter[str] = Counter()
    for place in node.shares.places:
        total[place.part.resource] += place.part.shares
    free = node.shares.free
    return tuple(ShareUse(name, free[name], total[name]) for name in sorted(free))
