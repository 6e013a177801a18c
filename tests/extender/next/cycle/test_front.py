"""Which gangs get a reservation in one pass, by namespace and by the nodes that they could use."""

import numpy as np
import pytest

from linkwise.extender.next.cycle.reserve import Front
from linkwise.extender.state.cache.node_table import Bools
from linkwise.extender.state.records import GangKey

BOTH, LEFT, RIGHT = (np.array(nodes) for nodes in ((True, True), (True, False), (False, True)))


def take(front: Front, gang: str, alike: str, pool: Bools) -> bool:
    namespace, name = gang.split("/")
    return front.take(GangKey(namespace, name), alike, pool)


def test_of_a_namespace_the_first_takes_its_nodes_and_those_like_it_get_none() -> None:
    front = Front()
    assert take(front, "red/first", "wide", BOTH)
    assert not take(front, "red/second", "wide", BOTH)
    assert not take(front, "red/third", "wide", BOTH)
    assert not take(front, "red/small", "left", LEFT)


def test_a_refusal_is_that_of_one_namespace() -> None:
    front = Front()
    assert take(front, "red/first", "wide", BOTH)
    assert take(front, "blue/first", "left", LEFT)
    assert not take(front, "red/second", "left", LEFT)
    assert not take(front, "red/third", "right", RIGHT)
    assert take(front, "blue/second", "right", RIGHT)
    assert not take(front, "blue/third", "right", RIGHT)


def test_gangs_of_a_namespace_on_other_nodes_get_theirs() -> None:
    front = Front()
    assert take(front, "red/first", "left", LEFT)
    assert take(front, "red/second", "right", RIGHT)


@pytest.mark.parametrize("gang", ["red/second", "blue/second"])
def test_with_several_each_gets_one(gang: str) -> None:
    front = Front(several=True)
    assert take(front, "red/first", "wide", BOTH)
    assert take(front, gang, "wide", BOTH)
