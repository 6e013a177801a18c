"""How many members a node takes is learnt from a kube-scheduler that says only yes or no, and that
counts the members that are nominated for a node as there."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.extender.cluster import Cluster

GANG_GPUS = 2
MOST_TRIES = 12  # at plans; many gangs wait for 32 s by then

Takes = Callable[[str, int], bool]  # node, how many other members are there


def at_most(most: int) -> Takes:
    return lambda _node, others: others < most


def tries_until_it_goes(at: Cluster, size: int, takes: Takes) -> int:
    """kube-scheduler tries the members one by one, in the order of their names."""
    at.add_gang("g", size, GANG_GPUS)
    members = [f"g-{rank}" for rank in range(size)]
    for tries in range(1, MOST_TRIES + 1):
        for _ in range(64):
            at.settle()
            if all(at.pod(name).status.nominated_node_name for name in members):
                break
            at.pass_time(1.0)
        through = [let_through(at, name, members, takes) for name in members]
        if all(through):
            return tries
    raise AssertionError(f"not after {MOST_TRIES} plans: {nominated(at, members)}")


def let_through(at: Cluster, name: str, members: list[str], takes: Takes) -> bool:
    others = nominated(at, [member for member in members if member != name])
    return bool(
        at.filter(name, [node for node in at.nodes if takes(node, others[node])]).node_names
    )


def nominated(at: Cluster, members: list[str]) -> Counter[str]:
    return Counter(at.pod(name).status.nominated_node_name for name in members)


def cluster(nodes: int) -> Cluster:
    at = Cluster()
    for number in range(nodes):
        at.add_node(f"n{number}", "hgx-h100")
    return at


@pytest.mark.parametrize(
    ("nodes", "size", "most"), [(4, 4, 1), (6, 4, 1), (16, 16, 1), (3, 6, 2), (3, 8, 3), (2, 6, 3)]
)
def test_a_gang_of_which_no_node_takes_all_is_spread(nodes: int, size: int, most: int) -> None:
    """Found: five gangs waited for ever beside six idle nodes that take one member each."""
    at = cluster(nodes)
    tries_until_it_goes(at, size, at_most(most))
    on = nominated(at, [f"g-{rank}" for rank in range(size)])
    assert sum(on.values()) == size
    assert max(on.values()) <= most


def test_what_two_nodes_say_is_believed_of_all() -> None:
    at = cluster(16)
    assert tries_until_it_goes(at, 16, at_most(1)) <= 6


def test_one_node_that_takes_few_does_not_spread_the_gang() -> None:
    at = cluster(3)
    tries_until_it_goes(at, 4, lambda node, others: others < (1 if node == "n0" else 4))
    on = nominated(at, [f"g-{rank}" for rank in range(4)])
    assert sorted(on.values()) in ([4], [1, 3])


def test_a_node_that_takes_none_is_left_out() -> None:
    at = cluster(2)
    assert tries_until_it_goes(at, 4, lambda node, _others: node != "n0") <= 4
    assert nominated(at, [f"g-{rank}" for rank in range(4)]) == {"n1": 4}
