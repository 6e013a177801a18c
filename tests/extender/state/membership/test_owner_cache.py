"""The objects that pods hang on: read once, read again when it matters, and forgotten."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import msgspec
import pytest

from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.extender_calls import BindCall, BindRefusal
from linkwise.extender.state.membership.owner_cache import (
    MOST_A_SECOND,
    MOST_AT_ONCE,
    MOST_BYTES_OF_NAMESPACE,
    STALE_SECONDS,
)
from linkwise.extender.state.timers import Agenda
from linkwise.kube.objects import Pod, Resources
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs, Missing, ObjectRef
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.owned import (
    INDEX,
    SURELY,
    create,
    four_nodes,
    grouped,
    job,
    member,
    planned,
    pod_group,
    there_is,
    why,
)
from tests.pods.podgrouper.pods import GPU, Object, pod, ref_of

T = TypeVar("T")


@pytest.fixture
def cluster() -> Cluster:
    return four_nodes()


# When it is read.


def test_a_pod_waits_until_its_owner_has_been_read(cluster: Cluster) -> None:
    train = job("train", 2)
    there_is(cluster, train)
    first = cluster.put_pod(member(train, 0))
    cluster.core.decide(cluster.now)
    assert why(cluster, "train-0-0") == "linkwise: gang: reading its owner Job.batch ml/train"
    assert cluster.filter("train-0-0").passing
    refused = cluster.core.begin_bind(
        BindCall("ml", "train-0-0", first.metadata.uid, "n0"), cluster.now
    )
    assert isinstance(refused, BindRefusal)
    assert refused.passing
    told = cluster.core.explain("ml", "train-0-0", cluster.now)
    assert told is not None
    assert "reading its owner Job.batch ml/train" in told.summary
    cluster.settle()
    assert why(cluster, "train-0-0") == "linkwise: gang Job.batch/train waits for its members"
    create(cluster, member(train, 1))
    assert planned(cluster) == ["train-0-0", "train-1-0"]


def test_a_read_is_begun_at_once(cluster: Cluster) -> None:
    cluster.settle()
    there_is(cluster, train := job("train", 2))
    cluster.put_pod(member(train, 0))
    assert cluster.core.any_urgent()
    (read,) = cluster.core.owners_to_read(cluster.now)
    cluster.core.decide(cluster.now)
    assert not cluster.core.any_urgent()
    cluster.core.owner_read(read, cluster.read_owner(read.ref), cluster.now)
    assert cluster.core.any_urgent()  # pods are to be judged again
    cluster.settle()
    assert not cluster.core.any_urgent()


def test_a_gang_costs_one_read_however_many_its_members_are(cluster: Cluster) -> None:
    train = job("train", 64)
    there_is(cluster, train)
    for index in range(64):
        cluster.put_pod(member(train, index))
        if index % 8 == 7:
            cluster.settle()
    assert len(cluster.reads) == 1
    cluster.pass_time(2.0)
    cluster.pass_time(2.0)
    assert len(cluster.reads) == 2  # once more, since members came after it was read


def test_reads_of_very_many_owners_go_out_few_at_a_time(cluster: Cluster) -> None:
    jobs = [job(f"job-{number}", 2) for number in range(100)]
    there_is(cluster, *jobs)
    for each in jobs:
        cluster.put_pod(member(each, 0))
    at_first = cluster.core.owners_to_read(cluster.now)
    assert len(at_first) == MOST_AT_ONCE
    assert cluster.core.owners_to_read(cluster.now) == ()
    for read in at_first:
        cluster.answer_read(read)
    cluster.settle()
    assert len(cluster.reads) == 100


def of_namespace(made: Object, namespace: str) -> Object:
    metadata = {**made["metadata"], "namespace": namespace}
    return {**made, "metadata": {**metadata, "uid": f"{namespace}-{metadata['name']}"}}


def member_of(owner: Object) -> Pod:
    """The first pod of the Job, in the Job's namespace."""
    made = member(owner, 0)
    return change(made, metadata=change(made.metadata, namespace=owner["metadata"]["namespace"]))


