"""Gangs and pods for which no cluster of these nodes has room are told so, and no others are."""

from random import Random

from linkwise.extender.show.explain.empty_cluster import EmptyCluster
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.page.queue_rows import queue_of
from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.divided import GPU, replicas
from tests.extender.cluster import Cluster, change
from tests.extender.shares.cluster import ShareCluster
from tests.machines import DGX_1V

NEVER = "even without other pods"


def in_vain(cluster: Cluster, gang: str) -> str:
    found = Explainer(cluster.core.snapshot(cluster.now)).gang("ml", gang)
    assert found is not None
    return found.in_vain


def two_nodes(*machines: str, cpu: str = "96") -> Cluster:
    cluster = Cluster()
    for number, machine in enumerate(machines or ("hgx-h100", "dgx1-v100")):
        cluster.add_node(f"n{number}", machine, cpu=cpu)
    return cluster


def test_a_gang_behind_one_that_never_fits_is_told_that_it_never_fits_either() -> None:
    cluster = two_nodes()
    cluster.add_gang("first", 5, 4)
    cluster.add_gang("second", 3, 8)
    cluster.add_gang("third", 2, 8)
    cluster.settle()
    cluster.pass_time(60)
    snapshot = cluster.core.snapshot(cluster.now)
    searched = {gang.key.name: gang.in_vain for gang in snapshot.gangs}
    assert searched["second"] is None, "no search has said it"
    assert in_vain(cluster, "second") == NEVER
    found = Explainer(snapshot).gang("ml", "second")
    assert found is not None
    assert found.summary == f"Gang second: no room for the whole gang, {NEVER}."
    assert found.gang.reason.endswith(f"; not for enough of them, {NEVER}")
    assert all(
        gang.reason.endswith(NEVER) for gang in Explainer(snapshot).gangs() if gang.name == "second"
    )
    member = Explainer(snapshot).pod("ml", "second-0")
    assert member is not None
    assert member.summary == f"Gang second: no room for the whole gang, {NEVER}."


def test_a_gang_that_may_start_with_fewer_is_counted_with_these() -> None:
    cluster = two_nodes()
    cluster.add_pod("busy", 8)
    cluster.schedule("busy")
    cluster.add_gang("g", 4, 8, gang_min="2")
    cluster.settle()
    assert in_vain(cluster, "g") == ""


def test_only_machines_of_the_model_and_link_that_are_wanted_count() -> None:
    cluster = two_nodes("hgx-h100", "p100-pcie-8")
    cluster.add_gang("first", 3, 8)
    cluster.add_gang("h100", 2, 8, gpu_model="H100")
    cluster.add_gang("linked", 2, 8, require_link="nvlink")
    cluster.settle()
    assert in_vain(cluster, "h100") == in_vain(cluster, "linked") == NEVER


def test_what_is_ruled_out_on_a_busy_cluster_does_not_start_on_an_idle_one() -> None:
    ruled_out = 0
    for seed in range(60):
        draw = Random(seed)
        kinds = ("dgx1-v100", "hgx-h100", "a100-pcie-4-bridged")
        machines = draw.choices(kinds, k=draw.randint(1, 3))
        busy, idle = two_nodes(*machines), two_nodes(*machines)
        for number in range(len(machines)):
            busy.add_pod(f"taken-{number}", 4, cpu="90", node=f"n{number}")
        busy.add_gang("first", 9, 8)  # keeps the other from being searched for
        size, gpus = draw.randint(2, 8), draw.choice((1, 2, 3, 4, 5, 8))
        link = draw.choice(("node", "nvlink"))
        for cluster in (busy, idle):
            cluster.add_gang("g", size, gpus, require_link=link)
            cluster.settle()
        if in_vain(busy, "g"):
            ruled_out += 1
            assert idle.phase("g") == "forming", seed
    assert ruled_out > 10


def test_where_replicas_count_as_gpus_no_single_pod_is_ruled_out() -> None:
    cluster = ShareCluster()
    cluster.add_divided("n1", replicas(DGX_1V, {0: 8, 1: 8}, GPU))
    assert not is_ruled_out(cluster, 12)
    cluster.add_pod("gated", 12, gates=[names.GATE])
    cluster.settle()
    snapshot = cluster.core.snapshot(cluster.now)
    (alone,) = (gang for gang in snapshot.gangs if gang.alone)
    assert alone.no_room is not None
    assert EmptyCluster(snapshot).judged(alone._replace(in_vain=None)).in_vain is None


