"""Which pods form a workload, and their record, from pods as the API server has them."""

from typing import Any

import msgspec
import pytest

from linkwise.drawing.times import PodTimes
from linkwise.kube.labels import COMPLETION_INDEX as INDEX
from linkwise.kube.objects import Pod
from linkwise.simulator.report.build_report import report_of, seen_pods, waiting_members
from linkwise.simulator.report.model import GangSeen, SeenPod, faults
from linkwise.simulator.report.pod_recorder import Sighting

change = msgspec.structs.replace
GPU = {"limits": {"nvidia.com/gpu": 2}}


def pod(
    name: str,
    *,
    namespace: str = "default",
    job: str = "",
    phase: str = "Running",
    message: str = "",
    node: str = "n1",
    resources: Any = GPU,
    **annotations: str,
) -> Pod:
    owners = [{"kind": "Job", "name": job, "uid": f"uid-{job}", "controller": True}]
    body = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {key.replace("_", "-"): text for key, text in annotations.items()},
            "ownerReferences": owners if job else [],
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": phase, "message": message},
    }
    return msgspec.convert(body, Pod)


def gang(name: str, size: str) -> dict[str, str]:
    return {"linkwise.dev/gang": name, "linkwise.dev/gang-size": size}


def seen(*pods: Pod) -> tuple[SeenPod, ...]:
    sightings = [Sighting(pod, order, {}, PodTimes(0.0)) for order, pod in enumerate(pods)]
    return seen_pods(sightings, {}, {}, {}, {}, {})


def members(*pods: Pod) -> list[tuple[str, str]]:
    return [(each.workload, each.member) for each in seen(*pods)]


def test_pods_of_one_job_are_told_apart_by_their_completion_index() -> None:
    pods = [pod(f"train-{i}-x", job="train", **{INDEX: str(i)}) for i in (1, 0)]

    assert members(*pods) == [("train", "1"), ("train", "0")]


def test_pods_without_an_index_are_told_apart_by_the_order_of_their_coming() -> None:
    pods = [pod("eval-x", job="eval"), pod("lone"), pod("eval-a", job="eval")]

    assert members(*pods) == [("eval", "0"), ("lone", "0"), ("eval", "1")]


def test_a_gang_of_two_jobs_is_one_workload_whose_indices_do_not_tell_its_members() -> None:
    pods = [
        pod(f"{job}-{i}", job=job, **{INDEX: str(i)}, **gang("big", "4"))
        for job in ("a", "b")
        for i in (0, 1)
    ]

    assert members(*pods) == [("big", str(number)) for number in range(4)]
    assert {each.needed for each in seen(*pods)} == {4}


def test_equal_names_in_two_namespaces_are_two_workloads() -> None:
    assert members(pod("a", namespace="ml"), pod("a")) == [("ml/a", "0"), ("a", "0")]


@pytest.mark.parametrize("size", ["", "four", "-1", "²"])
def test_a_gang_whose_size_is_no_number_can_never_be_half(size: str) -> None:
    assert [each.needed for each in seen(pod("a", **gang("g", size)))] == [0]


def test_pods_that_take_no_gpu_are_left_out() -> None:
    assert members(pod("web", resources={"limits": {"cpu": 1}}), pod("a")) == [("a", "0")]


def test_a_failed_pod_is_left_out_once_its_job_has_made_another() -> None:
    failed = pod("train-0-x", job="train", phase="Failed", **{INDEX: "0"})
    other = pod("train-1-x", job="train", **{INDEX: "1"})
    again = pod("train-0-y", job="train", **{INDEX: "0"})

    assert [each.pod for each in seen(failed, other, again)] == [
        "default/train-1-x",
        "default/train-0-y",
    ]
    assert [each.pod for each in seen(failed, other)] == ["default/train-0-x", "default/train-1-x"]
    assert [each.pod for each in seen(pod("a", phase="Failed"))] == ["default/a"]


