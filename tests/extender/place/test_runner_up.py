"""What else a gang or a pod could have, and by what it lost: as `explain` tells it."""

from dataclasses import replace

import pytest

from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.views import RunnerUpView, Verdict
from linkwise.topology.machine.model import LinkClass, Nic
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.cluster import Cluster, container
from tests.extender.place.partly_used import add, busy, named
from tests.extender.place.runner_ups import runner_up
from tests.machines import T4_4

LOST, EQUAL, BETTER = Verdict


def of(at: Cluster, gang: str = "g") -> RunnerUpView:
    found = runner_up(at, gang)
    assert found is not None
    return found


def of_single(at: Cluster, name: str = "s") -> RunnerUpView:
    at.settle()
    assert at.schedule(name)
    found = at.core.explain("ml", name, at.now)
    assert found is not None
    assert found.runner_up is not None
    return found.runner_up


def placed(at: Cluster, size: int, gpus: int, **said: str) -> RunnerUpView:
    at.add_gang("g", size, gpus, **said)
    at.settle()
    return of(at)


# A gang, by each thing that counts.


def test_another_set_on_the_node_that_is_slower() -> None:
    at = Cluster()
    at.add_node("n0", "dgx1-v100")
    busy(at, "n0", 0)
    found = placed(at, 4, 1)
    assert found == RunnerUpView(
        ("n0",), (1, 2, 5, 6), 40.0, LOST, "worth", "worth: 80.0 against 40.0 GB/s"
    )


def test_other_nodes_that_are_farther_apart() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="hgx-h100", leaf="a")
    add(at, "n2", machine="hgx-h100", leaf="b")
    found = placed(at, 2, 8)
    assert found.nodes in (("n0", "n2"), ("n1", "n2"))
    assert (found.verdict, found.criterion, found.gbytes_per_s) == (LOST, "worth", 43.2)
    assert found.why == "worth: 48.0 against 43.2 GB/s"


def test_more_nodes() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="p100-pcie-8", free_gpus=4)
    add(at, "n2", "n3", machine="p100-pcie-8", free_gpus=2)
    found = placed(at, 4, 2)
    assert (found.verdict, found.why) == (LOST, "fewest nodes: 2 against 3")


def test_the_same_worth_at_more_cost_to_others() -> None:
    at = Cluster()
    add(at, "whole", machine="hgx-h100")
    add(at, "part", machine="hgx-h100", free_gpus=4)
    found = placed(at, 2, 2)
    assert found.nodes == ("whole",)
    assert (found.verdict, found.criterion) == (LOST, "damage")
    assert found.why == "damage: 278.1 against 400.7 GB/s"


def test_a_domain_that_is_less_full() -> None:
    at = Cluster()
    add(at, "n0", "n1", "n2", machine="hgx-h100", leaf="a")
    add(at, "n3", "n4", machine="hgx-h100", leaf="b")
    found = placed(at, 2, 8)
    assert found.nodes == ("n0", "n1")
    assert (found.verdict, found.why) == (LOST, "fullest: 2 against 3 pods")


def test_two_models() -> None:
    at = Cluster()
    for name, model in (("n0", "A"), ("n1", "B"), ("n2", "B")):
        at.add_node(name, named(name, model))
    found = placed(at, 2, 8)
    assert "n0" in found.nodes
    assert (found.verdict, found.why) == (LOST, "GPU models: 1 against 2")


def test_members_with_slower_rings_of_their_own() -> None:
    """Between zones the NICs are slower than any pair of GPUs."""
    at = Cluster()
    for node, zone in (("n0", "a"), ("n1", "b"), ("n2", "c")):
        add(at, node, machine="p100-pcie-8", zone=zone)
        busy(at, node, *(range(1, 7) if node == "n2" else range(2, 8)))
    found = placed(at, 2, 2)
    assert "n2" in found.nodes
    assert (found.verdict, found.why) == (LOST, "slowest pod's ring: 12.0 against 8.3 GB/s")


