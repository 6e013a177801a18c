"""The loop against the API server stand-in: which calls an extender gets, and in which order.

The order is what kube-scheduler v1.36.3 was seen to do (docs/simulator.md).
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.objects import Pod
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.scheduler import SchedulerLoop, SchedulerSettings
from tests.simulator.recording_extender import Call, RecordingExtender, pass_all, refuse_all
from tests.simulator.waiting import wait_for

GPU = "nvidia.com/gpu"
HASTE = SchedulerSettings(initial_backoff_seconds=0.02, max_backoff_seconds=0.1)
PATIENCE = SchedulerSettings(initial_backoff_seconds=3600.0, max_backoff_seconds=3600.0)


class World:
    def __init__(self, server: ApiServer, extender: RecordingExtender) -> None:
        self.server, self.extender = server, extender
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        self.loops: list[SchedulerLoop] = []
        extender.answers["bind"] = self.bind

    def start(self, *, alone: bool = False, seed: int = 0, settings: Any = HASTE) -> SchedulerLoop:
        url = None if alone else self.extender.url
        loop = SchedulerLoop(self.client, url, seed=seed, settings=settings)
        self.loops.append(loop)
        loop.start()
        return loop

    def bind(self, body: dict[str, Any]) -> dict[str, str]:
        """What an extender does in its bind verb."""
        self.client.post(
            f"/api/v1/namespaces/{body['PodNamespace']}/pods/{body['PodName']}/binding",
            {
                "metadata": {"name": body["PodName"], "annotations": {"by": "extender"}},
                "target": {"kind": "Node", "name": body["Node"]},
            },
        )
        return {"Error": ""}

    def nodes(self, *names: str, gpus: int = 8, **spec: object) -> None:
        for name in names:
            allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus)}
            status = {"capacity": allocatable, "allocatable": allocatable}
            body = {"metadata": {"name": name}, "spec": spec, "status": status}
            self.client.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **body})
            self.client.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def create(self, name: str, gpus: int = 1, **spec: object) -> None:
        limits = {GPU: str(gpus)} if gpus else {}
        containers = [{"name": "main", "image": "x", "resources": {"limits": limits}}]
        body = {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}
        self.client.post("/api/v1/namespaces/ml/pods", {"apiVersion": "v1", "kind": "Pod", **body})

    def patch(self, name: str, body: object, *, status: bool = False) -> None:
        path = f"/api/v1/namespaces/ml/pods/{name}{'/status' if status else ''}"
        self.client.patch(path, body)

    def nominate(self, name: str, node: str) -> None:
        self.patch(name, {"status": {"nominatedNodeName": node}}, status=True)

    def delete(self, name: str) -> None:
        self.client.delete(f"/api/v1/namespaces/ml/pods/{name}", grace_seconds=0)

    def pod(self, name: str) -> Pod:
        return self.client.get(f"/api/v1/namespaces/ml/pods/{name}", Pod)

    def node_of(self, name: str) -> str:
        """Waits until the pod has one."""
        wait_for(lambda: self.pod(name).spec.node_name, f"{name} bound")
        return self.pod(name).spec.node_name

    def says(self, name: str, reason: str) -> str:
        """Waits until the pod's PodScheduled condition gives *reason*; its message."""

        def messages() -> list[str]:
            conditions = self.pod(name).status.conditions
            return [
                c.message for c in conditions if c.type == "PodScheduled" and c.reason == reason
            ]

        wait_for(messages, f"{name}: {reason}")
        return messages()[0]

    def quiet(self, loop: SchedulerLoop) -> None:
        """Waits until nothing is tried any more, the pod's own condition having been heard."""
        seen: list[int] = []

        def unchanged() -> bool:
            seen.append(len(self.extender.calls) if loop.idle else -1)
            return len(seen) > 40 and len(set(seen[-40:])) == 1 and seen[-1] >= 0

        wait_for(unchanged, "quiet")


@pytest.fixture
def world() -> Iterator[World]:
    with ApiServer() as server, RecordingExtender() as extender:
        world = World(server, extender)
        yield world
        for loop in world.loops:
            loop.stop()


# Without an extender


