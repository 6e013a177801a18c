"""The preempt verb: kube-scheduler's victims on one node, made whole, and only where that helps."""

from itertools import combinations

import pytest

from linkwise.extender.next.queue.unschedulable_pods import MOMENT_SECONDS, SOON_SECONDS
from linkwise.extender.state.extender_calls import PreemptCall, Victims
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.next.preemption.victims import budget, label
from tests.extender.preempt_call import preempt


def cluster(nodes: int = 2, machine: str = "dgx1-v100") -> Cluster:
    at = Cluster()
    for number in range(1, nodes + 1):
        at.add_node(f"n{number}", machine)
    return at


def run(at: Cluster, name: str, gpus: int, node: str, priority: int = 0, **words: str) -> str:
    at.add_pod(name, gpus, priority=priority, said=words)
    at.bind(name, node)
    at.settle()
    return name


def run_gang(at: Cluster, name: str, nodes: list[str], gpus: int = 4, **words: str) -> None:
    for rank in range(len(nodes)):
        said = {"gang": name, "gang_size": str(len(nodes)), "rank": str(rank), **words}
        at.add_pod(f"{name}-{rank}", gpus, said=said)
    at.settle()
    for rank in range(len(nodes)):
        assert at.schedule(f"{name}-{rank}")
    at.settle()
    assert sorted(at.pod(f"{name}-{rank}").spec.node_name for rank in range(len(nodes))) == nodes


def test_the_other_members_on_the_node_go_too() -> None:
    at = cluster(1)
    run_gang(at, "g", ["n1", "n1"])
    at.add_pod("urgent", 4, priority=1)
    assert preempt(at, "urgent", n1=["g-0"]) == {"n1": ["g-0", "g-1"]}


def test_a_node_where_that_would_leave_half_a_gang_elsewhere_is_left_out() -> None:
    at = cluster(3)
    run_gang(at, "g", ["n1", "n2"], gpus=8)
    run(at, "alone", 8, "n3")
    at.add_pod("urgent", 4, priority=1)
    assert preempt(at, "urgent", n1=["g-0"], n3=["alone"]) == {"n3": ["alone"]}


def test_a_node_whose_named_victims_are_elsewhere_too_is_left_out() -> None:
    """From Kubernetes 1.37 on, kube-scheduler may name all pods of a group, and ends the whole
    preemption if an answer has a victim that is not on its node."""
    at = cluster(3)
    run_gang(at, "g", ["n1", "n2"], gpus=8)
    run(at, "alone", 8, "n3")
    at.add_pod("urgent", 4, priority=1)
    whole = ["g-0", "g-1"]
    assert preempt(at, "urgent", n1=whole, n2=whole, n3=["alone"]) == {"n3": ["alone"]}
    at.add_pod("no-gpus", 0, priority=1)
    assert preempt(at, "no-gpus", n1=whole, n3=["alone"]) == {"n3": ["alone"]}


def test_members_that_a_gang_can_spare_may_go_alone() -> None:
    at = cluster(2)
    run_gang(at, "g", ["n1", "n2"], gpus=8, gang_min="1")
    at.add_pod("urgent", 8, priority=1)
    assert preempt(at, "urgent", n1=["g-0"]) == {"n1": ["g-0"]}


def test_where_only_links_are_missing_the_cheapest_victims_are_named_here() -> None:
    """Newer kube-schedulers ask with no victims where all their own plugins had agreed."""
    at = cluster(1, "a100-pcie-8-bridged")  # four pairs
    machine = at.machine("n1")
    one_of_each = [a for a, b in combinations(range(8), 2) if machine.link(a, b).nvlinks]
    assert len(one_of_each) == 4
    for number, priority in enumerate((5, 1, 0, 1)):
        run(at, f"p{number}", 1, "n1", priority=priority)
    for number, position in enumerate(one_of_each):
        at.start(f"p{number}", {"main": at.uuids("n1", position)})
    at.settle()
    at.add_pod("urgent", 2, priority=2, require_link="nvlink")
    assert at.filter("urgent").failed == {"n1": "linkwise: no free GPU set with the required link"}
    assert preempt(at, "urgent", n1=[]) == {"n1": ["p2"]}


def test_no_victims_and_room_without_them_is_a_yes() -> None:
    at = cluster(1)
    at.add_pod("urgent", 8, priority=1)
    assert preempt(at, "urgent", n1=[]) == {"n1": []}


