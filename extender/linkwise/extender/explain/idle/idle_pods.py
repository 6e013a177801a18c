"""The pods of which their nodes' plugins say that they are idle."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from linkwise.extender.api.records import PodRecord
from linkwise.extender.api.views import IdlePod, IdleView
from linkwise.extender.explain.idle.would_start import IdleUnit, WouldStart
from linkwise.extender.explain.node_arrays import Field
from linkwise.extender.explain.snapshot import NodeState, Snapshot
from linkwise.topology.annotations.activity import (
    STALE_SECONDS,
    Activity,
    PodActivity,
    read_activity,
)
from linkwise.topology.errors import AnnotationError

_NOTHING = Activity(at=0)


@dataclass(frozen=True, slots=True)
class _Held:
    """A pod with whole GPUs of one node."""

    record: PodRecord
    node: NodeState
    gpus: int  # bitmask
    activity: PodActivity | None  # None: not known


def view_idle(snapshot: Snapshot) -> IdleView:
    held = list(_all_held(snapshot))
    idle = [each for each in held if _is_idle(each)]
    working = {each.record.gang for each in held if not _is_idle(each)} - {None}
    units = _units(each for each in idle if each.record.gang not in working)
    found = WouldStart(Field(snapshot)).all(units)
    return IdleView(
        at=snapshot.at,
        pods=tuple(
            _view(each, snapshot.at, gang_works=each.record.gang in working)
            for each in sorted(idle, key=lambda each: (_idle_since(each), each.record.key))
        ),
        not_idle=sum(each.activity is not None for each in held) - len(idle),
        unknown=sum(each.activity is None for each in held),
        waiting=found.waiting,
        untried=found.untried,
        would_start=found.views,
    )


def _all_held(snapshot: Snapshot) -> Iterator[_Held]:
    for node in snapshot.nodes:
        said = _activity_of(snapshot, node)
        for uid, gpus in node.owned.items():
            record = snapshot.by_uid.get(uid)
            # Before the kubelet lists a pod, its GPUs are only planned for it.
            if record is not None and record.live and record.node and gpus & node.used:
                yield _Held(record, node, gpus, said.pods.get(record.key))


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


def _is_idle(held: _Held) -> bool:
    return held.activity is not None and held.activity.idle is not None


def _idle_since(held: _Held) -> float:
    """A pod that was created again under its name cannot have been idle before."""
    idle = held.activity.idle if held.activity is not None else None
    return max(idle or 0.0, held.record.created)


def _units(idle: Iterable[_Held]) -> list[IdleUnit]:
    """Pods that would have to go together, those that are idle for longest first."""
    found: dict[object, list[_Held]] = {}
    for each in sorted(idle, key=_idle_since):
        found.setdefault(each.record.gang or each.record.uid, []).append(each)
    return [IdleUnit(tuple((held.record, held.node) for held in unit)) for unit in found.values()]


def _view(held: _Held, at: float, *, gang_works: bool) -> IdlePod:
    record, activity = held.record, held.activity
    assert activity is not None, "it is idle"
    since = min(_idle_since(held), at)
    in_gang = record.ask.gang is not None and record.gang is not None
    return IdlePod(
        pod=record.key,
        gang=record.gang.name if in_gang and record.gang is not None else "",
        gang_works=gang_works,
        node=held.node.name,
        gpus=held.gpus.bit_count(),
        since=since,
        at_least=not activity.whole and since <= activity.since,
        day_percent=activity.day,
        memory_gib=activity.memory,
    )
