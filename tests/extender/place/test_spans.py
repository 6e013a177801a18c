"""Domains above the node: which one a gang goes to, and what its pods may say about it."""

from dataclasses import replace

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.gangs.to_come import LEAVING_SECONDS
from linkwise.pods.spans import (
    CLIQUE,
    DEFAULT_LEVELS,
    NODE,
    Spans,
    levels_of,
    ordered,
    spans_of,
)
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.cluster import Cluster, change

ZONE = "topology.kubernetes.io/zone"
LEAF, SPINE = "fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"


def nodes(at: Cluster, *names: str, machine: str = "hgx-h100", **domains: str) -> None:
    """Nodes of these names; `leaf="l1"` and the like are their labels."""
    keys = {"clique": CLIQUE, "leaf": LEAF, "spine": SPINE, "zone": ZONE, "rack": "rack"}
    labels = {keys[word]: domain for word, domain in domains.items()}
    for name in names:
        hardware = replace(recorded_machine(machine, node=name), clique=None)
        at.add_node(name, hardware, labels=labels)


def several(start: str, count: int) -> list[str]:
    return [f"{start}{number}" for number in range(count)]


def where(at: Cluster, *members: str) -> list[str]:
    """The planned node of each member."""
    at.settle()
    plans = [at.plan(member) for member in members]
    assert all(plans), at.core.gangs(at.now)
    return [plan.node for plan in plans if plan is not None]


def waits(at: Cluster, *members: str) -> bool:
    at.settle()
    return not any(at.plan(member) for member in members)


def span(at: Cluster, member: str) -> str:
    plan = at.plan(member)
    assert plan is not None
    return plan.span


def nvl72(at: Cluster, name: str) -> list[str]:
    """18 compute trays of 4 GPUs each, in one NVLink clique."""
    trays = several(f"{name}-", 18)
    nodes(at, *trays, machine="gb200-tray", clique=f"{name}.1")
    return trays


# What the extender does unasked.


def test_a_gang_of_sixteen_nodes_goes_into_one_rack_of_nvlink() -> None:
    at = Cluster()
    nodes(at, *several("a-", 12), machine="gb200-tray")
    first, second = nvl72(at, "r1"), nvl72(at, "r2")
    at.add_pod("other", 1, node=first[5])
    at.add_pod("else", 1, node=first[6])
    at.add_pod("again", 1, node=first[7])
    # Twelve nodes without a clique and 15 of the first rack come first by name.
    assert where(at, *at.add_gang("g", 64, 1)) == [node for node in second[:16] for _ in range(4)]
    assert span(at, "g-0") == f"{CLIQUE}=r2.1"


def test_the_clique_may_be_known_by_the_plugin_or_by_a_label_of_feature_discovery() -> None:
    at = Cluster()
    nodes(at, "n0")
    machine = replace(recorded_machine("hgx-h100", node="n1"), clique="c.1")
    at.add_node("n1", machine)
    nodes(at, "n2", clique="c.1")
    assert where(at, *at.add_gang("g", 2, 8)) == ["n1", "n2"]


def test_the_nearest_level_that_holds_all_is_taken_level_by_level() -> None:
    at = Cluster()
    for zone in "xy":
        for leaf in "12":
            nodes(at, *several(f"{zone}{leaf}-", 3), zone=zone, spine=zone, leaf=f"{zone}{leaf}")
    at.add_pod("other", 8, node="x1-0")
    assert where(at, *at.add_gang("g", 3, 8)) == ["x2-0", "x2-1", "x2-2"]
    assert span(at, "g-0") == f"{LEAF}=x2"
    assert where(at, *at.add_gang("h", 5, 8)) == ["y1-0", "y1-1", "y1-2", "y2-0", "y2-1"]
    assert span(at, "h-0") == f"{SPINE}=y"
    at.add_gang("i", 3, 8)
    assert where(at, "i-0", "i-1", "i-2") == ["x1-1", "x1-2", "y2-2"]
    assert span(at, "i-0") == ""