def test_a_pod_larger_than_every_node_is_ruled_out() -> None:
    cluster = two_nodes("dgx1-v100", "p100-pcie-8")
    assert not is_ruled_out(cluster, 8)
    assert is_ruled_out(cluster, 9)
    cluster.annotate_node("n0", names.TOPOLOGY, None)
    cluster.annotate_node("n1", names.TOPOLOGY, None)
    assert not is_ruled_out(cluster, 8), "by its count"
    assert is_ruled_out(cluster, 9)


def test_pods_without_gpus_that_are_in_the_way_are_no_reason_to_give_up() -> None:
    cluster = two_nodes(cpu="16")
    cluster.add_pod("cpus", cpu="16", node="n0")
    cluster.add_gang("g", 2, 8)
    cluster.settle()
    cluster.pass_time(60)
    assert in_vain(cluster, "g") == ""
    cluster.delete("cpus")
    cluster.settle()
    assert cluster.phase("g") == "planned"


def test_nor_for_a_single_pod() -> None:
    cluster = two_nodes("dgx1-v100", cpu="16")
    cluster.add_pod("cpus", cpu="16", node="n0")
    cluster.add_pod("w", 8, gates=[names.GATE])
    cluster.settle()
    cluster.pass_time(60)
    (row,) = queue_of(cluster.core.snapshot(cluster.now)).rows
    assert row.why == "no node has room for it now"
    cluster.delete("cpus")
    cluster.settle()
    assert cluster.pod("w").status.nominated_node_name == "n0"


def test_servers_are_in_the_way_until_they_are_gone() -> None:
    cluster = two_nodes()
    for number in range(2):
        cluster.add_pod(f"server-{number}", 8, alter=server)
        assert cluster.schedule(f"server-{number}")
        cluster.start(f"server-{number}")
    cluster.add_gang("g", 2, 8)
    cluster.pass_time(60)
    assert in_vain(cluster, "g").startswith("until pods that run forever are deleted")
    cluster.delete("server-0")
    cluster.settle()
    assert in_vain(cluster, "g") == ""


def server(pod: Pod) -> Pod:
    return change(pod, spec=change(pod.spec, restart_policy="Always"))


def test_while_a_machine_is_not_known_nothing_is_ruled_out() -> None:
    cluster = two_nodes()
    assert is_ruled_out(cluster, 9)
    cluster.annotate_node("n0", names.TOPOLOGY, "{")
    assert not is_ruled_out(cluster, 9)


def test_what_the_extender_rules_out_starts_on_no_cluster_without_pods() -> None:
    """Random gangs, pods with and without GPUs, and nodes that are cordoned or have sick GPUs."""
    ruled_out = 0
    for seed in range(60):
        draw = Random(seed)
        machines = draw.choices(("dgx1-v100", "hgx-h100"), k=draw.randint(1, 3))
        cluster = two_nodes(*machines, cpu="16")
        for number in range(draw.randint(0, 5)):
            node = draw.choice([*cluster.nodes])
            gpus = draw.choice((0, 0, 2, 4))
            cluster.add_pod(f"p{number}", gpus, cpu=draw.choice(("1", "16")), node=node)
        if draw.random() < 0.3:
            cluster.cordon(draw.choice([*cluster.nodes]))
        if draw.random() < 0.3:
            cluster.set_health(draw.choice([*cluster.nodes]), draw.randrange(8))
        size, gpus = draw.randint(2, 5), draw.choice((2, 4, 7, 8))
        words = draw.choice(({}, {"require_link": "nvlink"}, {"require_span": "node"}))
        cluster.add_gang("g", size, gpus, **words)
        cluster.settle()
        cluster.pass_time(60)
        if in_vain(cluster, "g") != NEVER:
            continue
        ruled_out += 1
        for name in [pod.metadata.name for pod in cluster.pods.values()]:
            if name.startswith("p"):
                cluster.delete(name)
        cluster.settle()
        cluster.pass_time(60)
        assert cluster.phase("g") == "forming", seed
    assert ruled_out > 10


def is_ruled_out(cluster: Cluster, gpus: int) -> bool:
    cluster.add_pod("asks", gpus)
    cluster.settle()
    snapshot = cluster.core.snapshot(cluster.now)
    (record,) = (each for each in snapshot.pods if each.ref.name == "asks")
    cluster.delete("asks")
    cluster.settle()
    return EmptyCluster(snapshot).rules_out(record)
