"""Which calls an extender gets from the scheduler, in which order, and what its answers do."""

import time
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from tests.cluster.support.api.control_plane import free_port
from tests.cluster.support.host.waiting import wait_for
from tests.contract.scheduler_world import GPU, Scenario
from tests.simulator.scheduler.recording_extender import (
    Call,
    RecordingExtender,
    pass_all,
    refuse_all,
)


def test_an_extender_is_asked_to_filter_to_prioritize_and_to_bind(world: Scenario) -> None:
    world.nodes("n1", "n2", "n3")
    world.extender.answers["filter"] = lambda _: {"NodeNames": ["n1", "n3"]}
    world.extender.answers["prioritize"] = lambda _: [{"Host": "n3", "Score": 10}]
    world.start()
    world.create("p", 2)
    assert world.node_of("p") == "n3"
    assert world.extender.verbs() == ["filter", "prioritize", "bind"]
    assert world.asked("filter") == [{"n1", "n2", "n3"}]
    assert world.asked("prioritize") == [{"n1", "n3"}]
    assert world.asked("bind") == [{"n3"}]
    assert world.pod("p")["metadata"]["annotations"] == {"by": "extender"}


def test_calls_are_in_the_wire_format(world: Scenario) -> None:
    world.nodes("n1", "n2")
    world.start()
    made = world.create("p", 2, metadata={"annotations": {"a": "b"}, "labels": {"c": "d"}})
    world.node_of("p")
    filtered, prioritized, bound = world.extender.bodies
    for body in (filtered, prioritized):
        assert set(body) == {"Pod", "Nodes", "NodeNames"}
        assert body["Nodes"] is None
        assert sorted(body["NodeNames"]) == ["n1", "n2"]
    assert filtered["Pod"] == prioritized["Pod"]
    meta, spec = filtered["Pod"]["metadata"], filtered["Pod"]["spec"]
    for field in ("name", "namespace", "uid", "annotations", "labels", "resourceVersion"):
        assert meta[field] == made["metadata"][field]
    assert spec["containers"][0]["resources"]["limits"] == {GPU: "2"}
    assert bound == {
        "PodName": "p",
        "PodNamespace": world.api.namespace,
        "PodUID": made["metadata"]["uid"],
        "Node": bound["Node"],
    }


def test_with_one_node_left_nobody_is_asked_for_scores(world: Scenario) -> None:
    world.nodes("n1", "n2")
    world.extender.answers["filter"] = lambda _: {"NodeNames": ["n2"]}
    world.start()
    world.create("p")
    assert world.node_of("p") == "n2"
    assert world.extender.verbs() == ["filter", "bind"]


def asks(where: str, **resources: object) -> dict[str, Any]:
    """The spec of a pod with these resources in a container of *where*."""
    main = {"name": "main", "image": "x"}
    other = {"name": "other", "image": "x", "resources": resources}
    return {"containers": [main], where: [other, *([main] if where == "containers" else [])]}


@pytest.mark.parametrize(
    "spec",
    [
        asks("containers", limits={GPU: "1"}),
        asks("containers", limits={GPU: "0"}),
        asks("initContainers", limits={GPU: "1"}),
    ],
    ids=["container", "none", "init"],
)
def test_it_is_asked_about_pods_that_name_a_managed_resource(
    world: Scenario, spec: dict[str, Any]
) -> None:
    world.nodes("n1")
    world.start()
    world.api.pod("p", **spec)
    world.node_of("p")
    assert world.extender.verbs() == ["filter", "bind"]


def test_pods_without_a_managed_resource_pass_it_by(world: Scenario) -> None:
    world.nodes("n1", "n2")
    world.start()
    world.create("p", 0)
    world.node_of("p")
    assert world.extender.calls == []


def test_without_managed_resources_it_is_asked_about_every_pod(world: Scenario) -> None:
    world.nodes("n1")
    world.start(managed=())
    world.create("p", 0)
    world.node_of("p")
    assert world.extender.verbs() == ["filter", "bind"]


def test_it_is_asked_only_about_nodes_that_passed_the_plugins(world: Scenario) -> None:
    world.nodes("small", gpus=1)
    world.nodes("cordoned", unschedulable=True)
    world.nodes("tainted", taints=[{"key": "k", "effect": "NoSchedule"}])
    world.nodes("large", "other")
    world.start()
    world.create("p", 4)
    world.node_of("p")
    assert world.asked("filter") == [{"large", "other"}]


def test_it_is_not_asked_where_plugins_refuse_every_node(world: Scenario) -> None:
    world.nodes("n1", "n2", gpus=1)
    world.start()
    world.create("p", 4)
    assert world.says("p", "Unschedulable") == (
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are "
        "available: 2 Preemption is not helpful for scheduling."
    )
    assert world.extender.calls == []


