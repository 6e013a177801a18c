"""The nearest domain that holds all members of a gang: level by level from the nearest to the
widest, and at each level all domains at once, by arrays.

First comes what the gang could have at all: the best quality of its GPU sets, on the fewest nodes.
Then the nearest level is sought at which some domain gives it just that, so closeness of nodes
never costs bandwidth inside them, nor another node; where a span is preferred in words, it does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from linkwise.extender.domains import NO_DOMAIN
from linkwise.extender.fill import Fill, Near
from linkwise.extender.ground import Ground
from linkwise.extender.kinds import Wish
from linkwise.extender.pool import Pool
from linkwise.extender.records import Resources, Template
from linkwise.extender.rows import NOT_USABLE, Bools, Ints
from linkwise.extender.spans import Spans

_ALL = 0  # the number of the one domain that holds every node


@dataclass(frozen=True, slots=True)
class Order:
    """Members that are alike, and the nodes that may take them."""

    wish: Wish
    needs: Resources
    template: Template
    members: tuple[int, ...]  # their places among all members, rising
    unit: int  # so many after each other belong closest together; 1: each for itself
    nodes: Bools  # [rows]


@dataclass(frozen=True, slots=True)
class Company:
    """Where members of the gang are already."""

    rows: tuple[int, ...] = ()
    next_to: tuple[int, ...] = ()  # of these, those of the next members in rank
    models: frozenset[str] = frozenset()  # of their GPUs


NOBODY = Company()


@dataclass(frozen=True, slots=True)
class Answer:
    """How one order is placed: sets by row, in the order of ranks."""

    quality: float
    sets: tuple[tuple[int, tuple[int, ...]], ...]
    loss: float

    @property
    def worth(self) -> tuple[float, float]:
        return self.quality, -len(self.sets)


@dataclass(frozen=True, slots=True)
class Way:
    """How all orders are placed. The one of more `worth` is better."""

    answers: tuple[Answer, ...]
    preferred: int = 0  # which of the preferred spans it keeps to; one more than there are: none
    level: int = 0  # the nearest level at which one domain holds it

    @property
    def reach(self) -> tuple[float, ...]:
        return tuple(worth for answer in self.answers for worth in answer.worth)

    @property
    def worth(self) -> tuple[float, ...]:
        loss = sum(answer.loss for answer in self.answers)
        return (-self.preferred, *self.reach, -self.level, -loss)


@dataclass(slots=True)
class Scratch:
    """The rows as they would be with what is placed so far."""

    ground: Ground
    free: Ints  # [rows]
    near: Near
    placed: dict[int, list[Resources]] = field(default_factory=dict)

    def take(self, answer: Answer, needs: Resources) -> None:
        for row, sets in answer.sets:
            for gpus in sets:
                self.free[row] &= ~gpus
                self.placed.setdefault(row, []).append(needs)
        taken = np.array([row for row, _ in answer.sets])
        self.near = Near(np.union1d(self.near.rows, taken), self.near.next_to)

    def pods_that_fit(self, needs: Resources) -> Ints:
        count = self.ground.rows.pods_that_fit(needs)
        for row, placed in self.placed.items():
            count[row] = self.ground.rows.pods_that_fit_beside(row, placed, needs)
        return count

    def pool(self, order: Order, inside: Bools) -> Pool:
        rows = self.ground.rows
        room = self.pods_that_fit(order.needs)
        usable = inside & order.nodes & (rows.kinds != NOT_USABLE)
        candidates = np.flatnonzero(usable & (room > 0) & (self.free != 0))
        free, room = self.free[candidates], room[candidates]
        wanted = len(order.members)
        return Pool(self.ground, order.wish, wanted, candidates, free, room, order.unit)


class Climb:
    def __init__(
        self,
        ground: Ground,
        orders: Sequence[Order],
        company: Company,
        spans: Spans,
        model: str | None,
    ) -> None:
        """On GPUs of one *model*, or any."""
        self.orders = orders
        self._ground, self._spans = ground, spans
        rows = ground.rows
        self._free = rows.free
        if model is not None:
            of_kind = np.array([*(kind.of_model(model) for kind in ground.kinds), 0])
            self._free = rows.free & of_kind[rows.kinds]  # NOT_USABLE takes the last entry
        self._company = np.array(company.rows, dtype=np.int64)
        self._near = Near(self._company, np.array(company.next_to, dtype=np.int64))

    def way(self) -> Way | None:
        allowed = self.required(self._spans.require)
        for number, key in enumerate(self._spans.prefer):
            level = self._ground.level(key)
            if (level.numbers != NO_DOMAIN).any():
                way = self._within(self._with_company(_joined(allowed, level.apart)))
                if way is not None:
                    return replace(way, preferred=number)
        way = self._within(allowed)
        return None if way is None else replace(way, preferred=len(self._spans.prefer))

    def required(self, levels: Sequence[str]) -> Ints:
        """[rows] the domain that may hold all members; NO_DOMAIN: that node may hold none."""
        domains = np.full(len(self._ground.rows), _ALL)
        for key in levels:
            domains = _joined(domains, self._ground.level(key).numbers)
        return self._with_company(domains) if levels else domains

    def scratch(self) -> Scratch:
        return Scratch(self._ground, self._free.copy(), self._near)

    def pool(self, order: Order, inside: Bools) -> Pool:
        return self.scratch().pool(order, inside)

    def answer(self, scratch: Scratch, pool: Pool) -> Answer | None:
        """The best way to place the members of one order: which nodes, and how many on each."""
        found = next(_classes(pool, np.zeros(len(pool.rows), dtype=np.int64)), None)
        if found is None:
            return None
        quality, nodes, _ = found
        fill = Fill(pool, pool.room_at(quality), self._ground.levels, scratch.near)
        chosen = fill.choose(np.arange(len(pool.rows)), nodes)
        sets = tuple((int(pool.rows[i]), pool.sets(i, count)) for i, count in chosen)
        counts = np.array([count for _, count in chosen])
        loss = pool.losses(np.array([i for i, _ in chosen]), counts).sum()
        return Answer(quality, sets, float(loss))

    def _with_company(self, domains: Ints) -> Ints:
        """Only the domain where the gang's others are; none, if they are in more than one."""
        if not len(self._company):
            return domains
        theirs = domains[self._company[0]]
        together = theirs != NO_DOMAIN and (domains[self._company] == theirs).all()
        return np.where((domains == theirs) & together, domains, NO_DOMAIN)

    def _within(self, domains: Ints) -> Way | None:
        """The best way within one of these domains; of equal ones that of the nearest level."""
        pool = self.pool(self.orders[0], domains != NO_DOMAIN)
        best = self._best_reach(pool, domains)
        if best is None:
            return None
        if best[1:] == (-1,) and not len(self._company):
            return self._on_one_node(pool, domains, best[0])
        for number, level in enumerate(self._ground.levels):
            nearer = self._with_company(_joined(domains, level.apart))
            way = self._reaching(pool, nearer, best)
            if way is not None:
                return replace(way, level=number)
        way = self._reaching(pool, domains, best)
        assert way is not None, "it was reached just now"
        return replace(way, level=len(self._ground.levels))

    def _on_one_node(self, pool: Pool, domains: Ints, quality: float) -> Way | None:
        """No two nodes, so no level above them counts."""
        inside = domains[pool.rows] != NO_DOMAIN
        enough = np.flatnonzero(inside & (pool.room_at(quality) >= pool.wanted))
        best = pool.first(enough, [pool.losses(enough, np.full(len(enough), pool.wanted))])
        return self._filled(np.arange(len(domains)) == pool.rows[best])

    def _best_reach(self, pool: Pool, domains: Ints) -> tuple[float, ...] | None:
        for quality, nodes, able in _classes(pool, domains[pool.rows]):
            if len(self.orders) == 1:
                return quality, -nodes
            for domain in self._nearest_first(pool, domains, pool.room_at(quality), able):
                way = self._filled(domains == domain)
                if way is not None:
                    return way.reach
        return None

    def _reaching(self, pool: Pool, domains: Ints, best: tuple[float, ...]) -> Way | None:
        """A way within one of these domains that is no worse than the best."""
        room = pool.room_at(best[0])
        able = _with_fewest(domains[pool.rows], room, pool.wanted, int(-best[1]))
        for domain in self._nearest_first(pool, domains, room, able):
            way = self._filled(domains == domain)
            if way is not None and way.reach >= best:
                return way
        return None

    def _nearest_first(self, pool: Pool, domains: Ints, room: Ints, able: Ints) -> list[int]:
        """Of these domains those that may hold all: near the gang's others, then the fullest, so
        that whole ones stay whole, then by the names of their nodes."""
        inside = np.isin(domains[pool.rows], able)
        for order in self.orders[1:]:
            others = self.pool(order, domains != NO_DOMAIN)
            most = others.room_at(-np.inf)
            able = able[[most[domains[others.rows] == d].sum() >= others.wanted for d in able]]
        numbers, of = np.unique(domains[pool.rows][inside], return_inverse=True)
        total = np.bincount(of, room[inside], minlength=len(numbers))
        ranks = np.full(len(numbers), int(pool.ranks.max(initial=0)))
        np.minimum.at(ranks, of, pool.ranks[inside])
        closeness = self._near.of(domains, numbers)
        by_worth = numbers[np.lexsort((ranks, total, -closeness))]
        return [int(domain) for domain in by_worth if domain in set(able.tolist())]

    def _filled(self, inside: Bools) -> Way | None:
        scratch = self.scratch()
        answers = []
        for order in self.orders:
            answer = self.answer(scratch, scratch.pool(order, inside))
            if answer is None:
                return None
            scratch.take(answer, order.needs)
            answers.append(answer)
        return Way(tuple(answers))


