"""What kube-scheduler's filters have said about nodes, which the extender itself does not know.

A call names exactly the nodes that passed everything else (volumes, spread, other plugins).
kube-scheduler tries a nominated pod on its nominated node alone first. It continues without that
node for two reasons: a plugin refused the node, or its call to the extender was lost. So a call
without the nominated node is a refusal only if the second reason is excluded:

- kube-scheduler looked at every node, as it does until it has found LEAST_SAMPLE that pass;
- or it happened twice, APART_SECONDS apart, and no call named the node in between.

A refusal excludes the node from plans for pods of the same template (`SchedulerFeedback`). It ends
when a call names the node, when the node or the pods on it change, and by itself after a pause. If
the node refuses again after it, the next pause is twice as long.

What it says about the members of one gang, or of one pod planned ahead, is apart (`GangRefusals`):

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_table import Bools
from linkwise.extender.state.records import GangKey, Template
from linkwise.extender.state.timers import Agenda

FRESH_SECONDS = 30.0
# kube-scheduler's minFeasibleNodesToFind (pkg/scheduler/schedule_one.go): it skips none of fewer.
LEAST_SAMPLE = 100
# Two calls about a refused pod come within milliseconds, the second one for a preemption.
APART_SECONDS = 1.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 300.0
_MOST_DOUBLINGS = 7  # more make no difference
_MOST_TEMPLATES = 1024
_MOST_DOUBTS = 4096
# Of what was said about the members of one gang.
_GANG_PAUSE_SECONDS, _NEXT_GANG_PAUSE_SECONDS = 2.0, 10.0
_LONGEST_REST_SECONDS = 10.0  # kube-scheduler's longest back-off
_MOST_GANGS = 1024
_ENOUGH_NODES = 2  # with the same limit: then it is hardly one of the nodes


def names_all(names: Sequence[str]) -> bool:
    """Whether a call that names these nodes names all that pass kube-scheduler's own filters."""
    return len(names) < LEAST_SAMPLE


@dataclass(frozen=True, slots=True)
class _Passing:
    names: tuple[str, ...]
    at: float


@dataclass(slots=True)
class _Refusal:
    version: int  # of the node, including the pods on it
    until: float
    times: int = 1  # in a row
    lapsed: bool = False  # its pause is over; `times` stays, for the next refusal


