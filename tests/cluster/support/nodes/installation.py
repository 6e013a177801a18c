"""What an installation leaves on nodes, and pods that use it."""

import json
from pathlib import Path
from typing import Any

from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.nodes.cluster import RealCluster
from tests.cluster.support.nodes.node import RealNode
from tests.cluster.support.programs import binaries, busybox, images

MACHINE = "dgx1-v100"
LABEL = "linkwise.dev/simulated-machine"
SCHEDULER_IMAGE = f"registry.k8s.io/kube-scheduler:{binaries.NEWEST}"
KUBELET_DIRECTORY = "/var/lib/kubelet"
KUBELETS_BOOKS = ("kubelet_internal_checkpoint", "allocated_pods_state", "actuated_pods_state")


def start_ready(cluster: RealCluster) -> None:
    """Start it with the images, the label for simulated machines, and a stock scheduler."""
    cluster.start()
    scheduler = cluster.control.directory / "kube-scheduler.tar"
    layer = busybox.layer_of({"kube-scheduler": cluster.control.programs / "kube-scheduler"})
    busybox.write_archive(scheduler, layer, {SCHEDULER_IMAGE: ["/bin/kube-scheduler"]})
    for node in cluster.nodes.values():
        node.import_image(images.linkwise_image())
        node.import_image(scheduler)
        cluster.control.kubectl("label", "node", node.name, f"{LABEL}={MACHINE}")
    scheduler.unlink()
    cluster.control.start_scheduler()


def traces(cluster: RealCluster) -> set[str]:
    """Return what could be left of Linkwise on the nodes: in their objects, and among their
    files."""
    return {
        f"{node.name}: {trace}"
        for node in cluster.nodes.values()
        for trace in (*written_on(cluster.control, node.name), *files_of(node))
    }


def written_on(control: ControlPlane, node: str) -> list[str]:
    metadata = json.loads(control.kubectl("get", "node", node, "-o=json"))["metadata"]
    ours = ("linkwise.dev/", "nvidia.com/")
    labels = [f"{key}={text}" for key, text in metadata["labels"].items() if key.startswith(ours)]
    return labels + [key for key in metadata["annotations"] if key.startswith(ours)]


def files_of(node: RealNode) -> list[str]:
    """Return files and sockets in the kubelet's directories, without those of pods."""
    pods = f"{KUBELET_DIRECTORY}/pods/*"
    found = node.enter(["find", KUBELET_DIRECTORY, "-path", pods, "-prune", "-o", "-print"])
    assert found.returncode == 0, found.stderr
    # The kubelet creates its checkpoints of devices and pods with the first of them.
    return [path for path in found.stdout.split() if Path(path).name not in KUBELETS_BOOKS]


def create(control: ControlPlane, name: str, gpus: int, *, scheduler: str = "") -> None:
    container = {
        "name": "main",
        "image": busybox.WORKLOAD,
        "imagePullPolicy": "Never",
        "resources": {"limits": {names.DEFAULT_RESOURCE: str(gpus)} if gpus else {}},
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            **({"schedulerName": scheduler} if scheduler else {}),
        },
    }
    control.kubectl("create", "-f=-", stdin=json.dumps(body))


def running(control: ControlPlane, name: str) -> dict[str, Any]:
    control.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=90s")
    pod: dict[str, Any] = json.loads(control.kubectl("get", "pod", name, "-o=json"))
    return pod


def given(control: ControlPlane, name: str) -> set[str]:
    """Return the GPUs in the container's environment."""
    told = control.kubectl("exec", name, "--", "printenv", "NVIDIA_VISIBLE_DEVICES")
    return set(told.strip().split(","))


def started(pod: dict[str, Any]) -> str:
    """Return what distinguishes one start of the pod's container from the next."""
    (status,) = pod["status"]["containerStatuses"]
    return str(status["containerID"])
