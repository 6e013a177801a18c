"""Which domains have room for some members, and on how many nodes, against all sets of nodes."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from linkwise.extender.place.search.fewest_domains import fewest_nodes
from linkwise.extender.state.cache.node_table import NO_DOMAIN

NODE = st.tuples(st.sampled_from((NO_DOMAIN, 0, 1, 2)), st.integers(0, 5), st.integers(1, 5))
Node = tuple[int, int, int]  # domain, most members, fewest


def needed(nodes: list[Node], wanted: int) -> dict[int, int]:
    """By domain, the size of the smallest set of nodes that takes *wanted* members."""
    found: dict[int, int] = {}
    for domain in {node[0] for node in nodes} - {NO_DOMAIN}:
        usable = [node for node in nodes if node[0] == domain and node[1]]
        for count in range(len(usable), 0, -1):
            for chosen in combinations(usable, count):
                if sum(node[2] for node in chosen) <= wanted <= sum(node[1] for node in chosen):
                    found[domain] = count
    return found


def answer(nodes: list[Node], wanted: int) -> dict[int, int]:
    domain, most, fewest = np.array(nodes, dtype=np.int64).reshape(-1, 3).T
    domains, counts = fewest_nodes(domain, most, fewest, wanted)
    return dict(zip(domains.tolist(), counts.tolist(), strict=True))


@given(nodes=st.lists(NODE, max_size=8), wanted=st.integers(1, 8))
def test_nodes_that_may_take_one_member_are_counted_exactly(nodes: list[Node], wanted: int) -> None:
    nodes = [(domain, most, 1) for domain, most, _ in nodes]
    assert answer(nodes, wanted) == needed(nodes, wanted)


@given(nodes=st.lists(NODE, max_size=8), wanted=st.integers(1, 8))
def test_no_domain_is_said_to_need_fewer_nodes_than_it_does(nodes: list[Node], wanted: int) -> None:
    nodes = [(domain, most, min(fewest, most)) for domain, most, fewest in nodes]
    truth = needed(nodes, wanted)
    assert all(truth.get(domain, 99) <= count for domain, count in answer(nodes, wanted).items())


def test_a_node_that_would_take_too_many_does_not_hide_the_next() -> None:
    other = (1, 1, 1)  # of another domain, behind the first in the arrays
    assert answer([(0, 4, 4), (0, 4, 4), (0, 2, 1), other], 6) == {0: 2}
    assert answer([(0, 3, 3), (0, 2, 1), other], 2) == {0: 1}
    assert answer([(0, 4, 4), (0, 4, 4), (0, 1, 1), other], 6) == {}
