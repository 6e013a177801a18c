"""Plans of gangs that no pod carries.

kube-scheduler needs the nominations of a gang only if it looks at a sample of the nodes. If the
call that waits for the plan names all nodes, the plan stays in memory, which saves a write for each
member. The first Binding could then be the last act of this leader. So each Binding carries the
places of all members, and the next leader plans them there before it answers any call.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from linkwise.extender.next.gangs.members import GangMembers, plan_of
from linkwise.extender.place.nodes.scheduler_feedback import names_all
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.pending_writes import PendingWrites
from linkwise.extender.state.cache.plans import Deal
from linkwise.extender.state.records import PodRecord, WrittenPlan
from linkwise.topology.annotations.plan import Plan, PlannedMember

# A gang that is not bound by then has its plan written: its calls may not come, or name a sample.
UNWRITTEN_SECONDS = 0.1
_MOST = 16  # pods of the gang: each Binding names them all


def may_stay_unwritten(members: GangMembers, cache: Cache, names: Sequence[str]) -> bool:
    """Whether Bindings can carry the plan: kube-scheduler is about to try all members, and looked
    at all nodes, of which those with these *names* passed its own filters."""
    nodes = {cache.plans[member.uid].plan.node for member in members.planned}
    return (
        names_all(names)
        and nodes.issubset(names)
        and len(members.all) <= _MOST
        and not members.coming
        and not any(member.gated or member.claim is not None for member in members.planned)
    )


def with_others(
    chosen: WrittenPlan, record: PodRecord, cache: Cache, writes: PendingWrites
) -> WrittenPlan:
    """The plan for the Binding of this member, with the places that are on no other pod. With one
    that takes only shares the gang does not begin: the others may get other places later."""
    uids: Collection[str] = ()
    if record.gang is not None and record.demand.gpus:
        uids = cache.gangs.get(record.gang, ())
    others = []
    for uid in uids if len(uids) <= _MOST else ():
        member = cache.pods[uid]
        written = None if member.node or uid == record.uid else plan_of(cache, member)
        if written is None or writes.is_written(uid, written):
            continue
        machine = cache.nodes[written.plan.node].machine
        if gpus := machine.mask_of(written.uuids) if machine is not None else 0:
            others.append(PlannedMember(uid, written.plan.node, gpus))
    plan = msgspec.structs.replace(chosen.plan, others=tuple(others))
    return WrittenPlan(plan, chosen.gpus)


def plan_others(cache: Cache) -> None:
    """Plan the members whose places only the Bindings of others name. What a Binding says is the
    word of a node too, so a place counts only for a pod of the same gang, on GPUs that are free.
    Once the gang has started, it no longer counts: older gangs may wait for these GPUs by now."""
    bound = [record for record in cache.pods.values() if record.node and record.live]
    started = {_gang_of(record) for record in bound if record.started}
    for record in bound:
        written = record.plan_for(record.node)
        if written is not None and written.plan.others and _gang_of(record) not in started:
            plan = msgspec.structs.replace(written.plan, others=(), shares=())
            for uid, place in _places(cache, record, plan, written.plan.others):
                cache.plan(uid, place)


def _places(
    cache: Cache, record: PodRecord, plan: Plan, others: Iterable[PlannedMember]
) -> Iterable[tuple[str, WrittenPlan]]:
    for place in others:
        member, info = cache.pods.get(place.uid), cache.nodes.get(place.node)
        if member is None or info is None or info.machine is None or info.kind is None:
            continue
        waits = member.live and not member.node and member.uid not in cache.plans
        fits = place.gpus.bit_count() == member.demand.gpus and not place.gpus & ~info.free
        if waits and fits and _gang_of(member) == _gang_of(record) is not None:
            yield member.uid, Deal.of(cache, member, place.node, place.gpus).written(plan)


def _gang_of(record: PodRecord) -> object:
    """Pods are of one gang too if the same must be read before it is known."""
    return (record.ref.namespace, record.awaits) if record.awaits else record.gang
