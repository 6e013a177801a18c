"""Pods as their operators make them, with nothing in them for Linkwise: the core plans gangs whole,
and lets pods that are in no gang go at once."""

import random
from typing import Any

import msgspec
import pytest

from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.timers import Agenda
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import Recognised
from tests.extender.cluster import GPU, Cluster
from tests.pods.podgrouper.pods import Object, ref_of, told
from tests.pods.podgrouper.workload_cases import CASES, Group, groups, takes_gpus

# Longer than the core waits for the rest once enough members of an elastic gang are there.
SURELY = 120.0


def singles() -> list[Any]:
    return [
        pytest.param(row["pod"], case["objects"], id=row["pod"]["metadata"]["name"])
        for case in CASES
        for row in case["pods"]
        if not row["expected"]["is_gang"] and takes_gpus(row)
    ]


def world(objects: tuple[Object, ...] | list[Object], nodes: int = 10) -> Cluster:
    cluster = Cluster(owners={ref_of(made): made for made in objects})
    for number in range(nodes):
        cluster.add_node(f"n{number}", "dgx-a100")
    return cluster


def planned(cluster: Cluster, pods: list[Pod]) -> list[str]:
    names = (pod.metadata.name for pod in pods)
    return [name for name in names if cluster.pod(name).status.nominated_node_name]


def why(cluster: Cluster, pod: Pod) -> str:
    return " ".join(cluster.filter(pod.metadata.name).failed.values())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("group", groups())
def test_a_gang_is_planned_whole_as_soon_as_enough_of_it_is_there(group: Group, seed: int) -> None:
    cluster = world(group.objects)
    members = group.members()
    random.Random(seed).shuffle(members)
    *first, last = members
    for pod in first:
        cluster.put_pod(pod)
        cluster.settle()
    cluster.pass_time(SURELY)
    assert planned(cluster, first) == []
    assert all("waits for its members" in why(cluster, pod) for pod in first)
    cluster.put_pod(last)
    cluster.settle()
    cluster.pass_time(SURELY)
    assert sorted(planned(cluster, members)) == sorted(pod.metadata.name for pod in members)
    (gang,) = cluster.core.gangs(cluster.now)
    assert gang.phase == "planned"
    assert cluster.sound()


@pytest.mark.parametrize(("made", "objects"), singles())
def test_a_pod_that_is_in_no_gang_waits_for_nobody(made: Object, objects: list[Object]) -> None:
    cluster = world(objects)
    pod = cluster.put_pod(msgspec.convert(made, Pod))
    cluster.settle()
    assert cluster.filter(pod.metadata.name).node_names
    assert cluster.core.gangs(cluster.now) == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_members_that_take_no_gpu_are_not_waited_for_and_cost_no_read(case: dict[str, Any]) -> None:
    cluster = world(case["objects"])
    for row in case["pods"]:
        if not takes_gpus(row):
            cluster.put_pod(msgspec.convert(row["pod"], Pod))
            cluster.settle()
    assert cluster.reads == []
    assert cluster.core.gangs(cluster.now) == ()


@pytest.mark.parametrize("group", groups())
def test_what_the_core_makes_of_it_is_what_the_table_says(group: Group) -> None:
    for row in group.rows:
        ask = read(row["pod"], group.objects).ask
        answer = told(row["pod"], group.objects).answer
        assert isinstance(answer, Recognised)
        assert ask.gang is not None
        sizes = (ask.gang.size - ask.gang.done, ask.gang.minimum - ask.gang.done)
        assert sizes == (answer.gpu_size, answer.gpu_minimum)
        assert (ask.rank, ask.role) == (answer.member.rank, answer.member.role)
        assert ask.because == f"{answer.rule}: {answer.because}"
        assert str(answer.gang) == f"{answer.gang.namespace}/{ask.gang.name}"


def read(made: Object, objects: tuple[Object, ...]) -> PodRecord:
    reader, found = Ingest((GPU,), Agenda()), {ref_of(made): made for made in objects}
    record = reader.follow(msgspec.convert(made, Pod), 0.0)
    while record.awaits:
        (asked,) = reader.take_reads(0.0)
        reader.owner_read(asked, found[asked.ref], 0.0)
        (record,) = reader.take_to_rejudge(0.0)
    return record
