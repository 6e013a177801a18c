"""The preempt verb for pods that get shares of GPUs."""

import pytest

from tests.divided import GPU, SHARED, all_three, replicas
from tests.extender import preempt_call
from tests.extender.cluster import change
from tests.extender.next.preemption.victims import budget
from tests.extender.shares.cluster import ShareCluster
from tests.machines import DGX_1V, PCIE_8


def preempt(at: ShareCluster, name: str, **victims: list[str]) -> dict[str, list[str]]:
    """After a filter call, which kube-scheduler makes first."""
    at.filter(name)
    return preempt_call.preempt(at, name, **victims)


def taker(at: ShareCluster, name: str, *, priority: int = 0, **said: str) -> str:
    at.add_taker(name, {SHARED: 1}, **said)
    at.put_pod(change(at.pod(name), spec=change(at.pod(name).spec, priority=priority)))
    return name


@pytest.mark.parametrize("said", [{}, {"gang": "g", "gang_size": "2"}])
def test_a_member_with_shares_alone_preempts_as_a_single_pod_does(said: dict[str, str]) -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 1}))
    at.try_to_place(taker(at, "low"))
    taker(at, "high", priority=5, **said)
    assert preempt(at, "high", n0=["low"]) == {"n0": ["low"]}


def test_a_budget_protects_a_pod_that_takes_shares() -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 1, 1: 1}))
    at.core.replace_budgets([budget(0, app="db")], at.now)
    for name, app in (("a-free", "web"), ("b-protected", "db")):
        taker(at, name)
        pod = at.pod(name)
        at.put_pod(change(pod, metadata=change(pod.metadata, labels={"app": app})))
        at.try_to_place(name)
        at.now += 200.0  # the younger one would be the victim
    taker(at, "high", priority=5)
    assert preempt(at, "high", n0=[]) == {"n0": ["a-free"]}


def test_no_gang_is_left_half_for_a_share() -> None:
    """kube-scheduler names one member, as it lacks processors."""
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 2}))
    members = at.add_gang("g", 2, 3)
    at.settle()
    assert [at.schedule(member) for member in members] == ["n0", "n0"]
    taker(at, "high", priority=5)
    assert preempt(at, "high", n0=["g-0"]) == {"n0": ["g-0", "g-1"]}


def test_no_second_pod_is_evicted_while_the_first_ones_share_comes_back() -> None:
    at = ShareCluster()
    for node in ("n0", "n1"):
        at.add_divided(node, replicas(DGX_1V, {0: 1}))
        at.bind_on(taker(at, f"low-{node}"), node)
        at.put_in_use(node, f"ml/low-{node}", at.planned_shares(f"low-{node}"), ())
    taker(at, "high", priority=5)
    assert preempt(at, "high", n0=["low-n0"]) == {"n0": ["low-n0"]}
    at.delete("low-n0")  # the kubelet still reports its share
    assert preempt(at, "high", n1=["low-n1"]) == {}
    at.put_in_use("n0", "ml/low-n0", None, ())
    assert at.filter("high").node_names == ("n0",)


@pytest.mark.parametrize("with_whole", [0, 10])
def test_one_replica_suffices_where_a_pod_can_have_a_whole_gpu_or_a_replica(
    with_whole: int,
) -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(PCIE_8, dict.fromkeys(range(4, 8), 1), GPU))
    for number in range(8):
        at.add_pod(f"p{number}", 1, priority=with_whole if number < 4 else 0)
        at.try_to_place(f"p{number}")
    assert at.ids_of("p7")
    at.add_pod("high", 1, priority=5)
    assert preempt(at, "high", n0=["p7"]) == {"n0": ["p7"]}


def test_where_only_the_place_of_shares_is_missing_the_victims_are_named_here() -> None:
    """Newer kube-schedulers ask without victims if all their own plugins had agreed."""
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 2, 1: 2}))
    for number, priority in enumerate((0, 7, 0, 7)):
        at.try_to_place(taker(at, f"p{number}", priority=priority))
    at.delete("p3")
    at.delete("p0")  # now one share is free on each GPU
    at.add_taker("high", {SHARED: 2}, share="pack")
    at.put_pod(change(at.pod("high"), spec=change(at.pod("high").spec, priority=5)))
    assert preempt(at, "high", n0=[]) == {"n0": ["p2"]}
    at.put_pod(change(at.pod("p2"), spec=change(at.pod("p2").spec, priority=7)))
    assert preempt(at, "high", n0=[]) == {}


def test_a_node_whose_whole_gpus_would_do_is_not_called_hopeless() -> None:
    """kube-scheduler evicts no pod on a node that can never take the pod."""
    at = ShareCluster()
    at.add_divided("n0", all_three(DGX_1V))
    at.add_pod("low", 3)
    at.schedule("low")
    at.add_pod("high", 3, priority=5)
    answer = at.filter("high")
    assert (set(answer.failed), set(answer.unresolvable)) == ({"n0"}, set())
    assert preempt(at, "high", n0=["low"]) == {"n0": ["low"]}
    at.add_pod("higher", 4, priority=5)
    assert set(at.filter("higher").unresolvable) == {"n0"}


def test_no_pod_is_evicted_for_whole_gpus_where_the_shares_beside_them_are_missing() -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 1}))
    at.add_pod("low", 7)
    at.schedule("low")
    at.try_to_place(taker(at, "holder", priority=9))
    at.add_taker("high", {GPU: 1}, {SHARED: 1})
    at.put_pod(change(at.pod("high"), spec=change(at.pod("high").spec, priority=5)))
    assert preempt(at, "high", n0=["low"]) == {}
    at.put_pod(change(at.pod("holder"), spec=change(at.pod("holder").spec, priority=0)))
    assert preempt(at, "high", n0=["low"]) == {"n0": ["holder", "low"]}
