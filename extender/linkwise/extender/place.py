"""Where a whole gang goes: a node and a GPU set for every member, or nothing for any.

What counts, in this order: the spans it requires, all members on one GPU model, the first span it
prefers that can be, the bandwidth of the slowest member, fewest nodes, the nearest level at which
one domain holds them all, least taken from the jobs to come, the nodes' names. Members in the order
of their ranks fill node after node and domain after domain, so neighbours in rank are neighbours.
Many nodes are alike, so sets are sought once per kind of machine and mask of free GPUs, and nodes
are counted by arrays: near-linear in the number of nodes. Members that differ in size are placed
largest first, without going back on an earlier size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from linkwise.extender.climb import NOBODY, Climb, Company, Order, Way
from linkwise.extender.domains import NO_DOMAIN
from linkwise.extender.ground import Ground
from linkwise.extender.kinds import Wish
from linkwise.extender.records import PodRecord, Resources, Template
from linkwise.extender.rows import NOT_USABLE, Bools, Ints, popcount
from linkwise.extender.spans import ANYWHERE, SEPARATOR, Spans


@dataclass(frozen=True, slots=True)
class Spot:
    node: str
    gpus: int  # bitmask


@dataclass(frozen=True, slots=True)
class Refusal:
    """Of *wanted* members no more than *had* could be placed."""

    wanted: int
    had: int
    nearest: str  # the node with room for most members; empty where none has any. Or the domain
    nearest_had: int
    level: str = ""  # the required span at which it failed: `nearest` is a domain of this level.
    # Several, where only all of them together failed, and `nearest` then has as many parts


def orders_of(members: Sequence[PodRecord], nodes: Callable[[Template], Bools]) -> list[Order]:
    """Group *members*, given in the order of their ranks, by what they want; largest first."""
    groups: dict[tuple[Wish, Resources, Template], list[int]] = {}
    for position, record in enumerate(members):
        assert record.template is not None, "every pod that takes GPUs has one"
        wish = Wish(record.demand, record.ask.requirement)
        groups.setdefault((wish, record.needs, record.template), []).append(position)
    orders = [
        Order(
            wish,
            needs,
            template,
            tuple(positions),
            _unit([members[position].ask.subgroup for position in positions]),
            nodes(template),
        )
        for (wish, needs, template), positions in groups.items()
    ]
    return sorted(orders, key=lambda order: (-order.wish.size, order.members))


def _unit(subgroups: Sequence[str]) -> int:
    """The size of the subgroups, where all are of one size."""
    sizes = {len(list(same)) for name, same in groupby(subgroups) if name}
    return sizes.pop() if len(sizes) == 1 and all(subgroups) else 1


def place(
    ground: Ground,
    orders: Sequence[Order],
    company: Company = NOBODY,
    spans: Spans = ANYWHERE,
) -> list[Spot] | Refusal:
    """One spot per member, in the members' order."""
    best = _best_way(ground, orders, company, spans)
    if best is None:
        return _refusal(ground, orders, company, spans)
    spots: dict[int, Spot] = {}
    for order, answer in zip(orders, best.answers, strict=True):
        dealt = [(row, gpus) for row, sets in answer.sets for gpus in sets]
        for position, (row, gpus) in zip(order.members, dealt, strict=True):
            spots[position] = Spot(ground.rows.names[row] or "", gpus)
    return [spots[position] for position in sorted(spots)]


def _best_way(
    ground: Ground, orders: Sequence[Order], company: Company, spans: Spans
) -> Way | None:
    models = _models(ground, company)
    found = [Climb(ground, orders, company, spans, model).way() for model in models]
    ways = [way for way in found if way is not None]
    if not ways and models != [None]:
        return Climb(ground, orders, company, spans, None).way()
    # max() keeps the first of equals, and the models come by name.
    return max(ways, key=lambda way: way.worth, default=None)


