"""Plans that no pod carries: the gang is bound from memory, and a new leader completes it."""

from collections.abc import Sequence

import msgspec
import pytest

from linkwise.extender.next.gangs.members import UNWRITTEN_SECONDS
from linkwise.extender.state.actions import Action, WritePlan
from linkwise.extender.state.extender_calls import (
    BindOrder,
    BindRefusal,
    BindWaits,
    FilterCall,
    Outcome,
)
from linkwise.topology import names
from linkwise.topology.annotations.plan import PlannedMember, read_plan, write_plan
from linkwise.topology.machine.recorded import recorded_machine
from tests.divided import GPU, MIG_3G, all_three
from tests.extender.cluster import Cluster
from tests.extender.owned import four_nodes, job_set, of_set, there_is
from tests.extender.shares.cluster import ShareCluster

MEMBERS = "g-0", "g-1", "g-2"
HOLD = "example.com/hold"


@pytest.fixture
def at() -> Cluster:
    return four_nodes()


def ask(at: Cluster, name: str, *nodes: str) -> bool:
    """Whether kube-scheduler's call about the pod waits."""
    named = nodes or tuple(sorted(at.nodes))
    return at.core.filter(FilterCall(at.pod(name), named), at.now).passing


def come(at: Cluster, **said: str) -> list[Action]:
    """The first call about a gang waits for the others; return what is written then."""
    size = str(len(MEMBERS))
    at.add_pod(MEMBERS[0], 8, gang="g", gang_size=size, said=said)
    assert ask(at, MEMBERS[0])
    for name in MEMBERS[1:]:
        at.add_pod(name, 8, gang="g", gang_size=size, said=said)
    return at.settle()


def nodes_of(at: Cluster) -> dict[str, str]:
    """Where the extender lets the members through to."""
    found = {}
    for name in MEMBERS:
        (found[name],) = at.filter(name).node_names
    return found


def orders(at: Cluster, nodes: dict[str, str]) -> list[BindOrder]:
    """What the calls about all members get, once all have come."""
    first = [at.come_to_bind(name, nodes[name]) for name in MEMBERS]
    assert [type(each) for each in first[:-1]] == [BindWaits] * (len(MEMBERS) - 1)
    now = [first[-1], *(at.come_to_bind(name, nodes[name]) for name in MEMBERS[:-1])]
    assert all(isinstance(each, BindOrder) for each in now)
    return [each for each in now if isinstance(each, BindOrder)]


def plans(actions: Sequence[Action]) -> list[str]:
    return [action.pod.name for action in actions if isinstance(action, WritePlan)]


def test_a_gang_is_bound_without_a_write_of_its_plan(at: Cluster) -> None:
    written = come(at)
    nodes = nodes_of(at)
    for order in orders(at, nodes):
        at.end_bind(order)
    written += at.pass_time(10)
    assert plans(written) == []
    assert {name: at.pod(name).spec.node_name for name in MEMBERS} == nodes
    assert at.phase("g") == "running"
    assert at.sound()


@pytest.mark.parametrize(("size", "written"), [(16, 0), (17, 17)])
def test_bindings_carry_the_plan_of_few(at: Cluster, size: int, written: int) -> None:
    for rank in range(size):
        at.add_pod(f"g-{rank}", 1, gang="g", gang_size=str(size))
    assert ask(at, "g-0")
    assert len(plans(at.core.decide(at.now))) == written


@pytest.mark.parametrize("given_up", [False, True])
def test_a_plan_that_is_not_carried_out_is_written(at: Cluster, given_up: bool) -> None:
    assert plans(come(at)) == []
    if not given_up:  # else the call that waited has no successor
        nodes_of(at)
    assert plans(at.pass_time(UNWRITTEN_SECONDS / 2)) == []
    assert plans(at.pass_time(UNWRITTEN_SECONDS / 2)) == [*MEMBERS]
    nodes = nodes_of(at)
    assert at.places(*MEMBERS) == [*nodes.values()]
    for order in orders(at, nodes):
        assert read_plan(order.annotations[names.PLAN]).others == ()


