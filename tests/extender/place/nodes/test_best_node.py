"""The best node for a pod planned ahead is the one that prioritize would have put first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.place.cluster_view import as_it_is
from linkwise.extender.place.nodes import best_node
from linkwise.extender.place.room import LatestRoom, PodMix, Room
from linkwise.extender.state.cache import node_table
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.extender_calls import FilterCall
from linkwise.extender.state.records import ResourceList
from linkwise.pods.requirement import TopologyRequirement
from linkwise.topology import names
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from tests.extender.cached import cached
from tests.extender.cluster import Cluster, change

MACHINES = ("dgx1-v100", "hgx-h100")
ALIKE = tuple((machine,) * 4 for machine in MACHINES)
NODES = ("n1", "n2", "n3", "n4")
OURS = names.GATE
NEEDS = ResourceList(milli_cpu=1000, memory=2**30)


def cluster(machines: tuple[str, ...], *, cpu: str = "96", pods: str = "110") -> Cluster:
    at = Cluster(CoreSettings(reserve_share=0))  # what waits for GPUs is not looked at here
    for name, machine in zip(NODES, machines, strict=False):
        at.add_node(name, machine, cpu=cpu, pods=pods)
    return at


class Learnt(LatestRoom):
    """Lost room as another core judges it now, which has seen more pods come."""

    def __init__(self, room: Room) -> None:
        super().__init__(PodMix())
        self._as_there = room

    def at(self, *_: object) -> Room:
        return self._as_there


def first_choice(at: Cluster, name: str) -> str:
    """Of a scheduler that is asked about the pod without its gate."""
    other = Core(CoreSettings())
    other._planner.best_node._room = Learnt(at.core._planner.best_node.room())
    other.replace_nodes(at.nodes.values(), at.now)
    pods = [pod for pod in at.pods.values() if pod.metadata.name != name]
    other.replace_pods(pods, at.now)
    pod = change(at.pod(name), spec=change(at.pod(name).spec, scheduling_gates=()))
    passed = other.filter(FilterCall(pod, NODES), at.now).node_names
    scores = other.prioritize(FilterCall(pod, passed), at.now).scores
    return max(sorted(passed), key=lambda node: scores[node], default="")


@settings(max_examples=60, deadline=None)
@given(
    machines=st.sampled_from(ALIKE) | st.tuples(*(st.sampled_from(MACHINES) for _ in NODES)),
    pods=st.lists(st.tuples(st.integers(1, 8), st.sampled_from(NODES)), max_size=10),
    wanted=st.lists(st.integers(1, 8), min_size=1, max_size=4),
)
def test_it_is_the_first_choice_of_prioritize(
    machines: tuple[str, ...], pods: list[tuple[int, str]], wanted: list[int]
) -> None:
    at = cluster(machines)
    for number, (gpus, node) in enumerate(pods):
        at.add_pod(f"old-{number}", gpus)
        if node in at.filter(f"old-{number}").node_names:
            at.bind(f"old-{number}", node)
    for number, gpus in enumerate(
        wanted
    ):  # one after the other: what is stored is brought up to date
        at.add_pod(f"p-{number}", gpus, gates=[OURS])
        expected = first_choice(at, f"p-{number}")
        at.settle()
        assert at.pod(f"p-{number}").status.nominated_node_name == expected
        if number % 2:
            at.delete(f"p-{number}")
    assert at.sound()


@settings(max_examples=60, deadline=None)
@given(
    machines=st.tuples(*(st.sampled_from(MACHINES) for _ in NODES)),
    pods=st.lists(st.tuples(st.integers(1, 8), st.sampled_from(NODES)), max_size=10),
    size=st.integers(1, 8),
)
def test_many_nodes_are_judged_by_kind_as_each_alone(
    machines: tuple[str, ...], pods: list[tuple[int, str]], size: int
) -> None:
    at = cluster(machines)
    for number, (gpus, node) in enumerate(pods):
        at.add_pod(f"old-{number}", gpus)
        if node in at.filter(f"old-{number}").node_names:
            at.bind(f"old-{number}", node)
    cache = cached(at)
    request = GpuRequest(
        PodDemand((ContainerDemand("main", Role.MAIN, size),)), TopologyRequirement()
    )
    found, mix = [], PodMix()
    for record in cache.pods.values():
        mix.came(record)
    for few in (0, len(NODES)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(best_node, "_FEW", few)
            found.append(
                best_node.BestNode(cache, mix, []).worth_in(as_it_is(cache), request, NEEDS)
            )
    by_kind, alone = found
    room = best_node.BestNode(cache, mix, []).room()
    for info in cache.nodes.values():
        row, kind = info.row, info.kind
        assert kind is not None
        taken = kind.take(request, info.free)
        quality = -np.inf if taken is None else kind.quality(request, taken)
        assert by_kind.quality[row] == alone.quality[row] == quality
        before = best_node.left_on(cache, cache.rows, np.array([row]), ())
        lost = float(room.lost(before, before.without(NEEDS, taken or 0))[0])
        assert by_kind.lost_room[row] == alone.lost_room[row] == (lost if taken else 0.0)
        damage = 0.0 if taken is None else kind.damage(info.free, taken)
        assert by_kind.damage[row] == alone.damage[row] == damage
        share = info.free.bit_count() / len(kind.machine.gpus)
        assert by_kind.free_share[row] == alone.free_share[row] == share


def test_a_node_without_cpu_memory_gpus_or_room_for_pods_is_left_out() -> None:
    at = cluster(("hgx-h100", "hgx-h100"), cpu="4", pods="1")
    at.add_pod("web")
    at.bind("web", "n1")
    at.add_pod("one", 1, gates=[OURS])  # n1 is full of pods
    at.settle()
    assert at.pod("one").status.nominated_node_name == "n2"
    at.add_pod("two", 1, gates=[OURS])
    at.settle()
    assert at.gates("two") == [OURS]
    wide = cluster(("hgx-h100",), cpu="4")
    wide.add_pod("p", 1, gates=[OURS], cpu="5")
    wide.settle()
    assert wide.gates("p") == [OURS]
    small = cluster(("hgx-h100",))
    status = small.nodes["n1"].status
    for resource, little in ((names.DEFAULT_RESOURCE, "1"), ("memory", "1Mi")):
        allocatable = {**status.allocatable, resource: little}
        small.put_node(change(small.nodes["n1"], status=change(status, allocatable=allocatable)))
        small.add_pod(f"p-{little.lower()}", 2, gates=[OURS])
        small.settle()
        assert small.gates(f"p-{little.lower()}") == [OURS]


def test_a_node_that_comes_later_or_loses_its_topology_is_noticed() -> None:
    at = cluster(("dgx1-v100",))
    at.add_pod("first", 8, gates=[OURS])
    at.settle()
    at.add_node("late", "hgx-h100")
    at.add_pod("second", 8, gates=[OURS])
    at.settle()
    assert at.pod("second").status.nominated_node_name == "late"
    at.delete("second")
    at.annotate_node("late", names.TOPOLOGY, None)
    at.add_pod("third", 8, gates=[OURS], require_link="nvlink")
    at.settle()
    assert at.gates("third") == [OURS]


def test_more_nodes_may_come_than_were_foreseen() -> None:
    at = cluster(("dgx1-v100",))
    at.add_pod("first", 8, gates=[OURS])
    at.settle()
    assert at.schedule("first") == "n1"
    for number in range(200):
        at.add_node(f"late-{number}", "dgx1-v100")
    at.add_pod("second", 8, gates=[OURS])
    at.settle()
    assert at.pod("second").status.nominated_node_name == "late-0"


def test_it_stays_the_first_choice_when_the_log_of_changes_has_forgotten_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_table, "LONGEST", 5)
    at = cluster(ALIKE[0])
    for number in range(12):
        at.add_pod(f"p{number}", 1 + number % 4, gates=(OURS,))
        expected = first_choice(at, f"p{number}")
        at.settle()
        plan = at.plan(f"p{number}")
        assert (plan.node if plan else "") == expected
        if number % 3 == 2:
            at.delete(f"p{number - 1}")
            at.settle()
    assert len(at.core._cache.settled_rows) <= 5 + len(NODES)
