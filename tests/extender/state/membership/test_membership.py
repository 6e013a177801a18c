"""Which pods are one gang in the core: by uid and not by name, in waves, and whose they are."""

from pathlib import Path

import msgspec
import pytest

from linkwise.extender.state.extender_calls import FilterCall
from linkwise.extender.state.membership.membership import _OF_THE_NODE, _evidence
from linkwise.kube.objects import Condition, ObjectMeta, Pod, PodSpec, SchedulingGate
from linkwise.pods import podgrouper
from linkwise.pods.podgrouper.workloads.systems import DECLARED
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.owned import (
    SURELY,
    create,
    four_nodes,
    job,
    member,
    of_scheduler,
    planned,
    there_is,
    why,
)
from tests.pods.podgrouper.examples import EXAMPLES
from tests.pods.podgrouper.pods import gang, like, owner, pod, template


@pytest.fixture
def cluster() -> Cluster:
    return four_nodes()


def test_a_job_made_again_under_its_old_name_is_another_gang(cluster: Cluster) -> None:
    before, after = job("train", 3, uid="old"), job("train", 2, uid="new")
    there_is(cluster, before)
    create(cluster, member(before, 0), member(before, 1))
    there_is(cluster, after)
    create(cluster, member(after, 0, attempt=1), member(after, 1, attempt=1))
    assert planned(cluster) == ["train-0-1", "train-1-1"]
    assert [len(gang.members) for gang in cluster.core.gangs(cluster.now)] == [2]


@pytest.mark.parametrize("left_first", [True, False])
def test_pods_of_a_job_that_is_gone_do_not_join_the_new_one(
    cluster: Cluster, left_first: bool
) -> None:
    before, after = job("train", 2, uid="old"), job("train", 2, uid="new")
    there_is(cluster, after)
    first, then = member(before, 0), member(after, 1)
    create(cluster, *((first, then) if left_first else (then, first)))
    assert planned(cluster) == []
    assert cluster.filter("train-0-0").node_names  # nothing will create its fellows
    assert why(cluster, "train-1-0") == "linkwise: gang Job.batch/train waits for its members"


def test_a_gang_that_pods_name_and_a_job_of_that_name_are_two(cluster: Cluster) -> None:
    train = job("train", 2)
    there_is(cluster, train)
    create(cluster, member(train, 0))
    cluster.add_pod("mine", 8, gang="Job.batch/train", gang_size="2")
    cluster.settle()
    assert planned(cluster) == []
    assert len(cluster.core.gangs(cluster.now)) == 2


def test_what_pods_say_themselves_goes_before_what_their_owner_implies(cluster: Cluster) -> None:
    """Two Jobs of one gang, each of which would be a gang alone."""
    named = {names.GANG: "both", names.GANG_SIZE: "4"}
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
    one, two = (
        owner("batch/v1 Job", name, {**spec, "template": template(8, annotations=named)})
        for name in ("one", "two")
    )
    there_is(cluster, one, two)
    create(cluster, member(one, 0, said=named), member(one, 1, said=named))
    create(cluster, member(two, 0, said=named))
    assert planned(cluster) == []
    create(cluster, member(two, 1, said=named))
    assert len(planned(cluster)) == 4


def test_a_contradiction_is_refused_with_both_sources_and_costs_its_pods_alone(
    cluster: Cluster,
) -> None:
    named = {names.GANG: "mine", names.GANG_SIZE: "2"}
    spec = {"completionMode": "Indexed", "completions": 3, "parallelism": 3}
    train = owner("batch/v1 Job", "train", {**spec, "template": template(8, annotations=named)})
    there_is(cluster, train, job("other", 2))
    create(cluster, *(member(train, index, said=named) for index in range(3)))
    (text,) = set(cluster.filter("train-0-0").unresolvable.values())
    assert "linkwise.dev/gang 'mine': linkwise.dev/gang-size is 2" in text
    assert "Job.batch ml/train runs 3 pods of it" in text
    create(cluster, *(member(job("other", 2), index) for index in range(2)))
    assert planned(cluster) == ["other-0-0", "other-1-0"]


