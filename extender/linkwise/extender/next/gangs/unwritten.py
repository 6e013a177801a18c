"""Plans of gangs that no pod carries.

kube-scheduler needs the nominations of a gang only if it looks at a sample of the nodes. If the
call that waits for the plan names all nodes, the plan stays in memory, which saves a write for each
member. The first Binding could then be the last act of this leader. So each Binding carries the
places of all members, and the next leader plans them there before it answers any call.
"""

from collections.abc import Iterable, Sequence

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
    """The plan for the Binding of this member, with the places that are on no other pod."""
    uids = cache.gangs.get(record.gang, ()) if record.gang is not None else ()
    others = []
    for uid in uids if len(uids) <= _MOST else ():
        written = plan_of(cache, cache.pods[uid])
        if uid == record.uid or written is None or writes.is_written(uid, written):
            continue
        machine = cache.nodes[written.plan.node].machine
        if gpus := machine.mask_of(written.uuids) if machine is not None else 0:
            others.append(PlannedMember(uid, written.plan.node, gpus))
    plan = msgspec.structs.replace(chosen.plan, others=tuple(others))
    return WrittenPlan(plan, chosen.gpus) if others else chosen


def plan_others(cache: Cache) -> None:
    """Plan the members whose places only the Bindings of others name. What a Binding says is the
    word of a node too, so a place counts only for a pod of the same gang, on GPUs that are free."""
    for record in [*cache.pods.values()]:
        written = record.plan_for(record.node) if record.node and record.live else None
        if written is not None and written.plan.others:
            plan = msgspec.structs.replace(written.plan, others=())
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
        if waits and fits and _are_of_one_gang(member, record):
            yield member.uid, Deal.of(cache, member, place.node, place.gpus).written(plan)


def _are_of_one_gang(member: PodRecord, other: PodRecord) -> bool:
    """Pods with one owner are, as long as nothing more of it is known."""
    if member.awaits and member.owner_uid:
        namespaces = member.ref.namespace, other.ref.namespace
        return member.owner_uid == other.owner_uid and namespaces[0] == namespaces[1]
    return member.gang is not None and member.gang == other.gang
