"""The bind verb: which GPUs, how often asked, and what stays reserved until the outcome shows."""

from linkwise.extender.calls.bind import DOUBT_SECONDS
from linkwise.extender.state.actions import WritePlan
from linkwise.extender.state.cache.pending_writes import NOMINATE_SECONDS
from linkwise.extender.state.extender_calls import (
    AlreadyBound,
    BindCall,
    BindOrder,
    BindRefusal,
    Outcome,
)
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from tests.extender.cluster import Cluster, container


def cluster(nodes: int = 2, machine: str = "dgx1-v100") -> Cluster:
    made = Cluster()
    for number in range(1, nodes + 1):
        made.add_node(f"n{number}", machine)
    return made


def order(at: Cluster, name: str, node: str) -> BindOrder:
    given = at.begin_bind(name, node)
    assert isinstance(given, BindOrder), given
    return given


def refusal(at: Cluster, name: str, node: str) -> str:
    given = at.begin_bind(name, node)
    assert isinstance(given, BindRefusal), given
    return given.reason


def test_a_single_pods_gpus_are_chosen_and_written_with_what_they_are_worth() -> None:
    at = cluster(machine="a100-pcie-8-bridged")
    at.add_pod("a", 2)
    given = order(at, "a", "n1")
    plan = read_plan(given.annotations[names.PLAN])
    assert (plan.node, plan.link, plan.epoch, plan.made) == ("n1", "NVLINK", 1, at.now)
    assert plan.gbytes_per_s == 210.0  # a bridged A100 pair: 7/8 of 12 links of 20 GB/s
    (gpus,) = read_gpus(given.annotations[names.GPUS]).values()
    assert frozenset(gpus) in [
        frozenset(at.uuids("n1", *pair)) for pair in ((0, 2), (1, 3), (4, 5), (6, 7))
    ]


def test_the_same_question_gets_the_same_answer_while_the_binding_is_on_its_way() -> None:
    at = cluster()
    at.add_pod("a", 2)
    assert order(at, "a", "n1") == order(at, "a", "n1")
    assert at.free("n1") == 6


def test_of_two_orders_for_one_binding_the_one_that_lost_takes_nothing_back() -> None:
    at = cluster()
    at.add_pod("a", 2)
    first, second = order(at, "a", "n1"), order(at, "a", "n1")
    at.core.end_bind(second, Outcome.REFUSED, at.now)  # 409: the first was quicker
    assert at.free("n1") == 6
    at.core.end_bind(first, Outcome.DONE, at.now)
    assert at.free("n1") == 6
    assert at.post_binding(first)
    assert at.free("n1") == 6
    assert at.sound()


def test_binding_again_where_it_is_bound_is_no_error() -> None:
    at = cluster()
    at.add_pod("a", 2)
    at.bind("a", "n1")
    assert at.begin_bind("a", "n1") == AlreadyBound()
    assert "bound to node n1" in refusal(at, "a", "n2")


def test_a_pod_of_another_uid_or_an_unknown_one_is_refused() -> None:
    at = cluster()
    at.add_pod("a", 2)
    given = at.core.begin_bind(BindCall("ml", "a", "another-uid", "n1"), at.now)
    assert given == BindRefusal("linkwise: pod ml/a is not known yet", passing=True)


def test_no_binding_overtakes_the_write_of_a_plan() -> None:
    """The write would come after it, and say of a bound pod what an older plan said."""
    at = cluster()
    members = at.add_gang("g", 2)
    writes = [write for write in at.core.decide(at.now) if isinstance(write, WritePlan)]
    assert len(writes) == 2
    given = at.begin_bind(members[0], read_plan(writes[0].annotations[names.PLAN]).node)
    assert given == BindRefusal("linkwise: a plan is being written on the pod", passing=True)
    for write in writes:
        at.core.done(write, at.carry_out(write), at.now)
    plan = read_plan(at.pod(members[0]).metadata.annotations[names.PLAN])
    assert read_plan(order(at, members[0], plan.node).annotations[names.PLAN]) == plan


