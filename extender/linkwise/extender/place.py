"""Where a whole gang goes: a node and a GPU set for every member, or nothing for any.

What counts, in this order: all members on one GPU model, the bandwidth of the slowest member,
fewest nodes, one NVLink clique, least taken from the jobs to come, the nodes' names. Members in
the order of their ranks fill node after node, so neighbours in rank are neighbours.
Many nodes are alike, so sets are sought once per kind of machine and mask of free GPUs, and nodes
are counted by arrays: near-linear in the number of nodes. Members that differ in size are placed
largest first, without going back on an earlier size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from linkwise.extender.books import Books
from linkwise.extender.kinds import Wish
from linkwise.extender.pool import Pool
from linkwise.extender.records import PodRecord, Resources, Template
from linkwise.extender.rows import NO_CLIQUE, NOT_USABLE, Bools, Ints


@dataclass(frozen=True, slots=True)
class Spot:
    node: str
    gpus: int  # bitmask


@dataclass(frozen=True, slots=True)
class Refusal:
    """Of *wanted* members no more than *had* could be placed."""

    wanted: int
    had: int
    nearest: str  # the node with room for most members; empty where none has any
    nearest_had: int


@dataclass(frozen=True, slots=True)
class Order:
    """Members that are alike, and the nodes that may take them."""

    wish: Wish
    needs: Resources
    members: tuple[int, ...]  # their places among all members, rising
    nodes: Bools  # [rows]


@dataclass(frozen=True, slots=True)
class _Answer:
    """Sets by row, in the order of ranks. Of two answers the one of more `worth` is better."""

    worth: tuple[float, ...]
    sets: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(slots=True)
class _Scratch:
    """The rows as they would be with what is placed so far."""

    books: Books
    free: Ints  # [rows]
    placed: dict[int, list[Resources]] = field(default_factory=dict)
    near: set[int] = field(default_factory=set)  # rows where members of this gang are

    def take(self, answer: _Answer, needs: Resources) -> None:
        for row, sets in answer.sets:
            for gpus in sets:
                self.free[row] &= ~gpus
                self.placed.setdefault(row, []).append(needs)
            self.near.add(row)

    def pods_that_fit(self, needs: Resources) -> Ints:
        count = self.books.rows.pods_that_fit(needs)
        for row, placed in self.placed.items():
            count[row] = self.books.rows.pods_that_fit_beside(row, placed, needs)
        return count

    def pool(self, order: Order) -> Pool:
        rows = self.books.rows
        room = self.pods_that_fit(order.needs)
        usable = rows.kinds[: len(rows)] != NOT_USABLE
        candidates = np.flatnonzero(order.nodes & usable & (room > 0) & (self.free != 0))
        wanted = len(order.members)
        return Pool(
            self.books, order.wish, wanted, candidates, self.free[candidates], room[candidates]
        )


@dataclass(frozen=True, slots=True)
class _Near:
    """Where members of the gang are already."""

    nodes: Bools  # of the candidates
    cliques: Ints  # numbers


def orders_of(members: Sequence[PodRecord], nodes: Callable[[Template], Bools]) -> list[Order]:
    """Group *members*, given in the order of their ranks, by what they want; largest first."""
    groups: dict[tuple[Wish, Resources, Template], list[int]] = {}
    for position, record in enumerate(members):
        assert record.template is not None, "every pod that takes GPUs has one"
        wish = Wish(record.demand, record.ask.requirement)
        groups.setdefault((wish, record.needs, record.template), []).append(position)
    orders = [
        Order(wish, needs, tuple(positions), nodes(template))
        for (wish, needs, template), positions in groups.items()
    ]
    return sorted(orders, key=lambda order: (-order.wish.size, order.members))


def place(
    books: Books, orders: Sequence[Order], beside: Sequence[Spot] = ()
) -> list[Spot] | Refusal:
    """One spot per member, in the members' order. *beside*: members of the gang already placed."""
    models = _models(books, beside)
    ways = [way for model in models if (way := _all(books, orders, beside, model)) is not None]
    if not ways and models != [None]:
        mixed = _all(books, orders, beside, None)
        ways = [] if mixed is None else [mixed]
    if not ways:
        return _refusal(books, orders, beside)
    # max() keeps the first of equals, and the models come by name.
    best = max(ways, key=lambda way: [answer.worth for answer in way])
    spots: dict[int, Spot] = {}
    for order, answer in zip(orders, best, strict=True):
        dealt = [(row, gpus) for row, sets in answer.sets for gpus in sets]
        for position, (row, gpus) in zip(order.members, dealt, strict=True):
            spots[position] = Spot(books.rows.names[row] or "", gpus)
    return [spots[position] for position in sorted(spots)]


def _models(books: Books, beside: Sequence[Spot]) -> list[str | None]:
    """The GPU models to try one by one; [None] where there is one only."""
    of_all = sorted({model for kind in books.kinds for model in kind.models})
    if len(of_all) < 2:
        return [None]
    of_gang = set()
    for spot in beside:
        book = books.nodes.get(spot.node)
        if book is not None and book.machine is not None:
            gpus = book.machine.gpus
            of_gang |= {gpu.model for p, gpu in enumerate(gpus) if spot.gpus >> p & 1}
    return [model for model in of_all if model in of_gang or not of_gang]