def test_labels_that_say_what_cannot_be_cost_the_pod_that_bears_them(cluster: Cluster) -> None:
    group, total = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
    wrong = pod("wrong", None, {group: "g", total: "many"}, gpus=8)
    right = [pod(f"right-{n}", None, {group: "g", total: "2"}, gpus=8) for n in range(2)]
    create(cluster, *(msgspec.convert(made, Pod) for made in (wrong, *right)))
    (text,) = set(cluster.filter("wrong").unresolvable.values())
    assert total in text
    assert "'many'" in text
    assert planned(cluster) == ["right-0", "right-1"]


def test_members_that_ended_well_are_not_waited_for(cluster: Cluster) -> None:
    train = job("train", 4, done=2)
    there_is(cluster, train)
    create(cluster, member(train, 1), member(train, 3))
    assert planned(cluster) == ["train-1-0", "train-3-0"]


def test_gpus_that_the_owner_knows_nothing_of_make_no_gang(cluster: Cluster) -> None:
    """A webhook adds them to pods; to how many of them is unknown."""
    train = job("train", 4, done=3)
    train["spec"]["template"] = template(0)
    there_is(cluster, train)
    create(cluster, member(train, 1))
    assert planned(cluster) == []
    assert cluster.schedule("train-1-0")


def test_a_leader_does_not_wait_for_workers_that_are_made_once_it_runs(cluster: Cluster) -> None:
    lws = owner(
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        "vllm",
        {"startupPolicy": "LeaderReady", "leaderWorkerTemplate": {"workerTemplate": template(8)}},
    )
    there_is(cluster, lws)
    by = owner("apps/v1 StatefulSet", "vllm")
    prefix = "leaderworkerset.sigs.k8s.io/"

    def of_group(place: int) -> Pod:
        labels = {
            prefix + "name": "vllm",
            prefix + "group-index": "0",
            prefix + "worker-index": str(place),
        }
        return msgspec.convert(pod(f"vllm-0-{place}", by, labels, {prefix + "size": "4"}, 8), Pod)

    create(cluster, of_group(0))
    cluster.pass_time(SURELY)
    assert cluster.schedule("vllm-0-0")
    create(cluster, of_group(1), of_group(2))
    cluster.pass_time(SURELY)
    cluster.add_pod("other", 8)
    cluster.settle()
    assert cluster.schedule("other") == ""  # the last place is kept for the last worker
    assert all(cluster.schedule(f"vllm-0-{place}") for place in (1, 2))
    create(cluster, of_group(3))
    assert cluster.schedule("vllm-0-3")
    assert cluster.sound()


def test_a_gang_of_a_scheduler_that_does_not_ask_us_is_left_to_it(cluster: Cluster) -> None:
    """Volcano and others plan their gangs themselves, and would not look at Linkwise's plans."""
    train = job("train", 2)
    there_is(cluster, train)
    strangers = [of_scheduler(member(train, index), "volcano") for index in range(2)]
    create(cluster, *strangers)
    assert cluster.pass_time(SURELY) == []
    assert planned(cluster) == []
    told = cluster.core.explain("ml", "train-0-0", cluster.now)
    assert told is not None
    assert "is of the scheduler volcano, which has not asked Linkwise yet" in told.summary
    for pod_ in strangers:  # it binds them, and one of them dies
        cluster.put_pod(change(pod_, spec=change(pod_.spec, node_name="n0")))
    cluster.delete("train-1-0")
    assert cluster.pass_time(10 * SURELY) == []
    assert cluster.evicted == []


def test_a_pod_that_asks_for_a_plan_tells_nothing_about_its_scheduler(cluster: Cluster) -> None:
    """Volcano does not bind what has a plan. A pod of its own that waits behind Linkwise's gate, or
    names a gang, gets one; the gangs of others stay Volcano's."""
    gated = cluster.add_pod("gated", 1, gates=[names.GATE])
    named = cluster.add_pod("named", 1, gang="g", gang_size="1")
    for pod_ in (gated, named):
        cluster.put_pod(of_scheduler(pod_, "volcano"))
    cluster.settle()
    assert set(planned(cluster)) == {"gated", "named"}
    plain_gang_waits(cluster, "before")
    cluster.restart()
    plain_gang_waits(cluster, "after")


