"""What must be true of gangs that move, in a cluster that lives through days.

- From the first eviction on, each member has a target, and all leave within HALF_SECONDS. Or one
  moves alone: one of the last ranks of a gang whose pods do not communicate, and enough stay.
- Once those that moved are recreated, they are bound within BOUND_SECONDS, each to a target; one
  with a rank to that of its rank.
- One that got its target is not moved again before `again_seconds` (`MoveLaws` looks at that).

Excused: a member ends or goes by itself, also one that was to stay, comes too late or asks for
something else, evictions are refused, kube-scheduler refused the targets, something about a
target's node changed, or the leader changed before all have left.
"""

from collections.abc import Collection, Iterable, MutableMapping
from dataclasses import dataclass, field

from linkwise.extender.next.moves.planned_moves import EVICT_SECONDS
from linkwise.extender.next.moves.targets import COME_SECONDS
from linkwise.kube.objects import Node, Pod
from linkwise.pods.claims import claims_of
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_plan
from tests.all_or_nothing import gang_of, minimum_of
from tests.extender.device_cluster import Device, devices_of
from tests.liveness.day import Day

BOUND_SECONDS = 120.0
HALF_SECONDS = EVICT_SECONDS + BOUND_SECONDS


@dataclass
class _MovedGang:
    name: str
    pods: dict[str, Pod]  # all members, by uid
    targets: dict[str, str]  # uid -> node
    since: float
    offers: object
    leader: object
    stay: frozenset[str]  # uids
    evicted: set[str] = field(default_factory=set)
    new: frozenset[str] = frozenset()  # uids, once all are there
    made: float = 0.0


