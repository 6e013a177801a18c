"""Pods that wait for shares: what wakes them, and what does not."""

import pytest

from linkwise.extender.calls.bind import DOUBT_SECONDS
from linkwise.extender.state.actions import Nominate
from linkwise.extender.state.extender_calls import BindOrder, Outcome
from linkwise.kube.objects import Condition
from linkwise.topology import names
from tests.divided import GPU, MIG_1G, SHARED, cut, replicas
from tests.extender.cluster import change
from tests.extender.shares.cluster import ShareCluster
from tests.machines import DGX_1V, PCIE_8

A_LOOK = 2.0  # seconds; longer than the moment that kube-scheduler has to call by itself


def with_one_share(busy: str = "w") -> ShareCluster:
    """Pod *busy* has the only share of node `n0`."""
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 1}))
    at.add_taker(busy, {SHARED: 1})
    assert at.try_to_place(busy) == "n0"
    return at


def give_up(at: ShareCluster, name: str) -> None:
    """kube-scheduler tries the pod, finds no node, and says so."""
    assert not at.try_to_place(name)
    why = "0/1 nodes are available: 1 linkwise: fewer free"
    status = change(
        at.pod(name).status,
        conditions=(Condition("PodScheduled", "False", "Unschedulable", why),),
    )
    at.put_pod(change(at.pod(name), status=status))
    at.pass_time(A_LOOK)
    assert not nominated(at, name)


def nominated(at: ShareCluster, name: str) -> str:
    return at.pod(name).status.nominated_node_name


def look(at: ShareCluster) -> None:
    at.pass_time(A_LOOK)
    at.pass_time(A_LOOK)


def refuse(at: ShareCluster, name: str) -> None:
    """The kubelet refuses the pod."""
    status = change(at.pod(name).status, phase="Failed", reason="OutOfnvidia.com/gpu.shared")
    at.put_pod(change(at.pod(name), status=status))


def test_a_node_whose_kubelet_is_tried_again_wakes_a_pod() -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(PCIE_8, dict.fromkeys(range(8), 2)))
    at.add_taker("w", {SHARED: 1})
    at.try_to_place("w")
    refuse(at, "w")
    at.add_taker("v", {SHARED: 1})
    give_up(at, "v")
    at.pass_time(30)
    look(at)
    assert nominated(at, "v") == "n0"


def test_a_node_whose_report_can_be_read_again_wakes_a_pod() -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(PCIE_8, dict.fromkeys(range(8), 2)))
    at.annotate_node("n0", names.IN_USE, "mangled")
    at.add_taker("v", {SHARED: 1})
    give_up(at, "v")
    at.annotate_node("n0", names.IN_USE, None)
    look(at)
    assert nominated(at, "v") == "n0"


def test_a_share_on_another_gpu_than_planned_wakes_a_pod_that_wants_one_gpu() -> None:
    """As many shares are free as before, and now two of them are on one GPU."""
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 2, 1: 2}))
    for name in ("first", "gone", "second"):
        at.add_taker(name, {SHARED: 1})
        at.try_to_place(name)
    at.delete("gone")
    at.add_taker("v", {SHARED: 2}, share="pack")
    give_up(at, "v")
    opened = at.ids_of("first")[0].partition("::")[0]
    (free,) = {f"{opened}::0", f"{opened}::1"} - {*at.ids_of("first")}
    at.put_in_use("n0", "ml/second", {"c0": {SHARED: (free,)}}, ())
    look(at)
    assert nominated(at, "v") == "n0"


def test_a_gangs_member_with_shares_alone_is_woken_as_a_single_pod_is() -> None:
    at = with_one_share()
    for name in ("m0", "m1"):
        at.add_taker(name, {SHARED: 1}, gang="g", gang_size="2")
    give_up(at, "m0")
    at.delete("w")
    look(at)
    assert nominated(at, "m0") == "n0"
    at.restart()
    assert at.try_to_place("m0") == "n0"


