"""The explanation of a gang that waits for a span: at which level it fails, which domain comes
nearest, and which pods or gangs have the GPUs there."""

import pytest

from linkwise.extender.next.queue.waiting_events import MOMENT_SECONDS
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.views import GangExplanation
from linkwise.pods.spans import CLIQUE, NODE
from tests.extender.cluster import Cluster

ZONE = "topology.kubernetes.io/zone"
# Clique B is over two zones, and two of zone west are in another clique.
PLACES = {
    "a1": ("A", "east"),
    "a2": ("A", "east"),
    "b1": ("B", "east"),
    "b2": ("B", "east"),
    "b3": ("B", "west"),
    "c1": ("C", "west"),
    "c2": ("C", "west"),
}


def three_cliques() -> Cluster:
    at = Cluster()
    for name, (clique, zone) in PLACES.items():
        at.add_node(name, "hgx-h100", labels={CLIQUE: clique, ZONE: zone})
    return at


def waiting(at: Cluster, members: list[str]) -> GangExplanation:
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    assert not any(map(at.plan, members))
    found = at.core.explain("ml", members[0], at.now)
    assert found is not None
    assert found.gang is not None
    return found.gang


def in_text(at: Cluster, it: GangExplanation) -> str:
    return explanation_text.gang(it, at.now)


def told(at: Cluster) -> list[str]:
    return [event.message for event in at.events if event.reason == "GangWaiting"]


def test_of_domains_with_as_much_room_the_nearest_is_one_that_could_hold_the_gang() -> None:
    """Two of three nodes are free in each clique, and only one clique has three."""
    at = three_cliques()
    at.add_pod("other", 8, node="b2")
    gang = waiting(at, at.add_gang("g", 3, require_span="clique"))
    assert gang.nearest is not None
    assert (gang.nearest.level, gang.nearest.place) == (CLIQUE, "B")
    assert [holder.pod for holder in gang.nearest.holders] == ["ml/other"]
    assert gang.gang.reason == f"room for 2 of 3 members; most in one domain: {CLIQUE} B, 2"


def test_a_domain_that_is_too_small_is_no_near_miss_however_much_of_it_is_free() -> None:
    at = three_cliques()
    at.add_pod("other", 8, node="b2")
    at.add_pod("else", 8, node="b3")
    gang = waiting(at, at.add_gang("g", 3, require_span="clique"))
    assert gang.nearest is not None
    assert gang.nearest.place == "B"
    assert gang.nearest.lacks == "lacks room for 2 of 3 pods"
    assert gang.gang.reason == f"room for 2 of 3 members; most in one domain: {CLIQUE} B, 1"


def test_where_only_both_levels_together_fail_both_are_told() -> None:
    """Clique B holds three, and zone east does."""
    at = three_cliques()
    gang = waiting(at, at.add_gang("g", 3, require_span=f"clique,{ZONE}"))
    level = gang.levels[-1]
    assert level.level == f"{CLIQUE},{ZONE}"
    assert level.wanted == f"have room at once in one domain of {CLIQUE} and one of {ZONE}"
    assert (level.have, level.of) == (2, 3)
    assert gang.nearest is not None
    assert gang.nearest.level == f"{CLIQUE},{ZONE}"
    assert gang.nearest.place == "A,east"  # of two that are alike, the first by its nodes' names
    assert f"  nearest   {CLIQUE} A and {ZONE} east: lacks room for 1 of 3 pods" in in_text(
        at, gang
    )


def test_who_has_the_gpus_of_a_domain_of_two_levels_is_told() -> None:
    at = three_cliques()
    at.add_pod("here", 8, node="a2")
    for node in ("b1", "c1"):
        at.add_pod(f"on-{node}", 8, node=node)
    gang = waiting(at, at.add_gang("g", 2, require_span=f"clique,{ZONE}"))
    assert gang.nearest is not None
    assert gang.nearest.place == "A,east"
    assert [holder.pod for holder in gang.nearest.holders] == ["ml/here"]


def test_that_no_node_has_the_label_is_told() -> None:
    at = three_cliques()
    gang = waiting(at, at.add_gang("g", 2, require_span="example.com/rack"))
    assert [missing.reason for missing in gang.levels[-1].missing] == ["no node has this label"]
    never = "; not for enough of them, even without other pods"
    assert gang.gang.reason == f"room for 0 of 2 members in one domain of example.com/rack{never}"


@pytest.mark.parametrize(
    ("size", "require", "within"),
    [
        (3, NODE, "one node"),
        (4, f"{ZONE},clique", f"one {CLIQUE}"),  # one zone holds four
        (3, f"clique,{ZONE}", f"one {CLIQUE} and one {ZONE}"),
    ],
)
def test_the_reason_names_what_the_gang_has_to_have_in_common(
    size: int, require: str, within: str
) -> None:
    at = three_cliques()
    waiting(at, at.add_gang("g", size, require_span=require))
    why = f"no room for the whole gang within {within}"
    assert set(at.filter("g-0").failed.values()) == {f"linkwise: gang g: {why}"}
    assert told(at) == [f"gang ml/g: {why}"]


def test_where_there_is_no_room_anywhere_no_span_is_to_blame() -> None:
    at = three_cliques()
    waiting(at, at.add_gang("g", 8, require_span="clique"))
    assert told(at) == ["gang ml/g: no room for the whole gang"]
