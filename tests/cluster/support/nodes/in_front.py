"""Linkwise in front of a vendor's plugin on real nodes, from the vendor's plugin alone and back.

The first node offers its GPUs whole. On the second, one GPU has four replicas, and one is cut into
two MIG devices.
"""

import json
from pathlib import Path
from typing import Any

from linkwise.topology import names
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes.deployment import (
    GPU,
    MACHINE_LABEL,
    SYSTEM,
    DeployedLinkwise,
    wait_until_none,
)
from tests.cluster.support.nodes.faults import HERE, ClusterFault, kill
from tests.cluster.support.nodes.gpu_holders import (
    Holders,
    podresources,
    processes_of,
    unsound,
)
from tests.cluster.support.nodes.workloads import Manifest
from tests.cluster.support.programs import binaries, busybox, images

SHARED, MIG = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
VENDOR = "vendor-plugin"
_ON_DELETE = '{"spec": {"updateStrategy": {"type": "OnDelete"}}}'
_IMAGE = f"localhost/{VENDOR}:test"
_OFFERS = "/var/lib/vendor/offers.json"
_SOCKETS = "/var/lib/kubelet/device-plugins"
KUBELET_SOCKET, LINKWISE_SOCKET = f"{_SOCKETS}/kubelet.sock", f"{_SOCKETS}/linkwise/kubelet.sock"


