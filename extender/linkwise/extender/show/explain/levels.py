"""A pod's requirements, level by level, and the nodes that are left after each.

The levels that a user can change least come first: what a node is, then who may use it, then what
is free on it now. So the nodes that meet most levels are worth waiting for, and the nearest miss
is one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from linkwise.drawing.words import gpus_in_words, pods_in_words
from linkwise.extender.place.nodes import reasons
from linkwise.extender.place.nodes.by_count import goes_by_count_alone, requires_nothing
from linkwise.extender.place.nodes.reasons import GpuLevel
from linkwise.extender.show.explain.holders import holders_of
from linkwise.extender.show.explain.node_arrays import Field
from linkwise.extender.show.explain.texts.format import (
    amount_in_words,
    cpus_in_words,
    gib_in_words,
    in_bytes,
    left_in_words,
    memory_in_words,
    needs_in_words,
)
from linkwise.extender.state.cache.machine_kind import GpuRequest, MachineKind
from linkwise.extender.state.cache.node_table import Bools, Ints, popcount
from linkwise.extender.state.records import PodRecord, ResourceList
from linkwise.extender.state.views import LevelView, NearestMiss
from linkwise.pods.annotations import link_word
from linkwise.topology.machine.model import MAX_GPUS
from linkwise.topology.sets.choose import nearest_miss

NO_RESOURCES = "too little CPU, memory or pods left"
REFUSED = "refused by kube-scheduler for such pods, until the node changes"
# Levels that no GPU that comes free can change: what a node is, and (_CLOSED) who may use it.
NEVER = frozenset(level.name for level in reasons.EVER)
SHARES = "shares"  # the level of nodes with shares, which may stand in for whole GPUs
_CLOSED = NEVER | {"topology", "node"}


@dataclass(slots=True)
class _Lost:
    """The nodes that fail a level, and what each of them lacks."""

    nodes: Bools
    lack: NDArray[np.float64]  # [nodes] the amount; all 0 if the level has no amount
    words: Callable[[int], str]
    closed: bool = False  # they would fail even if all their GPUs were free


class Levels:
    """The levels of one pod."""

    def __init__(self, field: Field, record: PodRecord, mine: frozenset[int]) -> None:
        """*mine* are the indices of the reservations that are open to the pod."""
        self._field, self._record, self._mine = field, record, mine
        self._free = field.free_to(mine)
        self._request = GpuRequest(record.demand, record.ask.requirement)
        self._left: Bools = np.ones(len(field.nodes), dtype=np.bool_)
        self._levels: list[LevelView] = []
        self._lost: dict[str, _Lost] = {}
        self._suitable: Ints = np.zeros(len(field.nodes), dtype=np.int64)  # free suitable GPUs
        self._idle = self._suitable  # the same, with those that are reserved for others

    def all(self) -> list[LevelView]:
        self._level(
            "topology",
            "have GPUs that Linkwise knows",
            self._field.usable,
            self._unknown,
            self._problem,
        )
        requirement = self._request.requirement
        self._own = self._by_kind(lambda kind, _: kind.all_gpus.bit_count())
        self._like = self._by_kind(lambda kind, _: kind.allowed(requirement).bit_count())
        for level in reasons.EVER:
            self._gpu_level(level, lambda kind, _: np.array([kind.all_gpus]))
        self._open_level()
        for level in reasons.NOW:
            self._gpu_level(level, lambda _, free: free)
        self._level(
            "resources",
            f"have {needs_in_words(self._field.left.counted(self._record.needs))} left",
            self._fit() > 0,
            self._why_too_little,
            self._short_of,
        )
        self._refused_level()
        return self._levels

    def room(self) -> Ints:
        """[nodes] how many such pods fit now."""
        most, request = self._fit(), self._request

        def packed(kind: MachineKind, masks: Ints) -> Ints:
            return np.array([len(kind.pack(request, mask, MAX_GPUS)) for mask in masks.tolist()])

        return np.minimum(self._by_kind(packed), most)

    def nearest(self, room: Ints) -> NearestMiss | None:
        """Of the nodes that meet most levels, the one that lacks least.

        A node whose GPUs are only reserved for others lacks none of these: they run nothing. Among
        equals, the node with the most suitable GPUs that are free or reserved wins, then the first
        by name.
        """
        candidates = [*self._lost.values()]
        if self._left.any():
            candidates.append(self._one_more(room))
        for lost in reversed(candidates):
            places = np.flatnonzero(lost.nodes)
            if len(places):
                keys = (-self._idle[places], lost.lack[places])
                at = int(places[np.lexsort(keys)[0]])
                node = self._field.nodes[at]
                nodes = () if lost.closed else (node,)
                holders = holders_of(self._field.snapshot, nodes, self._mine)
                return NearestMiss(node.name, "node", lost.words(at), holders)
        return None

    def _one_more(self, room: Ints) -> _Lost:
        """Nodes with room for some of the pods, and nodes whose GPUs are taken, with the number of
        GPUs that each lacks for one more pod."""
        size = self._request.size
        allowed = self._by_kind(lambda kind, _: kind.allowed(self._request.requirement).bit_count())
        more = self._left & (allowed >= size * (room + 1))
        lack = np.where(more, size * (room + 1) - self._suitable, np.inf)
        words = {}
        for at in np.flatnonzero(more & (lack > 0)).tolist():
            count, lacks = int(room[at]), int(lack[at])
            words[at] = (
                f"room for {pods_in_words(count)}; {gpus_in_words(lacks)} more would make room "
                f"for {count + 1}"
            )
        taken = self._lost["free"]
        lack = np.where(taken.nodes, taken.lack, lack)
        nodes = taken.nodes | (np.isfinite(lack) & (lack > 0))
        return _Lost(nodes, lack, lambda at: words[at] if at in words else self._too_few(at))

    def _level(
        self,
        name: str,
        wanted: str,
        has: NDArray[np.generic],
        why: str | Callable[[int], str],
        words: Callable[[int], str] | None = None,
        lack: NDArray[np.generic] | None = None,
    ) -> None:
        """*words*: what a node lacks; the reason *why*, if not given."""
        before = self._left
        lost = before & ~has.astype(np.bool_)
        self._left = before & ~lost
        places = np.flatnonzero(lost).tolist()
        reason = why if callable(why) else lambda _: why
        missing = self._field.counted(self._record.template, [*map(reason, places)], places)
        have, of = int(self._left.sum()), int(before.sum())
        self._levels.append(LevelView(name, wanted, "nodes", have, of, missing))
        much = np.zeros(len(lost)) if lack is None else lack.astype(np.float64)
        words = words or (lambda at: reason(at).removeprefix("linkwise: "))
        self._lost[name] = _Lost(lost, much, words, name in _CLOSED)

    def _open_level(self) -> None:
        closed = self._field.closed(self._record.template)
        self._suitable = self._by_kind(
            lambda kind, free: popcount(free & kind.allowed(self._request.requirement))
        ).astype(np.int64)
        kept = [self._kept(at).bit_count() for at in range(len(closed))]
        self._idle = self._suitable + np.array(kept, dtype=np.int64)
        self._level(
            "node",
            "are ready and take such pods (taints, node selector, affinity)",
            closed == "",
            lambda at: str(closed[at]),
            lambda at: f"{closed[at]} (it has {gpus_in_words(int(self._suitable[at]))} free)",
        )

    def _gpu_level(self, level: GpuLevel, gpus: Callable[[MachineKind, Ints], Ints]) -> None:
        request, requirement = self._request, self._request.requirement
        if not level.concerns(request, self._field.kinds):
            return
        wanted = level.wanted.format(
            gpus=gpus_in_words(request.size),
            hardware=" with ".join(requirement.hardware.in_words()),
            link=link_word(requirement.require),
        )
        has = {"size": self._own, "model": self._like, "free": self._has_free}.get(level.name)

        def meets(kind: MachineKind, free: Ints) -> NDArray[np.generic]:
            masks, position = np.unique(gpus(kind, free), return_inverse=True)
            return np.array([level.meets(kind, request, mask) for mask in masks.tolist()])[position]

        self._level(
            level.name,
            wanted,
            self._by_kind(meets),
            partial(self._why_not, level),
            self._words.get(level.name),
            None if has is None else request.size - has,
        )

    @property
    def _has_free(self) -> Ints:
        """[nodes] how many suitable GPUs are free; also those that are reserved for others, if they
        are all that a node lacks."""
        return np.where(self._idle >= self._request.size, self._idle, self._suitable)

    @cached_property
    def _words(self) -> dict[str, Callable[[int], str]]:
        """What a node lacks, by level."""
        own, like, size = self._own, self._like, self._request.size
        return {
            "size": lambda at: f"it has {gpus_in_words(int(own[at]))}, {size} are wanted",
            "model": lambda at: (
                f"{like[at]} of its {own[at]} GPUs have the model and memory wanted, not {size}"
            ),
            "partition": self._partitions_there,
            "link": partial(self._link_there, idle=True),
            "alignment": lambda at: (
                f"{_policy_of(self._kind(at))} admits no pod of {gpus_in_words(size)} there"
            ),
            "free": self._too_few,
            "free-link": partial(self._link_there, idle=False),
            "free-alignment": self._aligned_there,
        }

    def _refused_level(self) -> None:
        template, snapshot = self._record.template, self._field.snapshot
        if template is None:
            return
        for name, refusing, why in (
            ("their kubelet", snapshot.turned_away.get(template, {}).keys(), reasons.SUCH_REFUSED),
            ("kube-scheduler", snapshot.refusing.get(template, frozenset()), REFUSED),
        ):
            if refusing:
                taken = np.array([node.name not in refusing for node in self._field.nodes])
                self._level(name.removeprefix("their "), f"are not refused by {name}", taken, why)

    def _fit(self) -> Ints:
        """[nodes] how many such pods fit by everything but their GPU set."""
        return self._field.left.pods_that_fit(self._record.needs, len(self._field.nodes))

    def _by_kind(self, judge: Callable[[MachineKind, Ints], NDArray[np.generic] | int]) -> Ints:
        return self._field.by_kind(self._left, self._free, judge)

    # In words.

    def _unknown(self, at: int) -> str:
        closed = self._field.nodes[at].closed
        assert closed is not None, "usable nodes meet this level"
        return f"{reasons.why_closed(closed)}{self._by_count(at)}"

    def _problem(self, at: int) -> str:
        return f"{reasons.why_closed_exactly(self._field.nodes[at].closed)}{self._by_count(at)}"

    def _by_count(self, at: int) -> str:
        """What a node where pods are placed by count is for the pod."""
        if self._field.nodes[at].by_count is None:
            return ""
        if not requires_nothing(self._record):
            return ": cannot tell its links, models and memory"
        if self._record.ask.gang is not None and not self._is_by_count_alone:
            return ": not used for gangs"
        return ": kube-scheduler places the pod there by count"

    @cached_property
    def _is_by_count_alone(self) -> bool:
        """Whether a gang's member may only run where pods are placed by count."""
        nodes = self._field.nodes
        return goes_by_count_alone(
            self._record,
            ((node.record, node.machine is not None, node.by_count is not None) for node in nodes),
        )

    def _too_few(self, at: int) -> str:
        size, free, like = self._request.size, int(self._suitable[at]), int(self._like[at])
        more = f"{size - free} more {'is' if size - free == 1 else 'are'} needed"
        kept = self._kept(at).bit_count()
        others = f" and {kept} reserved for others" if kept else ""
        return f"{free} of {like} suitable GPUs are free{others}, {more}"

    def _why_not(self, level: GpuLevel, at: int) -> str:
        """The text of `rooms`, which `filter` uses too."""
        kind, kept = self._kind(at), self._kept(at)
        if not kept or kind.take(self._request, int(self._free[at]) | kept) is None:
            return level.why(kind)
        name, reservations = self._field.nodes[at].name, self._field.snapshot.reservations
        reserved = ((each.title, each.gpus.get(name, 0)) for each in reservations)
        return reasons.why_set_aside(reserved, kept)

    def _kept(self, at: int) -> int:
        """Bitmask of a node's suitable GPUs that are free but reserved for others."""
        node = self._field.nodes[at]
        if node.kind is None:
            return 0
        return node.reserved & ~int(self._free[at]) & node.kind.allowed(self._request.requirement)

    def _partitions_there(self, at: int) -> str:
        sizes = sorted({gpus.bit_count() for gpus in self._kind(at).machine.partitions} - {0})
        if not sizes:
            return "none of its NVSwitch partitions has all its GPUs"
        known = " or ".join([*map(str, sizes[:-1]), gpus_in_words(sizes[-1])])
        return f"its NVSwitch partitions have {known}"

    def _link_there(self, at: int, *, idle: bool) -> str:
        kind, size = self._kind(at), self._request.size
        requirement = self._request.requirement
        mask = kind.all_gpus if idle else int(self._free[at])
        usable, drawn = mask & kind.allowed(requirement), self._request.drawn
        link = nearest_miss(kind.machine, usable, size, requirement.require, drawn=drawn)
        # The kubelet chooses which GPUs of a larger init container it hands on.
        some = f"any {' or '.join(map(str, drawn))} of " if drawn else ""
        joined = "no link at all" if link is None else link_word(link)
        of = "GPUs" if idle else "free GPUs"
        return (
            f"the best link of {some}{size} of its {of} is {joined}, "
            f"{link_word(requirement.require)} is required"
        )

    def _aligned_there(self, at: int) -> str:
        kind = self._kind(at)
        assert kind.alignment is not None, "only kubelets that align GPUs refuse sets"
        why = reasons.why_not_aligned(kind).removeprefix("linkwise: ")
        of = "the pod" if kind.alignment.of_pod else "each container"
        return f"{why} for {of} ({_policy_of(kind)}); {self._suitable[at]} are free on all of them"

    def _kind(self, at: int) -> MachineKind:
        kind = self._field.nodes[at].kind
        assert kind is not None, "a node of unknown kind got no further"
        return kind

    def _short_of(self, at: int) -> str:
        left, needs = self._field.left.on(at), self._record.needs
        parts = []
        if left.milli_cpu < needs.milli_cpu:
            there = left_in_words(left.milli_cpu, cpus_in_words)
            parts.append(f"{there}, {cpus_in_words(needs.milli_cpu)} wanted")
        if left.memory < needs.memory:
            there = left_in_words(left.memory, memory_in_words)
            parts.append(f"{there}, {gib_in_words(needs.memory)} wanted")
        if left.gpus < needs.gpus:
            there = left_in_words(left.gpus, gpus_in_words)
            parts.append(f"kube-scheduler counts: {there}, {needs.gpus} wanted")
        if self._field.left.pods[at] < 1:
            parts.append("its limit of pods is reached")
        node = self._field.nodes[at].record
        offers = dict(node.offers.others) if node is not None else {}
        for name, have, need in self._others_short(at):
            if in_bytes(name) or have < 0:
                there = left_in_words(have, partial(amount_in_words, name))
                wanted = gib_in_words(need) if in_bytes(name) else str(need)
                parts.append(f"{there}, {wanted} wanted")
            else:
                more = f"{need - have} more {'is' if need - have == 1 else 'are'} needed"
                parts.append(f"{have} of {offers.get(name, 0)} {name} are free, {more}")
        return "; ".join(parts)

    def _why_too_little(self, at: int) -> str:
        needs = self._record.needs
        first = ResourceList(needs.milli_cpu, needs.memory, needs.gpus)
        if not self._field.left.fits_on(at, first):
            return NO_RESOURCES
        return f"too little {' and '.join(name for name, *_ in self._others_short(at))} left"

    def _others_short(self, at: int) -> list[tuple[str, int, int]]:
        """Of the other resources, those of which the node has too little: what is left, and what
        the pod needs."""
        left = dict(self._field.left.on(at).others)
        needed = self._record.needs.others
        return [(name, left[name], need) for name, need in needed if left.get(name, need) < need]


def _policy_of(kind: MachineKind) -> str:
    manager = kind.machine.topology_manager
    return f"topologyManagerPolicy {'unknown' if manager is None else manager.policy}"