def test_a_span_that_is_preferred() -> None:
    at = Cluster()
    add(at, "n0", machine="hgx-h100")
    for name in ("n1", "n2"):
        at.add_node(name, "hgx-h100", labels={"rack": "r"})
    found = placed(at, 2, 8, prefer_span="rack")
    assert "n0" in found.nodes
    assert (found.verdict, found.why) == (LOST, "preferred span: rack against none")


def test_equal_in_all_but_the_name() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="hgx-h100")
    at.add_gang("g", 1, 8)
    at.settle()
    found = of(at)
    assert found == RunnerUpView(("n1",), (), 490.3, EQUAL, "name", "name")


def test_nothing_else_has_room() -> None:
    at = Cluster()
    add(at, "n0", machine="hgx-h100")
    at.add_gang("g", 2, 4)
    at.settle()
    assert runner_up(at) is None


def test_a_link_that_is_preferred_is_enough() -> None:
    at = Cluster()
    add(at, "n0", machine="p100-pcie-8")
    found = placed(at, 1, 4, prefer_link="switch")
    assert (found.nodes, found.gpus) == (("n0",), (4, 5, 6, 7))
    assert found.verdict == EQUAL


def test_a_preferred_link_that_cannot_be_kept_elsewhere() -> None:
    at = Cluster()
    add(at, "n0", machine="p100-pcie-8", free_gpus=4)
    add(at, "n1", machine="p100-pcie-8")
    busy(at, "n1", 2, 3, 6, 7)
    found = placed(at, 1, 4, prefer_link="switch")
    assert found.nodes == ("n1",)
    assert (found.verdict, found.why) == (LOST, "preferred link: kept against not")


def test_pods_that_are_communicators_of_their_own() -> None:
    at = Cluster()
    add(at, "linked", machine="hgx-h100")
    add(at, "lesser", machine="l40s-4")
    found = placed(at, 4, 1, communicator="pod")
    assert (found.gbytes_per_s, found.verdict) == (None, LOST)
    assert found.criterion == "damage"


def test_members_of_unequal_size() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="dgx1-v100")
    for rank, gpus in enumerate((4, 2)):
        at.add_pod(f"g-{rank}", gpus, gang="g", gang_size="2", rank=f"{rank}")
    at.settle()
    assert of(at).verdict in (LOST, EQUAL)


# As the cluster is now.


def test_what_came_free_since_would_win_now() -> None:
    at = Cluster()
    at.add_node("n0", "dgx1-v100")
    add(at, "n1", machine="hgx-h100")
    busy(at, "n1", *range(8))
    at.add_gang("g", 4, 1)
    at.settle()
    assert of(at).verdict == EQUAL
    at.delete("busy-n1")
    at.set_in_use("n1", {})
    found = of(at)
    assert found.nodes == ("n1",)
    assert (found.verdict, found.why) == (BETTER, "worth: 370.8 against 80.0 GB/s")


def test_nodes_that_may_not_be_taken_are_no_alternative() -> None:
    at = Cluster()
    add(at, "n0", "n1", "n2", machine="hgx-h100")
    at.add_gang("g", 1, 8)
    at.settle()
    at.cordon("n1")
    assert of(at).nodes == ("n2",)
    at.remove_node("n2")
    assert runner_up(at) is None


def test_where_nobody_knows_the_gangs_gpus_there_is_none() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="hgx-h100")
    at.add_gang("waits", 3, 8)
    at.add_gang("g", 1, 8)
    at.settle()
    assert runner_up(at, "waits") is None
    at.schedule("g-0")
    at.annotate_node("n0", "linkwise.dev/topology", "mangled")
    assert runner_up(at) is None


def test_what_is_kept_for_others_is_no_alternative() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="hgx-h100")
    busy(at, "n1", 0)
    at.add_gang("g", 1, 4)
    at.settle()
    assert of(at).nodes
    at.schedule("g-0")
    at.start("g-0")
    at.add_gang("first", 2, 8, expected_duration="1h")
    at.settle()
    kept = next(node for node in at.core.nodes(at.now) if node.name == "n1").reserved
    assert kept
    found = runner_up(at)
    assert found is None or found.nodes == ("n0",)


# A single pod.