class InFront(DeployedLinkwise):
    """`start` leaves the vendor's plugin alone; `adopt` puts Linkwise in front, `leave` takes it
    away again."""

    components = ("simulated-machines", "in-front")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.adopted = False

    def offers(self, node: str) -> dict[str, list[str]]:
        """Return the ids of each resource, as the vendor's plugin lists them."""
        gpus = [gpu.uuid for gpu in self.machine(node).gpus]
        if node == HERE:
            return {GPU: gpus}
        *whole, shared, cut = gpus
        return {
            GPU: whole,
            SHARED: [f"{shared}::{number}" for number in range(4)],
            MIG: [f"MIG-{cut.removeprefix('GPU-')}-{number}" for number in range(2)],
        }

    def offered(self, node: str) -> dict[str, int]:
        return {resource: len(ids) for resource, ids in self.offers(node).items()}

    def start(self) -> None:
        self.cluster.start()
        vendor = self.directory / "vendor.tar"
        layer = busybox.layer_of({VENDOR: binaries.vendor_plugin() / VENDOR})
        busybox.write_archive(vendor, layer, {_IMAGE: [f"/bin/{VENDOR}", _OFFERS]})
        for name, node in self.cluster.nodes.items():
            for image in (images.linkwise_image(), vendor):
                node.import_image(image)
            offers = node.root / _OFFERS.lstrip("/")
            offers.parent.mkdir()
            offers.write_text(json.dumps(self.offers(name)))
        self.control.start_scheduler()
        self.apply(_vendor(KUBELET_SOCKET))
        wait_until_none(self.unoffered)

    def adopt(self) -> None:
        """Follow docs/in-front.md."""
        self.install()
        self.wait_registry(*self.cluster.nodes)
        self._tell_vendor(LINKWISE_SOCKET)
        self._wait_rolled_out()
        self.control.parts["kube-scheduler"].stop()
        self.start_scheduler()
        self.wait_ready()
        self.adopted = True

    def leave(self) -> None:
        """Follow docs/in-front.md, and docs/operating/upgrade-and-uninstall.md."""
        self._tell_vendor(KUBELET_SOCKET)
        wait_until_none(self.unoffered)
        self.control.parts["kube-scheduler"].stop()
        self.control.start_scheduler()
        daemonset = ("daemonset", "linkwise-plugin", "--cascade=foreground")
        self.kubectl("delete", f"-n={SYSTEM}", *daemonset)
        self.kubectl("delete", f"--kustomize={self.write_overlay()}", "--ignore-not-found")
        self.adopted = False

    def wait_registry(self, *nodes: str) -> None:
        for name in nodes:
            registry = self.cluster.nodes[name].root / LINKWISE_SOCKET.lstrip("/")
            wait_for(registry.is_socket, f"Linkwise takes registrations on {name}")

    def register(self, socket: str, *nodes: str) -> None:
        """Change where the vendor's plugins of these nodes register. The others keep running."""
        daemonset = f"daemonset/{VENDOR}"
        self.kubectl("patch", f"-n={SYSTEM}", daemonset, "-p", _ON_DELETE)
        self.kubectl("set", "env", f"-n={SYSTEM}", daemonset, f"KUBELET_SOCKET={socket}")
        for name in nodes:
            pod = _vendor_pod(self, name)["metadata"]["name"]
            self.kubectl("delete", "pod", f"-n={SYSTEM}", pod)
        wait_for(self._vendor_runs, "the vendor's plugin runs again")

    def _vendor_runs(self) -> bool:
        found = self.pods(f"app.kubernetes.io/name={VENDOR}", namespace=SYSTEM)
        return [pod["status"]["phase"] for pod in found] == ["Running"] * len(self.cluster.nodes)

    def _tell_vendor(self, socket: str) -> None:
        """Change where the vendor's plugin registers. Return when every node has the new one."""
        daemonset = f"daemonset/{VENDOR}"
        self.kubectl("set", "env", f"-n={SYSTEM}", daemonset, f"KUBELET_SOCKET={socket}")
        self.kubectl("rollout", "status", f"-n={SYSTEM}", daemonset, "--timeout=120s")

    def unoffered(self) -> list[str]:
        """Return which nodes do not offer what the vendor's plugin lists there."""
        found = []
        for name, node in self.nodes().items():
            allocatable = node["status"].get("allocatable", {})
            for resource, count in self.offered(name).items():
                if allocatable.get(resource) != str(count):
                    found.append(f"{name}: {allocatable.get(resource)} {resource}, not {count}")
        return found

    def held(self) -> dict[str, dict[str, Holders]]:
        """Return the kubelets' view of every resource."""
        return {
            name: {resource: podresources(node, resource) for resource in self.offers(name)}
            for name, node in self.cluster.nodes.items()
        }

    def left(self) -> list[str]:
        """Return what is left although every pod with devices was deleted."""
        found = [f"{name}: {held}" for name, held in self.held().items() if any(held.values())]
        if not self.adopted:
            return found
        for name, node in self.cluster.nodes.items():
            ours = sorted((node.root / _SOCKETS.lstrip("/")).glob("linkwise-*.sock"))
            if len(ours) != len(self.offers(name)):
                found.append(f"{name}: {[path.name for path in ours]}")
        return [*found, *unsound(self)]

    def traces(self) -> list[str]:
        """Return what of Linkwise is on a node. The label that the test set stays."""
        found = []
        for name, node in self.nodes().items():
            metadata = node["metadata"]
            marks = {*metadata.get("labels", {}), *metadata.get("annotations", {})}
            ours = {mark for mark in marks if mark.startswith(names.PREFIX)} - {MACHINE_LABEL}
            found += [f"{name}: {mark}" for mark in sorted(ours)]
            sockets = self.cluster.nodes[name].root / _SOCKETS.lstrip("/")
            found += [f"{name}: {path}" for path in sockets.rglob("*linkwise*/*")]
            found += [f"{name}: {path}" for path in sockets.glob("linkwise-*")]
        return found

    def vendor_log(self, node: str) -> str:
        return self.kubectl("logs", f"-n={SYSTEM}", _vendor_pod(self, node)["metadata"]["name"])


def _vendor_pod(deployed: DeployedLinkwise, node: str) -> dict[str, Any]:
    found = deployed.pods(f"app.kubernetes.io/name={VENDOR}", namespace=SYSTEM)
    (pod,) = (pod for pod in found if pod["spec"]["nodeName"] == node)
    return pod


def _kill_vendor(deployed: DeployedLinkwise) -> None:
    (process,) = processes_of(_vendor_pod(deployed, HERE), VENDOR)
    kill(int(process.name))


VENDOR_PLUGIN = ClusterFault("vendor", _kill_vendor)


def _vendor(socket: str) -> Manifest:
    """Return the vendor's DaemonSet; its plugin registers at *socket*."""
    labels = {"app.kubernetes.io/name": VENDOR}
    volumes = {"sockets": _SOCKETS, "offers": str(Path(_OFFERS).parent)}
    container = {
        "name": "plugin",
        "image": _IMAGE,
        "imagePullPolicy": "Never",
        "env": [{"name": "KUBELET_SOCKET", "value": socket}],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in volumes.items()],
    }
    spec = {
        "containers": [container],
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 5,
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "Directory"}}
            for name, path in volumes.items()
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": VENDOR, "namespace": SYSTEM, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
