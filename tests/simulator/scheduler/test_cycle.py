"""One try of one pod: the moving search, the draw, the messages, the victims."""

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any

import msgspec
import pytest

from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.objects import Node, Pod
from linkwise.simulator.scheduler import preemption, words
from linkwise.simulator.scheduler.cache import SchedulerCache
from linkwise.simulator.scheduler.cycle import Cycle, Unfit
from linkwise.simulator.scheduler.extender import ExtenderClient
from tests.kube.filters.cases import HOST, apart, near, term
from tests.simulator.scheduler.recording_extender import RecordingExtender

GPU = "nvidia.com/gpu"


def node(name: str, gpus: int = 8) -> Node:
    allocatable = {"cpu": "8", "memory": "512Gi", "pods": "110", GPU: str(gpus)}
    metadata = {"name": name, "labels": {HOST: name}}
    return msgspec.convert({"metadata": metadata, "status": {"allocatable": allocatable}}, Node)


def pod(name: str, gpus: int = 1, *, on: str = "", **more: Any) -> Pod:
    containers = [{"name": "main", "resources": {"limits": {GPU: str(gpus)}}}]
    created = more.pop("created", "2026-01-02T00:00:00Z")
    body = {
        "metadata": {
            "name": name,
            "uid": name,
            "creationTimestamp": created,
            "labels": more.pop("labels", {}),
        },
        "spec": {
            "containers": containers,
            "nodeName": on,
            "priority": more.pop("priority", 0),
            **more.pop("spec", {}),
        },
        "status": more,
    }
    return msgspec.convert(body, Pod)


def cluster_of(nodes: Iterable[Node], *pods: Pod) -> SchedulerCache:
    cluster = SchedulerCache()
    for one in nodes:
        cluster.set_node(one)
    for running in pods:
        cluster.add_pod(running)
    return cluster


def cycle_of(
    cluster: SchedulerCache, extender: ExtenderClient | None = None, *, weight: int = 1
) -> Cycle:
    return Cycle(
        cluster,
        Lock(),
        extender,
        seed=0,
        percentage_of_nodes_to_score=0,
        extender_weight=weight,
    )


def unfit(cluster: SchedulerCache, one: Pod) -> Unfit:
    found = cycle_of(cluster).schedule(one)
    assert isinstance(found, Unfit)
    return found


# Pods around


WEB = {"app": "web"}
ALONE = {"affinity": apart(term(WEB))}
FOLLOWS = {"affinity": near(term(WEB))}


def test_an_assumed_pod_keeps_others_out_at_once() -> None:
    cluster = cluster_of([node("n1"), node("n2")])
    cluster.assume_pod(pod("first", labels=WEB, spec=ALONE), "n1")
    assert cycle_of(cluster).schedule(pod("second", labels=WEB, spec=ALONE)) == "n2"
    cluster.assume_pod(pod("second", labels=WEB, spec=ALONE), "n2")
    third = unfit(cluster, pod("third", labels=WEB, spec=ALONE))
    assert third.rejected_by == {"InterPodAffinity"}
    assert third.nowhere is None
    cluster.remove_pod("first")
    assert cycle_of(cluster).schedule(pod("third", labels=WEB, spec=ALONE)) == "n1"


def test_a_nominated_pod_keeps_others_out_and_no_pod_follows_it_yet() -> None:
    cluster = cluster_of([node("n1")])
    cluster.nominate(pod("first", labels=WEB, priority=1, nominatedNodeName="n1"))
    found = cluster.rejection(pod("second", spec=ALONE), "n1")
    assert found is not None
    assert found.plugin == "InterPodAffinity"
    assert cluster.rejection(pod("second", priority=2, spec=ALONE), "n1") is None
    assert cluster.rejection(pod("third", spec=FOLLOWS), "n1") is not None


def test_evicting_the_pod_that_keeps_it_out_lets_a_pod_in() -> None:
    cluster = cluster_of([node("n1")], pod("old", labels=WEB, on="n1"))
    assert victims(cluster, pod("new", priority=1, spec=ALONE)) == {"n1": ["old"]}


def test_a_missing_claim_refuses_the_pod_as_a_whole() -> None:
    cluster = cluster_of([node("n1"), node("n2")])
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    found = unfit(cluster, pod("a", spec={"volumes": volumes}))
    assert found.nowhere is not None
    assert words.fit_error(2, found.reasons, 0, found.nowhere.reasons[0]).startswith(
        '0/2 nodes are available: persistentvolumeclaim "data" not found.'
    )


def test_a_row_of_a_node_that_went_is_used_for_the_next_one() -> None:
    cluster = cluster_of([node("n1"), node("n2")])
    cluster.remove_node("n1")
    cluster.set_node(node("n3"))
    cluster.add_pod(pod("web", labels=WEB, on="n3"))
    assert cluster.rejection(pod("a", spec=FOLLOWS), "n3") is None
    assert cluster.rejection(pod("a", spec=FOLLOWS), "n2") is not None


