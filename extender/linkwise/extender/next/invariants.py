"""The invariants of the cache, checked against pods and plans and not against its own sums."""

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace

from linkwise.extender.next.gangs.gang import Gang, Phase
from linkwise.extender.next.gangs.members import members_of
from linkwise.extender.next.gangs.registry import GangRegistry
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.cache.node_table import NOT_USABLE
from linkwise.extender.state.records import GangKey, PodRecord, WrittenPlan, total
from linkwise.extender.state.timers import Pause
from linkwise.topology.annotations.plan import Plan

_NODES_AT_ONCE = 256
_GANGS_AT_ONCE = 16


def audit(cache: Cache, registry: GangRegistry, pause: Pause = lambda: None) -> list[str]:
    """The invariants that do not hold, as text; empty if all hold. Each is about one node, one pod
    or one gang, so others may use the cache in a *pause* after some of them."""
    broken: list[str] = []
    names = [*cache.nodes]
    for first in range(0, len(names), _NODES_AT_ONCE):
        some = {name for name in names[first : first + _NODES_AT_ONCE] if name in cache.nodes}
        facts = _facts(cache, some)
        broken += (t for name in sorted(some) for t in _of_node(cache, cache.nodes[name], facts))
        pause()
    broken += _holds_without_pod(cache)
    for number, (key, gang) in enumerate([*registry.gangs.items()], 1):
        if registry.gangs.get(key) is gang:
            broken += _of_gang(cache, key, gang)
        if number % _GANGS_AT_ONCE == 0:
            pause()
    return broken


def _facts(cache: Cache, nodes: Container[str]) -> "_Facts":
    """What the lists of all pods and plans say about these *nodes*."""
    facts = _Facts()
    for record in cache.pods.values():
        if record.node and record.node in nodes and not record.ended:
            facts.note_bound(record)
    for uid, plan in cache.plans.items():
        facts.plans[plan.plan.node][uid] = plan
    for uid, reservations in cache.assumed.items():
        for node, reservation in reservations.items():
            facts.assumed[node][uid] = reservation
    for uid in {*cache.plans, *cache.assumed}:
        waiting = cache.pods.get(uid)
        if waiting is not None and not (waiting.node or waiting.ended):
            node, leaver = _charged_on(cache, uid), cache.pods.get(waiting.follows)
            left = ""  # the node that it is about to leave, and needs room on until then
            if leaver is not None and not leaver.ended:
                left = leaver.node or _charged_on(cache, leaver.uid)
            if left != node:
                facts.charged[node].append(waiting)
    return facts


@dataclass(slots=True)
class _Facts:
    """Pods, plans and assumed plans by node, from the lists of all of them."""

    bound: dict[str, dict[str, PodRecord]] = field(default_factory=lambda: defaultdict(dict))
    sharing: dict[str, dict[str, PodRecord]] = field(default_factory=lambda: defaultdict(dict))
    plans: dict[str, dict[str, WrittenPlan]] = field(default_factory=lambda: defaultdict(dict))
    assumed: dict[str, dict[str, WrittenPlan]] = field(default_factory=lambda: defaultdict(dict))
    charged: dict[str, list[PodRecord]] = field(default_factory=lambda: defaultdict(list))

    def note_bound(self, record: PodRecord) -> None:
        self.charged[record.node].append(record)
        if record.demand.gpus:
            self.bound[record.node][record.uid] = record
        if record.shares:
            self.sharing[record.node][record.uid] = record


def _of_node(cache: Cache, info: NodeInfo, facts: _Facts) -> Iterator[str]:
    yield from _promised_twice(info)
    bound = facts.bound.get(info.name, {})
    if bound != info.bound:
        yield f"node {info.name}: {len(info.bound)} pods with GPUs, there are {len(bound)}"
    if (info.plans, info.assumed) != (facts.plans[info.name], facts.assumed[info.name]):
        yield f"node {info.name}: plans or assumed plans that are not its own"
    again = replace(info, owned={}, used=0, free=0, set_aside=0, sharing=replace(info.sharing))
    again.settle()
    if (again.free, again.used, again.owned) != (info.free, info.used, info.owned):
        yield f"node {info.name}: free {info.free:#b}, recounted {again.free:#b}"
    yield from _shares(info, again, facts)
    seen = 0
    for holder, mask in sorted(info.owned.items()):
        if seen & mask:
            yield f"node {info.name}: a GPU of {holder} has another holder too"
        seen |= mask
    if seen & info.free:
        yield f"node {info.name}: a free GPU has a holder"
    yield from _in_arrays(cache, info)
    charged = facts.charged.get(info.name, [])
    spent = total(record.needs for record in charged)
    if (len(charged), spent) != (info.charged, info.spent):
        there = f"{len(charged)} with {spent}"
        yield f"node {info.name}: {info.charged} pods with {info.spent} counted, there are {there}"