def test_no_victims_and_nobody_less_important_is_a_no() -> None:
    at = cluster(1)
    run(at, "equal", 8, "n1", priority=1)
    at.add_pod("urgent", 8, priority=1)
    assert preempt(at, "urgent", n1=[]) == {}


def test_what_is_held_for_somebody_more_urgent_is_no_room() -> None:
    at = cluster(2)
    run(at, "humble", 4, "n1", priority=-1)
    run(at, "other", 4, "n2", priority=-1)
    for rank in range(2):
        said = {"gang": "g", "gang_size": "2", "rank": str(rank)}
        at.add_pod(f"g-{rank}", 8, priority=2, said=said)
    at.settle()
    at.add_pod("middle", 4, priority=1)
    at.add_pod("urgent", 4, priority=3)
    assert preempt(at, "middle", n1=["humble"], n2=["other"]) == {}
    assert preempt(at, "urgent", n1=["humble"]) == {"n1": ["humble"]}


def test_a_pod_that_preempts_never_gets_no_node() -> None:
    at = cluster(1)
    run(at, "humble", 8, "n1")
    polite = at.add_pod("polite", 8, priority=1)
    at.put_pod(change(polite, spec=change(polite.spec, preemption_policy="Never")))
    assert preempt(at, "polite", n1=["humble"]) == {}


def test_who_is_added_counts_against_the_budgets() -> None:
    at = cluster(1)
    run_gang(at, "g", ["n1", "n1"])
    for member in ("g-0", "g-1"):
        label(at, member, app="guarded")
    at.core.replace_budgets([budget(1, app="guarded")], at.now)
    at.add_pod("urgent", 4, priority=1)
    victims = {"n1": Victims((at.pod("g-0").metadata.uid,))}
    answer = at.core.preempt(PreemptCall(at.pod("urgent"), victims), at.now)
    assert answer.victims["n1"].pdb_violations == 1


def test_nobody_is_added_before_the_budgets_are_known() -> None:
    at = cluster(2)
    run_gang(at, "g", ["n1", "n1"])
    run(at, "alone", 8, "n2")
    at.add_pod("urgent", 4, priority=1)
    at.core = type(at.core)(at.settings)
    at.core.replace_nodes(at.nodes.values(), at.now)
    at.core.replace_pods(at.pods.values(), at.now)
    assert preempt(at, "urgent", n1=["g-0"], n2=["alone"]) == {"n2": ["alone"]}
    at.core.replace_budgets([], at.now)
    assert preempt(at, "urgent", n1=["g-0"]) == {"n1": ["g-0", "g-1"]}


# No pod is evicted for GPUs that are about to be free.


def two_full_nodes() -> Cluster:
    """All GPUs of n1 are in use by `first`, all of n2 by `second`, and room is made on n1."""
    at = cluster(2)
    for name, node in (("first", "n1"), ("second", "n2")):
        at.start(run(at, name, 8, node))
    at.add_pod("urgent", 8, priority=1)
    both = {"n1": ["first"], "n2": ["second"]}
    assert preempt(at, "urgent", **both) == both
    at.nominate("urgent", "n1")
    at.settle()
    return at


def refuse(at: Cluster, name: str, *nodes: str) -> None:
    """kube-scheduler sees room on these nodes for a pod, and the extender does not."""
    assert at.filter(name, nodes).node_names == ()


def seconds_until_woken(at: Cluster, name: str) -> float:
    """Until its nomination is another: then kube-scheduler tries it again."""
    at.settle()
    began, nominated = at.now, at.pod(name).status.nominated_node_name
    while at.pod(name).status.nominated_node_name == nominated:
        due = at.core.next_due()
        assert due is not None, "it is forgotten"
        at.now = max(due, at.now)
        assert at.settle() or due > began, "no end"
    return at.now - began


def test_where_kube_scheduler_hears_of_a_deletion_before_we_do_nobody_else_goes() -> None:
    at = two_full_nodes()
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n2=["second"]) == {}
    at.delete("first")
    at.stop("first", "n1")
    assert seconds_until_woken(at, "urgent") == MOMENT_SECONDS
    assert at.schedule("urgent") == "n1"


def test_where_a_pod_is_gone_and_its_gpus_are_not_given_back_yet_nobody_else_goes() -> None:
    at = two_full_nodes()
    at.delete("first")
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n2=["second"]) == {}
    at.stop("first", "n1")
    assert seconds_until_woken(at, "urgent") == MOMENT_SECONDS
    assert at.schedule("urgent") == "n1"


