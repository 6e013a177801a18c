"""In how many leaves, spines … a gang is that fits into none of them, against brute force.

The judge tries every set of the nearest domains, on random networks of 2 to 4 levels: up to 10
leaves of 1 to 6 nodes, partly in use; members of a whole node or of a part of it. It compares the
level, the nodes, the domains and how tight the domain is that holds all. To try more:
python -m tests.extender.place.test_near_domains FIRST LAST
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any

import pytest

from linkwise.extender.place.request import NoRoom
from linkwise.extender.place.search import domain_search
from tests.extender.place.spanned import Case, Node, nodes_of, searched

LEVELS = ("leaf", "spine", "core", "pod")
_MOST_LEAVES = 10


@dataclass(frozen=True, order=True)
class Rated:
    """Less is better, in this order."""

    level: int  # the nearest that the nodes share
    nodes: int
    domains: tuple[int, ...]  # of each nearer level, the widest first
    room: int  # of the domain that they share


def case_of(number: int) -> Case:
    """Members that need a whole node or a part of it, on nodes of which some are in use."""
    random = Random(f"near-domains-{number}")
    levels = LEVELS[: random.randint(2, 4)]
    size = random.choice([4, 4, 2, 1])
    leaves: list[tuple[str, ...]] = [()]
    while len(leaves) < _MOST_LEAVES and len(leaves[0]) < len(levels):
        leaves = [(f"{d}", *above) for above in leaves for d in range(random.randint(1, 4))]
    leaves = [
        tuple("/".join(reversed(leaf[level:])) for level in range(len(levels)))
        for leaf in (("0",) * (len(levels) - len(leaf)) + leaf for leaf in leaves[:_MOST_LEAVES])
    ]
    busy = random.choice([0.0, 0.2, 0.5])
    nodes = [
        Node(f"n{n}-{k}", 0 if random.random() < busy else random.choice(frees), leaf)
        for frees in [[4] if size == 4 else random.choice([[4], [4, 4, 3, 2, 1]])]
        for n, leaf in enumerate(leaves)
        for k in range(random.randint(1, 6))
    ]
    random.shuffle(nodes)
    most = max(sum(node.free // size for node in nodes), 2)
    return Case(tuple(nodes), size, random.randint(2, most), levels=levels)


def rated(case: Case, nodes: Sequence[int]) -> Rated:
    def domains(level: str) -> set[str]:
        return {case.domain(node, level) for node in nodes}

    nearest = next((n for n, key in enumerate(case.levels) if len(domains(key)) == 1), None)
    level = len(case.levels) if nearest is None else nearest
    shared = [
        node
        for node in range(len(case.nodes))
        if nearest is None
        or {case.domain(node, case.levels[nearest])} == domains(case.levels[nearest])
    ]
    counts = tuple(len(domains(key)) for key in reversed(case.levels[:level]))
    return Rated(level, len(nodes), counts, sum(map(case.room, shared)))


def all_ways(case: Case) -> Iterator[list[int]]:
    """For every set of leaves, the fewest of its nodes that have room for all."""
    of_leaf: dict[str, list[int]] = {}
    for node in sorted(range(len(case.nodes)), key=case.room, reverse=True):
        of_leaf.setdefault(case.domain(node, "leaf"), []).append(node)
    for count in range(1, len(of_leaf) + 1):
        for leaves in combinations(of_leaf.values(), count):
            nodes = sorted((node for leaf in leaves for node in leaf), key=case.room, reverse=True)
            room = 0
            for taken, node in enumerate(nodes, 1):
                room += case.room(node)
                if room >= case.wanted:
                    yield nodes[:taken]
                    break


def compared(case: Case) -> tuple[Rated, Rated] | None:
    """(what the search finds, the best); None: there is no room, and the search says so."""
    ways = [rated(case, nodes) for nodes in all_ways(case) if len(nodes) > 1]
    spots = searched(case)
    if isinstance(spots, NoRoom):
        assert not ways
        return None
    nodes = sorted(set(nodes_of(case, spots)))
    return (rated(case, nodes), min(ways)) if len(nodes) > 1 else None


def off(found: Rated, best: Rated) -> int:
    """By how many domains the search misses the best, at the level where that is most."""
    assert (found.level, found.nodes) == (best.level, best.nodes)
    pairs = zip(found.domains, best.domains, strict=True)
    return max((abs(one - other) for one, other in pairs), default=0)


def both(numbers: range) -> list[tuple[Rated, Rated]]:
    found = (compared(case_of(number)) for number in numbers)
    return [each for each in found if each is not None]


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_a_gang_is_in_the_fewest_domains_and_then_in_the_tightest(first: int) -> None:
    found = both(range(first, first + 25))
    assert any(sum(best.domains) > len(best.domains) for _, best in found)
    assert all(one == best for one, best in found)


def test_brute_force_notices_a_search_that_takes_the_tightest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best_first = domain_search._Place._best_first

    def tightest(
        place: domain_search._Place, *given: Any
    ) -> Iterator[tuple[tuple[tuple[int, ...], int, int], int]]:
        orders = [(((), *order[1:]), domain) for order, domain in best_first(place, *given)]
        yield from sorted(orders)

    monkeypatch.setattr(domain_search._Place, "_best_first", tightest)
    monkeypatch.setattr(domain_search, "_MOST_DOMAINS", 1)
    assert any(off(*each) for each in both(range(25)))


if __name__ == "__main__":
    ways = Counter(
        str(off(*each)) if each[0] != each[1] else "none"
        for each in both(range(int(sys.argv[1]), int(sys.argv[2])))
    )
    print("gangs by how many domains they have too many:", dict(ways))
