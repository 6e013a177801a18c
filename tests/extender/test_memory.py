"""An extender that runs for months remembers no more than there is: pods come and go forever."""

import gc
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from linkwise.extender.next.preemption.reclaim import LOOK_SECONDS
from linkwise.extender.state.actions import Emit, PodRef
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.cache.pending_writes import EVENT_SECONDS, PendingWrites
from linkwise.extender.state.records import PodMemory
from linkwise.extender.state.timers import Agenda
from linkwise.kube.device_claims import ResourceClaim, ResourceSlice
from linkwise.kube.objects import Node, ObjectMeta, Pod
from linkwise.topology import names
from linkwise.topology.annotations.activity import Activity, PodActivity, write_activity
from tests.extender.claimed import claim_of, slice_of
from tests.extender.cluster import GPU, Cluster, change
from tests.extender.owned import create, job, member, there_is
from tests.extender.remembered import remembered, strings

HOUR = 3600.0


def a_day(cluster: Cluster, number: int) -> None:
    """A single pod, one behind the gate, one that finds no room, a gang, and a Job; all end."""
    cluster.add_pod("single", 4)
    assert cluster.schedule("single")
    cluster.add_pod("gated", 4, gates=[names.GATE])
    cluster.add_pod("wrong", 1, gates=[names.GATE], require_link="wormhole")
    cluster.add_gang("g", 2)
    cluster.add_gang("too-many", 5)
    made = job("lm", 2, uid=f"lm-{number}")
    there_is(cluster, made)
    create(cluster, member(made, 0), member(made, 1))
    cluster.settle()
    cluster.filter("too-many-1")
    for pod in [*cluster.pods.values()]:
        if pod.spec.node_name:
            cluster.set_phase(pod.metadata.name, "Running")
    cluster.pass_time(HOUR)
    for pod in [*cluster.pods.values()]:
        cluster.delete(pod.metadata.name)
        cluster.settle()
    for _ in range(5):
        cluster.pass_time(HOUR)


def test_days_that_are_alike_leave_nothing() -> None:
    cluster = Cluster()
    for number in range(4):
        cluster.add_node(f"n{number}")
    sizes = []
    for number in range(8):
        a_day(cluster, number)
        sizes.append(remembered(cluster.core))
    assert set(sizes[4:]) == {sizes[4]}, sizes


def test_the_uid_of_a_pod_that_is_gone_is_nowhere() -> None:
    cluster = Cluster()
    for number in range(4):
        cluster.add_node(f"n{number}")
    seen: set[str] = set()
    put_pod = cluster.put_pod

    def noted(pod: Pod) -> Pod:
        seen.add(pod.metadata.uid)
        return put_pod(pod)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "put_pod", noted)
        a_day(cluster, 0)
    assert len(seen) > 8
    cluster.add_pod("last", 1)  # each scheduler's last call is remembered
    cluster.filter("last")
    assert not seen & strings(cluster.core)


def test_what_parts_remember_of_a_pod_is_forgotten_by_one_call() -> None:
    cluster = Cluster()
    cluster.add_node("n1")
    memory = cluster.core._cache.memory
    by_uid: dict[str, int] = memory.dict()
    uids = memory.set()
    stays, gone = (cluster.add_pod(name, 1).metadata.uid for name in ("stays", "gone"))
    for uid in (stays, gone):
        by_uid[uid] = 1
        uids.add(uid)
    cluster.delete("gone")
    assert by_uid == {stays: 1}
    assert uids == {stays}


def test_nor_do_those_that_a_standby_sees() -> None:
    cluster = Cluster()
    cluster.add_node("n1")
    sizes = []
    for _ in range(4):
        for gpus in (0, 1):
            cluster.add_pod(f"p{gpus}", gpus, gates=[names.GATE])
            cluster.core.stand_by()
        for gpus in (0, 1):
            cluster.delete(f"p{gpus}")
        cluster.core.stand_by()
        sizes.append(remembered(cluster.core))
    assert sizes[-1] == sizes[1], sizes


def test_a_new_leader_has_no_second_cache() -> None:
    cluster = Cluster()
    for number in range(4):
        cluster.add_node(f"n{number}")
    cluster.add_pod("runs", 4, node="n1")
    cluster.core.stand_by()
    gc.collect()
    gc.disable()  # as if all were frozen
    try:
        before = how_many(NodeInfo)
        cluster.core.lead(2, cluster.now)
        assert how_many(NodeInfo) == before
    finally:
        gc.enable()


def how_many(kind: type) -> int:
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_nodes_share_the_texts_of_their_labels() -> None:
    reader, listed = Ingest((GPU,), Agenda()), b'{"metadata":{"labels":{"zone":"eu-west-1"}}}'
    one, other = (reader.node(msgspec.json.decode(listed, type=Node)).labels for _ in range(2))
    assert one["zone"] is other["zone"]