def test_a_zone_that_has_no_leaf_for_it_is_passed_over_however_full_it_is() -> None:
    at = Cluster()
    nodes(at, "x1-0", zone="x", leaf="x1")
    nodes(at, "x2-0", zone="x", leaf="x2")
    nodes(at, *several("y1-", 3), zone="y", leaf="y1")
    assert where(at, *at.add_gang("g", 2, 8)) == ["y1-0", "y1-1"]


def test_the_fullest_domain_is_taken_so_that_whole_ones_stay_whole() -> None:
    at = Cluster()
    nodes(at, *several("a-", 4), leaf="a")
    nodes(at, *several("b-", 4), leaf="b")
    at.add_pod("other", 8, node="b-0")
    assert where(at, *at.add_gang("g", 2, 8)) == ["b-1", "b-2"]
    assert where(at, *at.add_gang("h", 4, 8)) == several("a-", 4)


def test_what_does_not_fit_into_one_fills_whole_ones_and_the_rest_goes_where_least_is_left() -> (
    None
):
    at = Cluster()
    for leaf, size in (("a", 3), ("b", 4), ("c", 2), ("d", 4)):
        nodes(at, *several(f"{leaf}-", size), leaf=leaf)
    assert where(at, *at.add_gang("g", 10, 8)) == [
        *several("b-", 4),
        *several("c-", 2),
        *several("d-", 4),
    ]


def test_neighbours_in_rank_are_neighbours_in_domains_whatever_the_nodes_are_called() -> None:
    at = Cluster()
    for number in range(8):
        nodes(at, f"n{number}", leaf="odd" if number % 2 else "even", zone="z")
    assert where(at, *at.add_gang("g", 8, 8)) == [f"n{n}" for n in (0, 2, 4, 6, 1, 3, 5, 7)]


def test_fewest_nodes_count_more_than_a_near_domain_where_nothing_is_said() -> None:
    at = Cluster()
    nodes(at, "a0", "a1", leaf="a")
    nodes(at, "b0", "b1", leaf="b")
    nodes(at, "c0", leaf="c")
    for node in ("a1", "b1"):
        at.add_pod(f"on-{node}", 4, node=node)
    at.add_pod("on-c0", 8, node="c0")
    assert where(at, *at.add_gang("g", 4, 4)) == ["a0", "a0", "b0", "b0"]


def test_a_node_without_the_label_is_a_domain_of_its_own() -> None:
    at = Cluster()
    nodes(at, "n0", "n1")
    nodes(at, "n2", "n3", leaf="a")
    assert where(at, *at.add_gang("g", 2, 8)) == ["n2", "n3"]


def test_members_of_all_sizes_are_in_one_domain() -> None:
    at = Cluster()
    nodes(at, "a0", "a1", leaf="a")
    nodes(at, "b0", "b1", "b2", leaf="b")
    at.add_pod("other", 6, node="a1")
    at.add_pod("leader", 4, gang="g", gang_size="3", rank="0")
    for rank in (1, 2):
        at.add_pod(f"worker-{rank}", 8, gang="g", gang_size="3", rank=str(rank))
    assert where(at, "leader", "worker-1", "worker-2") == ["b2", "b0", "b1"]


def test_a_label_that_changes_is_followed() -> None:
    at = Cluster()
    nodes(at, "n0", leaf="a")
    nodes(at, "n1", leaf="b")
    nodes(at, "n2", "n3", leaf="c")
    moved = at.nodes["n1"]
    labels = {**moved.metadata.labels, LEAF: "a"}
    at.put_node(change(moved, metadata=change(moved.metadata, labels=labels)))
    at.remove_node("n3")
    assert where(at, *at.add_gang("g", 2, 8)) == ["n0", "n1"]


def test_the_levels_are_a_setting() -> None:
    at = Cluster(CoreSettings(span_levels=("rack",)))
    nodes(at, "n0", leaf="a", rack="r1")
    nodes(at, "n1", leaf="a", rack="r2")
    nodes(at, "n2", leaf="b", rack="r2")
    assert where(at, *at.add_gang("g", 2, 8)) == ["n1", "n2"]
    assert span(at, "g-0") == "rack=r2"


# What a pod may prefer.


