"""Which nodes have a GPU set for a pod, and why the others have none.

The reasons come from arrays, kind by kind. The texts are stable and equal on all nodes with the
same reason: kube-scheduler counts equal texts, and tries a pod again whenever the whole changes.
"""

from collections.abc import Sequence
from itertools import compress

import numpy as np

from linkwise.extender.api.extender_calls import FilterAnswer
from linkwise.extender.api.records import ResourceList
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest, MachineKind
from linkwise.extender.cache.node_info import NOT_SEEN, Closed, ClosedBy
from linkwise.extender.cache.node_table import BY_KUBELET, NOT_USABLE, Ints
from linkwise.extender.placement.nodes.best_node import BestNode, by_kind
from linkwise.extender.placement.nodes.nodes_view import NodesView
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
CLAIMED = "linkwise: a DRA driver gives out its GPUs, to claims alone"
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


@while_alive(16384)
def why_no_room(kind: MachineKind, request: GpuRequest, free: int) -> tuple[str, bool]:
    """Why the pod has no set among these free GPUs, and whether the kind can never have one."""
    allowed = kind.allowed(request.requirement)
    if kind.all_gpus.bit_count() < request.size:
        return TOO_SMALL, True
    if allowed.bit_count() < request.size:
        return OTHER_MODEL, True
    if not kind.has_partition(request, kind.all_gpus):
        return NEVER_PARTITIONED, True
    if not kind.ever(request):
        unaligned = kind.fits_unaligned(request, kind.all_gpus)
        return (NEVER_ALIGNED if unaligned else NEVER_LINKED), True
    if (free & allowed).bit_count() < request.size:
        return FEWER, False
    if not kind.has_partition(request, free):
        return NO_PARTITION, False
    unaligned = kind.alignment is not None and kind.fits_unaligned(request, free)
    return (why_not_aligned(kind) if unaligned else NO_LINK), False


def why_not_aligned(kind: MachineKind) -> str:
    """Why the kubelets of this kind, which align GPUs, refuse a set."""
    assert kind.alignment is not None, "only kubelets that align GPUs refuse sets"
    single = kind.alignment.policy is Policy.SINGLE_NUMA_NODE
    return ONE_NUMA_NODE if single else FEWEST_NUMA_NODES


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


def _held_for(cache: Cache, name: str) -> str:
    """The reason that names the gang for which unused GPUs of this node are reserved; if there are
    several, the first by name."""
    info = cache.nodes[name]
    titles = [key.title for key, gpus in info.reserved.items() if gpus & info.set_aside]
    return held_for(min(titles)) if titles else OTHERS_FIRST


def held_for(title: str) -> str:
    return f"linkwise: reserved for {title}"


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
        text, never = why_no_room(kind, request, 0)
        if never:
            refuse(misses, text, never=True)
            continue
        aside = table.set_aside[rows[misses]]
        if aside.any():
            would_fit = kind.qualities(request, free | aside) > -np.inf
            for place in misses[would_fit].tolist():
                failed[names[place]] = _held_for(cache, names[place])
            misses, free = misses[~would_fit], free[~would_fit]
        masks, of_mask = np.unique(free, return_inverse=True)
        texts = [why_no_room(kind, request, mask)[0] for mask in masks.tolist()]
        few = [*dict.fromkeys(texts)]  # hundreds of masks have one reason
        of_text = np.array([few.index(text) for text in texts], dtype=np.int64)[of_mask]
        for number, text in enumerate(few):
            refuse(misses[of_text == number], text)
    for place in np.flatnonzero(~told).tolist():
        failed[names[place]] = problem_text(cache, names[place])
    fitting = tuple(compress(names, fits.tolist()))
    cache.rows.note_rows(fitting, rows[fits])  # `prioritize` names these next
    return FilterAnswer(fitting, failed, unresolvable)