def test_where_we_hear_of_room_while_kube_scheduler_looks_for_victims_nobody_goes() -> None:
    at = two_full_nodes()
    refuse(at, "urgent", "n1")
    at.delete("first")
    at.stop("first", "n1")
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    assert preempt(at, "urgent", n2=["second"]) == {}
    assert seconds_until_woken(at, "urgent") == MOMENT_SECONDS


def test_a_new_node_that_we_have_not_heard_of_is_waited_for() -> None:
    at = two_full_nodes()
    refuse(at, "urgent", "n3")
    assert preempt(at, "urgent", n2=["second"]) == {}
    at.add_node("n3")
    assert seconds_until_woken(at, "urgent") == MOMENT_SECONDS


def test_newer_kube_schedulers_hear_of_that_node_that_nobody_need_go() -> None:
    at = two_full_nodes()
    at.delete("first")
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n1=[], n2=["second"]) == {"n1": []}
    at.stop("first", "n1")
    assert seconds_until_woken(at, "urgent") == MOMENT_SECONDS


@pytest.mark.parametrize("nominated", ["n1", ""])
def test_gpus_that_nobody_gives_back_are_waited_for_once_and_not_for_long(nominated: str) -> None:
    at = two_full_nodes()
    at.nominate("urgent", nominated)
    at.delete("first")
    began = at.now
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n2=["second"]) == {}
    at.now += SOON_SECONDS / 2
    refuse(at, "urgent", "n1")  # it came again by itself
    assert preempt(at, "urgent", n2=["second"]) == {}
    seconds_until_woken(at, "urgent")
    assert at.now == began + SOON_SECONDS
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n2=["second"]) == {"n2": ["second"]}


def test_the_next_node_is_waited_for_again() -> None:
    at = two_full_nodes()
    at.delete("first")
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n2=["second"]) == {}
    at.now += SOON_SECONDS
    at.delete("second")
    run(at, "third", 8, at.add_node("n3").metadata.name)
    refuse(at, "urgent", "n1", "n2")
    assert preempt(at, "urgent", n3=["third"]) == {}


@pytest.mark.parametrize("asks", [True, False])
def test_who_waited_in_vain_and_finds_no_victims_is_woken_once(asks: bool) -> None:
    at = two_full_nodes()
    at.add_node("n3")
    for name, gpus in (("large", 7), ("small", 1)):
        run(at, name, gpus, "n3")
    at.delete("first")
    at.nominate("urgent", "")
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent") == {}
    seconds_until_woken(at, "urgent")
    if asks:  # else kube-scheduler found no pod that may be evicted
        refuse(at, "urgent", "n1")
        assert preempt(at, "urgent") == {}
    at.nominate("urgent", "")
    at.delete("small")  # there is more room, if not enough
    at.settle()
    assert [at.pass_time(10.0) for _ in range(10)] == [[]] * 10


def test_what_was_waited_for_is_forgotten_by_who_was_let_through_since() -> None:
    """And was not bound: another took the node, before kube-scheduler asked about victims."""
    at = two_full_nodes()
    at.delete("first")
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n2=["second"]) == {}
    at.stop("first", "n1")
    assert at.filter("urgent", ("n1",)).node_names == ("n1",)
    run(at, "other", 8, "n1")
    preempt(at, "urgent")
    refuse(at, "urgent", "n1")
    at.delete("other")  # there may be room
    at.settle()
    assert at.pass_time(MOMENT_SECONDS) == []
    assert at.core.take_defects() == []


def test_a_node_on_which_somebody_is_to_go_is_none_to_wait_for() -> None:
    at = two_full_nodes()
    refuse(at, "urgent", "n1")  # and then another pod went there
    asked = {"n1": ["first"], "n2": ["second"]}
    assert preempt(at, "urgent", **asked) == asked


def test_gpus_that_are_promised_to_others_are_no_reason_to_wait() -> None:
    at = cluster(2)
    at.start(run(at, "second", 8, "n2"))
    at.add_pod("planned", 8, gates=[names.GATE])
    at.settle()
    assert at.plan("planned") is not None
    at.add_pod("urgent", 8, priority=1)
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n2=["second"]) == {"n2": ["second"]}


def test_what_is_promised_to_others_does_not_go_with_who_may_be_gone() -> None:
    at = cluster(2)
    run(at, "first", 4, "n1")
    run(at, "second", 8, "n2")
    at.add_pod("planned", 4, gates=[names.GATE])
    at.settle()
    at.add_pod("urgent", 8, priority=1)
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n2=["second"]) == {"n2": ["second"]}