def two_half_full_leaves(at: Cluster) -> None:
    nodes(at, "a0", leaf="a", zone="z1")
    nodes(at, "b0", "b1", "b2", leaf="b", zone="z1")
    nodes(at, "c0", leaf="c", zone="z2")
    for node in ("b0", "b1", "b2"):
        at.add_pod(f"on-{node}", 4, node=node)


def test_a_faster_network_counts_more_than_fewest_nodes() -> None:
    at = Cluster()
    two_half_full_leaves(at)
    assert where(at, *at.add_gang("g", 3, 4)) == ["b0", "b1", "b2"]


def test_where_no_domain_of_the_nearest_level_will_do_the_next_is_preferred() -> None:
    at = Cluster()
    two_half_full_leaves(at)
    members = at.add_gang("g", 4, 4, prefer_span=f"clique, {LEAF}, {ZONE}")
    assert where(at, *members) == ["a0", "a0", "b0", "b1"]
    assert span(at, "g-0") == f"{ZONE}=z1"


def test_what_is_only_preferred_keeps_nobody_waiting() -> None:
    at = Cluster()
    two_half_full_leaves(at)
    assert len(where(at, *at.add_gang("g", 7, 4, prefer_span=LEAF))) == 7


def test_one_node_can_be_preferred_over_bandwidth() -> None:
    for said, expected in (({}, ["n0", "n1"]), ({"prefer_span": "node"}, ["n0", "n0"])):
        at = Cluster()
        for node in ("n0", "n1"):
            at.add_node(node, "dgx1-v100")
            at.add_pod(f"on-{node}", 4, node=node)
            # Between those that are free, 1 and 2, 4 and 7, there are NVLinks in pairs only.
            at.set_in_use(node, {f"ml/on-{node}": {"main": at.uuids(node, 0, 3, 5, 6)}})
        assert where(at, *at.add_gang("g", 2, 2, **said)) == expected


# What a pod may require.


def test_a_gang_waits_for_the_span_it_requires() -> None:
    at = Cluster()
    two_half_full_leaves(at)
    members = at.add_gang("g", 4, 4, require_span=LEAF)
    assert waits(at, *members)
    at.delete("on-b2")
    assert where(at, *members) == ["b0", "b1", "b2", "b2"]


def test_a_node_without_the_label_does_not_satisfy_it() -> None:
    at = Cluster()
    nodes(at, "n0")
    members = at.add_gang("g", 1, 8, require_span="rack")
    assert waits(at, *members)
    nodes(at, "n1", rack="r1")
    assert where(at, *members) == ["n1"]


def test_more_than_one_level_can_be_required_and_another_preferred_within() -> None:
    at = Cluster()
    nodes(at, "a0", zone="z1", rack="r1")
    nodes(at, "a1", zone="z2", rack="r1")  # a rack that two zones share
    nodes(at, *several("b", 2), zone="z1", rack="r2", leaf="l1")
    nodes(at, *several("c", 2), zone="z1", rack="r3", leaf="l1")
    assert where(at, *at.add_gang("g", 2, 8, require_span=f"rack,{ZONE}")) == ["b0", "b1"]
    members = at.add_gang("h", 3, 8, require_span=ZONE, prefer_span=f"{LEAF},rack")
    assert where(at, *members) == ["a0", "c0", "c1"]


def test_one_node_can_be_required() -> None:
    at = Cluster()
    nodes(at, "n0", "n1")
    for node in ("n0", "n1"):
        at.add_pod(f"on-{node}", 4, node=node)
    members = at.add_gang("g", 2, 4, require_span="node")
    assert waits(at, *members)
    at.delete("on-n1")
    assert where(at, *members) == ["n1", "n1"]


def test_gangs_that_are_alike_but_for_the_span_do_not_wait_for_each_other() -> None:
    at = Cluster()
    nodes(at, "n0", leaf="a")
    nodes(at, "n1", leaf="b")
    assert waits(at, *at.add_gang("g", 2, 8, require_span=LEAF))
    assert where(at, *at.add_gang("h", 2, 8)) == ["n0", "n1"]