# The search


def test_in_a_large_cluster_the_extender_sees_a_window_that_moves_on() -> None:
    names = [f"n{number:03}" for number in range(250)]
    cluster = cluster_of(node(name) for name in names)
    with RecordingExtender() as recording:
        cycle = cycle_of(cluster, ExtenderClient(recording.url, managed_resources=[GPU]))
        for number in range(3):
            cycle.schedule(pod(f"p{number}"))
        windows = [call.nodes for call in recording.of("filter")]
    # 250 nodes: 48 % of them are enough.
    assert windows[0] == tuple(names[:120])
    assert windows[1] == tuple(names[120:240])
    assert windows[2] == (*names[240:], *names[:110])


def test_the_window_moves_on_by_all_it_looked_at() -> None:
    names = [f"n{number:03}" for number in range(250)]
    cluster = cluster_of(node(name, gpus=0 if name < "n010" else 8) for name in names)
    with RecordingExtender() as recording:
        cycle = cycle_of(cluster, ExtenderClient(recording.url, managed_resources=[GPU]))
        cycle.schedule(pod("p"))
        cycle.schedule(pod("q"))
        windows = [call.nodes for call in recording.of("filter")]
    assert windows == [tuple(names[10:130]), tuple(names[130:250])]


@pytest.mark.parametrize("score", [0.5, 7.0, "7"])
def test_a_score_that_is_no_whole_number_drops_the_whole_answer(score: object) -> None:
    cluster = cluster_of([node("a"), node("b")], pod("x", on="b"), pod("y", on="b"))
    with RecordingExtender() as recording:
        recording.answers["prioritize"] = lambda _: [
            {"Host": "b", "Score": 100},
            {"Host": "a", "Score": score},
        ]
        extender = ExtenderClient(recording.url, managed_resources=[GPU])
        assert cycle_of(cluster, extender).schedule(pod("p")) == "a"


def test_equal_nodes_are_drawn_at_random_and_each_comes_up() -> None:
    cluster = cluster_of([node("a"), node("b"), node("c")])
    cycle = cycle_of(cluster)
    assert {cycle.schedule(pod(f"p{number}")) for number in range(30)} == {"a", "b", "c"}


def test_what_a_pod_requests_is_a_managed_resource_too() -> None:
    spec = {"containers": [{"name": "c", "resources": {"requests": {GPU: "1"}}}]}
    extender = ExtenderClient("http://127.0.0.1:1", managed_resources=[GPU])
    assert extender.is_interested(msgspec.convert({"spec": spec}, Pod))


def test_a_node_dropped_without_a_word_counts_as_refused_by_the_extender() -> None:
    cluster = cluster_of([node("full", gpus=0), node("b")])
    with RecordingExtender() as recording:
        recording.answers["filter"] = lambda _: {"NodeNames": []}
        extender = ExtenderClient(recording.url, managed_resources=[GPU])
        found = cycle_of(cluster, extender).schedule(pod("p"))
    assert isinstance(found, Unfit)
    assert found.rejected_by == {"Extender", "NodeResourcesFit"}
    assert not found.rejections["b"].resolvable


def test_a_nominated_pod_counts_once_when_it_gets_its_node() -> None:
    cluster = cluster_of([node("a"), node("b", gpus=4)])
    planned = pod("p", 4, nominatedNodeName="a")
    cluster.nominate(planned)
    cluster.assume_pod(planned, "b")
    assert cycle_of(cluster).schedule(pod("q", 8)) == "a"


# The words


def test_equal_reasons_are_counted_and_sorted() -> None:
    reasons = {"a": ("x", "y"), "b": ("x",), "c": ()}
    assert words.fit_error(4, reasons, helpful=1) == (
        "0/4 nodes are available: 1 y, 2 x. preemption: "
        "0/4 nodes are available: 1 No preemption victims found for incoming pod., "
        "3 Preemption is not helpful for scheduling."
    )


def test_a_condition_is_written_only_when_it_changes() -> None:
    fresh = pod("p")
    first = words.condition_patch(fresh, "Unschedulable", "no", "now", nomination="")
    assert first is not None
    said = msgspec.convert({"metadata": {"name": "p"}, **first}, Pod)
    assert words.condition_patch(said, "Unschedulable", "no", "later", nomination="") is None
    assert words.condition_patch(said, "Unschedulable", "never", "later", nomination="")


