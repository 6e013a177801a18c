"""What kube-scheduler has said about the members of one gang, or of one pod planned ahead.

- *No node takes it*: a member passed no node's filters. Then only nodes that change afterwards, or
  whose pods do, are tried for it.
- *A node takes so many of them*: the next member was refused there, by anti-affinity to the first
  ones or for a device that they share.

kube-scheduler also counts members that are only nominated for a node. So a refusal beside them says
how many are too many, and not how many the node takes: that is guessed. If two nodes refused so, it
is probably a rule of the gang, and the same is guessed of all nodes. A guess only orders the tries.

Other pods learn nothing from it: it may be due to a volume, a label or an annotation that only
these have. Each ends when the node or the pods on it change, and after a pause that doubles. All of
this is in memory; a new extender learns it again.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_table import Bools
from linkwise.extender.state.records import GangKey
from linkwise.extender.state.timers import Agenda

_FIRST_PAUSE_SECONDS, _NEXT_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2.0, 10.0, 300.0
_LONGEST_REST_SECONDS = 10.0  # kube-scheduler's longest back-off
_MOST_DOUBLINGS = 7  # more make no difference
_MOST_GANGS = 1024
_ENOUGH_NODES = 2  # with the same limit: then it is hardly one of the nodes


class Takes(NamedTuple):
    """How many members of a gang a node takes: *most* at most, and probably *guess*."""

    most: int
    guess: int


class Guess(NamedTuple):
    of_nodes: Mapping[str, int]  # node -> how many members it takes
    of_others: int | None  # how many each other node takes; None: any number


@dataclass(slots=True)
class _Takes:
    takes: Takes
    version: int  # of the node, including the pods on it
    until: float


@dataclass(slots=True)
class _Nowhere:
    generation: int  # of `Cache.versions`: what changes after it may take the pod
    until: float
    look_at: float  # no search because of such changes before
    seen: int  # the generation at the last search


@dataclass(slots=True)
class _OfGang:
    times: int = 0  # in a row
    takes: dict[str, _Takes] = field(default_factory=dict)  # by node
    nowhere: _Nowhere | None = None


class GangRefusals:
    def __init__(self, cache: Cache, agenda: Agenda) -> None:
        agenda.ask(self._times)
        self._cache = cache
        self._gangs: dict[GangKey, _OfGang] = {}

    def takes_no_more(self, key: GangKey, node: str, takes: Takes, now: float) -> None:
        """*node* refused one more member."""
        self._note(key, {node: takes}, now)

    def takes_nowhere(self, key: GangKey, takes: Mapping[str, Takes], now: float) -> None:
        """No node takes one more member. *takes*: what those take that have some."""
        of_gang = self._note(key, takes, now)
        seen = self._cache.versions.generation
        rest = min(2.0 ** float(of_gang.times - 1), _LONGEST_REST_SECONDS)
        of_gang.nowhere = _Nowhere(seen, now + _pause(of_gang.times), now + rest, seen)

    def _note(self, key: GangKey, takes: Mapping[str, Takes], now: float) -> _OfGang:
        of_gang = self._gangs.pop(key, None) or _OfGang()
        if len(self._gangs) >= _MOST_GANGS:
            del self._gangs[next(iter(self._gangs))]
        self._gangs[key] = of_gang
        of_gang.times = min(of_gang.times + 1, _MOST_DOUBLINGS)
        until = now + _pause(of_gang.times)
        for known in of_gang.takes.values():  # else the first would end before the last is learnt
            known.until = max(known.until, until)
        for node, each in takes.items():
            info = self._cache.nodes.get(node)
            if info is not None:
                of_gang.takes[node] = _Takes(each, info.version, until)
        return of_gang

    def named(self, key: GangKey | None) -> bool:
        """A filter call about a member names a node. Returns whether that ended a refusal."""
        of_gang = None if key is None else self._gangs.get(key)
        if of_gang is None or of_gang.nowhere is None:
            return False
        of_gang.nowhere = None
        return True

    def forget(self, key: GangKey) -> None:
        """The gang has started, or is gone."""
        self._gangs.pop(key, None)

    @contextmanager
    def unmoved(self, key: GangKey, node: str) -> Iterator[None]:
        """What happens on *node* meanwhile shows the gang nothing new."""
        info, of_gang = self._cache.nodes.get(node), self._gangs.get(key)
        takes = None if of_gang is None else of_gang.takes.get(node)
        is_current = info is not None and takes is not None and takes.version == info.version
        yield
        if is_current and info is not None and takes is not None:
            takes.version = info.version

    def lapse(self, now: float) -> bool:
        """End what is over; return whether there was any, or whether nodes have changed for a gang
        that none took."""
        any_ended = False
        generation = self._cache.versions.generation
        for key, of_gang in list(self._gangs.items()):
            for node, takes in list(of_gang.takes.items()):
                info = self._cache.nodes.get(node)
                if info is None or info.version != takes.version or now >= takes.until:
                    del of_gang.takes[node]
                    any_ended = True
            nowhere = of_gang.nowhere
            if nowhere is not None and now >= nowhere.until:
                of_gang.nowhere, any_ended = None, True
            elif nowhere is not None and generation != nowhere.seen and now >= nowhere.look_at:
                nowhere.seen, nowhere.look_at = generation, now + _LONGEST_REST_SECONDS
                any_ended = True
            if not of_gang.takes and of_gang.nowhere is None and self._cache.gangs.get(key) is None:
                del self._gangs[key]
        return any_ended

    def _times(self) -> Iterable[float]:
        generation = self._cache.versions.generation
        for of_gang in self._gangs.values():
            yield from (takes.until for takes in of_gang.takes.values())
            if (nowhere := of_gang.nowhere) is not None:
                has_changed = nowhere.seen != generation
                yield min(nowhere.look_at, nowhere.until) if has_changed else nowhere.until

    def takes(self, key: GangKey | None) -> dict[str, int]:
        """node -> how many members it takes, and refuses the next one."""
        of_gang = None if key is None else self._gangs.get(key)
        if of_gang is None:
            return {}
        rows = self._cache.rows.row_of
        return {node: each.takes.most for node, each in of_gang.takes.items() if node in rows}

    def guess(self, key: GangKey | None) -> Guess | None:
        """How many members nodes probably take; None: no more is guessed than `takes` says."""
        of_gang = None if key is None else self._gangs.get(key)
        takes = {} if of_gang is None else {n: each.takes for n, each in of_gang.takes.items()}
        rows = self._cache.rows.row_of
        of_nodes = {node: each.guess for node, each in takes.items() if node in rows}
        if len(of_nodes) >= _ENOUGH_NODES:
            return Guess(of_nodes, max(of_nodes.values()))
        if any(takes[node].most != guess for node, guess in of_nodes.items()):
            return Guess(of_nodes, None)
        return None

    def rows(self, key: GangKey | None) -> Bools | None:
        """[rows] the nodes that may take a member; None: all may."""
        of_gang = None if key is None else self._gangs.get(key)
        if of_gang is None or of_gang.nowhere is None:
            return None
        rows = self._cache.rows
        allowed = np.zeros(len(rows), dtype=np.bool_)
        allowed[[*self._cache.versions.since(of_gang.nowhere.generation, len(rows))]] = True
        allowed[[rows.row_of[node] for node in self.takes(key)]] = True
        return allowed


def _pause(times: int) -> float:
    """2, 10, 20, 40 s and so on: the first refusal may have been about an earlier state."""
    if times < 2:
        return _FIRST_PAUSE_SECONDS
    return min(_NEXT_PAUSE_SECONDS * 2.0 ** (times - 2), _LONGEST_PAUSE_SECONDS)
