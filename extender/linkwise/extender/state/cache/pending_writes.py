"""The writes to the API server that are due: the difference between the wanted and actual state.

There is one write per pod and purpose at a time, so that two cannot overtake each other. A failed
write is repeated after a pause that doubles. The loop carries out the writes and reports the
outcomes.

A former leader may still have a write in flight. If a plan of an older leader appears once this
leader has begun, it does not count: it is overwritten, or withdrawn.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from linkwise.extender.state.actions import (
    Action,
    Beneficiary,
    Correct,
    CreateClaim,
    DropClaim,
    Emit,
    EventType,
    Evict,
    LiftGate,
    MarkStarted,
    Nominate,
    NotePlaces,
    NoteQueue,
    PodRef,
    WithdrawPlan,
    WritePlan,
)
from linkwise.extender.state.cache.claims.book import ClaimBook
from linkwise.extender.state.extender_calls import Outcome
from linkwise.extender.state.noted_places import MOST_BYTES, key_of_note
from linkwise.extender.state.records import (
    GangKey,
    PodMemory,
    PodRecord,
    QueueNote,
    WrittenPlan,
    write_queue_note,
)
from linkwise.extender.state.timers import Agenda, Timers
from linkwise.pods.claims import ClaimAsk
from linkwise.pods.podgrouper.recreated import COUNTS_AS_FAILURE
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_plan, write_gpus, write_plan

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
_MOST_DOUBLINGS = 5  # more make no difference
SETTLE_SECONDS = 10.0  # after a successful write, until the watch shows its effect
# A pod that leaves so soon after an eviction without an answer was evicted.
LOST_SECONDS = 60.0
# How long kube-scheduler has to try a pod where it was nominated. No pod whose nomination it has
# cleared waits longer than this.
NOMINATE_SECONDS = 3.0
_MOST_IN_VAIN = 3
# The reason of the Event about a pod for which others were evicted.
OTHERS_EVICTED = "OthersEvicted"
# Why a plan is withdrawn.
EARLIER_LEADER = "an earlier leader made it"
LEFT_ALONE = "its namespace is not in the canary"
# The API server drops an Event an hour after its last update.
EVENT_SECONDS = 2400.0

_Key = tuple[str, str]  # purpose, uid
_Edition = tuple[int, int]  # of a plan: leader, epoch
_NONE: _Edition = (0, 0)  # no plan, or one that is older than all of this extender's
_PURPOSES: dict[type[Action], str] = {
    WritePlan: "plan",
    WithdrawPlan: "plan",
    Nominate: "nominate",
    LiftGate: "gate",
    CreateClaim: "claim",
    DropClaim: "unclaim",
    Correct: "correct",
    MarkStarted: "start",
    NoteQueue: "queue",
    NotePlaces: "places",
    Evict: "evict",
    Emit: "event",
}


@dataclass(slots=True)
class _Pause:
    until: float
    tries: int = 0


class PendingWrites:
    def __init__(
        self,
        agenda: Agenda,
        memory: PodMemory,
        leader: int = 0,
        claims: ClaimBook | None = None,
    ) -> None:
        memory.ask(self._forget)
        self.leader = leader  # the term of this process
        self._claims = ClaimBook() if claims is None else claims
        self._begun = False
        self._ready: list[Action] = []
        self._outstanding: dict[_Key, Action] = {}
        self._pauses: dict[_Key, _Pause] = {}
        # uid -> the nominated plan, when, and how often that failed before.
        self._nominated: dict[str, tuple[_Edition, float, int]] = memory.dict()
        # uids of planned pods that a call was about without their planned nodes
        self._sent_away = memory.set()
        self._wakes: Timers[_Key] = Timers(agenda)  # when pauses end
        self._there: dict[str, _Edition] = memory.dict()  # uid -> the plan on the API server
        # uid -> the highest ever accepted or decided
        self._newest: dict[str, _Edition] = memory.dict()
        # uid -> the highest that the watch has shown
        self._shown: dict[str, _Edition] = memory.dict()
        # By uid, those of which the outcome is unknown, and since when.
        self._evicted: dict[str, tuple[Evict, float]] = memory.dict()
        self._evicts = memory.set()  # uids of pods that this leader has wanted evicted
        # Gang -> what the API server has of its places for members to come, and what it should.
        self._places: dict[GangKey, str] = {}
        self._wanted_places: dict[GangKey, str] = {}
        # Gang -> the plans of its members to come, by uid, that the wanted note is made of.
        self._plans_of_note: dict[GangKey, Mapping[str, WrittenPlan]] = {}
        self.gang_of_note: dict[str, GangKey] = {}  # by the key of the note
        self._why: dict[str, str] = memory.dict()  # uid -> why its plan is withdrawn
        # uid -> until when the watch should show its claim
        self._created: dict[str, float] = memory.dict()
        # uid -> its claim that was deleted, by the claim's uid
        self._dropped: dict[str, str] = memory.dict()
        # uid -> reason and text -> when
        self._said: dict[str, dict[tuple[str, str], float]] = memory.dict()

    def take(self) -> tuple[Action, ...]:
        """The new writes, evictions last: what is noted on a victim precedes its eviction."""
        ready, self._ready = self._ready, []
        return tuple(sorted(ready, key=lambda action: isinstance(action, Evict)))

    def seen(self, record: PodRecord, now: float) -> bool:
        """Note which plan the watch shows on an unbound pod; return whether it is new. A write of
        that very plan has been carried out then, whenever its answer comes.

        The watch lags behind the extender's writes, so a plan older than the newest known one is an
        echo. An older leader's plan is no echo if the newest was shown before: it has overwritten
        the newest.
        """
        if record.written is None:
            return False
        uid, edition = record.uid, record.written.plan.edition
        newest = self._newest.get(uid)
        late = self._begun and record.written.plan.leader < self.leader and edition != newest
        if late and self._shown.get(uid) == newest and not self.busy(uid):
            self._there[uid] = edition
        if late or edition < (newest or _NONE):
            return False
        self._newest[uid] = self._shown[uid] = self._there[uid] = edition
        action = self._outstanding.get(("plan", uid))
        if (
            isinstance(action, WritePlan)
            and record.nominated == action.node
            and read_plan(action.annotations[names.PLAN]).edition == edition
        ):
            self.done(action, Outcome.DONE, now)
        return edition != newest

    def begin(self) -> None:
        """All plans that existed before this leader have been seen."""
        self._begun = True

    def next_epoch(self, uids: list[str]) -> int:
        """Above those of all plans that are known. A process without an election, after one with,
        has plans on pods that are lower than the highest."""
        known = (of.get(uid, _NONE) for uid in uids for of in (self._newest, self._there))
        return 1 + max((epoch for _, epoch in known), default=0)

    def busy(self, uid: str) -> bool:
        """Whether a plan is being written on the pod, or withdrawn, at this moment."""
        return ("plan", uid) in self._outstanding

    def is_evicting(self, uid: str) -> bool:
        """Whether the pod is being evicted at this moment."""
        return ("evict", uid) in self._outstanding

    def was_evicted(self, uid: str) -> bool:
        """Whether this leader has wanted the pod evicted."""
        return uid in self._evicts

    def _forget(self, uid: str) -> None:
        for purpose in _PURPOSES.values():
            self._pauses.pop((purpose, uid), None)
            self._wakes.drop((purpose, uid))
            self._outstanding.pop((purpose, uid), None)

    def bring_plan(
        self, record: PodRecord, wanted: WrittenPlan | None, now: float, *, at_once: bool = True
    ) -> None:
        """Queue a write that makes the plan on the pod the *wanted* one. On a pod that does not
        exist yet there is nothing to write. Not *at_once*: a pod without a plan gets none yet."""
        if record.coming:
            return
        if self._drops_claim(record, wanted, now):
            return
        there = self._there.get(record.uid)
        if wanted is not None:
            newest = self._newest.get(record.uid, _NONE)
            self._newest[record.uid] = max(wanted.plan.edition, newest)
            is_there = there == wanted.plan.edition
            if there is None and not at_once:
                return
            if not is_there or self._lost_nomination(record, wanted, now):
                said = annotations_of(wanted, record.uid)
                why = self._why.get(record.uid, "") if there is not None and not is_there else ""
                unsays = record.claim is not None and not (is_there or record.gated)
                self._issue(
                    WritePlan(record.ref, wanted.plan.node, said, is_there, why, unsays), now
                )
        elif there is not None:
            self._withdraw(record, there, now)
        if record.claim is not None and wanted is not None:
            self._bring_claim(record, record.claim, wanted, now)

    def _drops_claim(self, record: PodRecord, wanted: WrittenPlan | None, now: float) -> bool:
        """Whether the claim for another plan is still there. Until it is gone, the plan on the pod
        stays: if kube-scheduler allocates the claim first, the pod is bound with that plan."""
        late = self._claims.late(record)
        if late is None:
            return self._awaits_claim(record, now)
        self._created.pop(record.uid, None)
        if self._dropped.get(record.uid) == late.uid:
            return False
        if wanted is not None and late.edition == _edition_of(wanted):
            return False
        if not late.allocated:
            self._issue(DropClaim(record.ref, late.name, late.uid, late.version), now)
        return True

    def _awaits_claim(self, record: PodRecord, now: float) -> bool:
        """Whether a claim was created, and the watch is to show it: only then can it be deleted on
        condition that it is not allocated."""
        until = self._created.get(record.uid, -math.inf)
        if now >= until:
            return False
        self.look_again(record.uid, until)
        return True

    def _bring_claim(
        self, record: PodRecord, ask: ClaimAsk, wanted: WrittenPlan, now: float
    ) -> None:
        """The claim follows the plan, so that a new leader knows what it is for."""
        late, is_written = self._claims.late(record), self._there.get(record.uid)
        if late is None and is_written == wanted.plan.edition:
            first = next(uuid for uuids in wanted.gpus.values() for uuid in uuids)
            driver = self._claims.driver_of(wanted.plan.node, first)
            edition = _edition_of(wanted)
            self._issue(
                CreateClaim(record.ref, ask.claim, wanted.gpus, driver, edition, ask.template), now
            )

    def note_why(self, uid: str, why: str) -> None:
        """Say why the pod loses its plan, before `bring_plan` is told that it has none."""
        self._why[uid] = why

    def is_written(self, uid: str, written: WrittenPlan) -> bool:
        """Whether this plan is on the API server."""
        return self._there.get(uid) == written.plan.edition

    def has_brought(self, record: PodRecord, wanted: WrittenPlan) -> bool:
        """Whether this plan and its nomination are on the API server, and the claim for its GPUs
        if the pod gets them by one. For a member to come: whether its gang's places are noted, with
        this one; a gang whose plans were made in this round is not published yet."""
        if record.coming:
            key = record.gang
            of_note = self._plans_of_note.get(key, {}) if key is not None else {}
            return key is not None and of_note.get(record.uid) == wanted and self.has_noted(key)
        there = self._there.get(record.uid) == wanted.plan.edition
        nominated = record.nominated == wanted.plan.node or record.uid in self._nominated
        if record.claim is not None:
            late = self._claims.late(record)
            nominated = nominated and late is not None and late.edition == _edition_of(wanted)
        return there and nominated and not self.busy(record.uid)

    def nominate(self, record: PodRecord, node: str, now: float) -> bool:
        """Queue a nomination; False if it is too soon after the last one."""
        return self._issue(Nominate(record.ref, node), now)

    def sent_away(self, uid: str) -> None:
        """kube-scheduler asked about the pod, and its planned node was not among the nodes that it
        looked at. So it clears the nomination, which it did not know yet."""
        self._sent_away.add(uid)

    def was_sent_away(self, uid: str) -> bool:
        """Whether the pod was sent away since its nomination was written."""
        return uid in self._sent_away

    def clear_nomination(self, record: PodRecord, now: float) -> None:
        """A plan that came to nothing goes too: the next nomination could make it count again."""
        there = self._there.get(record.uid)
        if there is not None:
            self._withdraw(record, there, now)
        else:
            self._issue(WithdrawPlan(record.ref, ()), now)

    def _withdraw(self, record: PodRecord, there: _Edition, now: float) -> None:
        why = self._why.get(record.uid, "")
        if not why and there[0] < self.leader:
            why = EARLIER_LEADER
        node = record.written.plan.node if record.written is not None else ""
        self._issue(WithdrawPlan(record.ref, (names.GPUS, names.PLAN), why, node), now)

    def lift_gate(self, record: PodRecord, now: float) -> None:
        self._issue(LiftGate(record.ref), now)

    def correct(self, record: PodRecord, truth: WrittenPlan, now: float) -> None:
        self._issue(Correct(record.ref, annotations_of(truth, record.uid)), now)

    def mark_started(self, record: PodRecord, now: float) -> None:
        self._issue(MarkStarted(record.ref, start_mark(record.uid)), now)

    def note_queue(self, record: PodRecord, wanted: QueueNote | None, now: float) -> bool:
        """Queue a write that makes the note of the gang's queue state on this pod the *wanted*
        one; False if it is too soon after the last one."""
        if record.queue == wanted:
            return True
        text = None if wanted is None else write_queue_note(wanted)
        return self._issue(NoteQueue(record.ref, {names.QUEUE: text}), now)

    def note_places(
        self, key: GangKey, wanted: str | None, plans: Mapping[str, WrittenPlan], now: float
    ) -> bool:
        """Queue a write that makes the note of the gang's places for members to come the *wanted*
        one, made of these *plans*; False if it is too soon after the last one, or there are too
        many notes."""
        self._plans_of_note[key] = plans
        if not plans:
            del self._plans_of_note[key]
        if wanted is None:
            self._wanted_places.pop(key, None)
        else:
            self._wanted_places[key] = wanted
        if self.has_noted(key):
            return True
        if wanted is not None and sum(map(len, self._places.values())) + len(wanted) > MOST_BYTES:
            return False
        uid = key_of_note(key)
        self.gang_of_note[uid] = key
        return self._issue(NotePlaces(PodRef(key.namespace, key.name, uid), uid, wanted), now)

    def has_places(self, key: GangKey) -> bool:
        """Whether the API server has places of the gang, or is to have some."""
        return key in self._places or key in self._wanted_places

    def has_noted(self, key: GangKey) -> bool:
        """Whether the API server has the places of the gang as they are."""
        return self._places.get(key) == self._wanted_places.get(key)

    def places_are_noted(self, key: GangKey, text: str) -> None:
        """The API server has these places of the gang, by an earlier leader."""
        self._places[key] = text

    def noted_gangs(self) -> Collection[GangKey]:
        """The gangs of which the API server has places, or members to come have some."""
        return self._places.keys() | self._plans_of_note.keys()

    def evict(
        self,
        record: PodRecord,
        why: str,
        now: float,
        *,
        event: str = "",
        priority: int | None = None,
        for_whom: Beneficiary | None = None,
    ) -> None:
        gang, node = record.gang_name, record.node
        if record.ask.eviction_fails_job:
            why = f"{why}; {COUNTS_AS_FAILURE}"
        self._evicts.add(record.uid)
        self._issue(Evict(record.ref, why, event, gang, node, priority, for_whom), now)

    def say(self, pod: PodRef, reason: str, message: str, now: float) -> None:
        """Send a warning Event; the same text about the same pod is repeated only before the API
        server drops it."""
        said = self._said.setdefault(pod.uid, {})
        if now >= said.get((reason, message), -math.inf) + EVENT_SECONDS:
            for words in [words for words, at in said.items() if now >= at + EVENT_SECONDS]:
                del said[words]  # pods of gangs that run for months get many
            said[reason, message] = now
            self._ready.append(Emit(pod, reason, EventType.WARNING, message))

    def look_again(self, uid: str, at: float) -> None:
        """Let `take_woken` return this pod at that time."""
        self._wakes["event", uid] = at

    def done(self, action: Action, outcome: Outcome, now: float) -> None:
        key = _key(action)
        # Or it is an Event, of which nothing is kept.
        is_gone = self._outstanding.get(key) != action
        if isinstance(action, Evict) and action.event:
            uid = action.pod.uid
            self._evicted[uid] = action, now
            if outcome is Outcome.DONE or (outcome is Outcome.UNKNOWN and is_gone):
                self.leaves(uid, now)
            elif outcome is not Outcome.UNKNOWN:
                del self._evicted[uid]
                self._evicts.discard(uid)
        if is_gone:
            return
        del self._outstanding[key]
        if isinstance(action, CreateClaim) and outcome in (Outcome.DONE, Outcome.UNKNOWN):
            self._created[action.pod.uid] = now + SETTLE_SECONDS
        if outcome is not Outcome.DONE:
            tries = self._pauses[key].tries if key in self._pauses else 0
            seconds = min(FIRST_PAUSE_SECONDS * 2**tries, LONGEST_PAUSE_SECONDS)
            self._pause(key, _Pause(now + seconds, min(tries + 1, _MOST_DOUBLINGS)))
            if isinstance(action, NotePlaces):  # it may be there; if not wanted any more, remove it
                self._places.setdefault(self.gang_of_note[action.key], "")
        elif isinstance(action, WritePlan | NotePlaces | WithdrawPlan | DropClaim):
            self._carried_out(action, now)
            self._pauses.pop(key, None)
        else:
            nominated = isinstance(action, Nominate)
            self._pause(key, _Pause(now + (NOMINATE_SECONDS if nominated else SETTLE_SECONDS)))

    def _carried_out(
        self, action: WritePlan | NotePlaces | WithdrawPlan | DropClaim, now: float
    ) -> None:
        """The API server has what the watch shows later, or never."""
        if isinstance(action, WritePlan):
            uid, edition = action.pod.uid, read_plan(action.annotations[names.PLAN]).edition
            self._sent_away.discard(uid)
            before, _, in_vain = self._nominated.get(uid, (_NONE, 0.0, 0))
            self._nominated[uid] = edition, now, in_vain + 1 if before == edition else 0
            self._there[uid] = edition
            self._why.pop(uid, None)
        elif isinstance(action, NotePlaces):
            self._places_noted(action)
        elif isinstance(action, WithdrawPlan):
            self._there.pop(action.pod.uid, None)
            self._why.pop(action.pod.uid, None)
        else:
            self._dropped[action.pod.uid] = action.uid
            self._pauses.pop(("claim", action.pod.uid), None)

    def _places_noted(self, action: NotePlaces) -> None:
        gang = self.gang_of_note[action.key]
        if action.text is None:
            self._places.pop(gang, None)
            if gang not in self._wanted_places:
                del self.gang_of_note[action.key]
        else:
            self._places[gang] = action.text

    def leaves(self, uid: str, now: float) -> None:
        """The pod is being deleted, or gone: if that is an eviction of ours, whose answer may have
        been lost, say so."""
        action, since = self._evicted.pop(uid, (None, 0.0))
        if action is None or now >= since + LOST_SECONDS:
            return
        told = f"evicted {action.why}"
        self._ready.append(Emit(action.pod, action.event, EventType.WARNING, told))
        if (to := action.for_whom) is not None:
            of = f" of gang {action.gang}" if action.gang else ""
            told = f"pod {action.pod}{of} was evicted {action.why}"
            self._ready.append(Emit(to.pod, OTHERS_EVICTED, EventType.NORMAL, told))

    def take_woken(self, now: float) -> set[str]:
        """The pods, by uid, for which a pause has ended since the last call."""
        return {uid for _, uid in self._wakes.take(now)}

    def _lost_nomination(self, record: PodRecord, wanted: WrittenPlan, now: float) -> bool:
        """kube-scheduler clears a nomination if it finds no node for the pod. Without a nomination
        it would try the pod again only by chance. If it did so for want of the planned node in the
        call, the nomination is repeated at once, a few times."""
        if record.written != wanted or record.nominated == wanted.plan.node:
            return False
        _, at, in_vain = self._nominated.get(record.uid, (_NONE, 0.0, 0))
        at_once = self.was_sent_away(record.uid) and in_vain < _MOST_IN_VAIN
        patience_ends = at if at_once else at + nomination_pause(in_vain)
        if now < patience_ends:
            self._wakes["plan", record.uid] = patience_ends
        return now >= patience_ends

    def _pause(self, key: _Key, pause: _Pause) -> None:
        self._pauses[key] = pause
        self._wakes[key] = pause.until

    def _issue(self, action: Action, now: float) -> bool:
        key = _key(action)
        pause = self._pauses.get(key)
        if key in self._outstanding or (pause is not None and now < pause.until):
            return False
        self._outstanding[key] = action
        self._ready.append(action)
        return True


def nomination_pause(in_vain: int) -> float:
    """Seconds until a nomination is repeated, after so many *in_vain*. Each change of a nomination
    wakes other pods too, so while kube-scheduler's calls are lost the rate has to fall."""
    return NOMINATE_SECONDS * 2.0 ** min(max(in_vain, 0), _MOST_IN_VAIN)


def annotations_of(written: WrittenPlan, uid: str) -> dict[str, str]:
    """The plan as annotations of the pod *uid*, which it names."""
    plan = msgspec.structs.replace(written.plan, uid=uid)
    return {names.GPUS: write_gpus(written.gpus), names.PLAN: write_plan(plan)}


def _edition_of(written: WrittenPlan) -> str:
    """As an annotation of the claim. It tells the GPUs too: without an election, a new process may
    count like the last one, whose claim for other GPUs is still there."""
    leader, epoch = written.plan.edition
    gpus = sha256(write_gpus(written.gpus).encode()).hexdigest()[:8]
    return f"{leader}.{epoch}.{gpus}"


def start_mark(uid: str) -> dict[str, str]:
    """The annotation of the pod *uid* that says that its gang has started."""
    return {names.STARTED: uid}


def _key(action: Action) -> _Key:
    return _PURPOSES[type(action)], action.pod.uid