def test_alone_it_binds_where_the_pod_fits(world: World) -> None:
    world.nodes("small", gpus=1)
    world.nodes("large", gpus=8)
    world.start(alone=True)
    world.create("p", 4)
    assert world.node_of("p") == "large"
    conditions = {c.type: c.status for c in world.pod("p").status.conditions}
    assert conditions["PodScheduled"] == "True"


def test_pods_of_other_schedulers_and_gated_ones_are_left_alone(world: World) -> None:
    world.nodes("n1")
    world.start(alone=True)
    world.create("other", schedulerName="mine")
    world.create("gated", schedulingGates=[{"name": "x"}])
    world.create("ours")
    assert world.node_of("ours") == "n1"
    assert world.pod("other").spec.node_name == ""
    assert world.pod("gated").spec.node_name == ""
    world.patch("gated", {"spec": {"schedulingGates": None}})
    assert world.node_of("gated") == "n1"


def test_pods_in_flight_count_so_a_node_is_never_overcommitted(world: World) -> None:
    world.nodes("n1", "n2")
    loop = world.start(alone=True)
    for number in range(5):
        world.create(f"p{number}", 4)
    wait_for(lambda: loop.counts().unschedulable == 1, "one too many")
    nodes = [world.pod(f"p{number}").spec.node_name for number in range(5)]
    assert sorted(nodes) == ["", "n1", "n1", "n2", "n2"]


def test_a_pod_that_fits_nowhere_says_why_for_every_node(world: World) -> None:
    world.nodes("a", "b", gpus=2)
    world.nodes("cordoned", unschedulable=True)
    world.nodes("tainted", taints=[{"key": "k", "effect": "NoSchedule"}])
    world.start(alone=True)
    world.create("p", 4)
    assert world.says("p", "Unschedulable") == (
        "0/4 nodes are available: 1 node(s) had untolerated taint(s), "
        "1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu. preemption: "
        "0/4 nodes are available: 4 Preemption is not helpful for scheduling."
    )


def test_without_nodes_it_says_so_and_a_node_wakes_the_pod(world: World) -> None:
    world.start(alone=True)
    world.create("p")
    assert world.says("p", "Unschedulable") == "no nodes available to schedule pods"
    world.nodes("n1")
    assert world.node_of("p") == "n1"


def test_the_end_of_another_pod_wakes_a_pod_that_found_no_room(world: World) -> None:
    world.nodes("n1")
    world.start(alone=True)
    world.create("first", 8)
    world.node_of("first")
    world.create("second", 8)
    world.says("second", "Unschedulable")
    world.patch("first", {"status": {"phase": "Succeeded"}}, status=True)
    assert world.node_of("second") == "n1"


def test_more_gpus_on_a_node_wake_it_too(world: World) -> None:
    world.nodes("n1", gpus=0)
    world.start(alone=True)
    world.create("p")
    world.says("p", "Unschedulable")
    world.client.patch("/api/v1/nodes/n1/status", {"status": {"allocatable": {GPU: "8"}}})
    assert world.node_of("p") == "n1"


def test_important_pods_go_first(world: World) -> None:
    world.nodes("n1")
    world.create("early", 8)
    world.create("important", 8, priority=10)
    world.start(alone=True)
    assert world.node_of("important") == "n1"
    world.says("early", "Unschedulable")


def test_equal_nodes_are_drawn_by_the_seed(world: World) -> None:
    names = [f"n{number}" for number in range(8)]
    world.nodes(*names)
    drawn = []
    for seed in (1, 1, 2, 3):
        loop = world.start(alone=True, seed=seed)
        world.create("p", 0)
        drawn.append(world.node_of("p"))
        loop.stop()
        world.delete("p")
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_a_nominated_pod_s_room_is_kept_from_less_important_ones(world: World) -> None:
    world.nodes("n1")
    world.create("nominated", 8, schedulingGates=[{"name": "x"}], priority=5)
    world.nominate("nominated", "n1")
    world.start(alone=True)
    world.create("lesser", 8)
    assert "1 Insufficient nvidia.com/gpu" in world.says("lesser", "Unschedulable")
    world.create("greater", 8, priority=9)
    assert world.node_of("greater") == "n1"


# With one


