"""The extender's core: facts in, answers and actions out. No I/O, no clock, no threads.

Not thread-safe: the loop holds one lock around every call. `now` is in seconds since 1970.
`filter` changes no plan and no reservation (newer kube-schedulers call it as a simulation); what it
learns from a call is in memory only.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from linkwise.extender.calls.barrier import Barrier
from linkwise.extender.calls.bind import Binder
from linkwise.extender.calls.filter import Filter
from linkwise.extender.calls.preempt import PreemptVerb
from linkwise.extender.calls.prioritize import Prioritize
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.cycle.planner import Planner
from linkwise.extender.next.cycle.round import NoteStep, no_note
from linkwise.extender.next.gangs.members import plan_others
from linkwise.extender.next.gangs.uncreated import FetchRefusals, RefusedPod
from linkwise.extender.next.invariants import audit
from linkwise.extender.next.moves.may_move import Stays
from linkwise.extender.next.moves.plan import Move
from linkwise.extender.next.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.next.quarantine import LEFT_OUT, Quarantine, culprit_of, whose
from linkwise.extender.next.queue.run_times import RunTimes
from linkwise.extender.next.queue.scheduling_queue import Ages
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.snapshot import Own, Snapshot, SnapshotCamera
from linkwise.extender.show.explain.usage import view_counts, view_nodes
from linkwise.extender.state.actions import Action
from linkwise.extender.state.cache.bounds import FREE_BYTES, KindTurns, PodBytes
from linkwise.extender.state.cache.cache import Cache, Surrounding, Surroundings
from linkwise.extender.state.cache.claims.book import ClaimBook
from linkwise.extender.state.cache.claims.records import claim_record, slice_record
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.cache.pending_writes import PendingWrites
from linkwise.extender.state.decisions import Decision
from linkwise.extender.state.extender_calls import (
    AlreadyBound,
    BindCall,
    BindOrder,
    BindRefusal,
    BindWaits,
    FilterAnswer,
    FilterCall,
    Outcome,
    PreemptAnswer,
    PreemptCall,
    PriorityAnswer,
)
from linkwise.extender.state.membership.owner_cache import FetchOwner, Found
from linkwise.extender.state.records import GangKey, NodeRecord, PodMemory, PodRecord
from linkwise.extender.state.timers import Agenda, RunUnlocked, nothing, run_inline
from linkwise.extender.state.views import Counts, Explanation, GangView, NodeView
from linkwise.kube.device_claims import ResourceClaim, ResourceSlice
from linkwise.kube.objects import Node, Pod, PodDisruptionBudget
from linkwise.pods.large_pods import LargePod, shortened, size_of
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.sets.outlook import outlook_of
from linkwise.topology.sets.tables import table_of

T = TypeVar("T")
_MOST_CULPRITS = 8  # in one round or call
_AT_ONCE = 64  # pods or nodes of a list; each takes some 0.05 ms, while calls wait


class Core:
    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self._lasting = Agenda()  # of the parts that outlive a term
        # Uids of owners whose next pods have their places, and of these
        self._awaited: set[str] = set()
        self._reader = Ingest(
            settings.resource_names,
            self._lasting,
            settings.indexed_jobs,
            settings.namespaces,
            settings.queue_order.ahead_from,
            self._awaited,
            settings.may_be_evicted,
        )
        self._budgets = DisruptionBudgets()
        self._surroundings = Surroundings()
        self._claims = ClaimBook()
        self._run_times = RunTimes()
        self._ages = Ages()
        # node -> the annotation; only views and the eviction of idle pods read it
        self._activity: dict[str, str] = {}
        self._seen_nodes = self._seen_pods = False
        self._quarantine = Quarantine(self._lasting)
        self._kept_out: dict[str, PodRecord] = {}  # uid -> the record of a pod that is left out
        self._defects: list[Exception] = []
        self._aside: RunUnlocked = run_inline
        self._note_step: NoteStep = no_note
        self._kind_turns = KindTurns()
        self._pod_bytes = PodBytes()
        self._begin(leader=0)

    def _begin(self, leader: int) -> None:
        """Start with an empty cache and no state but the settings, budgets, volumes, namespaces,
        claims, run times and ages."""
        self._agenda = Agenda()
        self._agenda.ask(self._lasting.times)
        self._agenda.ask(self._kind_turns.times)
        settings, memory = self._settings, PodMemory()
        # The pods whose run times are known: a kubelet may say again and again that one has ended.
        self._taught = memory.set()
        pending_writes = PendingWrites(self._agenda, memory, leader, self._claims)
        self._began = 0.0
        self._awaited.clear()
        self._cache = Cache(settings.resource_names, self._surroundings, self._claims, memory)
        self._planner = Planner(
            self._cache,
            pending_writes,
            self._agenda,
            settings,
            activity=self._activity,
            budgets=self._budgets,
            run_times=self._run_times,
            ages=self._ages,
            awaited=self._awaited,
        )
        self._planner.changes.run_unlocked = self._aside
        self._planner.round.note_step = self._note_step
        self.offers = self._planner.offers
        self.reservations = self._planner.reservations
        self.moves = self._planner.moves
        self._camera = SnapshotCamera(self._cache, self._planner)
        self._begin_verbs(self._planner)

    def _begin_verbs(self, planner: Planner) -> None:
        self._filter, self._prioritize = Filter(planner), Prioritize(planner)
        self._preempt, self._barrier = PreemptVerb(planner), Barrier(planner)
        self._binder = Binder(planner, self._barrier)

    def lead(self, term: int, now: float) -> None:
        """Decide from now on, in this term. Nodes, pods, budgets, run times and ages stay; all else
        is as after a start. So it does not matter which process led before."""
        nodes = [info.record for info in self._cache.nodes.values() if info.record is not None]
        there = (pod for pod in self._cache.pods.values() if not pod.coming)
        pods = [*there, *self._kept_out.values()]
        self._cache.nodes.clear()  # or they stay until the next collection, beside the new ones
        self._begin(term)
        for node in nodes:
            self._cache.put_node(node)
        for pod in pods:
            self._put_pod(pod, now)
        self._planner.believe_no_older()

    def restore_places(self, texts: Mapping[str, str], now: float) -> None:
        """The places that gangs keep for members to come, as the API server has them, and those
        that Bindings name. Call it after all pods are known, and before the first decision."""
        self._planner.to_come.restore(texts, now)
        plan_others(self._cache)

    def stand_by(self) -> None:
        """Decide nothing; the loop calls it periodically while another replica leads."""
        self._planner.changes.forget()

    def latest_term(self, most: int) -> int:
        """The highest term that any plan names, up to *most*: no leader has written higher ones."""
        plans = (pod.written.plan for pod in self._cache.pods.values() if pod.written is not None)
        return max((plan.leader for plan in plans if plan.leader <= most), default=0)

    @property
    def synced(self) -> bool:
        """Whether both nodes and pods have been listed once; before that, the core decides
        nothing."""
        return self._seen_nodes and self._seen_pods

    # Facts from the API server.

    def replace_nodes(self, nodes: Collection[Node], now: float) -> None:
        """The full list of nodes: nodes that are not in it are gone."""
        there = {node.metadata.name for node in self._some_at_a_time(nodes)}
        for name in [info.name for info in self._cache.nodes.values() if info.record]:
            if name not in there:
                self._drop_node(name)
        for node in self._some_at_a_time(nodes):
            self._put_node(node, now)
        self._seen_nodes = True

    def _some_at_a_time(self, things: Iterable[T]) -> Iterator[T]:
        """Let others use the core periodically: a list may have 20,000 pods."""
        for number, thing in enumerate(things, 1):
            yield thing
            if number % _AT_ONCE == 0:
                self._aside(lambda: None)

    def node_event(self, kind: str, node: Node, now: float) -> None:
        """*kind* is ADDED, MODIFIED or DELETED."""
        if kind == "DELETED":
            self._drop_node(node.metadata.name)
        else:
            self._put_node(node, now)

    def _put_node(self, node: Node, now: float) -> None:
        activity = node.metadata.annotations.get(names.ACTIVITY)
        if activity is None:
            self._activity.pop(node.metadata.name, None)
        else:
            self._activity[node.metadata.name] = activity
        self._put_node_record(self._reader.node(node), now)

    def _put_node_record(self, record: NodeRecord, now: float) -> None:
        info = self._cache.nodes.get(record.name)
        before, machine = (None, None) if info is None else (info.record, info.machine)
        read = self._kind_turns.read(record, before, machine, now)
        self._walled(lambda: self._cache.put_node(read), now)

    def prepare(self, node: Node, now: float) -> None:
        """Do what the node's machine costs once, before its event and without the core's lock."""
        name, text = node.metadata.name, node.metadata.annotations.get(names.TOPOLOGY)
        info = self._cache.nodes.get(name)
        record = None if info is None else info.record
        is_known = record is not None and record.topology == text
        if not is_known and self._kind_turns.is_next(name, now):
            _prepare_kind(text)

    def _drop_node(self, name: str) -> None:
        self._kind_turns.drop(name)
        self._activity.pop(name, None)
        self._cache.drop_node(name)

    def replace_pods(self, pods: Collection[Pod], now: float) -> None:
        """The full list of pods: pods that are not in it are gone."""
        there = {pod.metadata.uid for pod in self._some_at_a_time(pods)}
        known = [pod.uid for pod in self._cache.pods.values() if not pod.coming]
        gone = [uid for uid in (*known, *self._kept_out) if uid not in there]
        for uid in self._some_at_a_time(gone):
            self._drop_pod(uid, now)
        for pod in self._some_at_a_time(pods):
            self._read_pod(pod, now)
        self._seen_pods = True

    def pod_event(self, kind: str, pod: Pod, now: float) -> None:
        """*kind* is ADDED, MODIFIED or DELETED."""
        if kind == "DELETED":
            self._drop_pod(pod.metadata.uid, now)
        else:
            self._read_pod(pod, now)

    def _read_pod(self, pod: Pod, now: float) -> None:
        try:
            record = self._follow(pod, now)
        except Exception as defect:  # it costs this pod alone
            self._defects.append(defect)
        else:
            self._put_pod(record, now)

    def _follow(self, pod: Pod, now: float) -> PodRecord:
        """Read a pod of the watch, and note what is kept of it."""
        size = size_of(pod)
        kept = self._within_bounds(pod, size)
        record = self._reader.follow(kept, now)
        if record.invalid and size > FREE_BYTES and not isinstance(kept, LargePod):
            kept = self._shortened(pod, record.invalid)
            record = self._reader.follow(kept, now)
        if isinstance(kept, LargePod):
            size = 0
        self._pod_bytes.put(pod, size)
        return record

    def replace_budgets(self, budgets: Iterable[PodDisruptionBudget], now: float) -> None:  # noqa: ARG002
        """The full list; before it, no pod is evicted for a more important gang."""
        self._budgets.replace(budgets)

    def budget_event(self, kind: str, budget: PodDisruptionBudget, now: float) -> None:  # noqa: ARG002
        """*kind* is ADDED, MODIFIED or DELETED."""
        if kind == "DELETED":
            self._budgets.drop(budget)
        else:
            self._budgets.put(budget)

    def replace_surroundings(
        self,
        kind: type[Surrounding],
        objects: Iterable[Surrounding],
        now: float,  # noqa: ARG002
    ) -> None:
        """The full list of volumes, claims, classes, CSINodes or namespaces."""
        self._surroundings.replace(kind, objects)
        self._planner.changes.surroundings_changed = True

    def surrounding_event(self, what: str, one: Surrounding, now: float) -> None:  # noqa: ARG002
        """*what* is ADDED, MODIFIED or DELETED."""
        if what == "DELETED":
            self._surroundings.drop(one)
        else:
            self._surroundings.put(one)
        self._planner.changes.surroundings_changed = True

    def replace_slices(self, slices: Iterable[ResourceSlice], now: float) -> None:
        """The full list of what DRA drivers publish; empty where the API server has none."""
        records = map(slice_record, self._some_at_a_time(slices))
        self._show_claims(self._claims.replace_slices(records), now)

    def slice_event(self, kind: str, one: ResourceSlice, now: float) -> None:
        """*kind* is ADDED, MODIFIED or DELETED."""
        record, book = slice_record(one), self._claims
        changed = book.drop_slice(record.name) if kind == "DELETED" else book.put_slice(record)
        self._show_claims(changed, now)

    def replace_claims(self, claims: Iterable[ResourceClaim], now: float) -> None:
        """The full list of claims for devices."""
        records = map(claim_record, self._some_at_a_time(claims))
        self._show_claims(self._claims.replace_claims(records), now)

    def claim_event(self, kind: str, claim: ResourceClaim, now: float) -> None:
        """*kind* is ADDED, MODIFIED or DELETED."""
        record, book = claim_record(claim), self._claims
        changed = book.drop_claim(record.key) if kind == "DELETED" else book.put_claim(record)
        self._show_claims(changed, now)

    def _show_claims(self, nodes: Iterable[str], now: float) -> None:
        for node in self._some_at_a_time(sorted(nodes)):
            info, partitions = self._cache.nodes.get(node), self._claims.of_node(node).partitions
            if (
                info is not None
                and info.record is not None
                and info.machine is not None
                and info.claimed.partitions != partitions
            ):
                read = self._kind_turns.read_again(info.record, now)
                self._walled(partial(self._cache.put_node, read), now)
            self._walled(partial(self._cache.show_claims, node), now)
        for uid in self._claims.take_changed():
            self._planner.claim_changed(uid)

    def owners_to_read(self, now: float) -> tuple[FetchOwner, ...]:
        """The objects to read on which pods depend; the loop returns each by `owner_read`."""
        return self._reader.take_reads(now) if self._seen_pods else ()

    def owner_read(self, read: FetchOwner, found: Found | None, now: float) -> None:
        """The result of a read; None: the API server did not respond. Then call `rejudge`."""
        self._planner.owners_ended(self._reader.owner_read(read, found, now))

    def refusals_to_read(self, now: float) -> tuple[FetchRefusals, ...]:
        """The namespaces of which to read why pods could not be created; the loop returns each by
        `refusals_read`."""
        return self._planner.uncreated.take_reads(now)

    def refusals_read(
        self, asked: FetchRefusals, found: Sequence[RefusedPod] | None, now: float
    ) -> None:
        """The result of a read; None: the API server did not respond."""
        self._planner.refusals_read(asked, found, now)

    @property
    def steps_to_rejudge(self) -> int:
        """How many calls of `rejudge` are enough for those that are known now. A tenant may add
        others all the time, so no caller waits for the last of them."""
        return self._reader.steps_to_rejudge

    def rejudge(self, now: float) -> bool:
        """Judge some of the pods again whose owner was read, or whose group changed; return whether
        there may be more."""
        records = self._reader.take_to_rejudge(now)
        for record in records:
            before = self._cache.pods.get(record.uid)
            self._put_pod(record, now)
            if before is not None and before.awaits and not record.awaits:
                self._planner.unschedulable_pods.look_now(now)
        return bool(records)

    def _put_pod(self, record: PodRecord, now: float) -> None:
        seen = self._quarantine.seen(record, now)
        if seen is record:
            self._kept_out.pop(record.uid, None)
        else:
            self._kept_out[record.uid] = record
        try:
            if seen is None:
                self._drop_seen(record.uid, now)
            else:
                self._put_seen(seen, now)
        except Exception as defect:
            if not self._leave_out(defect, now, record):
                raise

    def _put_seen(self, record: PodRecord, now: float) -> None:
        namesake = self._cache.pod_named(record.ref.namespace, record.ref.name)
        if namesake is not None and namesake.uid != record.uid:
            self._drop_pod(namesake.uid, now)  # its deletion was missed, but names are unique
        before = self._cache.pods.get(record.uid)
        if before != record:
            if before is not None and record.ended:
                self._note_run_time(before, now, ran=before.admitted or record.admitted)
            self._note_age(before, record, now)
            if record.admitted and not record.ended and self._teaches(record):
                self._run_times.runs(record, _began(record))
            planned = self._cache.plans.get(record.uid)
            self._cache.put_pod(record)
            if before is not None and not record.live:
                self._planner.to_come.lost(before, record, planned, now)
            self._planner.pod_changed(before, record, now)

    def _note_age(self, before: PodRecord | None, after: PodRecord | None, now: float) -> None:
        """Of a gang that was evicted, whose pods carry its age until its next run, or that was
        deleted while it waited, as Kueue does. None: the pod does not exist yet, or any more."""
        was_bound = before is not None and bool(before.node)
        if before is not None and before.live and not (after is not None and after.live):
            self._note_age_of_lost(before, now)
        if after is None or after.gang is None:
            return
        if before is None or before.gang != after.gang:
            self._ages.comes(after.gang, _maker(after))
        since = None if after.queue is None else after.queue.since
        if since is not None and (after.leaving or not after.node):
            self._ages.keep(after.gang, since, now)
        if before is not None and after.node and not was_bound:
            self._ages.drop(after.gang)

    def _note_age_of_lost(self, pod: PodRecord, now: float) -> None:
        gang = pod.gang
        if gang is None or gang.uid or pod.node or not pod.owner_uid:
            return
        members = (self._cache.pods[uid] for uid in self._cache.gangs.get(gang, ()))
        since = self._planner.queue.complete_since(gang)
        if gang in self._ages:  # its other pods may have gone before
            self._ages.keep(gang, now if since is None else since, now, _maker(pod))
        elif since is not None and not any(each.live and each.node for each in members):
            self._ages.keep(gang, since, now, _maker(pod))

    def _drop_pod(self, uid: str, now: float) -> None:
        self._reader.forget(uid)
        self._pod_bytes.drop(uid)
        self._kept_out.pop(uid, None)
        self._drop_seen(uid, now)

    def _drop_seen(self, uid: str, now: float) -> None:
        record = self._cache.pods.get(uid)
        if record is None:
            return
        planned = self._cache.plans.get(uid)
        self._tried(lambda: self._note_run_time(record, now, ran=record.admitted))
        self._tried(lambda: self._note_age(record, None, now))
        self._tried(lambda: self._cache.drop_pod(uid))
        if not record.ended or record.failed:
            self._tried(lambda: self._planner.to_come.lost(record, None, planned, now))
        self._tried(lambda: self._planner.pod_gone(record, now))

    def _tried(self, work: Callable[[], object]) -> None:
        """What has happened, such as the end of a pod, has happened whatever goes wrong."""
        try:
            work()
        except Exception as defect:
            self._defects.append(defect)

    # Defects: each costs the pod or gang alone that it is about.

    def _leave_out(self, defect: Exception, now: float, about: PodRecord | None = None) -> bool:
        """Leave out the pod or gang that the defect is *about*, or that its traceback shows.
        Returns whether one is left out now that was not before."""
        culprit = culprit_of(defect) if about is None else whose(about)
        if culprit is None or not self._quarantine.hold(culprit, now):
            return False
        self._defects.append(defect)
        known = [*self._kept_out.values()]
        if isinstance(culprit, GangKey):
            uids = [*self._cache.gangs.get(culprit, ())]
            uids += [record.uid for record in known if record.gang == culprit]
        else:
            uids = [culprit]
        for uid in dict.fromkeys(uids):
            record = self._kept_out.get(uid) or self._cache.pods.get(uid)
            if record is not None:
                self._put_pod(record, now)
        return True

    def _leave_out_skipped(self, now: float) -> bool:
        """Leave out what a round skipped; return whether that is new, so that others should have
        another turn."""
        is_new = False
        for defect in self._planner.changes.take_defects():
            if self._leave_out(defect, now):
                is_new = True
            else:
                self._defects.append(defect)
        return is_new

    def _walled(self, work: Callable[[], T], now: float) -> T:
        """Do the work of a round or a call. If a pod or gang makes it fail, the work is done once
        more without that one."""
        self._run_times.at(now)
        for _ in range(_MOST_CULPRITS):
            try:
                return work()
            except Exception as defect:
                if not self._leave_out(defect, now):
                    raise
        return work()

    def _note_run_time(self, ends: PodRecord, now: float, *, ran: bool) -> None:
        """Pods that never *ran* teach nothing: who may create pods could invent any number."""
        if ran and ends.node and not ends.ended and self._teaches(ends):
            self._taught.add(ends.uid)
            began = _began(ends)
            self._run_times.runs(ends, began)  # a short run may show only when it is over
            self._run_times.ended(ends, max(now - began, 0.0))

    def _teaches(self, pod: PodRecord) -> bool:
        """Whether its run time shows how long others run. A kubelet may create static pods in any
        namespace, so they show nothing of it."""
        return bool(pod.demand.gpus) and not pod.static and pod.uid not in self._taught

    def unheard(self, now: float) -> None:
        """The watch of pods is broken: changes of pods may show much later."""
        self._binder.unheard(now)

    # kube-scheduler's calls.

    def asked_by(self, scheduler: str) -> None:
        """The scheduler of this name calls the extender, though perhaps not yet."""
        self._planner.asked_by(scheduler)

    def filter(self, call: FilterCall, now: float) -> FilterAnswer:
        def answer() -> FilterAnswer:
            record = self._record(call.pod, now)
            self._planner.asked_by(record.scheduler, now)
            return self._filter.answer(record, call, now)

        return self._walled(answer, now)

    def expects_call(self) -> bool:
        """Whether kube-scheduler is about to call `filter` about a gang that `decide` would plan.
        The call names the nodes of which it takes one, so the plan is better made after it."""
        return self._filter.expects_call()

    def prioritize(self, call: FilterCall, now: float) -> PriorityAnswer:
        return self._walled(
            lambda: self._prioritize.answer(self._record(call.pod, now), call.node_names, now), now
        )

    def preempt(self, call: PreemptCall, now: float) -> PreemptAnswer:
        return self._walled(
            lambda: self._preempt.answer(self._record(call.pod, now), call.victims, now), now
        )

    def begin_bind(
        self, call: BindCall, now: float
    ) -> BindOrder | AlreadyBound | BindRefusal | BindWaits:
        """Choose the GPUs, or confirm the plan, and reserve them until `end_bind`. Of a gang's
        member it may say that the Binding waits for others: ask again once `take_released` names
        the gang, or end the wait with `bind_gave_up`."""
        return self._walled(lambda: self._binder.begin(call, now), now)

    def bind_gave_up(self, call: BindCall, now: float) -> BindRefusal | None:
        """The loop no longer waits for other members. `bind_refused` follows. None: the pod may go
        now, so `begin_bind` follows."""
        return self._binder.gave_up(call, now)

    def take_released(self) -> set[GangKey]:
        """The gangs since the last call whose waiting calls should ask again."""
        return self._barrier.take_released()

    def bind_refused(self, call: BindCall) -> None:
        """The refusal of `begin_bind` is final: the loop no longer waits for this call."""
        self._binder.refused(call)

    def end_bind(self, order: BindOrder, outcome: Outcome, now: float, why: str = "") -> None:
        """*why* is the API server's answer if it did not bind the pod."""
        self._binder.end(order, outcome, now, why)
        if outcome is Outcome.DONE:
            self._tried(lambda: self._planner.note_bound(order, now))

    def _record(self, pod: Pod, now: float) -> PodRecord:
        """The pod of a call may be newer or older than the watch's; its requests are the same."""
        record = self._reader.pod(self._within_bounds(pod, size_of(pod)))
        return self._quarantine.seen(record, now) or replace(record, invalid=LEFT_OUT, gang=None)

    def _within_bounds(self, pod: Pod, size: int) -> Pod:
        why = self._pod_bytes.too_large(pod, size)
        return self._shortened(pod, why) if why else pod

    def _shortened(self, pod: Pod, why: str) -> Pod:
        # To sum the requests of 15,000 containers takes some 0.3 s.
        return self._aside(lambda: shortened(pod, why, self._settings.resource_names))

    # Work for the loop.

    def decide(self, now: float) -> tuple[Action, ...]:
        """What to write; call it after facts and outcomes, and when `next_due` is reached."""
        if not self.synced:
            return ()
        self._began = self._began or now
        for node in self._kind_turns.due(now):
            self._aside(partial(_prepare_kind, node.topology))
            self._put_node_record(node, now)
        if self._quarantine.take_over(now):
            for record in [*self._kept_out.values()]:
                self._put_pod(record, now)
        self._binder.end_doubts(now)
        for _ in range(self.steps_to_rejudge):  # pods of groups that others have named, or left
            self.rejudge(now)
            self._aside(nothing)
        actions = self._walled(lambda: self._round(now), now)
        try:  # what was decided is carried out, whatever goes wrong from here on
            while self._leave_out_skipped(now):
                actions += self._walled(lambda: self._round(now), now)
            self._walled(self._barrier.look, now)
        except Exception as defect:
            self._defects.append(defect)
        self._tried(lambda: self._planner.note_reservations(now))
        return actions

    def any_urgent(self) -> bool:
        """Whether `decide` should follow at once. After other changes it may be a moment later."""
        return self._reader.any_due or self._planner.changes.any_urgent()

    def _round(self, now: float) -> tuple[Action, ...]:
        return self._planner.decide(now, self._binder.doubted())

    def set_unlocker(self, aside: RunUnlocked) -> None:
        """*aside* runs long work that needs no cache, and may let others use the core."""
        self._aside = self._planner.changes.run_unlocked = aside

    def set_stopwatch(self, note_step: NoteStep) -> None:
        """*note_step* measures how long the steps of a round take."""
        self._note_step = self._planner.round.note_step = note_step

    def take_defects(self) -> list[Exception]:
        """The defects that were skipped, at events, in calls and in rounds; each is returned
        once."""
        defects, self._defects = self._defects, []
        return defects

    def take_decisions(self) -> tuple[Decision, ...]:
        """What has been decided and carried out since the last call."""
        return self._planner.history.take_untold()

    def done(self, action: Action, outcome: Outcome, now: float) -> None:
        """Report the *outcome* of an *action*."""
        if outcome is Outcome.DONE:
            self._tried(lambda: self._planner.note_done(action, now))
        self._planner.wrote(action, outcome, now)

    def next_due(self) -> float | None:
        """When `decide` has to run even if nothing changes until then; it may be in the past."""
        return min(self._agenda.times(), default=None)

    # Views.

    def snapshot(self, now: float) -> Snapshot:
        """A copy from which explanations are made without the lock."""
        while (taken := self.begin_snapshot(now)) is None:
            pass
        return taken

    def begin_snapshot(self, now: float) -> Snapshot | None:
        """A snapshot, or a part of its work: None if more is left than it should do at once."""
        settings = self._settings
        own = Own(
            settings.namespaces,
            self._began or now,
            settings.may_be_evicted,
        )
        return self._camera.take(now, own, self._activity)

    def explain(self, namespace: str, name: str, now: float) -> Explanation | None:
        return Explainer(self.snapshot(now)).pod(namespace, name, runner_up=True)

    def gangs(self, now: float) -> tuple[GangView, ...]:
        return Explainer(self.snapshot(now)).gangs()

    def look_at_emptying(
        self, nodes: Collection[str], now: float
    ) -> Iterator[tuple[str, PodRecord, Move | Stays]]:
        """See `Emptying.look`."""
        return self._planner.emptying.look(nodes, now)

    def nodes(self, now: float) -> tuple[NodeView, ...]:
        return view_nodes(self.snapshot(now))

    def counts(self, now: float) -> Counts:
        return view_counts(self._cache, self._planner, now)

    def audit(self) -> list[str]:
        """Every violated invariant of the cache and the planner; empty if there is none. Others
        use the core meanwhile."""
        return audit(self._cache, self._planner.registry, lambda: self._aside(lambda: None))


def _maker(pod: PodRecord) -> str:
    """What would have to create a gang's pods again: the object that defines it, or else the pods'
    own owner."""
    key = pod.gang
    return (key.source if key is not None else "") or pod.owner_uid


def _began(pod: PodRecord) -> float:
    """When the bound *pod* got its GPUs."""
    written = pod.plan_for(pod.node)
    return pod.created if written is None else written.plan.made


def _prepare_kind(topology: str | None) -> None:
    """Make the tables of this kind of machine, which stay for a while."""
    with suppress(Exception):  # the node's event meets the same defect, and reports it
        if topology is not None:
            outlook_of(table_of(read_topology(topology)))
