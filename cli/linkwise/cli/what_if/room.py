"""Finds the fewest pods that would have to go for the job to start.

How many GPUs each node has once some of its pods are gone gives a lower bound, and a first choice.
The core then says whether the job starts. Links, spans and the number of pods may require more; in
that case every pod of the choice is needed, but a smaller choice may exist.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from linkwise.cli.what_if.trials import OutOfTrialsError, Trials
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.show.explain.worth_view import domain_of
from linkwise.extender.state.records import PodRecord, ResourceList
from linkwise.pods.spans import spans_of
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.sets.choose import choose

_FAR = 1 << 50
_EACH = 1 << 20  # cost of a pod; each of its GPUs costs 1, so small pods go first
_MOST_CHOICES = 24
_MOST_TOGETHER = 6  # if a node has no more pods than this, every combination is tried
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FreedPods:
    uids: tuple[str, ...]
    fewest: bool  # True: no smaller number suffices


@dataclass(frozen=True, slots=True)
class _Option:
    """Pods of a node that go, and how many places for the job that gives."""

    cost: int
    places: int
    uids: tuple[str, ...]


def fewest_to_go(trials: Trials, may_go: Callable[[PodRecord], bool]) -> FreedPods | None:
    """Choose among the pods for which *may_go* is true; None: even all of them are not enough."""
    evictable = [record for record in trials.may_go() if may_go(record)]
    choices = _EvictionSearch(trials, evictable).choices()
    least = len(choices[0]) if choices else len(evictable)
    if trials.offers_shares:  # the search counts whole GPUs
        least = min(1, len(evictable))
    chosen = [record.uid for record in evictable]
    with suppress(OutOfTrialsError):
        for uids in choices[:_MOST_CHOICES]:
            if trials.starts_without(uids):
                chosen = uids
                break
            least = max(least, 1)  # the search counts GPUs alone: here something else is missing
        else:
            if not trials.starts_without(chosen):
                return None
        if len(chosen) > least:
            chosen = _without_needless(trials, chosen)
    return FreedPods(tuple(chosen), len(chosen) == least)


def _without_needless(trials: Trials, chosen: list[str]) -> list[str]:
    """Restore as many pods as may stay, many at a time if possible."""
    at_once = (len(chosen) + 1) // 2
    with suppress(OutOfTrialsError):
        while at_once:
            at = 0
            while at < len(chosen):
                fewer = chosen[:at] + chosen[at + at_once :]
                if trials.starts_without(fewer):
                    chosen = fewer
                else:
                    at += at_once
            at_once //= 2
    return chosen


class _EvictionSearch:
    def __init__(self, trials: Trials, may_go: Sequence[PodRecord]) -> None:
        self._snapshot = trials.snapshot
        self._pool = trials.pool
        groups = trials.groups
        by_uid = self._snapshot.by_uid
        self._job = frozenset(uid for group in groups for uid in group.uids)
        members: list[PodRecord] = []
        for group in groups:
            own = sorted((by_uid[uid] for uid in group.uids), key=lambda one: one.demand.gpus)
            members += own[: group.enough]
        self._size = members[0].demand.gpus
        self._alike = len({(m.demand, m.ask.requirement, m.needs) for m in members}) == 1
        self._first = members[0]
        self._needs = self._snapshot.left.counted(self._first.needs)
        gpus = sum(member.demand.gpus for member in members)
        self._wanted = len(members) if self._alike else gpus
        self._smallest = min(member.demand.gpus for member in members)
        spans = spans_of(member.ask.spans for member in members)
        self._levels = spans.require if len(groups) == 1 else ()
        self._may_go = frozenset(record.uid for record in may_go)
        self._sets: dict[tuple[int, int], int] = {}
        # What pods without GPUs use counts as free, so that the bound holds for them too.
        self._idle: dict[str, ResourceList] = defaultdict(ResourceList)
        for record in may_go:
            if not record.demand.gpus:
                self._idle[record.node] += record.needs

    def choices(self) -> list[list[str]]:
        """Yield the cheapest choice by count first, then choices that make more and more room. The
        first one is a bound."""
        found: list[tuple[int, list[str]]] = []
        for nodes in self._domains().values():
            found += self._choices_on(nodes)
        found.sort(key=lambda each: each[0])
        return [uids for _, uids in found]

    def _domains(self) -> Mapping[tuple[str, ...], list[NodeState]]:
        domains: dict[tuple[str, ...], list[NodeState]] = defaultdict(list)
        for node in self._snapshot.nodes:
            if node.name in self._pool and node.machine is not None:
                domain = tuple(domain_of(node, level) for level in self._levels)
                if all(domain):
                    domains[domain].append(node)
        return domains

    def _choices_on(self, nodes: Sequence[NodeState]) -> Iterator[tuple[int, list[str]]]:
        most = 2 * self._wanted + 8
        best: Ints = np.full(most + 1, _FAR, dtype=np.int64)
        best[0] = 0
        taken: list[tuple[list[_Option], Ints]] = []
        for node in nodes:
            options = self._options(node)
            if len(options) == 1 and not options[0].places:
                continue
            costs = np.stack([_after(best, each) for each in options])
            which = costs.argmin(axis=0)
            best = costs[which, np.arange(most + 1)]
            taken.append((options, which.astype(np.int64)))
        before: set[frozenset[str]] = set()
        more = 0
        while self._wanted + more <= most and best[self._wanted + more] < _FAR:
            uids = _trace(taken, self._wanted + more)
            if frozenset(uids) not in before:
                before.add(frozenset(uids))
                yield int(best[self._wanted + more]), uids
            more = 2 * more or 1

    def _options(self, node: NodeState) -> list[_Option]:
        """Return the cheapest option for each number of places, beginning with no pod."""
        by_uid, machine = self._snapshot.by_uid, node.machine
        assert machine is not None, "it is in the pool"
        others = {uid: mask for uid, mask in node.owned.items() if uid not in self._job}
        free = machine.healthy_gpus
        for mask in others.values():
            free &= ~mask
        go = sorted(
            (uid for uid in others if uid in self._may_go), key=lambda uid: -others[uid].bit_count()
        )
        left = self._left(node)
        found: list[_Option] = []
        for uids in _subsets(go):
            mask, room, gpus = free, left, 0
            for uid in uids:
                mask |= others[uid] & machine.healthy_gpus
                gpus += others[uid].bit_count()
                room += by_uid[uid].needs
            places = self._places(machine, mask, room)
            cost = len(uids) * _EACH + gpus
            if not found or all(o.places < places or o.cost > cost for o in found):
                found.append(_Option(cost, places, uids))
        return found

    def _left(self, node: NodeState) -> ResourceList:
        """Return what the job could use of the node if all pods stay."""
        own = (self._snapshot.by_uid[uid].needs for uid in node.owned if uid in self._job)
        return sum(own, self._snapshot.left.on(node.row) + self._idle[node.name])

    def _places(self, machine: Machine, mask: int, left: ResourceList) -> int:
        """Return an upper bound of the places."""
        if not self._alike:
            return mask.bit_count() if mask.bit_count() >= self._smallest else 0
        return min(self._sets_in(machine, mask), left.room_for(self._needs))

    def _sets_in(self, machine: Machine, mask: int) -> int:
        places = mask.bit_count() // self._size
        require = self._first.ask.requirement.require
        if require is LinkClass.SYS or places == 0:
            return places
        key = (id(machine), mask)
        if key not in self._sets:
            has_one = choose(machine, mask, self._size, require=require) is not None
            self._sets[key] = places if has_one else 0
        return self._sets[key]


def _subsets(uids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Return all subsets of few pods; of many, the prefixes."""
    if len(uids) > _MOST_TOGETHER:
        yield from (tuple(uids[:count]) for count in range(len(uids) + 1))
        return
    for count in range(len(uids) + 1):
        yield from combinations(uids, count)


def _after(best: Ints, option: _Option) -> Ints:
    """Return the cost of each number of places with this option of one more node."""
    shift = min(option.places, len(best) - 1)
    moved = np.concatenate([np.full(shift, best[0], dtype=np.int64), best[: len(best) - shift]])
    return moved + option.cost


def _trace(taken: Sequence[tuple[list[_Option], Ints]], places: int) -> list[str]:
    uids: list[str] = []
    for options, which in reversed(taken):
        option = options[int(which[places])]
        uids += option.uids
        places = max(places - option.places, 0)
    return uids


def held_by(snapshot: Snapshot, uids: Collection[str]) -> Iterator[tuple[PodRecord, int]]:
    """Return these pods with the GPUs of each, those with most first."""
    found = []
    for uid in uids:
        record = snapshot.by_uid[uid]
        node = snapshot.node_named.get(record.node)
        gpus = node.owned.get(uid, 0).bit_count() if node is not None else 0
        if node is not None and uid in node.shares.holders.values():
            gpus = record.demand.gpus
        found.append((record, gpus))
    yield from sorted(found, key=lambda each: (-each[1], each[0].key))