def test_an_extender_is_asked_to_filter_to_prioritize_and_to_bind(world: World) -> None:
    world.nodes("n1", "n2", "n3")
    world.extender.answers["filter"] = lambda _: {"NodeNames": ["n1", "n3"]}
    world.extender.answers["prioritize"] = lambda _: [{"Host": "n3", "Score": 10}]
    world.start()
    world.create("p", 2)
    assert world.node_of("p") == "n3"
    assert world.extender.calls == [
        Call("filter", "p", ("n1", "n2", "n3")),
        Call("prioritize", "p", ("n1", "n3")),
        Call("bind", "p", ("n3",)),
    ]
    assert world.pod("p").metadata.annotations == {"by": "extender"}


def test_calls_are_in_kube_scheduler_s_wire_format(world: World) -> None:
    world.nodes("n1", "n2")
    world.start()
    world.create("p", 2)
    world.node_of("p")
    uid = world.pod("p").metadata.uid
    filtered, prioritized, bound = world.extender.bodies
    assert filtered == prioritized
    assert set(filtered) == {"Pod", "Nodes", "NodeNames"}
    assert filtered["Nodes"] is None
    assert filtered["Pod"]["metadata"]["uid"] == uid
    limits = filtered["Pod"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {GPU: "2"}
    assert bound == {
        "PodName": "p",
        "PodNamespace": "ml",
        "PodUID": uid,
        "Node": bound["Node"],
    }


def test_with_one_node_left_nobody_is_asked_for_scores(world: World) -> None:
    world.nodes("n1", "n2")
    world.extender.answers["filter"] = lambda _: {"NodeNames": ["n2"]}
    world.start()
    world.create("p")
    assert world.node_of("p") == "n2"
    assert world.extender.verbs() == ["filter", "bind"]


def test_pods_without_a_managed_resource_pass_it_by(world: World) -> None:
    world.nodes("n1", "n2")
    world.start()
    world.create("p", 0)
    world.node_of("p")
    assert world.extender.calls == []


def test_it_is_not_asked_where_plugins_refuse_every_node(world: World) -> None:
    world.nodes("n1", gpus=1)
    world.start()
    world.create("p", 4)
    world.says("p", "Unschedulable")
    assert world.extender.calls == []


def test_it_is_asked_only_about_nodes_that_passed_the_plugins(world: World) -> None:
    world.nodes("small", gpus=1)
    world.nodes("large")
    world.start()
    world.create("p", 4)
    world.node_of("p")
    assert world.extender.calls[0] == Call("filter", "p", ("large",))


def test_after_a_refusal_it_is_asked_once_more_and_then_not_until_an_event(world: World) -> None:
    world.nodes("n1", "n2")
    world.extender.answers["filter"] = refuse_all("gang waits")
    loop = world.start()
    world.create("p")
    assert world.says("p", "Unschedulable") == (
        "0/2 nodes are available: 2 gang waits. preemption: "
        "0/2 nodes are available: 2 No preemption victims found for incoming pod."
    )
    world.quiet(loop)
    assert world.extender.calls == [Call("filter", "p", ("n1", "n2"))] * 2


def test_each_patch_of_the_waiting_pod_is_one_more_try(world: World) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = refuse_all("gang waits")
    loop = world.start()
    world.create("p")
    world.quiet(loop)
    before = len(world.extender.calls)
    for number in range(6):
        world.patch("p", {"metadata": {"annotations": {"try": str(number)}}})
        world.quiet(loop)
    assert len(world.extender.calls) == before + 6


def test_a_node_s_annotation_wakes_what_the_extender_refused(world: World) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = refuse_all("no topology")
    loop = world.start()
    world.create("p")
    world.quiet(loop)
    world.extender.answers["filter"] = pass_all
    world.client.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"a": "b"}}})
    assert world.node_of("p") == "n1"


def test_another_waiting_pod_wakes_nobody(world: World) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = refuse_all("gang waits")
    loop = world.start()
    world.create("first")
    world.quiet(loop)
    world.extender.calls.clear()
    world.create("second")
    world.quiet(loop)
    assert {call.pod for call in world.extender.calls} == {"second"}


