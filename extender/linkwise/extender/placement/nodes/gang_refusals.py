"""What kube-scheduler has said about the members of one gang, or of one pod planned ahead.

- *No node takes it*: a member passed no node's filters. Then only nodes that change afterwards, or
  whose pods do, are tried for it.
- *A node takes so many of them*: the next member was refused there, by anti-affinity to the first
  ones or for a device that they share.

Other pods learn nothing from it: it may be due to a volume, a label or an annotation that only
these have. Each ends when the node or the pods on it change, and after a pause that doubles. All of
this is in memory; a new extender learns it again.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from linkwise.extender.api.records import GangKey
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.node_table import Bools

_FIRST_PAUSE_SECONDS, _NEXT_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2.0, 10.0, 300.0
_LONGEST_REST_SECONDS = 10.0  # kube-scheduler's longest back-off
_MOST_DOUBLINGS = 7  # more make no difference
_MOST_GANGS = 1024


@dataclass(slots=True)
class _Takes:
    most: int
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
    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._gangs: dict[GangKey, _OfGang] = {}

    def takes_no_more(self, key: GangKey, node: str, most: int, now: float) -> None:
        """*node* takes *most* members and refused the next one."""
        self._note(key, {node: most}, now)

    def takes_nowhere(self, key: GangKey, takes: Mapping[str, int], now: float) -> None:
        """No node takes one more member. *takes*: node -> how many are there, or were let through
        to it."""
        of_gang = self._note(key, takes, now)
        seen = self._cache.versions.generation
        rest = min(2.0 ** float(of_gang.times - 1), _LONGEST_REST_SECONDS)
        of_gang.nowhere = _Nowhere(seen, now + _pause(of_gang.times), now + rest, seen)

    def _note(self, key: GangKey, takes: Mapping[str, int], now: float) -> _OfGang:
        of_gang = self._gangs.pop(key, None) or _OfGang()
        if len(self._gangs) >= _MOST_GANGS:
            del self._gangs[next(iter(self._gangs))]
        self._gangs[key] = of_gang
        of_gang.times = min(of_gang.times + 1, _MOST_DOUBLINGS)
        until = now + _pause(of_gang.times)
        for node, most in takes.items():
            info = self._cache.nodes.get(node)
            if info is not None:
                of_gang.takes[node] = _Takes(most, info.version, until)
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

    def next_due(self) -> float | None:
        return min(self._times(), default=None)

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
        return {node: takes.most for node, takes in of_gang.takes.items() if node in rows}

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
