"""While victims are sought, others use the core: no pod is evicted for what was true before."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from linkwise.extender.next.core_settings import Preempt
from tests.extender.cluster import Cluster
from tests.extender.next.preemption.victims import add_gang, cluster, run

T = TypeVar("T")
MOMENTS = range(9)  # of one search


class Meanwhile:
    """Lets something happen the n-th time that others are let in."""

    def __init__(self, at: Cluster, moment: int, happens: Callable[[], object]) -> None:
        self.times, self._moment, self._happens = 0, moment, happens
        at.core.set_unlocker(self)

    @property
    def has_happened(self) -> bool:
        return self.times > self._moment

    def __call__(self, work: Callable[[], T], /) -> T:
        self.times += 1
        if self.times == self._moment + 1:
            self._happens()
        return work()


def busy(nodes: int = 3) -> Cluster:
    at = cluster(nodes, Preempt.CONSENTING)
    for number in range(1, nodes + 1):
        run(at, f"low-{number}", 8, f"n{number}")
    return at


def end(at: Cluster) -> None:
    """The victims go, and the gang gets their GPUs."""
    for _ in range(4):
        at.settle()
        for name in dict.fromkeys(at.evicted):
            if name in {pod.metadata.name for pod in at.pods.values()}:
                at.delete(name)
        at.now += 11
    assert at.core.take_defects() == []
    assert at.sound()


def test_others_are_let_in_while_victims_are_sought() -> None:
    at = busy()
    meanwhile = Meanwhile(at, 999, lambda: None)
    add_gang(at, "high", 2, priority=5)
    assert sorted(at.evicted) == ["low-2", "low-3"]
    assert meanwhile.times >= 4


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_victim_that_ends_meanwhile_is_not_evicted_and_its_place_is_used(moment: int) -> None:
    at = busy()
    Meanwhile(at, moment, lambda: at.delete("low-3"))
    add_gang(at, "high", 2, priority=5)
    end(at)
    assert all(at.plan(f"high-{rank}") is not None for rank in range(2))
    assert len(set(at.evicted) - {"low-3"}) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_pod_that_consents_no_more_is_not_evicted(moment: int) -> None:
    at = busy()

    Meanwhile(at, moment, lambda: at.annotate("low-3", preemptible="false"))
    add_gang(at, "high", 2, priority=5)
    end(at)
    assert all(at.plan(f"high-{rank}") is not None for rank in range(2))
    assert set(at.evicted) == {"low-1", "low-2"}


@pytest.mark.parametrize("moment", MOMENTS)
def test_where_a_node_goes_meanwhile_the_victims_are_on_others(moment: int) -> None:
    at = busy()
    Meanwhile(at, moment, lambda: at.remove_node("n3"))
    add_gang(at, "high", 2, priority=5)
    end(at)
    plans = [at.plan(f"high-{rank}") for rank in range(2)]
    assert {plan.node for plan in plans if plan is not None} == {"n1", "n2"}


@pytest.mark.parametrize("moment", MOMENTS)
def test_for_a_gang_that_goes_meanwhile_nobody_is_evicted(moment: int) -> None:
    at = busy()

    def go() -> None:
        for rank in range(2):
            at.delete(f"high-{rank}")

    meanwhile = Meanwhile(at, moment, go)
    add_gang(at, "high", 2, priority=5)
    assert meanwhile.has_happened
    end(at)
    assert at.evicted == []


def test_a_pod_that_consents_while_victims_are_sought_in_vain_is_looked_at_again() -> None:
    """The search that failed did not see it."""
    at = busy(2)
    at.annotate("low-1", preemptible="false")
    late = Meanwhile(at, 0, lambda: None)
    add_gang(at, "high", 2, priority=5)
    assert at.evicted == []
    moments = late.times
    for moment in range(moments):
        at = busy(2)
        at.annotate("low-1", preemptible="false")
        Meanwhile(at, moment, partial(at.annotate, "low-1", preemptible="true"))
        add_gang(at, "high", 2, priority=5)
        end(at)
        assert all(at.plan(f"high-{rank}") is not None for rank in range(2)), moment
