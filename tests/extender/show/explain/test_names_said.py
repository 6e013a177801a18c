"""The gang that a user means, by its own name or by its owner's."""

import pytest

from linkwise.extender.show.explain.names_said import gang_said, nearest, why_unknown
from tests.extender.cluster import Cluster
from tests.extender.owned import create, four_nodes, grouped, job, member, pod_group, there_is


def recognised() -> Cluster:
    """A Job `train`, and a gang `wave` that pods name."""
    cluster, train = four_nodes(), job("train", 2)
    there_is(cluster, train)
    create(cluster, member(train, 0), member(train, 1))
    cluster.add_gang("wave", 2, 8)
    cluster.settle()
    return cluster


def said(cluster: Cluster, name: str, namespace: str = "ml") -> str | None:
    found = gang_said(cluster.core.snapshot(cluster.now), namespace, name)
    return None if found is None else found.key.name


def unknown(cluster: Cluster, kind: str, name: str, namespace: str = "ml") -> str:
    return why_unknown(cluster.core.snapshot(cluster.now), kind, namespace, name)


@pytest.mark.parametrize(
    "name",
    [
        "Job.batch/train",
        "train",
        "job/train",
        "jobs/train",
        "job.batch/train",
        "jobs.batch/train",
        "JOB/train",
    ],
)
def test_a_recognised_gang_is_found_by_its_owner(name: str) -> None:
    assert said(recognised(), name) == "Job.batch/train"


@pytest.mark.parametrize("name", ["wave", "linkwise.dev/wave"])
def test_a_gang_that_pods_name_is_found_as_recognise_writes_it_too(name: str) -> None:
    assert said(recognised(), name) == "wave"


@pytest.mark.parametrize(
    "name", ["trai", "pytorchjob/train", "Train", "job/wave", "batch/train", "", "/train/"]
)
def test_another_name_means_no_gang(name: str) -> None:
    assert said(recognised(), name) is None


def test_a_name_is_of_one_namespace() -> None:
    assert said(recognised(), "train", "theirs") is None


def test_a_gang_with_exactly_that_name_comes_first() -> None:
    cluster = recognised()
    cluster.add_gang("train", 2, 8)
    cluster.settle()
    assert said(cluster, "train") == "train"
    assert said(cluster, "job/train") == "Job.batch/train"


def test_a_name_that_may_mean_two_gangs_is_answered_with_both() -> None:
    cluster = recognised()
    there_is(cluster, pod_group("train", 2))
    create(cluster, *(grouped(f"other-{rank}", "train") for rank in range(2)))
    assert said(cluster, "train") is None
    assert unknown(cluster, "gang", "train") == (
        "ml/train may be gang/Job.batch/train or gang/PodGroup.scheduling.x-k8s.io/train"
    )
    assert said(cluster, "podgroup/train") == "PodGroup.scheduling.x-k8s.io/train"


def test_a_recreated_gang_is_the_newer_one() -> None:
    cluster = recognised()
    cluster.now += 60
    after = job("train", 2, uid="new")
    there_is(cluster, after)
    create(cluster, member(after, 0, attempt=1), member(after, 1, attempt=1))
    found = gang_said(cluster.core.snapshot(cluster.now), "ml", "train")
    assert found is not None
    assert {each.ref.name for each in found.found.all} == {"train-0-1", "train-1-1"}


def test_an_unknown_name_is_answered_with_names_like_it() -> None:
    cluster = recognised()
    cluster.add_pod("notebook", 1)
    cluster.settle()
    assert unknown(cluster, "pod", "train") == (
        "no pod ml/train is known; there is gang/Job.batch/train, pod/train-0-0, pod/train-1-0"
    )
    assert unknown(cluster, "pod", "note") == "no pod ml/note is known; there is pod/notebook"
    assert unknown(cluster, "pod", "none") == "no pod ml/none is known"
    assert unknown(cluster, "pod", "notebook", "theirs") == (
        "no pod theirs/notebook is known; there is pod/notebook in namespace ml"
    )
    cluster.add_gang("training", 2)
    cluster.settle()
    assert unknown(cluster, "gang", "job/trai").endswith(
        "; there is gang/Job.batch/train, gang/training, pod/train-0-0, …"
    )


@pytest.mark.parametrize(
    ("kind", "name", "there"),
    [
        ("gang", "trian", "gang/Job.batch/train"),
        ("gang", "Train", "gang/Job.batch/train"),
        ("gang", "job/trainn", "gang/Job.batch/train"),
        ("gang", "wvae", "gang/wave"),
        ("pod", "WAVE-0", "pod/wave-0"),
    ],
)
def test_a_mistyped_name_is_answered_with_those_that_are_alike(
    kind: str, name: str, there: str
) -> None:
    text = unknown(recognised(), kind, name)
    assert text.startswith(f"no {kind} ml/{name} is known; there is {there}")


def test_a_name_that_is_like_none_stays_alone() -> None:
    assert unknown(recognised(), "gang", "vision") == "no gang ml/vision is known"
    assert unknown(recognised(), "gang", "trian", "theirs") == "no gang theirs/trian is known"


def test_of_very_many_names_three_are_named() -> None:
    assert nearest("gang-1", (f"gang-{number}" for number in range(100_000)))[0] == "gang-1"
    assert len(nearest("gang-x", (f"gang-{number}" for number in range(100)))) == 3
