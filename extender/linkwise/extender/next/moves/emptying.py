"""Empties the nodes that a person names with the annotation `linkwise.dev/empty`, and those that
are chosen to be whole (`whole_nodes`).

Nothing new is placed there (`NodeInfo.closed`). Each pod that may move, and that has a place on a
node that is not being emptied, gets a target there and is evicted (`targets`), whatever it has run
for and whatever its priority: nothing waits. The others stay, and are
looked at again every minute.

The target is noted on the pod itself. If the leader changes while that pod ends, the next one keeps
its target. If the pod is gone by then, its replacement is placed like any other pod.
"""

from collections.abc import Collection, Iterator, Sequence

from linkwise.extender.next.core_settings import MovePolicy, Moves
from linkwise.extender.next.moves.may_move import MayMove, Stays, has_planned_shares
from linkwise.extender.next.moves.places import Places
from linkwise.extender.next.moves.plan import Move, MovePlan
from linkwise.extender.next.moves.planned_moves import EVICT_SECONDS, REASON, TRY_SECONDS
from linkwise.extender.next.moves.targets import Targets, key_of
from linkwise.extender.next.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.state.records import PodRecord, natural
from linkwise.extender.state.unlocked import RunUnlocked, nothing, run_inline


class Emptying(Part):
    def __init__(
        self,
        books: Books,
        *,
        who: MayMove,
        targets: Targets,
        budgets: DisruptionBudgets,
        policy: MovePolicy,
    ) -> None:
        super().__init__(books)
        books.agenda.ask(self._times)
        self._who, self._targets, self._budgets = who, targets, budgets
        self._policy = policy
        self._nodes: set[str] = set()  # that were being emptied at the last look
        self._look_at = 0.0

    def _times(self) -> Iterator[float]:
        if self._cache.emptied and self._policy.moves is Moves.CONSENT:
            yield self._look_at

    def run(self, now: float, aside: RunUnlocked = run_inline) -> None:
        """Reserve targets and evict. With *aside*, others use the cache between two searches."""
        if self._policy.moves is not Moves.CONSENT:
            return
        self._give_up_late(now)
        if self._nodes != self._cache.emptied or now >= self._look_at:
            self._nodes, self._look_at = {*self._cache.emptied}, now + TRY_SECONDS
            self._reserve(now, aside)
        for record, move in self._going():
            where = f"this pod's next place is reserved on {move.spot.node}"
            if record.uid in self._targets.may_be_evicted(key_of(record)):
                why = f"to empty node {record.node}: {where}"
                self._pending_writes.evict(record, why, now, event=REASON)

    def look(
        self, names: Collection[str], now: float, closed: Collection[str] = ()
    ) -> Iterator[tuple[str, PodRecord, Move | Stays]]:
        """What becomes of each pod with GPUs or shares on these nodes if they are emptied, with the
        name of its node; without those that have their targets. *closed*: other nodes where none
        goes. Others may use the cache between two steps."""
        moves: list[Move] = []
        for node, uid in self._pods_on(names):
            record = self._cache.pods.get(uid)
            if record is None or self._targets.of(uid) is not None:
                continue
            places = self._places()
            for name in (*names, *closed):
                if name in self._cache.nodes:
                    places.close(name)
            for move in moves:
                if move.spot.node in self._cache.nodes:
                    places.take(move.spot, move.pod.needs, move.shares)
            beside = [*self._evicted_soon(), *(move.pod for move in moves)]
            found = self._judge(record, places, beside, now)
            if isinstance(found, Move):
                moves.append(found)
            yield node, record, found

    def _pods_on(self, names: Collection[str]) -> list[tuple[str, str]]:
        """The pods that have GPUs or shares of these nodes or will get some, by uid and after their
        node: the largest first, as they find places least easily."""
        nodes = (self._cache.nodes.get(name) for name in names)
        found = [(info.name, uid) for info in nodes if info is not None for uid in info.there]
        pods = self._cache.pods
        known = [(node, pods[uid]) for node, uid in found if uid in pods]
        known.sort(key=lambda each: (*_size(each[1]), natural(each[0]), each[1].uid))
        return [(node, record.uid) for node, record in known]

    def _places(self) -> Places:
        return Places(self._cache, self._search, self._cache.rows.trial())

    def _judge(
        self, record: PodRecord, places: Places, beside: Sequence[PodRecord], now: float
    ) -> Move | Stays:
        """*beside*: pods that are evicted too."""
        if record.ask.gang is not None and not record.left_alone:
            return Stays.GANG
        why = self._who.why_not(record, now)
        if why not in (None, Stays.NO_PLACE):
            return why
        tenant = self._who.tenant(record, now)
        if not (tenant.gpus or has_planned_shares(record)):
            return Stays.SHARES
        if self._who.ends_soon(tenant, record, now):
            return Stays.ENDS
        if not self._budgets.allow([*beside, record]):
            return Stays.BUDGET
        return places.move(record, tenant.gpus, self._policy.cost_of(record)) or Stays.NO_PLACE

    def _reserve(self, now: float, aside: RunUnlocked) -> None:
        for node, uid in self._pods_on(self._nodes):
            aside(nothing)
            record = self._cache.pods.get(uid)
            if record is None or self._targets.of(uid) is not None:
                continue
            found = self._judge(record, self._places(), self._evicted_soon(), now)
            if isinstance(found, Move):
                self._targets.keep(MovePlan((found,), (), empties=node), key_of(record), now)

    def _evicted_soon(self) -> list[PodRecord]:
        """The pods that move and have not begun to leave, whatever they move for."""
        return [target.like for target in self._targets.not_left() if target.like is not None]

    def _give_up_late(self, now: float) -> None:
        for target in self._targets.not_left():
            uid = target.noted.uid
            is_late = target.empties and now >= target.began + EVICT_SECONDS
            if is_late and not self._pending_writes.is_evicting(uid):  # it cannot be evicted
                self._targets.give_up(uid)
                self._who.stays(uid, now + self._policy.again_seconds, Stays.AGAIN)

    def _going(self) -> Iterator[tuple[PodRecord, Move]]:
        for target in self._targets.not_left():
            record = self._cache.pods.get(target.noted.uid)
            is_wanted = target.empties in self._cache.emptied
            if is_wanted and target.move and record is not None and record.live:
                yield record, target.move


def _size(record: PodRecord) -> tuple[int, int]:
    """Less is larger."""
    return -record.demand.gpus, -sum(demand.gpus for _, demand in record.shares)
