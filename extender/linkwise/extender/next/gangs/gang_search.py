"""Finds GPUs for the members of a gang that have none, among the nodes that may run them.

If kube-scheduler has refused some nodes, the search first tries the nodes that are known to pass
its filters, and as few members on each as it probably lets through. A gang is placed as a whole,
beside its members that already have GPUs. A single pod is placed on its best node, with values that
are precomputed for all nodes.

Each of kube-scheduler's filters that looks at other pods, ports or volumes becomes one of these
`GangLimits`:

- a mask of nodes, by the pods that are there already (`NodeFilters.beside`)
- for what members demand of each other, a resource that each of them needs and nodes have little
  of: at most one on a node, or so many in a zone (`NodeFilters.between`)
- a label whose value all nodes of the gang must share

So both searches respect them without knowing them. What kube-scheduler was seen to refuse beside
other members counts likewise (`GangRefusals`).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from linkwise.extender.next.gangs.members import GangMembers, plan_of, spots_of
from linkwise.extender.place.cluster_view import (
    ClusterView,
    Counts,
    Effort,
    NodesView,
    cluster_levels,
    cluster_view,
    domain_counts,
)
from linkwise.extender.place.communicator import Machines, estimate_of, ideal, reach_of
from linkwise.extender.place.gang_placement import place, pod_sets_of
from linkwise.extender.place.judgement import GangJudgement, judge
from linkwise.extender.place.nodes.best_node import BestNode
from linkwise.extender.place.nodes.node_filters import NodeFilters
from linkwise.extender.place.nodes.scheduler_feedback import GangRefusals, Guess, SchedulerFeedback
from linkwise.extender.place.request import NONE_PLACED, NoRoom, PlacedMembers, PodSet, Spot
from linkwise.extender.place.shares.choice import Effort as ShareEffort
from linkwise.extender.place.shares.choice import ShareChoice, ShareRequest
from linkwise.extender.place.shares.nodes import best_share_node, choice_on
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.cache.node_table import NOT_USABLE, Bools, Ints, NodeTable, popcount
from linkwise.extender.state.cache.shares.book import ShareBook
from linkwise.extender.state.records import PodRecord, ResourceList, Template
from linkwise.extender.state.timers import RunUnlocked, run_inline
from linkwise.kube.filters.gang import trimmed
from linkwise.kube.filters.pod_facts import rules_of
from linkwise.kube.objects import LARGEST
from linkwise.pods.spans import NODE, Spans, ordered, spans_of
from linkwise.topology.annotations.plan import CommunicatorEstimate

# What a node has of it, so many more members of the gang it takes. No resource has such a name.
_TAKES = "members that kube-scheduler lets through"
_NOTHING = ResourceList()
# More, and the search would hold up others: kube-scheduler and the barrier decide.
_MOST_ROLES, _MOST_RULES = 16, 64  # of one gang: members with different rules, and these rules
_MOST_LOOKS = 100_000  # at a node for members with equal rules, labels and claims


@dataclass(frozen=True, slots=True)
class GangLimits:
    """The sequences are those of the members; a mask that is None allows every node."""

    masks: Sequence[Bools | None]
    needs: Sequence[ResourceList]
    columns: Mapping[str, Ints] = field(default_factory=dict)  # name -> [rows] how much is left
    shared: tuple[str, ...] = ()  # labels of which all nodes must have one value

    def __bool__(self) -> bool:
        return bool(self.columns or self.shared) or any(mask is not None for mask in self.masks)


def gang_limits(
    filters: NodeFilters,
    refusals: GangRefusals,
    members: Sequence[PodRecord],
    beside: Sequence[Spot],
    table: NodeTable,
    nodes: Callable[[Template], Bools],
    guess: Guess | None,
) -> GangLimits:
    """The limits of these open members, which may run on *nodes*. The gang's others are *beside*
    them. Without a *guess* of how many members nodes take, only what is known counts."""
    key, rules = members[0].gang, rules_of(m.facts for m in members if m.facts)
    are_few = len(rules) <= _MOST_ROLES and sum(each.count for each in rules) <= _MOST_RULES
    are_few = are_few and filters.count_kinds(members) * len(table) <= _MOST_LOOKS
    none: list[Bools | None] = [None] * len(members)
    masks = filters.beside_each(members) if are_few else none
    if (known := refusals.rows(key)) is not None:
        masks = [_both(known, mask) for mask in masks]
    needs, columns = [_NOTHING] * len(members), dict[str, Ints]()
    takes = refusals.takes(key) if guess is None else guess.of_nodes
    if takes:
        others = None if guess is None else guess.of_others
        left = np.full(len(table), LARGEST if others is None else others)
        for node, most in takes.items():
            left[table.row_of[node]] = most
        for spot in beside:
            if spot.node in table.row_of:
                left[table.row_of[spot.node]] -= 1
        columns[_TAKES] = left
        needs = [ResourceList(others=((_TAKES, 1),))] * len(members)
    shared: tuple[str, ...] = ()
    if are_few and any(m.facts is not None and m.facts.demands for m in members):
        rooms_of = _rooms(members, masks, table, nodes)
        rooms = np.maximum.reduce(rooms_of)
        demands, kinds = filters.between(members, rooms_of)
        shared = demands.together
        if demands.homes:
            homes = [demands.homes[kind] for kind in kinds]
            masks = [_both(*pair) for pair in zip(masks, homes, strict=True)]
        used = np.zeros(len(table), dtype=np.int64)
        for limit in demands.limits:
            left = trimmed(limit, rooms, used)
            columns[limit.name] = np.minimum(left, LARGEST)
            if not all(limit.needs):  # members of other kinds should find room elsewhere
                used += np.minimum(left, rooms)
            of_kind = [
                ResourceList(others=((limit.name, n),)) if n else _NOTHING for n in limit.needs
            ]
            needs = [have + of_kind[kind] for have, kind in zip(needs, kinds, strict=True)]
    return GangLimits(masks, needs, columns, shared)


def _both(first: Bools | None, second: Bools | None) -> Bools | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _rooms(
    members: Sequence[PodRecord],
    masks: Sequence[Bools | None],
    table: NodeTable,
    nodes: Callable[[Template], Bools],
) -> list[Ints]:
    """For each member, [rows] how many of its like fit on each node."""
    count, rooms = len(table), dict[object, Ints]()
    keys = [
        (m.demand.gpus, m.needs, m.template, id(mask))
        for m, mask in zip(members, masks, strict=True)
    ]
    for key, mask in zip(keys, masks, strict=True):
        if key in rooms:
            continue
        gpus, needs, template, _ = key
        room = np.minimum(popcount(table.free[:count]) // max(gpus, 1), table.pods_that_fit(needs))
        room = np.where(nodes(template), room, 0) if template is not None else room
        room = room if mask is None else np.where(mask, room, 0)
        rooms[key] = np.minimum(room, len(members))
    return [rooms[key] for key in keys]


Requests = frozenset[tuple[Hashable, int]]
"""How many members have which request."""


class FailedSearches:
    """Equal gangs fail equally: a search that found no room is not repeated before there is more
    room.

    A hundred gangs may wait for the same kind of GPUs, and each pod that ends causes a new search.
    One search of 5,000 nodes serves all of them.

    Valid while `Cache.room` stays the same: until then, the free GPUs only become fewer.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._room = -1
        self._refusals: dict[Hashable, NoRoom] = {}

    def forget(self) -> None:
        """Drop all refusals. There is no more room than before, but the counts may be outdated."""
        self._refusals.clear()

    def seek(
        self,
        members: Sequence[PodRecord],
        spans: Spans,
        shown: Hashable,
        search: Callable[[], list[Spot] | NoRoom],
    ) -> list[Spot] | NoRoom:
        """The result of *search* for these members of a gang with these *spans*, or a refusal of
        equal members that could use the same reserved GPUs (*shown*)."""
        if self._are_kept_out(members):
            return search()  # by their labels, which may differ where all requests are equal
        if self._room != self._cache.room:
            self._room = self._cache.room
            self._refusals.clear()
        alike = (requests_of(members), spans, shown)
        known = self._refusals.get(alike)
        if known is not None:
            return known
        found = search()
        if isinstance(found, NoRoom):
            self._refusals[alike] = found
        return found

    def _are_kept_out(self, members: Sequence[PodRecord]) -> bool:
        around = self._cache.around
        if not around.keeping_apart():
            return False
        keys, labels = around.apart_keys(), self._cache.surroundings.namespaces or {}
        kinds = {m.facts.with_labels(keys) for m in members if m.facts is not None}
        return any(around.keeps_out(kind, labels) for kind in kinds)


