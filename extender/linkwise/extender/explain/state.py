"""What the extender knows of its own part: who asks it, and which pods come past it."""

from linkwise.extender.api.views import StateView, UnplannedPod
from linkwise.extender.explain.kept_idle import kept_idle
from linkwise.extender.explain.snapshot import Snapshot


def view_state(snapshot: Snapshot) -> StateView:
    own = snapshot.own
    return StateView(
        at=snapshot.at,
        began=own.began,
        resource=own.resource,
        namespaces=own.namespaces,
        calls=snapshot.calls,
        unplanned=tuple(_unplanned(snapshot, own.began)),
        failing=tuple(_failing(snapshot)),
        kept_idle=kept_idle(snapshot),
        uncreated={
            f"{gang.key.namespace}/{gang.key.name}": gang.uncreated
            for gang in snapshot.gangs
            if gang.uncreated
        },
    )


def _failing(snapshot: Snapshot) -> list[str]:
    may_be_evicted = snapshot.own.may_be_evicted
    return [
        record.key
        for record in snapshot.pods
        if record.ask.eviction_fails_job
        and record.live
        and not record.left_alone
        and may_be_evicted(record.ref.namespace, record.ask)
    ]


def _unplanned(snapshot: Snapshot, began: float) -> list[UnplannedPod]:
    """The pods that were created since *began* and bound to a node with a topology, without a
    plan for it and without a call of their scheduler since. DaemonSets' pods count too: their
    scheduler is to ask as well. A scheduler that calls may have bound a pod by count, before its
    node had a topology."""
    return [
        UnplannedPod(record.key, record.node, record.scheduler)
        for record in snapshot.pods
        if record.node
        and record.live
        and record.demand.gpus
        and not record.left_alone
        and record.created > max(began, snapshot.calls.get(record.scheduler, 0.0))
        and record.plan_for(record.node) is None
        and (node := snapshot.node_named.get(record.node)) is not None
        and node.machine is not None
    ]
