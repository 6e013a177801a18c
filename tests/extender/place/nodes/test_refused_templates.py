"""A kubelet that refuses a pod for what the extender cannot see gets no other pod like it, except
a trial. Other pods still go there."""

from linkwise.extender.place.nodes.kubelet_admission import FIRST_PAUSE_SECONDS
from linkwise.extender.state.extender_calls import BindRefusal
from linkwise.extender.state.views import ReasonCount
from linkwise.topology import names
from tests.extender.place.nodes.refusals import AFFINITY, cluster, refuse, refused_on_n1

REFUSED = "linkwise: kubelet refused such a pod"


def test_the_next_such_pod_goes_to_another_node() -> None:
    """Found: 414 pods of a Deployment failed in 55 s beside an idle node."""
    at = refused_on_n1(AFFINITY, 4, "n2")
    at.add_pod("second", 4)
    assert at.schedule("second") == "n2"
    assert at.sound()


def test_such_a_pod_waits_where_there_is_no_other_node() -> None:
    at = refused_on_n1(AFFINITY, 4)
    at.add_pod("second", 4)
    answer = at.filter("second")
    assert answer.unresolvable == {"n1": REFUSED}  # evicting pods is no cure
    assert isinstance(at.begin_bind("second", "n1"), BindRefusal)
    at.add_pod("gated", 4, gates=[names.GATE])
    at.settle()
    assert at.plan("gated") is None


def test_other_pods_are_placed_there() -> None:
    at = refused_on_n1(AFFINITY, 4)
    at.add_pod("smaller", 2)
    at.add_pod("hungrier", 4, cpu="8")
    assert [at.schedule(name) for name in ("smaller", "hungrier")] == ["n1", "n1"]


def test_a_gang_of_such_pods_is_planned_elsewhere_and_what_was_planned_there_too() -> None:
    at = cluster("n1")
    at.add_pod("first", 4)
    at.bind("first", "n1")
    at.add_gang("g", 1, 4)
    at.settle()
    plan = at.plan("g-0")
    assert plan is not None
    assert plan.node == "n1"
    at.add_node("n2", "hgx-h100")
    # Members of a gang differ from single pods in nothing that a kubelet sees.
    refuse(at, "first", AFFINITY)
    plan = at.plan("g-0")
    assert plan is not None
    assert plan.node == "n2"


def test_of_pods_behind_the_gate_one_is_tried() -> None:
    at = refused_on_n1(AFFINITY, 4)
    for name in ("second", "third"):
        at.add_pod(name, 4, gates=[names.GATE])
    at.settle()
    at.pass_time(FIRST_PAUSE_SECONDS)
    planned = [at.plan(name) for name in ("second", "third")]
    assert sum(plan is not None for plan in planned) == 1


def test_a_pod_is_tried_there_only_if_no_other_node_takes_it() -> None:
    at = refused_on_n1(AFFINITY, 4, "n2")
    at.add_pod("holds", 2)
    at.bind("holds", "n1")  # the fuller node is the better one
    at.pass_time(FIRST_PAUSE_SECONDS)
    at.add_pod("second", 4)
    assert at.schedule("second") == "n2"


def test_a_pod_that_leaves_the_node_brings_the_trial_forward() -> None:
    at = refused_on_n1(AFFINITY, 4)
    at.add_pod("other", 1)
    assert at.schedule("other") == "n1"
    at.start("other")
    at.settle()
    at.add_pod("second", 4)
    assert at.schedule("second") == ""
    at.delete("other")
    at.settle()
    assert at.schedule("second") == "n1"


def test_a_pod_without_gpus_that_ends_brings_it_forward_too() -> None:
    at = refused_on_n1(AFFINITY, 4)
    at.add_pod("busybox", 0, node="n1")
    at.set_phase("busybox", "Running")
    at.set_phase("busybox", "Succeeded")
    at.settle()
    at.add_pod("second", 4)
    assert at.schedule("second") == "n1"


def test_used_up_resources_and_other_plugins_close_the_node_for_such_pods_alone() -> None:
    refusals = (
        ("OutOfcpu", ""),
        ("OutOfvpc.amazonaws.com/efa", ""),
        (
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            "rdma/hca. Requested: 1, Available: 0, which is unexpected",
        ),
        (
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to not enough cpus available to satisfy "
            "request: requested=2, available=0, which is unexpected",
        ),
    )
    for reason, message in refusals:
        at = refused_on_n1(reason, 4, message=message)
        at.add_pod("such", 4)
        at.add_pod("other", 1)
        assert [at.schedule(name) for name in ("such", "other")] == ["", "n1"], reason


def test_what_a_plugin_refuses_closes_the_node_for_such_pods_alone() -> None:
    """A Deployment of two replicas, which NVIDIA's plugin refuses, closed each node for all."""
    too_large = (
        "request for 'nvidia.com/gpu: 2' too large: maximum request size for shared resources is 1"
    )
    forged = "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
    for said in (too_large, forged):
        message = (
            "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = "
            f"Allocate failed due to {said}, which is unexpected"
        )
        at = refused_on_n1("UnexpectedAdmissionError", 2, message=message)
        at.add_pod("such", 2)
        at.add_pod("other", 1)
        assert [at.schedule(name) for name in ("such", "other")] == ["", "n1"]


def test_a_kubelet_that_has_no_gpus_takes_no_pod_with_gpus() -> None:
    refusals = (
        ("OutOfnvidia.com/gpu", ""),
        (
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate "
            "unhealthy devices nvidia.com/gpu, which is unexpected",
        ),
    )
    for reason, message in refusals:
        at = refused_on_n1(reason, 4, message=message)
        at.add_pod("other", 1)
        assert at.schedule("other") == "", reason


def test_a_pod_that_the_extender_did_not_place_closes_nothing() -> None:
    for reason in (AFFINITY, "OutOfnvidia.com/gpu", "UnexpectedAdmissionError"):
        at = cluster("n1")
        at.add_pod("stranger", 8, node="n1")
        refuse(at, "stranger", reason)
        at.add_pod("such", 8)
        assert at.schedule("such") == "n1", reason


def test_explain_quotes_the_pod_and_the_kubelet() -> None:
    at = refused_on_n1(AFFINITY, 4, message="Resources cannot be allocated\nwith Topology locality")
    at.add_pod("second", 4)
    at.filter("second")
    found = at.core.explain("ml", "second", at.now)
    assert found is not None
    assert found.search is not None
    levels = {level.level: level for level in found.search.levels}
    assert levels["kubelet"].have == 0
    said = "ml/first: Resources cannot be allocated with Topology locality"
    assert levels["kubelet"].missing == (ReasonCount(REFUSED.removeprefix("linkwise: "), 1, said),)


def test_a_refusal_that_no_pod_tests_is_forgotten_after_an_hour() -> None:
    at = refused_on_n1(AFFINITY, 4, "n2")
    at.pass_time(FIRST_PAUSE_SECONDS)
    due = at.core.next_due()
    assert due is None or due > at.now + 1800, "nothing is done about it meanwhile"
    at.pass_time(1800)
    at.add_pod("second", 4)
    assert at.schedule("second") == "n2", "the node that refused such a pod comes last"
    at.delete("second")
    at.pass_time(1800)
    at.cordon("n2")
    for name in ("third", "fourth"):
        at.add_pod(name, 4)
    assert [at.schedule(name) for name in ("third", "fourth")] == ["n1", "n1"]
