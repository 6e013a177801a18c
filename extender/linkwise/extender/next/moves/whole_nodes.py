"""Keeps so many nodes whole, with all their GPUs free, ahead of need.

If there are fewer, the node is chosen of which moves lose least: all its pods may move, have run
for long enough, and have places on nodes that are not whole. It is emptied as if a person asked for
it (`emptying`), and it is open again once its pods have left. If a pod there cannot be evicted, or
another one comes, the choice ends: pods that were evicted keep their targets, the others stay.

Moves of the last day count, whatever they were for: beyond `MovePolicy.whole_nodes_cost_seconds`,
no node is chosen. The plans of pods say when they were moved, so a new leader knows it too. It does
not know which node was chosen, and chooses again.

With `Moves.ADVISE`, the moves of the node that would be chosen are only remembered as advice.
"""

from collections.abc import Iterator

from linkwise.extender.next.core_settings import MovePolicy, Moves
from linkwise.extender.next.moves.emptying import Emptying
from linkwise.extender.next.moves.may_move import MayMove
from linkwise.extender.next.moves.plan import Move, MovePlan
from linkwise.extender.next.moves.planned_moves import EVICT_SECONDS, TRY_SECONDS
from linkwise.extender.next.moves.targets import Targets, key_of
from linkwise.extender.next.preemption.gang_room import some_at_a_time
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.records import natural
from linkwise.extender.state.unlocked import RunUnlocked, nothing, run_inline

_DAY_SECONDS = 86_400.0
_MOST_SEARCHES = 8  # for one look; each costs milliseconds


class WholeNodes(Part):
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
