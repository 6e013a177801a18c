"""When a pod is tried: gates, what wakes one that waits, how long errors are waited out."""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from threading import Event
from typing import Any

import pytest

from tests.cluster.support.host.waiting import wait_for
from tests.contract.scheduler_world import GATE, Scenario
from tests.simulator.scheduler.recording_extender import Call, pass_all, refuse_all


def refused(world: Scenario, *names: str) -> None:
    """Pods that the extender has refused, and all is quiet again."""
    world.extender.answers["filter"] = refuse_all("gang waits")
    world.start()
    for name in names or ("p",):
        world.create(name)
        world.says(name, "Unschedulable")
    world.quiet()
    world.extender.calls.clear()


def test_pods_of_other_schedulers_and_gated_ones_are_left_alone(world: Scenario) -> None:
    world.nodes("n1")
    world.start()
    world.create("other", schedulerName="mine")
    world.create("gated", schedulingGates=[GATE, {"name": "another"}])
    world.create("ours")
    assert world.node_of("ours") == "n1"
    world.patch("gated", {"spec": {"schedulingGates": [{"name": "another"}]}})
    world.quiet()
    assert {call.pod for call in world.extender.calls} == {"ours"}
    world.let_go("gated")
    assert world.node_of("gated") == "n1"
    assert not world.is_bound("other")


def test_after_a_refusal_it_is_asked_once_more_and_then_not_until_an_event(world: Scenario) -> None:
    """The second call comes of the scheduler's own note on the pod: a change of the pod itself."""
    world.nodes("n1", "n2")
    world.extender.answers["filter"] = refuse_all("gang waits")
    world.start()
    world.create("p")
    world.says("p", "Unschedulable")
    world.quiet()
    assert world.asked() == [{"n1", "n2"}] * 2


def test_a_refusal_of_other_words_leads_to_one_more_try_each_time(world: Scenario) -> None:
    """So a reason with a number in it that changes keeps a pod going round."""
    world.nodes("n1")
    reasons = ["first", "second", "third", "fourth"]
    world.extender.answers["filter"] = lambda body: refuse_all(
        reasons.pop(0) if len(reasons) > 1 else reasons[0]
    )(body)
    world.start()
    world.create("p")
    wait_for(lambda: "fourth" in world.says("p", "Unschedulable"), "the last reason")
    world.quiet()
    assert len(world.extender.calls) == 5


def test_each_change_of_the_waiting_pod_s_annotations_is_one_more_try(world: Scenario) -> None:
    world.nodes("n1")
    refused(world)

    def tried(times: int) -> bool:
        return len(world.extender.calls) == times

    for number in range(4):
        world.annotate("p", attempt=str(number))
        wait_for(partial(tried, number + 1), "one more try")
    world.quiet()
    assert world.extender.calls == [Call("filter", "p", ("n1",))] * 4


def test_who_was_refused_need_not_sit_the_back_off_out_where_nobody_else_waits(
    world: Scenario,
) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = refuse_all("gang waits")
    world.start(backoff=(60, 60))
    world.create("p")
    world.says("p", "Unschedulable")
    world.quiet()
    world.extender.answers["filter"] = pass_all
    world.annotate("p", now="try")
    assert world.node_of("p") == "n1"


def node_status(world: Scenario, **status: object) -> None:
    world.api.patch("/api/v1/nodes/n1/status", {"status": status})


