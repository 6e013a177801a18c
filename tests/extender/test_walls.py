"""A defect that one pod or gang meets costs that pod or gang alone."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from linkwise.extender.next.cycle.changes import Changes
from linkwise.extender.next.quarantine import LEFT_OUT
from linkwise.extender.place.room import PodMix, Room
from linkwise.extender.state.actions import Action
from linkwise.extender.state.extender_calls import Outcome
from linkwise.extender.state.records import GangKey
from linkwise.kube.objects import Condition, Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.faults import DefectError, broken, is_of, sites

EVIL = "evil"
PARTS = 4
LEAST_SITES = 250


@dataclass
class Walled(Cluster):
    """What raises while it is about the tenant's pod is noted, as the loop does."""

    defects: list[Exception] = field(default_factory=list)
    # Pods with a node that were not in the cache. They look as if they were gone, so a pod that
    # needs their GPUs waits for them.
    dropped: set[str] = field(default_factory=set)

    @contextmanager
    def own(self, pod: Pod) -> Iterator[None]:
        try:
            yield
        except DefectError as defect:
            if not is_of(pod, EVIL):
                raise
            self.defects.append(defect)

    def put_pod(self, pod: Pod) -> Pod:
        with self.own(pod):
            super().put_pod(pod)
        return pod

    def delete(self, name: str) -> None:
        with self.own(self.pod(name)):
            super().delete(name)

    def pass_time(self, seconds: float) -> list[Action]:
        known = self.core._cache.pods
        self.dropped |= {u for u, pod in self.pods.items() if pod.spec.node_name and u not in known}
        return super().pass_time(seconds)

    def schedule(self, name: str) -> str:
        with self.own(self.pod(name)):
            return super().schedule(name)
        return ""

    def carry_out(self, action: Action) -> Outcome:
        with self.own(self.pods[action.pod.uid]):
            return super().carry_out(action)
        return Outcome.REFUSED

    def run(self, name: str, node: str) -> None:
        """It runs with all GPUs of *node*, whether or not the extender bound it."""
        with suppress(DefectError, AssertionError):
            self.bind(name, node)
        pod = self.pod(name)
        self.put_pod(change(pod, spec=change(pod.spec, node_name=node)))
        self.start(name, {"main": self.uuids(node, *range(8))})
        self.settle()


HONEST = ("single", "gated", "gang-0", "gang-1")
URGENT = tuple(f"urgent-{rank}" for rank in range(3))


def unschedulable(pod: Pod) -> Pod:
    said = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message="0/6 nodes are available: 6 Insufficient nvidia.com/gpu. linkwise: x",
    )
    return change(pod, status=change(pod.status, conditions=(said,)))


def live(at: Walled) -> None:
    """A tenant has pods of all kinds: bound, waiting, gated, planned and without room. The honest
    ones come later, and more important ones need the room of a gang that may be evicted."""
    for number in range(6):
        at.add_node(f"n{number}", "hgx-h100")
    come_first(at)
    at.add_pod("single", 1, priority=10)
    at.add_pod("gated", 2, gates=[names.GATE], priority=10)
    add_members(at, "gang", 2, gpus=2, priority=10)
    for _ in range(5):
        at.pass_time(2.0)
        for name in left_out(at, *HONEST):
            at.schedule(name)
    add_members(at, "urgent", 3, gpus=8, priority=1000)
    for _ in range(20):
        at.pass_time(2.0)
        bury(at)
    for name in URGENT:
        at.schedule(name)
    at.pass_time(2.0)


def come_first(at: Walled) -> None:
    for name, node in (("evil-runs", "n5"), ("meek-runs", "n4")):
        at.add_pod(name, 8, said={"preemptible": "true"})
        at.settle()
        at.run(name, node)
    at.add_pod("evil-waits", 16, alter=unschedulable)
    at.add_pod("evil-gated", 16, gates=[names.GATE])
    at.add_gang("evil-gang", 2, 2)
    at.add_gang("evil-large", 5, 8)
    at.settle()
    for name in ("evil-waits", "evil-gang-0", "evil-gang-1"):
        at.schedule(name)
    at.settle()