def requests_of(members: Sequence[PodRecord]) -> Requests:
    """What these members request. Equal pods share most objects, so few are compared."""
    identities = [
        (id(m.demand), id(m.ask.requirement), id(m.ask.spans), id(m.needs), m.template, _rules(m))
        for m in members
    ]
    one_of = dict(zip(identities, members, strict=True))
    counts: Counter[Hashable] = Counter()
    for identity, count in Counter(identities).items():
        counts[_wishes(one_of[identity])] += count
    return frozenset(counts.items())


def _wishes(member: PodRecord) -> Hashable:
    ask = member.ask
    return member.demand, ask.requirement, ask.spans, member.needs, member.template, _rules(member)


def _rules(member: PodRecord) -> Hashable:
    """What it demands of the pods around it; None: nothing."""
    return member.facts if member.facts is not None and member.facts.demands else None


_TALKS = 2  # GPUs: a single GPU does not communicate
_TRIES = 2  # without the lock; the last search runs under the lock


class StaleResult(Exception):  # noqa: N818 - nothing is wrong
    """The gang itself, or what is searched, changed during the search for its GPUs; the next round
    looks at it again."""


class GangSearch:
    def __init__(
        self,
        cache: Cache,
        *,
        node_filters: NodeFilters,
        feedback: SchedulerFeedback,
        gang_refusals: GangRefusals,
        best_node: BestNode,
        levels: Sequence[str],
    ) -> None:
        """*levels*: the levels of domains, nearest first."""
        self._cache, self._levels = cache, tuple(levels)
        cache.domains.keep(levels)
        self._node_filters, self._feedback, self._best_node = node_filters, feedback, best_node
        self._gang_refusals = gang_refusals
        self._failed_searches = FailedSearches(cache)
        self.effort = Effort()  # of all its searches

    def forget_refusals(self) -> None:
        """Count again how much room there is for gangs that have too little."""
        self._failed_searches.forget()

    def seek(
        self,
        members: GangMembers,
        now: float,
        *,
        aside: RunUnlocked | None = None,
        pausing: RunUnlocked = run_inline,
        view: NodesView,
    ) -> list[Spot] | NoRoom:
        """Room for the open members in *view*. With *aside* others may use the cache meanwhile;
        the result is valid on return. With *pausing* they may too, and the result is about the
        nodes as they were. Raises StaleResult."""
        beside = spots_of(self._cache, members)
        if beside:
            return self._search(members, beside, now, aside, pausing, view)
        return self._failed_searches.seek(
            members.open,
            _spans_of(members),
            view.key,
            lambda: self._search(members, beside, now, aside, pausing, view),
        )

    def _search(
        self,
        members: GangMembers,
        beside: Sequence[Spot],
        now: float,
        aside: RunUnlocked | None,
        pausing: RunUnlocked,
        view: NodesView,
    ) -> list[Spot] | NoRoom:
        def known_nodes(template: Template) -> Bools:
            known, nodes = self._feedback.known_to_pass(template, now), self._nodes(template)
            return nodes if known is None else nodes & known

        guess = self._gang_refusals.guess(members.open[0].gang)
        ways = [(self._nodes, guess)]
        if any(self._feedback.refused(template) for template in _templates(members.open)):
            ways.insert(0, (known_nodes, guess))
        if guess is not None:
            ways.append((self._nodes, None))
        spots: list[Spot] | NoRoom | None = None
        seen = self._cache.changed_rows.generation
        for nodes, guessed in ways:
            if aside is None and self._cache.changed_rows.generation != seen:
                raise StaleResult  # while the last way was *pausing*: the view is about old rows
            spots = self._place(members, nodes, beside, aside, pausing, view, guessed)
            if not isinstance(spots, NoRoom):
                break
        assert spots is not None, "there is at least one way"
        return spots

    def _nodes(self, template: Template) -> Bools:
        """[rows] the nodes where pods of this template may run, as far as known or learned."""
        allowed, own = self._feedback.rows(template), self._node_filters.rows(template)
        return own if allowed is None else own & allowed

    def _place(
        self,
        members: GangMembers,
        nodes: Callable[[Template], Bools],
        beside: Sequence[Spot],
        aside: RunUnlocked | None,
        pausing: RunUnlocked,
        view: NodesView,
        guess: Guess | None,
    ) -> list[Spot] | NoRoom:
        member = members.open[0]
        if member.ask.gang is None and member.template is not None:
            spot = self._best_of(member, nodes(member.template), view)
            return spot if isinstance(spot, NoRoom) else [spot]
        placed = self._placed(members, beside)
        for _ in range(_TRIES):
            if aside is None:
                break
            seen = Seen(self._cache, members.open)
            given = self._input(members, nodes, beside, view, guess)
            answer = aside(partial(place, given.cluster, given.pod_sets, placed, given.spans))
            if seen.still_true_of(answer, given, nodes, view):
                return answer
        given = self._input(members, nodes, beside, view, guess)
        return pausing(partial(place, given.cluster, given.pod_sets, placed, given.spans))

    def _input(
        self,
        members: GangMembers,
        nodes: Callable[[Template], Bools],
        beside: Sequence[Spot],
        view: NodesView,
        guess: Guess | None,
    ) -> "_Input":
        table, spans = self._copied(view), _spans_of(members)
        limits = gang_limits(
            self._node_filters, self._gang_refusals, members.open, beside, table, nodes, guess
        )
        pod_sets = pod_sets_of(members.open, nodes, limits.needs, limits.masks)
        if limits.columns:
            table = table.with_columns(limits.columns)
        if limits.shared:
            spans = replace(spans, require=(*spans.require, *limits.shared))
        levels = ordered(self._levels, spans)
        cluster = cluster_view(self._cache, table, levels, self.effort)
        return _Input(cluster, pod_sets, spans, depends_on_pods=bool(limits))

    def _copied(self, view: NodesView) -> NodeTable:
        """A table that is safe to search: the cache's own changes while a search runs unlocked."""
        table = view.table()
        table = table.copy() if table is self._cache.rows else table
        return table.with_first(view.first) if view.first else table

    def _placed(self, members: GangMembers, beside: Sequence[Spot]) -> PlacedMembers:
        if not beside:
            return NONE_PLACED
        rows = self._cache.rows.row_of
        models: set[str] = set()
        on_rows: dict[int, int] = {}
        for spot in beside:
            info = self._cache.nodes.get(spot.node)
            if info is not None and info.machine is not None:
                gpus = info.machine.gpus
                models |= {gpu.model for p, gpu in enumerate(gpus) if spot.gpus >> p & 1}
            if spot.node in rows:
                row = rows[spot.node]
                on_rows[row] = on_rows.get(row, 0) | spot.gpus
        return PlacedMembers(
            tuple(sorted(on_rows)),
            tuple(on_rows[row] for row in sorted(on_rows)),
            tuple(sorted({rows[node] for node in _next_to(self._cache, members) if node in rows})),
            frozenset(models),
        )

    def span(self, members: GangMembers, spots: Sequence[Spot]) -> str:
        """The domain that the nodes of the gang share, as its plan states it; empty for a single
        pod, or if they share none."""
        if members.open[0].ask.gang is None:
            return ""
        nodes = {spot.node for spot in (*spots_of(self._cache, members), *spots)}
        if len(nodes) == 1:
            return f"{NODE}={nodes.pop()}"
        rows = [self._cache.rows.row_of[node] for node in nodes]
        levels = ordered(self._levels, _spans_of(members))
        level, domain = self._cache.domains.shared(levels, rows)
        return level and f"{level}={domain}"

    def spread(self, members: GangMembers, spots: Sequence[Spot]) -> Counts:
        """How many domains of each level the members that talk to each other have at *spots*, the
        widest level first."""
        spans = _spans_of(members)
        if members.open[0].ask.gang is None or spans.apart:
            return ()
        levels = cluster_levels(self._cache, ordered(self._levels, spans))
        rows = self._cache.rows.row_of
        return domain_counts(levels, [*{rows[spot.node] for spot in spots}])

    def communicators(
        self, members: GangMembers, spots: Sequence[Spot]
    ) -> Mapping[str, CommunicatorEstimate]:
        """node -> the bandwidth of the gang at *spots*, as its plan states it; empty for a single
        pod, a single GPU, and members that do not communicate with each other."""
        spans = _spans_of(members)
        gpus: dict[str, int] = {}
        for spot in (*spots_of(self._cache, members), *spots):
            gpus[spot.node] = gpus.get(spot.node, 0) | spot.gpus
        count = sum(mask.bit_count() for mask in gpus.values())
        if members.open[0].ask.gang is None or spans.apart or count < _TALKS:
            return {}
        parts = {
            info.row: (node, (info.kind, mask))
            for node, mask in gpus.items()
            if mask and (info := self._cache.nodes.get(node)) is not None and info.kind is not None
        }
        domains = self._cache.domains
        levels = domains.known(ordered(self._levels, spans))
        shared, _ = domains.shared(levels, list(parts))
        nearest = levels.index(shared) if shared else len(levels)
        worth = estimate_of([part for _, part in parts.values()], levels, nearest)
        told = {
            inside: CommunicatorEstimate(
                together=round(worth.together, 1),
                inside=round(inside, 1),
                between=None if worth.between is None else round(worth.between, 1),
            )
            for inside in set(worth.inside)
        }
        nodes = (node for node, _ in parts.values())
        return {node: told[inside] for node, inside in zip(nodes, worth.inside, strict=True)}

    def ideal(self, members: GangMembers, spots: Sequence[Spot]) -> float:
        """GB/s that as many GPUs would have together if all existing machines were idle."""
        cache, requirement = self._cache, members.open[0].ask.requirement
        of_rows = cache.rows.kinds[: len(cache.rows)]
        levels = cache.domains.known(ordered(self._levels, _spans_of(members)))
        machines = []
        for number in np.flatnonzero(np.bincount(of_rows[of_rows != NOT_USABLE])).tolist():
            nearest = cache.domains.nearest(levels, np.flatnonzero(of_rows == number))
            kind = cache.kinds[number]
            machines.append(Machines(kind, kind.allowed(requirement), reach_of(levels, nearest)))
        return ideal(machines, [spot.gpus.bit_count() for spot in spots])

    def judged(
        self, members: GangMembers, spots: Sequence[Spot], view: NodesView
    ) -> GangJudgement | None:
        """What the open members have at *spots*; None: a node there cannot be used."""
        given = self._input(members, self._nodes, (), view, None)
        rows = given.cluster.rows
        places = [(rows.row_of.get(spot.node, -1), spot.gpus) for spot in spots]
        if any(row < 0 or rows.kinds[row] == NOT_USABLE for row, _ in places):
            return None
        return judge(given.cluster, given.pod_sets, places, given.spans)

    def best_for(self, pod: PodRecord, view: NodesView) -> Spot | NoRoom:
        """The best node for a pod that is not planned ahead."""
        if pod.template is None:
            return NoRoom(1, 0, "", 0)
        return self._best_of(pod, self._nodes(pod.template), view)

    def best_with_shares(
        self,
        pod: PodRecord,
        request: ShareRequest,
        gpus_of: Callable[[NodeInfo, int], int | None],
        view: NodesView,
        books: Mapping[str, ShareBook],
    ) -> tuple[Spot, ShareChoice] | None:
        """`best_for` a pod that takes shares. *gpus_of*: the whole GPUs that it takes of a node
        where these are free; None: none that suit. *books*: see `choice_on`."""
        if pod.template is None:
            return None
        nodes, table = self._allowed(pod, self._nodes(pod.template)), view.table()

        def gpus_on(info: NodeInfo) -> int | None:
            return gpus_of(info, int(table.free[info.row]))

        def suits(info: NodeInfo) -> bool:
            fits = bool(nodes[info.row]) and table.left.fits_on(info.row, pod.needs)
            return fits and gpus_on(info) is not None

        room = self._best_node.room()
        node = best_share_node(self._cache, room, pod, request, ShareEffort(), suits, books)
        if node is None:
            return None
        info = self._cache.nodes[node]
        gpus, choice = gpus_on(info), choice_on(info, request, books=books)
        assert gpus is not None, "it suits"
        assert choice is not None, "it is the best"
        return Spot(node, gpus), choice

    def _best_of(self, pod: PodRecord, nodes: Bools, view: NodesView) -> Spot | NoRoom:
        request = GpuRequest(pod.demand, pod.ask.requirement)
        return self._best_node.find(request, pod.needs, self._allowed(pod, nodes), view)

    def _allowed(self, pod: PodRecord, nodes: Bools) -> Bools:
        """Those of *nodes* that let the pod in beside the pods there."""
        for mask in (self._node_filters.beside(pod), self._gang_refusals.rows(pod.gang)):
            nodes = nodes if mask is None else nodes & mask
        return nodes