CHANGES: dict[str, Callable[[Scenario], object]] = {
    "node's annotation": lambda w: w.api.patch(
        "/api/v1/nodes/n1", {"metadata": {"annotations": {"linkwise.dev/in-use": "[]"}}}
    ),
    "node's label": lambda w: w.api.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"a": "b"}}}),
    "node's amounts": lambda w: node_status(w, allocatable={"cpu": "65"}),
    "node's condition": lambda w: node_status(
        w, conditions=[{"type": "Ready", "status": "True"}, {"type": "Odd", "status": "True"}]
    ),
    "new node": lambda w: w.nodes("n9"),
    "pod gone": lambda w: w.delete("other"),
    "pod ended": lambda w: w.patch("other", {"status": {"phase": "Succeeded"}}, status=True),
    "pod bound": lambda w: w.api.pod("more", nodeName="n1"),
    "bound pod's annotation": lambda w: w.annotate("other", a="b"),
    "bound pod's status": lambda w: w.patch(
        "other", {"status": {"phase": "Running", "conditions": []}}, status=True
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_happens_elsewhere_wakes_whom_the_extender_refused(
    world: Scenario, change: str
) -> None:
    world.nodes("n1")
    world.api.pod("other", nodeName="n1")
    refused(world)
    CHANGES[change](world)
    wait_for(lambda: world.asked(), "tried again")


NO_CHANGES: dict[str, Callable[[Scenario], object]] = {
    "node's heartbeat": lambda w: node_status(
        w,
        conditions=[
            {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
        ],
    ),
    "node's images": lambda w: node_status(w, images=[{"names": ["x"], "sizeBytes": 1}]),
}


@pytest.mark.parametrize("change", NO_CHANGES)
def test_what_does_not_matter_wakes_nobody(world: Scenario, change: str) -> None:
    world.nodes("n1")
    refused(world)
    NO_CHANGES[change](world)
    world.quiet()
    assert world.extender.calls == []


def test_another_waiting_pod_wakes_nobody(world: Scenario) -> None:
    """So the arrival of a gang's last member does not wake the others."""
    world.nodes("n1")
    refused(world)
    world.create("second")
    world.says("second", "Unschedulable")
    world.annotate("second", a="b")
    world.quiet()
    assert {call.pod for call in world.extender.calls} == {"second"}


def test_room_that_comes_free_wakes_who_found_none(world: Scenario) -> None:
    world.nodes("n1")
    world.start()
    world.create("first", 8)
    world.node_of("first")
    world.create("second", 8)
    world.says("second", "Unschedulable")
    world.delete("first")
    assert world.node_of("second") == "n1"


def test_a_pod_that_terminates_still_takes_its_room(world: Scenario) -> None:
    world.nodes("n1")
    world.start()
    world.create("first", 8)
    world.node_of("first")
    world.api.ask("DELETE", f"{world.api.pods}/first")
    world.create("second", 8)
    assert "1 Insufficient nvidia.com/gpu" in world.says("second", "Unschedulable")


def test_important_pods_go_first_then_those_that_came_first(world: Scenario) -> None:
    world.nodes("n1")
    go_on = Event()

    def refuse(body: dict[str, Any]) -> Any:
        assert go_on.wait(10)
        return refuse_all("no")(body)

    world.extender.answers["filter"] = refuse
    world.start()
    world.create("first")
    wait_for(lambda: world.extender.calls, "it is being tried")
    for name, priority in (("early", 0), ("late", 0), ("important", 10)):
        world.create(name, priority=priority)
    world.give_time()
    go_on.set()
    names = ["first", "important", "early", "late"]
    wait_for(lambda: {call.pod for call in world.extender.calls} == set(names), "all tried")
    assert list(dict.fromkeys(call.pod for call in world.extender.calls)) == names


def test_errors_are_waited_out_twice_as_long_each_time(world: Scenario) -> None:
    world.nodes("n1")
    times: list[float] = []

    def fail(_: dict[str, Any]) -> int:
        times.append(time.monotonic())
        return 500

    world.extender.answers["filter"] = fail
    world.start(backoff=(1, 2))
    world.create("p")
    wait_for(lambda: len(times) == 4, "four tries")
    gaps = [(after - before) / world.second for before, after in pairwise(times)]
    for gap, least in zip(gaps, (1, 2, 2), strict=True):
        assert gap > 0.9 * least, gaps


def test_an_error_is_waited_out_whatever_happens_meanwhile(world: Scenario) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = lambda _: 500
    world.start(backoff=(20, 20))
    world.create("p")
    world.says("p", "SchedulerError")
    world.extender.calls.clear()
    world.annotate("p", now="try")
    world.nodes("n2")
    world.quiet()
    assert world.extender.calls == []


def test_a_pod_deleted_while_it_waits_is_forgotten(world: Scenario) -> None:
    world.nodes("n1")
    refused(world, "p", "q")
    world.delete("p")
    world.hear()  # pods and nodes are watched apart
    world.extender.answers["filter"] = pass_all
    world.nodes("n2")
    world.node_of("q")
    world.quiet()
    assert {call.pod for call in world.extender.calls} == {"q"}


def test_a_pod_that_is_made_again_under_its_name_is_another(world: Scenario) -> None:
    world.nodes("n1")
    refused(world)
    world.delete("p")
    world.extender.answers["filter"] = pass_all
    made = world.create("p")
    world.node_of("p")
    assert world.extender.bodies[-1]["PodUID"] == made["metadata"]["uid"]


def test_a_node_that_is_gone_is_no_candidate(world: Scenario) -> None:
    world.nodes("n1", "n2")
    refused(world)
    world.api.ask("DELETE", "/api/v1/nodes/n1")
    world.hear_of_nodes(1)
    world.quiet()
    world.extender.calls.clear()
    world.extender.answers["filter"] = pass_all
    world.annotate("p", now="try")
    assert world.node_of("p") == "n2"
    assert world.asked() == [{"n2"}]


def test_no_node_is_overcommitted_however_many_come_at_once(world: Scenario) -> None:
    world.nodes("n1", "n2")
    world.start()
    for number in range(5):
        world.create(f"p{number}", 4)
    pods = [f"p{number}" for number in range(5)]
    wait_for(lambda: sum(map(world.is_bound, pods)) == 4, "four bound")
    (left,) = [name for name in pods if not world.is_bound(name)]
    assert "2 Insufficient nvidia.com/gpu" in world.says(left, "Unschedulable")
    nodes = [world.pod(name)["spec"].get("nodeName", "") for name in pods]
    assert sorted(nodes) == ["", "n1", "n1", "n2", "n2"]


def test_pods_of_a_node_that_was_gone_count_when_it_is_back(world: Scenario) -> None:
    world.nodes("n1")
    world.start()
    world.create("p", 8)
    world.node_of("p")
    world.api.ask("DELETE", "/api/v1/nodes/n1")
    world.hear_of_nodes(0)
    world.create("q", 8)
    assert world.says("q", "Unschedulable") == "no nodes available to schedule pods"
    world.nodes("n1")
    wait_for(lambda: "Insufficient" in world.says("q", "Unschedulable"), "p still counts")