def _scratch(books: Books, beside: Sequence[Spot], model: str | None) -> _Scratch:
    rows = books.rows
    free = rows.free[: len(rows)].copy()
    if model is not None:
        of_kind = np.array([*(kind.of_model(model) for kind in books.kinds), 0])
        free &= of_kind[rows.kinds[: len(rows)]]  # NOT_USABLE takes the last entry
    near = {rows.row_of[spot.node] for spot in beside if spot.node in rows.row_of}
    return _Scratch(books, free, near=near)


def _all(
    books: Books, orders: Sequence[Order], beside: Sequence[Spot], model: str | None
) -> list[_Answer] | None:
    scratch = _scratch(books, beside, model)
    answers = []
    for order in orders:
        answer = _answer(scratch, scratch.pool(order))
        if answer is None:
            return None
        scratch.take(answer, order.needs)
        answers.append(answer)
    return answers


def _refusal(books: Books, orders: Sequence[Order], beside: Sequence[Spot]) -> Refusal:
    scratch = _scratch(books, beside, None)
    wanted, had = sum(len(order.members) for order in orders), 0
    for order in orders:
        pool = scratch.pool(order)
        answer = _answer(scratch, pool)
        if answer is None:
            room = pool.room_at(-np.inf)
            nearest = pool.first(np.arange(len(room)), (-room, pool.free_counts))
            had += min(int(room.sum()), len(order.members) - 1)
            if nearest is None:
                return Refusal(wanted, had, "", 0)
            name = books.rows.names[int(pool.rows[nearest])] or ""
            return Refusal(wanted, had, name, int(room[nearest]))
        scratch.take(answer, order.needs)
        had += len(order.members)
    return Refusal(wanted, min(had, wanted - 1), "", 0)


def _answer(scratch: _Scratch, pool: Pool) -> _Answer | None:
    """The best way to place the members of one order: which nodes, and how many on each."""
    level = pool.best_level()
    if level is None:
        return None
    room = pool.room_at(level)
    fewest = 1 + int(np.searchsorted(np.cumsum(np.sort(room)[::-1]), pool.wanted))
    near = _near(scratch, pool)
    among = np.arange(len(room))
    if fewest > 1:
        among = _of_one_clique(pool, room, fewest, near.cliques)
    chosen, loss = _fewest_nodes(pool, room, fewest, near, among)
    cliques = {int(pool.cliques[i]) for i, _ in chosen}
    in_order = sorted(chosen, key=lambda pair: (pool.cliques[pair[0]], pool.ranks[pair[0]]))
    sets = tuple((int(pool.rows[i]), pool.sets(i, count)) for i, count in in_order)
    return _Answer((level, -fewest, -len(cliques), -loss), sets)


def _fewest_nodes(
    pool: Pool, room: Ints, fewest: int, near: _Near, among: Ints
) -> tuple[list[tuple[int, int]], float]:
    """(candidate, members there) for *fewest* candidates of *among*, and what they lose in all.

    All but one take as many members as they can; the one for the rest is the best fit.
    """
    near_clique = np.isin(pool.cliques, near.cliques)
    losses = pool.losses(among, room[among])
    tied = (-room[among], ~near.nodes[among], ~near_clique[among], losses)
    order = pool.sorted(among, tied)[: fewest - 1]
    chosen = [(int(i), int(room[i])) for i in order]
    rest = pool.wanted - sum(count for _, count in chosen)
    near_clique |= np.isin(pool.cliques, _cliques(pool.cliques[order]))
    enough = np.setdiff1d(among[room[among] >= rest], order)
    counts = np.full(len(enough), rest)
    keys = (~near.nodes[enough], ~near_clique[enough], pool.losses(enough, counts))
    last = pool.first(enough, keys)
    assert last is not None, "fewest nodes are enough nodes"
    chosen.append((last, rest))
    loss = sum(float(pool.losses(np.array([i]), np.array([n]))[0]) for i, n in chosen)
    return chosen, loss


def _near(scratch: _Scratch, pool: Pool) -> _Near:
    """Also of nodes that have no room left the clique is near."""
    rows = np.array(sorted(scratch.near), dtype=np.int64)
    return _Near(np.isin(pool.rows, rows), _cliques(scratch.books.rows.cliques[rows]))


def _cliques(numbers: Ints) -> Ints:
    return np.unique(numbers[numbers != NO_CLIQUE])


def _of_one_clique(pool: Pool, room: Ints, fewest: int, near: Ints) -> Ints:
    """The candidates of one clique that can do it with no more nodes; all, where none can."""
    everywhere = np.arange(len(room))
    best: tuple[bool, int, int] | None = None
    among = everywhere
    for clique in _cliques(pool.cliques):
        inside = everywhere[pool.cliques == clique]
        if np.sort(room[inside])[::-1][:fewest].sum() >= pool.wanted:
            # Near the others, then the fullest clique, so that whole ones stay whole.
            worth = (clique not in near, int(room[inside].sum()), int(pool.ranks[inside].min()))
            if best is None or worth < best:
                best, among = worth, inside
    return among