class SchedulerFeedback:
    def __init__(self, cache: Cache, agenda: Agenda) -> None:
        agenda.ask(self._times)
        self._cache = cache
        # Not weak: a recreated pod must find what its predecessor's calls taught.
        self._refusals: dict[Template, dict[str, _Refusal]] = {}
        self._passing: dict[Template, _Passing] = {}  # the latest last; only fresh ones
        # (uid, node) -> when a call first omitted the node for which the pod was nominated
        self._doubts: dict[tuple[str, str], float] = {}

    def named(self, template: Template, names: tuple[str, ...]) -> bool:
        """A call names these nodes, so they refuse no pod of this template. Returns whether that
        ended a refusal."""
        refusals = self._refusals.get(template)
        if not refusals:
            return False
        ended = [node for node in refusals.keys() & set(names) if not refusals[node].lapsed]
        for node in refusals.keys() & set(names):
            del refusals[node]
        if not refusals:
            del self._refusals[template]
        return bool(ended)

    def passed(self, template: Template, names: tuple[str, ...], now: float) -> None:
        """These nodes passed for a pod of this template, though maybe not all that would."""
        self._passing.pop(template, None)
        self._passing[template] = _Passing(names, now)
        # Each call may name 5,000 nodes, and pods of many templates may wait for weeks.
        while now - self._passing[first := next(iter(self._passing))].at > FRESH_SECONDS:
            del self._passing[first]

    @property
    def templates(self) -> int:
        """For how many templates the nodes of a filter call are remembered."""
        return len(self._passing)

    def lacks(self, uid: str, node: str, names: tuple[str, ...], now: float) -> bool:
        """A call about a pod that is nominated for *node* names other nodes. Returns whether that
        is a refusal by the node."""
        if names_all(names):
            return True
        doubt = (uid, node)
        first = self._doubts.get(doubt)
        if first is None:
            if len(self._doubts) >= _MOST_DOUBTS:
                del self._doubts[next(iter(self._doubts))]
            self._doubts[doubt] = now
            return False
        if now < first + APART_SECONDS:
            return False
        del self._doubts[doubt]
        return True

    def asked_about(self, uid: str, node: str) -> None:
        """A call about this pod names the node."""
        self._doubts.pop((uid, node), None)

    def refuse(self, template: Template, node: str, now: float) -> None:
        info = self._cache.nodes.get(node)
        if info is None:
            return
        if template not in self._refusals and len(self._refusals) >= _MOST_TEMPLATES:
            del self._refusals[next(iter(self._refusals))]
        refusals = self._refusals.setdefault(template, {})
        before = refusals.get(node)
        # Several pods that were planned there may be refused before the first one is planned again.
        times = 1 if before is None else before.times + before.lapsed
        pause = FIRST_PAUSE_SECONDS * 2 ** min(times - 1, _MOST_DOUBLINGS)
        until = now + min(pause, LONGEST_PAUSE_SECONDS)
        refusals[node] = _Refusal(info.version, until, times)

    def lapse(self, touched: Iterable[str], now: float) -> bool:
        """End refusals by nodes that changed, and those whose pause is over. Returns whether there
        were any."""
        nodes = set(touched)
        any_ended = False
        for template, refusals in list(self._refusals.items()):
            for node, refusal in list(refusals.items()):
                if node in nodes and self._has_changed(node, refusal):
                    any_ended |= not refusal.lapsed
                    del refusals[node]
                elif now >= refusal.until and not refusal.lapsed:
                    refusal.lapsed = any_ended = True
                elif now >= refusal.until + LONGEST_PAUSE_SECONDS:
                    del refusals[node]
            if not refusals:
                del self._refusals[template]
        return any_ended

    def _has_changed(self, node: str, refusal: _Refusal) -> bool:
        info = self._cache.nodes.get(node)
        return info is None or info.version != refusal.version

    def _times(self) -> Iterable[float]:
        for refusals in self._refusals.values():
            yield from (refusal.until for refusal in refusals.values() if not refusal.lapsed)

    def refused(self, template: Template) -> tuple[str, ...]:
        return tuple(sorted(self._refusing(template)))

    def refusing(self) -> dict[Template, frozenset[str]]:
        """template -> the nodes that refused its pods."""
        found = {template: frozenset(self._refusing(template)) for template in self._refusals}
        return {template: nodes for template, nodes in found.items() if nodes}

    def rows(self, template: Template) -> Bools | None:
        """[rows] False for the nodes that refused pods of this template; None: no node did."""
        refusing = self._refusing(template)
        if not refusing:
            return None
        allowed = np.ones(len(self._cache.rows), dtype=np.bool_)
        for node in refusing:
            row = self._cache.rows.row_of.get(node)
            if row is not None:
                allowed[row] = False
        return allowed

    def known_to_pass(self, template: Template, now: float) -> Bools | None:
        """[rows] the nodes that passed recently; None if no node refused pods of this template, or
        none passed recently."""
        passing = self._passing.get(template)
        if passing is None or now - passing.at > FRESH_SECONDS or not self._refusing(template):
            return None
        allowed = np.zeros(len(self._cache.rows), dtype=np.bool_)
        rows = self._cache.rows.rows_of(passing.names)
        allowed[rows[rows >= 0]] = True
        return allowed

    def _refusing(self, template: Template) -> list[str]:
        refusals = self._refusals.get(template, {})
        return [node for node, refusal in refusals.items() if not refusal.lapsed]


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
        return _GANG_PAUSE_SECONDS
    return min(_NEXT_GANG_PAUSE_SECONDS * 2.0 ** (times - 2), LONGEST_PAUSE_SECONDS)
