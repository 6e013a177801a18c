"""Which nodes are drawn together."""

from linkwise.extender.show.page.groups import MOST_NODES, Group, Grouper
from tests.extender.cluster import Cluster
from tests.extender.show.page.example_cluster import LEAF, large, one_node

ZONE = "topology.kubernetes.io/zone"


def groups(cluster: Cluster, grouper: Grouper | None = None) -> tuple[Group, ...]:
    return (grouper or Grouper()).groups(cluster.core.snapshot(cluster.now))


def named(cluster: Cluster) -> dict[str, list[str]]:
    return {group.title: [node.name for node in group.nodes] for group in groups(cluster)}


def test_nodes_of_one_rack_are_a_group_and_those_in_none_come_last() -> None:
    cluster = Cluster()
    for name, rack in (("n10", "r2"), ("n9", "r2"), ("n1", "r10"), ("n2", "r10"), ("n0", "")):
        cluster.add_node(name, labels={LEAF: rack} if rack else {})
    assert named(cluster) == {"leaf r2": ["n9", "n10"], "leaf r10": ["n1", "n2"], "n0": ["n0"]}


def test_a_group_says_in_which_wider_domains_it_is() -> None:
    cluster = Cluster()
    for number in range(4):
        rack = f"r{number // 2}"
        cluster.add_node(f"n{number}", labels={LEAF: rack, ZONE: "z1"})
    assert [(group.title, group.within) for group in groups(cluster)] == [
        ("leaf r0", "zone z1"),
        ("leaf r1", "zone z1"),
    ]


def test_a_level_at_which_every_node_is_alone_makes_no_groups() -> None:
    cluster = Cluster()
    for number in range(3):
        cluster.add_node(f"n{number}", labels={LEAF: f"own-{number}"})
    assert named(cluster) == {"n0 to n2": ["n0", "n1", "n2"]}


def test_many_nodes_without_a_rack_are_several_groups() -> None:
    cluster = Cluster()
    for number in range(MOST_NODES + 2):
        cluster.add_node(f"n{number}")
    assert [len(names) for names in named(cluster).values()] == [MOST_NODES, 2]
    assert list(named(cluster)) == ["n0 to n31", "n32 to n33"]


def test_keys_are_unique_and_an_empty_cluster_has_no_group() -> None:
    keys = [group.key for group in groups(large(70))]
    assert len(set(keys)) == len(keys) == 3
    assert groups(Cluster()) == ()


def test_a_group_without_a_change_stays_the_same_object() -> None:
    cluster, grouper = large(64), Grouper()
    first = groups(cluster, grouper)
    cluster.set_health("gpu-40", 3)
    second = groups(cluster, grouper)
    assert second[0] is first[0]
    assert second[1] is not first[1]


def test_nodes_that_come_move_or_go_are_in_the_next_groups() -> None:
    cluster, grouper = one_node(), Grouper()
    groups(cluster, grouper)
    cluster.add_node("gpu-2", labels={LEAF: "a"})
    cluster.add_node("gpu-3", labels={LEAF: "a"})
    assert [group.title for group in groups(cluster, grouper)] == ["leaf a", "gpu-1"]
    cluster.remove_node("gpu-2")
    assert [group.title for group in groups(cluster, grouper)] == ["gpu-1 to gpu-3"]
