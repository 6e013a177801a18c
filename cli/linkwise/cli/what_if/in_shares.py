"""Which nodes have shares for a pod that requests GPUs: replicas or MIG devices that are offered
under the name of whole GPUs.

A pod in no gang gets them where no node has whole GPUs for it, once kube-scheduler tries it. What
the core plans behind the gate are whole GPUs.
"""

from linkwise.extender.place.shares.choice import choose_shares
from linkwise.extender.place.shares.nodes import request_of
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.state.cache.shares.book import ShareBook
from linkwise.extender.state.records import PodRecord


def offers_any(snapshot: Snapshot) -> bool:
    """Whether any node offers shares under the name of whole GPUs."""
    return any(
        node.shares.offers(resource) for node in snapshot.nodes for resource in snapshot.resources
    )


def nodes_with_shares(
    snapshot: Snapshot, record: PodRecord, *, empty: bool = False
) -> frozenset[str]:
    """Return the nodes whose shares suit the pod now, or would if the nodes were *empty*. CPU,
    taints and the like do not count."""
    if record.ask.gang is not None or not record.demand.gpus:
        return frozenset()
    request = request_of(record, in_place=True)
    found = set[str]()
    for node in snapshot.nodes:
        if node.kind is None or node.closed or not node.shares.places:
            continue
        book = ShareBook(node.shares.places) if empty else node.shares
        offered = all(book.offers(resource) for resource, _ in request.wants)
        if offered and choose_shares(node.kind, book, request) is not None:
            found.add(node.name)
    return frozenset(found)