def test_a_pod_that_fits_nowhere_is_told_why_for_every_node(world: Scenario) -> None:
    world.nodes("a", "b", gpus=2)
    world.nodes("cordoned", unschedulable=True)
    world.nodes("tainted", taints=[{"key": "k", "effect": "NoSchedule"}])
    world.nodes("empty", gpus=0)
    world.start()
    world.create("p", 4)
    assert world.says("p", "Unschedulable") == (
        "0/5 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were "
        "unschedulable, 3 Insufficient nvidia.com/gpu. preemption: "
        "0/5 nodes are available: 5 Preemption is not helpful for scheduling."
    )


# What a filter may answer


def test_a_refusal_is_shown_with_its_reasons_counted(world: Scenario) -> None:
    world.nodes("n1", "n2", "n3")
    world.extender.answers["filter"] = lambda _: {
        "NodeNames": [],
        "FailedNodes": {"n1": "gang waits", "n2": "gang waits", "n3": "no such link"},
    }
    world.start()
    world.create("p")
    assert world.says("p", "Unschedulable") == (
        "0/3 nodes are available: 1 no such link, 2 gang waits. preemption: "
        "0/3 nodes are available: 3 No preemption victims found for incoming pod."
    )


def test_a_refusal_for_good_makes_no_candidate_for_preemption(world: Scenario) -> None:
    world.nodes("n1", "n2")
    world.extender.answers["filter"] = lambda body: {
        "NodeNames": [],
        "FailedNodes": {"n1": "both"},
        "FailedAndUnresolvableNodes": dict.fromkeys(body["NodeNames"], "no GPUs of that kind"),
    }
    world.start()
    world.create("p")
    assert world.says("p", "Unschedulable") == (
        "0/2 nodes are available: 2 no GPUs of that kind. preemption: "
        "0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )


def test_no_names_at_all_means_no_node(world: Scenario) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = lambda _: {"NodeNames": None}
    world.start()
    world.create("p")
    assert world.says("p", "Unschedulable") == (
        "0/1 nodes are available: preemption: 0/1 nodes are "
        "available: 1 Preemption is not helpful for scheduling."
    )


def test_without_nodes_it_is_not_asked_and_a_node_wakes_the_pod(world: Scenario) -> None:
    world.start()
    world.create("p")
    assert world.says("p", "Unschedulable") == "no nodes available to schedule pods"
    assert world.extender.calls == []
    world.nodes("n1")
    assert world.node_of("p") == "n1"


def test_a_node_dropped_without_a_word_counts_as_refused(world: Scenario) -> None:
    world.nodes("n1", "n2")
    world.extender.answers["filter"] = lambda _: {"NodeNames": ["n2"], "FailedNodes": {}}
    world.start()
    world.create("p")
    assert world.node_of("p") == "n2"


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: 503,
        lambda _: {"Error": "not ready", "NodeNames": ["n1"]},
        lambda _: {"NodeNames": ["n9"]},
        lambda _: {"NodeNames": "n1"},
    ],
    ids=["status", "Error", "unknown node", "type"],
)
def test_an_error_is_no_refusal_it_is_tried_again_and_never_bound_blind(
    world: Scenario, answer: Callable[[Any], Any]
) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = answer
    world.start(backoff=(1, 1))
    world.create("p")
    world.says("p", "SchedulerError")
    wait_for(lambda: len(world.extender.calls) > 1, "tried again by itself")
    assert not world.is_bound("p")
    world.extender.answers["filter"] = pass_all
    assert world.node_of("p") == "n1"


def test_an_error_is_said_in_the_pod_s_condition(world: Scenario) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = lambda _: {"Error": "books not read yet"}
    world.start()
    world.create("p")
    assert "books not read yet" in world.says("p", "SchedulerError")


def test_an_extender_that_is_down_holds_pods_back_until_it_is_up(world: Scenario) -> None:
    world.nodes("n1")
    port = free_port("127.0.0.1")
    world.start(extender_url=f"http://127.0.0.1:{port}/", backoff=(1, 2))
    world.create("p")
    world.create("cpu-only", 0)
    world.says("p", "SchedulerError")
    assert world.node_of("cpu-only") == "n1"  # it is not asked about this one
    assert not world.is_bound("p")
    with RecordingExtender(port) as up:
        up.answers["bind"] = world.bind
        assert world.node_of("p") == "n1"


# Scores


def busy(world: Scenario, node: str) -> None:
    """A pod that takes half the CPUs of *node*: the scheduler itself would rather have another."""
    resources = {"requests": {"cpu": "32"}}
    main = {"name": "main", "image": "x", "resources": resources}
    world.api.pod("busy", nodeName=node, containers=[main])


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([{"Host": "n1", "Score": 10}], "n1"),
        ([{"Host": "n1", "Score": 1}], "n2"),
        ([{"Host": "n1", "Score": 100}, {"Host": "n2", "Score": 0}], "n1"),
        ([{"Host": "n1", "Score": 10}, {"Host": "n9", "Score": 10}], "n1"),
        ([{"Host": "n1", "Score": 10.5}, {"Host": "n2", "Score": 0}], "n2"),
        ({"n1": 10}, "n2"),
    ],
    ids=["ten", "one", "hundred", "stranger", "fraction", "no list"],
)
def test_a_score_counts_as_ten_times_as_many_of_a_plugin_s_points(
    world: Scenario, scores: object, chosen: str
) -> None:
    """A full 10 outweighs any one plugin; one answer that is no whole number drops them all."""
    world.nodes("n1", "n2")
    busy(world, "n1")
    world.extender.answers["prioritize"] = lambda _: scores
    world.start()
    world.create("p")
    assert world.node_of("p") == chosen


