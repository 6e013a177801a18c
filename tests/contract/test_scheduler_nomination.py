"""What a nomination does: it is how a plan that was made ahead reaches the scheduler."""

from typing import Any

import pytest

from tests.cluster.support.host.waiting import wait_for
from tests.contract.api_world import STRATEGIC
from tests.contract.scheduler_world import GATE, Scenario
from tests.simulator.scheduler.recording_extender import Call, pass_all, refuse_all


def waiting(world: Scenario, name: str = "p", *nodes: str) -> None:
    """A pod that the extender has refused, and all is quiet again."""
    world.nodes(*(nodes or ("n1", "n2", "n3")))
    world.extender.answers["filter"] = refuse_all("gang waits")
    world.start()
    world.create(name)
    world.says(name, "Unschedulable")
    world.quiet()
    world.extender.calls.clear()
    world.extender.bodies.clear()


def test_a_nomination_wakes_the_pod_and_that_node_is_tried_alone(world: Scenario) -> None:
    waiting(world)
    world.extender.answers["filter"] = pass_all
    world.nominate("p", "n2")
    assert world.node_of("p") == "n2"
    assert world.extender.calls == [Call("filter", "p", ("n2",)), Call("bind", "p", ("n2",))]
    told = world.extender.bodies[0]["Pod"]
    assert told["metadata"]["annotations"]["linkwise.dev/plan"] == "n2"
    assert told["status"]["nominatedNodeName"] == "n2"
    assert world.nominated("p") == ""


def test_what_is_said_of_a_pod_is_not_written_again_until_it_is_removed(world: Scenario) -> None:
    waiting(world)
    before = world.pod("p")

    def wake(cpu: str) -> None:
        world.api.patch("/api/v1/nodes/n1/status", {"status": {"allocatable": {"cpu": cpu}}})
        wait_for(lambda: world.extender.calls, "p is tried again")
        world.quiet()
        world.extender.calls.clear()

    wake("65")
    assert world.pod("p") == before
    gone = [{"type": "PodScheduled", "$patch": "delete"}]
    world.api.patch(f"{world.api.pods}/p/status", {"status": {"conditions": gone}}, STRATEGIC)
    wake("66")
    (told,) = world.pod("p")["status"]["conditions"]
    (earlier,) = before["status"]["conditions"]
    assert told["message"] == earlier["message"]


def test_a_refused_nomination_leads_to_all_nodes_and_is_taken_away(world: Scenario) -> None:
    waiting(world)
    world.nominate("p", "n2")
    wait_for(lambda: not world.nominated("p"), "nomination taken away")
    world.quiet()
    assert world.asked()[:2] == [{"n2"}, {"n1", "n2", "n3"}]
    assert not world.is_bound("p")
    # What else was written with it stays.
    assert world.pod("p")["metadata"]["annotations"]["linkwise.dev/plan"] == "n2"


def test_where_the_nominated_node_is_refused_another_may_be_taken_at_once(world: Scenario) -> None:
    waiting(world)
    world.extender.answers["filter"] = lambda body: {
        "NodeNames": [name for name in body["NodeNames"] if name == "n3"],
        "FailedNodes": {name: "taken" for name in body["NodeNames"] if name != "n3"},
    }
    world.nominate("p", "n2")
    assert world.node_of("p") == "n3"
    assert world.asked() == [{"n2"}, {"n1", "n2", "n3"}]


def test_a_gate_lifted_after_a_nomination_leads_to_one_call_with_that_node(world: Scenario) -> None:
    world.nodes("n1", "n2")
    world.start()
    world.create("p", schedulingGates=[GATE])
    world.nominate("p", "n2")
    world.quiet()
    assert world.extender.calls == []
    world.let_go("p")
    assert world.node_of("p") == "n2"
    assert world.extender.calls == [Call("filter", "p", ("n2",)), Call("bind", "p", ("n2",))]


def test_pods_nominated_before_the_scheduler_starts_are_bound_where_they_are_nominated(
    world: Scenario,
) -> None:
    world.nodes("n1", "n2", "n3")
    for number in (1, 2, 3):
        world.create(f"p{number}", 8)
        world.nominate(f"p{number}", f"n{number}")
    world.start()
    for number in (1, 2, 3):
        assert world.node_of(f"p{number}") == f"n{number}"
    assert sorted(world.extender.verbs()) == ["bind"] * 3 + ["filter"] * 3


def test_an_error_about_the_nominated_node_leads_to_all_nodes(world: Scenario) -> None:
    """The scheduler logs such an error and goes on in the same try."""
    world.nodes("n1", "n2", "n3")
    world.extender.answers["filter"] = lambda b: 500 if b["NodeNames"] == ["n2"] else pass_all(b)
    world.extender.answers["prioritize"] = lambda _: [{"Host": "n3", "Score": 10}]
    world.start(backoff=(20, 20))
    world.create("p", schedulingGates=[GATE])
    world.nominate("p", "n2")
    world.let_go("p")
    assert world.node_of("p") == "n3"
    assert world.asked() == [{"n2"}, {"n1", "n2", "n3"}]


