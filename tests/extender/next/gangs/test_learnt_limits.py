"""How many members a node takes is learnt from a kube-scheduler that says only yes or no, and that
counts the members that are nominated for a node as there."""

from collections import Counter
from collections.abc import Callable

import pytest

from linkwise.extender.place.nodes.scheduler_feedback import GangRefusals, Takes
from linkwise.extender.state.records import GangKey
from linkwise.extender.state.timers import Agenda
from tests.extender.cached import cached
from tests.extender.cluster import Cluster

GANG_GPUS = 2
MOST_TRIES = 12  # at plans; many gangs wait for 32 s by then

LetsIn = Callable[[str, int], bool]  # node, how many other members are there


def at_most(most: int) -> LetsIn:
    return lambda _node, others: others < most


def tries_until_it_goes(at: Cluster, size: int, takes: LetsIn, gpus: int = GANG_GPUS) -> int:
    """kube-scheduler tries the members one by one, in the order of their names."""
    at.add_gang("g", size, gpus)
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


def let_through(at: Cluster, name: str, members: list[str], takes: LetsIn) -> bool:
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
    """Found: five gangs waited forever beside six idle nodes that take one member each."""
    at = cluster(nodes)
    tries_until_it_goes(at, size, at_most(most))
    on = nominated(at, [f"g-{rank}" for rank in range(size)])
    assert sum(on.values()) == size
    assert max(on.values()) <= most


@pytest.mark.parametrize("gpus", [1, 2])
def test_what_two_nodes_say_is_believed_of_all(gpus: int) -> None:
    """Each refusal halves the guess: of eight on a node, three tell that it takes one."""
    at = cluster(32)
    assert tries_until_it_goes(at, 32, at_most(1), gpus) <= 5


def test_what_was_learnt_first_holds_for_as_long_as_what_was_learnt_last() -> None:
    at = cluster(2)
    at.add_gang("g", 2, 8)
    at.settle()
    known, key = GangRefusals(cached(at), Agenda()), GangKey("ml", "g")
    known.takes_no_more(key, "n0", Takes(1, 1), 0.0)
    known.takes_no_more(key, "n1", Takes(2, 2), 1.0)
    known.lapse(3.0)  # the first refusal alone would have counted for two seconds
    assert known.takes(key) == {"n0": 1, "n1": 2}
    known.lapse(20.0)
    assert known.takes(key) == {}


def test_a_refusal_of_the_gang_holds_longer_each_time() -> None:
    at = cluster(1)
    at.add_gang("g", 2, 4)
    at.settle()
    known, key, now, held = GangRefusals(cached(at), Agenda()), GangKey("ml", "g"), 0.0, []
    for _ in range(8):
        known.takes_no_more(key, "n0", Takes(1, 1), now)
        began = now
        while known.takes(key):
            now += 1.0
            known.lapse(now)
        held.append(now - began)
    assert held == [2, 10, 20, 40, 80, 160, 300, 300]


def test_one_node_that_takes_few_does_not_spread_the_gang() -> None:
    at = cluster(3)
    tries_until_it_goes(at, 4, lambda node, others: others < (1 if node == "n0" else 4))
    on = nominated(at, [f"g-{rank}" for rank in range(4)])
    assert sorted(on.values()) in ([4], [1, 3])


def test_a_node_that_takes_none_is_left_out() -> None:
    at = cluster(2)
    assert tries_until_it_goes(at, 4, lambda node, _others: node != "n0") <= 4
    assert nominated(at, [f"g-{rank}" for rank in range(4)]) == {"n1": 4}