def test_to_be_listed_anew_wakes_nobody(world: World) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = refuse_all("gang waits")
    loop = world.start()
    world.create("p")
    world.quiet(loop)
    world.extender.calls.clear()
    world.server.fail_next("GET", "/api/v1/pods", 410)
    world.server.cut_watches()
    world.create("q", 0)
    world.node_of("q")  # heard, so the new list has been too
    world.quiet(loop)
    assert world.extender.calls == []


def test_a_nominated_node_is_tried_first_and_alone(world: World) -> None:
    world.nodes("n1", "n2", "n3")
    world.extender.answers["filter"] = refuse_all("gang waits")
    loop = world.start()
    world.create("p")
    world.quiet(loop)
    world.extender.calls.clear()
    world.extender.answers["filter"] = pass_all
    world.nominate("p", "n2")
    assert world.node_of("p") == "n2"
    assert world.extender.calls == [Call("filter", "p", ("n2",)), Call("bind", "p", ("n2",))]


def test_a_refused_nomination_leads_to_all_nodes_and_is_cleared(world: World) -> None:
    world.nodes("n1", "n2", "n3")
    world.extender.answers["filter"] = refuse_all("gang waits")
    loop = world.start()
    world.create("p")
    world.quiet(loop)
    world.extender.calls.clear()
    world.nominate("p", "n2")
    wait_for(lambda: not world.pod("p").status.nominated_node_name, "nomination cleared")
    assert [set(call.nodes) for call in world.extender.calls[:2]] == [
        {"n2"},
        {"n1", "n2", "n3"},
    ]


def test_an_error_about_the_nominated_node_leads_to_all_nodes(world: World) -> None:
    """kube-scheduler logs such an error and goes on in the same try."""
    world.nodes("n1", "n2", "n3")
    world.start(settings=PATIENCE)
    world.extender.answers["filter"] = lambda b: 500 if b["NodeNames"] == ["n2"] else pass_all(b)
    world.extender.answers["prioritize"] = lambda _: [{"Host": "n3", "Score": 10}]
    world.create("p", schedulingGates=[{"name": "linkwise.dev/plan"}])
    world.nominate("p", "n2")
    world.patch("p", {"spec": {"schedulingGates": None}})
    assert world.node_of("p") == "n3"
    filters = [set(call.nodes) for call in world.extender.of("filter")]
    assert filters == [{"n2"}, {"n1", "n2", "n3"}]


def test_a_nomination_that_comes_while_the_pod_is_tried_is_kept_and_tried(world: World) -> None:
    world.nodes("n1", "n2")

    def nominate_and_refuse(body: dict[str, Any]) -> Any:
        world.extender.answers["filter"] = pass_all
        world.nominate("p", "n2")
        return refuse_all("not yet")(body)

    world.extender.answers["filter"] = nominate_and_refuse
    world.start()
    world.create("p")
    assert world.node_of("p") == "n2"
    assert world.extender.calls == [
        Call("filter", "p", ("n1", "n2")),
        Call("filter", "p", ("n2",)),
        Call("bind", "p", ("n2",)),
    ]


def test_a_gate_lifted_with_a_nomination_leads_to_one_call_with_that_node(world: World) -> None:
    world.nodes("n1", "n2")
    world.start()
    world.create("p", schedulingGates=[{"name": "linkwise.dev/plan"}])
    world.nominate("p", "n2")
    world.patch("p", {"metadata": {"annotations": {"a": "b"}}, "spec": {"schedulingGates": None}})
    assert world.node_of("p") == "n2"
    assert world.extender.calls == [Call("filter", "p", ("n2",)), Call("bind", "p", ("n2",))]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda _: 503, "code 503"),
        (lambda _: {"Error": "not ready", "NodeNames": ["n1"]}, "not ready"),
        (lambda _: {"NodeNames": ["n9"]}, 'claims a filtered node "n9"'),
        (lambda _: {"NodeNames": "n1"}, "Expected `array | null`"),
    ],
)
def test_an_error_is_tried_again_after_a_back_off_and_never_bound_blind(
    world: World, answer: Callable[[Any], Any], says: str
) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = answer
    world.start()
    world.create("p")
    assert says in world.says("p", "SchedulerError")
    wait_for(lambda: len(world.extender.calls) > 2, "tried again by itself")
    assert world.pod("p").spec.node_name == ""
    world.extender.answers["filter"] = pass_all
    assert world.node_of("p") == "n1"


