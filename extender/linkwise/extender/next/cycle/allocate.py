"""Allocates GPUs to one gang: to as many of its members as may start without the others.

Searches run without the core's lock, and so does the creation of many plans. Their results count
only if the nodes have not changed meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from linkwise.extender.next.cycle.reserve import Reserve
from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.gang_search import Seen
from linkwise.extender.next.gangs.lifecycle import GangLifecycle
from linkwise.extender.next.gangs.members import GangMembers, least, most, parts
from linkwise.extender.next.moves.targets import Targets
from linkwise.extender.next.preemption.gang_preemption import GangPreemption
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.state.cache.plans import Deal, plan_id, written_plans
from linkwise.extender.state.timers import RunUnlocked
from linkwise.extender.state.views import Placed
from linkwise.topology.annotations.plan import CommunicatorEstimate, Plan

_MANY = 64  # members: from here on, the steps release the lock in between


class Allocate(Part):
    """*aside* runs work without the lock, so that others can use the cache meanwhile."""

    def __init__(
        self,
        books: Books,
        *,
        reserve: Reserve,
        preemption: GangPreemption,
        targets: Targets,
        lifecycle: GangLifecycle,
        aside: RunUnlocked,
    ) -> None:
        super().__init__(books)
        self._reserve, self._preemption = reserve, preemption
        self._targets, self._lifecycle = targets, lifecycle
        self._aside = aside
        self.placed = Placed()

    def place(self, gang: Gang, now: float, *, keeps_lock: bool = False) -> None:
        """Plan as much of *gang* as there is room for. Raises StaleResult if the gang changes
        meanwhile, which it does not with *keeps_lock*: then the search keeps the lock."""
        self._queue.note_try(gang.key)
        if self._preemption.is_victim(gang):
            return
        if not self._lifecycle.may_keep_places(gang, now):
            self._queue.leave(gang.key)
            self._queue.forget(gang.key)
            return
        waited_before = len(self._registry.members_of(gang).open)
        if self._targets.moves_gang(gang.key) and not self._take_targets(gang, now):
            return
        ways = (None,) if keeps_lock else (self._aside, None)
        room = self._cache.room
        refused = self._plan_most(gang, now, ways)
        members = self._registry.members_of(gang)
        if (
            refused is not None
            and members.planned
            and not (members.started or members.enough_placed)
        ):
            # There is no room beside these; without them there may be, and they need not wait.
            self._lifecycle.withdraw(members.planned, "there is no room for the others beside it")
            refused = self._plan_most(gang, now, ways)
        waiting = len(self._registry.members_of(gang).open)
        if waiting < waited_before:
            self._queue.got_room(gang)
            self._reserve.got_gpus(gang.key)
        if waiting:
            self._queue.join(gang.key)
            self._queue.note_try(gang.key)
        if refused is not None:
            # Room that came since, while a search for fewer members ran, may be enough for all.
            self._queue.stand_aside(gang, *refused, now, room)

    def _take_targets(self, gang: Gang, now: float) -> bool:
        """Plan a gang that is moved on its targets, if these are good. False: members of it are
        still to leave or to come, and nothing is planned."""
        members = self._registry.members_of(gang)
        spots = self._targets.take_gang(gang.key, members)
        if spots:
            self._put(gang, members, spots, now, moved=now)
        return spots is not None

    def _plan_most(
        self, gang: Gang, now: float, ways: Sequence[RunUnlocked | None]
    ) -> tuple[GangMembers, NoRoom] | None:
        """Plan as many members as there is room for. Return those that have none, and why; if there
        are several such groups, the one with the smallest requests."""
        refused = []
        for these in parts(self._registry.members_of(gang)):
            gang_members = replace(self._registry.members_of(gang), open=these)
            # If others take a place meanwhile, the second search runs under the lock.
            for aside in ways:
                spots, why, passes, still_free = self._most(gang, gang_members, now, aside)
                placed = replace(gang_members, open=these[: len(spots)])
                if not spots or self._put(gang, placed, spots, now, still_free, passes=passes):
                    break
            if why is not None:
                rest = replace(self._registry.members_of(gang), open=these[len(spots) :])
                refused.append((replace(rest, open=least(rest)), why))
        return min(refused, key=lambda each: _largest(each[0]), default=None)

    def _most(
        self, gang: Gang, members: GangMembers, now: float, aside: RunUnlocked | None
    ) -> tuple[list[Spot], NoRoom | None, bool, Callable[[], bool] | None]:
        """Call `members.most`. Add whether others wait for its spots, and a check whether
        their nodes are unchanged: the search for more members may release the lock. None: it never
        did."""
        still_free, passes = None, False

        def seek(some: GangMembers) -> list[Spot] | NoRoom:
            nonlocal still_free, passes
            spots, passing = self._seek(gang, some, now, aside)
            if isinstance(spots, NoRoom):
                return spots
            passes = passing
            if aside is not None and not gang.alone:
                seen = Seen(self._cache, some.open)
                still_free = partial(seen.still_free, self._cache.rows.copy(), spots)
            return spots

        spots, why = most(members, seek)
        return spots, why, passes, still_free

    def _seek(
        self, gang: Gang, members: GangMembers, now: float, aside: RunUnlocked | None
    ) -> tuple[list[Spot] | NoRoom, bool]:
        """The spots, and whether it gets them because it ends before others need them."""
        spots: list[Spot] | NoRoom | None = None
        beside = None if gang.alone else aside
        first = self._held_calls.nodes(gang.key)
        views = [
            replace(view, first=first)
            for view in self._reservations.views(self._reservations.claimant(gang, members), now)
        ]
        for view in views:
            spots = self._search.seek(members, now, aside=beside, view=view)
            if not isinstance(spots, NoRoom):
                break
        assert spots is not None, "there is at least one view"
        return spots, view is not views[0]

    def _put(
        self,
        gang: Gang,
        members: GangMembers,
        spots: Sequence[Spot],
        now: float,
        still_free: Callable[[], bool] | None = None,
        *,
        moved: float | None = None,
        passes: bool = False,
    ) -> bool:
        """Plan all *spots* at once; False: they are not *still_free*. Raises StaleResult."""
        if still_free is not None and not still_free():
            return False
        uids = [member.uid for member in members.seats]
        epoch = self._pending_writes.next_epoch(uids)
        is_new = not (members.bound or members.flying or members.planned)
        ident, made = gang.plan_id, gang.made
        if not ident or (is_new and not members.done):
            # Else it is the run of the members that have succeeded, which the plan's id tells.
            ident = plan_id(gang.key.namespace, gang.key.name, epoch, now, uids)
        if is_new or made is None:
            made = now
        plan = Plan(
            id=ident,
            node=spots[0].node,
            leader=self._pending_writes.leader,
            epoch=epoch,
            made=now if members.started else made,
            refusals=gang.refusals,
            span=self._search.span(members, spots),
            passes=passes,
        )
        if moved is not None:
            plan = msgspec.structs.replace(plan, moved=moved)
        worth = self._search.communicators(members, spots)
        deals = [
            Deal.of(self._cache, member, spot.node, spot.gpus, worth.get(spot.node))
            for member, spot in zip(members.open, spots, strict=True)
        ]
        if still_free is None or len(spots) < _MANY:
            plans = written_plans(plan, deals)
        else:
            plans = self._aside(partial(written_plans, plan, deals))
            if not still_free():
                return False
        if is_new:
            self._count(members, spots, worth)
        gang.plan_id, gang.made, gang.asked = ident, made, False
        self._cache.plan_all(plans)
        for member in members.open:
            gang.passed.pop(member.uid, None)
            self._reservations.note_passing(member)
        if len(plans) >= _MANY:
            self._aside(lambda: None)
        return True

    def _count(
        self,
        members: GangMembers,
        spots: Sequence[Spot],
        worth: Mapping[str, CommunicatorEstimate],
    ) -> None:
        if worth:
            together = next(iter(worth.values())).together
            ideal = self._search.ideal(members, spots)
            self.placed = self.placed.with_gang(len(worth), together, ideal)


def _largest(members: GangMembers) -> int:
    return max((member.needs.gpus for member in members.open), default=0)
