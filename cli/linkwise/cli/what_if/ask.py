"""Asks the core where the job would go now, when it would start, and what would make room.

The listing comes to life twice. In the first one time goes on: waiting pods have their turn before
the job, and pods that say how long they run end. In the second one no other pod waits, so that
others do not take the room that is made for the job.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from linkwise.cli.errors import BadInputError
from linkwise.cli.what_if.answer import (
    By,
    HeldPod,
    JobPart,
    LaterPod,
    Never,
    OtherPod,
    PartState,
    Start,
    WhatIfAnswer,
    Without,
)
from linkwise.cli.what_if.cluster import ListedCluster, all_left_out, presumed, use_of
from linkwise.cli.what_if.ends import Ends
from linkwise.cli.what_if.given.in_cluster import gated, schedulers_of, those_there
from linkwise.cli.what_if.given.job import Job, devices_of, takes
from linkwise.cli.what_if.live_listing import LiveListing, known_end
from linkwise.cli.what_if.moves import (
    NO_BUDGETS,
    controller_of,
    jobs_of_movers,
    moves_for,
    note_of_jobs,
)
from linkwise.cli.what_if.other_pods import NodesForOthers, Refused, alike
from linkwise.cli.what_if.parts import (
    Explanations,
    Group,
    all_start,
    gpus_of,
    groups_of,
    is_placed,
    places_of,
    planned_at,
)
from linkwise.cli.what_if.room import FreedPods, fewest_to_go, held_by
from linkwise.cli.what_if.trials import Trials
from linkwise.drawing.words import some
from linkwise.extender.next.core_settings import Preempt
from linkwise.extender.show.explain.holders import owners_of
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import Explanation, GangExplanation, Holder
from linkwise.kube.filters.requests import lenient_amount, pod_requests
from linkwise.kube.objects import Pod, is_extended
from linkwise.pods.annotations import demand_of, resource_of
from linkwise.pods.podgrouper.workloads.answer import ObjectRef

_MOMENT_SECONDS = 15.0  # events within this time count as "now"
_MOST_NAMED = 20
_MOST_ALONE = 20  # parts of a job that are tried alone


def ask(cluster: ListedCluster, job: Job) -> WhatIfAnswer:
    """Answer the question. Raises BadInputError if no cluster could place the job."""
    return _Asking(cluster, job).answer()


class _Asking:
    def __init__(self, cluster: ListedCluster, job: Job) -> None:
        self._cluster, self._listing, self._at = cluster, cluster.listing, cluster.at
        self._resources = cluster.settings.resource_names
        self._guessed = frozenset(node for guess in cluster.known.guesses for node in guess.nodes)
        there = those_there(cluster.listing, job)
        self._job = there.job
        self._notes = [*job.notes, *there.notes]
        mine = {pod.metadata.uid for pod in there.job.pods}
        others = [pod for pod in cluster.listing.pods.values() if pod.metadata.uid not in mine]
        schedulers = schedulers_of(others)
        self._others = [gated(pod, self._resources, schedulers) for pod in others]
        self._objects = {**cluster.listing.objects, **there.job.objects}
        self._note_others(schedulers)

    def answer(self) -> WhatIfAnswer:
        live = LiveListing(self._cluster, self._others, objects=self._objects)
        live.run_until(self._at + _MOMENT_SECONDS, lambda: False)
        before = live.core.snapshot(live.now)
        self._note_started(live)
        self._note_not_given(live)
        not_given = frozenset(live.not_given)
        live.submit(self._job.pods, self._job.order)
        live.settle()
        self._refuse_what_cannot_be(live, frozenset(live.not_given) - not_given)
        live.play(_MOMENT_SECONDS)
        self._refuse_what_cannot_be(live, ())  # pods that came later, too
        groups = self._groups(live)
        if not groups and not any(takes(pod, self._resources) for pod in live.to_come.values()):
            raise BadInputError(
                f"--submit: no pod there takes {' or '.join(self._resources)}, so Linkwise has no "
                f"say in it{self._other_names()}"
            )
        self._note_other_names()
        self._note_joined(live, groups)
        self._note_ended_early(live)
        fits = _is_done(live, groups)
        others, to_come = self._other_pods(live), self._to_come(live)
        nevers = {other.pod for other in others if other.never}
        parts = self._parts(live, groups)
        if not nevers:  # else no move lets all of it start
            parts = self._with_moves(live, groups, parts)
        if self._listing.budgets is None and any(part.evicts or part.moves for part in parts):
            self._notes.append(NO_BUDGETS)
        left_out = all_left_out(self._cluster, before, self._job.pods)
        room: tuple[Without, ...] = ()
        never = None
        if not fits:
            room, never = ((), Never(())) if nevers else self._room(groups)
            parts = self._with_starts(
                live, before, groups, parts, can=never is None or len(parts) > 1
            )
            if never is not None and not left_out:
                parts = self._with_nevers(groups, parts, nevers)
        return WhatIfAnswer(
            at=self._at,
            job=self._job.titles,
            fits=fits,
            cluster=use_of(before),
            parts=tuple(parts),
            without_gpus=others,
            to_come=to_come,
            room=room,
            never=None if left_out and not nevers else never,
            guesses=self._cluster.known.guesses,
            left_out=left_out,
            presumed=presumed(before),
            notes=tuple(dict.fromkeys(self._notes)),
        )

    # Now

    def _groups(self, live: LiveListing) -> tuple[Group, ...]:
        snapshot = live.core.snapshot(live.now)
        return groups_of(snapshot, [pod.metadata.uid for pod in self._job.pods])

    def _other_pods(self, live: LiveListing) -> tuple[OtherPod, ...]:
        pods = [pod for pod in self._job.pods if pod.metadata.uid in live.others]
        if not pods:
            return ()
        nodes = NodesForOthers(snapshot := live.core.snapshot(live.now))
        refused: dict[object, Refused] = {}
        found = []
        for pod in pods:
            uid, why, node = pod.metadata.uid, None, ""
            if uid in live.without_node:
                if alike(pod) not in refused:
                    refused[alike(pod)] = nodes.why_not(pod, snapshot.by_uid[uid])
                why = refused[alike(pod)]
            elif uid in live.pods:
                node = live.pods[uid].spec.node_name
            found.append(
                OtherPod(
                    pod.key,
                    pod_requests(pod, lenient_amount),
                    node,
                    dict(why.reasons) if why is not None else {},
                    why.lacks if why is not None else (),
                    why is not None and why.never,
                )
            )
        return tuple(found)

    def _to_come(self, live: LiveListing) -> tuple[LaterPod, ...]:
        return tuple(
            LaterPod(pod.key, self._gpus_of(pod), live.why_to_come(uid))
            for uid, pod in live.to_come.items()
        )

    def _parts(self, live: LiveListing, groups: Sequence[Group]) -> list[JobPart]:
        snapshot = live.core.snapshot(live.now)
        explanations = Explanations(snapshot)
        return [self._part(live, snapshot, group, explanations) for group in groups]

    def _part(
        self, live: LiveListing, snapshot: Snapshot, group: Group, explanations: Explanations
    ) -> JobPart:
        state = group.state(live)
        places, span = places_of(live, snapshot, group, self._guessed)
        why = _without_estimates(explanations.of(group)) if state is not PartState.FITS else None
        because = snapshot.by_uid[group.uids[0]].ask.because
        evicted = (
            live.pods[uid]
            for uid, for_whom in live.evicted.items()
            if uid in live.pods and for_whom == group.key.title
        )
        return JobPart(
            namespace=group.key.namespace,
            name=group.key.name,
            is_gang=group.is_gang,
            because=because,
            state=state,
            size=group.size,
            minimum=group.minimum,
            places=places,
            span=span,
            start=None,
            waits_for=_holders_of(why) if state is PartState.WAITS else (),
            evicts=tuple(sorted(pod.key for pod in evicted)),
            why=why,
        )

    def _with_moves(
        self, live: LiveListing, groups: Sequence[Group], parts: Sequence[JobPart]
    ) -> list[JobPart]:
        waiting = [number for number, part in enumerate(parts) if part.state is PartState.WAITS]
        if not waiting:
            return [*parts]
        jobs = jobs_of_movers(self._others, live.not_given)
        if jobs:
            self._notes.append(note_of_jobs(jobs))
        snapshot = live.core.snapshot(live.now)
        found = {
            number: moves_for(live, snapshot, groups[number].key)
            for number in waiting[:_MOST_ALONE]
        }
        return [replace(part, moves=found.get(number)) for number, part in enumerate(parts)]

    # Later

    def _with_starts(
        self,
        live: LiveListing,
        before: Snapshot,
        groups: Sequence[Group],
        parts: Sequence[JobPart],
        *,
        can: bool,
    ) -> list[JobPart]:
        """Let time pass from one known end to the next until all of the job has started."""
        found: dict[int, JobPart] = {}
        in_order = bool(live.to_come)
        waiting = [number for number, part in enumerate(parts) if part.state is PartState.WAITS]
        ends = Ends(live, [groups[number] for number in waiting])
        if ends.step > 1:
            self._notes.append(
                f"ends of pods were looked at in steps of {ends.step}: what starts later may start "
                "a little sooner"
            )
        while can and waiting and ends.go_on():
            if in_order:
                live.play(_MOMENT_SECONDS)
                now = {group.key: group for group in self._groups(live)}
                groups = [now.get(group.key, group) for group in groups]
            live.run_until(live.now + _MOMENT_SECONDS, partial(_is_done, live, groups))
            started = [
                number for number in waiting if groups[number].state(live) is not PartState.WAITS
            ]
            if started:
                snapshot = live.core.snapshot(live.now)
                waiting = [number for number in waiting if number not in set(started)]
            for number in started:
                group, part = groups[number], parts[number]
                found[number] = self._started(live, before, snapshot, group, part)
        return [found.get(number, part) for number, part in enumerate(parts)]

    def _started(
        self, live: LiveListing, before: Snapshot, snapshot: Snapshot, group: Group, part: JobPart
    ) -> JobPart:
        places, span = places_of(live, snapshot, group, self._guessed)
        start = Start(planned_at(live, group), places, span)
        holders = owners_of(before, gpus_of(snapshot, group))
        return replace(part, start=start, waits_for=holders or part.waits_for)

    # Room

    def _trials(self, pods: Sequence[Pod]) -> Trials:
        running = [pod for pod in self._others if pod.spec.node_name]
        live = LiveListing(
            self._cluster, running, objects=self._objects, preempt=Preempt.NEVER, ends=False
        )
        # Pods that are ending make room in any case.
        live.remove([pod.metadata.uid for pod in running if _is_ending(pod, self._at)])
        live.settle()
        return Trials(live, pods, self._job.order)

    def _with_nevers(
        self, groups: Sequence[Group], parts: Sequence[JobPart], others: Collection[str]
    ) -> list[JobPart]:
        """Mark the parts that can never start. Of several, one may only be in the way of others.
        *others*: pods without GPUs that never start."""
        if len(parts) == 1 and not others:
            of_groups = self._trials(self._job.pods).hopeless
            return [
                replace(part, never=True, hopeless=of_groups.get(group.key, ()))
                for group, part in zip(groups, parts, strict=True)
            ]
        found, left = [], _MOST_ALONE
        for group, part in zip(groups, parts, strict=True):
            never, hopeless = False, tuple[str, ...]()
            if part.state is PartState.WAITS and part.start is None and left:
                left -= 1
                apart = {uid for each in groups if each is not group for uid in each.uids}
                trials = self._trials(
                    [
                        pod
                        for pod in self._job.pods
                        if pod.metadata.uid not in apart and pod.key not in others
                    ]
                )
                never = not trials.starts_without([record.uid for record in trials.may_go()])
                hopeless = trials.hopeless.get(group.key, ()) if never else ()
            found.append(replace(part, never=never, hopeless=hopeless))
        return found

    def _room(self, groups: Sequence[Group]) -> tuple[tuple[Without, ...], Never | None]:
        trials = self._trials(self._job.pods)
        found = fewest_to_go(trials, lambda _: True)
        if found is None:
            all_uids = [record.uid for record in trials.may_go()]
            return (), Never(trials.why_not_without(all_uids))
        rooms = [self._as_room(trials.snapshot, found, By.END)]
        job = self._job.pods
        if len(groups) == 1 and not groups[0].is_gang and job[0].spec.preemption_policy != "Never":
            priority = job[0].spec.priority
            if all(record.priority < priority for record in _records(trials.snapshot, found)):
                return (replace(rooms[0], by=By.EVICTION),), None
            less = fewest_to_go(trials, lambda record: record.priority < priority)
            if less is not None:
                rooms.append(self._as_room(trials.snapshot, less, By.EVICTION))
        return tuple(rooms), None

    def _as_room(self, snapshot: Snapshot, found: FreedPods, by: By) -> Without:
        pods = tuple(
            HeldPod(
                record.key,
                record.gang_name,
                record.node,
                gpus,
                record.priority,
                known_end(self._listing.pods[record.ref.namespace, record.ref.name], self._at),
            )
            for record, gpus in held_by(snapshot, found.uids)
        )
        return Without(pods, found.fewest, by)

    def _other_names(self) -> str:
        """The resources that may have been meant."""
        taken = set[str]().union(*map(devices_of, self._job.pods))
        offered = self._offered()
        if not taken:
            return ""
        said = f"; they take {', '.join(sorted(taken))}"
        if taken & offered:
            return f"{said}: --resource NAME"
        return f"{said}, and the nodes have {', '.join(sorted(offered)) or 'no devices'}"

    def _offered(self) -> set[str]:
        """The extended resources of the nodes."""
        nodes = self._listing.nodes.values()
        return {name for node in nodes for name in node.status.allocatable if is_extended(name)}

    def _note_other_names(self) -> None:
        offered = self._offered()
        if offered and not offered.intersection(self._resources):
            none, had = " or ".join(self._resources), ", ".join(sorted(offered))
            self._notes.append(f"no node has {none}: they have {had} (--resource NAME)")

    def _gpus_of(self, pod: Pod) -> int:
        return demand_of(pod, resource_of(pod, self._resources)).gpus

    # Other facts

    def _note_others(self, schedulers: frozenset[str]) -> None:
        foreign = sorted(
            {
                pod.spec.scheduler_name
                for pod in self._others
                if not pod.spec.node_name and pod.spec.scheduler_name not in schedulers
            }
        )
        if foreign:
            self._notes.append(f"pods that wait for {', '.join(foreign)} are left to it")
        mine = {pod.spec.scheduler_name for pod in self._job.pods} - schedulers
        if mine:
            self._notes.append(
                f"the job names scheduler {', '.join(sorted(mine))}: it is counted as one that "
                "asks Linkwise"
            )

    def _note_started(self, live: LiveListing) -> None:
        started = [
            pod.key
            for pod in self._others
            if not pod.spec.node_name and is_placed(live, pod.metadata.uid)
        ]
        if started:
            self._notes.append(
                f"{len(started)} pods that wait have room now and come before the job: "
                + some(started, _MOST_NAMED)
            )

    def _note_not_given(self, live: LiveListing) -> None:
        waiting = {controller_of(pod) for pod in self._others if not pod.spec.node_name}
        of_movers = {*jobs_of_movers(self._others, live.not_given)} - waiting
        refs = [str(ref) for ref in live.not_given if ref not in of_movers]
        if refs:
            self._notes.append(
                "pods that wait count as pods of their own, as what they hang on was not given: "
                + some(refs, _MOST_NAMED)
            )

    def _note_ended_early(self, live: LiveListing) -> None:
        early = [pod.key for pod in live.ended_early.values()]
        if early:
            self._notes.append(
                "pods that come after the end of others count as if these ended at once: "
                + some(early, _MOST_NAMED)
            )

    def _note_joined(self, live: LiveListing, groups: Iterable[Group]) -> None:
        known = live.core.snapshot(live.now).gang_by_key
        for group in groups:
            gang = known.get(group.key)
            is_complete = gang is None or gang.found.complete or bool(live.to_come)
            if gang is not None and gang.found.open and not is_complete:
                there = len(gang.found.seats) + gang.found.done
                raise BadInputError(
                    f"--submit: {group.key.title}: {there} of {group.minimum} pods that it needs "
                    "to start: expected all of them"
                )
            if group.others:
                self._notes.append(
                    f"{group.key.title} has {group.others} more pods in the cluster: they count as "
                    "its members"
                )

    def _refuse_what_cannot_be(self, live: LiveListing, not_given: Collection[ObjectRef]) -> None:
        for ref in not_given:
            raise BadInputError(
                f"--submit: {ref}: not given, and it says which gang its pods are in"
            )
        by_uid = live.core.snapshot(live.now).by_uid
        for pod in self._job.pods:
            record = by_uid.get(pod.metadata.uid)
            if record is not None and record.invalid:
                where = self._job.places.get(pod.metadata.uid, "--submit")
                raise BadInputError(
                    "; ".join((f"{where}: {record.invalid}", *self._job.near_misses))
                )


def _is_done(live: LiveListing, groups: Sequence[Group]) -> bool:
    return live.is_all_there and all_start(live, groups)


def _records(snapshot: Snapshot, found: FreedPods) -> list[PodRecord]:
    return [snapshot.by_uid[uid] for uid in found.uids]


def _without_estimates(
    why: GangExplanation | Explanation | None,
) -> GangExplanation | Explanation | None:
    """Drop estimated ends: the core learns them from pods that ended, and it has seen none here."""
    if not isinstance(why, GangExplanation) or why.reservation is None or why.reservation.sure:
        return why
    return replace(why, reservation=replace(why.reservation, start=None))


def _holders_of(why: object) -> tuple[Holder, ...]:
    """Return the holders of what is kept for the part, else of its nearest miss."""
    search = getattr(why, "search", None)
    nearest = search.nearest if search is not None else None
    if isinstance(why, GangExplanation):
        if why.reservation is not None:
            return why.reservation.holders
        nearest = why.nearest or next(
            (each.nearest for each in why.searches if each.nearest is not None), None
        )
    return nearest.holders if nearest is not None else ()


def _is_ending(pod: Pod, now: float) -> bool:
    leaving = pod.metadata.deletion_timestamp
    return leaving is not None and known_end(pod, now) is not None