@pytest.mark.parametrize("bound", range(len(MEMBERS) + 1))
@pytest.mark.parametrize("waits", [False, True])
def test_a_new_leader_completes_the_gang_where_it_was_planned(
    at: Cluster, bound: int, waits: bool
) -> None:
    """The leader ends after each of the Bindings. An older gang may be placed from then on."""
    if waits:
        at.add_gang("older", 2, gates=[HOLD])
        at.pass_time(60)
    come(at)
    nodes = nodes_of(at)
    for order in orders(at, nodes)[:bound]:
        at.end_bind(order)
    if waits:
        for name in ("older-0", "older-1"):
            at.lift(name, HOLD)
    at.restart()
    at.settle()
    if bound > 0:
        assert nodes_of(at) == nodes
        at.add_pod("other", 8)
        assert set(at.filter("other").node_names) <= {*at.nodes} - {*nodes.values()}
        for name in MEMBERS:
            if not at.pod(name).spec.node_name:
                at.bind(name, nodes[name])
    else:
        assert waits or all(at.schedule(name) for name in MEMBERS)
    at.settle()
    if waits and not bound:
        assert at.phase("older") == "planned"  # nothing had begun, so the older one is first
        return
    assert at.phase("g") == "running"
    assert at.sound()


def test_a_sample_and_a_gate_need_the_plan_on_the_pods(at: Cluster) -> None:
    many = tuple(f"m{number}" for number in range(100))
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    assert ask(at, "g-0", *at.nodes, *many)
    at.add_pod("g-1", 8, gang="g", gang_size="2")
    assert plans(at.settle()) == ["g-0", "g-1"]
    gated = four_nodes()
    gated.add_pod("g-0", 8, gang="g", gang_size="2")
    assert ask(gated, "g-0")
    gated.add_pod("g-1", 8, gang="g", gang_size="2", gates=[names.GATE])
    assert plans(gated.settle()) == ["g-0", "g-1"]


def test_a_refused_binding_leaves_no_member_unwritten(at: Cluster) -> None:
    come(at)
    nodes = nodes_of(at)
    first, *others = orders(at, nodes)
    for order in others:
        at.end_bind(order)
    at.core.end_bind(first, Outcome.REFUSED, at.now)
    assert plans(at.pass_time(UNWRITTEN_SECONDS)) == [first.name]
    assert not isinstance(at.come_to_bind(first.name, first.node), BindRefusal)


def test_a_node_names_only_members_of_its_pods_own_gang_and_free_gpus(at: Cluster) -> None:
    """Who has a node's credentials may write its pods' annotations."""
    at.add_pod("taken", 8, node="n3")
    come(at)
    nodes = nodes_of(at)
    order, *refused = orders(at, nodes)
    at.end_bind(order)
    for each in refused:
        at.core.end_bind(each, Outcome.REFUSED, at.now)
    assert len(plans(at.pass_time(UNWRITTEN_SECONDS))) == len(refused)
    others = [name for name in MEMBERS if name != order.name]
    at.annotate(others[0], plan="", gpus="")
    at.nominate(others[0], "")
    stranger = at.add_pod("stranger", 8, gang="s", gang_size="2")
    uids = [at.pod(name).metadata.uid for name in others]
    plan = read_plan(at.pod(order.name).metadata.annotations[names.PLAN])
    lies = (
        PlannedMember(stranger.metadata.uid, nodes[others[0]], 255),
        PlannedMember(uids[0], nodes[others[0]], 255 << 400),
        PlannedMember(uids[0], "n3", 255),
        PlannedMember(uids[0], "nowhere", 255),
        PlannedMember(uids[0], nodes[others[0]], 15),
        PlannedMember(uids[1], nodes[others[0]], 255),
        PlannedMember("unknown", nodes[others[0]], 255),
    )
    lying = msgspec.structs.replace(plan, others=lies)
    at.annotate(order.name, plan=write_plan(lying))
    at.restart()
    at.settle()
    assert at.core.take_defects() == []
    assert at.plan("stranger") is None
    assert at.places(*MEMBERS) == [*nodes.values()]
    assert at.sound()


def test_a_pod_in_no_gang_names_no_places(at: Cluster) -> None:
    for name in ("liar", "single"):
        at.add_pod(name, 4)
    node = at.schedule("liar")
    written = at.plan("liar")
    assert written is not None
    elsewhere = next(name for name in at.nodes if name != node)
    lies = (PlannedMember(at.pod("single").metadata.uid, elsewhere, 15),)
    at.write_plan("liar", msgspec.structs.replace(written, others=lies), at.gpus("liar"))
    at.restart()
    assert at.filter("single").node_names == (node,)


def test_a_binding_that_is_repeated_names_only_places_that_are_on_no_pod(at: Cluster) -> None:
    come(at)
    first, *refused = orders(at, nodes_of(at))
    at.core.end_bind(first, Outcome.UNKNOWN, at.now)
    for order in refused:
        at.core.end_bind(order, Outcome.REFUSED, at.now)
    assert len(plans(at.pass_time(UNWRITTEN_SECONDS))) == len(refused)
    for order in refused:
        at.come_to_bind(order.name, order.node)
    again = at.come_to_bind(first.name, first.node)
    assert isinstance(again, BindOrder)
    assert read_plan(again.annotations[names.PLAN]).others == ()