def test_an_error_about_scores_is_ignored(world: Scenario) -> None:
    world.nodes("n1", "n2")
    busy(world, "n1")
    world.extender.answers["prioritize"] = lambda _: 500
    world.start()
    world.create("p")
    assert world.node_of("p") == "n2"


def test_a_weight_multiplies(world: Scenario) -> None:
    world.nodes("n1", "n2")
    busy(world, "n1")
    world.extender.answers["prioritize"] = lambda _: [{"Host": "n1", "Score": 1}]
    world.start(weight=20)
    world.create("p")
    assert world.node_of("p") == "n1"


# Binds


@pytest.mark.parametrize("answer", [{"Error": "no such plan"}, 500], ids=["Error", "status"])
def test_a_failed_bind_is_tried_again_from_the_start(world: Scenario, answer: object) -> None:
    world.nodes("n1")
    answers = [answer]
    world.extender.answers["bind"] = lambda b: answers.pop(0) if answers else world.bind(b)
    world.start(backoff=(1, 1))
    world.create("p", 8)
    assert world.node_of("p") == "n1"
    assert world.extender.verbs() == ["filter", "bind"] * 2


def test_a_failed_bind_is_said_in_the_pod_s_condition(world: Scenario) -> None:
    world.nodes("n1")
    world.extender.answers["bind"] = lambda _: {"Error": "GPU-3 is taken"}
    world.start()
    world.create("p", 8)
    assert "GPU-3 is taken" in world.says("p", "SchedulerError")


def test_the_room_of_a_failed_bind_goes_to_who_waits_for_it(world: Scenario) -> None:
    world.nodes("n1")

    def refuse_p(body: dict[str, Any]) -> dict[str, str]:
        if body["PodName"] == "q":
            return world.bind(body)
        world.says("q", "Unschedulable")
        return {"Error": "no such plan"}

    world.extender.answers["bind"] = refuse_p
    world.start(backoff=(20, 20))
    world.create("p", 8)
    wait_for(lambda: world.extender.of("filter"), "p tried")
    world.create("q", 8)
    assert world.node_of("q") == "n1"


def test_a_bind_that_was_done_but_not_answered_is_not_done_again(world: Scenario) -> None:
    world.nodes("n1")

    def bind(body: dict[str, Any]) -> int:
        world.bind(body)
        return 504

    world.extender.answers["bind"] = bind
    world.start()
    world.create("p", 8)
    assert world.node_of("p") == "n1"
    world.quiet()
    assert len(world.extender.of("bind")) == 1


def test_a_pod_that_changes_while_it_is_bound_is_not_tried_again(world: Scenario) -> None:
    world.nodes("n1")

    def change_and_bind(body: dict[str, Any]) -> dict[str, str]:
        world.annotate("p", a="b")
        world.create("q", 0)
        world.node_of("q")  # the change was heard before
        return world.bind(body)

    world.extender.answers["bind"] = change_and_bind
    world.start()
    world.create("p", 4)
    assert world.node_of("p") == "n1"
    world.quiet()
    assert world.extender.calls == [Call("filter", "p", ("n1",)), Call("bind", "p", ("n1",))]


def test_binds_do_not_hold_up_the_next_tries_which_count_them(world: Scenario) -> None:
    world.nodes("n1")
    both_may = Event()

    def bind(body: dict[str, Any]) -> dict[str, str]:
        assert both_may.wait(10)
        return world.bind(body)

    world.extender.answers["bind"] = bind
    world.start()
    for name in ("p", "q"):
        world.create(name, 4)
    wait_for(lambda: len(world.extender.of("filter")) == 2, "both tried")
    world.create("r", 1)
    world.says("r", "Unschedulable")
    both_may.set()
    assert {world.node_of("p"), world.node_of("q")} == {"n1"}
    assert len(world.extender.of("filter")) == 2  # there was no GPU left to ask about


def test_filter_is_asked_about_one_pod_at_a_time(world: Scenario) -> None:
    world.nodes("n1")
    at_once: list[int] = []
    now = [0]

    def slowly(body: dict[str, Any]) -> Any:
        now[0] += 1
        at_once.append(now[0])
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > 0.1, "a tenth of a second")
        now[0] -= 1
        return refuse_all("no")(body)

    world.extender.answers["filter"] = slowly
    for name in "abcd":
        world.create(name)
    world.start()
    wait_for(lambda: {c.pod for c in world.extender.calls} == set("abcd"), "all tried")
    assert set(at_once) == {1}
