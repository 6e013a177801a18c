"""The preempt verb: kube-scheduler's victims on one node, made whole, and only where that helps."""

from itertools import combinations

from linkwise.extender.calls import PreemptCall, Victims
from tests.extender.cluster import Cluster, change
from tests.extender.test_preemption import budget, label


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


def preempt(at: Cluster, name: str, **victims: list[str]) -> dict[str, list[str]]:
    """By node, the names of the victims."""
    asked = {
        node: Victims(tuple(at.pod(pod).metadata.uid for pod in pods))
        for node, pods in victims.items()
    }
    answer = at.core.preempt(PreemptCall(at.pod(name), asked), at.now)
    return {
        node: sorted(at.pods[uid].metadata.name for uid in those.uids)
        for node, those in answer.victims.items()
    }


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
