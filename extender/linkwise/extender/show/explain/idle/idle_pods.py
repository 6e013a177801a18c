"""The pods of which their nodes' plugins say that they are idle."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from linkwise.extender.show.explain.idle.would_start import IdleUnit, WouldStart
from linkwise.extender.show.explain.node_arrays import Field
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import IdlePod, IdleView
from linkwise.topology.annotations.activity import (
    STALE_SECONDS,
    Activity,
    PodActivity,
    read_activity,
)
from linkwise.topology.errors import AnnotationError

_NOTHING = Activity(at=0)
_IDLE = '"idle"'  # in the annotation of each node with an idle pod


@dataclass(frozen=True, slots=True)
class Held:
    """A pod with whole GPUs of one node."""

    record: PodRecord
    node: NodeState
    gpus: int  # bitmask
    activity: PodActivity | None  # None: not known

    @property
    def is_idle(self) -> bool:
        return self.activity is not None and self.activity.idle is not None

    @property
    def idle_since(self) -> float:
        """A pod that was created again under its name cannot have been idle before."""
        idle = self.activity.idle if self.activity is not None else None
        return max(idle or 0.0, self.record.created)


def held_on(snapshot: Snapshot, node: NodeState) -> Iterator[Held]:
    """The pods that have whole GPUs of *node*, with what its plugin says of them."""
    said = _activity_of(snapshot, node)
    for uid, gpus in node.owned.items():
        record = snapshot.by_uid.get(uid)
        # Before the kubelet lists a pod, its GPUs are only planned for it.
        if record is not None and record.live and record.node and gpus & node.used:
            yield Held(record, node, gpus, said.pods.get(record.key))


def idle_pods(snapshot: Snapshot) -> list[Held]:
    """The idle pods, those that have been idle for longest first. Of nodes without one, it reads
    nothing."""
    named = (name for name, text in snapshot.activity.items() if _IDLE in text)
    nodes = (node for name in named if (node := snapshot.node_named.get(name)) is not None)
    return _longest_first(each for node in nodes for each in held_on(snapshot, node))


def view_idle(snapshot: Snapshot) -> IdleView:
    held = [each for node in snapshot.nodes for each in held_on(snapshot, node)]
    idle = _longest_first(held)
    working = {each.record.gang for each in held if not each.is_idle} - {None}
    units = _units(each for each in idle if each.record.gang not in working)
    found = WouldStart(Field(snapshot)).all(units)
    return IdleView(
        at=snapshot.at,
        pods=tuple(
            view_pod(
                each,
                snapshot.at,
                gang_works=each.record.gang in working,
                reclaim_from=snapshot.reclaim_from.get(each.record.uid),
            )
            for each in idle
        ),
        not_idle=sum(each.activity is not None for each in held) - len(idle),
        unknown=sum(each.activity is None for each in held),
        waiting=found.waiting,
        untried=found.untried,
        would_start=found.views,
    )


def _activity_of(snapshot: Snapshot, node: NodeState) -> Activity:
    """What the plugin says; nothing if it cannot be read, or has not been renewed in time."""
    try:
        said = read_activity(snapshot.activity.get(node.name, ""))
    except AnnotationError:
        return _NOTHING
    if snapshot.at - said.at <= STALE_SECONDS:
        return said
    # Only while a pod is idle, the plugin renews what it says.
    return Activity(at=said.at, pods={k: v for k, v in said.pods.items() if v.idle is None})


def _longest_first(held: Iterable[Held]) -> list[Held]:
    idle = (each for each in held if each.is_idle)
    return sorted(idle, key=lambda each: (each.idle_since, each.record.key))


def _units(idle: Iterable[Held]) -> list[IdleUnit]:
    """Pods that would have to go together, in the order of *idle*."""
    found: dict[object, list[Held]] = {}
    for each in idle:
        found.setdefault(each.record.gang or each.record.uid, []).append(each)
    return [IdleUnit(tuple((held.record, held.node) for held in unit)) for unit in found.values()]


def view_pod(
    held: Held, at: float, *, gang_works: bool, reclaim_from: float | None = None
) -> IdlePod:
    """*held* is idle."""
    record, activity = held.record, held.activity
    assert activity is not None, "it is idle"
    since = min(held.idle_since, at)
    return IdlePod(
        pod=record.key,
        gang=record.gang_name.partition("/")[2],
        gang_works=gang_works,
        node=held.node.name,
        gpus=held.gpus.bit_count(),
        since=since,
        at_least=not activity.whole and since <= activity.since,
        day_percent=activity.day,
        memory_gib=activity.memory,
        reclaim_from=None if gang_works else reclaim_from,
    )