def started_without_the_last(at: Cluster) -> dict[str, str]:
    come(at, gang_min="2")
    nodes = nodes_of(at)
    for name in MEMBERS[:2]:
        at.come_to_bind(name, nodes[name])
    for name in MEMBERS[:2]:
        at.bind(name, nodes[name])
    return nodes


def test_a_place_of_a_gang_that_has_started_is_not_taken_from_an_older_one(at: Cluster) -> None:
    """A member that the gang can do without lost its place long ago."""
    nodes = started_without_the_last(at)
    at.cordon(nodes[MEMBERS[2]])
    at.add_pod("leaves", 8, node="n3")
    at.settle()
    at.terminate("leaves")
    at.uncordon(nodes[MEMBERS[2]])
    for name in ("first-0", "first-1"):
        at.add_pod(name, 8, gang="first", gang_size="2", priority=1)
    at.settle()
    at.restart()
    at.settle()
    at.delete("leaves")
    at.settle()
    assert at.places(MEMBERS[2], "first-0", "first-1") == ["", nodes[MEMBERS[2]], "n3"]


def test_a_member_whose_node_is_gone_keeps_none_from_being_bound(at: Cluster) -> None:
    """Its kubelet wrote another plan on it."""
    nodes = started_without_the_last(at)
    written = at.plan(MEMBERS[0])
    assert written is not None
    at.write_plan(MEMBERS[0], msgspec.structs.replace(written, epoch=0), at.gpus(MEMBERS[0]))
    at.set_phase(MEMBERS[0], "Succeeded")
    at.remove_node(nodes[MEMBERS[0]])
    at.bind(MEMBERS[2], nodes[MEMBERS[2]])
    assert at.core.take_defects() == []


def test_shares_that_a_binding_names_are_its_own_pods() -> None:
    at = ShareCluster()
    for node in ("n0", "n1"):
        at.add_divided(node, all_three(recorded_machine("dgx1-v100", node=node)))
    at.add_taker("g-0", {GPU: 2}, gang="g", gang_size="2")
    assert ask(at, "g-0")
    at.add_taker("g-1", {GPU: 2}, {MIG_3G: 1}, gang="g", gang_size="2")
    at.settle()
    nodes = at.filter("g-0").node_names + at.filter("g-1").node_names
    at.come_to_bind("g-0", nodes[0])
    order = at.come_to_bind("g-1", nodes[1])
    assert isinstance(order, BindOrder)
    at.end_bind(order)
    at.restart()
    at.settle()
    assert at.places("g-0", "g-1") == [*nodes]
    assert at.planned_shares("g-0") == {}


def test_a_member_with_shares_alone_names_no_places() -> None:
    """The others may lose theirs, and wait behind older gangs while it runs."""
    at = ShareCluster()
    at.add_divided("n0", all_three(recorded_machine("dgx1-v100", node="n0")))
    at.add_taker("g-0", {GPU: 2}, gang="g", gang_size="2")
    assert ask(at, "g-0")
    at.add_taker("g-1", {MIG_3G: 1}, gang="g", gang_size="2")
    assert plans(at.settle()) == []
    order = at.come_to_bind("g-1", "n0")
    assert isinstance(order, BindOrder)
    assert read_plan(order.annotations[names.PLAN]).others == ()


def test_the_places_of_a_gang_whose_owner_is_not_read_yet_are_kept(at: Cluster) -> None:
    """Its pods have several owners, the Jobs of a JobSet."""
    roles = "control", "worker"
    jobs = job_set()
    del jobs["spec"]["startupPolicy"]
    there_is(at, jobs)
    at.put_pod(of_set(roles[0]))
    at.settle()
    assert ask(at, "run-control")
    at.put_pod(of_set(roles[1]))
    assert plans(at.settle()) == []
    (first,), (other,) = at.filter("run-control").node_names, at.filter("run-worker").node_names
    at.come_to_bind("run-worker", other)
    order = at.come_to_bind("run-control", first)
    assert isinstance(order, BindOrder)
    at.end_bind(order)
    known, at.owners = at.owners, None
    at.restart()
    at.nominate("run-worker", "n3")  # kube-scheduler writes of it
    for name in ("a", "b", "c"):
        at.add_pod(name, 8)
        at.settle()
        if node := at.schedule(name):
            assert node not in (first, other)
    at.owners = known
    at.pass_time(60)
    assert at.places("run-worker") == [other]
    assert at.sound()
