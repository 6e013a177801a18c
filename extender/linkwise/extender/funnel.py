"""Where pods that are alike could go: level by level which nodes are left, and what came nearest.

The levels are in the order in which people can do least about them: what a node is comes before
who may use it, and that before what is free on it now. So the nodes that got furthest are those
worth waiting for, and the nearest miss is one of them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from linkwise.extender import rooms
from linkwise.extender.asks import Requirement, link_word
from linkwise.extender.books import NO_TOPOLOGY
from linkwise.extender.feasible import why_not
from linkwise.extender.holders import holders_of
from linkwise.extender.holds import Asker
from linkwise.extender.kinds import Kind, Wish
from linkwise.extender.records import PodRecord, Resources, Template, natural
from linkwise.extender.rows import Bools, Ints, popcount
from linkwise.extender.snapshot import NodeState, Snapshot
from linkwise.extender.views import Level, NearestMiss, ReasonCount, Search, Wanted
from linkwise.topology.choose import nearest_miss
from linkwise.topology.model import MAX_GPUS, LinkClass

NOT_READY = "node is not ready"
NO_RESOURCES = "too little CPU, memory or pods left"
REFUSED = "refused by kube-scheduler for such pods, until the node changes"
_UNUSABLE = -1
_GIB = 1 << 30


class Funnel:
    """Over the nodes that have GPUs; answers for pods that are alike are kept."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.nodes = [node for node in snapshot.nodes if has_gpus(node)]
        self.nodes.sort(key=lambda node: natural(node.name))
        self._kinds: list[Kind] = []
        numbers: dict[int, int] = {}
        for node in self.nodes:
            if node.kind is not None and id(node.kind) not in numbers:
                numbers[id(node.kind)] = len(self._kinds)
                self._kinds.append(node.kind)
        self._kind_of: Ints = np.array(
            [
                _UNUSABLE if node.problem or node.kind is None else numbers[id(node.kind)]
                for node in self.nodes
            ],
            dtype=np.int64,
        )
        self.usable: Bools = self._kind_of != _UNUSABLE
        self.free: Ints = np.array([node.free for node in self.nodes], dtype=np.int64)
        self.rows: Ints = np.array([node.row for node in self.nodes], dtype=np.int64)
        self._closed: dict[Template, NDArray[np.object_]] = {}
        self._known: dict[object, Search] = {}

    def search(self, records: Sequence[PodRecord], asker: Asker) -> Search:
        """For pods that are alike, as `alike` says."""
        mine = self.open_to(asker)
        key = (alike(records[0]), len(records), mine)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._search(records[0], len(records), mine)
        return found

    def open_to(self, asker: Asker) -> frozenset[int]:
        """The holds, by their place, that keep nothing from this one, as `Holds.ways` has it."""
        at = self.snapshot.at
        return frozenset(
            place
            for place, hold in enumerate(self.snapshot.holds)
            if asker.urgency <= hold.urgency
            or (asker.runs and not hold.evicts)
            or (
                asker.seconds is not None
                and hold.start is not None
                and at + asker.seconds <= hold.start
            )
        )

    def free_to(self, holds: frozenset[int]) -> Ints:
        """[nodes] the GPUs that are free to those for whom these holds are open."""
        masks = [
            node.free
            | node.reserved
            & reduce(or_, (self.snapshot.holds[h].gpus.get(node.name, 0) for h in holds), 0)
            for node in self.nodes
        ]
        return np.array(masks, dtype=np.int64) if holds else self.free

    def closed(self, template: Template | None) -> NDArray[np.object_]:
        """[nodes] why pods of this template may not go there, empty where they may."""
        if template is None:
            return np.full(len(self.nodes), "", dtype=object)
        found = self._closed.get(template)
        if found is None:
            texts = [_why_closed(template, node) for node in self.nodes]
            found = self._closed[template] = np.array(texts, dtype=object)
        return found

    def _search(self, record: PodRecord, pods: int, mine: frozenset[int]) -> Search:
        pass_ = _Pass(self, record, mine)
        levels = pass_.levels()
        room = pass_.room()
        total = min(int(room.sum()), pods)
        nearest = None if total >= pods else pass_.nearest(room)
        return Search(pods, wanted_of(record), tuple(levels), total, nearest)

    def by_kind(
        self, nodes: Bools, free: Ints, judge: Callable[[Kind, Ints], NDArray[np.generic] | int]
    ) -> Ints:
        """[nodes] what *judge* says of a kind and masks of free GPUs; 0 for the others."""
        found = np.zeros(len(self.nodes), dtype=np.int64)
        for number, kind in enumerate(self._kinds):
            places = np.flatnonzero(nodes & (self._kind_of == number))
            if len(places):
                found[places] = judge(kind, free[places])
        return found