def test_a_namespace_with_thousands_of_owners_delays_the_read_of_another_by_one() -> None:
    reader = Ingest((GPU,), Agenda())
    few = of_namespace(job("train", 2), "few")
    for number in range(3000):
        reader.follow(member_of(of_namespace(job(f"job-{number}", 2), "many")), 0.0)
    reader.follow(member_of(few), 0.0)
    at_first = reader.take_reads(0.0)
    assert ref_of(few) in [read.ref for read in at_first[:2]]


def test_nor_do_owners_that_keep_coming_delay_what_is_read_again(cluster: Cluster) -> None:
    group = of_namespace(pod_group("spmd", 2), "few")
    grouped_one = grouped("a", "spmd")
    cluster.owners = {}
    cluster.put_pod(change(grouped_one, metadata=change(grouped_one.metadata, namespace="few")))
    cluster.settle()
    assert cluster.reads == [ref_of(group)]  # it does not exist yet
    cluster.now += 1.0
    for number in range(100):
        cluster.put_pod(member_of(of_namespace(job(f"job-{number}", 2), "many")))
    at_first = cluster.core.owners_to_read(cluster.now)
    assert ref_of(group) in [read.ref for read in at_first[:2]]


def read_all(reader: Ingest, now: float) -> set[ObjectRef]:
    """Answer all reads that are due with a Job of that name; return what was read."""
    done = set[ObjectRef]()
    while reads := reader.take_reads(now):
        for read in reads:
            done.add(read.ref)
            reader.owner_read(read, of_namespace(job(read.ref.name, 2), read.ref.namespace), now)
    return done


def test_nor_do_they_make_the_periodic_reads_of_another_rarer() -> None:
    reader = Ingest((GPU,), Agenda())
    many = [of_namespace(job(f"job-{number}", 2), "many") for number in range(1000)]
    few = of_namespace(job("train", 2), "few")
    for each in (*many, few):
        reader.follow(member_of(each), 0.0)
    assert len(read_all(reader, 0.0)) == 1001
    assert read_all(reader, STALE_SECONDS) == {ref_of(few)}
    assert read_all(reader, 1001 / MOST_A_SECOND) == {ref_of(each) for each in many}


def test_pods_of_a_large_owner_delay_those_of_another_namespace_by_one_step(
    cluster: Cluster,
) -> None:
    large, small = of_namespace(job("large", 64), "many"), of_namespace(job("small", 2), "few")
    large["spec"]["note"] = "x" * 30_000
    cluster.owners = {}
    for index in range(64):
        made = member(large, index)
        cluster.put_pod(change(made, metadata=change(made.metadata, namespace="many")))
    cluster.put_pod(member_of(small))
    for read in cluster.core.owners_to_read(cluster.now):
        found = {ref_of(large): large, ref_of(small): small}[read.ref]
        cluster.core.owner_read(read, found, cluster.now)
    assert cluster.core.steps_to_rejudge > 10
    cluster.core.rejudge(cluster.now)
    told = cluster.core.explain("few", "small-0-0", cluster.now)
    assert told is not None
    assert "reading its owner" not in told.summary


# What is kept of it.


def test_owners_of_one_namespace_have_a_bound_and_those_of_others_their_own() -> None:
    """The reader keeps what has room. These answers are larger than any that it lets through."""
    reader, size = Ingest((GPU,), Agenda()), 4 << 20
    large = [of_namespace(job(f"job-{number}", 2), "many") for number in range(8)]
    for each in large:
        reader.follow(member_of(each), 0.0)
    for read in reader.take_reads(0.0):
        found = of_namespace(job(read.ref.name, 2), "many")
        found["spec"]["note"] = "x" * size
        reader.owner_read(read, found, 0.0)

    def rooms(*made: Object, now: float) -> dict[str, int]:
        for each in made:
            reader.follow(member_of(each), now)
        return {read.ref.name: read.room for read in reader.take_reads(now)}

    last, other = of_namespace(job("last", 2), "many"), of_namespace(job("train", 2), "few")
    assert rooms(last, other, now=1.0) == {"last": 0, "train": MOST_BYTES_OF_NAMESPACE}
    again = rooms(now=1.0 + STALE_SECONDS)
    assert len(again) == len(large)
    assert min(again.values()) > size, "what is kept stays"
    for each in (*large, last):
        reader.forget(member_of(each).metadata.uid)
    later = of_namespace(job("next", 2), "many")
    assert rooms(later, now=100.0) == {"next": MOST_BYTES_OF_NAMESPACE}


