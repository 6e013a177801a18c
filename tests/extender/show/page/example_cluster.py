"""A cluster in memory in which every state of a GPU, a node and a gang occurs."""

from dataclasses import replace

from linkwise.kube.objects import Taint
from linkwise.topology import names
from linkwise.topology.annotations.activity import Activity, PodActivity, write_activity
from tests.extender.cluster import Cluster

LEAF = "network.topology.nvidia.com/leaf"
HOSTILE = "<img src=x onerror=alert(1)>'\"&<script>alert(2)</script>"


def example() -> Cluster:
    """Racks `leaf-1` and `leaf-2`, and a node in none; a gang that runs, one that is planned, one
    that waits, and pods."""
    cluster = Cluster()
    for number in range(1, 9):
        machine = (
            "hgx-h100" if number <= 4 else "dgx1-v100" if number <= 6 else "a100-pcie-8-bridged"
        )
        rack = "leaf-1" if number <= 4 else "leaf-2"
        cluster.add_node(f"gpu-{number}", machine, labels={LEAF: rack})
    cluster.add_node("old-1", "p100-pcie-8")
    for member in cluster.add_gang("train", 2, 8, expected_duration="2h"):
        _run(cluster, member)
    for name, gpus in (("notebook-ada", 1), ("finetune", 4), ("eval", 2), ("sweep-1", 3)):
        cluster.add_pod(name, gpus, expected_duration="1h")
        _run(cluster, name)
    cluster.add_gang("next", 2, 4, gates=[names.GATE], require_link="nvlink")
    cluster.settle()
    cluster.pass_time(60)
    cluster.add_gang("pretrain", 6, 8)
    cluster.settle()
    cluster.add_pod("huge", 16)
    cluster.add_pod("broken", 1, gpu_memory="many")
    cluster.settle()
    _idle(cluster, "notebook-ada", "eval")
    cluster.set_health("old-1", 2)
    cluster.cordon("gpu-8", Taint(key="repair", effect="NoSchedule"))
    cluster.set_ready("gpu-7", ready=False)
    cluster.settle()
    return cluster


def empty() -> Cluster:
    return Cluster()


def one_node() -> Cluster:
    cluster = Cluster()
    cluster.add_node("gpu-1", "hgx-h100")
    cluster.add_pod("notebook", 2)
    _run(cluster, "notebook")
    return cluster


def large(nodes: int, waiting: int = 0) -> Cluster:
    """*nodes* of eight GPUs in racks of 32, five GPUs of each in use."""
    cluster = Cluster()
    for number in range(nodes):
        machine = ("hgx-h100", "dgx-a100")[number % 2]
        name = f"gpu-{number}"
        cluster.add_node(name, machine, cpu="192", labels={LEAF: f"leaf-{number // 32}"})
        uuids = cluster.uuids(name, *range(5))
        cluster.add_pod(f"tenant-{number}", 5, node=name)
        cluster.set_in_use(name, {f"ml/tenant-{number}": {"main": uuids}})
    for number in range(waiting // 8):
        cluster.add_gang(f"gang-{number}", 8, 8)
    cluster.settle()
    return cluster


def hostile() -> Cluster:
    """Names that no API server accepts, and that the page shall show as they are."""
    cluster = Cluster()
    cluster.add_node(f"n{HOSTILE}", "dgx1-v100", labels={LEAF: HOSTILE})
    machine = cluster.machine(f"n{HOSTILE}")
    gpus = tuple(replace(gpu, model=HOSTILE) for gpu in machine.gpus)
    cluster.add_node(f"m{HOSTILE}", replace(machine, gpus=gpus), labels={LEAF: HOSTILE})
    cluster.add_pod(f"p{HOSTILE}", 2)
    _run(cluster, f"p{HOSTILE}")
    _idle(cluster, f"p{HOSTILE}")
    cluster.add_gang(f"g{HOSTILE}", 9, 8)
    cluster.add_gang(f"s{HOSTILE}", 1, 8)
    cluster.add_pod(f"w{HOSTILE}", 1, gpu_memory=HOSTILE)
    cluster.settle()
    return cluster


def _idle(cluster: Cluster, *pods: str) -> None:
    """The plugins say so, since the pods were created; the other pods of their nodes work."""
    began = int(cluster.now) - 60
    for node in {cluster.pod(name).spec.node_name for name in pods}:
        said = {
            pod.key: PodActivity(since=began, whole=True, idle=began, day=5, memory=12)
            if pod.metadata.name in pods
            else PodActivity(since=began, whole=True, day=100)
            for pod in cluster.pods.values()
            if pod.spec.node_name == node
        }
        text = write_activity(Activity(at=int(cluster.now), pods=said))
        cluster.annotate_node(node, names.ACTIVITY, text)


def _run(cluster: Cluster, name: str) -> None:
    cluster.settle()
    assert cluster.schedule(name), name
    cluster.start(name)
    cluster.settle()
