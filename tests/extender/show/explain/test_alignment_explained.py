"""Where a kubelet aligns GPUs, filter, explain and the nodes say so."""

from dataclasses import replace

import pytest

from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.machine.topology_manager import Policy, Scope, Source, TopologyManager
from tests.extender.cluster import Cluster

ONE_NODE = "linkwise: the kubelet admits only GPUs of one NUMA node"
FEWEST = "linkwise: the kubelet admits only GPUs of the fewest NUMA nodes"
NEVER = "linkwise: the kubelet admits no such pod: no NUMA node has so many GPUs"


def cluster(policy: Policy, scope: Scope = Scope.CONTAINER) -> Cluster:
    """n1 has two free GPUs on each socket."""
    at = Cluster()
    manager = TopologyManager(policy, scope, source=Source.FILE)
    machine = replace(recorded_machine("hgx-h100", node="n1"), topology_manager=manager)
    at.add_node("n1", machine)
    held = {"ml/a": {"main": at.uuids("n1", 0, 1)}, "ml/b": {"main": at.uuids("n1", 4, 5)}}
    at.set_in_use("n1", held)
    return at


@pytest.mark.parametrize(
    ("policy", "why"), [(Policy.SINGLE_NUMA_NODE, ONE_NODE), (Policy.RESTRICTED, FEWEST)]
)
def test_free_gpus_of_two_sockets_are_too_few_together(policy: Policy, why: str) -> None:
    at = cluster(policy)
    at.add_pod("p", 4)
    assert at.filter("p").failed == {"n1": why}
    found = at.core.explain("ml", "p", at.now)
    assert found is not None
    assert found.search is not None
    level = next(each for each in found.search.levels if not each.have)
    assert level.level == "free-alignment"
    assert [each.reason for each in level.missing] == [why.removeprefix("linkwise: ")]
    assert found.search.nearest is not None
    assert found.search.nearest.lacks == (
        f"{why.removeprefix('linkwise: ')} for each container (topologyManagerPolicy {policy}); "
        "4 are free on all of them"
    )


def test_more_gpus_than_a_numa_node_has_are_never_admitted() -> None:
    at = cluster(Policy.SINGLE_NUMA_NODE)
    at.add_pod("p", 5)
    assert at.filter("p").unresolvable == {"n1": NEVER}
    found = at.core.explain("ml", "p", at.now)
    assert found is not None
    assert found.search is not None
    assert next(each for each in found.search.levels if not each.have).level == "alignment"


def test_a_smaller_pod_goes_there_and_a_gang_is_cut_so() -> None:
    at = cluster(Policy.SINGLE_NUMA_NODE)
    at.add_gang("g", 2, 2)
    at.settle()
    assert {at.indices(member) for member in ("g-0", "g-1")} == {(2, 3), (6, 7)}
    for member in ("g-0", "g-1"):
        assert at.schedule(member) == "n1"
    assert at.sound()


@pytest.mark.parametrize("policy", [Policy.NONE, Policy.BEST_EFFORT])
def test_other_policies_keep_no_pod_off(policy: Policy) -> None:
    at = cluster(policy)
    at.add_pod("p", 4)
    assert at.schedule("p") == "n1"


def test_a_plan_that_the_kubelet_would_not_carry_out_any_more_is_made_again() -> None:
    at = cluster(Policy.NONE)
    at.add_gang("g", 1, 4)
    at.settle()
    assert at.phase("g") == "planned"
    manager = TopologyManager(Policy.SINGLE_NUMA_NODE)
    at.add_node("n1", replace(at.machine("n1"), topology_manager=manager))
    at.set_in_use(
        "n1", {"ml/a": {"main": at.uuids("n1", 0, 1)}, "ml/b": {"main": at.uuids("n1", 4, 5)}}
    )
    at.settle()
    assert at.phase("g") == "forming"


def test_nodes_say_what_their_kubelet_demands_and_who_said_so() -> None:
    (node,) = cluster(Policy.RESTRICTED, Scope.POD).core.nodes(0.0)
    assert node.topology_manager == "restricted, scope pod (file)"
