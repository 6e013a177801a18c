"""The judge beside hostile nodes: it sees what others suffer, and what is left over."""

from random import Random
from unittest.mock import patch

from linkwise.extender.state.cache.cache import Cache
from linkwise.topology.annotations.plan import write_gpus
from tests.liveness.day import Day
from tests.liveness.fates import Fate, With
from tests.liveness.hostile_nodes import HostileNodeLaws, another_machine


def two_nodes() -> Day:
    day = Day()
    for name in ("good", "odd"):
        day.add_node(name, "hgx-h100")
    day.taken["odd"] = day.machine("odd")
    return day


def failures_with(node: str) -> list[str]:
    """Two pods on the node have the same GPU, by their annotations."""
    day = two_nodes()
    laws = HostileNodeLaws(day)
    gpus = write_gpus({"main": day.uuids(node, 0)})
    for name in ("a", "b"):
        day.add_pod(name, 1, node=node, said={"gpus": gpus})
    laws.look()
    day.now += 100.0
    laws.look()
    return day.failures


def test_a_gpu_of_an_honest_node_that_is_given_twice_is_seen() -> None:
    assert any("is of ml/a and ml/b" in text for text in failures_with("good"))
    assert failures_with("odd") == []


def test_what_stays_once_no_pods_come_is_seen() -> None:
    day = two_nodes()
    laws = HostileNodeLaws(day)
    day.add_pod("a", 1, node="good")
    laws.nothing_stays(day.new_core())
    assert any(text.startswith("good has") for text in day.failures)
    day.failures.clear()
    laws.take_pods_away()
    laws.nothing_stays(day.new_core())
    assert day.failures == []


def kinds_of_machines(times: int) -> list[str]:
    day = two_nodes()
    laws = HostileNodeLaws(day)
    for seed in range(times):
        # The law is of how many kinds there are; a kind of 16 GPUs costs 50 times as much as of 8.
        another_machine(Random(seed), day, "odd", sizes=(1, 4, 8))
        day.live(day.now + 60.0, lambda _: None)
        laws.look_at_kinds()
    return day.failures


def test_kinds_of_machines_that_are_never_dropped_are_seen() -> None:
    assert kinds_of_machines(100) == []
    with patch.object(Cache, "_count_kind", lambda *_: None):
        assert any("kinds of machines" in text for text in kinds_of_machines(10))


def acts_of(seed: int) -> list[object]:
    """What the hostile nodes of a day show in its first half hour."""
    fate = Fate(seed, 0.1, With(hostile_nodes=True))
    with patch.object(fate.day, "put_node", wraps=fate.day.put_node) as put_node:
        fate.begin()
        fate.day.live(fate.day.now + 1800.0, lambda _: None)
    return [call.args for call in put_node.call_args_list]


def test_a_seed_always_makes_the_same_day() -> None:
    assert acts_of(4) == acts_of(4)
    assert acts_of(4) != acts_of(6)