def _joined(domains: Ints, others: Ints) -> Ints:
    """[rows] the domains of those that share both; NO_DOMAIN where either is."""
    if (domains == _ALL).all():
        return others
    _, numbers = np.unique(domains * (others.max(initial=0) + 1) + others, return_inverse=True)
    return np.where((domains == NO_DOMAIN) | (others == NO_DOMAIN), NO_DOMAIN, numbers)


def _classes(pool: Pool, domains: Ints) -> Iterator[tuple[float, int, Ints]]:
    """The domains [candidates] with room for all members: by the quality that all can have there,
    best first, then by how many nodes it takes."""
    done = np.zeros(0, dtype=np.int64)
    for quality in pool.qualities():
        numbers, nodes = _fewest(domains, pool.room_at(quality), pool.wanted)
        fresh = ~np.isin(numbers, done)
        for count in np.unique(nodes[fresh]):
            yield quality, int(count), numbers[fresh & (nodes == count)]
        done = numbers


def _with_fewest(domains: Ints, room: Ints, wanted: int, nodes: int) -> Ints:
    numbers, fewest = _fewest(domains, room, wanted)
    return numbers[fewest <= nodes]


def _fewest(domains: Ints, room: Ints, wanted: int) -> tuple[Ints, Ints]:
    """The domains [candidates] with room for all, and how many nodes it takes in each."""
    inside = np.flatnonzero((room > 0) & (domains != NO_DOMAIN))
    numbers, of = np.unique(domains[inside], return_inverse=True)
    by_room = np.lexsort((-room[inside], of))
    of, sums = of[by_room], np.cumsum(room[inside][by_room])
    ends = np.searchsorted(of, np.arange(len(numbers)), side="right")
    total = np.diff(sums[ends - 1], prepend=0) if len(numbers) else np.zeros(0, dtype=np.int64)
    before = (sums[ends - 1] - total)[of] if len(numbers) else sums
    short = np.bincount(of, sums - before < wanted, minlength=len(numbers)).astype(np.int64)
    able = total >= wanted
    return numbers[able], short[able] + 1