@pytest.mark.parametrize(
    "spec",
    [
        {"empty": [{}] * 10_000},
        {"nested": [{"a": {}}] * 3_000},
        {f"k{number}": f"v{number}" for number in range(1_500)},
    ],
    ids=["empty", "nested", "many keys"],
)
def test_an_owner_takes_hardly_more_memory_than_its_json(spec: Object) -> None:
    """As Python's values these took up to 28 times that: 4 GiB for 5,000 pods."""
    reader, pods = Ingest((GPU,), Agenda()), 16
    for number in range(pods):
        reader.follow(member(job(f"job-{number}", 2), 0), 0.0)
    answer = msgspec.json.encode({**job("job", 2), "spec": spec})
    reads = reader.take_reads(0.0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for read in reads:
            reader.owner_read(read, msgspec.json.decode(answer), 0.0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(reads) == pods
    assert (after - before) / pods < 2 * len(answer)


def test_pods_that_take_no_gpu_have_nothing_read_for_them(cluster: Cluster) -> None:
    train = job("train", 2)
    there_is(cluster, train)
    create(cluster, msgspec.convert(pod("web", train, {}, {INDEX: "0"}, gpus=0), Pod))
    assert cluster.reads == []


def test_what_changes_is_seen_while_pods_wait_and_not_read_after(cluster: Cluster) -> None:
    group = pod_group("spmd", 3)
    there_is(cluster, group)
    create(cluster, grouped("a", "spmd"), grouped("b", "spmd"))
    cluster.pass_time(STALE_SECONDS)
    assert planned(cluster) == []
    there_is(cluster, {**group, "spec": {"minMember": 2}})
    for _ in range(8):
        cluster.pass_time(STALE_SECONDS / 4)
    assert planned(cluster) == ["a", "b"]
    for name in ("a", "b"):
        cluster.schedule(name)
    cluster.settle()
    cluster.reads.clear()
    cluster.pass_time(10 * STALE_SECONDS)
    cluster.pass_time(10 * STALE_SECONDS)
    assert cluster.reads == []


def test_a_gang_that_is_made_larger_takes_its_new_members_in(cluster: Cluster) -> None:
    train = job("train", 2)
    there_is(cluster, train)
    create(cluster, member(train, 0), member(train, 1))
    for name in ("train-0-0", "train-1-0"):
        cluster.schedule(name)
    larger = job("train", 3)
    there_is(cluster, larger)
    create(cluster, member(larger, 2))
    cluster.pass_time(1.0)
    assert cluster.pod("train-2-0").status.nominated_node_name
    assert [member.state for member in cluster.core.gangs(cluster.now)[0].members] == [
        "bound",
        "bound",
        "planned",
    ]
    assert cluster.sound()


def test_a_gang_that_is_made_smaller_misses_nobody(cluster: Cluster) -> None:
    train = job("train", 3)
    there_is(cluster, train)
    create(cluster, *(member(train, index) for index in range(3)))
    for index in range(3):
        cluster.schedule(f"train-{index}-0")
    there_is(cluster, job("train", 2))
    cluster.delete("train-2-0")
    cluster.pass_time(2.0)
    assert cluster.phase("Job.batch/train") == "running"


def test_who_comes_while_the_owner_is_read_again_has_it_read_once_more(cluster: Cluster) -> None:
    train = job("train", 2)
    there_is(cluster, train)
    create(cluster, member(train, 0), member(train, 1))
    cluster.now += 1.0
    cluster.put_pod(member(train, 2))
    (read,) = cluster.core.owners_to_read(cluster.now)
    cluster.put_pod(member(train, 3))
    cluster.now += 1.0
    assert cluster.core.owners_to_read(cluster.now) == ()
    cluster.core.owner_read(read, train, cluster.now)
    cluster.reads.clear()
    cluster.pass_time(1.0)
    assert len(cluster.reads) == 1


def test_pods_are_judged_again_as_they_are_by_now(cluster: Cluster) -> None:
    """Not as they were when they were first judged."""
    train = job("train", 2)
    there_is(cluster, train)
    create(cluster, member(train, 0), member(train, 1))
    for name in ("train-0-0", "train-1-0"):
        cluster.schedule(name)
    there_is(cluster, job("train", 3))
    cluster.put_pod(member(train, 2))
    cluster.now += 1.0
    (read,) = cluster.core.owners_to_read(cluster.now)
    cluster.answer_read(read)
    told = [cluster.core.explain("ml", f"train-{index}-0", cluster.now) for index in range(2)]
    assert [each.state for each in told if each is not None] == ["bound", "bound"]


def test_thousands_of_pods_are_judged_again_a_few_at_a_time(cluster: Cluster) -> None:
    """Other callers get the lock in between."""
    train = job("train", 512)
    for index in range(512):
        cluster.put_pod(member(train, index))
    (read,) = cluster.core.owners_to_read(cluster.now)
    cluster.core.owner_read(read, train, cluster.now)
    rounds = 0
    while cluster.core.rejudge(cluster.now):
        rounds += 1
    assert rounds == 512 // 8
    cluster.settle()
    assert why(cluster, "train-511-0").endswith(": no room for the whole gang")


# What is not there.


def test_a_group_that_does_not_exist_yet_is_waited_for(cluster: Cluster) -> None:
    create(cluster, grouped("a", "spmd"), grouped("b", "spmd"))
    said = "PodGroup.scheduling.x-k8s.io ml/spmd does not exist: the pod waits for it"
    assert why(cluster, "a") == f"linkwise: gang: {said}"
    cluster.pass_time(1.0)
    there_is(cluster, pod_group("spmd", 2))
    cluster.pass_time(2.0)
    assert planned(cluster) == ["a", "b"]


def test_a_group_that_never_comes_is_asked_for_less_and_less(cluster: Cluster) -> None:
    create(cluster, grouped("a", "spmd"))
    for _ in range(600):
        cluster.pass_time(1.0)
    assert 600 / STALE_SECONDS <= len(cluster.reads) <= 600 / STALE_SECONDS + 10


@pytest.mark.parametrize("missing", list(Missing))
def test_pods_whose_owner_cannot_be_had_run_alone(cluster: Cluster, missing: Missing) -> None:
    train = job("train", 2)
    assert cluster.owners is not None
    cluster.owners[ref_of(train)] = missing
    create(cluster, member(train, 0))
    assert cluster.filter("train-0-0").node_names
    record = cluster.core.explain("ml", "train-0-0", cluster.now)
    assert record is not None
    assert record.gang is None


@pytest.mark.parametrize("missing", list(Missing))
def test_what_could_not_be_had_is_asked_for_again_by_the_next_pod(
    cluster: Cluster, missing: Missing
) -> None:
    """As if an administrator has meanwhile given the right to read it, or installed the kind."""
    train = job("train", 3)
    cluster.owners = {ref_of(train): missing}
    create(cluster, member(train, 0))
    cluster.schedule("train-0-0")
    there_is(cluster, train)
    create(cluster, member(train, 1))
    assert why(cluster, "train-1-0") == "linkwise: gang Job.batch/train waits for its members"


def test_an_api_server_that_cannot_be_asked_is_asked_again(cluster: Cluster) -> None:
    cluster.owners = None
    train = job("train", 2)
    create(cluster, member(train, 0), member(train, 1))
    for _ in range(60):
        cluster.pass_time(1.0)
    assert planned(cluster) == []
    assert why(cluster, "train-0-0") == "linkwise: gang: reading its owner Job.batch ml/train"
    cluster.now += 1.0
    assert not cluster.filter("train-0-0").passing  # kube-scheduler is not kept any longer
    assert len(cluster.reads) < 12
    cluster.owners = {ref_of(train): train}
    cluster.pass_time(STALE_SECONDS)
    assert planned(cluster) == ["train-0-0", "train-1-0"]


# What lasts.


def test_a_restart_gives_nobody_the_gpus_of_a_gang_whose_owner_is_not_read_yet(
    cluster: Cluster,
) -> None:
    train = job("train", 4)
    there_is(cluster, train)
    create(cluster, *(member(train, index) for index in range(4)))
    assert len(planned(cluster)) == 4
    before = {name: cluster.plan(name) for name in planned(cluster)}
    cluster.nominate("train-3-0", "")  # as kube-scheduler does with one that it tried
    cluster.owners = None
    cluster.restart()
    cluster.settle()
    cluster.add_pod("thief", 8)
    assert cluster.filter("thief").node_names == ()
    there_is(cluster, train)
    cluster.pass_time(2.0)
    assert cluster.filter("thief").node_names == ()
    assert {name: cluster.plan(name) for name in before} == before
    assert cluster.phase("Job.batch/train") == "planned"
    for name in before:
        assert cluster.schedule(name)
    cluster.settle()
    assert cluster.phase("Job.batch/train") == "running"
    assert cluster.sound()


def test_a_pod_behind_our_gate_stays_there_until_its_gang_is_known(cluster: Cluster) -> None:
    cluster.owners = None
    train = job("train", 2)
    gated = []
    for index in range(2):
        made = msgspec.to_builtins(member(train, index))
        made["spec"]["schedulingGates"] = [{"name": names.GATE}]
        gated.append(msgspec.convert(made, Pod))
    create(cluster, *gated)
    cluster.pass_time(10.0)
    assert cluster.gates("train-0-0") == [names.GATE]
    assert [event.message for event in cluster.events][:1] == [
        "pod ml/train-0-0: gang: reading its owner Job.batch ml/train"
    ]
    cluster.owners = {ref_of(train): train}
    cluster.pass_time(STALE_SECONDS)
    assert planned(cluster) == ["train-0-0", "train-1-0"]
    assert cluster.gates("train-0-0") == cluster.gates("train-1-0") == []


def test_a_single_pod_that_was_told_to_wait_is_woken_once_its_owner_is_read(
    cluster: Cluster,
) -> None:
    shards = job("shards", 100, at_once=4)
    there_is(cluster, shards)
    cluster.put_pod(member(shards, 0))
    assert "reading its owner" in why(cluster, "shards-0-0")
    cluster.settle()
    assert cluster.pod("shards-0-0").status.nominated_node_name
    assert cluster.schedule("shards-0-0")


def test_the_owner_of_a_pod_that_is_in_no_gang_is_not_read_when_it_leaves(
    cluster: Cluster,
) -> None:
    shards = job("shards", 100, at_once=4)
    there_is(cluster, shards)
    create(cluster, member(shards, 0))
    assert cluster.schedule("shards-0-0")
    cluster.pass_time(SURELY)
    before = len(cluster.reads)
    cluster.terminate("shards-0-0")
    cluster.pass_time(SURELY)
    assert len(cluster.reads) == before


def test_what_nobody_hangs_on_any_more_is_forgotten(cluster: Cluster) -> None:
    for number in range(20):
        train = job(f"train-{number}", 2)
        there_is(cluster, train)
        create(cluster, member(train, 0), member(train, 1))
        for index in range(2):
            cluster.delete(f"train-{number}-{index}-0")
        cluster.settle()
    cluster.pass_time(SURELY)
    assert len(cluster.reads) == 20
    there_is(cluster, train)
    create(cluster, member(train, 0), member(train, 1))
    assert len(cluster.reads) == 21  # once more: what was read of it before is not kept


def test_an_answer_that_comes_after_its_pods_went_is_nobodys(cluster: Cluster) -> None:
    before, after = job("train", 2, uid="old"), job("train", 2, uid="new")
    there_is(cluster, before)
    cluster.put_pod(member(before, 0))
    (late,) = cluster.core.owners_to_read(cluster.now)
    cluster.delete("train-0-0")
    there_is(cluster, after)
    cluster.put_pod(member(after, 0))
    (now,) = cluster.core.owners_to_read(cluster.now)
    cluster.core.owner_read(late, before, cluster.now)
    assert not cluster.core.rejudge(cluster.now)
    assert cluster.core.owners_to_read(cluster.now) == ()
    cluster.core.owner_read(now, after, cluster.now)
    assert cluster.core.rejudge(cluster.now)
    create(cluster, member(after, 1))
    assert planned(cluster) == ["train-0-0", "train-1-0"]


def test_a_round_ends_though_ever_more_pods_are_to_be_judged_again(cluster: Cluster) -> None:
    """A pod with GPUs joins and leaves a group of pods without any, again and again."""
    for number in range(200):
        pod = grouped(f"idle-{number}", "g")
        idle = (change(pod.spec.containers[0], resources=Resources()),)
        cluster.put_pod(change(pod, spec=change(pod.spec, containers=idle)))
    taker = cluster.put_pod(grouped("taker", "g"))
    pauses = 0

    def aside(work: Callable[[], T]) -> T:
        nonlocal pauses
        pauses += 1
        labels = taker.metadata.labels if pauses % 2 else {}
        said = change(taker, metadata=change(taker.metadata, labels=labels))
        if pauses < 100:
            cluster.core.pod_event("MODIFIED", said, cluster.now)
        return work()

    cluster.core.set_unlocker(aside)
    cluster.core.decide(cluster.now)
    assert pauses < 40


def test_pods_of_a_large_owner_are_judged_again_few_at_a_time(cluster: Cluster) -> None:
    steps = {}
    for name, containers in (("small", 1), ("large", 300)):
        train = job(name, 60)
        cluster.put_pod(member(train, 0))
        for rank in range(1, 60):
            cluster.put_pod(member(train, rank))
        spec = train["spec"]["template"]["spec"]
        spec["containers"] = [{**spec["containers"][0], "name": f"c{n}"} for n in range(containers)]
        (read,) = cluster.core.owners_to_read(cluster.now)
        cluster.core.owner_read(read, train, cluster.now)
        steps[name] = cluster.core.steps_to_rejudge
        calls = 0
        while cluster.core.rejudge(cluster.now):
            calls += 1
        assert calls == steps[name]
    assert steps["small"] == 60 // 8 + 1
    assert steps["large"] > 10


def test_indexed_jobs_may_be_no_gangs(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, indexed_jobs=IndexedJobs.NONE)
    cluster.restart()
    train = job("train", 2)
    create(cluster, member(train, 0))
    assert cluster.filter("train-0-0").node_names
    assert cluster.reads == []


def test_people_are_told_which_rule_found_the_gang_and_what_could_not_be_read(
    cluster: Cluster,
) -> None:
    train, hidden, large = job("train", 2), job("hidden", 2), job("large", 2)
    late = job("late", 2)
    cluster.owners = {
        ref_of(train): train,
        ref_of(hidden): Missing.FORBIDDEN,
        ref_of(large): Missing.TOO_LARGE,
        ref_of(late): Missing.NAMESPACE_FULL,
    }
    create(cluster, *(member(each, 0) for each in (train, hidden, large, late)))
    cluster.add_pod("alone", 1)
    rules = {}
    for name in ("train-0-0", "hidden-0-0", "large-0-0", "late-0-0", "alone"):
        told = cluster.core.explain("ml", name, cluster.now)
        assert told is not None
        rules[name] = told.because
    assert rules == {
        "train-0-0": "job: Job.batch ml/train is Indexed and runs all its 2 pods at once",
        "hidden-0-0": "job: Job.batch ml/hidden may not be read",
        "large-0-0": "job: Job.batch ml/large is too large to be read",
        "late-0-0": "job: Job.batch ml/late is not read: the owners of pods in its namespace"
        " are too large together",
        "alone": "",
    }