@pytest.mark.parametrize("verb", ["filter", "bind"])
def test_an_error_takes_the_nomination_away(world: Scenario, verb: str) -> None:
    world.nodes("n1", "n2")
    world.extender.answers[verb] = lambda _: 500
    world.start(backoff=(20, 20))
    world.create("p", schedulingGates=[GATE])
    world.nominate("p", "n2")
    world.let_go("p")
    world.says("p", "SchedulerError")
    wait_for(lambda: not world.nominated("p"), "nomination taken away")


def test_a_nomination_that_comes_while_the_pod_is_tried_may_be_taken_away_if_it_is_refused(
    world: Scenario,
) -> None:
    """kube-scheduler tries the pod again at once, as it has changed; but mostly on all nodes. It
    removes the nomination with its note on the pod, and may try once more before it hears so.
    """
    world.nodes("n1", "n2")

    def nominate_and_refuse(body: dict[str, Any]) -> Any:
        world.extender.answers["filter"] = pass_all
        world.nominate("p", "n2")
        world.give_time()
        return refuse_all("not yet")(body)

    world.extender.answers["filter"] = nominate_and_refuse
    world.extender.answers["prioritize"] = lambda _: [{"Host": "n1", "Score": 10}]
    world.start()
    world.create("p")
    node = world.node_of("p")
    first, second = world.asked()
    assert first == {"n1", "n2"}
    assert (node, second) in [("n1", {"n1", "n2"}), ("n2", {"n2"})]
    assert world.pod("p")["metadata"]["annotations"]["linkwise.dev/plan"] == "n2"


def test_a_nomination_to_a_node_that_is_none_leads_to_all_nodes(world: Scenario) -> None:
    waiting(world)
    world.extender.answers["filter"] = pass_all
    world.nominate("p", "gone")
    world.node_of("p")
    assert world.asked() == [{"n1", "n2", "n3"}]


def test_a_nominated_node_that_the_plugins_refuse_leads_to_the_others(world: Scenario) -> None:
    world.nodes("n1", "n2")
    world.nodes("cordoned", unschedulable=True)
    world.start()
    world.create("p", schedulingGates=[GATE])
    world.nominate("p", "cordoned")
    world.let_go("p")
    world.node_of("p")
    assert world.asked() == [{"n1", "n2"}]


def test_a_nominated_pod_s_room_is_kept_from_pods_that_are_not_more_important(
    world: Scenario,
) -> None:
    world.nodes("n1")
    world.start(alone=True)
    world.create("nominated", 8, schedulingGates=[GATE], priority=5)
    world.nominate("nominated", "n1")
    world.hear()
    for name, priority in (("lesser", 0), ("equal", 5)):
        world.create(name, 8, priority=priority)
        assert "1 Insufficient nvidia.com/gpu" in world.says(name, "Unschedulable")
    world.create("greater", 8, priority=9)
    assert world.node_of("greater") == "n1"


def test_a_scheduler_that_starts_counts_nominated_pods_also_those_that_are_gated(
    world: Scenario,
) -> None:
    world.nodes("n1", "n2")
    world.create("earlier", 8)
    world.create("nominated", 8)
    world.nominate("nominated", "n1")
    world.create("gated", 8, schedulingGates=[GATE], priority=9)
    world.nominate("gated", "n2")
    world.start(alone=True)
    assert world.node_of("nominated") == "n1"
    assert "2 Insufficient nvidia.com/gpu" in world.says("earlier", "Unschedulable")
    world.let_go("gated")
    assert world.node_of("gated") == "n2"


def test_a_nomination_that_is_taken_back_gives_the_room_free(world: Scenario) -> None:
    world.nodes("n1")
    world.start(alone=True)
    world.create("nominated", 8, schedulingGates=[GATE])
    world.nominate("nominated", "n1")
    world.hear()
    world.create("other", 8)
    world.says("other", "Unschedulable")
    world.patch("nominated", {"status": {"nominatedNodeName": None}}, status=True)
    world.hear()
    world.api.patch("/api/v1/nodes/n1/status", {"status": {"allocatable": {"cpu": "65"}}})
    assert world.node_of("other") == "n1"


def test_a_restarted_scheduler_knows_nominations_and_waiting_pods_again(world: Scenario) -> None:
    waiting(world)
    world.stop()
    world.create("late", schedulingGates=[GATE])
    world.nominate("p", "n2")
    world.extender.answers["filter"] = pass_all
    world.start()
    assert world.node_of("p") == "n2"
    assert world.asked() == [{"n2"}]
    assert not world.is_bound("late")