class GangMoveLaws:
    def __init__(self, day: Day, last: MutableMapping[str, float]) -> None:
        """*last*: by the uid of each pod that got its target, when that was moved."""
        self._day, self._last = day, last
        self._moved: dict[str, _MovedGang] = {}
        self.arrived = self.alone = 0  # gangs, and members that moved alone

    def evicted(self, victim: Pod) -> None:
        day, name, uid = self._day, gang_of(victim), victim.metadata.uid
        known = self._moved.get(name)
        if known is None or uid not in known.pods:
            targets = day.core._planner.targets
            pods = {pod.metadata.uid: pod for pod in members(day, name) if pod.spec.node_name}
            found = {each: targets.of(each) for each in pods}
            nodes = {each: target.spot.node for each, target in found.items() if target is not None}
            going = {each: pods[each] for each in nodes}
            stay = [pod for each, pod in pods.items() if each not in going and pod.is_live]
            if stay and (why := self._is_not_spare(going.values(), stay)):
                text = f"{victim.metadata.name} leaves gang {name} at {day.now:.0f}, and {why}"
                day.failures.append(text)
            scene, leader = offers(day, nodes.values()), day.core._planner
            uids = frozenset(pod.metadata.uid for pod in stay)
            known = _MovedGang(name, going, nodes, day.now, scene, leader, uids)
            self._moved[name] = known
        known.evicted.add(uid)

    def _is_not_spare(self, going: Collection[Pod], stay: Collection[Pod]) -> str:
        """Why these do not leave the others alone."""
        if len(going) != 1 or any(_communicates(pod) for pod in (*going, *stay)):
            return "another member has no target"
        [pod] = going
        least = minimum_of(pod)
        if _rank(pod) and int(_rank(pod)) < least:
            return "it is not of the last ranks"
        return "too few stay" if self._day.knows_all and len(stay) < least else ""

    def look(self) -> None:
        for name, moved in [*self._moved.items()]:
            if self._is_excused(moved) or self._is_settled(moved):
                del self._moved[name]

    def _is_excused(self, moved: _MovedGang) -> bool:
        day = self._day
        there = [day.pods[uid] for uid in moved.pods if uid in day.pods]
        stay = [pod for pod in there if not pod.is_leaving]
        gone_unasked = moved.pods.keys() - moved.evicted - {pod.metadata.uid for pod in there}
        others = [day.pods.get(uid) for uid in moved.stay]
        return bool(
            gone_unasked
            or not day.taken.keys().isdisjoint(moved.targets.values())
            or any(map(day.is_touched, moved.pods.values()))
            or any(pod is None or not pod.is_live for pod in others)
            or moved.offers != offers(day, moved.targets.values())
            or day.trouble.evictions_refused
            or any(pod.has_ended for pod in stay)
            or (stay and moved.leader is not day.core._planner)
        )

    def _is_settled(self, moved: _MovedGang) -> bool:
        day = self._day
        there = [day.pods[uid] for uid in moved.pods if uid in day.pods]
        if any(not pod.is_leaving for pod in there):
            return self._is_late(moved, moved.since, HALF_SECONDS, "is half moved")
        if not moved.new:
            return self._is_in_vain(moved)
        new = [day.pods[uid] for uid in moved.new if uid in day.pods]
        if len(new) < len(moved.new) or any(not pod.is_live for pod in new):
            return True
        if not all(pod.spec.node_name for pod in new):
            return self._is_late(moved, moved.made, BOUND_SECONDS, "waits for its targets")
        self._judge(moved, new)
        return True

    def _is_in_vain(self, moved: _MovedGang) -> bool:
        """Whether the new members come too late, or ask for something else."""
        day = self._day
        known = moved.pods.keys() | moved.stay
        new = [p for p in members(day, moved.name) if p.metadata.uid not in known]
        new = [pod for pod in new if pod.is_live]
        asked = request(next(iter(moved.pods.values())))
        if day.now > moved.since + COME_SECONDS or any(request(pod) != asked for pod in new):
            return True
        if len(new) == len(moved.pods):
            moved.new, moved.made = frozenset(pod.metadata.uid for pod in new), day.now
        return False

    def _judge(self, moved: _MovedGang, new: list[Pod]) -> None:
        self.arrived += not moved.stay
        self.alone += bool(moved.stay)
        self._last.update((pod.metadata.uid, moved.since) for pod in new)
        if any(map(was_refused, new)):
            return
        wanted = [(_rank(moved.pods[uid]), node) for uid, node in moved.targets.items()]
        got = [(_rank(pod), pod.spec.node_name) for pod in new]
        if sorted(got) != sorted(wanted):
            self._day.failures.append(f"gang {moved.name} is at {got} and not at {wanted}")

    def _is_late(self, moved: _MovedGang, since: float, seconds: float, what: str) -> bool:
        day = self._day
        is_late = day.now > max(since, day.faults_at) + seconds
        if is_late:
            text = f"gang {moved.name} {what} from {since:.0f} to {day.now:.0f}"
            day.failures.append(text)
        return is_late


def members(day: Day, gang: str) -> list[Pod]:
    return [pod for pod in day.pods.values() if gang and gang_of(pod) == gang]


def offers(day: Day, nodes: Iterable[str]) -> object:
    """A value that differs after each change of what *nodes* offer."""
    found = ((name, day.nodes.get(name)) for name in nodes)
    return [
        (name, name in day.no_plugin, node and node.spec, node and _shown(node), _others(day, name))
        for name, node in found
    ]


def _others(day: Day, node: str) -> set[Device]:
    """What claims have there of which Linkwise decides nothing."""
    claims = [c for c in day.claims.values() if names.EDITION not in c.metadata.annotations]
    return {device for claim in claims for device in devices_of(claim) if device.pool == node}


def was_refused(pod: Pod) -> bool:
    return bool(read_plan(pod.metadata.annotations[names.PLAN]).refusals)


def request(pod: Pod) -> object:
    ask = claims_of(pod.metadata.annotations, pod.spec)
    return pod.spec.containers, None if ask is None else ask.requests


def _shown(node: Node) -> tuple[str | None, ...]:
    said = node.metadata.annotations
    return said.get(names.TOPOLOGY), said.get(names.EMPTY)


def _communicates(pod: Pod) -> bool:
    return pod.metadata.annotations.get(names.COMMUNICATOR) != "pod"


def _rank(pod: Pod) -> str:
    return pod.metadata.annotations.get(names.RANK, "")
