"""Empties the nodes that a person names with the annotation `linkwise.dev/empty`, and those that
are chosen to be whole.

Nothing new is placed there (`NodeInfo.closed`). Each pod that may move, and that has a place on a
node that is not being emptied, gets a target there and is evicted (`targets`), whatever it has run
for and whatever its priority: nothing waits. The others stay, and are looked at again every minute.

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
from linkwise.extender.next.preemption.gang_room import some_at_a_time
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.records import PodRecord, natural
from linkwise.extender.state.timers import RunUnlocked, nothing, run_inline

_DAY_SECONDS = 86_400.0
_MOST_SEARCHES = 8  # for one look; each costs milliseconds


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


class WholeNodes(Part):
    """Keeps so many nodes whole, with all their GPUs free, ahead of need.

    If there are fewer, the node is chosen of which moves lose least: all its pods may move, have
    run for long enough, and have places on nodes that are not whole. It is emptied as if a person
    asked for it, and it is open again once its pods have left. If a pod there cannot be evicted, or
    another one comes, the choice ends: pods that were evicted keep their targets, the others stay.

    Moves of the last day count, whatever they were for: beyond
    `MovePolicy.whole_nodes_cost_seconds`, no node is chosen. The plans of pods say when they were
    moved, so a new leader knows it too. It does not know which node was chosen, and chooses again.

    With `Moves.ADVISE`, the moves of the node that would be chosen are only remembered as advice.
    """

    def __init__(
        self,
        books: Books,
        *,
        emptying: Emptying,
        who: MayMove,
        targets: Targets,
        policy: MovePolicy,
    ) -> None:
        super().__init__(books)
        books.agenda.ask(self._times)
        self._emptying, self._who, self._targets, self._policy = emptying, who, targets, policy
        self._chosen, self._until = "", 0.0  # the node that is being emptied, and until when
        self._look_at = 0.0
        # Nodes whose pods found no places: the others have their turn before them.
        self._in_vain: set[str] = set()
        self.advice: MovePlan | None = None

    @property
    def _is_on(self) -> bool:
        return self._policy.whole_nodes > 0 and self._policy.moves is not Moves.NEVER

    def _times(self) -> Iterator[float]:
        if self._is_on:
            yield self._until if self._chosen else self._look_at

    def run(self, now: float, aside: RunUnlocked = run_inline) -> None:
        """Choose a node, or end the choice. With *aside*, others use the cache between two
        steps."""
        if not self._is_on:
            return
        if self._chosen and not self._goes_on(self._chosen, now):
            self._cache.choose(self._chosen, chosen=False)
            self._chosen = ""
        if self._chosen or now < self._look_at:
            return
        self._look_at, self.advice = now + TRY_SECONDS, None
        whole = {info.name for info in some_at_a_time(self._cache, aside) if _is_whole(info)}
        if len(whole) >= self._policy.whole_nodes:
            return
        plan = self._find(whole, now, aside)
        if self._policy.moves is Moves.ADVISE:
            self.advice = plan
        elif plan is not None:
            self._chosen, self._until = plan.empties, now + EVICT_SECONDS
            self._cache.choose(plan.empties, chosen=True)
            for move in plan.moves:
                one = MovePlan((move,), (), empties=plan.empties)
                self._targets.keep(one, key_of(move.pod), now)

    def _goes_on(self, node: str, now: float) -> bool:
        """Whether pods are still there, and all of them leave or have targets. Others may wait for
        the node meanwhile: it is not closed for as long as a grace period may be."""
        info = self._cache.nodes.get(node)
        there = () if info is None or info.record is None else info.there
        return now < self._until and bool(there) and all(map(self._goes, there))

    def _goes(self, uid: str) -> bool:
        """A pod that leaves may have no target any more: its replacement may have it already."""
        record = self._cache.pods.get(uid)
        return self._targets.of(uid) is not None or (record is not None and not record.live)

    def _find(self, whole: set[str], now: float, aside: RunUnlocked) -> MovePlan | None:
        """The moves that make one more node whole and lose least."""
        left = self._policy.whole_nodes_cost_seconds - self._lost(now)
        costs = {
            info.name: cost
            for info in some_at_a_time(self._cache, aside)
            if (cost := self._cost_of(info, now)) is not None and cost <= left
        }
        self._in_vain &= costs.keys()
        if len(self._in_vain) == len(costs):
            self._in_vain.clear()
        by_cost = sorted(
            costs, key=lambda name: (name in self._in_vain, costs[name], natural(name))
        )
        for node in by_cost[:_MOST_SEARCHES]:
            moves = []
            for _, _, found in self._emptying.look([node], now, closed=whole):
                if not isinstance(found, Move):
                    break
                moves.append(found)
                aside(nothing)
            if self._can_begin(node, moves):
                return MovePlan(tuple(moves), (), empties=node)
            self._in_vain.add(node)
        return None

    def _lost(self, now: float) -> float:
        """GPU seconds, by the moves of the last day and those that are under way."""
        going = sum(each.move.lost for each in self._targets.under_way())
        return going + self._who.lost_since(now - _DAY_SECONDS)

    def _cost_of(self, info: NodeInfo, now: float) -> float | None:
        """GPU seconds; None: the node cannot be emptied, or nothing would be won."""
        pods = [self._cache.pods.get(uid) for uid in info.there]
        is_open = info.kind is not None and not info.closed and _sound(info)
        if not pods or not is_open or info.reserved:
            return None
        lost = 0.0
        for pod in pods:
            if pod is None or self._who.why_not(pod, now):
                return None
            cost = self._policy.cost_of(pod)
            # Nothing waits: a pod that says that its move costs nothing does not move all the time.
            if not self._who.has_run(pod, now, max(cost, self._policy.cost_seconds)):
                return None
            lost += cost * pod.demand.gpus
        return lost

    def _can_begin(self, node: str, moves: list[Move]) -> bool:
        """Whether these are all pods there, and their targets are free."""
        nodes = self._cache.nodes
        info = nodes.get(node)
        return (
            info is not None
            and bool(moves)
            and info.there == {move.pod.uid for move in moves}
            and all(
                (to := nodes.get(move.spot.node)) is not None
                and not to.closed
                and to.has_unused(move.spot.gpus)
                for move in moves
            )
        )


def _is_whole(info: NodeInfo) -> bool:
    return info.kind is not None and not info.closed and info.free == info.kind.all_gpus


def _sound(info: NodeInfo) -> bool:
    """Whether the node would be whole without its pods."""
    return info.machine is not None and info.usable_gpus == info.machine.all_gpus
