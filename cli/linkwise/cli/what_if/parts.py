"""The job in a live listing: its gangs, and the place of each pod."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from linkwise.cli.what_if.answer import PartState, Place
from linkwise.cli.what_if.in_shares import offers_any
from linkwise.cli.what_if.live_listing import LiveListing
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.funnel import alike
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.views import Explanation, GangExplanation
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_plan


def _without_gate(record: PodRecord) -> PodRecord:
    """A pod in no gang that waits, as kube-scheduler tries it. Behind the gate there are only whole
    GPUs."""
    if record.node or record.ask.gang is not None:
        return record
    return replace(record, gated=False, gang=None)


@dataclass(frozen=True, slots=True)
class Group:
    """Pods of the job that start together: a gang, or one pod."""

    key: GangKey
    uids: tuple[str, ...]  # those with GPUs, in the order of ranks
    enough: int  # number of these that is enough
    size: int
    minimum: int
    others: int  # pods of the cluster in the same gang

    @property
    def is_gang(self) -> bool:
        return not self.key.uid

    def state(self, live: LiveListing) -> PartState:
        have = sum(is_placed(live, uid) for uid in self.uids)
        if have == len(self.uids):
            return PartState.FITS
        return PartState.STARTS if have >= self.enough else PartState.WAITS


def groups_of(snapshot: Snapshot, uids: Iterable[str]) -> tuple[Group, ...]:
    """Return the groups of the job's pods with GPUs, in the given order."""
    found: dict[GangKey, list[PodRecord]] = {}
    mine = frozenset(uids)
    for uid in uids:
        record = snapshot.by_uid.get(uid)
        if record is not None and record.demand.gpus:
            name = record.ref
            key = record.gang or GangKey(name.namespace, name.name, name.uid)
            found.setdefault(key, []).append(record)
    return tuple(_group(snapshot, key, members, mine) for key, members in found.items())


def _group(
    snapshot: Snapshot, key: GangKey, members: Sequence[PodRecord], mine: frozenset[str]
) -> Group:
    uids = tuple(record.uid for record in sorted(members, key=lambda record: record.order))
    known = snapshot.gang_by_key.get(key)
    if known is None or known.alone:
        return Group(key, uids, len(uids), len(uids), len(uids), 0)
    members_of = known.found
    without = sum(m.uid in mine and not m.demand.gpus for m in members_of.all)
    enough = max(1, min(len(uids), members_of.minimum - without))
    others = sum(not (member.uid in mine or member.coming) for member in members_of.all)
    return Group(key, uids, enough, members_of.size, members_of.minimum, others)


def is_placed(live: LiveListing, uid: str) -> bool:
    pod = live.pods.get(uid)
    return pod is not None and bool(pod.spec.node_name)


def all_start(live: LiveListing, groups: Iterable[Group]) -> bool:
    return all(group.state(live) is not PartState.WAITS for group in groups)


def places_of(
    live: LiveListing, snapshot: Snapshot, group: Group, guessed: frozenset[str]
) -> tuple[tuple[Place, ...], str]:
    """Return the places, and the span that they share."""
    places, spans = [], set[str]()
    for uid in group.uids:
        record = snapshot.by_uid[uid]
        pod = live.pods[uid]
        node = ""
        indices: tuple[int, ...] = ()
        uuids: tuple[str, ...] = ()
        shares: tuple[str, ...] = ()
        link, gbytes = "", 0.0
        if pod.spec.node_name:
            plan = read_plan(pod.metadata.annotations[names.PLAN])
            node = plan.node
            spans.add(plan.span)
            written = snapshot.plan_of(record)
            state = snapshot.node_named[node]
            assert written is not None, "it is bound by its plan"
            assert state.machine is not None, "something was planned on it"
            mask = state.machine.mask_of(written.uuids)
            shares = tuple(each for planned in plan.shares for each in planned.ids)
            indices = state.machine.indices_of(mask | state.shares.gpus_of(plan.shares))
            if len(indices) > 1:
                link, gbytes = plan.link, plan.gbytes_per_s
            uuids = tuple(
                gpu.uuid for place, gpu in enumerate(state.machine.gpus) if mask >> place & 1
            )
        places.append(
            Place(
                record.ref.name,
                record.demand.gpus,
                record.ask.rank,
                node,
                indices,
                None if node in guessed else uuids,
                shares,
                link,
                gbytes,
            )
        )
    return tuple(places), spans.pop() if len(spans) == 1 else ""


def planned_at(live: LiveListing, group: Group) -> float:
    """Return when the last placed pod of the group got its GPUs."""
    pods = (live.pods[uid] for uid in group.uids if is_placed(live, uid))
    return max(read_plan(pod.metadata.annotations[names.PLAN]).made for pod in pods)


def gpus_of(snapshot: Snapshot, group: Group) -> Mapping[str, int]:
    """Return node -> bitmask of the group's GPUs."""
    found: dict[str, int] = {}
    for uid in group.uids:
        record = snapshot.by_uid[uid]
        written = snapshot.plan_of(record)
        state = snapshot.node_named.get(record.node)
        if written is not None and state is not None and state.machine is not None:
            mask = state.machine.mask_of(written.uuids)
            found[state.name] = found.get(state.name, 0) | mask
    return found


class Explanations:
    """Why groups wait. Computed once for pods that are alike, of which there may be thousands."""

    def __init__(self, snapshot: Snapshot) -> None:
        if offers_any(snapshot):
            snapshot = replace(snapshot, pods=[*map(_without_gate, snapshot.pods)])
        self._snapshot, self._explainer = snapshot, Explainer(snapshot)
        self._known: dict[object, Explanation | None] = {}

    def of(self, group: Group) -> GangExplanation | Explanation | None:
        namespace, name = group.key.namespace, group.key.name
        if group.is_gang:
            return self._explainer.gang(namespace, name)
        record = self._snapshot.by_uid[group.uids[0]]
        kind = (alike(record), record.priority, bool(record.node))
        if kind not in self._known:
            self._known[kind] = self._explainer.pod(namespace, name)
        found = self._known[kind]
        if found is None:
            return None
        return replace(found, namespace=namespace, name=name, uid=record.uid)
