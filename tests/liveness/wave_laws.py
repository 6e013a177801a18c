"""What must be true of gangs whose owners create some members only after others run, and of gangs
that lose a member.

- W. No member is bound while another one has no place, unless the gang has started before. Those
  that its owner is yet to create count too.
- Places of a later wave are given back at a stated time after the others are ready. Nothing is
  kept, or noted, for a gang that has no pods any more, nor for a lost member after its time.
- L. A member that comes, for the first time or again, gets the node and the GPUs that are kept for
  it, within BOUND_SECONDS. Meanwhile no other pod gets them, and they are kept for as long as
  stated.

Excused: the leader is away, writes get lost, a node is closed or has lost its plugin or a GPU.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from linkwise.extender.next.gangs.members import minimum_of
from linkwise.extender.next.gangs.to_come import LEAVING_SECONDS, WHOLE_SECONDS
from linkwise.extender.state.actions import Evict
from linkwise.extender.state.noted_places import read_places
from linkwise.extender.state.records import GangKey, PodRecord, Seat
from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus
from tests.liveness.day import Day, workload_of
from tests.liveness.waves import Owner, Waves

BOUND_SECONDS = 60.0
_SLACK_SECONDS = 15.0  # the grace period of a pod that leaves, and a watch that is late
_LONGEST_TURN_SECONDS = 3600.0
_BACK_OFF_SECONDS, _LONGEST_BACK_OFF_SECONDS = 10.0, 600.0
_GONE_SECONDS = 60.0


@dataclass(slots=True)
class _Kept:
    node: str
    gpus: frozenset[str]
    since: float
    lost_since: float | None  # None: the member is still to come for the first time
    given: bool = False  # its pod has come
    given_at: float = 0.0
    came: str = ""  # uid of that pod


@dataclass(slots=True)
class _Run:
    """A gang, from its first Binding until no pod of it has a node."""

    began: float
    started: bool = False
    came: float = 0.0
    ready_since: float | None = None
    pods: frozenset[str] = frozenset()


class WaveLaws:
    def __init__(self, day: Day, waves: Waves | None) -> None:
        self._day, self._waves = day, waves
        self._kept: dict[tuple[GangKey, Seat], _Kept] = {}
        self._runs: dict[GangKey, _Run] = {}
        self._empty_since: dict[GangKey, float] = {}
        self._bad_nodes: dict[str, float] = {}  # when each was last unusable
        self._disturbed: dict[GangKey, float] = {}  # when members were last evicted
        self.kept = self.whole = self.later = 0  # places that were used, gangs that started
        day.before_bind = self._bind

    # W.

    def _bind(self, pod: Pod, node: str) -> None:
        day, cache = self._day, self._day.core._cache
        record = cache.pods.get(pod.metadata.uid)
        if record is None or record.gang is None or record.gang.uid:
            return
        key = record.gang
        if day.is_touched(pod) or node in day.taken:
            return
        owner, place = self._owner_of(pod)
        if not record.demand.gpus or not (owner or record.to_come):
            return
        if owner is None and record.claim is not None:
            return  # the law of gangs with claims, which a stranger may leave partial, judges it
        there = self._on_nodes(key)
        run = self._runs.get(key)
        if run is None or not there - {pod.metadata.uid}:
            run = self._runs[key] = _Run(day.now, came=day.now)
        wanted = minimum_of(record)
        if owner is not None:
            wanted = sum(_takes_gpus(owner, each) for each in owner.together(place))
        members = [cache.pods[uid] for uid in cache.gangs.get(key, ())]
        placed = sum(map(self._is_placed, members))
        if not run.started and placed < wanted:
            day.failures.append(
                f"{pod.metadata.name} is bound at {day.now:.1f}, and {placed} of the {wanted} "
                f"members of {key.name} have places"
            )
        self._gets_its_place(key, record, pod, node)
        there.add(pod.metadata.uid)
        if not run.started and len(there) >= self._gpus_wanted(owner, place, wanted):
            run.started = True
            self.whole += 1
            self.later += any(record.to_come for record in members)

    def _gpus_wanted(self, owner: Owner | None, place: int, wanted: int) -> int:
        """How many members that take GPUs are to be bound."""
        if owner is None:
            return wanted
        return sum(
            _takes_gpus(owner, each) and each not in owner.done for each in owner.together(place)
        )

    def _is_placed(self, member: PodRecord) -> bool:
        cache, uid = self._day.core._cache, member.uid
        if member.ended:
            return not member.failed
        return member.live and bool(
            member.node
            or uid in cache.plans
            or cache.is_being_bound(uid)
            or (not member.demand.gpus and not member.held_back)
        )

    def _owner_of(self, pod: Pod) -> tuple[Owner | None, int]:
        none: tuple[Owner | None, int] = (None, 0)
        return none if self._waves is None else self._waves.of_pod.get(pod.metadata.uid, none)

    def _on_nodes(self, key: GangKey) -> set[str]:
        """The uids of the gang's pods that have a node and are to stay."""
        return {pod.metadata.uid for pod in self._pods(key) if pod.spec.node_name and pod.is_live}

    def _pods(self, key: GangKey) -> Iterator[Pod]:
        for uid in self._day.core._cache.gangs.get(key, ()):
            if uid in self._day.pods:
                yield self._day.pods[uid]

    # Places.

    def look(self) -> None:
        self._look_at_nodes()
        self._look_at_runs()
        self._look_at_kept()
        self._look_at_remains()

    @property
    def _calm_since(self) -> float:
        day = self._day
        away = day.now if day.trouble.no_leader or day.trouble.writes_lost else -math.inf
        return max(day.faults_at, day.led_at, away)

    def _look_at_nodes(self) -> None:
        day = self._day
        for name, node in day.nodes.items():
            book = day.core._cache.nodes.get(name)
            is_bad = (
                name in day.no_plugin
                or name in day.taken
                or node.spec.unschedulable
                or book is None
                or bool(book.closed)
                or any(not gpu.healthy for gpu in day.machine(name).gpus)
            )
            if is_bad:
                self._bad_nodes[name] = day.now

    def _look_at_runs(self) -> None:
        day = self._day
        for key in [*self._runs]:
            run, there = self._runs[key], self._on_nodes(key)
            if not there:
                del self._runs[key]
                continue
            live = [pod for pod in self._pods(key) if pod.is_live]
            uids = frozenset(pod.metadata.uid for pod in live)
            if uids - run.pods:
                run.came = day.now
            run.pods = uids
            if all(_is_ready(pod) for pod in live if pod.spec.node_name):
                run.ready_since = day.now if run.ready_since is None else run.ready_since
            else:
                run.ready_since = None
            if not run.started and day.now > self._ends(run):
                kept = [seat for of, seat in self._coming_planned() if of == key]
                if kept:
                    day.failures.append(
                        f"{key.name} keeps places of members that do not come at {day.now:.0f}"
                    )

    def _ends(self, run: _Run) -> float:
        settings = self._day.settings
        since = max(run.came, run.began, self._calm_since)
        if run.ready_since is None:
            longest = settings.gang_timeout_seconds + _LONGEST_TURN_SECONDS
            return since + longest + settings.wave_seconds + BOUND_SECONDS
        return max(run.ready_since, since) + settings.wave_seconds + BOUND_SECONDS

    def _coming_planned(self) -> dict[tuple[GangKey, Seat], tuple[PodRecord, str, frozenset[str]]]:
        cache = self._day.core._cache
        found: dict[tuple[GangKey, Seat], tuple[PodRecord, str, frozenset[str]]] = {}
        for member in self._day.core._planner.to_come.records():
            written = cache.plans.get(member.uid)
            if written is not None and member.gang is not None:
                found[member.gang, member.seat] = member, written.plan.node, written.uuids
        return found

    def _look_at_kept(self) -> None:
        day = self._day
        coming = self._coming_planned()
        lost = {
            (key, seat): gone
            for key, of in day.core._planner.to_come._lost.items()
            for seat, gone in of.items()
        }
        for place, (_, node, gpus) in coming.items():
            known = self._kept.get(place)
            gone = lost.get(place)
            if known is None or (known.node, known.gpus) != (node, gpus) or known.given:
                since = None if gone is None else day.now
                known = self._kept[place] = _Kept(node, gpus, day.now, since)
            if known.lost_since is not None:
                self._look_at_lost(place[0], place[1], known)
            self._nobody_else_has(place[0], known)
        for place in [*self._kept]:
            if place not in coming:
                self._look_at_given(place, self._kept[place])

    def _look_at_lost(self, key: GangKey, seat: Seat, kept: _Kept) -> None:
        day = self._day
        there = [pod for pod in self._pods(key) if self._seat(pod) == seat and pod.spec.node_name]
        if any(not pod.has_ended for pod in there):
            kept.lost_since = day.now  # it is leaving
        assert kept.lost_since is not None
        failed = sum(pod.status.phase == "Failed" for pod in self._pods(key))
        back_off = min(_BACK_OFF_SECONDS * 2.0 ** max(failed - 1, 0), _LONGEST_BACK_OFF_SECONDS)
        longest = day.settings.replacement_seconds + back_off + _SLACK_SECONDS
        run = self._runs.get(key)
        if run is not None and not run.started:
            return  # `_ends` has its time
        if day.now > max(kept.lost_since, self._calm_since) + longest:
            day.failures.append(f"{key.name} keeps the place of {seat} too long at {day.now:.0f}")

    def _nobody_else_has(self, key: GangKey, kept: _Kept) -> None:
        """Of the GPUs that are kept, by the kubelets' word; those of nodes that were closed may be
        gone."""
        day = self._day
        if self._was_disturbed(key, kept):
            return
        for title, given in day.held.get(kept.node, {}).items():
            pod = next((p for p in day.pods.values() if p.key == title), None)
            taken = kept.gpus.intersection(uuid for gpus in given.values() for uuid in gpus)
            if pod is None or not taken or names.PLAN not in pod.metadata.annotations:
                continue
            record = day.core._cache.pods.get(pod.metadata.uid)
            if pod.is_live and (record is None or record.gang != key):
                day.failures.append(f"{title} has GPUs that {key.name} keeps at {day.now:.0f}")

    def _look_at_given(self, place: tuple[GangKey, Seat], kept: _Kept) -> None:
        """No member to come has it any more: a pod has come for it, or it was given back."""
        day, (key, seat) = self._day, place
        waiting = [
            pod
            for pod in self._pods(key)
            if self._seat(pod) == seat and not pod.spec.node_name and pod.is_live
        ]
        if not waiting:
            if not kept.given:
                self._was_kept_long_enough(key, seat, kept)
            del self._kept[place]
            return
        if not kept.given:
            kept.given, kept.given_at, kept.came = True, day.now, waiting[0].metadata.uid
        if waiting[0].metadata.uid != kept.came or waiting[0].spec.scheduling_gates:
            del self._kept[place]
            return
        if not self._is_whole(key):
            del self._kept[place]  # with others missing, the whole gang is placed again
            return
        if self._was_disturbed(key, kept) or day.other_filters:
            kept.given_at = day.now
            return
        if day.now > max(kept.given_at, self._calm_since) + BOUND_SECONDS:
            name = waiting[0].metadata.name
            day.failures.append(f"{name} does not get the place that was kept at {day.now:.0f}")
            del self._kept[place]

    def _is_whole(self, key: GangKey) -> bool:
        """Whether all members have places, without which no one is bound unless the gang runs."""
        run, cache = self._runs.get(key), self._day.core._cache
        members = [cache.pods[uid] for uid in cache.gangs.get(key, ())]
        least = max(map(minimum_of, members), default=0)
        is_started = run is not None and run.started
        return is_started or sum(map(self._is_placed, members)) >= least

    def _was_kept_long_enough(self, key: GangKey, seat: Seat, kept: _Kept) -> None:
        day = self._day
        pods = [pod for pod in self._pods(key) if pod.is_live]
        there = [pod for pod in pods if pod.spec.node_name]
        if kept.lost_since is None or any(self._seat(pod) == seat for pod in pods):
            return
        ended = (pod for pod in self._pods(key) if pod.status.phase == "Succeeded")
        if any(self._seat(pod) == seat for pod in ended):
            return  # it was deleted, and had done its part as it ended
        if self._was_disturbed(key, kept) or not there:
            return
        owner, _ = self._owner_of(there[0])
        if owner is None or owner.is_over:
            return
        if day.now < kept.lost_since + day.settings.replacement_seconds - 1.0:
            day.failures.append(f"{key.name} gives up the place of {seat} at {day.now:.0f}")

    def _was_disturbed(self, key: GangKey, kept: _Kept) -> bool:
        since = kept.since - LEAVING_SECONDS
        return (
            self._calm_since >= since
            or workload_of(key.name) in self._day.touched
            or self._bad_nodes.get(kept.node, -math.inf) >= since
            or self._disturbed.get(key, -math.inf) >= since
            or self._day.trouble.watch_late > LEAVING_SECONDS
        )

    def _gets_its_place(self, key: GangKey, record: PodRecord, pod: Pod, node: str) -> None:
        kept = self._kept.pop((key, record.seat), None)
        day = self._day
        if kept is None or not isinstance(record.seat, int):
            return
        self.kept += 1
        if self._was_disturbed(key, kept) or day.other_filters:
            return
        bound = day.pods[pod.metadata.uid]
        said = read_gpus(bound.metadata.annotations.get(names.GPUS, "{}"))
        gpus = frozenset(uuid for share in said.values() for uuid in share)
        if (node, gpus) != (kept.node, kept.gpus):
            day.failures.append(
                f"{pod.metadata.name} goes to {node} with {len(gpus & kept.gpus)} of its "
                f"{len(kept.gpus)} kept GPUs of {kept.node} at {day.now:.1f}"
            )

    def _seat(self, pod: Pod) -> Seat | None:
        record = self._day.core._cache.pods.get(pod.metadata.uid)
        return None if record is None else record.seat

    # What remains of gangs that are gone.

    def _look_at_remains(self) -> None:
        day, cache = self._day, self._day.core._cache
        noted = [read_places(text) for text in day.noted_places.values()]
        keys = {GangKey(n.namespace, n.name, source=n.source) for n in noted if n is not None}
        keys |= {key for key, _ in self._coming_planned()}
        empty = {
            key for key in keys if not any(uid in day.pods for uid in cache.gangs.get(key, ()))
        }
        self._empty_since = {key: self._empty_since.get(key, day.now) for key in empty}
        for key, since in self._empty_since.items():
            if day.now > max(since, self._calm_since) + WHOLE_SECONDS + _GONE_SECONDS:
                day.failures.append(f"places of {key.name}, which is gone, remain at {day.now:.0f}")

    # Evictions.

    def evicted(self, pod: Pod, by: Evict | Pod) -> None:
        record = self._day.core._cache.pods.get(pod.metadata.uid)
        key = record.gang if record is not None else None
        if key is None:
            return
        self._disturbed[key] = self._day.now
        run = self._runs.get(key)
        if run is None or run.started or not isinstance(by, Evict) or by.for_whom is not None:
            return
        settings = self._day.settings
        least = min(settings.wave_seconds, settings.gang_timeout_seconds)
        if self._day.now < run.began + least - 1.0:
            name = pod.metadata.name
            self._day.failures.append(
                f"{name} is evicted too early at {self._day.now:.0f}: {by.why}"
            )


def _takes_gpus(owner: Owner, place: int) -> bool:
    containers = owner.made[place].body["spec"]["containers"]
    return any(each["resources"].get("limits") for each in containers)


def _is_ready(pod: Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