def test_what_a_member_without_gpus_requires_counts_for_its_gang_and_no_other() -> None:
    at = Cluster()
    nodes(at, "n0", leaf="a")
    nodes(at, "n1", leaf="b")
    for gang, said in (("g", {"require_span": LEAF}), ("h", {})):
        at.add_pod(f"{gang}-launcher", 0, gang=gang, gang_size="3", rank="0", said=said)
        for rank in (1, 2):
            at.add_pod(f"{gang}-{rank}", 8, gang=gang, gang_size="3", rank=str(rank))
    at.settle()
    assert at.plan("g-1") is None
    assert where(at, "h-1", "h-2") == ["n0", "n1"]


@pytest.mark.parametrize("together", ["hgx-h100", "dgx-a100"])
def test_of_two_gpu_models_the_one_with_a_domain_that_will_do_is_taken(together: str) -> None:
    at = Cluster()
    for machine in ("hgx-h100", "dgx-a100"):
        for number in range(2):
            rack = "same" if machine == together else f"{machine}-{number}"
            nodes(at, f"{machine}-{number}", machine=machine, rack=rack)
    members = at.add_gang("g", 2, 8, require_span="rack")
    assert where(at, *members) == several(f"{together}-", 2)


# Members that come later, or replace others.


def running(at: Cluster, *members: str) -> list[str]:
    planned = where(at, *members)
    for member in members:
        at.schedule(member)
    at.settle()
    return planned


def test_a_member_made_again_goes_where_its_neighbours_in_rank_are() -> None:
    at = Cluster()
    for leaf in "ab":
        nodes(at, *several(f"{leaf}-", 3), leaf=leaf, zone="z")
    members = at.add_gang("g", 4, 8)
    assert running(at, *members) == ["a-0", "a-1", "a-2", "b-0"]
    at.delete("g-1")
    at.cordon("a-1")
    at.add_pod("again", 8, gang="g", gang_size="4", rank="1")
    assert where(at, "again") == ["b-1"]
    at.delete("again")
    at.put_node(change(at.nodes["a-1"], spec=change(at.nodes["a-1"].spec, unschedulable=False)))
    at.pass_time(LEAVING_SECONDS)
    at.add_pod("once-more", 8, gang="g", gang_size="4", rank="1")
    assert where(at, "once-more") == ["a-1"]


def test_with_a_required_span_the_domain_of_the_living_is_the_only_one() -> None:
    at = Cluster()
    nodes(at, *several("a-", 2), leaf="a")
    nodes(at, *several("b-", 4), leaf="b")
    assert running(at, *at.add_gang("g", 2, 8, require_span=LEAF)) == ["a-0", "a-1"]
    at.delete("g-0")
    at.cordon("a-0")
    at.add_pod("again", 8, gang="g", gang_size="2", rank="0", require_span=LEAF)
    assert waits(at, "again")
    nodes(at, "a-2", leaf="a")
    assert where(at, "again") == ["a-2"]
    assert span(at, "again") == f"{LEAF}=a"


# The words.


def test_the_word_clique_is_the_label_that_everybody_writes() -> None:
    assert levels_of(["clique", "node", "rack", CLIQUE]) == (CLIQUE, NODE, "rack")


def test_a_gang_wants_all_that_its_members_require_and_what_the_first_prefers() -> None:
    asked = [Spans(), Spans(("clique",), ("rack",)), Spans((ZONE, "clique"), (ZONE,))]
    assert spans_of(asked) == Spans((CLIQUE, ZONE), ("rack",))


def test_a_level_that_only_a_gang_names_is_taken_for_a_near_one() -> None:
    assert ordered((CLIQUE, ZONE), Spans((NODE, "rack"), ("row", ZONE))) == (
        "rack",
        "row",
        CLIQUE,
        ZONE,
    )


def test_known_by_default_are_cliques_what_topograph_writes_and_zones() -> None:
    assert DEFAULT_LEVELS[0] == CLIQUE
    assert DEFAULT_LEVELS[-1] == ZONE
    assert DEFAULT_LEVELS.index(LEAF) < DEFAULT_LEVELS.index(SPINE)
