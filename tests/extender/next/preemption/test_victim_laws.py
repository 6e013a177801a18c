"""Victims, against a judge that tries every set; and a pod that passes delays no reservation."""

from collections.abc import Iterator
from itertools import chain, combinations

import hypothesis.strategies as st
from hypothesis import HealthCheck, assume, given, settings

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.extender.state.records import GangKey
from tests.extender.cluster import Cluster

NODES = ("n1", "n2", "n3")
# name of a gang, or a pod of its own; GPUs; priority; consents; where its pods are
Runner = tuple[int, int, bool, tuple[str, ...]]
RUNNERS = st.lists(
    st.tuples(
        st.sampled_from([2, 4, 8]),
        st.integers(0, 2),
        st.sampled_from([True, True, True, False]),
        st.lists(st.sampled_from(NODES), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=6,
)


def world(runners: list[Runner]) -> tuple[Cluster, dict[str, Runner]]:
    """Those of the runners that there was room for, each made a second after the one before."""
    at = Cluster(CoreSettings(preempt=Preempt.CONSENTING))
    for node in NODES:
        at.add_node(node)
    there: dict[str, Runner] = {}
    free = dict.fromkeys(NODES, 8)
    for number, runner in enumerate(runners):
        gpus, priority, consents, nodes = runner
        if any(nodes.count(node) * gpus > free[node] for node in nodes):
            continue
        name = f"r{number}"
        there[name] = runner
        for rank, node in enumerate(nodes):
            free[node] -= gpus
            said = {"preemptible": "true"} if consents else {}
            if len(nodes) > 1:
                said |= {"gang": name, "gang_size": str(len(nodes)), "rank": str(rank)}
            # Bound without the extender, so that it is where the test wants it.
            at.add_pod(f"{name}-{rank}", gpus, priority=priority, node=node, said=said)
        at.now += 1
    at.settle()
    return at, there


def fits(there: dict[str, Runner], gone: tuple[str, ...], size: int, gpus: int) -> bool:
    free = dict.fromkeys(NODES, 8)
    for name, (each, _, _, nodes) in there.items():
        for node in nodes if name not in gone else ():
            free[node] -= each
    return sum(left // gpus for left in free.values()) >= size


def cost(there: dict[str, Runner], gone: tuple[str, ...]) -> tuple[object, ...]:
    ages = [int(name[1:]) for name in gone]  # more is younger
    priorities = [there[name][1] for name in gone]
    return len(gone), sorted(priorities, reverse=True), sorted(-age for age in ages)[::-1]


def sets(names: list[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, count) for count in range(len(names) + 1))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    runners=RUNNERS,
    size=st.integers(1, 3),
    gpus=st.sampled_from([2, 4, 8]),
    priority=st.integers(0, 3),
)
def test_the_victims_are_the_cheapest_set_that_makes_room(
    runners: list[Runner], size: int, gpus: int, priority: int
) -> None:
    at, there = world(runners)
    assume(not fits(there, (), size, gpus))
    for rank in range(size):
        said = {"gang": "urgent", "gang_size": str(size), "rank": str(rank)}
        at.add_pod(f"urgent-{rank}", gpus, priority=priority, said=said)
    at.settle()

    may = [name for name, (_, p, consents, _) in there.items() if consents and p < priority]
    enough = [gone for gone in sets(may) if fits(there, gone, size, gpus)]
    best = min(enough, key=lambda gone: cost(there, gone), default=())
    assert sorted({name.split("-")[0] for name in at.evicted}) == sorted(best)
    # Whole, or not at all.
    assert len(at.evicted) == sum(len(there[name][3]) for name in best)
    if best:
        bury(at)
        at.settle()
        assert at.phase("urgent") == "planned"
    assert at.sound()


def bury(at: Cluster) -> None:
    for pod in list(at.pods.values()):
        if pod.metadata.deletion_timestamp is not None:
            at.delete(pod.metadata.name)


def end_until(at: Cluster, ends: dict[str, float], until: float) -> None:
    """Every pod ends when it said."""
    for name in sorted(ends, key=lambda each: ends[each]):
        if ends[name] <= until:
            at.now = max(at.now, ends.pop(name))
            at.delete(name)
            at.settle()


# GPUs, and minutes that each says and keeps
PASSERS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 90)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    first=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 60)), min_size=1, max_size=6),
    passers=PASSERS,
    size=st.integers(1, 3),
)
def test_whoever_passes_delays_the_first_in_the_line_by_nothing(
    first: list[tuple[int, int]], passers: list[tuple[int, int]], size: int
) -> None:
    at = Cluster(CoreSettings())
    for node in NODES:
        at.add_node(node)
    ends: dict[str, float] = {}

    def come(name: str, gpus: int, minutes: int) -> None:
        at.add_pod(name, gpus, expected_duration=f"{minutes}m")
        if at.schedule(name):
            ends[name] = at.now + minutes * 60
        at.settle()

    for number, (gpus, minutes) in enumerate(first):
        come(f"first-{number}", gpus, minutes)
    at.now += 1
    at.add_gang("g", size, 8)
    at.settle()
    assume(at.phase("g") == "forming")
    reservation = at.core.reservations.of(GangKey("ml", "g"))
    assert reservation is not None
    promised = reservation.start
    assert promised is not None
    for number, (gpus, minutes) in enumerate(passers):
        end_until(at, ends, at.now + 1)
        if at.phase("g") != "forming":
            break
        at.now += 1
        come(f"later-{number}", gpus, minutes)
        reservation = at.core.reservations.of(GangKey("ml", "g"))
        assert reservation is not None
        assert reservation.start is not None
        assert reservation.start <= promised
    end_until(at, ends, promised)
    assert at.phase("g") != "forming"
    assert at.now <= promised
    assert at.sound()
