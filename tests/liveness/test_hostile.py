"""The judge beside a hostile tenant: it sees when others suffer for what that one writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from linkwise.extender.calls.filter import Filter
from linkwise.extender.core import Core
from linkwise.extender.state.actions import Beneficiary, Evict, PodRef
from linkwise.extender.state.extender_calls import FilterAnswer, FilterCall
from linkwise.extender.state.records import PodRecord
from linkwise.kube.objects import Pod
from tests.extender.cluster import change
from tests.liveness.day import Day
from tests.liveness.fates import Fate, With
from tests.liveness.judge import DELAYED_SECONDS, Judge, delayed
from tests.odd_pods import NAMESPACE, is_honest


@contextmanager
def a_defect(namespace: str) -> Iterator[None]:
    """`filter` fails for the pods of one namespace."""
    real = Filter.answer

    def answer(self: Filter, record: PodRecord, call: FilterCall, now: float) -> FilterAnswer:
        if record.ref.namespace == namespace and not record.invalid:
            raise ZeroDivisionError
        return real(self, record, call, now)

    with patch.object(Filter, "answer", answer):
        yield


def two_tenants() -> Day:
    day = Day()
    judge = Judge(day)
    day.add_node("n1", "hgx-h100")
    day.make("bad", 1, namespace=NAMESPACE, said={})
    day.make("good", 1, namespace="red", said={})
    day.live(day.now + 5, judge.before_jump)
    return day


@pytest.mark.parametrize(("namespace", "whose"), [(NAMESPACE, "hostile/bad"), ("red", "red/good")])
def test_a_defect_that_is_isolated_is_seen_with_whose_it_is(namespace: str, whose: str) -> None:
    with a_defect(namespace):
        failures = two_tenants().failures
    assert any(f"the core isolates {whose}: ZeroDivisionError" in text for text in failures)


def test_a_defect_that_is_not_isolated_is_seen() -> None:
    without_wall = patch.object(Core, "_walled", lambda _, work, __: work())
    with a_defect(NAMESPACE), without_wall, pytest.raises(ZeroDivisionError):
        two_tenants()


@pytest.mark.parametrize(
    ("claimant", "consents", "is_seen"),
    [(1, "true", False), (0, "true", True), (1, "false", True)],
)
def test_an_honest_pod_is_evicted_only_for_what_is_more_important(
    claimant: int, consents: str, is_seen: bool
) -> None:
    day = Day()
    Judge(day)
    victim = day.make("v", 1, namespace="red", said={"preemptible": consents})
    for rank, priority in enumerate((claimant, 2)):  # a gang is as its least important member
        said = {"gang": "g", "gang-size": "2"}
        day.make(f"g-{rank}", 1, namespace=NAMESPACE, said=said, priority=priority)
    ref = PodRef("red", "v", victim.metadata.uid)
    to = Beneficiary(f"gang {NAMESPACE}/g", claimant, PodRef(NAMESPACE, "g-0", "g-0"))
    day.on_evict(victim, Evict(ref, "to make room", for_whom=to))
    assert any("v is evicted for gang hostile/g" in text for text in day.failures) is is_seen


@pytest.mark.parametrize(("priority", "is_seen"), [(1, False), (0, True)])
def test_kube_scheduler_evicts_an_honest_pod_only_for_what_is_more_important(
    priority: int, is_seen: bool
) -> None:
    day = Day()
    Judge(day)
    victim = day.make("v", 1, namespace="red", said={})
    day.on_evict(victim, day.make("c", 1, namespace=NAMESPACE, said={}, priority=priority))
    assert bool(day.failures) is is_seen


def test_jobs_wait_no_longer_than_beside_plain_pods_within_a_bound() -> None:
    assert not delayed(beside_hostile=100.0, beside_plain=500.0)
    assert not delayed(beside_hostile=DELAYED_SECONDS, beside_plain=0.0)
    assert delayed(beside_hostile=2 * DELAYED_SECONDS, beside_plain=100.0)


def pods_of(seed: int, *, honest: bool) -> list[Pod]:
    """What is created in the first half hour of a day, with any scheduler."""
    fate = Fate(seed, 0.1, With(hostile=True))
    made: list[Pod] = []
    day = fate.day
    make = day.put_pod

    def put(pod: Pod) -> Pod:
        if pod.metadata.uid not in day.pods and is_honest(pod) is honest:
            made.append(change(pod, metadata=change(pod.metadata, uid="")))
        return make(pod)

    with patch.object(day, "put_pod", put):
        fate.begin()
        day.live(day.now + 1800.0, lambda _: None)
    return made


def test_a_seed_always_makes_the_same_hostile_pods() -> None:
    first = pods_of(4, honest=False)
    assert first == pods_of(4, honest=False)
    assert first != pods_of(6, honest=False)
