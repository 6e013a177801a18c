"""Which nodes have a GPU set for a pod, and why the others have none.

`EVER` and `NOW` are the order of the reasons, for refusals and for explanations. The reasons come
from arrays, kind by kind. The texts are stable and equal on all nodes with the same reason:
kube-scheduler counts equal texts, and tries a pod again whenever the whole changes.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from linkwise.extender.place.cluster_view import NodesView
from linkwise.extender.place.nodes.best_node import BestNode, by_kind
from linkwise.extender.place.nodes.node_filters import other_resource
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest, MachineKind
from linkwise.extender.state.cache.node_info import NOT_SEEN, Closed, ClosedBy
from linkwise.extender.state.cache.node_table import BY_KUBELET, NOT_USABLE, Ints
from linkwise.extender.state.extender_calls import FilterAnswer
from linkwise.extender.state.records import ResourceList
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.machine.topology_manager import Policy
from linkwise.topology.while_alive import while_alive

FEWER = "linkwise: fewer free GPUs than wanted"
# kube-scheduler refuses such a node itself, unless a DeviceClass gives this resource by DRA
# (KEP-5004).
NOT_OFFERED = "linkwise: the kubelet offers no GPUs"
NO_LINK = "linkwise: no free GPU set with the required link"
NO_PARTITION = "linkwise: no NVSwitch partition of so many GPUs is free"
ONE_NUMA_NODE = "linkwise: the kubelet admits only GPUs of one NUMA node"
FEWEST_NUMA_NODES = "linkwise: the kubelet admits only GPUs of the fewest NUMA nodes"
UNPUBLISHED = "linkwise: no topology published"
UNREADABLE = "linkwise: topology or in-use annotation cannot be read"
CLAIMED = "linkwise: a DRA driver gives out its GPUs, only to claims"
NOT_CLAIMED = "linkwise: no DRA driver gives out its GPUs, and the pod has them from a claim"
REFUSING = "linkwise: kubelet refuses pods with GPUs"
SUCH_REFUSED = "linkwise: kubelet refused such a pod"
EMPTIED = "linkwise: node is being emptied (linkwise.dev/empty, --whole-nodes)"
UNKNOWN_NODE = "linkwise: node is not known yet"
OTHERS_FIRST = "linkwise: newly freed GPUs go first to gangs and pods ahead in the queue"
# Preemption cannot change these.
TOO_SMALL = "linkwise: node has fewer GPUs than wanted"
NEVER_LINKED = "linkwise: no GPU set of this node has the required link"
NEVER_PARTITIONED = "linkwise: NVSwitch has no partition of so many GPUs"
NEVER_ALIGNED = "linkwise: the kubelet admits no such pod: no NUMA node has so many GPUs"
OTHER_MODEL = "linkwise: GPU model or memory does not match"


def why_not_aligned(kind: MachineKind) -> str:
    """Why the kubelets of this kind, which align GPUs, refuse a set."""
    assert kind.alignment is not None, "only kubelets that align GPUs refuse sets"
    single = kind.alignment.policy is Policy.SINGLE_NUMA_NODE
    return ONE_NUMA_NODE if single else FEWEST_NUMA_NODES


@dataclass(frozen=True, slots=True)
class GpuLevel:
    """What a node must have for a pod's GPUs, once it meets the levels before."""

    name: str
    wanted: str  # what explanations say of the nodes that have it
    text: str | Callable[[MachineKind], str]  # why the others take no such pod
    meets: Callable[[MachineKind, GpuRequest, int], bool]  # with these GPUs
    # Whether a pod among nodes of these kinds may fail it, so that explanations show it.
    concerns: Callable[[GpuRequest, Collection[MachineKind]], bool] = lambda *_: True

    def why(self, kind: MachineKind) -> str:
        return self.text if isinstance(self.text, str) else self.text(kind)


