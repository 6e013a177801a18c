"""A kubelet creates mirror pods of its static pods, in any namespace and with any labels. Of such a
pod only its use of its node counts."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import Pod
from linkwise.pods.large_pods import MOST_BYTES
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.owned import create, four_nodes, grouped, job, member, pod_group, there_is


class Case(NamedTuple):
    objects: tuple[dict[str, object], ...]
    pod: Callable[[int], Pod]


def annotated(index: int) -> Pod:
    pod = grouped(f"train-{index}", "")
    said = {names.GANG: "train", names.GANG_SIZE: "3"}
    return change(pod, metadata=change(pod.metadata, labels={}, annotations=said))


TRAIN = job("train", 3)
WAYS = {
    "PodGroup": Case((pod_group("train", 3),), lambda index: grouped(f"train-{index}", "train")),
    "annotations": Case((), annotated),
    "owner": Case((TRAIN,), lambda index: member(TRAIN, index)),
}


def mirror(pod: Pod, **labels: str) -> Pod:
    meta = pod.metadata
    meta = change(
        meta,
        name=f"static-{meta.name}",
        uid=f"static-{meta.uid}",
        annotations={**meta.annotations, MIRROR_POD: "hash"},
        labels={**meta.labels, **labels},
    )
    spec, status = change(pod.spec, node_name="n3"), change(pod.status, phase="Running")
    return change(pod, metadata=meta, spec=spec, status=status)


def bound(at: Cluster, pods: list[Pod]) -> list[str]:
    for pod in pods:
        at.schedule(pod.metadata.name)
        at.settle()
    return [at.pod(pod.metadata.name).spec.node_name for pod in pods]


@pytest.mark.parametrize("way", WAYS)
def test_it_is_a_member_of_nothing(way: str) -> None:
    """Room for two members of three: none starts."""
    objects, made = WAYS[way]
    at = four_nodes()
    at.cordon("n2")
    there_is(at, *objects)
    create(at, mirror(made(2)))
    pods = [made(index) for index in range(3)]
    create(at, *pods)
    assert bound(at, pods) == ["", "", ""]
    at.uncordon("n2")
    at.settle()
    assert sorted(bound(at, pods)) == ["n0", "n1", "n2"]  # it has the GPUs of n3
    assert at.sound()


def test_one_that_is_too_large_to_be_read_is_one_too() -> None:
    at = four_nodes()
    create(at, mirror(annotated(0), big="x" * MOST_BYTES))
    explained = at.core.snapshot(at.now).pods
    assert [(record.left_alone, record.static) for record in explained] == [(True, True)]
    assert at.free("n3") == 0


def test_it_shows_nothing_of_how_long_others_run() -> None:
    """Nor does it break what pods of its namespace declare."""
    at = four_nodes()
    for index in range(8):
        pod = annotated(index)
        said = {**pod.metadata.annotations, names.EXPECTED_DURATION: "1s"}
        create(at, mirror(change(pod, metadata=change(pod.metadata, annotations=said))))
        at.pass_time(3600.0)
        if index:
            at.delete(f"static-train-{index}")
    known = at.core.snapshot(at.now).run_times
    assert (known.half, known.broken) == ({}, frozenset())
