"""What a listed cluster is, before anything is tried in it."""

from collections.abc import Iterable

from linkwise.cli.what_if.answer import ClusterUse
from linkwise.cli.what_if.given.machines import LeftOut
from linkwise.extender.explain.snapshot import Snapshot
from linkwise.extender.explain.usage import view_nodes, view_use


def use_of(snapshot: Snapshot) -> ClusterUse:
    known = sum(node.machine is not None for node in snapshot.nodes)
    return ClusterUse(known, view_use(snapshot).gpus)


def all_left_out(snapshot: Snapshot, unknown: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Return the nodes of *unknown* machines, and those that the core does not use."""
    left_out = [*unknown]
    named = {node for each in left_out for node in each.nodes}
    found: dict[str, list[str]] = {}
    for view in view_nodes(snapshot):
        if not view.usable and view.name not in named:
            found.setdefault(view.reason, []).append(view.name)
    return (*left_out, *(LeftOut(reason, tuple(nodes)) for reason, nodes in found.items()))


def presumed(snapshot: Snapshot) -> tuple[str, ...]:
    """Return running pods whose GPUs neither a plan nor the kubelet names."""
    return tuple(
        sorted(
            record.key
            for node in snapshot.nodes
            for uid in node.owned
            if (record := snapshot.by_uid.get(uid)) is not None
            and record.node == node.name
            and snapshot.plan_of(record) is None
            and node.listed_as.get(record.key) != uid
        )
    )