def _shares(info: NodeInfo, again: NodeInfo, facts: _Facts) -> Iterator[str]:
    if facts.sharing.get(info.name, {}) != info.sharing.pods:
        yield f"node {info.name}: {len(info.sharing.pods)} pods with shares, there are others"
    if again.shares != info.shares:
        yield f"node {info.name}: shares {info.shares.holders}, recounted {again.shares.holders}"
    if info.shares.opened & (info.free | info.set_aside):
        yield f"node {info.name}: a GPU is free as a whole, and pods have shares of it"


def _in_arrays(cache: Cache, info: NodeInfo) -> Iterator[str]:
    rows, row = cache.rows, info.row
    usable = info.kind is not None and not info.closed
    if int(rows.set_aside[row]) != (info.set_aside if usable else 0) or info.set_aside & info.free:
        there = int(rows.set_aside[row])
        yield f"node {info.name}: reserved {info.set_aside:#b}, in the arrays {there:#b}"
    if int(rows.free[row]) != (info.free if usable else 0):
        yield f"node {info.name}: free {info.free:#b}, in the arrays {int(rows.free[row]):#b}"
    if (int(rows.kinds[row]) == NOT_USABLE) is usable:
        yield f"node {info.name}: usable in the arrays only, or in the node info only"
    if not rows.left.shows(row, info.left, info.pods_left):
        yield f"node {info.name}: {info.left} left, in the arrays {rows.left.on(row)}"


def _promised_twice(info: NodeInfo) -> Iterator[str]:
    """No GPU is in the plans of two pods to which the kubelet has not allocated anything yet.

    Two bound pods with the very same plan are allowed: one was created from the other's manifest,
    and bound without the extender.
    """
    promised: dict[str, str] = {}
    plans: set[tuple[Plan, frozenset[str]]] = set()
    given = {*info.given, *info.sharing.listed_as.values()}  # maybe shares instead of whole GPUs
    bound = {
        uid: plan
        for uid, record in info.bound.items()
        if uid not in given and (plan := record.plan_for(info.name))
    }
    for uid, written in sorted({**info.plans, **info.assumed, **bound}.items()):
        if uid in info.plans and uid not in info.assumed and not info.keeps(uid):
            continue  # it lost a GPU and will be replaced; `filter` lets no pod through on it
        if uid in bound and (written.plan, written.uuids) in plans:
            continue
        plans.add((written.plan, written.uuids))
        for gpu in sorted(written.uuids):
            if gpu in promised:
                yield f"node {info.name}: {gpu} is promised to {promised[gpu]} and to {uid}"
            promised[gpu] = uid


def _holds_without_pod(cache: Cache) -> Iterator[str]:
    for what, uids in (("plan", cache.plans), ("assumed plan", cache.assumed)):
        for uid in uids:
            record = cache.pods.get(uid)
            if record is None or record.ended or record.node:
                yield f"{what} for {uid}, which is gone, has ended or is bound"


def _of_gang(cache: Cache, key: GangKey, gang: Gang) -> Iterator[str]:
    yield from gang.broken
    if key not in cache.gangs:
        return  # the planner forgets it in its next round
    # The phase is of the last round. In a pause of this one, the gang may have its next plans.
    if gang.phase is Phase.EXPIRED and gang.expired and members_of(cache, gang).planned:
        yield f"gang {gang.name}: expired, but still has plans"


def _charged_on(cache: Cache, uid: str) -> str:
    """The node of a pod that is planned or assumed."""
    assumed, plan = cache.assumed.get(uid), cache.plans.get(uid)
    if assumed:
        return next(iter(assumed))
    return "" if plan is None else plan.plan.node