def _has_suitable(kind: MachineKind, request: GpuRequest, gpus: int) -> bool:
    return (gpus & kind.allowed(request.requirement)).bit_count() >= request.size


def _partitioned(_: GpuRequest, kinds: Collection[MachineKind]) -> bool:
    return any(kind.machine.partitions for kind in kinds)


def _linked(request: GpuRequest, _: Collection[MachineKind]) -> bool:
    return request.requirement.require is not LinkClass.SYS


def _aligned(_: GpuRequest, kinds: Collection[MachineKind]) -> bool:
    return any(kind.alignment is not None for kind in kinds)


# The levels that a user can change least come first: those of all GPUs, then of the free ones.
EVER = (
    GpuLevel(
        "size",
        "have {gpus} or more",
        TOO_SMALL,
        lambda _, request, gpus: gpus.bit_count() >= request.size,
    ),
    GpuLevel(
        "model",
        "have {gpus} of {hardware}",
        OTHER_MODEL,
        _has_suitable,
        lambda request, _: bool(request.requirement.hardware),
    ),
    GpuLevel(
        "partition",
        "have an NVSwitch partition of {gpus}, if their driver demands one",
        NEVER_PARTITIONED,
        MachineKind.has_partition,
        _partitioned,
    ),
    GpuLevel(
        "link",
        "can join {gpus} by {link} or closer",
        NEVER_LINKED,
        lambda *asked: MachineKind.ever(*asked) or MachineKind.fits_unaligned(*asked),
        _linked,
    ),
    GpuLevel(
        "alignment",
        "have {gpus} on as few NUMA nodes as their kubelet demands",
        NEVER_ALIGNED,
        MachineKind.ever,
        _aligned,
    ),
)
NOW = (
    GpuLevel("free", "have {gpus} free and suitable", FEWER, _has_suitable),
    GpuLevel(
        "free-partition",
        "have an NVSwitch partition of {gpus} free",
        NO_PARTITION,
        MachineKind.has_partition,
        _partitioned,
    ),
    GpuLevel(
        "free-link",
        "have {gpus} free that are joined by {link} or closer",
        NO_LINK,
        lambda *asked: MachineKind.take(*asked) is not None or MachineKind.fits_unaligned(*asked),
        _linked,
    ),
    GpuLevel(
        "free-alignment",
        "have {gpus} free on as few NUMA nodes as their kubelet demands",
        why_not_aligned,
        lambda *asked: MachineKind.take(*asked) is not None,
        _aligned,
    ),
)


@while_alive(16384)
def why_never(kind: MachineKind, request: GpuRequest) -> str:
    """Why machines of this kind can never have a set for the pod; empty: they can."""
    return _first_unmet(EVER, kind, request, kind.all_gpus)


@while_alive(16384)
def why_not_now(kind: MachineKind, request: GpuRequest, free: int) -> str:
    """Why the pod has no set among these *free* GPUs."""
    return _first_unmet(NOW, kind, request, free) or FEWER  # a pod on a dead GPU counts too


def _first_unmet(
    levels: Iterable[GpuLevel], kind: MachineKind, request: GpuRequest, gpus: int
) -> str:
    unmet = (level.why(kind) for level in levels if not level.meets(kind, request, gpus))
    return next(unmet, "")


def why_closed(closed: Closed) -> str:
    """Of a node that cannot be read kube-scheduler gets one text for all errors."""
    match closed.by:
        case ClosedBy.NOT_SEEN:
            return UNKNOWN_NODE
        case ClosedBy.NO_TOPOLOGY:
            return UNPUBLISHED
        case ClosedBy.UNREADABLE:
            return UNREADABLE
        case ClosedBy.CLAIMS:
            return CLAIMED
        case ClosedBy.REFUSES:
            return REFUSING
        case ClosedBy.EMPTIED:
            return EMPTIED