def test_what_was_free_at_filter_may_be_gone_at_bind() -> None:
    at = cluster()
    at.add_pod("a", 8)
    at.add_pod("b", 8)
    assert "n1" in at.filter("b").node_names
    at.bind("a", "n1")
    assert refusal(at, "b", "n1") == "linkwise: node n1: no free GPU set that will do"
    assert "no such node" in refusal(at, "b", "stranger")


def test_a_pod_that_ends_or_was_never_valid_is_refused() -> None:
    at = cluster()
    at.add_pod("going", 1)
    at.terminate("going")
    at.add_pod("wrong", 1, gpu_memory="lots")
    assert "ending" in refusal(at, "going", "n1")
    assert "linkwise.dev/gpu-memory" in refusal(at, "wrong", "n1")


def test_a_pod_without_gpus_is_bound_as_it_is() -> None:
    at = cluster()
    at.add_pod("web")
    assert order(at, "web", "n1").annotations == {}


def test_a_binding_without_an_answer_is_held_until_the_pod_tells() -> None:
    at = cluster()
    at.add_pod("a", 8)
    given = order(at, "a", "n1")
    at.core.end_bind(given, Outcome.UNKNOWN, at.now)
    at.pass_time(DOUBT_SECONDS / 2)
    assert at.free("n1") == 0
    assert at.filter("a").node_names == ("n1",)
    assert at.post_binding(given)
    at.pass_time(DOUBT_SECONDS)
    assert at.free("n1") == 0
    assert at.sound()


def test_a_binding_that_is_made_again_names_no_gpus_that_another_pod_has_got_since() -> None:
    at = cluster()
    at.add_pod("a", 4)
    at.add_pod("b", 4)
    given = order(at, "a", "n1")
    at.core.end_bind(given, Outcome.UNKNOWN, at.now)
    at.bind("b", "n1")
    (taken,) = read_gpus(given.annotations[names.GPUS]).values()
    at.start("b", {"main": taken})
    again = order(at, "a", "n1")
    (others,) = read_gpus(again.annotations[names.GPUS]).values()
    assert not {*taken} & {*others}
    at.core.end_bind(again, Outcome.UNKNOWN, at.now)
    sick = at.machine("n1").indices_of(at.machine("n1").mask_of(others[:1]))
    at.set_health("n1", *sick)
    assert isinstance(at.begin_bind("a", "n1"), BindRefusal)
    at.set_health("n1")
    again = order(at, "a", "n1")
    at.core.end_bind(again, Outcome.DONE, at.now)
    assert at.post_binding(again)
    assert at.sound()


def test_a_pod_whose_binding_had_no_answer_is_nominated_where_it_may_have_happened() -> None:
    """Found on a large cluster: kube-scheduler asked about samples without that node."""
    at = cluster()
    at.add_pod("a", 2)
    at.core.end_bind(order(at, "a", "n1"), Outcome.UNKNOWN, at.now)
    at.settle()
    assert at.pod("a").status.nominated_node_name == "n1"
    at.nominate("a", "")  # as kube-scheduler does when it finds no node
    at.settle()
    at.pass_time(NOMINATE_SECONDS)
    assert at.pod("a").status.nominated_node_name == "n1"
    assert at.schedule("a") == "n1"
    assert at.pass_time(60) == []


def test_so_is_a_member_of_a_gang() -> None:
    at = cluster()
    at.add_gang("g", 2, 8)
    at.settle()
    at.core.end_bind(order(at, "g-0", "n1"), Outcome.UNKNOWN, at.now)
    at.nominate("g-0", "")
    at.settle()
    assert at.pod("g-0").status.nominated_node_name == "n1"


def test_a_binding_that_never_shows_is_let_go_after_a_while() -> None:
    at = cluster()
    at.add_pod("a", 8)
    given = order(at, "a", "n1")
    at.core.end_bind(given, Outcome.UNKNOWN, at.now)
    at.core.decide(at.now)
    assert at.core.next_due() == at.now + DOUBT_SECONDS
    at.pass_time(DOUBT_SECONDS)
    assert at.free("n1") == 8
    assert at.filter_again("a").node_names == ("n1", "n2")


