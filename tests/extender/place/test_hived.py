"""Where gangs go in the scenarios of HiveD's test scripts (Microsoft, MIT licence), as what
has to hold: in which domain, together or apart, and who waits.

HiveD's cells are labels here, its virtual clusters node selectors, and what it wants *within* a
cell is `require-span`. Which GPUs exactly it takes depends on its own order of packing. Who is
evicted in cases 7 and 8 stands in preemption/test_gang_preemption.py. Parts of one gang that want
different cells are nothing that a gang can say here: a span is wanted of all its members.
"""

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.kube.objects import PodSpec
from tests.extender.cluster import Cluster, change

RACK = "example.com/rack"
CELL = "example.com/virtual-cluster"


def racks(*sizes: int, machine: str = "dgx1-v100") -> Cluster:
    """Racks r1, r2 … of so many nodes: n1, n2 … throughout."""
    at = Cluster(CoreSettings(span_levels=(RACK,)))
    number = 0
    for rack, size in enumerate(sizes, 1):
        for _ in range(size):
            number += 1
            at.add_node(f"n{number}", machine, labels={RACK: f"r{rack}"})
    return at


def where(at: Cluster, members: list[str]) -> list[str]:
    at.settle()
    plans = [at.plan(member) for member in members]
    assert all(plans), at.core.gangs(at.now)
    return [plan.node for plan in plans if plan is not None]


def waits(at: Cluster, members: list[str]) -> bool:
    at.settle()
    return not any(at.plan(member) for member in members)


def gang_in(at: Cluster, cell: str, name: str, size: int, gpus: int, **said: str) -> list[str]:
    """A gang of one virtual cluster."""
    members = at.add_gang(name, size, gpus, **said)
    for member in members:
        pod = at.pod(member)
        spec: PodSpec = change(pod.spec, node_selector={CELL: cell})
        at.put_pod(change(pod, spec=spec))
    return members


def give(at: Cluster, cell: str, *nodes: str) -> None:
    for name in nodes:
        node = at.nodes[name]
        labels = {**node.metadata.labels, CELL: cell}
        at.put_node(change(node, metadata=change(node.metadata, labels=labels)))


def test_case_1_a_gang_within_a_node_is_not_split_over_what_is_left_of_another() -> None:
    at = racks(2, 2)
    at.add_pod("a", 5, node="n1")
    (node,) = set(where(at, at.add_gang("b", 4, 1, require_span="node")))
    assert node != "n1"
    assert at.evicted == []


def test_case_3_members_that_want_a_pair_each_are_on_as_few_nodes_as_can_be() -> None:
    at = racks(2, 2)
    at.add_pod("a", 1, node="n1")
    assert len(set(where(at, at.add_gang("b", 4, 2)))) == 1
    # Where it can be no fewer than two, one of them is filled whole.
    (first, *_, last) = where(at, at.add_gang("c", 7, 2))
    assert first != last
    assert at.free(first) == 0


def test_case_5_whole_nodes_within_a_rack_leave_the_rack_that_is_not_whole() -> None:
    at = racks(2, 2)
    at.add_pod("a", 1, node="n1")
    assert where(at, at.add_gang("b", 2, 8, require_span=RACK)) == ["n3", "n4"]


def test_case_8_without_a_wish_for_a_rack_free_nodes_of_two_racks_will_do() -> None:
    at = racks(2, 2)
    for node in ("n1", "n3"):
        at.add_pod(f"on-{node}", 5, node=node)
    within = at.add_gang("c", 2, 8, require_span=RACK)
    assert waits(at, within)
    for member in within:
        at.delete(member)
    assert where(at, at.add_gang("d", 2, 8)) == ["n2", "n4"]
    assert at.evicted == []


def test_case_10_who_waits_for_a_rack_keeps_no_other_from_going() -> None:
    at = racks(2, 2, 2)
    give(at, "1", "n1", "n2", "n3", "n4")
    give(at, "2", "n5", "n6")
    at.add_pod("a", 5, node="n1")
    for number, node in enumerate(("n2", "n2", "n3")):
        at.add_pod(f"b-{number}", 4, node=node)
    assert waits(at, gang_in(at, "1", "c", 13, 1, require_span=RACK))
    assert where(at, gang_in(at, "2", "d", 2, 5)) == ["n5", "n6"]
    for rank in range(13):
        at.delete(f"c-{rank}")
    # 3, 4 and 8 GPUs are left in three nodes of the two racks.
    assert set(where(at, gang_in(at, "1", "e", 13, 1))) == {"n1", "n3", "n4"}


def test_case_12_a_gang_waits_where_too_many_nodes_are_bad_and_the_others_go() -> None:
    at = racks(2, 2, 2)
    for node in ("n4", "n5", "n6"):
        at.set_ready(node, ready=False)
    give(at, "1", "n3", "n4", "n5", "n6")
    give(at, "2", "n1", "n2")
    assert where(at, gang_in(at, "1", "a", 1, 1)) == ["n3"]
    assert where(at, gang_in(at, "2", "b", 1, 1))[0] in ("n1", "n2")
    assert waits(at, gang_in(at, "1", "c", 4, 4))


def test_case_15_fifteen_within_a_rack_take_two_nodes_of_one_and_leave_the_other_rack_whole() -> (
    None
):
    at = racks(4, 4)
    assert set(where(at, at.add_gang("a", 15, 1, require_span=RACK))) == {"n1", "n2"}
    assert where(at, at.add_gang("b", 4, 8, require_span=RACK)) == ["n5", "n6", "n7", "n8"]


def test_case_15_parts_that_want_a_switch_and_parts_that_do_not_share_what_is_left() -> None:
    """HiveD's parts are pods of one GPU that want a switch together; here each is one pod."""
    at = racks(4, 4)
    assert set(where(at, at.add_gang("a", 15, 1, require_span=RACK))) == {"n1", "n2"}
    for node in ("n3", "n4"):
        at.add_pod(f"on-{node}", 4, node=node)
        at.set_in_use(node, {f"ml/on-{node}": {"main": at.uuids(node, 2, 3, 4, 5)}})
    for node in ("n5", "n6", "n7", "n8"):
        at.add_pod(f"on-{node}", 8, node=node)
    for part in range(2):
        at.add_pod(f"d-{part}", 2, gang="d", gang_size="6", rank=f"{part}", require_link="switch")
    for rank in range(2, 6):
        at.add_pod(f"d-{rank}", 1, gang="d", gang_size="6", rank=f"{rank}")
    assert set(where(at, [f"d-{rank}" for rank in range(6)])) == {"n3", "n4"}
    assert {at.indices(f"d-{part}") for part in range(2)} <= {(0, 1), (6, 7)}
    assert at.evicted == []
