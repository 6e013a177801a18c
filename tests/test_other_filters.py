"""Filters that a seed draws refuse what they say, and leave the rest alone."""

from linkwise.kube.objects import ObjectMeta, Pod
from linkwise.topology import names
from tests.other_filters import Apart, Drawn, NodeClosed, Refused, drawn_filters


def pod(name: str, gang: str = "") -> Pod:
    said = {names.GANG: gang} if gang else {}
    return Pod(metadata=ObjectMeta(name=name, namespace="ml", uid=name, annotations=said))


def test_members_of_a_gang_are_kept_apart() -> None:
    apart = Apart(Drawn(0, 1), most=2)
    there = [pod("g-0", "g"), pod("h-0", "h")]
    assert apart(pod("g-1", "g"), "n1", there, 0.0) is None
    assert apart(pod("g-2", "g"), "n1", [*there, pod("g-1", "g")], 0.0)
    assert apart(pod("s"), "n1", there, 0.0) is None


def test_a_template_is_refused_on_the_same_nodes_each_time() -> None:
    refused = Refused(Drawn(1, 2, 2), begins=10.0, ends=20.0)
    nodes = [f"n{number}" for number in range(8)]
    names_of = [f"w{number}" for number in range(40)]
    hit = {
        (name, node) for name in names_of for node in nodes if refused(pod(name), node, (), 15.0)
    }
    assert 40 < len(hit) < 120
    assert all(refused(pod(f"{name}-7"), node, (), 10.0) for name, node in hit)
    assert not any(refused(pod(name), node, (), 20.0) for name, node in hit)


def test_a_node_is_closed_for_a_time() -> None:
    closed = NodeClosed("n1", 10.0, 20.0)
    assert [bool(closed(pod("p"), "n1", (), now)) for now in (9.0, 10.0, 20.0)] == [0, 1, 0]
    assert closed(pod("p"), "n2", (), 15.0) is None


def test_a_seed_draws_the_same_filters_each_time() -> None:
    nodes = ["n1", "n2", "n3"]
    assert drawn_filters(7, nodes, 0.0, 100.0) == drawn_filters(7, nodes, 0.0, 100.0)
    assert len({tuple(drawn_filters(seed, nodes, 0.0, 100.0)) for seed in range(9)}) == 9