def _templates(members: Iterable[PodRecord]) -> set[Template]:
    return {member.template for member in members if member.template is not None}


def _spans_of(members: GangMembers) -> Spans:
    return spans_of(member.ask.spans for member in members.seats)


@dataclass(frozen=True, slots=True)
class _Input:
    """What `place` searches: the nodes, the open members, and the spans of the gang."""

    cluster: ClusterView
    pod_sets: list[PodSet]
    spans: Spans
    depends_on_pods: bool  # pods on other nodes may limit where the members may be


class Seen:
    """The state of the cache when a piece of work began that runs without the lock."""

    def __init__(self, cache: Cache, members: Sequence[PodRecord]) -> None:
        self._cache, self._gang = cache, members[0].gang
        self._gang_change = self._change_of_gang()
        self._room, self._changed_rows = cache.room, cache.changed_rows.generation
        self._around = cache.around.changes

    def still_true_of(
        self,
        answer: list[Spot] | NoRoom,
        given: "_Input",
        nodes: Callable[[Template], Bools],
        view: NodesView,
    ) -> bool:
        """Whether *answer* is still valid. Raises StaleResult."""
        if self._change_of_gang() != self._gang_change:
            raise StaleResult
        if isinstance(answer, NoRoom):
            return self._cache.room == self._room  # then the free GPUs only became fewer
        if given.depends_on_pods and self._around != self._cache.around.changes:
            return False
        before = given.cluster.rows
        rows = [before.row_of[spot.node] for spot in answer]
        return self._same(before, view.table(), rows) and all(
            nodes(pods.template)[[rows[member] for member in pods.members]].all()
            for pods in given.pod_sets
        )

    def still_free(self, before: NodeTable, spots: Sequence[Spot]) -> bool:
        """Whether these nodes are as they were in *before*, a copy. Raises StaleResult."""
        if self._change_of_gang() != self._gang_change:
            raise StaleResult
        return self._same(before, self._cache.rows, [before.row_of[spot.node] for spot in spots])

    def _same(self, before: NodeTable, after: NodeTable, rows: Sequence[int]) -> bool:
        cache = self._cache
        changed = cache.changed_rows.since(self._changed_rows, len(cache.rows))
        return {*changed}.isdisjoint(rows) and after.equals(before, rows)

    def _change_of_gang(self) -> int | None:
        return None if self._gang is None else self._cache.gang_changes.get(self._gang)


def _next_to(cache: Cache, members: GangMembers) -> Iterable[str]:
    """The nodes of the members directly before or after an open member in the order of ranks."""
    open_ones = {member.uid for member in members.open}
    for first, second in pairwise(members.seats):
        for placed, other in ((first, second), (second, first)):
            if other.uid in open_ones and placed.uid not in open_ones:
                written = plan_of(cache, placed)
                yield placed.node or (written.plan.node if written is not None else "")