def add_members(at: Walled, gang: str, size: int, *, gpus: int, priority: int) -> None:
    for rank in range(size):
        said = {"gang": gang, "gang-size": str(size), "rank": str(rank)}
        at.add_pod(f"{gang}-{rank}", gpus, priority=priority, said=said)


def bury(at: Walled) -> None:
    """The evicted pods end."""
    for name in at.evicted:
        if (pod := at.find(name)) is not None:
            at.delete(name)
            at.stop(name, pod.spec.node_name)


def left_out(at: Walled, *names: str) -> list[str]:
    """Those that do not run."""
    return [name for name in names if not at.pod(name).spec.node_name]


def run() -> Walled:
    at = Walled()
    live(at)
    return at


def test_without_a_defect_all_of_them_run() -> None:
    at = run()
    assert not left_out(at, *HONEST, *URGENT)
    assert at.evicted == ["evil-runs"]
    assert not at.core.take_defects()


@pytest.mark.parametrize("part", range(PARTS))
def test_wherever_a_defect_meets_a_tenant_s_pods_it_costs_these_alone(part: int) -> None:
    """Found: a pod of 128 GPUs, one of a whole job's, stopped all single pods of the cluster."""
    found = sites(EVIL, run)
    assert len(found) > LEAST_SITES
    costs = {}
    for site in found[part::PARTS]:
        with broken(site, EVIL):
            at = run()
        assert at.defects or at.core.take_defects(), f"{site}: no defect was told"
        costs[str(site)] = left_out(at, *HONEST, *(() if at.dropped else URGENT))
    assert not {site: names for site, names in costs.items() if names}


def test_it_is_tried_again_after_a_while() -> None:
    at = Walled()
    at.add_node("n0", "hgx-h100")
    with patch.object(PodMix, "came", side_effect=DefectError):
        at.add_pod("evil", 1)
    assert at.filter("evil").unresolvable == {"n0": f"linkwise: {LEFT_OUT}"}
    assert len(at.core.take_defects()) == 1
    at.pass_time(60.0)
    assert at.schedule("evil") == "n0"
    assert not at.core.take_defects()


@pytest.mark.parametrize("broken_part", ["__init__", "lost"])
def test_what_only_orders_nodes_refuses_none(broken_part: str) -> None:
    """Found: an overflow as lost room was learnt stopped every single pod."""
    at = Walled()
    for number in range(2):
        at.add_node(f"n{number}", "hgx-h100")
    whole = vars(Room)[broken_part]

    def fails(room: Room, *args: Any) -> Any:
        if args[0] or broken_part == "lost":  # the room of no mix cannot fail
            raise DefectError
        return whole(room, *args)

    with patch.object(Room, broken_part, fails):
        at.add_pod("single", 1)
        at.add_pod("gated", 2, gates=[names.GATE])
        at.settle()
        assert at.schedule("single")
        assert at.places("gated") != [""]
        at.settle()
    told = at.core.take_defects()
    assert told
    assert all(isinstance(defect, DefectError) for defect in told)
    assert LEFT_OUT not in repr(at.core.explain("ml", "single", at.now))


def test_gangs_that_were_due_in_a_round_that_failed_are_due_in_the_next() -> None:
    at = Walled()
    at.add_node("n0", "hgx-h100")
    whole = Changes._limit

    def fails(changes: Changes, key: GangKey, now: float) -> None:
        if key.name == EVIL:
            raise DefectError
        whole(changes, key, now)

    with patch.object(Changes, "_limit", fails):
        at.add_gang(EVIL, 2, 2)
        at.add_gang("gang", 2, 2)
        at.settle()
    assert at.places("gang-0", "gang-1") == ["n0", "n0"]
    assert at.places(f"{EVIL}-0") == [""]
