"""Whatever a pod may require of each GPU counts everywhere: a new field of the requirement that one
place does not look at fails here."""

from dataclasses import fields

import pytest

from linkwise.extender.place.nodes.by_count import takes_by_count
from linkwise.extender.place.room import PodMix
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.timers import Agenda
from linkwise.pods.requirement import ANY_GPU, HardwareRequirement
from linkwise.topology.machine.recorded import recorded_machine
from tests.divided import SHARED, replicas
from tests.extender.cluster import GPU, Cluster
from tests.extender.shares.cluster import ShareCluster

# field -> an annotation that the H100s of n1 meet, and the V100s of n0 do not.
MET_BY_H100 = {"models": {"gpu_model": "H100"}, "memory_mib": {"gpu_memory": "64Gi"}}
EACH = pytest.mark.parametrize("said", MET_BY_H100.values(), ids=MET_BY_H100.keys())


@pytest.fixture
def at() -> Cluster:
    at = Cluster()
    at.add_node("n0", "dgx1-v100")
    at.add_node("n1", "hgx-h100")
    return at


def test_each_requirement_is_tried_here() -> None:
    assert MET_BY_H100.keys() == {each.name for each in fields(HardwareRequirement)}


@EACH
def test_a_single_pod_gets_no_other_gpu_also_if_another_was_asked_about_before(
    at: Cluster, said: dict[str, str]
) -> None:
    at.add_pod("any", 1)
    assert "n0" in at.filter("any").node_names
    at.add_pod("w", 1, said=said)
    assert at.filter("w").node_names == ("n1",)
    assert "n0" in at.filter("any").node_names


@EACH
def test_a_gang_gets_no_other_gpu(at: Cluster, said: dict[str, str]) -> None:
    members = at.add_gang("g", 2, 4, **said)
    at.settle()
    assert at.places(*members) == ["n1", "n1"]
    more = at.add_gang("more", 2, 4, **said)
    at.settle()
    assert at.places(*more) == ["", ""]  # n0 is idle


@EACH
def test_a_share_of_no_other_gpu_is_taken(said: dict[str, str]) -> None:
    at = ShareCluster()
    for name, machine in (("n0", "dgx1-v100"), ("n1", "hgx-h100")):
        at.add_divided(name, replicas(recorded_machine(machine, node=name), {0: 2}))
    at.add_taker("any", {SHARED: 1})
    assert "n0" in at.filter("any").node_names
    at.add_taker("w", {SHARED: 1}, **said)
    assert at.filter("w").node_names == ("n1",)


@EACH
def test_no_node_takes_the_pod_by_count(at: Cluster, said: dict[str, str]) -> None:
    """It is not known what GPUs such a node has."""
    record = Ingest((GPU,), Agenda()).pod(at.add_pod("w", 1, said=said))
    assert not takes_by_count(record)
    assert takes_by_count(Ingest((GPU,), Agenda()).pod(at.add_pod("any", 1)))


@EACH
def test_it_is_said_why_other_gpus_are_not_taken(at: Cluster, said: dict[str, str]) -> None:
    at.add_pod("w", 8, said=said)
    at.remove_node("n1")
    found = at.core.explain("ml", "w", at.now)
    assert found is not None
    assert found.wanted is not None
    assert found.wanted.hardware
    assert found.search is not None
    assert "model" in [level.level for level in found.search.levels]


@EACH
def test_room_is_kept_for_pods_like_it(at: Cluster, said: dict[str, str]) -> None:
    mix = PodMix()
    record = Ingest((GPU,), Agenda()).pod(at.add_pod("w", 1, said=said))
    mix.came(record)
    (kind,) = mix.shares()
    assert kind.ask.requirement.hardware == record.ask.requirement.hardware != ANY_GPU