def test_no_doubt_ends_while_another_order_is_on_its_way() -> None:
    at = cluster()
    at.add_pod("a", 8)
    at.core.end_bind(order(at, "a", "n1"), Outcome.UNKNOWN, at.now)
    at.now += DOUBT_SECONDS - 1
    again = order(at, "a", "n1")
    at.pass_time(2)
    assert at.free("n1") == 0
    at.core.end_bind(again, Outcome.REFUSED, at.now)
    at.settle()
    assert at.free("n1") == 8


def test_no_doubt_ends_while_nothing_can_be_heard_of_the_pod() -> None:
    at = cluster()
    at.add_pod("a", 8)
    given = order(at, "a", "n1")
    at.core.end_bind(given, Outcome.UNKNOWN, at.now)
    at.now += DOUBT_SECONDS
    at.core.unheard(at.now)
    at.settle()
    assert at.free("n1") == 0
    assert at.post_binding(given)  # what the broken watch did not show
    assert at.free("n1") == 0
    assert at.sound()


def test_a_refusal_after_a_binding_in_doubt_leaves_the_doubt() -> None:
    at = cluster()
    at.add_pod("a", 8)
    at.core.end_bind(order(at, "a", "n1"), Outcome.UNKNOWN, at.now)
    at.core.end_bind(order(at, "a", "n1"), Outcome.REFUSED, at.now)  # 409 of one that is bound
    assert at.free("n1") == 0


def test_a_hold_goes_with_its_pod() -> None:
    at = cluster()
    at.add_pod("a", 8)
    given = order(at, "a", "n1")
    at.delete("a")
    assert at.free("n1") == 8
    at.core.end_bind(given, Outcome.REFUSED, at.now)
    assert at.sound()


def test_a_member_is_bound_where_it_is_planned_and_with_what_was_planned() -> None:
    at = cluster()
    at.add_gang("g", 2, 8)
    assert "has no plan" in refusal(at, "g-0", "n1")
    at.settle()
    assert refusal(at, "g-0", "n2") == "linkwise: gang g: planned on node n1"
    written = at.pod("g-0").metadata.annotations
    given = order(at, "g-0", "n1").annotations
    assert given == {key: written[key] for key in (names.GPUS, names.PLAN)}


def test_a_member_whose_gpus_were_taken_is_not_let_through_on_its_plan() -> None:
    at = cluster(nodes=1)
    at.add_gang("g", 1, 4)
    at.settle()
    at.add_pod("foreign", 4, node="n1")
    at.set_in_use("n1", {"ml/foreign": {"main": at.uuids("n1", *at.indices("g-0"))}})
    # Before the next decision: the plan is still written, and cannot be carried out.
    assert at.filter("g-0").failed == {"n1": "linkwise: gang g: its plan is being made"}
    assert refusal(at, "g-0", "n1") == "linkwise: gang g: its plan is being made again"
    at.settle()
    assert at.schedule("g-0") == "n1"


def test_the_largest_container_chooses_first() -> None:
    at = cluster(nodes=1, machine="h200-nvl-2x4")  # islands 0-3 and 4-7
    at.add_pod("busy", 3, node="n1")
    at.set_in_use("n1", {"ml/busy": {"main": at.uuids("n1", 3, 6, 7)}})
    at.add_pod("a", containers=[container("small", 2), container("large", 3)])
    at.bind("a", "n1")
    assert set(at.gpus("a")["large"]) == set(at.uuids("n1", 0, 1, 2))
    assert set(at.gpus("a")["small"]) == set(at.uuids("n1", 4, 5))


def test_init_containers_reuse_what_later_containers_get() -> None:
    at = cluster(machine="hgx-h100")
    at.add_pod(
        "a",
        init=[container("i1", 2), container("side", 1, restart_policy="Always")],
        containers=[container("c1", 2), container("c2", 1)],
    )
    at.bind("a", "n1")
    gpus = at.gpus("a")
    assert [len(gpus[name]) for name in ("i1", "side", "c1", "c2")] == [2, 2, 3, 1]
    # One GPU of the first is handed on to the sidecar, the other to c1, as the kubelet likes.
    assert at.free("n1") == 4
    assert set(gpus["i1"]) <= set(gpus["side"]) | set(gpus["c1"])
    assert len({*gpus["side"], *gpus["c1"], *gpus["c2"]}) == 4