def test_members_with_shares_alone_are_not_evicted_because_others_wait() -> None:
    at = with_one_share("m0")
    at.delete("m0")
    for name in ("m0", "m1"):
        at.add_taker(name, {SHARED: 1}, gang="g", gang_size="2")
    assert at.try_to_place("m0") == "n0"
    at.set_phase("m0", "Running")
    give_up(at, "m1")
    for _ in range(5):
        at.pass_time(200)
    assert at.evicted == []
    assert at.is_at_rest()


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_pod_that_lacks_a_share_is_not_called_for_whole_gpus_alone(gpus: int) -> None:
    at = ShareCluster()
    at.add_divided("whole", DGX_1V)
    at.add_divided("cut", cut(DGX_1V, 0, MIG_1G))
    at.add_taker("w", {MIG_1G: 1})
    assert at.try_to_place("w") == "cut"
    at.add_taker("v", {GPU: gpus}, {MIG_1G: 1})
    give_up(at, "v")
    for _ in range(60):
        assert not [each for each in at.pass_time(10) if isinstance(each, Nominate)]
    assert (at.free("whole"), at.free("cut")) == (8, 7)
    at.delete("w")
    look(at)
    assert nominated(at, "v") == "cut"
    assert at.try_to_place("v") == "cut"


def test_one_share_wakes_a_few_of_many_pods_whatever_else_is_free() -> None:
    at = with_one_share()
    at.add_node("idle")
    for number in range(50):
        at.add_taker(f"v{number}", {SHARED: 1})
        assert not at.filter(f"v{number}").node_names
    at.pass_time(A_LOOK)
    at.delete("w")
    at.settle()
    woken = [each for each in at.pass_time(1.1) if isinstance(each, Nominate)]
    assert 0 < len(woken) < 50


def test_the_gate_of_a_member_with_shares_alone_is_lifted_before_the_gang_is_complete() -> None:
    at = with_one_share()
    at.add_pod(
        "m0", containers=at.pod("w").spec.containers, gates=[names.GATE], gang="g", gang_size="2"
    )
    at.settle()
    assert at.gates("m0") == []


@pytest.mark.parametrize("limits", [{SHARED: 1}, {}])
def test_a_launcher_without_whole_gpus_waits_for_its_workers(limits: dict[str, int]) -> None:
    """It keeps no GPU from others, so no timeout ends it. The plan of a worker begins the time."""
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 2}))
    at.add_pod("busy", 7, node="n0")
    at.add_taker("launcher", limits, gang="g", gang_size="2")
    assert at.try_to_place("launcher") == "n0"
    at.set_phase("launcher", "Running")
    at.add_pod("worker", 4, said={"gang": "g", "gang_size": "2"})
    for _ in range(10):
        at.pass_time(300.0)
    assert at.evicted == []
    at.delete("busy")
    at.pass_time(1.0)
    assert at.plan("worker") is not None
    at.pass_time(590.0)
    assert at.plan("worker") is not None
    at.pass_time(20.0)
    assert at.plan("worker") is None  # kube-scheduler did not take it in time


def test_the_time_of_a_gang_that_ran_out_during_a_doubt_about_its_launcher_ends_with_that() -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 2}))
    at.add_taker("launcher", {SHARED: 1}, gang="g", gang_size="2")
    at.add_pod("worker", 4, said={"gang": "g", "gang_size": "2"})
    at.settle()
    assert at.try_to_place("worker") == "n0"
    at.pass_time(400.0)
    assert at.filter("launcher").node_names == ("n0",)
    order = at.begin_bind("launcher", "n0")
    assert isinstance(order, BindOrder)
    at.core.end_bind(order, Outcome.UNKNOWN, at.now)
    at.pass_time(DOUBT_SECONDS - 1.0)
    assert at.phase("g") == "binding"
    assert at.evicted == []  # it may be complete
    at.pass_time(1.0)
    assert at.evicted == ["worker"]