@pytest.mark.parametrize(
    ("nomination", "written"), [(None, "absent"), ("", None), ("b", "b"), ("a", "absent")]
)
def test_a_nomination_is_left_cleared_or_set(nomination: str | None, written: object) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    waiting = pod("p", nominatedNodeName="a", conditions=[condition])
    patch = words.condition_patch(waiting, "Unschedulable", "", "now", nomination=nomination)
    status: Any = patch["status"] if patch else {}
    assert status.get("nominatedNodeName", "absent") == written


# Which pods would have to go


def victims(cluster: SchedulerCache, one: Pod) -> dict[str, list[str]]:
    found = preemption.candidates(one, cluster, unfit(cluster, one).rejections)
    return {name: [v.metadata.name for v in pods] for name, pods in found.items()}


def test_as_few_as_possible_and_the_least_important_go() -> None:
    running = [pod("low", 4, on="a", priority=1), pod("high", 4, on="a", priority=2)]
    urgent = pod("urgent", 4, priority=9)
    assert victims(cluster_of([node("a")], *running), urgent) == {"a": ["low"]}


def test_of_equals_the_youngest_goes() -> None:
    old = pod("old", 4, on="a", created="2026-01-01T00:00:00Z")
    young = pod("young", 4, on="a", created="2026-01-03T00:00:00Z")
    cluster = cluster_of([node("a")], young, old)
    assert victims(cluster, pod("urgent", 4, priority=9)) == {"a": ["young"]}


def test_nobody_goes_where_that_does_not_help() -> None:
    cluster = cluster_of([node("a", gpus=4)], pod("low", 4, on="a"))
    assert victims(cluster, pod("urgent", 8, priority=9)) == {}


def test_nobody_goes_for_one_as_important() -> None:
    cluster = cluster_of([node("a")], pod("x", 8, on="a", priority=9))
    assert victims(cluster, pod("urgent", 8, priority=9)) == {}


def test_the_node_with_the_least_important_victims_is_picked() -> None:
    found = {
        "a": (pod("x", priority=3),),
        "b": (pod("y", priority=2), pod("z", priority=2)),
        "c": (pod("w", priority=2), pod("v", priority=1)),
        "d": (pod("u", priority=2), pod("t", priority=1), pod("s", priority=0)),
    }
    assert preemption.pick(found) == "c"


def test_while_room_is_being_made_nobody_else_goes() -> None:
    leaving = msgspec.convert(
        {
            **msgspec.to_builtins(pod("low", 8, on="a")),
            "metadata": {
                "name": "low",
                "uid": "low",
                "deletionTimestamp": "2026-01-02T00:00:00Z",
            },
        },
        Pod,
    )
    cluster = cluster_of([node("a"), node("b")], leaving, pod("other", 8, on="b"))
    urgent = pod("urgent", 8, priority=9, nominatedNodeName="a")
    assert not preemption.is_eligible(urgent, cluster, unfit(cluster, urgent).rejections)
    never = {"a": Rejection("NodeUnschedulable", (), resolvable=False)}
    assert preemption.is_eligible(urgent, cluster, never)  # the room there is of no use to it
    cluster.remove_pod("low")
    assert preemption.is_eligible(urgent, cluster, {})


# Filters that kube-scheduler does not have by default


def by_initial(one: Pod, _node: str, there: Sequence[Pod], _now: float) -> str | None:
    """No two pods whose names begin with the same letter."""
    is_taken = any(other.metadata.name[0] == one.metadata.name[0] for other in there)
    return "too near" if is_taken else None


def test_other_filters_judge_the_pods_that_count_on_a_node() -> None:
    cluster = SchedulerCache(other_filters=(by_initial,))
    for name in ("a", "b", "c"):
        cluster.set_node(node(name))
    cluster.add_pod(pod("g-0", on="a"))
    cluster.nominate(pod("g-1", nominatedNodeName="b"))
    tried = {name: cluster.rejection(pod("g-2"), name) for name in ("a", "b", "c")}
    refused = Rejection("OtherFilter", ("too near",), resolvable=True)
    assert tried == {"a": refused, "b": refused, "c": None}
    assert cluster.rejection(pod("g-2"), "a", without=frozenset({"g-0"})) is None
    assert cluster.rejection(pod("h-0"), "a") is None


def test_other_filters_are_told_the_time_and_asked_last() -> None:
    clock = [10.0]

    def not_yet(_pod: Pod, _node: str, _there: Sequence[Pod], now: float) -> str | None:
        return "too early" if now < 20.0 else None

    cluster = SchedulerCache(other_filters=(not_yet,), clock=lambda: clock[0])
    cluster.set_node(node("a"))
    short = cluster.rejection(pod("p", 9), "a")
    assert short is not None
    assert short.plugin == "NodeResourcesFit"
    found = unfit(cluster, pod("p"))
    assert found.rejected_by == {"OtherFilter"}
    assert found.reasons == {"a": ("too early",)}
    clock[0] = 20.0
    assert cycle_of(cluster).schedule(pod("p")) == "a"