def _models(ground: Ground, company: Company) -> list[str | None]:
    """The GPU models to try one by one; [None] where there is one only."""
    of_all = sorted({model for kind in ground.kinds for model in kind.models})
    if len(of_all) < 2:
        return [None]
    return [model for model in of_all if model in company.models or not company.models]


def _refusal(ground: Ground, orders: Sequence[Order], company: Company, spans: Spans) -> Refusal:
    """At which of the required spans it fails; without one, how much room there is anywhere."""
    wanted = sum(len(order.members) for order in orders)
    climb = Climb(ground, orders, company, spans, None)
    if spans.require and _best_way(ground, orders, company, ANYWHERE) is not None:
        alone = (Spans((key,)) for key in spans.require)
        fails = (each for each in alone if _best_way(ground, orders, company, each) is None)
        return _refusal_within(ground, climb, wanted, next(fails, spans).require)
    return _refusal_anywhere(ground, climb, wanted)


def _refusal_within(ground: Ground, climb: Climb, wanted: int, keys: Sequence[str]) -> Refusal:
    """Which domain comes nearest. One that is too small even when idle is worth no waiting for,
    however much of it is free; of those with as much room the largest is."""
    level = SEPARATOR.join(keys)
    domains = climb.required(keys)
    able = np.logical_or.reduce([order.nodes for order in climb.orders])
    inside = np.flatnonzero(able & (domains != NO_DOMAIN) & (ground.rows.kinds != NOT_USABLE))
    if not len(inside):
        return Refusal(wanted, 0, "", 0, level)
    of_all, first, of = np.unique(domains[inside], return_index=True, return_inverse=True)
    room = _room_in(climb, domains, of_all)
    gpus = np.bincount(of, popcount(_all_gpus(ground, inside)))
    enough = gpus >= sum(order.wish.size * len(order.members) for order in climb.orders)
    names = np.full(len(of_all), len(ground.rows))
    np.minimum.at(names, of, ground.rows.name_ranks()[inside])
    nearest = int(np.lexsort((names, -gpus, -room, ~enough))[0])
    node = int(inside[first[nearest]])
    parts = (ground.level(key) for key in keys)
    domain = SEPARATOR.join(part.values[int(part.numbers[node])] or "" for part in parts)
    most, here = int(room.max()), int(room[nearest])
    return Refusal(wanted, min(most, wanted - 1), domain, min(here, wanted - 1), level)


def _all_gpus(ground: Ground, rows: Ints) -> Ints:
    return np.array([kind.all_gpus for kind in ground.kinds])[ground.rows.kinds[rows]]


def _room_in(climb: Climb, domains: Ints, of_all: Ints) -> Ints:
    """[of_all] for how many members each domain has room, each order seen alone."""
    room = np.zeros(len(of_all), dtype=np.int64)
    for order in climb.orders:
        pool = climb.pool(order, domains != NO_DOMAIN)
        places = np.searchsorted(of_all, domains[pool.rows])
        count = np.bincount(places, pool.room_at(-np.inf), minlength=len(of_all))
        room += np.minimum(count, len(order.members)).astype(np.int64)
    return room


def _refusal_anywhere(ground: Ground, climb: Climb, wanted: int) -> Refusal:
    had = 0
    everywhere = np.ones(len(ground.rows), dtype=np.bool_)
    scratch = climb.scratch()
    for order in climb.orders:
        pool = scratch.pool(order, everywhere)
        answer = climb.answer(scratch, pool)
        if answer is None:
            room = pool.room_at(-np.inf)
            nearest = pool.first(np.arange(len(room)), (-room, pool.free_counts))
            had += min(int(room.sum()), len(order.members) - 1)
            if nearest is None:
                return Refusal(wanted, had, "", 0)
            name = ground.rows.names[int(pool.rows[nearest])] or ""
            return Refusal(wanted, had, name, int(room[nearest]))
        scratch.take(answer, order.needs)
        had += len(order.members)
    return Refusal(wanted, min(had, wanted - 1), "", 0)