def test_nor_do_members_of_ever_new_names_in_a_gang_that_runs_on() -> None:
    cluster = Cluster()
    cluster.add_node("n1")
    sizes = []
    cluster.add_pod("driver", 1, gang="g", gang_size="2", gang_min="1")
    for number in range(12):
        name = f"worker-{number}"
        cluster.add_pod(name, 1, gang="g", gang_size="2", gang_min="1")
        cluster.settle()
        if not number:
            assert cluster.schedule("driver")
        assert cluster.schedule(name)
        cluster.settle()
        cluster.delete(name)
        cluster.settle()
        cluster.pass_time(HOUR)
        sizes.append(remembered(cluster.core))
    assert sizes[-1] == sizes[6], sizes


CHARACTERS = 200_000


@pytest.mark.parametrize(
    ("key", "most_of_one"),
    [("note", 50_000), ("linkwise.dev/gpu-model", 10_000), ("linkwise.dev/plan", 10_000)],
)
def test_long_annotations_are_not_kept_and_leave_nothing(key: str, most_of_one: int) -> None:
    """Found: 550 MiB for 2,500 pods, in caches that counted entries and not bytes."""
    cluster, pods = Cluster(), 100
    cluster.add_node("n1")
    made = job("lm", pods, uid="lm")
    there_is(cluster, made)
    create(cluster, member(made, pods))  # the Job is read
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(pods):
            pod = member(made, number, said={key: f"{number}" + "x" * CHARACTERS})
            cluster.core.pod_event("ADDED", pod, cluster.now)
        del pod
        there, _ = tracemalloc.get_traced_memory()
        for number in range(pods):
            cluster.core.pod_event("DELETED", member(made, number), cluster.now)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (there - before) / pods < most_of_one
    assert (after - before) / pods < 10_000


def lists_others(at: Cluster, number: int) -> None:
    """Its kubelet has other resources each time."""
    node = at.nodes["n1"]
    standard = {key: node.status.allocatable[key] for key in ("cpu", "memory", "pods", GPU)}
    others = {f"example.com/r{number}-{each}": "1" for each in range(2000)}
    at.put_node(change(node, status=change(node.status, allocatable={**standard, **others})))


def tells_of_others(at: Cluster, number: int) -> None:
    """Its plugin has other idle pods each time."""
    at.now += LOOK_SECONDS
    pods = {f"ml/p{number}-{each}": PodActivity(since=1, idle=2) for each in range(2000)}
    said = write_activity(Activity(at=int(at.now), pods=pods))
    at.annotate_node("n1", names.ACTIVITY, said)
    at.settle()


@pytest.mark.parametrize("write", [lists_others, tells_of_others])
def test_what_a_node_wrote_before_is_not_kept(write: Callable[[Cluster, int], None]) -> None:
    """Found: 4 MiB for each write of 550 KiB, in caches that counted entries and not bytes."""
    cluster = Cluster()
    cluster.add_node("n1")
    cluster.add_pod("nb", 1, node="n1", reclaim_when_idle="1h")
    write(cluster, 0)
    tracemalloc.start()
    try:
        write(cluster, 1)
        gc.collect()
        one, _ = tracemalloc.get_traced_memory()
        for number in range(2, 20):
            write(cluster, number)
        gc.collect()
        many, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert many < 3 * one


def test_what_may_be_said_again_is_not_remembered() -> None:
    outbox, pod, now = PendingWrites(Agenda(), PodMemory()), PodRef("ml", "g-0", "uid-1"), 0.0
    for number in range(10):
        now += EVENT_SECONDS
        outbox.say(pod, "GangRefused", f"node n{number}", now)
    said = outbox.take()
    assert len(said) == 10
    assert all(isinstance(each, Emit) for each in said)
    assert (
        remembered(outbox) == remembered(PendingWrites(Agenda(), PodMemory())) + 2
    )  # the pod, and its last words


def test_many_devices_and_claims_take_little_memory() -> None:
    """1,000 nodes of eight GPUs, and 4,000 claims of two: 12 KiB for a node and its claims."""
    uuids = (
        [f"GPU-{node:08x}-{index:04x}-4e5f-8000-00a0b0c0d0e0" for index in range(8)]
        for node in range(1000)
    )
    pods = [
        Pod(metadata=ObjectMeta(name=f"train-{n}", uid=f"{n:08x}-1111-2222-3333-444455556666"))
        for n in range(4_000)
    ]
    core = Cluster().core
    slices = (
        msgspec.json.encode(slice_of(f"node-{node}", gpus)) for node, gpus in enumerate(uuids)
    )
    claims = (
        msgspec.json.encode(
            claim_of(f"train-{n}-gpus", f"node-{n // 4}", 2 * (n % 4), 2 * (n % 4) + 1, pods=[pod])
        )
        for n, pod in enumerate(pods)
    )
    tracemalloc.start()
    try:
        core.replace_slices((msgspec.json.decode(s, type=ResourceSlice) for s in slices), 0.0)
        core.replace_claims((msgspec.json.decode(c, type=ResourceClaim) for c in claims), 0.0)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 12 * 2**20
