"""What must be true of planned moves in a cluster that lives through days.

- Only pods that consent and are recreated are moved, for what is no less important, or from a node
  that is being emptied. `gang_move_laws` has more of gangs.
- One that got its target is not moved again before `again_seconds`.
- kube-scheduler would let each go to its target, when that is new and the core knows all.
- One that was moved gets its target within BOUND_SECONDS after it was recreated. Excused:
  it comes too late or asks for something else, kube-scheduler refused or refuses the target, as it
  does if it has lost calls, something about the node changed, or the leader did while a node was
  emptied.
- What the others were moved for starts within BOUND_SECONDS after they are gone. Excused: it goes
  away, the leader or something about a node changed, evictions are refused, a
  pod there does not end, what is as urgent starts or what is more important comes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from linkwise.extender.next.core_settings import Moves
from linkwise.extender.next.moves.planned_moves import REASON
from linkwise.extender.next.moves.targets import COME_SECONDS, Target
from linkwise.extender.state.actions import Beneficiary, Evict
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import Missing, ObjectRef
from linkwise.topology import names
from tests.all_or_nothing import gang_of, minimum_of
from tests.liveness.day import Day, owner_of
from tests.liveness.gang_move_laws import (
    BOUND_SECONDS,
    GangMoveLaws,
    members,
    offers,
    request,
    was_refused,
)
from tests.odd_pods import is_honest

_NEW_SECONDS = 5.0


@dataclass
class _Moved:
    """A pod that was evicted, and whose replacement has a target."""

    pod: Pod
    node: str
    since: float
    scene: object
    empties: bool  # its node is being emptied
    replacement: str = ""  # uid
    made: float = 0.0


@dataclass
class _Claim:
    """Of what waits for the room of pods that were moved."""

    priority: int
    pods: frozenset[str]  # uids
    scene: object
    since: float  # the last of *victims* was there
    victims: set[str]
    ahead: frozenset[str]  # the pods that waited too, and are at least as urgent
    room: frozenset[str]  # nodes


class MoveLaws:
    def __init__(self, day: Day) -> None:
        self._day = day
        self._last: dict[str, float] = {}  # by the uid of the new pod: when the old one was moved
        self._moved: list[_Moved] = []
        self._claims: dict[str, _Claim] = {}
        self.gangs = GangMoveLaws(day, self._last)
        self.moves = 0

    def evicted(self, victim: Pod, by: Evict) -> None:
        """Call it before the eviction, which may be a repeated one."""
        day, name = self._day, victim.metadata.name
        if by.event != REASON or victim.metadata.deletion_timestamp:
            return
        self.moves += 1
        if why := self._is_wrong(victim, by.for_whom):
            day.failures.append(f"{name} is moved at {day.now:.0f}, and {why}")
        leader = day.core._planner
        when = self._last.get(victim.metadata.uid, -math.inf)
        if day.now - when < day.settings.moves.again_seconds:
            day.failures.append(f"{name} is moved at {day.now:.0f} and {when:.0f}")
        empties = by.for_whom is None
        target = leader.targets.of(victim.metadata.uid)
        if target is not None and self._is_in_vain(victim, target):
            node = target.spot.node
            day.failures.append(f"{name} is moved at {day.now:.0f} to {node}, which refuses it")
        if gang_of(victim) and not empties:
            self.gangs.evicted(victim)
        else:
            assert target is not None
            node = target.spot.node
            self._moved.append(
                _Moved(victim, node, day.now, self._scene_of(node, empties), empties)
            )
        if by.for_whom is None:
            return
        title = by.for_whom.title
        claim = self._claims.get(title)
        if claim is None:
            pods = frozenset(pod.metadata.uid for pod in self._claimants(title))
            ahead = frozenset(pod.metadata.uid for pod in self._ahead_of(title))
            scene = self._scene(day.nodes)
            plan = next(p for key, p in leader.moves.plans.items() if key.title == title)
            room = frozenset(spot.node for spot in plan.spots)
            claim = _Claim(by.for_whom.priority, pods, scene, day.now, set(), ahead, room)
            self._claims[title] = claim
        claim.victims.add(victim.metadata.uid)

    def _is_wrong(self, victim: Pod, for_whom: Beneficiary | None) -> str:
        day = self._day
        if day.settings.moves.moves is not Moves.CONSENT or not self._consents(victim):
            return "does not consent, or is not recreated"
        if any(not self._consents(pod) for pod in members(day, gang_of(victim))):
            return "another of its gang does not consent"
        if for_whom is None:
            is_emptied = victim.spec.node_name in day.core._cache.emptied
            return "" if is_emptied and not gang_of(victim) else "its node is not emptied for it"
        priorities = [pod.spec.priority for pod in self._claimants(for_whom.title)]
        if victim.spec.priority > min(priorities, default=victim.spec.priority):
            return f"is more important than {for_whom.title}"
        return ""

    def _is_in_vain(self, victim: Pod, target: Target) -> bool:
        day = self._day
        if target.spot.node in day.taken:
            return False
        is_new = day.now <= target.began + _NEW_SECONDS and day.knows_all
        return is_new and not day.scheduler.passes(victim, target.spot.node)

    def _consents(self, pod: Pod) -> bool:
        return pod.metadata.annotations.get(names.MOVABLE) == "true" and self._is_made_anew(pod)

    def _is_made_anew(self, pod: Pod) -> bool:
        owner = next((each for each in pod.metadata.owner_references if each.controller), None)
        if owner is None or owner.kind == "ReplicaSet":
            return owner is not None
        ref = ObjectRef("batch", "Job", pod.metadata.namespace, owner.name)
        job = self._day.read_owner(ref)
        return not (job is None or isinstance(job, Missing)) and "Ignore" in str(job)

    def look(self) -> None:
        self.gangs.look()
        self._moved = [each for each in self._moved if not self._is_settled(each)]
        for title, claim in [*self._claims.items()]:
            if self._is_over(title, claim):
                del self._claims[title]

    def _is_settled(self, moved: _Moved) -> bool:
        """Whether its replacement has a node, or something excuses that it has none."""
        day = self._day
        is_hostile = moved.node in day.taken or day.is_touched(moved.pod)
        if is_hostile or moved.scene != self._scene_of(moved.node, moved.empties):
            return True
        if not moved.replacement:
            pod = self._replacement(moved)
            if pod is None:
                return day.now > moved.since + COME_SECONDS
            if request(pod) != request(moved.pod) or day.now > moved.since + COME_SECONDS:
                return True
            moved.replacement, moved.made = pod.metadata.uid, day.now
        now = day.pods.get(moved.replacement)
        if now is None or now.is_leaving:
            return True
        if now.spec.node_name:
            self._last[now.metadata.uid] = moved.since
            if now.spec.node_name != moved.node and not was_refused(now):
                day.failures.append(
                    f"{now.metadata.name} goes to {now.spec.node_name} and not to its target "
                    f"{moved.node} at {day.now:.0f}"
                )
            return True
        if not day.scheduler.passes(now, moved.node):
            return True
        if day.now - max(moved.made, day.faults_at) <= BOUND_SECONDS:
            return False
        day.failures.append(
            f"{now.metadata.name} was moved at {moved.since:.0f} and recreated at "
            f"{moved.made:.0f}, and waits at {day.now:.0f} for {moved.node}"
        )
        return True

    def _replacement(self, moved: _Moved) -> Pod | None:
        owner, old = owner_of(moved.pod), moved.pod.metadata.uid
        pods = self._day.pods.values()
        return next(
            (p for p in pods if is_honest(p) and owner_of(p) == owner and p.metadata.uid != old),
            None,
        )

    def _is_over(self, title: str, claim: _Claim) -> bool:
        """Whether it has started, is gone, or something excuses that it has not."""
        day, pods = self._day, [*self._claimants(title)]
        bound = [pod for pod in pods if pod.spec.node_name]
        if not pods or len(bound) >= (minimum_of(pods[0]) if gang_of(pods[0]) else 1):
            return True
        if not claim.pods <= {pod.metadata.uid for pod in pods}:
            return True
        if claim.scene != self._scene(day.nodes) or self._is_behind(claim):
            return True
        if claim.room & day.taken.keys() or any(map(day.is_touched, pods)):
            return True
        # Some of those that are to move are still there, or one that was leaving stays.
        if day.trouble.evictions_refused or any(
            pod.spec.node_name in claim.room and pod.metadata.name in day.stuck
            for pod in day.pods.values()
        ):
            return True
        if claim.victims & day.pods.keys():
            claim.since = day.now
        if day.now - max(claim.since, day.faults_at) <= BOUND_SECONDS:
            return False
        day.failures.append(
            f"the last pod that moved for {title} was there at {claim.since:.0f}, and it has not "
            f"started at {day.now:.0f}"
        )
        return True

    def _is_behind(self, claim: _Claim) -> bool:
        """Whether something more urgent started, or something more important came."""
        return any(
            pod.spec.node_name
            if uid in claim.ahead
            else pod.spec.priority > claim.priority and _created(pod) >= claim.since
            for uid, pod in self._day.pods.items()
        )

    def _ahead_of(self, title: str) -> Iterable[Pod]:
        claimants = [*self._claimants(title)]
        first = min(map(_urgency, claimants), default=None)
        if first is None:
            return ()
        pods = (pod for pod in self._day.pods.values() if not pod.spec.node_name)
        return (pod for pod in pods if _urgency(pod) <= first and pod not in claimants)

    def _claimants(self, title: str) -> Iterable[Pod]:
        return (
            pod
            for pod in self._day.pods.values()
            if not pod.has_ended
            and title
            in (f"gang {gang_of(pod)}", f"pod {pod.metadata.namespace}/{pod.metadata.name}")
        )

    def _scene(self, nodes: Iterable[str]) -> object:
        """A value that differs after each change of the leader and of what *nodes* offer."""
        return (
            self._day.core._planner,
            self._day.trouble.evictions_refused,
            offers(self._day, nodes),
        )

    def _scene_of(self, target: str, empties: bool) -> object:
        return self._scene([target]) if empties else offers(self._day, [target])


def _urgency(pod: Pod) -> tuple[int, float]:
    return -pod.spec.priority, _created(pod)


def _created(pod: Pod) -> float:
    created = pod.metadata.creation_timestamp
    return 0.0 if created is None else created.timestamp()