def test_a_gang_gets_no_plan_if_one_of_its_schedulers_asks_and_another_does_not(
    cluster: Cluster,
) -> None:
    """Its plan could never be carried out, and would keep its GPUs from others."""
    asked = change(Pod(), spec=PodSpec(scheduler_name="default"))
    cluster.core.filter(FilterCall(asked, ()), cluster.now)
    for rank, scheduler in enumerate(("default", "my-typo")):
        made = cluster.add_pod(f"g-{rank}", 8, gang="g", gang_size="3", rank=str(rank))
        cluster.put_pod(of_scheduler(made, scheduler))
    made = cluster.add_pod("g-2", 8, gang="g", gang_size="3", rank="2")
    cluster.put_pod(of_scheduler(made, "default"))
    cluster.pass_time(SURELY)
    assert planned(cluster) == []
    assert "is of the scheduler my-typo, which has not asked Linkwise yet" in why_not(
        cluster, "g-0"
    )


def test_a_gang_in_line_behind_the_gate_tells_nothing_about_its_scheduler(
    cluster: Cluster,
) -> None:
    for number in range(2):
        cluster.add_pod(f"other-{number}", 8, node=f"n{number}")
    large, small = job("large", 3), job("small", 2)
    there_is(cluster, large, small)
    gates = (SchedulingGate(names.GATE),)
    for index in range(3):
        made = of_scheduler(member(large, index), "volcano")
        create(cluster, change(made, spec=change(made.spec, scheduling_gates=gates)))
    cluster.pass_time(SURELY)
    assert names.QUEUE in cluster.pod("large-0-0").metadata.annotations
    create(cluster, *(of_scheduler(member(small, index), "volcano") for index in range(2)))
    cluster.pass_time(SURELY)
    assert planned(cluster) == []
    assert "which has not asked Linkwise yet" in why_not(cluster, "small-0-0")


def plain_gang_waits(cluster: Cluster, name: str) -> None:
    train = job(name, 2)
    there_is(cluster, train)
    create(cluster, *(of_scheduler(member(train, index), "volcano") for index in range(2)))
    cluster.pass_time(SURELY)
    assert "which has not asked Linkwise yet" in why_not(cluster, f"{name}-0-0")
    assert planned(cluster) == ["gated", "named"]


def why_not(cluster: Cluster, name: str) -> str:
    told = cluster.core.explain("ml", name, cluster.now)
    assert told is not None
    return told.summary


@pytest.mark.parametrize("because", ["", "3 Insufficient nvidia.com/gpu."])
def test_a_single_pod_of_a_scheduler_that_does_not_ask_us_is_nominated_by_nobody(
    cluster: Cluster, because: str
) -> None:
    refused = Condition("PodScheduled", "False", "Unschedulable", because)
    for name, scheduler in (("theirs", "volcano"), ("ours", "default-scheduler")):
        made = of_scheduler(cluster.add_pod(name, 8), scheduler)
        cluster.put_pod(change(made, status=change(made.status, conditions=(refused,))))
    cluster.pass_time(SURELY)
    assert planned(cluster) == ["ours"]


def test_a_gang_is_planned_once_its_scheduler_has_asked_about_some_pod(cluster: Cluster) -> None:
    cluster.is_asked = False
    cluster.restart()
    train = job("train", 2)
    there_is(cluster, train)
    create(cluster, member(train, 0), member(train, 1))
    assert planned(cluster) == []
    cluster.filter("train-1-0")
    cluster.settle()
    assert planned(cluster) == ["train-0-0", "train-1-0"]


def test_a_restart_knows_who_asks_by_what_was_answered(cluster: Cluster) -> None:
    train = job("train", 2)
    there_is(cluster, train)
    create(cluster, member(train, 0))
    refused = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message="0/4 nodes are available: 4 linkwise: gang Job.batch/train waits for its members.",
    )
    waiting = cluster.pod("train-0-0")
    cluster.put_pod(change(waiting, status=change(waiting.status, conditions=(refused,))))
    cluster.is_asked = False
    cluster.restart()
    create(cluster, member(train, 1))
    assert planned(cluster) == ["train-0-0", "train-1-0"]