@dataclass(slots=True)
class _Lost:
    """The nodes that a level left out, and in words what each of them lacks."""

    nodes: Bools
    lack: NDArray[np.float64]  # [nodes] how much, where one can be nearer than another
    words: Callable[[int], str]


class _Pass:
    """One pod, level by level."""

    def __init__(self, funnel: Funnel, record: PodRecord, mine: frozenset[int]) -> None:
        """*mine* are the holds that keep nothing from such a pod."""
        self._funnel, self._record, self._mine = funnel, record, mine
        self._free = funnel.free_to(mine)
        self._wish = Wish(record.demand, record.ask.requirement)
        self._left: Bools = np.ones(len(funnel.nodes), dtype=np.bool_)
        self._levels: list[Level] = []
        self._lost: list[_Lost] = []
        self._suitable: Ints = np.zeros(len(funnel.nodes), dtype=np.int64)  # free, will do

    def levels(self) -> list[Level]:
        funnel, wish, requirement = self._funnel, self._wish, self._wish.requirement
        size, which = wish.size, gpus_in_words(wish.size)
        self._level(
            "topology",
            "have GPUs that Linkwise knows",
            funnel.usable,
            self._unknown,
            self._problem,
        )
        own = self._by_kind(lambda kind, _: kind.all_gpus.bit_count())
        self._level(
            "size",
            f"have {which} or more",
            own >= size,
            rooms.TOO_SMALL,
            lambda at: f"it has {gpus_in_words(int(own[at]))}, {size} are wanted",
            size - own,
        )
        like = self._by_kind(lambda kind, _: kind.allowed(requirement).bit_count())
        if requirement.models or requirement.memory_mib:
            self._level(
                "model",
                f"have {which} of {model_in_words(requirement)}",
                like >= size,
                rooms.OTHER_MODEL,
                lambda at: (
                    f"{like[at]} of its {own[at]} GPUs have the model and memory wanted, not {size}"
                ),
                size - like,
            )
        linked = requirement.require is not LinkClass.SYS
        if linked:
            ever = self._by_kind(lambda k, _: k.take(wish, k.all_gpus) is not None)
            self._level(
                "link",
                f"can join {which} by {link_word(requirement.require)} or closer",
                ever > 0,
                rooms.NEVER_LINKED,
                lambda at: self._link_there(at, idle=True),
            )
        self._open_level()
        self._free_levels(like, linked=linked)
        self._level(
            "resources",
            f"have {needs_in_words(self._record.needs)} left",
            self._fit() > 0,
            NO_RESOURCES,
            self._short_of,
        )
        self._refused_level()
        return self._levels

    def room(self) -> Ints:
        """[nodes] for how many such pods there is room."""
        most, wish = self._fit(), self._wish

        def packed(kind: Kind, masks: Ints) -> Ints:
            return np.array([len(kind.pack(wish, mask, MAX_GPUS)) for mask in masks.tolist()])

        return np.minimum(self._by_kind(packed), most)

    def nearest(self, room: Ints) -> NearestMiss | None:
        """Of the nodes that got furthest the one that lacks least; of equals the one with most
        GPUs that would do, then by name."""
        candidates = list(self._lost)
        if self._left.any():
            candidates.append(self._one_more(room))
        for lost in reversed(candidates):
            places = np.flatnonzero(lost.nodes)
            if len(places):
                keys = (-self._suitable[places], lost.lack[places])
                at = int(places[np.lexsort(keys)[0]])
                node = self._funnel.nodes[at]
                holders = holders_of(self._funnel.snapshot, [node], self._mine)
                return NearestMiss(node.name, "node", lost.words(at), holders)
        return None

    def _one_more(self, room: Ints) -> _Lost:
        """Nodes with room for some of the pods, and those where GPUs are taken: which of them
        lacks fewest GPUs for one pod more?"""
        size = self._wish.size
        allowed = self._by_kind(lambda kind, _: kind.allowed(self._wish.requirement).bit_count())
        more = self._left & (allowed >= size * (room + 1))
        lack = np.where(more, size * (room + 1) - self._suitable, np.inf)
        words = {}
        for at in np.flatnonzero(more & (lack > 0)).tolist():
            count, lacks = int(room[at]), int(lack[at])
            words[at] = (
                f"room for {pods_in_words(count)}; {gpus_in_words(lacks)} more would make room "
                f"for {count + 1}"
            )
        lack = np.where(self._taken.nodes, self._taken.lack, lack)
        nodes = np.isfinite(lack) & (lack > 0)
        return _Lost(nodes, lack, lambda at: words[at] if at in words else self._too_few(at))

    def _level(
        self,
        name: str,
        wanted: str,
        has: NDArray[np.generic],
        why: str | Callable[[int], str],
        words: Callable[[int], str],
        lack: NDArray[np.generic] | None = None,
    ) -> None:
        before = self._left
        lost = before & ~has.astype(np.bool_)
        self._left = before & ~lost
        places = np.flatnonzero(lost).tolist()
        if isinstance(why, str):
            counted = Counter({why: len(places)} if places else {})
        else:
            counted = Counter(map(why, places))
        missing = tuple(
            ReasonCount(text.removeprefix("linkwise: "), count)
            for text, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
        )
        have, of = int(self._left.sum()), int(before.sum())
        self._levels.append(Level(name, wanted, "nodes", have, of, missing))
        much = np.zeros(len(lost)) if lack is None else lack.astype(np.float64)
        self._lost.append(_Lost(lost, much, words))

    def _open_level(self) -> None:
        closed = self._funnel.closed(self._record.template)
        self._suitable = self._by_kind(
            lambda kind, free: popcount(free & kind.allowed(self._wish.requirement))
        ).astype(np.int64)
        self._level(
            "node",
            "are ready and take such pods (taints, node selector, affinity)",
            closed == "",
            lambda at: str(closed[at]),
            lambda at: f"{closed[at]} (it has {gpus_in_words(int(self._suitable[at]))} free)",
        )

    def _free_levels(self, like: NDArray[np.generic], *, linked: bool) -> None:
        wish, size = self._wish, self._wish.size
        self._like = like
        self._level(
            "free",
            f"have {gpus_in_words(size)} free that will do",
            self._suitable >= size,
            self._why_too_few,
            self._too_few,
            size - self._suitable,
        )
        self._taken = self._lost[-1]
        if linked:
            fits = self._by_kind(lambda kind, free: kind.qualities(wish, free) > -np.inf)
            self._level(
                "free-link",
                f"have {gpus_in_words(size)} free that are joined by "
                f"{link_word(wish.requirement.require)} or closer",
                fits > 0,
                rooms.NO_LINK,
                lambda at: self._link_there(at, idle=False),
            )

    def _refused_level(self) -> None:
        template = self._record.template
        refusing = self._funnel.snapshot.refusing.get(template) if template is not None else None
        if refusing:
            taken = np.array([node.name not in refusing for node in self._funnel.nodes])
            self._level(
                "kube-scheduler",
                "are not refused by kube-scheduler",
                taken,
                REFUSED,
                lambda _: REFUSED,
            )

    def _fit(self) -> Ints:
        """[nodes] how many such pods have their CPU and so on."""
        left, rows, needs = self._funnel.snapshot.left, self._funnel.rows, self._record.needs
        count: Ints = left.pods[rows].copy()
        for amount, need in (
            (left.milli_cpu, needs.milli_cpu),
            (left.memory, needs.memory),
            (left.gpus, needs.gpus),
        ):
            if need:
                np.minimum(count, amount[rows] // need, out=count)
        return np.maximum(count, 0)

    def _by_kind(self, judge: Callable[[Kind, Ints], NDArray[np.generic] | int]) -> Ints:
        return self._funnel.by_kind(self._left, self._free, judge)

    # In words.

    def _unknown(self, at: int) -> str:
        problem = self._funnel.nodes[at].problem
        return problem if problem == NO_TOPOLOGY else rooms.UNREADABLE

    def _problem(self, at: int) -> str:
        return self._funnel.nodes[at].problem

    def _too_few(self, at: int) -> str:
        size, free, like = self._wish.size, int(self._suitable[at]), int(self._like[at])
        more = f"{size - free} more {'is' if size - free == 1 else 'are'} needed"
        kept = self._kept(at).bit_count()
        others = f" and {kept} kept for others" if kept else ""
        return f"{free} of {like} suitable GPUs are free{others}, {more}"

    def _why_too_few(self, at: int) -> str:
        """As `rooms` tells it."""
        if int(self._suitable[at]) + self._kept(at).bit_count() < self._wish.size:
            return rooms.FEWER
        node, kept = self._funnel.nodes[at], self._kept(at)
        holds = self._funnel.snapshot.holds
        titles = (hold.title for hold in holds if hold.gpus.get(node.name, 0) & kept)
        return rooms.HELD.format(next(titles, "others"))

    def _kept(self, at: int) -> int:
        """The GPUs of a node that would do and that nobody has, but that are kept from it."""
        node = self._funnel.nodes[at]
        assert node.kind is not None, "a node of unknown kind got no further"
        return node.reserved & ~int(self._free[at]) & node.kind.allowed(self._wish.requirement)

    def _link_there(self, at: int, *, idle: bool) -> str:
        kind, size = self._funnel.nodes[at].kind, self._wish.size
        assert kind is not None, "a node of unknown kind got no further"
        requirement = self._wish.requirement
        mask = kind.all_gpus if idle else int(self._free[at])
        link = nearest_miss(
            kind.machine, mask & kind.allowed(requirement), size, requirement.require
        )
        joined = "no link at all" if link is None else link_word(link)
        of = "GPUs" if idle else "free GPUs"
        return (
            f"the best link of {size} of its {of} is {joined}, "
            f"{link_word(requirement.require)} is required"
        )

    def _short_of(self, at: int) -> str:
        left, row, needs = self._funnel.snapshot.left, self._funnel.rows[at], self._record.needs
        parts = []
        if left.milli_cpu[row] < needs.milli_cpu:
            cpus, of = cpus_in_words(int(left.milli_cpu[row])), cpus_in_words(needs.milli_cpu)
            parts.append(f"{cpus} left, {of} wanted")
        if left.memory[row] < needs.memory:
            there, wanted = gib_in_words(int(left.memory[row])), gib_in_words(needs.memory)
            parts.append(f"{there} of memory left, {wanted} wanted")
        if left.gpus[row] < needs.gpus:
            parts.append(f"{left.gpus[row]} GPUs left as kube-scheduler counts, not {needs.gpus}")
        if left.pods[row] < 1:
            parts.append("it has as many pods as it may")
        return "; ".join(parts)


def alike(record: PodRecord) -> object:
    """Equal for pods that may go to the same nodes."""
    return record.demand, record.ask.requirement, record.needs, record.template


def has_gpus(node: NodeState) -> bool:
    """A node that never had GPUs is nobody's question."""
    offers = node.record.offers.gpus if node.record is not None else 0
    return bool(node.machine is not None or node.owned or offers)


def wanted_of(record: PodRecord) -> Wanted:
    requirement = record.ask.requirement
    return Wanted(
        gpus=record.demand.gpus,
        containers={c.name: c.gpus for c in record.demand.containers},
        require_link=link_word(requirement.require),
        prefer_link=link_word(requirement.prefer),
        models=tuple(" ".join(words) for words in requirement.models),
        memory_mib=requirement.memory_mib,
        milli_cpu=record.needs.milli_cpu,
        memory=record.needs.memory,
    )


def model_in_words(requirement: Requirement) -> str:
    models = " or ".join(" ".join(words).upper() for words in requirement.models)
    memory = f"{requirement.memory_mib / 1024:g} GiB or more" if requirement.memory_mib else ""
    return " with ".join(part for part in (models, memory) if part)


def needs_in_words(needs: Resources) -> str:
    parts = []
    if needs.milli_cpu:
        parts.append(cpus_in_words(needs.milli_cpu))
    if needs.memory:
        parts.append(f"{gib_in_words(needs.memory)} of memory")
    parts.append("a place for one more pod")
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def gpus_in_words(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def pods_in_words(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


def cpus_in_words(milli_cpu: int) -> str:
    return f"{milli_cpu / 1000:g} CPU{'' if milli_cpu == 1000 else 's'}"


def gib_in_words(memory: int) -> str:
    return f"{max(memory, 0) / _GIB:.3g} GiB"


def _why_closed(template: Template, node: NodeState) -> str:
    if node.record is None or not node.record.ready:
        return NOT_READY
    return why_not(template, node.record)
