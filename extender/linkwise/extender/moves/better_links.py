"""Finds running gangs and pods that would have better links on other GPUs.

They started when nothing better was free, and their neighbours have ended since. It is advice, and
nothing moves for it in any mode: what a restart gains in bandwidth, only the owner of the job can
weigh. All members of a gang restart together, so its own GPUs count as free for the search.

**The rule**: a restart is advised if all its GPUs together then have at least _GAIN times the
bandwidth, and if it loses at most what the gang or pod could save in the rest of its run. That is
the share by which the bandwidth grows, as if it did nothing but communicate. What has its preferred
link gains nothing by more bandwidth.

Each look takes a few of those that may move; the next one goes on with those behind.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from linkwise.extender.api.records import GangKey
from linkwise.extender.api.timers import Agenda
from linkwise.extender.api.unlocked import RunUnlocked, nothing, run_inline
from linkwise.extender.api.views import LinkGain
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import ENOUGH, GpuRequest, MachineKind
from linkwise.extender.cache.node_table import NodeTable
from linkwise.extender.gangs.gang_search import GangSearch, StaleResult
from linkwise.extender.moves.may_move import MayMove
from linkwise.extender.moves.places import Places
from linkwise.extender.moves.plan import MovePlan, gpus_by_node
from linkwise.extender.moves.planned_moves import LOOK_SECONDS, PlannedMoves
from linkwise.extender.moves.policy import Moves
from linkwise.extender.moves.search import Mover, moves_of, overlap
from linkwise.extender.moves.targets import key_of
from linkwise.extender.placement.nodes.nodes_view import as_if
from linkwise.extender.placement.result import Spot
from linkwise.extender.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.preemption.what_if import WhatIf
from linkwise.extender.queue.reservations import Reservations

_GAIN = 1.25
SOME_SECONDS = 300.0  # between two looks, until all have had their turn
# In one look. A search costs milliseconds, the others well below one.
_MOST_LOOKED_AT, _MOST_SEARCHES = 512, 8


class BetterLinks:
    def __init__(
        self,
        cache: Cache,
        search: GangSearch,
        reservations: Reservations,
        budgets: DisruptionBudgets,
        who: MayMove,
        moves: PlannedMoves,
        agenda: Agenda,
    ) -> None:
        agenda.ask(self._times)
        self._cache, self._search, self._reservations = cache, search, reservations
        self._budgets, self._who, self._moves = budgets, who, moves
        self._advice: dict[GangKey, MovePlan] = {}
        self._left: deque[Mover] = deque()  # that have not had their turn
        self._looked_at = 0.0
        self._seen: object = None  # the state of the cache as the first of them had its turn

    @property
    def advice(self) -> Mapping[GangKey, MovePlan]:
        """Where the gangs and pods would go, each as if the others stayed."""
        return {key: plan for key, plan in self._advice.items() if self._moves.holds(plan)}

    def _is_on(self) -> bool:
        return self._moves.policy.moves is not Moves.NEVER and self._budgets.known

    def _times(self) -> Iterator[float]:
        if self._is_on():
            yield self._due()

    def _due(self) -> float:
        rests = not self._left and self._seen == self._state()
        return self._looked_at + (LOOK_SECONDS if rests else SOME_SECONDS)

    def _state(self) -> object:
        return self._cache.room, self._cache.comings_and_goings

    def run(self, now: float, aside: RunUnlocked = run_inline) -> None:
        """Look at some of those that run. With *aside*, others use the cache between two of
        them."""
        if not self._is_on() or now < self._due():
            return
        self._looked_at = now
        if not self._left:
            self._seen = self._state()
            movers = [
                each for _, found in self._moves.movers(math.inf, now, aside) for each in found
            ]
            by_key = {_key_of(mover): mover for mover in movers if mover.gpus > 1}
            self._left.extend(by_key.values())
            self._advice = {key: plan for key, plan in self._advice.items() if key in by_key}
        searches = 0
        for _ in range(_MOST_LOOKED_AT):
            if not self._left or searches == _MOST_SEARCHES:
                break
            aside(nothing)
            mover = self._left.popleft()
            self._advice.pop(_key_of(mover), None)
            if not self._is_there(mover) or not self._may_gain(mover):
                continue
            searches += 1
            plan = self._better(mover, now, aside)
            if plan is not None:
                self._advice[_key_of(mover)] = plan

    def _is_there(self, mover: Mover) -> bool:
        """Whether all its pods are as they were, on the same GPUs."""
        nodes, pods = self._cache.nodes, self._cache.pods
        return all(
            pods.get(pod.uid) == pod
            and (info := nodes.get(spot.node)) is not None
            and info.kind is not None
            and info.owned.get(pod.uid) == spot.gpus
            for pod, spot in zip(mover.pods, mover.spots, strict=True)
        )

    def _may_gain(self, mover: Mover) -> bool:
        """Whether idle machines would give it enough more."""
        if (members := mover.again) is not None:
            has = self._gbytes_per_s(mover, mover.spots)
            return self._search.ideal(members, mover.spots) >= _GAIN * has
        [pod], [spot] = mover.pods, mover.spots
        request, kind = GpuRequest(pod.demand, pod.ask.requirement), self._kind_of(spot)
        best = ((each, each.take(request, each.all_gpus)) for each in self._cache.kinds)
        qualities = [each.quality(request, gpus) for each, gpus in best if gpus]
        return max(qualities, default=0.0) >= _GAIN * kind.quality(request, spot.gpus)

    def _kind_of(self, spot: Spot) -> MachineKind:
        kind = self._cache.nodes[spot.node].kind
        assert kind is not None, "it can be used"
        return kind

    def _gbytes_per_s(self, mover: Mover, spots: Sequence[Spot]) -> float:
        """Of all its GPUs together, as the plans state it; 0: they do not communicate."""
        if (members := mover.again) is not None:
            found = self._search.communicators(members, spots).values()
            return next((each.together for each in found), 0.0)
        [pod], [spot] = mover.pods, spots
        worth = self._kind_of(spot).worth(GpuRequest(pod.demand, pod.ask.requirement))
        return float(worth.values[spot.gpus])

    def _better(self, mover: Mover, now: float, aside: RunUnlocked) -> MovePlan | None:
        """Where it would go; None: a restart is not worth it."""
        has, rest = self._gbytes_per_s(mover, mover.spots), self._rest_seconds(mover, now)
        table = self._cache.rows.copy()
        places = Places(self._cache, self._search, table)
        what_if = WhatIf(self._cache, self._reservations, ())
        for pod, spot in zip(mover.pods, mover.spots, strict=True):
            own = what_if.usable(self._cache.nodes[spot.node], spot.gpus)
            places.give_back(Spot(spot.node, own), pod.needs)
        if self._has_preferred_link(mover, table):
            return None
        try:
            moves = moves_of(mover, places, now, aside)
        except StaleResult:  # the gang changed
            return None
        spots = tuple(move.spot for move in moves)
        would_have = self._gbytes_per_s(mover, spots) if spots else 0.0
        if not would_have or would_have < _GAIN * has:
            return None
        saved = rest * (1 - has / would_have) * mover.gpus
        if mover.lost > saved:
            return None
        links = LinkGain(has, would_have, reuses=overlap(mover.on, gpus_by_node(spots)))
        return MovePlan(tuple(moves), spots, saved, links=links)

    def _rest_seconds(self, mover: Mover, now: float) -> float:
        """Of its run, as for `RunningPods`; infinity: it never ends by itself."""
        ends = (self._who.tenant(pod, now).end for pod in mover.pods)
        return min(ends) - now

    def _has_preferred_link(self, mover: Mover, table: NodeTable) -> bool:
        """A gang; a single pod that has it gains nothing anywhere."""
        if (members := mover.again) is None:
            return False
        judged = self._search.judged(members, mover.spots, as_if(table, ()))
        return judged is None or judged.worth >= ENOUGH


def _key_of(mover: Mover) -> GangKey:
    first = mover.pods[0]
    if mover.members is None:
        return key_of(first)
    assert first.gang is not None, "it is a member of one"
    return first.gang
