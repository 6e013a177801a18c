"""What a listed cluster is, before anything is tried in it."""

from collections.abc import Iterable
from dataclasses import dataclass

from linkwise.cli.what_if.answer import ClusterUse
from linkwise.cli.what_if.given.listing import Listing
from linkwise.cli.what_if.given.machines import Known, LeftOut
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.show.explain.usage import view_nodes, view_use
from linkwise.kube.objects import Pod
from linkwise.topology import names

# In the cluster, a pod is as the webhook has changed it.
_CLAIMED = "a DRA driver gives out the GPUs, and the webhook that makes claims is not played"


@dataclass(frozen=True, slots=True)
class ListedCluster:
    listing: Listing
    known: Known  # its nodes
    settings: CoreSettings
    at: float  # time of the listing


def use_of(snapshot: Snapshot) -> ClusterUse:
    known = sum(node.machine is not None for node in snapshot.nodes)
    return ClusterUse(known, view_use(snapshot).gpus)


def all_left_out(
    cluster: ListedCluster, snapshot: Snapshot, job: Iterable[Pod] = ()
) -> tuple[LeftOut, ...]:
    """Return the nodes of unknown machines, and those that the core does not use; with a *job* of
    which a pod waits for no claim, also those whose GPUs come from claims."""
    unknown = cluster.known.left_out
    named = {node for each in unknown for node in each.nodes}
    claimed = frozenset[str]()
    if any(names.CLAIMS not in pod.metadata.annotations for pod in job):
        claimed = frozenset(node.name for node in snapshot.nodes if node.claimed.gpus)
    found: dict[str, list[str]] = {}
    for view in view_nodes(snapshot):
        reason = (_CLAIMED if view.name in claimed else "") if view.usable else view.reason
        if reason and view.name not in named:
            found.setdefault(reason, []).append(view.name)
    return (*unknown, *(LeftOut(reason, tuple(nodes)) for reason, nodes in found.items()))


def presumed(snapshot: Snapshot) -> tuple[str, ...]:
    """Return running pods whose GPUs neither a plan nor the kubelet nor a claim names."""
    return tuple(
        sorted(
            record.key
            for node in snapshot.nodes
            for uid in node.owned
            if (record := snapshot.by_uid.get(uid)) is not None
            and record.node == node.name
            and snapshot.plan_of(record) is None
            and node.listed_as.get(record.key) != uid
            and uid not in node.claimed.pods
        )
    )