def test_where_the_links_will_be_lacking_still_there_is_nothing_to_wait_for() -> None:
    at = cluster(1, "a100-pcie-8-bridged")  # four pairs
    machine = at.machine("n1")
    pairs = [(a, b) for a, b in combinations(range(8), 2) if machine.link(a, b).nvlinks]
    for number, (a, _) in enumerate(pairs):
        at.start(run(at, f"p{number}", 1, "n1"), {"main": at.uuids("n1", a)})
    at.start(run(at, "gone", 1, "n1"), {"main": at.uuids("n1", pairs[0][1])})
    at.delete("gone")
    run(at, "other", 8, at.add_node("n2").metadata.name)
    at.add_pod("urgent", 2, priority=1, require_link="nvlink")
    refuse(at, "urgent", "n1")
    assert preempt(at, "urgent", n2=["other"]) == {"n2": ["other"]}


def test_what_was_asked_about_another_pod_is_no_reason_to_wait() -> None:
    at = two_full_nodes()
    at.delete("first")
    at.add_pod("other", 8)
    refuse(at, "urgent", "n1")
    refuse(at, "other", "n1")
    assert preempt(at, "urgent", n2=["second"]) == {"n2": ["second"]}


def test_who_stays_nominated_though_nobody_goes_is_woken_when_there_is_room() -> None:
    """kube-scheduler takes nothing back where an extender leaves it no node."""
    at = two_full_nodes()
    at.add_pod("equal", 8)
    at.nominate("equal", "n1")
    refuse(at, "equal")
    assert preempt(at, "equal", n1=[]) == {}
    at.delete("second")
    at.stop("second", "n2")
    assert seconds_until_woken(at, "equal") == MOMENT_SECONDS


def test_a_node_is_kept_if_the_pod_fits_without_the_victims() -> None:
    at = Cluster()
    at.add_node("n1")
    for name in ("small", "large"):
        at.add_pod(name, 2 if name == "small" else 6, node="n1")
    at.add_pod("a", 4)
    assert set(preempt(at, "a", n1=["large"])) == {"n1"}
    assert set(preempt(at, "a", n1=["small"])) == set()
    assert set(preempt(at, "a", n1=["small", "large"], stranger=[])) == {"n1"}


def test_no_victims_are_a_fair_question() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 4)
    assert set(preempt(at, "a", n1=[])) == {"n1"}


def test_an_unhealthy_gpu_of_a_victim_is_no_gain() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("victim", 8)
    at.schedule("victim")
    at.set_health("n1", 3)
    at.add_pod("a", 8)
    at.add_pod("b", 7)
    assert set(preempt(at, "a", n1=["victim"])) == set()
    assert set(preempt(at, "b", n1=["victim"])) == {"n1"}


def test_victims_must_leave_gpus_with_the_required_link() -> None:
    at = Cluster()
    at.add_node("n1", "a100-pcie-8-bridged")
    at.add_pod("keeper", 6, node="n1")
    at.add_pod("victim", 2, node="n1")
    at.set_in_use(
        "n1",
        {
            "ml/victim": {"main": at.uuids("n1", 0, 1)},
            "ml/keeper": {"main": at.uuids("n1", 2, 3, 4, 5, 6, 7)},
        },
    )
    at.add_pod("linked", 2, require_link="nvlink")
    at.add_pod("any", 2)
    assert set(preempt(at, "linked", n1=["victim"])) == set()
    assert set(preempt(at, "any", n1=["victim"])) == {"n1"}


def test_no_node_at_a_time_is_preempted_for_a_gang() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("victim", 8, node="n1")
    at.add_gang("g", 1, 8)
    at.settle()
    assert set(preempt(at, "g-0", n1=["victim"])) == set()


def test_a_gang_spares_members_beyond_its_minimum_before_a_pod_ends() -> None:
    at = cluster(1)
    run_gang(at, "g", ["n1", "n1", "n1"], gpus=2, gang_min="2")
    run(at, "alone", 2, "n1")
    at.add_pod("urgent", 2, priority=1)
    assert preempt(at, "urgent", n1=[]) == {"n1": ["g-2"]}


def test_no_gang_spares_more_members_than_those_beyond_its_minimum() -> None:
    at = cluster(1)
    run_gang(at, "g", ["n1", "n1", "n1", "n1"], gpus=2, gang_min="2")
    at.add_pod("urgent", 6, priority=1)
    # g-0 counts as one of the two that the gang can spare, so g-2 and g-3 are one too many.
    assert preempt(at, "urgent", n1=["g-0"]) == {"n1": ["g-0", "g-1", "g-2", "g-3"]}
