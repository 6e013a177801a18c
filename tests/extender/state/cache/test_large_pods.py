"""A pod that says too much costs its own work alone: it counts with what it requests, and with GPUs
it is refused."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest

from linkwise.extender.state.cache.ingest import Ingest
from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import ClaimSource as Claim
from linkwise.kube.objects import (
    Container,
    ObjectMeta,
    OwnerReference,
    Pod,
    Quantity,
    Resources,
    Volume,
)
from linkwise.pods.large_pods import MOST_BYTES, LargePod, size_of
from tests.extender.cluster import GPU, Cluster, change, container

T = TypeVar("T")
Change = Callable[[Pod], Pod]
MANY = range(MOST_BYTES // 8)


def with_labels(pod: Pod) -> Pod:
    labels = {f"label-{number}": "x" for number in MANY}
    return change(pod, metadata=change(pod.metadata, labels=labels))


def with_owners(pod: Pod) -> Pod:
    owners = tuple(OwnerReference(kind="Job", name=f"job-{n}", uid=f"uid-{n}") for n in MANY)
    return change(pod, metadata=change(pod.metadata, owner_references=owners))


def with_volumes(pod: Pod) -> Pod:
    volumes = tuple(
        Volume(name=f"v{n}", persistent_volume_claim=Claim(claim_name=f"claim-{n}")) for n in MANY
    )
    return change(pod, spec=change(pod.spec, volumes=volumes))


def with_resources(pod: Pod) -> Pod:
    others: dict[str, Quantity] = {f"example.com/r{number}": 1 for number in MANY}
    extra = Container(name="extra", resources=Resources(requests=others))
    return change(pod, spec=change(pod.spec, containers=(*pod.spec.containers, extra)))


def with_containers(pod: Pod) -> Pod:
    others = tuple(container(f"c{number}", 0, cpu="1m") for number in MANY)
    return change(pod, spec=change(pod.spec, containers=(*pod.spec.containers, *others)))


LARGER = pytest.mark.parametrize(
    "larger", [with_labels, with_owners, with_volumes, with_resources, with_containers]
)


@pytest.fixture
def at() -> Cluster:
    at = Cluster()
    at.add_node("n0")
    return at


@LARGER
def test_with_gpus_it_is_refused_in_words(at: Cluster, larger: Change) -> None:
    at.add_pod("large", 1, alter=larger)
    at.settle()
    answer = at.filter("large")
    assert answer.node_names == ()
    assert "KiB: expected 40 KiB at most" in str(answer)
    found = at.core.explain("ml", "large", at.now)
    assert found is not None
    assert "KiB: expected 40 KiB at most" in found.summary


@LARGER
def test_on_a_node_it_counts_with_what_it_requests(at: Cluster, larger: Change) -> None:
    at.add_pod("large", 2, cpu="60", node="n0", alter=larger)
    assert at.free("n0") == 6
    at.add_pod("w", 1, cpu="40", gates=["linkwise.dev/plan"])
    at.settle()
    assert at.plan("w") is None  # of 96 CPUs
    at.delete("large")
    assert at.free("n0") == 8
    at.settle()
    assert at.places("w") == ["n0"]
    assert at.sound()


@LARGER
def test_next_to_nothing_is_kept_of_it(larger: Change) -> None:
    at, kept = Cluster(), list[Mapping[str, str]]()
    follow = Ingest.follow

    def noted(self: Ingest, pod: Pod, now: float) -> object:
        assert isinstance(pod, LargePod)
        assert size_of(pod) < 2048
        record = follow(self, pod, now)
        kept.append(record.labels)
        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ingest, "follow", noted)
        at.add_pod("large", 1, node="n0", alter=larger)
    assert kept == [{}]


def test_what_takes_long_is_done_while_others_use_the_core(at: Cluster) -> None:
    times: list[str] = []

    def aside(work: Callable[[], T], /) -> T:
        times.append("aside")
        return work()

    at.core.set_unlocker(aside)
    at.add_pod("small", 1)
    assert times == []
    at.add_pod("large", 1, alter=with_containers)
    assert times == ["aside"]


def few_labels(pod: Pod) -> Pod:
    """Some 20 KiB, below the bound of a pod."""
    labels = {f"label-{number}": "x" * 40 for number in range(350)}
    return change(pod, metadata=change(pod.metadata, labels=labels))


def kept_whole(at: Cluster, name: str) -> bool:
    found = at.core.explain("ml", name, at.now)
    assert found is not None
    return "as larger pods of ml have 8 MiB together" not in found.summary


def test_a_namespace_has_a_bound_for_its_larger_pods() -> None:
    at = Cluster()
    at.add_node("n0")
    for number in range(450):
        at.add_pod(f"p{number}", 1, alter=few_labels)
    kept = [kept_whole(at, f"p{number}") for number in range(300, 450)]
    assert kept == sorted(kept, reverse=True), "the first ones"
    assert {*kept} == {True, False}
    at.put_pod(at.pod("p0"))
    assert kept_whole(at, "p0"), "it does not count twice"
    at.add_pod("small", 1)
    assert at.schedule("small") == "n0", "a pod of usual size is never refused for that"
    at.delete("p0")
    at.add_pod("next", 1, alter=few_labels)
    assert kept_whole(at, "next")
    assert at.sound()


def test_a_new_leader_sees_all_of_a_gang_that_was_placed() -> None:
    """Found: pods came to it in another order, and it evicted the members that it saw."""
    at = Cluster()
    for node in ("n0", "n1"):
        at.add_node(node)
    for member in ("g-0", "g-1"):
        at.add_pod(member, 8, gang="g", gang_size="2", alter=few_labels)
    at.settle()
    assert at.schedule("g-0")
    assert at.schedule("g-1")
    for number in range(500):
        at.add_pod(f"p{number}", alter=few_labels)
    at.pods = dict(reversed(at.pods.items()))
    at.restart()
    at.pass_time(3600)
    assert at.evicted == []
    assert at.phase("g") == "running"
    assert at.sound()


def test_mirror_pods_take_nothing_of_what_a_namespace_has() -> None:
    """A kubelet may create some in any namespace."""

    def mirror(pod: Pod) -> Pod:
        meta = change(few_labels(pod).metadata, annotations={MIRROR_POD: "x"})
        return change(pod, metadata=meta)

    at = Cluster()
    at.add_node("n0")
    for number in range(500):
        at.add_pod(f"static-{number}-n0", node="n0", cpu="10m", alter=mirror)
    at.add_pod("p", 1, alter=few_labels)
    assert kept_whole(at, "p")
    assert at.sound()


def test_of_a_refused_pod_next_to_nothing_is_kept() -> None:
    at = Cluster()
    at.add_node("n0")
    at.add_pod("wrong", 1, alter=few_labels, require_link="fast")
    record = at.core._cache.pods[at.pod("wrong").metadata.uid]
    assert record.labels == {}
    assert "require-link" in record.invalid
    at.add_pod("right", 1, alter=few_labels)
    assert at.core._cache.pods[at.pod("right").metadata.uid].labels


def test_seventeen_resources_are_too_many(at: Cluster) -> None:
    def with_names(pod: Pod) -> Pod:
        others: dict[str, Quantity] = {f"example.com/r{number}": 1 for number in range(16)}
        extra = Container(name="extra", resources=Resources(requests=others))
        return change(pod, spec=change(pod.spec, containers=(*pod.spec.containers, extra)))

    at.add_pod("many", 1, alter=with_names)
    assert "more than 16 names of resources" in str(at.filter("many"))


def test_pods_as_users_write_them_are_far_from_the_bound() -> None:
    containers = tuple(container(f"container-{number}", 1) for number in range(20))
    volumes = tuple(
        Volume(name=f"volume-{n}", persistent_volume_claim=Claim(claim_name=f"claim-{n}"))
        for n in range(20)
    )
    labels = {f"app.kubernetes.io/label-{number}": "x" * 40 for number in range(20)}
    pod = Pod(metadata=ObjectMeta(labels=labels))
    spec = change(pod.spec, containers=containers, volumes=volumes)
    assert size_of(change(pod, spec=spec)) * 4 < MOST_BYTES
    assert GPU in containers[0].resources.limits
