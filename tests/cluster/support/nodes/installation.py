"""What an installation leaves on nodes, and pods that use it."""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.nodes.cluster import RealCluster
from tests.cluster.support.nodes.node import RealNode
from tests.cluster.support.programs import binaries, busybox, images
from tests.manifests import DAEMONSET

MACHINE = "dgx1-v100"
LABEL = "linkwise.dev/simulated-machine"
SCHEDULER_IMAGE = f"registry.k8s.io/kube-scheduler:{binaries.NEWEST}"
SERVICE = "linkwise-extender.kube-system.svc"
ADDRESS = "10.96.0.94"
KUBELET_DIRECTORY = "/var/lib/kubelet"
KUBELETS_BOOKS = ("kubelet_internal_checkpoint", "allocated_pods_state", "actuated_pods_state")


def start_ready(cluster: RealCluster) -> None:
    """Start it with the images, the label for simulated machines, and a stock scheduler."""
    cluster.start()
    import_scheduler(cluster)
    for node in cluster.nodes.values():
        node.import_image(images.linkwise_image())
        cluster.control.kubectl("label", "node", node.name, f"{LABEL}={MACHINE}")
    cluster.control.start_scheduler()


def import_scheduler(cluster: RealCluster) -> None:
    """Give the nodes the image of the second scheduler."""
    archive = cluster.control.directory / "kube-scheduler.tar"
    layer = busybox.layer_of({"kube-scheduler": cluster.control.programs / "kube-scheduler"})
    busybox.write_archive(archive, layer, {SCHEDULER_IMAGE: ["/bin/kube-scheduler"]})
    for node in cluster.nodes.values():
        node.import_image(archive)
    archive.unlink()


def write_simulated(directory: Path) -> Path:
    """Write the overlay `simulated`, changed only for this cluster, which has no DNS."""
    aliases = [{"ip": ADDRESS, "hostnames": [SERVICE]}]
    resolved = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "linkwise-scheduler", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"hostAliases": aliases}}},
    }
    fixed = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "linkwise-extender", "namespace": "kube-system"},
        "spec": {"clusterIP": ADDRESS},
    }
    return write_overlay(directory, DAEMONSET / "overlays" / "simulated", patches=[resolved, fixed])


def write_overlay(
    directory: Path,
    overlay: Path,
    *,
    components: list[Path] | None = None,
    patches: list[dict[str, Any]] | None = None,
) -> Path:
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "sortOptions": {"order": "legacy"},
        # kustomize accepts no absolute paths.
        "resources": [os.path.relpath(overlay, directory)],
        "components": [os.path.relpath(each, directory) for each in components or ()],
        "patches": [{"patch": yaml.safe_dump(each)} for each in patches or ()],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return directory


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
