"""Which pods may be evicted for a claimant, and which pods are evicted together.

A gang is evicted as a whole. A gang that runs with more members than its minimum can spare the
others one by one, those of the highest ranks first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.preemption.victim_selection import Unit
from linkwise.extender.next.queue.books import Part
from linkwise.extender.state.records import GangKey, PodRecord


class EvictionCandidates(Part):
    def units(
        self, pods: Iterable[PodRecord], priority: int, consents: Callable[[PodRecord], bool]
    ) -> Iterator[Unit]:
        """Those of the bound *pods* of lower *priority* that may be evicted, with the other members
        of their gangs, on whichever nodes these are. Every live member of a gang has to consent."""
        seen: set[GangKey] = set()
        for record in pods:
            if record.left_alone or record.priority >= priority or not record.live:
                continue
            if not consents(record):
                continue
            if record.ask.gang is None or record.gang is None or not record.in_planned_gang:
                name = record.ref
                key = GangKey(name.namespace, name.name, name.uid)
                yield Unit((record,), record.priority, record.created, key)
            elif record.gang not in seen:
                seen.add(record.gang)
                yield from self._of_gang(record.gang, priority, consents)

    def planned(self, priority: int) -> Iterator[tuple[Unit, float]]:
        """The gangs and pods of lower *priority* that have GPUs and of which no member is bound or
        about to be, and since when. They lose no work with their plans."""
        for key in {self._cache.pods[uid].gang for uid in self._cache.plans}:
            gang = None if key is None else self._registry.gangs.get(key)
            if key is None or gang is None or gang.made is None:
                continue
            members = self._registry.members_of(gang)
            most = max((member.priority for member in members.planned), default=priority)
            if most < priority and not (members.bound or members.flying):
                yield Unit(members.planned, most, self._queue.created(key), key), gang.made

    def _of_gang(
        self, key: GangKey, priority: int, consents: Callable[[PodRecord], bool]
    ) -> Iterator[Unit]:
        members = self._members(key)
        if members is None:
            return
        live = [member for member in members.all if member.live]
        # It waits as its least important member does, and is evicted as the most important one.
        most = max((member.priority for member in live), default=priority)
        created = self._queue.created(key)
        if most >= priority or not all(consents(member) for member in live):
            return
        bound = tuple(member for member in live if member.node)
        yield Unit(bound, most, created, key)
        for number, member in enumerate(reversed(members.spare)):
            yield Unit((member,), most, created, key, spare=number)

    def with_mates(self, node: str, uids: Sequence[str]) -> list[str] | None:
        """*uids*, and the pods that must be evicted with them; None if one of these is on another
        node than *node*."""
        whole = dict.fromkeys(uids)
        pods = [self._cache.pods[uid] for uid in uids if uid in self._cache.pods]
        gangs = {
            pod.gang
            for pod in pods
            if pod.ask.gang is not None and pod.gang is not None and pod.in_planned_gang
        }
        for key in sorted(gangs):
            bound = [m for m in self._cache.members(key) if m.live and m.node]
            going = sum(member.uid in whole for member in bound)
            members = self._members(key)
            spare = 0 if members is None else len(members.spare)
            if going == len(bound) or going <= spare:
                continue
            if any(member.node != node for member in bound):
                return None
            whole |= dict.fromkeys(member.uid for member in bound)
        return list(whole)

    def _members(self, key: GangKey) -> GangMembers | None:
        gang = self._registry.gangs.get(key)
        return None if gang is None else self._registry.members_of(gang)