def test_a_single_pod_lost_nothing_but_lower_indices() -> None:
    at = Cluster()
    add(at, "n0", machine="dgx1-v100")
    at.add_pod("s", 2)
    assert of_single(at) == RunnerUpView(
        ("n0",), (1, 2), 40.0, EQUAL, "lowest indices", "lowest indices"
    )


def test_a_single_pod_gets_the_closer_link_on_one_node() -> None:
    at = Cluster()
    at.add_node("n0", T4_4)
    at.add_pod("s", 3)
    found = of_single(at)
    assert at.indices("s") == (1, 2, 3)
    assert (found.gpus, found.verdict) == ((0, 1, 2), LOST)
    assert found.why == "closest link: PHB against NODE"


def test_a_single_pod_gets_the_closer_link_of_two_nodes() -> None:
    at = Cluster()
    at.add_node("a-far", T4_4)
    at.add_node("z-close", T4_4)
    busy(at, "a-far", 2, 3)
    busy(at, "z-close", 0, 1)
    at.add_pod("s", 2)
    found = of_single(at)
    assert at.indices("s") == (2, 3)
    assert (found.nodes, found.verdict) == (("a-far",), LOST)
    assert found.why == "closest link: PHB against NODE"


def test_of_other_nodes_the_one_with_the_closer_link_is_the_runner_up() -> None:
    at = Cluster()
    for name, taken in (("a-far", (2, 3)), ("y-close", (0, 1)), ("z-close", (0, 1))):
        at.add_node(name, T4_4)
        busy(at, name, *taken)
    at.add_pod("s", 2)
    assert of_single(at).nodes == ("z-close",)


def test_a_gang_gets_the_closer_link_of_one_numa_node() -> None:
    at = Cluster()
    add(at, "n0", machine="plx-8-pxb")
    busy(at, "n0", 1, 4, 5, 6, 7)
    at.add_gang("g", 2, 1)
    at.settle()
    assert {at.indices(f"g-{rank}") for rank in range(2)} == {(2,), (3,)}


def test_a_gang_on_one_node_gets_the_closer_link() -> None:
    at = Cluster()
    at.add_node("n0", T4_4)
    found = placed(at, 3, 1)
    assert found.gpus == (0, 1, 2)
    assert (found.verdict, found.why) == (LOST, "closest link: PHB against NODE")


def test_a_single_gpu_talks_to_nobody() -> None:
    at = Cluster()
    add(at, "a-linked", machine="hgx-h100")
    add(at, "z-lesser", machine="l40s-4")
    busy(at, "z-lesser", 1, 2, 3)
    at.add_pod("s", 1)
    found = of_single(at)
    assert found == RunnerUpView(
        ("a-linked",), (), None, LOST, "damage", "damage: 0.0 against 308.0 GB/s"
    )


def test_a_single_pod_is_kept_off_the_model_that_others_insist_on() -> None:
    at = Cluster()
    add(at, "a-linked", machine="hgx-h100")
    add(at, "z-lesser", machine="l40s-4")
    busy(at, "a-linked", 1, 2, 3, 4, 5, 6, 7)
    for number in range(20):
        at.add_pod(f"past-{number}", 1, gpu_model="L40S")
        at.delete(f"past-{number}")
    at.add_pod("s", 1)
    found = of_single(at)
    assert found is not None
    assert at.pod("s").spec.node_name == "a-linked"
    assert (found.nodes, found.verdict, found.criterion) == (("z-lesser",), LOST, "lost room")


def test_what_may_come_back_together_is_left_together() -> None:
    """0 and 2, 4 and 5 are bridged; 2 is in use by itself, 5 with four others."""
    at = Cluster()
    add(at, "n0", machine="a100-pcie-8-bridged")
    at.add_pod("alone", 1, node="n0")
    at.add_pod("many", 5, node="n0")
    runs = {"ml/alone": {"main": at.uuids("n0", 2)}}
    at.set_in_use("n0", {**runs, "ml/many": {"main": at.uuids("n0", 1, 3, 5, 6, 7)}})
    at.add_pod("s", 1)
    found = of_single(at)
    assert (found.gpus, found.verdict, found.criterion) == ((0,), LOST, "outlook")


