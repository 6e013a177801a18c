"""Plans whole gangs, and takes plans back: the one place where GPUs are promised ahead of a bind.

`decide` first puts every gang in order that something happened to (plans that lost a GPU, timeouts,
refusals), so that what is given back is there for all, and then plans those that wait: by priority,
then age. A gang that does not fit holds nothing and is not tried again before room appears.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from linkwise.extender.actions import Action, Emit
from linkwise.extender.alarms import Alarms
from linkwise.extender.best_node import BestNode
from linkwise.extender.books import Books
from linkwise.extender.calls import Outcome
from linkwise.extender.corrections import Corrections
from linkwise.extender.feasible import Feasible
from linkwise.extender.gang import Gang, phase_of
from linkwise.extender.gates import Gates
from linkwise.extender.learned import Learned
from linkwise.extender.muster import Muster, plan_of
from linkwise.extender.muster import muster as muster_of
from linkwise.extender.offers import Offers
from linkwise.extender.outbox import Outbox
from linkwise.extender.place import Refusal, Spot
from linkwise.extender.plan_making import plan_id, written_plan
from linkwise.extender.records import GangKey, PodRecord
from linkwise.extender.search import Search
from linkwise.extender.turned_away import TurnedAway
from linkwise.topology.plan import Plan


class Planner:
    def __init__(
        self, books: Books, outbox: Outbox, *, gang_timeout_seconds: float, max_refusals: int
    ) -> None:
        self.feasible = Feasible(books)
        self.learned = Learned(books)
        self._best_node = BestNode(books)
        self._search = Search(books, self.feasible, self.learned, self._best_node)
        self.gangs: dict[GangKey, Gang] = {}
        self.refusals = 0
        self._books = books
        self._outbox = outbox
        self._timeout_seconds = gang_timeout_seconds
        self._max_refusals = max_refusals
        self._due: set[GangKey] = set()
        self._waiting: set[GangKey] = set()
        self._deadlines: Alarms[GangKey] = Alarms()
        self._looks: dict[GangKey, tuple[object, Muster]] = {}
        self._changes_seen = 0
        self._most_room, self._most = -1, dict[int, int]()
        self._defects: list[Exception] = []
        self._gates = Gates(books, outbox)
        self.turned_away = TurnedAway(books, outbox, self._search.best_for)
        self._corrections = Corrections(books, outbox)
        self.offers = Offers(books, self._best_node)

    @property
    def swaps(self) -> int:
        return self._corrections.swaps

    # What happened.

    def pod_changed(self, before: PodRecord | None, record: PodRecord) -> None:
        """A pod came or changed; the books know it already."""
        self._gates.pod_changed(record)
        if record.node:
            self.offers.forget(record.uid)
        if record.gang is None and record.uid in self._books.plans:
            # Let go by hand before its plan was on it, or kube-scheduler did not want the node.
            self._books.plan(record.uid, None)
        news = self._outbox.seen(record)
        if news and record.live and not record.node and _is_planned(record):
            self._books.plan(record.uid, record.written)
        for known in (before, record):
            if known is not None and known.gang is not None:
                self._due.add(known.gang)
        if before is None or not _same_member(before, record):
            self._take_up(record.gang)

    def pod_gone(self, record: PodRecord) -> None:
        self._outbox.forget(record.uid)
        self._corrections.forget(record.uid)
        self.turned_away.forget(record.uid)
        self.offers.forget(record.uid)
        if record.gang is not None:
            self._due.add(record.gang)
            self._take_up(record.gang)

    def refused(self, record: PodRecord, node: str) -> None:
        """kube-scheduler did not want the node that *record* was nominated for."""
        gang = self.gangs.get(record.gang) if record.gang is not None else None
        if gang is None or record.template is None:
            return
        self.learned.refuse(record.template, node)
        gang.was_refused = True
        gang.reason = f"kube-scheduler refused node {node} for pod {record.ref.name}"
        self._due.add(gang.key)

    def asked(self, record: PodRecord, now: float) -> None:
        """kube-scheduler found nodes for a member that has no plan. To a gang that was refused and
        has waited long, that is a reason to try again."""
        gang = self.gangs.get(record.gang) if record.gang is not None else None
        if gang is not None and gang.refused and now >= gang.refused_at + self._timeout_seconds:
            self._take_up(gang.key)
            self._due.add(gang.key)

    def bind_ended(self, record: PodRecord) -> None:
        if record.gang is not None:
            self._due.add(record.gang)

    def wrote(self, action: Action, outcome: Outcome, now: float) -> None:
        self._outbox.done(action, outcome, now)
        if isinstance(action, Emit):
            return  # nothing waits for it
        record = self._books.pods.get(action.pod.uid)
        if record is not None and record.gang is not None:
            self._due.add(record.gang)

    # What to do about it.

    def decide(self, now: float) -> tuple[Action, ...]:
        looked_at = self._take_due(now)
        for key in sorted(looked_at):
            with self._surviving(key.title):
                self._put_in_order(key, now)
        # What one gang gives up while looking for room may be room for one before it.
        while untried := [key for key in self._waiting if self._untried(self.gangs[key])]:
            for gang in self._by_urgency(untried):
                if self._untried(gang):
                    with self._surviving(gang.name):
                        self._plan(gang, now)
                        looked_at.add(gang.key)
        for key in sorted(looked_at):
            if key in self.gangs:
                with self._surviving(key.title):
                    self._finish(self.gangs[key], now)
        self._gates.look_at_strays(now)
        self.turned_away.look(now)
        self._corrections.look(now, self._surviving)
        return self._outbox.take()

    def take_defects(self) -> list[Exception]:
        """What went wrong since this was last asked, and must not have: mistakes of ours."""
        defects, self._defects = self._defects, []
        return defects

    @contextmanager
    def _surviving(self, what: object) -> Iterator[None]:
        """A gang or a pod that trips over a mistake of ours is left out; all others go on."""
        try:
            yield
        except Exception as defect:
            defect.add_note(f"while deciding about {what}")
            self._defects.append(defect)

    def next_due(self) -> float | None:
        """When `decide` has something to do even if nothing happens until then."""
        times = (self._deadlines.next(), self._outbox.next_due(), self.turned_away.next_due)
        return min((time for time in times if time is not None), default=None)

    def is_writing(self, uid: str) -> bool:
        """Whether a write of the pod's plan is on its way."""
        return self._outbox.busy(uid)

    def deadline(self, gang: Gang) -> float | None:
        return self._deadlines.get(gang.key)

    def _take_due(self, now: float) -> set[GangKey]:
        books = self._books
        self.feasible.trim()
        self._best_node.trim()
        touched = books.take_touched()
        for name in touched:
            book = books.nodes.get(name)
            keys = (books.pods[uid].gang for uid in (book.plans if book is not None else ()))
            self._due |= {key for key in keys if key is not None}
        lapsed = self.learned.lapse(touched)
        if lapsed:
            books.room += 1  # for all who wait: what refused them then may let them in now
        if lapsed or len(books.changed_rows) != self._changes_seen:
            self._changes_seen = len(books.changed_rows)
            for key, gang in self.gangs.items():
                if gang.refused:
                    self._take_up(key)
                    self._due.add(key)
        self._due |= set(self._deadlines.take(now))
        for uid in self._outbox.take_woken(now):
            record = books.pods.get(uid)
            if record is not None:
                self._gates.pod_changed(record)
                if record.gang is not None:
                    self._due.add(record.gang)
        due, self._due = self._due, set()
        return due

    def _untried(self, gang: Gang) -> bool:
        if gang.tried_room == self._books.room:
            return False
        if any(count > self._most_of_size(size) for size, count in gang.lacking.items()):
            gang.tried_room = self._books.room  # sure, without a look at every member
            return False
        return True

    def _most_of_size(self, size: int) -> int:
        """As `Rows.most_of_size`, counted once for all who wait: what is free only gets less
        while `Books.room` stays."""
        if self._most_room != self._books.room:
            self._most_room, self._most = self._books.room, {}
        if size not in self._most:
            self._most[size] = self._books.rows.most_of_size(size)
        return self._most[size]

    def _take_up(self, key: GangKey | None) -> None:
        """A gang that was left to wait may be tried again."""
        gang = self.gangs.get(key) if key is not None else None
        if gang is not None:
            gang.tried_room, gang.lacking = -1, {}
            if gang.refused:
                gang.refused, gang.refusals = False, 0

    def _by_urgency(self, keys: Iterable[GangKey]) -> list[Gang]:
        def urgency(key: GangKey) -> tuple[int, float, GangKey]:
            live = [member for member in self._books.members(key) if member.live]
            priority = max((member.priority for member in live), default=0)
            return -priority, min((member.created for member in live), default=0.0), key

        return [self.gangs[key] for key in sorted(keys, key=urgency)]

    # One gang in order.

    def _put_in_order(self, key: GangKey, now: float) -> None:
        self._waiting.discard(key)
        self._deadlines.drop(key)
        if key not in self._books.gangs:
            self.gangs.pop(key, None)
            self._looks.pop(key, None)
            return
        is_new = key not in self.gangs
        gang = self.gangs.setdefault(key, Gang(key))
        found = self.muster(gang)
        if not any(member.live for member in found.members):
            gang.plan_id = ""  # that run is over; who comes now is of another
        if found.clash:
            gang.reason = found.clash
            self._withdraw(found.planned)
        self._drop_lost_plans(gang, self.muster(gang))
        self._read_plans(gang, now)
        if is_new:
            self._give_grace(gang, now)
        self._count_refusal(gang, now)
        self._expire(gang, now)
        self._start_or_evict(gang, now)
        if self._wants_plan(gang):
            self._waiting.add(key)

    def _drop_lost_plans(self, gang: Gang, found: Muster) -> None:
        """Plans that cannot be carried out any more, or are for a pod too many."""
        self._withdraw(member for member in found.extra if member.uid not in self._books.holds)
        for member in found.planned:
            node = self._books.plans[member.uid].plan.node
            if not (self._books.keeps_plan(member.uid) and self.feasible.on(member.template, node)):
                self._withdraw([member])
                gang.reason = f"the plan of pod {member.ref.name} on node {node} came to nothing"

    def _read_plans(self, gang: Gang, now: float) -> None:
        """Take the gang's plan from its members; of a half-made new one, the bound ones' counts."""
        found = self.muster(gang)
        plans = self._plans_of(found.bound) or self._plans_of((*found.flying, *found.planned))
        if plans:
            newest = max(plans, key=lambda plan: (plan.made, plan.id))
            # A time to come, of a clock that went wrong or of a plan somebody copied, is now.
            seen = gang.made if gang.made is not None and gang.plan_id == newest.id else now
            gang.plan_id = newest.id
            made = min(plan.made for plan in plans if plan.id == newest.id)
            gang.made = max(0.0, min(seen, made))
            gang.refusals = max(gang.refusals, *(plan.refusals for plan in plans))
        elif found.bound:  # past us; the time runs from when we saw it
            gang.made = now if gang.made is None else gang.made
        else:
            gang.made = None
        if not found.started:
            other = [
                member
                for member in found.planned
                if self._books.plans[member.uid].plan.id != gang.plan_id
            ]
            self._withdraw(other)

    def _give_grace(self, gang: Gang, now: float) -> None:
        """Found partial, and too late: while nobody looked it may have been whole, and the member
        that had the mark may have gone. So it is not given up before it could be whole again."""
        found = self.muster(gang)
        if found.bound and gang.made is not None and now >= self._ends(gang, found):
            gang.grace = now

    def muster(self, gang: Gang) -> Muster:
        """The same as long as nothing happens to the gang's pods: it is looked at many times."""
        state = (self._books.gang_changes.get(gang.key, 0), gang.plan_id, gang.marked)
        known = self._looks.get(gang.key)
        if known is not None and known[0] == state:
            return known[1]
        found = muster_of(self._books, gang)
        self._looks[gang.key] = (state, found)
        return found

    def _plans_of(self, members: Iterable[PodRecord]) -> list[Plan]:
        found = (plan_of(self._books, member) for member in members)
        return [written.plan for written in found if written is not None]

    def _count_refusal(self, gang: Gang, now: float) -> None:
        if not gang.was_refused:
            return
        gang.was_refused = False
        self._refuse(gang, now)
        self._withdraw(self.muster(gang).planned)

    def _refuse(self, gang: Gang, now: float) -> None:
        self.refusals += 1
        gang.refusals += 1
        if gang.refusals >= self._max_refusals:
            gang.refused, gang.refused_at = True, now
            for member in self.muster(gang).seats[:1]:
                self._outbox.say(member.ref, *_told(gang, "Refused"), now)

    def _expire(self, gang: Gang, now: float) -> None:
        found = self.muster(gang)
        if found.started or found.flying or gang.expired or found.standing(gang).whole:
            return
        if gang.made is None or now < self._ends(gang, found):
            return
        gang.reason = _too_late(gang, found)
        self._withdraw(found.planned)
        gang.expired = bool(found.bound)
        for member in found.seats[:1]:
            self._outbox.say(member.ref, *_told(gang, "Expired"), now)
        self._refuse(gang, now)

    def _start_or_evict(self, gang: Gang, now: float) -> None:
        found = self.muster(gang)
        if gang.expired and (not found.bound or found.standing(gang).whole):
            gang.expired = False
        if gang.expired:
            for member in found.bound:
                self._outbox.evict(member, f"gang {gang.name}: {gang.reason}", now)
        elif found.started or found.standing(gang).whole:
            gang.reason = ""
            gang.marked = frozenset(member.uid for member in found.bound)
            # The last member's Binding has mostly brought the mark; one is enough.
            if found.bound and not any(member.started for member in found.bound):
                self._outbox.mark_started(found.bound[0], now)

    def _wants_plan(self, gang: Gang) -> bool:
        found = self.muster(gang)
        if not found.open or found.clash or gang.refused or gang.expired:
            return False
        return found.started or found.complete

    # Planning.

    def _plan(self, gang: Gang, now: float) -> None:
        gang.tried_room = self._books.room  # whatever comes of it: once for each room
        found = self.muster(gang)
        spots = self._search.seek(found, now)
        if isinstance(spots, Refusal) and found.planned and not found.started:
            # Around these there is no room; without them there may be, and they need not wait.
            self._withdraw(found.planned)
            found = self.muster(gang)
            spots = self._search.seek(found, now)
        if isinstance(spots, Refusal):
            gang.no_room, gang.tried_room = spots, self._books.room
            gang.lacking = Counter(member.needs.gpus for member in found.open)
            return
        gang.no_room, gang.tried_room, gang.lacking, gang.reason = None, -1, {}, ""
        self._waiting.discard(gang.key)
        self._hold(gang, found, spots, now)

    def _hold(self, gang: Gang, found: Muster, spots: Sequence[Spot], now: float) -> None:
        epoch = self._outbox.next_epoch([member.uid for member in found.seats])
        anew = not (found.bound or found.flying or found.planned)
        if anew or not gang.plan_id:
            uids = [member.uid for member in found.seats]
            gang.plan_id = plan_id(gang.key.namespace, gang.key.name, epoch, now, uids)
        if anew or gang.made is None:
            gang.made = now
        for member, spot in zip(found.open, spots, strict=True):
            plan = Plan(
                id=gang.plan_id,
                node=spot.node,
                epoch=epoch,
                made=now if found.started else gang.made,
                refusals=gang.refusals,
            )
            self._books.plan(member.uid, written_plan(self._books, member, plan, spot.gpus))

    def _withdraw(self, members: Iterable[PodRecord]) -> None:
        for member in members:
            self._books.plan(member.uid, None)

    def _finish(self, gang: Gang, now: float) -> None:
        """Bring what was decided to the API server, and name the phase."""
        found = self.muster(gang)
        for member in (*found.planned, *found.open, *found.extra):
            self._outbox.bring_plan(member, self._books.plans.get(member.uid), now)
        self._gates.look_at(gang, found, now)
        gang.enter(phase_of(found.standing(gang)))
        deadline = self._deadline_of(gang, found)
        if deadline is not None:
            self._deadlines[gang.key] = deadline

    def _deadline_of(self, gang: Gang, found: Muster) -> float | None:
        """When a partial gang gives everything back; one that has started never does."""
        partial = bool(found.planned or found.bound) and not found.standing(gang).whole
        if gang.made is None or not partial or found.started or gang.expired or found.flying:
            return None
        return self._ends(gang, found)

    def _ends(self, gang: Gang, found: Muster) -> float:
        made = gang.made if gang.made is not None else 0.0
        return max(made, gang.grace) + (found.timeout_seconds or self._timeout_seconds)


def _too_late(gang: Gang, found: Muster) -> str:
    if gang.alone:
        return "it was not bound in time"
    unbound = ", ".join(m.ref.name for m in found.seats if not m.node)
    return f"not all members were bound in time ({unbound or 'some are missing'})"


def _told(gang: Gang, what: str) -> tuple[str, str]:
    """The reason and the message of an Event."""
    return f"{'Plan' if gang.alone else 'Gang'}{what}", f"{gang.key.title}: {gang.reason}"


def _is_planned(record: PodRecord) -> bool:
    """Whether the plan that is written on it may count. A nomination tells it from a copied
    annotation; from members that it tries, though, kube-scheduler takes nominations away."""
    if record.gang is None or record.written is None:
        return False
    tried = not (record.gang.uid or record.gated)
    return tried or record.nominated == record.written.plan.node


def _same_member(before: PodRecord, record: PodRecord) -> bool:
    """Whether nothing changed that could help a gang that was left to wait."""
    return (
        before.live == record.live
        and before.held_back == record.held_back
        and before.node == record.node
        and before.demand == record.demand
        and before.ask == record.ask
        and before.template is record.template
    )
