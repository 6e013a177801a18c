"""Where a whole gang goes, and why there."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linkwise.extender.place.gang_placement import pod_sets_of
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.cache.node_table import Bools
from linkwise.extender.state.records import ResourceList
from linkwise.extender.state.timers import Agenda
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.cluster import GPU, Cluster, container


def where(at: Cluster, *members: str) -> list[str]:
    """The planned node of each member."""
    at.settle()
    plans = [at.plan(member) for member in members]
    assert all(plans), at.core.gangs(at.now)
    return [plan.node for plan in plans if plan is not None]


def test_a_gang_takes_as_few_nodes_as_it_can() -> None:
    at = Cluster()
    for number in range(4):
        at.add_node(f"n{number}", "hgx-h100")
    assert where(at, *at.add_gang("g", 4, 4)) == ["n0", "n0", "n1", "n1"]


def test_neighbours_in_rank_are_neighbours_on_nodes_in_the_order_of_names() -> None:
    at = Cluster()
    for number in (10, 9, 2, 1):
        at.add_node(f"n{number}", "hgx-h100")
    at.add_pod("late", 8, gang="g", gang_size="3", rank="2")
    at.add_pod("first", 8, gang="g", gang_size="3", rank="0")
    at.add_pod("middle", 8, gang="g", gang_size="3", rank="1")
    assert where(at, "first", "middle", "late") == ["n1", "n2", "n9"]


def test_members_without_a_rank_go_by_their_names() -> None:
    at = Cluster()
    for number in range(1, 12):
        at.add_node(f"n{number}", "hgx-h100")
    members = [f"w-{number}" for number in range(1, 12)]
    for member in reversed(members):
        at.add_pod(member, 8, gang="g", gang_size="11")
    assert where(at, *members) == [f"n{number}" for number in range(1, 12)]


def test_a_network_that_is_faster_than_the_paths_inside_counts_more_than_fewest_nodes() -> None:
    at = Cluster()
    at.add_node("n0", "a100-pcie-8-bridged")  # four NVLink pairs
    at.add_node("n1", "a100-pcie-8-bridged")
    for node in ("n0", "n1"):
        at.add_pod(f"on-{node}", 4, node=node)
        at.set_in_use(node, {f"ml/on-{node}": {"main": at.uuids(node, 0, 1, 4, 5)}})
    # Free on each: 2, 3, 6, 7, of which only 6-7 are a pair. Two pairs of bridged GPUs need both
    # nodes; the paths between the pairs of one node are slower than the nodes' network.
    assert where(at, *at.add_gang("g", 2, 2)) == ["n0", "n1"]
    assert at.indices("g-0") == at.indices("g-1") == (6, 7)


def test_a_gang_that_does_not_care_for_nvlink_stays_together() -> None:
    at = Cluster()
    at.add_node("n0", "a100-pcie-8-bridged")
    at.add_node("n1", "a100-pcie-8-bridged")
    for node in ("n0", "n1"):
        at.add_pod(f"on-{node}", 4, node=node)
        at.set_in_use(node, {f"ml/on-{node}": {"main": at.uuids(node, 0, 1, 4, 5)}})
    assert where(at, *at.add_gang("g", 2, 2, prefer_link="node")) == ["n0", "n0"]


def test_all_members_are_on_one_model_where_that_can_be() -> None:
    at = Cluster()
    at.add_node("h100", "hgx-h100")
    at.add_node("v100-1", "dgx1-v100")
    at.add_node("v100-2", "dgx1-v100")
    assert where(at, *at.add_gang("g", 2, 8)) == ["v100-1", "v100-2"]


def test_where_one_model_is_not_enough_models_are_mixed() -> None:
    at = Cluster()
    at.add_node("h100", "hgx-h100")
    at.add_node("v100", "dgx1-v100")
    assert sorted(where(at, *at.add_gang("g", 2, 8))) == ["h100", "v100"]


def test_of_two_models_that_are_as_good_the_one_on_fewer_nodes_is_taken() -> None:
    at = Cluster()
    for node in ("n0", "n1"):
        at.add_node(node, "p100-pcie-8")
        at.add_pod(f"on-{node}", 6, node=node)
    at.add_node("n2", "dgx1-v100")
    assert where(at, *at.add_gang("g", 4, 1)) == ["n2"] * 4


def test_new_members_go_to_the_clique_of_the_others_as_far_as_it_has_room() -> None:
    at = Cluster()
    for name, of in (("n0", "a.1"), ("n1", "a.1"), ("n2", "b.1"), ("n3", "b.1"), ("n4", "b.1")):
        at.add_node(name, replace(recorded_machine("hgx-h100", node=name), clique=of))
    members = [
        at.add_pod(f"g-{rank}", 8, gang="g", gang_size="4", rank=str(rank), node=node)
        for rank, node in enumerate(["n4", "", "", ""])
    ]
    # Beside the one on n4, clique b has room for two of the three; a comes first by name.
    assert sorted(where(at, *(pod.metadata.name for pod in members[1:]))) == ["n0", "n2", "n3"]


def test_a_gang_stays_in_one_clique_if_that_takes_no_more_nodes() -> None:
    at = Cluster()
    for number, of in enumerate(("a.1", "b.1", "a.1", "b.1", "b.1")):
        name = f"n{number}"
        at.add_node(name, replace(recorded_machine("hgx-h100", node=name), clique=of))
    # n0 and n1 come first by name; clique a holds two nodes and is filled whole.
    assert where(at, *at.add_gang("g", 2, 8)) == ["n0", "n2"]
    assert where(at, *at.add_gang("h", 3, 8)) == ["n1", "n3", "n4"]


def test_the_rest_goes_where_it_fits_best() -> None:
    at = Cluster()
    for name in ("n0", "n1", "n2"):
        at.add_node(name, "hgx-h100")
    at.add_pod("half", 4, node="n2")
    # Three members of 4: a whole node, and the half that is free already.
    assert where(at, *at.add_gang("g", 3, 4)) == ["n0", "n0", "n2"]


def test_members_of_different_sizes_are_planned_together() -> None:
    at = Cluster()
    at.add_node("n0", "hgx-h100")
    at.add_node("n1", "hgx-h100")
    at.add_pod("leader", 2, gang="g", gang_size="3", rank="0")
    at.add_pod("worker-1", 8, gang="g", gang_size="3", rank="1")
    at.add_pod("worker-2", 6, gang="g", gang_size="3", rank="2")
    assert where(at, "leader", "worker-1", "worker-2") == ["n1", "n0", "n1"]
    assert at.sound()


def test_cpu_memory_and_pod_counts_are_kept() -> None:
    at = Cluster()
    at.add_node("few-pods", pods="1")
    at.add_node("little-cpu", cpu="3")
    at.add_node("z-roomy")
    for rank in range(4):
        at.add_pod(f"g-{rank}", 1, cpu="2", gang="g", gang_size="4", rank=str(rank))
    assert where(at, "g-0") == ["z-roomy"]
    at.add_pod("filler", 0, cpu="85", node="z-roomy")
    for rank in range(3):
        at.add_pod(f"h-{rank}", 1, cpu="2", gang="h", gang_size="3", rank=str(rank))
    # 96 - 8 - 85 = 3 CPUs are left: one member there, one on each of the others.
    assert sorted(where(at, "h-0", "h-1", "h-2")) == ["few-pods", "little-cpu", "z-roomy"]
    assert at.sound()


def test_members_of_different_needs_share_a_nodes_cpu() -> None:
    at = Cluster()
    at.add_node("n0", cpu="4")
    at.add_node("n1", cpu="4")
    at.add_pod("big", 2, cpu="3", gang="g", gang_size="2", rank="0")
    at.add_pod("small", 1, cpu="2", gang="g", gang_size="2", rank="1")
    assert sorted(where(at, "big", "small")) == ["n0", "n1"]


def test_containers_of_a_member_each_get_their_link() -> None:
    at = Cluster()
    at.add_node("n0", "a100-pcie-8-bridged")
    for rank in range(2):
        at.add_pod(
            f"g-{rank}",
            containers=[container("x", 2), container("y", 2)],
            said={"gang": "g", "gang_size": "2", "rank": str(rank), "require_link": "nvlink"},
        )
    assert where(at, "g-0", "g-1") == ["n0", "n0"]
    bridged = [frozenset(at.uuids("n0", *pair)) for pair in ((0, 2), (1, 3), (4, 5), (6, 7))]
    assert all(frozenset(share) in bridged for share in at.gpus("g-0").values())


def test_a_new_member_is_planned_next_to_the_others() -> None:
    at = Cluster()
    for number in range(4):
        name = f"n{number}"
        of = "a.1" if number % 2 else "b.1"
        at.add_node(name, replace(recorded_machine("hgx-h100", node=name), clique=of))
    members = at.add_gang("g", 2, 8)
    first, second = where(at, *members)
    for member in members:
        at.schedule(member)
    at.settle()
    at.delete("g-1")
    at.add_pod("again", 8, gang="g", gang_size="2", rank="1")
    # Its old node is free, and so is all else: it goes where the clique is.
    assert where(at, "again") == [second]
    assert (first, second) == ("n0", "n2")


def test_what_had_no_room_says_how_much_there_was() -> None:
    at = Cluster()
    for name in ("n0", "n1"):
        at.add_node(name, "hgx-h100")
    at.add_pod("half", 4, node="n0")
    at.add_gang("g", 4, 4)
    assert at.settle_but_notes() == []
    (gang,) = at.core.gangs(at.now)
    assert gang.phase == "forming"
    assert gang.reason == "room for 3 of 4 members; most on one node: n1, 2"


def test_a_gang_of_more_than_a_node_has_is_refused_in_words() -> None:
    at = Cluster()
    at.add_node("n0", "hgx-h100")
    at.add_gang("g", 2, 9)
    at.settle()
    never = "; not for enough of them, even without other pods"
    assert at.core.gangs(at.now)[0].reason == f"room for 0 of 2 members{never}"


def test_members_belong_together_by_subgroups_of_one_size() -> None:
    def unit(*subgroups: str) -> int:
        at = Cluster()
        reader = Ingest((GPU,), Agenda())
        record = reader.pod(at.add_pod("p", 1))
        members = [replace(record, ask=replace(record.ask, subgroup=each)) for each in subgroups]
        (order,) = pod_sets_of(members, lambda _: np.ones(0, dtype=np.bool_))
        return order.unit

    assert unit("a", "a", "b", "b") == 2
    assert unit("a", "a", "b") == 1
    assert unit("a", "a", "", "") == 1
    assert unit("", "") == 1


def test_members_that_share_all_objects_differ_by_what_is_limited_for_each() -> None:
    at = Cluster()
    record = Ingest((GPU,), Agenda()).pod(at.add_pod("p", 1))
    everywhere, one = np.ones(2, dtype=np.bool_), np.array([True, False])
    some = ResourceList(1)

    def sets(*, more: Sequence[ResourceList] = (), masks: Sequence[Bools | None] = ()) -> int:
        return len(pod_sets_of([record, record], lambda _: everywhere, more, masks))

    assert sets() == 1
    assert sets(more=(some, ResourceList(1))) == 1
    assert sets(more=(some, ResourceList(2))) == 2
    assert sets(masks=(one, one.copy())) == 1
    assert sets(masks=(one, everywhere)) == 2
    assert sets(masks=(one, None)) == 2