def test_a_restart_knows_who_asks_by_a_recognised_gang_that_has_its_place_in_the_queue(
    cluster: Cluster,
) -> None:
    """kube-scheduler need not have called about the gang: its nodes are full."""
    for number in range(4):
        cluster.add_pod(f"other-{number}", 8, node=f"n{number}")
    train = job("train", 2)
    there_is(cluster, train)
    create(cluster, member(train, 0), member(train, 1))
    cluster.pass_time(SURELY)
    assert names.QUEUE in cluster.pod("train-0-0").metadata.annotations
    cluster.is_asked = False
    cluster.restart()
    cluster.settle()
    for number in range(2):
        cluster.delete(f"other-{number}")
    cluster.settle()
    assert planned(cluster) == ["train-0-0", "train-1-0"]


def test_pods_that_ran_before_we_came_are_not_evicted_though_their_gang_is_not_whole(
    cluster: Cluster,
) -> None:
    train = job("train", 4)
    there_is(cluster, train)
    for index in range(2):
        old = member(train, index)
        create(cluster, change(old, spec=change(old.spec, node_name=f"n{index}")))
    for number in range(2, 4):
        cluster.add_pod(f"other-{number}", 8, node=f"n{number}")
    create(cluster, member(train, 2), member(train, 3))
    cluster.pass_time(10 * SURELY)
    cluster.pass_time(10 * SURELY)
    assert cluster.evicted == []
    cluster.delete("other-2")
    cluster.pass_time(SURELY)
    assert planned(cluster)  # what is missing follows as there is room
    assert cluster.sound()


def in_group(rule: str, name: str, gpus: int) -> Pod:
    return msgspec.convert(like(EXAMPLES[rule].pod, name, gpus), Pod)


# Systems whose groups do not say which of their pods take GPUs.
COUNT_ALL = [
    system.rule
    for system in DECLARED
    if gang(EXAMPLES[system.rule].pod, *EXAMPLES[system.rule].objects).counts_all
]


@pytest.mark.parametrize("rule", COUNT_ALL)
@pytest.mark.parametrize("driver", [0, 1, -1], ids=["first", "between", "last"])
def test_a_driver_without_gpus_is_one_of_the_group_that_it_names(
    cluster: Cluster, rule: str, driver: int
) -> None:
    """Found: "2 of 3 members exist" though 3 did."""
    example = EXAMPLES[rule]
    workers = [f"w-{number}" for number in range(example.size - 1)]
    members = [in_group(rule, name, 8) for name in workers]
    members.insert(driver % example.size, in_group(rule, "driver", 0))
    there_is(cluster, *example.objects)
    create(cluster, *members[:-1])
    assert planned(cluster) == []
    create(cluster, members[-1])
    assert planned(cluster) == workers
    assert cluster.sound()


def test_a_group_without_gpus_is_read_by_nobody_until_a_pod_with_gpus_names_it(
    cluster: Cluster,
) -> None:
    create(cluster, *(in_group("coscheduling", f"cpu-{number}", 0) for number in range(3)))
    assert cluster.core.gangs(cluster.now) == ()
    assert cluster.reads == []
    there_is(cluster, *EXAMPLES["coscheduling"].objects)
    create(cluster, in_group("coscheduling", "w-0", 8))
    assert planned(cluster) == ["w-0"]
    cluster.delete("w-0")
    cluster.settle()
    assert cluster.core.gangs(cluster.now) == ()


def test_what_the_api_server_copies_from_the_node_is_no_news() -> None:
    def evidence(**labels: str) -> bytes:
        return _evidence(Pod(metadata=ObjectMeta(name="train-0", labels=labels)), gpus=8)

    assert evidence(app="train") == evidence(app="train", **{"topology.kubernetes.io/zone": "a"})
    assert evidence(app="train") != evidence(app="train", rank="1")


def test_no_rule_reads_what_the_api_server_copies_from_the_node() -> None:
    rules = [*Path(podgrouper.__file__).parent.rglob("*.py")]
    assert len(rules) > 10
    assert not [rule.name for rule in rules if _OF_THE_NODE in rule.read_text()]
