"""What must be true of a cluster that lives through days.

- **No pod is forgotten.** If an extender that starts now on the same API server would place a pod,
  and kube-scheduler would let it go there, it has been placed within BOUND_SECONDS.
- **Nothing idles forever.** If the reservations of a namespace leave more than the share of the
  GPUs that its gangs could use idle, they do so for no longer than the limit. No reservation waits
  for a server to end.
- **A reservation** is for somebody who waits, and no GPU is in two of them.
- **All or nothing.** `tests.all_or_nothing`, between any two moments.
- If kube-scheduler has filters that Linkwise does not know, and they would let a gang or pod go
  somewhere all along, it goes within STUCK_SECONDS.
- The core's own audit finds nothing, and the core is not busy while nothing happens.
- No call of the core fails, and no pod or gang is isolated because of a defect.
- Planned moves keep `move_laws`, and GPUs from claims `claim_laws`.
- Beside hostile nodes, `hostile_nodes.HostileNodeLaws`. Of a workload that has, or had, pods there,
  the laws of gangs, moves, claims and evictions say nothing.
- Of an honest tenant, pods are evicted only for what is more important, or with their gang that
  gives up. Its jobs wait no longer beside a hostile tenant than beside a plain one, within a bound.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

import msgspec

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import NO_MOVES, Preempt
from linkwise.extender.next.gangs.members import LONGEST_SECONDS
from linkwise.extender.next.moves.planned_moves import REASON
from linkwise.extender.next.queue.reservations import Reservation
from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.extender.state.actions import Evict, WritePlan
from linkwise.extender.state.extender_calls import FilterCall
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.kube.objects import NodeSpec, Pod
from linkwise.simulator.scheduler.cache import SchedulerCache
from linkwise.simulator.scheduler.queue import EXTENDER, OTHER
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from tests.all_or_nothing import AllOrNothing, gang_of
from tests.liveness.claim_laws import ClaimLaws
from tests.liveness.day import Day
from tests.liveness.hostile_nodes import HostileNodeLaws
from tests.liveness.move_laws import MoveLaws
from tests.liveness.wave_laws import WaveLaws
from tests.liveness.waves import Waves
from tests.odd_pods import NAMESPACE, is_honest
from tests.other_filters import go_together, room_of
from tests.owner_reads import read_owners

change = msgspec.structs.replace

BOUND_SECONDS = 60.0
STUCK_SECONDS = 1800.0  # refused plans, and the pauses after them, included
_FILTERED_LOOK_SECONDS = 300.0
_MOST_WAYS = 8  # to place a gang, of which each costs a core that starts
_BUSY = 240  # decisions in a minute; and two for each that waits, as one looks at few
_SLACK_SECONDS = 1.0
_UNKNOWN_SHARE = 0.125  # of the limit: what a new leader may not know, if the last note was lost
DELAYED_SECONDS, _DELAYED_SHARE = 400.0, 0.25  # more than measured


class Judge:
    def __init__(self, day: Day, waves: Waves | None = None) -> None:
        self._day = day
        self._quiet_since = self._still_since = day.now
        self._state: object = None
        self._whole_state: object = None
        self._over_since: dict[str, float] = {}
        self.checks = 0
        self._law = AllOrNothing()
        # kube-scheduler binds their members one by one.
        self._law_by_claims = AllOrNothing(grace_seconds=day.settings.gang_timeout_seconds + 60.0)
        self.moves = MoveLaws(day)
        self._claims = ClaimLaws(day)
        self.nodes = HostileNodeLaws(day)
        self.waves = WaveLaws(day, waves)
        day.on_evict = self._judge_eviction
        self._in_waves: set[str] = set()  # uids of pods beside which others come later
        self._could_since: dict[frozenset[str], float] = {}  # uids of those that start together
        self._next_filtered_look = 0.0

    def before_jump(self, then: float) -> None:
        """Call it before the clock goes on."""
        day = self._day
        # What hostile pods without GPUs do may go on forever.
        with_gpus = {pod for pods in day.held.values() for pod in pods}
        pods = day.pods.values()
        honest = (p for p in pods if is_honest(p) or p.key in with_gpus)
        state = self._state_of(p for p in honest if p.spec.node_name not in day.taken)
        if state != self._state:
            self._state, self._quiet_since = state, day.now
        whole_state = self._state_of(pods), hash(frozenset(map(id, day.nodes.values())))
        if whole_state != self._whole_state:
            self._whole_state, self._still_since = whole_state, day.now
        self._look_at_gangs()
        self._look_at_reservations()
        self._look_at_idling(then)
        self.nodes.look()
        self.moves.look()
        self._claims.look()
        self.waves.look()
        quiet_at = max(self._quiet_since, day.faults_at) + BOUND_SECONDS
        if day.now < quiet_at <= then or (day.now == quiet_at):
            self._nobody_is_forgotten(quiet_at)
        self._look_at_the_filtered()
        self._is_not_busy()

    def look(self) -> None:
        """What must be true at any moment."""
        day = self._day
        day.failures += [f"audit: {text}" for text in day.core.audit()]
        self.nodes.look_at_kinds()
        for reservation in day.core.reservations.all():
            day.failures += [
                f"{reservation.title} waits for a server: {owner}"
                for owner in self._servers_in(reservation)
            ]

    def _look_at_gangs(self) -> None:
        day = self._day
        # `WaveLaws` judges gangs of which some members come later.
        honest = (
            pod
            for pod in day.pods.values()
            if is_honest(pod) and not day.is_touched(pod) and not self._has_more(pod)
        )
        known = day.core._cache.pods.items()
        unseen = {record.gang_name for uid, record in known if uid not in day.pods}
        pods: dict[bool, list[Pod]] = {True: [], False: []}
        for pod in honest:
            pods[bool(pod.spec.resource_claims)].append(pod)
        if not all(map(is_honest, day.pods.values())):
            # The GPUs of a member whose Binding was lost may be taken past Linkwise meanwhile. Then
            # the gang waits for others until its timeout.
            self._law.after_fault_seconds = self._law_by_claims.grace_seconds
        day.failures += self._law.look(pods[False], day.now, day.writes_lost_at, unseen)
        # A leader counts the timeout from its start; then it tries until the eviction is allowed.
        faults_at = max(day.writes_lost_at, day.led_at, day.refused_at)
        day.failures += self._law_by_claims.look(pods[True], day.now, faults_at, unseen)

    def _has_more(self, pod: Pod) -> bool:
        record = self._day.core._cache.pods.get(pod.metadata.uid)
        # One of copies with claims is let go beside the others, and may be alone for a while.
        is_copy = (
            record is not None and record.claim is not None and record.owner_kind == "ReplicaSet"
        )
        if record is not None and record.to_come and not is_copy:
            self._in_waves.add(pod.metadata.uid)
        return pod.metadata.uid in self._in_waves

    def _gang_title(self, pod: Pod) -> str:
        record = self._day.core._cache.pods.get(pod.metadata.uid)
        known = record.gang if record is not None else None
        if known is None or known.uid:
            return f"gang {gang_of(pod)}" if gang_of(pod) else ""
        return known.title

    # Evictions.

    def _judge_eviction(self, pod: Pod, by: Evict | Pod) -> None:
        day = self._day
        self._look_at_gangs()
        if day.is_touched(pod):
            return
        self.waves.evicted(pod, by)
        if isinstance(by, Evict) and by.event == REASON:
            self.moves.evicted(pod, by)
            return
        is_judged = isinstance(by, Evict) and not self._has_more(pod)
        if is_judged and (broken := self._law.evicted(pod)):
            day.failures.append(broken)
        if is_honest(pod) and not self._may_evict(pod, by):
            whom = _claimant(by) if isinstance(by, Evict) else by.metadata.name
            day.failures.append(f"{pod.metadata.name} is evicted for {whom} at {day.now:.0f}")

    def _may_evict(self, victim: Pod, by: Evict | Pod) -> bool:
        if isinstance(by, Pod):
            return by.spec.priority > victim.spec.priority
        claimant = _claimant(by)
        if not claimant:
            return bool(self._gang_title(victim))  # which gives up what it has of its GPUs
        claimants = [
            pod.spec.priority
            for pod in self._day.pods.values()
            if not pod.has_ended
            and claimant in (self._gang_title(pod), f"gang {gang_of(pod)}", f"pod {pod.key}")
        ]
        allowed = self._day.settings.preempt
        consents = victim.metadata.annotations.get(names.PREEMPTIBLE) == "true"
        return (
            (consents or allowed is Preempt.LOWER_PRIORITY)
            and allowed is not Preempt.NEVER
            and min(claimants, default=victim.spec.priority) > victim.spec.priority
        )

    def nothing_stays(self) -> None:
        """Call it last."""
        self.nodes.take_pods_away()
        self.nodes.nothing_stays(self._fresh(self._day.now))

    # No pod is forgotten.

    def _state_of(self, pods: Iterable[Pod]) -> object:
        """A value that differs after each change of an honest node, of the core's process or of
        *pods*."""
        day = self._day
        nodes = [node for name, node in day.nodes.items() if name not in day.taken]
        slices = [one for one in day.slices.values() if one.spec.node_name not in day.taken]
        there = hash(frozenset(map(id, (*nodes, *slices))))
        return hash(frozenset(map(id, pods))), there, id(day.core)

    def _nobody_is_forgotten(self, now: float) -> None:
        self.checks += 1
        day = self._day
        trouble = day.trouble
        if trouble.no_leader or trouble.calls_lost == 1.0 or trouble.writes_lost:
            return  # a pod may wait for as long as that lasts
        day.failures += self.forgotten(now)

    def forgotten(self, now: float) -> list[str]:
        """The pods that wait and could go, and those that wait and could have others evicted."""
        day, fresh = self._day, self._fresh(now)
        actions = [*fresh.decide(now), *fresh.decide(now + LONGEST_SECONDS)]
        by_gang: dict[str, list[WritePlan]] = {}
        for action in actions:
            if isinstance(action, WritePlan):
                plan = read_plan(action.annotations[names.PLAN])
                by_gang.setdefault(plan.id, []).append(action)
        found = []
        for plans in by_gang.values():
            if any(map(self._is_kept, plans)) or not all(map(self._goes, plans)):
                continue
            if any(map(self._may_wait, plans)):
                continue
            pods = [day.pods[plan.pod.uid] for plan in plans]
            if not is_honest(pods[0]) or any(map(self._awaits_kube_scheduler, pods)):
                continue
            if not go_together(self._room(), ((day.pods[p.pod.uid], p.node) for p in plans)):
                continue
            if self._later_ones_cannot_go(fresh, plans[0]):
                continue
            who = ", ".join(sorted(plan.pod.name for plan in plans))
            nodes = sorted({plan.node for plan in plans})
            found.append(f"{who} could go to {', '.join(nodes)} at {now:.0f}")
        victims = sorted(action.pod.name for action in actions if isinstance(action, Evict))
        for_whom = fresh._planner.preemption.preemptions.keys()
        for_honest = any(key.namespace != NAMESPACE for key in for_whom)
        # Where kube-scheduler's filters refuse a gang, the core evicts no pod in vain.
        # A new core here sees hostile nodes as cordoned, and the running one may find room there.
        may_be_vain = day.other_filters or day.taken
        may_wait = may_be_vain or self._may_wait_with_evictions() or self._rest(for_whom)
        if victims and for_honest and not (may_wait or self._are_kept(fresh, for_whom)):
            found.append(f"the core does not evict {', '.join(victims)} at {now:.0f}")
        return [*found, *self._singles(fresh, now)]

    def _later_ones_cannot_go(self, fresh: Core, plan: WritePlan) -> bool:
        """Whether places of members to come are kept for others, or on a node without plugin."""
        record = fresh._cache.pods.get(plan.pod.uid)
        for uid in fresh._cache.gangs.get(record.gang, ()) if record and record.gang else ():
            member, written = fresh._cache.pods[uid], fresh._cache.plans.get(uid)
            if not member.coming or written is None:
                continue
            node = written.plan.node
            closed = node in self._day.no_plugin or node in self._day.taken
            if closed or self._is_set_aside(node, written.uuids, record):
                return True
        return False

    def _may_wait_with_evictions(self) -> bool:
        preemption = self._day.core._planner.preemption
        spared = any(preemption._spared.ends())
        moves = self._day.core._planner.moves.plans
        return bool(
            spared or moves or preemption.preemptions or self._day.trouble.evictions_refused
        )

    def _are_kept(self, fresh: Core, gangs: Iterable[GangKey]) -> bool:
        """Whether GPUs that evictions would join are kept for the replacement of a pod that moved.
        A new core does not know the note on a pod that is gone."""
        nodes, kept = self._day.core._cache.nodes, fresh._planner.reservations
        return any(
            mask & gpus
            for key in gangs
            if (reservation := kept.of(key)) is not None
            for node, mask in reservation.gpus.items()
            if node in nodes
            for other, gpus in nodes[node].reserved.items()
            if other.source == "move"
        )

    def _rest(self, gangs: Iterable[GangKey]) -> bool:
        """Whether plans of each of these gangs failed, so that it pauses."""
        known = self._day.core._planner.registry.gangs
        rests = self._day.core._planner.rests
        return all(
            key in known and (known[key].refused or self._day.now < rests.until(key))
            for key in gangs
        )

    def _goes_astray(self, uid: str) -> bool:
        """Whether the pod, or another of its gang, is planned on a hostile node."""
        cache = self._day.core._cache
        record = cache.pods.get(uid)
        gang = {uid} if record is None or record.gang is None else cache.gangs[record.gang]
        planned = (cache.plans[each].plan.node for each in gang if each in cache.plans)
        return any(node in self._day.taken for node in planned)

    def _is_kept(self, action: WritePlan) -> bool:
        """Whether the core reserves some of these GPUs for others, be they free or of a plan that
        is not carried out. Its order may differ from a new core's, because it has seen run times.
        """
        gpus = read_gpus(action.annotations[names.GPUS])
        uuids = [uuid for share in gpus.values() for uuid in share]
        record = self._day.core._cache.pods.get(action.pod.uid)
        return self._is_set_aside(action.node, uuids, record)

    def _is_set_aside(self, node: str, uuids: Collection[str], record: PodRecord | None) -> bool:
        book = self._day.core._cache.nodes.get(node)
        if book is None or book.machine is None:
            return True
        # A new core does not know the places of a gang without any pod; `WaveLaws` judges them.
        pods = self._day.core._cache.pods
        if any(uid in pods and pods[uid].coming for uid in book.owned):
            return True
        mask = book.machine.mask_of(uuids)
        others = (kept for key, kept in book.reserved.items() if record and key != record.gang)
        return bool(book.set_aside & mask) or any(kept & mask for kept in others)

    def _may_wait(self, action: WritePlan) -> bool:
        is_excused = self._is_half_moved(action) or self._is_refused(action)
        return is_excused or self._goes_astray(action.pod.uid)

    def _is_half_moved(self, action: WritePlan) -> bool:
        """Whether the pod waits for its target until the rest of its gang is evicted, which is
        tried for some minutes if evictions are refused, or until its owner has created the rest.
        (`GangMoveLaws` looks at all others, and says for how long.)"""
        planner = self._day.core._planner
        record = self._day.core._cache.pods.get(action.pod.uid)
        key = None if record is None else record.gang
        if key is None or not planner.targets.moves_gang(key):
            return False
        members = planner.registry.members_of(planner.registry.gangs[key])
        created = sum(not member.coming for member in members.seats)
        return self._day.trouble.evictions_refused or created < members.size

    def _is_refused(self, action: WritePlan) -> bool:
        """Whether a filter that Linkwise does not know has refused the node. About pods with claims
        no call follows: it tries the node after a pause, and STUCK_SECONDS are the bound."""
        planner, record = self._day.core._planner, self._day.core._cache.pods.get(action.pod.uid)
        if not self._day.other_filters or record is None or record.claim is None:
            return False
        refused = planner.feedback.refused(record.template) if record.template else ()
        return action.node in (*refused, *planner.gang_refusals.takes(record.gang))

    def _awaits_kube_scheduler(self, pod: Pod) -> bool:
        """Whether a filter that Linkwise does not know has refused the pod, and no event came since
        that wakes it: the filter may open by time alone. kube-scheduler tries the pod again within
        five minutes, and a nomination does not change that. Meanwhile the extender has planned it,
        or pauses because no node takes it. STUCK_SECONDS are the bound."""
        asleep = self._day.scheduler.queue._unschedulable.get(pod.metadata.uid)
        if asleep is None or OTHER not in asleep.rejected_by or EXTENDER in asleep.rejected_by:
            return False
        cache, refusals = self._day.core._cache, self._day.core._planner.gang_refusals
        record = cache.pods.get(pod.metadata.uid)
        pauses = record is not None and refusals.rows(record.gang) is not None
        return pauses or pod.metadata.uid in cache.plans

    def _goes(self, action: WritePlan) -> bool:
        day = self._day
        pod = day.pods[action.pod.uid]
        return action.node not in day.no_plugin and day.scheduler.passes(pod, action.node)

    # Filters that Linkwise does not know.

    def _room(self) -> SchedulerCache:
        day = self._day
        return room_of(day.other_filters, day.nodes.values(), day.pods.values(), day.now)

    def _look_at_the_filtered(self) -> None:
        day, trouble = self._day, self._day.trouble
        if not day.other_filters or day.now < self._next_filtered_look:
            return
        self._next_filtered_look = day.now + _FILTERED_LOOK_SECONDS
        if trouble.no_leader or trouble.calls_lost or trouble.writes_lost:
            self._could_since.clear()
            return
        could = {frozenset(way): way for way in self._ways()}
        self._could_since = {who: self._could_since.get(who, day.now) for who in could}
        for who, since in self._could_since.items():
            if day.now - max(since, day.faults_at) > STUCK_SECONDS:
                pods = sorted(day.pods[uid].metadata.name for uid in who)
                nodes = ", ".join(sorted(set(could[who].values())))
                day.failures.append(
                    f"the filters let {', '.join(pods)} go to {nodes} from {since:.0f} on"
                )

    def _ways(self) -> Iterator[Mapping[str, str]]:
        """For each gang or pod that waits as a whole and could go: uid -> node."""
        waiting: dict[str, list[Pod]] = {}
        of_gang = Counter(map(gang_of, self._day.pods.values()))
        for pod in sorted(self._day.pods.values(), key=lambda pod: pod.metadata.name):
            is_asked_about = (
                names.CLAIMS in pod.metadata.annotations or not pod.spec.resource_claims
            )
            is_asked_about = is_asked_about and not self._has_more(pod)
            if is_asked_about and is_honest(pod) and (_waits(pod) or _is_gated(pod)):
                waiting.setdefault(gang_of(pod) or pod.metadata.uid, []).append(pod)
        for who, pods in waiting.items():
            gang = gang_of(pods[0])
            if gang and not of_gang[who] == len(pods) == int(_said(pods[0], names.GANG_SIZE)):
                continue
            for way in islice(self._assignments(pods, self._room()), _MOST_WAYS):
                if self._would_plan(way):
                    yield way
                    break

    def _assignments(
        self, pods: list[Pod], room: SchedulerCache, first: str = ""
    ) -> Iterator[dict[str, str]]:
        """All ways to give each of these equal pods a node, from *first* on, that every filter of
        kube-scheduler accepts."""
        day = self._day
        if not pods:
            yield {}
            return
        pod, *rest = pods
        kept = {name for name, book in day.core._cache.nodes.items() if book.set_aside}
        for node in sorted(name for name in day.nodes if name >= first):
            if node in kept or node in day.no_plugin or room.rejection(pod, node) is not None:
                continue
            room.assume_pod(pod, node)
            for way in self._assignments(rest, room, node):
                yield {pod.metadata.uid: node, **way}
            room.remove_pod(pod.metadata.uid)

    def _would_plan(self, way: Mapping[str, str]) -> bool:
        """Whether a core that starts now places these pods on these nodes, beside all others."""
        day = self._day
        pinned = {
            uid: change(
                pod := day.pods[uid],
                spec=change(pod.spec, node_selector={"kubernetes.io/hostname": node}),
            )
            for uid, node in way.items()
        }
        fresh = self._fresh(day.now, pinned)
        for uid, pod in pinned.items():
            is_planned = pod.spec.scheduling_gates or pod.spec.resource_claims
            if not (gang_of(pod) or is_planned):
                return bool(fresh.filter(FilterCall(pod, (way[uid],)), day.now).node_names)
        actions = [*fresh.decide(day.now), *fresh.decide(day.now + LONGEST_SECONDS)]
        plans = {action.pod.uid for action in actions if isinstance(action, WritePlan)}
        return way.keys() <= plans

    def _singles(self, fresh: Core, now: float) -> Iterator[str]:
        day = self._day
        kept = {name for name, book in day.core._cache.nodes.items() if book.set_aside}
        for pod in day.pods.values():
            if not (is_honest(pod) and _waits(pod)) or names.GANG in pod.metadata.annotations:
                continue
            record = fresh._cache.pods.get(pod.metadata.uid)
            if record is not None and record.gang is not None and not record.gang.uid:
                continue
            if pod.spec.resource_claims:
                continue  # kube-scheduler asks about none of them
            if self._awaits_kube_scheduler(pod) or self._goes_astray(pod.metadata.uid):
                continue
            asked = tuple(
                node
                for node in sorted(day.nodes)
                if node not in kept
                and node not in day.taken
                and node not in day.no_plugin
                and day.scheduler.passes(pod, node)
            )
            passed = fresh.filter(FilterCall(pod, asked), now).node_names if asked else ()
            if passed:
                yield f"{pod.metadata.name} would do on {', '.join(passed)} at {now:.0f}"

    def _fresh(self, now: float, changed: Mapping[str, Pod] = MappingProxyType({})) -> Core:
        """*changed* takes the place of pods of the same uid."""
        day = self._day
        fresh = Core(replace(day.settings, moves=NO_MOVES))
        if day.settings.queue_order is not QueueOrder.AGE:
            # This order depends on run times that only the running extender has seen.
            vars(fresh._run_times).update(vars(day.core._run_times))
        # Namespaces whose later waves did not come keep no places for a while.
        ours, theirs = fresh._planner.to_come.for_nothing, day.core._planner.to_come.for_nothing
        ours._pauses = deepcopy(theirs._pauses)
        for pause in ours._pauses.values():
            if now < pause.until:
                pause.until += LONGEST_SECONDS  # the new core's second look is as much later
        closed = NodeSpec(unschedulable=True)
        fresh.replace_nodes(
            [change(n, spec=closed) if key in day.taken else n for key, n in day.nodes.items()], now
        )
        fresh.replace_pods([changed.get(uid, pod) for uid, pod in day.pods.items()], now)
        fresh.replace_budgets([], now)
        fresh.replace_slices(day.slices.values(), now)
        fresh.replace_claims(day.claims.values(), now)
        fresh.restore_places(day.noted_places, now)
        # Else it knows nothing of gangs of Jobs, nor what is kept for them.
        read_owners(fresh, lambda read: day.read_owner(read.ref), now)
        fresh.filter(FilterCall(Pod(), ()), now)
        return fresh

    # Reservations.

    def _look_at_reservations(self) -> None:
        day, cache = self._day, self._day.core._cache
        kept: dict[str, int] = {}
        for reservation in day.core.reservations.all():
            key = reservation.key
            uids = (key.uid,) if key.uid else cache.gangs.get(key, ())
            waits = any(uid in cache.pods and not cache.pods[uid].node for uid in uids)
            if not (waits or day.trouble.no_leader):  # without one, nothing ends it
                day.failures.append(f"{key.title} has a reservation, and no pod of it waits")
            for node, gpus in reservation.gpus.items():
                if kept.get(node, 0) & gpus:
                    day.failures.append(f"GPUs of {node} are reserved twice at {day.now:.0f}")
                kept[node] = kept.get(node, 0) | gpus

    # Nothing idles forever.

    def _look_at_idling(self, then: float) -> None:
        day = self._day
        settings = day.settings
        if day.trouble.no_leader:
            return  # no extender places a pod or ends a reservation
        over = {
            reservation.key.namespace
            for reservation in day.core.reservations.all()
            if self._idles(reservation)
        }
        for namespace in [*self._over_since]:
            if namespace not in over:
                del self._over_since[namespace]
        for namespace in over:
            since = self._over_since.setdefault(namespace, day.now)
            limit = settings.reserve_limit_seconds
            most = limit * (1 + _UNKNOWN_SHARE if day.led_at > since else 1) + _SLACK_SECONDS
            if then - since > most:
                day.failures.append(
                    f"{namespace} idles too much from {since:.0f} to {then:.0f} at least"
                )
                self._over_since[namespace] = math.inf

    def _idles(self, reservation: Reservation) -> bool:
        """By the kubelets' word, and the nodes' topology."""
        day = self._day
        idle, could_use = 0, 0
        rows = day.core._cache.rows
        for name in day.nodes:
            row = rows.row_of.get(name)
            if row is None or row >= len(reservation.pool) or not reservation.pool[row]:
                continue
            book = day.core._cache.nodes[name]
            if book.closed or book.machine is None:
                continue
            could_use += len(book.machine.gpus)
            idle += (book.set_aside & reservation.gpus.get(name, 0)).bit_count()
        return idle > day.settings.reserve_share * could_use

    def _servers_in(self, reservation: Reservation) -> Iterator[str]:
        """Except for those that are evicted for it."""
        day = self._day
        planner, key = day.core._planner, reservation.key
        preemption, moves = planner.preemption.preemptions.get(key), planner.moves.plans.get(key)
        evicted = set() if preemption is None else set(preemption.victims)
        evicted |= set() if moves is None else {move.pod.uid for move in moves.moves}
        for node, mask in reservation.gpus.items():
            if node in day.taken:
                continue
            book = day.core._cache.nodes.get(node)
            for uid, gpus in ({} if book is None else book.owned).items():
                pod = day.pods.get(uid)
                leaves = pod is None or pod.is_leaving
                stays = not (leaves or uid in evicted)
                if gpus & mask and stays and pod is not None and _is_server(pod):
                    yield pod.metadata.name

    def _is_not_busy(self) -> None:
        day = self._day
        recent = [at for at in day.decided if at > day.now - 60.0]
        day.decided[:] = recent
        by_timers = len({at for at in recent if at >= self._still_since + 1.0})
        if by_timers > _BUSY + 2 * sum(map(_waits, day.pods.values())):
            day.failures.append(f"{by_timers} decisions in a minute at {day.now:.0f}")
            day.decided.clear()


def delayed(beside_hostile: float, beside_plain: float) -> list[str]:
    """What is wrong with how long jobs waited, in the mean, beside a hostile tenant, and beside one
    of which plain pods took as many GPUs for as long. Of a single job that proves nothing: a pod
    that comes a second earlier may change who is next."""
    is_fine = beside_hostile <= beside_plain + DELAYED_SECONDS + _DELAYED_SHARE * beside_plain
    waits = f"{beside_hostile:.0f} s, and {beside_plain:.0f} s beside plain pods"
    return [] if is_fine else [f"jobs wait for {waits}, in the mean"]


def _claimant(evict: Evict) -> str:
    """Who gets the room, as `GangKey.title`; empty: none does."""
    return "" if evict.for_whom is None else evict.for_whom.title


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.spec.scheduling_gates or pod.is_leaving or pod.has_ended)


def _is_gated(pod: Pod) -> bool:
    return bool(pod.spec.scheduling_gates) and not pod.is_leaving


def _said(pod: Pod, key: str) -> str:
    return pod.metadata.annotations[key]


def _is_server(pod: Pod) -> bool:
    return pod.spec.restart_policy == "Always" and names.EXPECTED_DURATION not in (
        pod.metadata.annotations
    )