def test_what_each_holds_held_and_waits_for_is_its_own() -> None:
    sightings = [
        Sighting(pod("runs"), 1, {"main": ("G0", "G1")}, PodTimes(1.0, 2.0, 3.0)),
        Sighting(pod("ended", phase="Succeeded"), 2, {"main": ("G2", "G3")}, PodTimes(1.5)),
        Sighting(pod("waits", node="", phase="Pending"), 3, {}, PodTimes(2.0)),
    ]

    runs, ended, waits = seen_pods(
        sightings,
        {"default/runs": {"main": ("G1", "G0")}},
        {"default/runs": frozenset({"G0", "G1"}), "default/ended": frozenset({"G2", "G3"})},
        {"default/waits": "No room."},
        {"default/runs": GangSeen("g", 3)},
        {},
    )

    assert (runs.held, runs.planned) == ({"main": ("G1", "G0")}, {"main": ("G0", "G1")})
    assert (runs.needed, ended.needed) == (3, 0)
    assert (runs.ended, runs.node) == (False, "n1")
    assert [each.times for each in (runs, ended, waits)] == [
        (1.0, 2.0, 3.0, None),
        (1.5, None, None, None),
        (2.0, None, None, None),
    ]
    assert (ended.held_gpus, ended.ended) == (frozenset(), True)
    assert ended.had == frozenset({"G2", "G3"})
    assert (waits.node, waits.held_gpus, waits.waits) == ("", frozenset(), "No room.")


@pytest.mark.parametrize("said", [gang("g", "3"), {}])
def test_a_member_without_gpus_is_one_of_those_that_its_gang_needs(said: dict[str, str]) -> None:
    """Its annotations say so, or a group that the extender knows."""
    pods = [pod("driver", resources={}, **said), pod("w-0", **said), pod("w-1", **said)]
    gangs = {f"default/{each.metadata.name}": GangSeen("g", 3) for each in pods}
    sightings = [Sighting(each, order, {}, PodTimes(0.0)) for order, each in enumerate(pods)]
    held = {f"default/w-{n}": {"main": (f"G{n}",)} for n in range(2)}
    for waits in (False, True):
        if waits:
            lone = change(pods[0], spec=change(pods[0].spec, node_name=""))
            sightings[0] = Sighting(lone, 0, {}, PodTimes(0.0))
        found = seen_pods(sightings, held, {}, {}, gangs, {})
        half = [fault for fault in faults(found) if fault.startswith("gang")]
        assert half == (["gang default/g: 2 of 3 members run"] if waits else [])


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (pod("a", phase="Failed", message="No GPU left."), "Failed on n1: No GPU left."),
        (pod("a", phase="Failed"), "Failed on n1, and holds no GPU."),
        (pod("a", node="", phase=""), "Pending, and holds no GPU."),
    ],
)
def test_a_pod_without_gpus_says_why(of: Pod, said: str) -> None:
    assert [each.waits for each in seen(of)] == [said]


def test_times_are_since_the_first_pod_and_end_with_the_report() -> None:
    """The order of the pods is that in which they appeared, which need not be that of the rows."""
    later = SeenPod("b", "b", 0, times=PodTimes(12.0, 12.5, 13.0, 15.0))
    first = SeenPod("a", "a", 0, times=PodTimes(10.0))

    report = report_of([], [later, first], [], seed=1, at=16.0)

    assert [pod.times for _, pod in report.pods] == [(2.0, 2.5, 3.0, 5.0), (0.0, None, None, None)]
    assert report.seconds == 6.0
    assert report_of([], [later, first], [], seed=1).seconds == 5.0
    assert report_of([], [], [], seed=1, at=16.0).seconds == 0.0


def test_a_workload_is_bound_from_the_last_creation_of_those_that_are() -> None:
    """A pod that waits, created long after the others were bound, does not count."""
    pods = [
        SeenPod("a", "w", 0, "0", PodTimes(10.0, 10.5)),
        SeenPod("b", "w", 0, "1", PodTimes(10.25, 12.0, 13.0, 14.0)),
        SeenPod("c", "w", 0, "2", PodTimes(20.0)),
    ]

    assert report_of([], pods, [], seed=1).workloads[0].bound_after == 1.75
    assert report_of([], pods[2:], [], seed=1).workloads[0].bound_after is None


def test_a_pod_without_gpus_and_without_a_node_says_what_no_node_has() -> None:
    head = pod("head", job="ray", node="", phase="Pending", resources={"requests": {"cpu": "400"}})
    placed = pod("launcher", job="ray", resources={})
    sightings = [
        Sighting(each, order, {}, PodTimes(0.0)) for order, each in enumerate((head, placed))
    ]
    (found,) = waiting_members(sightings, {"uid-ray": "ray"}, [{"cpu": 192_000}, {"cpu": 8_000}])
    assert (found.pod, found.workload) == ("default/head", "ray")
    assert found.why == (
        "kube-scheduler has not tried it. It requests cpu 400, and the most that a node has is 192."
    )