@pytest.mark.parametrize("verb", ["filter", "bind"])
def test_an_error_takes_the_nomination_away(world: World, verb: str) -> None:
    world.nodes("n1", "n2")
    world.extender.answers[verb] = lambda _: 500
    world.start()
    world.create("p", schedulingGates=[{"name": "linkwise.dev/plan"}])
    world.nominate("p", "n2")
    world.patch("p", {"spec": {"schedulingGates": None}})
    world.says("p", "SchedulerError")
    wait_for(lambda: not world.pod("p").status.nominated_node_name, "nomination taken away")


def test_no_names_at_all_means_no_node(world: World) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = lambda _: {"NodeNames": None}
    world.start()
    world.create("p")
    assert world.says("p", "Unschedulable") == (
        "0/1 nodes are available: preemption: "
        "0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )


def test_a_failed_bind_frees_the_room_and_is_tried_again(world: World) -> None:
    world.nodes("n1")
    refusals = [{"Error": "no such plan"}, 500]
    world.extender.answers["bind"] = lambda b: refusals.pop(0) if refusals else world.bind(b)
    world.start()
    world.create("p", 8)
    assert world.node_of("p") == "n1"
    assert world.extender.verbs() == ["filter", "bind"] * 3


def test_the_room_of_a_failed_bind_goes_to_who_waits_for_it(world: World) -> None:
    world.nodes("n1")

    def refuse_p(body: dict[str, Any]) -> dict[str, str]:
        if body["PodName"] == "q":
            return world.bind(body)
        world.says("q", "Unschedulable")
        return {"Error": "no such plan"}

    world.extender.answers["bind"] = refuse_p
    world.start(settings=PATIENCE)
    world.create("p", 8)
    wait_for(lambda: world.extender.of("filter"), "p tried")
    world.create("q", 8)
    assert world.node_of("q") == "n1"


def test_a_bind_that_was_done_but_not_answered_is_not_done_again(world: World) -> None:
    world.nodes("n1")

    def bind(body: dict[str, Any]) -> int:
        world.bind(body)
        return 504

    world.extender.answers["bind"] = bind
    loop = world.start()
    world.create("p", 8)
    assert world.node_of("p") == "n1"
    world.quiet(loop)
    assert len(world.extender.of("bind")) == 1


def test_a_pod_that_changes_while_it_is_bound_is_not_tried_again(world: World) -> None:
    world.nodes("n1")

    def change_and_bind(body: dict[str, Any]) -> dict[str, str]:
        world.patch("p", {"metadata": {"annotations": {"a": "b"}}})
        world.create("q", 0)
        world.node_of("q")  # the change was heard before
        return world.bind(body)

    world.extender.answers["bind"] = change_and_bind
    loop = world.start()
    world.create("p", 4)
    assert world.node_of("p") == "n1"
    world.quiet(loop)
    assert world.extender.calls == [Call("filter", "p", ("n1",)), Call("bind", "p", ("n1",))]


def test_binds_do_not_hold_up_the_next_tries(world: World) -> None:
    world.nodes("n1")
    world.start()

    def bind_when_both_were_filtered(body: dict[str, Any]) -> dict[str, str]:
        wait_for(lambda: len(world.extender.of("filter")) == 2, "the second pod's filter")
        return world.bind(body)

    world.extender.answers["bind"] = bind_when_both_were_filtered
    world.create("p", 4)
    world.create("q", 4)
    assert {world.node_of("p"), world.node_of("q")} == {"n1"}


# Preemption


def test_a_more_important_pod_makes_room_where_plugins_object(world: World) -> None:
    world.nodes("n1", "n2")
    world.start()
    world.create("a", 8, priority=1)
    world.create("b", 8, priority=2)
    node = world.node_of("a")
    world.node_of("b")
    world.create("urgent", 8, priority=10)
    wait_for(lambda: world.pod("urgent").status.nominated_node_name == node, "nominated")
    (call,) = world.extender.of("preempt")
    assert set(call.nodes) == {"n1", "n2"}
    assert world.pod("a").metadata.deletion_timestamp is not None
    assert world.pod("b").metadata.deletion_timestamp is None
    world.extender.calls.clear()
    world.delete("a")  # as its kubelet does in the end
    assert world.node_of("urgent") == node
    assert world.extender.calls[0] == Call("filter", "urgent", (node,))


def test_the_extender_may_refuse_to_make_room(world: World) -> None:
    world.nodes("n1")
    world.start()
    world.extender.answers["preempt"] = lambda _: {"NodeNameToMetaVictims": {}}
    world.create("a", 8, priority=1)
    world.node_of("a")
    world.create("urgent", 8, priority=10)
    world.says("urgent", "Unschedulable")
    assert world.extender.of("preempt")
    assert world.pod("a").metadata.deletion_timestamp is None


def victims_of(node: str, *uids: str) -> dict[str, Any]:
    return {"NodeNameToMetaVictims": {node: {"Pods": [{"UID": uid} for uid in uids]}}}


@pytest.mark.parametrize("answer", [500, victims_of("n1"), victims_of("n1", "nobody")])
def test_where_the_extender_fails_about_making_room_the_pod_sleeps(
    world: World, answer: object
) -> None:
    world.nodes("n1")
    loop = world.start()
    world.extender.answers["preempt"] = lambda _: answer
    world.create("a", 8, priority=1)
    world.node_of("a")
    world.create("urgent", 8, priority=10)
    assert "Insufficient" in world.says("urgent", "Unschedulable")
    world.quiet(loop)
    assert len(world.extender.of("preempt")) == 1
    assert loop.counts().unschedulable == 1
    assert not world.pod("urgent").status.nominated_node_name
    assert world.pod("a").metadata.deletion_timestamp is None


def test_only_as_many_are_evicted_as_must_be(world: World) -> None:
    world.nodes("n1")
    world.start(alone=True)
    for name, gpus, priority in (("a", 2, 3), ("b", 2, 1), ("c", 4, 2)):
        world.create(name, gpus, priority=priority)
        world.node_of(name)
    world.create("urgent", 4, priority=10)
    wait_for(lambda: world.pod("urgent").status.nominated_node_name, "nominated")
    evicted = {n for n in "abc" if world.pod(n).metadata.deletion_timestamp is not None}
    assert evicted == {"c"}


def test_where_the_extender_alone_refuses_nobody_is_evicted(world: World) -> None:
    world.nodes("n1")
    loop = world.start()
    world.create("a", 4, priority=1)
    world.node_of("a")
    world.extender.answers["filter"] = refuse_all("no island")
    world.create("urgent", 4, priority=10)
    world.quiet(loop)
    assert world.extender.of("preempt") == []
    assert world.pod("a").metadata.deletion_timestamp is None


# Faults of the world


def test_nothing_is_forgotten_when_the_api_server_goes_and_comes_back(world: World) -> None:
    world.nodes("n1")
    loop = world.start(alone=True)
    world.create("before", 4)
    world.node_of("before")
    world.server.pause()
    world.server.resume()
    world.create("after", 4)
    assert world.node_of("after") == "n1"
    world.create("too-much", 1)
    world.says("too-much", "Unschedulable")
    wait_for(lambda: loop.idle, "idle")


def test_a_pod_deleted_while_it_waits_is_forgotten(world: World) -> None:
    world.nodes("n1", gpus=1)
    loop = world.start(alone=True)
    world.create("p", 4)
    world.says("p", "Unschedulable")
    world.delete("p")
    wait_for(lambda: loop.counts().unschedulable == 0, "forgotten")
    with pytest.raises(ApiError):
        world.pod("p")


def test_a_node_that_is_gone_is_no_candidate_and_its_pods_count_if_it_comes_back(
    world: World,
) -> None:
    world.nodes("n1")
    world.start(alone=True)
    world.create("p", 8)
    world.node_of("p")
    world.client.delete("/api/v1/nodes/n1")
    world.create("q", 8)
    assert world.says("q", "Unschedulable") == "no nodes available to schedule pods"
    world.nodes("n1")
    wait_for(lambda: "Insufficient" in world.says("q", "Unschedulable"), "p still counts")
