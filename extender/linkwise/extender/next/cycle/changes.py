"""The changes since the last round, which tell the next round what to look at."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType

from linkwise.extender.next.gangs.gang import NO_NEWS
from linkwise.extender.next.gangs.lifecycle import GangLifecycle
from linkwise.extender.next.gangs.scheduling_gates import SchedulingGates
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.timers import RunUnlocked, T, Timers, run_inline

# Gangs and members: after a look at so many, some 0.01 ms each, the round releases the lock for a
# moment.
_VERY_MANY = 512
_NODES_A_POD = 32  # a search of so many nodes takes as long as a look at a pod
# A look at a gang takes some 0.01 ms for each pod, and each of them changes a few times while it is
# planned and bound. So looks at a gang of so many pods that only makes progress are rate-limited:
# they are this far apart for each pod, and take a tenth of a core
# (docs/decisions/gangs-and-queue.md#38-looks-at-large-gangs).
LARGE_GANG = 64
# A cluster's claims may change many times a second, and each change may help any gang that waits.
# So may each pod, while gangs wait that together look at more others than the cache counts.
SURROUNDINGS_SECONDS = 1.0
_SOON_SECONDS = 0.2
SECONDS_A_POD = 0.0001


class _Isolated:
    """Keeps a defect from ending the round. Thousands of gangs have their turns in a round, so this
    is no generator: that would take three times as long."""

    __slots__ = ("_defects", "_what")

    def __init__(self, defects: list[Exception], what: object) -> None:
        self._defects, self._what = defects, what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        defect: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(defect, Exception):
            return False
        defect.add_note(f"while deciding about {self._what}")
        self._defects.append(defect)
        return True


class Changes(Part):
    """The gangs that are due, the work that runs without the lock, and the defects of a round."""

    def __init__(self, books: Books, *, lifecycle: GangLifecycle, gates: SchedulingGates) -> None:
        super().__init__(books)
        books.agenda.ask(self._times)
        self._lifecycle, self._gates = lifecycle, gates
        self.run_unlocked: RunUnlocked = run_inline
        self.due: set[GangKey] = set()
        self.progressed: set[GangKey] = set()  # only in the way that was decided
        self._lets_write = False  # one of these did, and the next write for its gang waits for that
        self._room_seen = 0
        self.moved: set[GangKey] = set()  # changed while this round ran work without the lock
        self._next_look: dict[GangKey, float] = {}  # at large gangs that progress
        self._postponed: Timers[GangKey] = Timers(books.agenda)  # those that progressed before it
        self._looked_at = 0
        self._news_seen = NO_NEWS
        self.surroundings_changed = False  # volumes, claims or namespaces
        self._surroundings_due = self._around_due = 0.0
        self.look_again_soon = False  # gangs of a namespace wait for the next round
        self._began = 0.0
        self._defects = books.defects

    def take(self, now: float) -> set[GangKey]:
        """The gangs to look at because of changes since the last round."""
        cache = self._cache
        self.look_again_soon, self._began = False, now
        self._lets_write, self._room_seen = False, cache.room
        cache.trim()
        touched = cache.take_touched()
        self._note_touched(touched, now)
        if self._feedback.lapse(touched, now) | self._gang_refusals.lapse(now):
            self.refusals_ended()
        if self.surroundings_changed and now >= self._surroundings_due:
            self.surroundings_changed = False
            self._surroundings_due = now + SURROUNDINGS_SECONDS
            self.refusals_ended()
        if cache.around.may_have_opened and now >= self._around_due:
            cache.around.forget_openings()
            self._around_due = now + SURROUNDINGS_SECONDS
            cache.room += 1
        if self._registry.refused and self._lifecycle.news() != self._news_seen:
            self._news_seen = self._lifecycle.news()
            self._take_up_refused(now)
        late, looks = self._lifecycle.take_late(now)
        for key in looks:
            self._queue.try_again(key)
        self.due |= late | looks
        for uid in self._pending_writes.take_woken(now):
            record = cache.pods.get(uid)
            if record is not None:
                self._gates.pod_changed(record)
                if record.gang is not None:
                    self.progressed.add(record.gang)
        return self._take_due(now)

    def _take_due(self, now: float) -> set[GangKey]:
        """All gangs that are due, and of those that progressed all but large ones that were looked
        at a moment ago: their looks are postponed."""
        due, progressed = self.due, self.progressed.union(self._postponed.take(now))
        self.due, self.progressed = set(), set()
        for key in progressed - due:
            if now < self._next_look.get(key, now):
                self._postponed[key] = self._next_look[key]
            else:
                due.add(key)
        for key in due:
            self._postponed.drop(key)
            self._limit(key, now)
        return due

    def _note_touched(self, nodes: Iterable[str], now: float) -> None:
        """These nodes changed, mostly because pods came or left, and may now lack what is planned
        there. A gang whose look is not postponed is looked at anyway."""
        for name in nodes:
            info = self._cache.nodes.get(name)
            for uid in info.plans if info is not None else ():
                record = self._cache.pods.get(uid)
                key = None if record is None else record.gang
                if record is None or key is None or key in self.due:
                    continue
                waits = now < self._next_look.get(key, now)
                lost = waits and self._lifecycle.has_lost_plan(record)
                (self.due if lost else self.progressed).add(key)

    def _limit(self, key: GangKey, now: float) -> None:
        """The gang is looked at now: say when progress alone is a reason for the next look."""
        pods = len(self._cache.gangs.get(key, ()))
        if pods >= LARGE_GANG:
            self._next_look[key] = now + pods * SECONDS_A_POD
        else:
            self._next_look.pop(key, None)

    def _times(self) -> Iterable[float]:
        if self.surroundings_changed:
            yield self._surroundings_due
        if self._cache.around.may_have_opened:
            yield self._around_due
        if self.look_again_soon:
            yield self._began + _SOON_SECONDS

    def note(self, record: PodRecord | None, *, is_progress: bool) -> None:
        """The pod changed; *is_progress*: only in the way that was decided."""
        if record is None or record.gang is None:
            return
        if is_progress:
            self.progressed.add(record.gang)
            # The gates of a gang wait for its plans, and so do claims.
            self._lets_write |= record.gated or record.claim is not None
            self._lets_write |= self._pending_writes.was_sent_away(record.uid)
        else:
            self.due.add(record.gang)

    def any_urgent(self) -> bool:
        """Whether the next round may decide what is waited for: a gang changed in another way
        than was decided, its next write may go, or there is more room."""
        return bool(self.due) or self._lets_write or self._cache.room != self._room_seen

    def look_at_all(self) -> None:
        """Let the next round look at every gang."""
        self.due |= self._cache.gangs.keys()

    def forget(self) -> None:
        """While another replica decides, keep no list of what there would be to do."""
        self._cache.trim()
        self._cache.take_touched()
        self.due.clear()
        self.progressed.clear()

    def refusals_ended(self) -> None:
        """Nodes that kube-scheduler refused may suit their pods now."""
        self._cache.room += 1
        self._lifecycle.refusals_ended += 1

    def _take_up_refused(self, now: float) -> None:
        """Look again at the refused gangs, once each has rested: what was missing may be there."""
        for key in [*self._registry.refused]:
            gang = self._registry.gangs.get(key)
            if gang is None or not gang.refused:
                self._registry.refused.discard(key)
            elif now >= gang.tried_at(self._lifecycle.news()):
                self._queue.take_up(key)
                self.due.add(key)
            else:
                self._lifecycle.look_again(gang, gang.tried_at(self._lifecycle.news()))

    # Without the lock.

    def run(self, work: Callable[[], T]) -> T:
        """Run *work* while others use the core. The round skips gangs that change meanwhile, and
        the next round looks at them."""
        before = self.due | self.progressed
        try:
            return self.run_unlocked(work)
        finally:
            self.moved |= (self.due | self.progressed) - before

    def pause(self) -> None:
        self.run(lambda: None)

    def pause_after(self, key: GangKey, *, searched: bool = False) -> None:
        """Release the lock for a moment if the looks since the last release have taken long.
        *searched*: all nodes were searched for room."""
        self._looked_at += 1 + len(self._cache.gangs.get(key, ()))
        if searched:
            self._looked_at += len(self._cache.rows) // _NODES_A_POD
        if self._looked_at >= _VERY_MANY:
            self._looked_at = 0
            self.pause()

    def look_again_at_moved(self) -> None:
        for key in self.moved:
            self._queue.try_again(key)
        self.moved.clear()

    # Defects.

    def isolated(self, what: object) -> AbstractContextManager[None]:
        """If a gang or a pod meets a defect of the extender, the round skips it and continues with
        the others."""
        return _Isolated(self._defects, what)

    def take_defects(self) -> list[Exception]:
        """The defects since the last call."""
        defects = [*self._defects]
        self._defects.clear()
        return defects