def why_closed_exactly(closed: Closed | None) -> str:
    """Each error with its own text; empty: the node is not closed."""
    if closed is None:
        return ""
    if closed.by is ClosedBy.NOT_SEEN:
        return "no such node"
    said = closed.error if closed.by is ClosedBy.UNREADABLE else ""
    return said or why_closed(closed).removeprefix("linkwise: ")


def problem_text(cache: Cache, name: str) -> str:
    info = cache.nodes.get(name)
    return why_closed((info and info.closed) or NOT_SEEN)


def why_set_aside(reserved: Iterable[tuple[str, int]], aside: int) -> str:
    """The reason that names the gang for which GPUs of *aside* are reserved, of several the first
    by name. *reserved*: the gangs' titles, and the GPUs of each."""
    title = min((title for title, gpus in reserved if gpus & aside), default="")
    return f"linkwise: reserved for {title}" if title else OTHERS_FIRST


def of_other_resource(cache: Cache, wanted: str, names: Iterable[str]) -> dict[str, str]:
    """Those of the nodes *names* that have GPUs by another resource than the pod's, which is
    *wanted*, and why they take no such pod."""
    if len(cache.resources) == 1:
        return {}
    infos = ((name, cache.nodes.get(name)) for name in names)
    records = ((name, None if info is None else info.record) for name, info in infos)
    return {
        name: f"linkwise: {other_resource(wanted, record)}"
        for name, record in records
        if record is not None and record.resource != wanted
    }


def rooms(
    cache: Cache,
    best_node: BestNode,
    view: NodesView,
    request: GpuRequest,
    needs: ResourceList,
    names: Sequence[str],
    *,
    way: int = BY_KUBELET,
) -> FilterAnswer:
    """*needs* are those of the pod, for which `best_node` knows the nodes already. *way*: in which
    it gets its GPUs."""
    table = view.table()
    rows = table.rows_of(names)
    known, offering = rows >= 0, table.offering[rows]
    other_way = known & (table.kinds[rows] != NOT_USABLE) & (offering != 0) & (offering != way)
    has_set = known & (best_node.worth_in(view, request, needs).quality[rows] > -np.inf)
    fits = has_set & (offering == way)
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}

    def refuse(places: Ints, text: str, *, never: bool = False) -> None:
        of_names = dict.fromkeys([names[place] for place in places.tolist()], text)
        (unresolvable if never else failed).update(of_names)

    told = has_set | other_way
    refuse(np.flatnonzero(other_way), CLAIMED if way == BY_KUBELET else NOT_CLAIMED)
    refuse(np.flatnonzero(has_set & (offering == 0)), NOT_OFFERED)
    for kind, misses, free in by_kind(cache, table, np.where(told, -1, rows)):
        told[misses] = True
        if never := why_never(kind, request):
            refuse(misses, never, never=True)
            continue
        aside = table.set_aside[rows[misses]]
        if aside.any():
            would_fit = kind.qualities(request, free | aside) > -np.inf
            kept = aside & ~free & kind.allowed(request.requirement)
            for place, gpus in zip(misses[would_fit], kept[would_fit], strict=True):
                reserved = cache.nodes[names[place]].reserved.items()
                titles = ((key.title, of_gang) for key, of_gang in reserved)
                failed[names[place]] = why_set_aside(titles, gpus)
            misses, free = misses[~would_fit], free[~would_fit]
        masks, of_mask = np.unique(free, return_inverse=True)
        texts = [why_not_now(kind, request, mask) for mask in masks.tolist()]
        few = [*dict.fromkeys(texts)]  # hundreds of masks have one reason
        of_text = np.array([few.index(text) for text in texts], dtype=np.int64)[of_mask]
        for number, text in enumerate(few):
            refuse(misses[of_text == number], text)
    for place in np.flatnonzero(~told).tolist():
        failed[names[place]] = problem_text(cache, names[place])
    fitting = tuple(compress(names, fits.tolist()))
    cache.rows.note_rows(fitting, rows[fits])  # `prioritize` names these next
    return FilterAnswer(fitting, failed, unresolvable)