def test_a_set_beside_is_farther_from_the_nic() -> None:
    machine = recorded_machine("rtx4090-8-sys", node="n0")
    close = tuple(LinkClass.PIX if gpu in (4, 5) else LinkClass.SYS for gpu in range(8))
    at = Cluster()
    at.add_node("n0", replace(machine, nics=(Nic("mlx5_0", close),)))
    at.add_pod("s", 2)
    found = of_single(at)
    assert (found.verdict, found.why) == (LOST, "nearest NIC: PIX against SYS")


def test_a_pod_of_two_containers_has_a_runner_up_too() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="dgx1-v100")
    at.add_pod("s", containers=[container("a", 2), container("b", 2)])
    assert of_single(at).verdict in (LOST, EQUAL)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("gang", [False, True])
def test_who_has_an_unhealthy_gpu_is_explained_too(gpus: int, gang: bool) -> None:
    at = Cluster()
    add(at, "n0", machine="dgx1-v100")
    at.add_pod("s", gpus, said={"gang": "g", "gang_size": "1"} if gang else {})
    at.settle()
    at.schedule("s")
    at.start("s")
    add(at, "n1", machine="hgx-h100")
    at.set_health("n0", *at.indices("s"))
    found = at.core.explain("ml", "s", at.now)
    assert found is not None
    told = found.gang.gang.runner_up if found.gang is not None else found.runner_up
    assert told is not None
    assert explanation_text.pod(found, at.now)


# In words.


def test_of_a_single_gpu_no_link_is_told() -> None:
    at = Cluster()
    add(at, "n0", machine="dgx1-v100")
    at.add_pod("s", 1)
    at.schedule("s")
    found = at.core.explain("ml", "s", at.now)
    assert found is not None
    assert "  link" not in explanation_text.pod(found, at.now)
    assert explanation_text.pod(found, at.now).splitlines()[-2:] == [
        "  runner-up n0, GPU 1, as the cluster is now",
        "            as good, except for lowest indices",
    ]


def test_it_is_told_beside_what_the_gang_has() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="hgx-h100", leaf="a")
    add(at, "n2", machine="hgx-h100", leaf="b")
    at.add_gang("g", 2, 8)
    at.settle()
    explainer = Explainer(at.core.snapshot(at.now))
    of_gang = explainer.gang("ml", "g", runner_up=True)
    of_pod = explainer.pod("ml", "g-0", runner_up=True)
    assert of_gang is not None
    assert of_pod is not None
    told = [
        "  worth     48.0 GB/s estimated: slowest ring on n0 370.8, between nodes 48.0",
        "  runner-up n0, n2: 43.2 GB/s, as the cluster is now",
        "            lost by worth: 48.0 against 43.2 GB/s",
    ]
    assert explanation_text.gang(of_gang, at.now).splitlines()[-5:-2] == told
    lines = explanation_text.pod(of_pod, at.now).splitlines()
    assert lines[-5:-2] == told
    planned = (
        "  planned   in a gang of 48.0 GB/s estimated: ring on this node 370.8, between nodes 48.0"
    )
    assert planned in lines


def test_only_who_asks_for_it_waits_for_the_search() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="hgx-h100")
    at.add_gang("g", 1, 8)
    at.settle()
    explainer = Explainer(at.core.snapshot(at.now))
    assert [gang.runner_up for gang in explainer.gangs()] == [None]
    assert [gang.runner_up is None for gang in explainer.gangs(runner_up=True)] == [False]
    assert explainer.gangs("theirs", runner_up=True) == ()


def test_two_sets_of_a_smaller_node_than_the_pods_own() -> None:
    at = Cluster()
    at.add_node("n0", "dgx2-v100")
    at.add_node("n1", "mixed-5")
    at.add_pod("beside", 7)
    at.add_pod("s", containers=[container("a", 1)], init=[container("i", 1)])
    for name in ("beside", "s"):
        assert at.filter(name, ["n0"]).node_names == ("n0",)
        at.bind(name, "n0")
    found = at.core.explain("ml", "s", at.now)
    assert found is not None
    assert found.runner_up is not None
    assert found.runner_up.nodes == ("n1",)
