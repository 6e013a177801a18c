"""A pod whose Job counts an eviction as a failure is evicted only if nothing else makes room."""

from collections.abc import Callable, Mapping

import pytest

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.kube.labels import COMPLETION_INDEX
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.recreated import COUNTS_AS_FAILURE
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from tests.extender.cluster import Cluster, change
from tests.extender.next.moves.movers import IGNORES, owned_by
from tests.extender.next.preemption.idle_for import FOUR_HOURS, HOUR, NOTICE, idle_for
from tests.extender.next.preemption.jobs import own_job, own_job_set
from tests.extender.next.preemption.victims import add_gang, cluster

CONSENTS = {"preemptible": "true"}


def run(
    at: Cluster,
    name: str,
    node: str,
    alter: Callable[[Pod], Pod],
    *,
    gpus: int = 8,
    priority: int = 0,
    said: Mapping[str, str] = CONSENTS,
) -> None:
    at.add_pod(name, gpus, priority=priority, alter=alter, said=said)
    at.settle()
    at.bind(name, node)
    at.start(name)
    at.settle()
    at.now += 1


@pytest.mark.parametrize("owned", [own_job, own_job_set])
@pytest.mark.parametrize(("rules", "victim"), [([], "server"), ([IGNORES], "train")])
def test_a_job_that_would_fail_is_spared_though_it_is_less_important(
    owned: Callable[..., Callable[[Pod], Pod]], rules: list[object], victim: str
) -> None:
    at = cluster()
    run(at, "server", "n1", owned_by("ReplicaSet", "server"), priority=1)
    run(at, "train", "n2", owned(at, "train", *rules))
    add_gang(at, "urgent", 1, priority=2)
    assert at.evicted == [victim]


def test_two_others_go_rather_than_one_job_that_would_fail() -> None:
    at = cluster()
    run(at, "train", "n1", own_job(at, "train"))
    for name in ("a", "b"):
        run(at, name, "n2", owned_by("ReplicaSet", name), gpus=4)
    add_gang(at, "urgent", 1, priority=2)
    assert sorted(at.evicted) == ["a", "b"]


def test_it_goes_if_nothing_else_makes_room_and_the_event_says_what_that_means() -> None:
    at = cluster()
    run(at, "train", "n1", own_job(at, "train"))
    run(at, "server", "n2", owned_by("ReplicaSet", "server"))
    add_gang(at, "urgent", 2, priority=2)
    assert sorted(at.evicted) == ["server", "train"]
    texts = {each.pod.name: each.message for each in at.events if each.reason == "Preempted"}
    assert texts["train"].endswith(COUNTS_AS_FAILURE)
    assert COUNTS_AS_FAILURE not in texts["server"]


def test_without_a_word_of_consent_the_job_is_read_if_all_may_be_evicted() -> None:
    at = cluster(who=Preempt.LOWER_PRIORITY)
    run(at, "server", "n1", owned_by("ReplicaSet", "server"), priority=1, said={})
    run(at, "train", "n2", own_job(at, "train"), said={})
    add_gang(at, "urgent", 1, priority=2)
    assert at.evicted == ["server"]


@pytest.mark.parametrize(
    ("namespaces", "said"), [((), FOUR_HOURS), ((("ml", 4 * HOUR),), {})], ids=["pod", "namespace"]
)
def test_an_idle_job_that_would_fail_goes_after_what_works(
    namespaces: tuple[tuple[str, float], ...], said: Mapping[str, str]
) -> None:
    at = Cluster(CoreSettings(reclaim_idle=namespaces))
    at.add_node("n1")
    at.add_node("n2")
    run(at, "idle", "n1", own_job(at, "idle"), said=said)
    never = {**CONSENTS, "reclaim-when-idle": "never"}
    run(at, "works", "n2", owned_by("ReplicaSet", "works"), said=never)
    idle_for(at, 5 * HOUR, "idle", works=["works"])
    idle_for(at, HOUR, "idle", works=["works"])
    add_gang(at, "first", 1, priority=1)
    assert at.evicted == ["works"]
    idle_for(at, NOTICE, "idle")
    add_gang(at, "second", 1, priority=1)
    assert at.evicted == ["works", "idle"]


def test_the_timeout_of_a_gang_says_that_it_fails_the_job() -> None:
    at = cluster(1)
    assert at.owners is not None
    containers = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]
    at.owners[ObjectRef("batch", "Job", "ml", "train")] = {
        "metadata": {"uid": "uid-of-train"},
        "spec": {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "template": {"spec": {"containers": containers}},
        },
    }
    for rank in range(2):
        owned = owned_by("Job", "train")

        def made(pod: Pod, owned: Callable[[Pod], Pod] = owned, rank: int = rank) -> Pod:
            pod = owned(pod)
            said = {**pod.metadata.annotations, COMPLETION_INDEX: str(rank)}
            return change(pod, metadata=change(pod.metadata, annotations=said))

        at.add_pod(f"train-{rank}", 4, alter=made)
    at.settle()
    assert at.schedule("train-0")
    at.settle()
    at.pass_time(CoreSettings().gang_timeout_seconds + 1)
    assert at.evicted == ["train-0"]
    (expired,) = (each for each in at.events if each.reason == "GangExpired")
    assert expired.message.endswith(COUNTS_AS_FAILURE)
