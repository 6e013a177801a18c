"""Linkwise on a real cluster, deployed as a user does: image, manifests, scheduler configuration.

Every node simulates a DGX-1V, whose GPUs are not all alike, so tests can distinguish a good set
from any set.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
import yaml

from linkwise.extender.run.settings import Settings
from linkwise.kube.client import KubeClient
from linkwise.topology import names
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from tests.cluster.support.nodes.cluster import RealCluster
from tests.cluster.support.programs import images
from tests.cluster.support.scheduling.extender_process import (
    scheduler_config,
    scheduler_env,
    wait_guarded,
)

GPU = names.DEFAULT_RESOURCE
MACHINE = "dgx1-v100"
SYSTEM = "kube-system"
EXTENDER = "linkwise-extender"
PLUGIN_PODS = "app.kubernetes.io/name=linkwise-plugin"
EXTENDER_PODS = "app.kubernetes.io/name=linkwise-extender"
_MANIFESTS = Path(__file__).parents[4] / "daemonset"
_OVERLAY = _MANIFESTS / "overlays" / "kubeadm"
MACHINE_LABEL = "linkwise.dev/simulated-machine"


class DeployedLinkwise:
    """`start` takes about a minute. Queries use the cluster administrator's account."""

    components: tuple[str, ...] = ("simulated-machines",)

    def __init__(
        self, directory: Path, kubelets: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.cluster = RealCluster(directory, kubelets=kubelets)
        self.control = self.cluster.control
        self.client: KubeClient = self.control.client()
        self.directory = directory / "linkwise"
        self.directory.mkdir(parents=True)
        config = yaml.safe_load((_OVERLAY / "scheduler-config.yaml").read_text())
        self.calls = str(config["extenders"][0]["urlPrefix"])
        # The same address, with the status port.
        self.extender_url = f"http://{urlsplit(self.calls).hostname}:{Settings().status_port}"

    def start(self) -> None:
        """Return when every node offers its GPUs and the extender knows them."""
        self.cluster.start()
        image = images.linkwise_image()
        for node in self.cluster.nodes.values():
            node.import_image(image)
        stock = self.control.start_scheduler()
        self.install()
        self._wait_rolled_out()
        stock.stop()
        self.start_scheduler()
        self.wait_ready()

    def start_scheduler(self) -> None:
        """Start kube-scheduler with the deployed configuration."""
        config = scheduler_config(self.control, self.calls)
        self.control.start_scheduler(config, env=scheduler_env())

    def stop(self) -> None:
        self.cluster.stop()

    def install(self) -> None:
        """Run `kubectl apply -k`, with `components`. One makes nodes simulate machines."""
        for name in self.cluster.nodes:
            self.kubectl("label", "--overwrite", "node", name, f"{MACHINE_LABEL}={MACHINE}")
        self.kubectl("apply", f"--kustomize={self.write_overlay()}")

    def write_overlay(self) -> Path:
        """Write the kubeadm overlay for users without GPUs."""
        components = (_MANIFESTS / "components" / name for name in self.components)
        overlay = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            # kustomize accepts no absolute paths.
            "resources": [os.path.relpath(_OVERLAY, self.directory)],
            "components": [os.path.relpath(path, self.directory) for path in components],
        }
        (self.directory / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        return self.directory

    def clear(self) -> None:
        """Delete everything that tests create. Tests check what that leaves."""
        self.kubectl("delete", "deployments,jobs,pods", "--all", "--wait=false")

    def wait_ready(self) -> None:
        """Return when GPU pods can be placed on every node, and only by Linkwise."""
        self._wait_rolled_out()
        wait_guarded(self.control)
        wait_until_none(self.missing)

    def _wait_rolled_out(self) -> None:
        for kind in ("daemonset/linkwise-plugin", "deployment/linkwise-extender"):
            self.kubectl("rollout", "status", f"-n={SYSTEM}", kind, "--timeout=120s")

    def missing(self) -> list[str]:
        """Return what prevents the cluster from taking GPU pods; empty if nothing does."""
        known = {node["name"]: node for node in self.ask_extender("/nodes")}
        found = []
        for name, node in self.nodes().items():
            allocatable = node["status"].get("allocatable", {})
            for resource, count in self.offered(name).items():
                if allocatable.get(resource) != str(count):
                    found.append(
                        f"{name}: the kubelet offers {allocatable.get(resource)} {resource}"
                    )
            if not known.get(name, {}).get("usable"):
                reason = known.get(name, {}).get("reason", "it does not know the node")
                found.append(f"{name}: the extender: {reason}")
        return found

    def offered(self, node: str) -> dict[str, int]:
        """Return how many devices of each resource the node has."""
        return {GPU: len(self.machine(node).gpus)}

    def machine(self, node: str) -> Machine:
        return recorded_machine(MACHINE, node=node)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the Node objects by name."""
        return {node["metadata"]["name"]: node for node in self.items("/api/v1/nodes")}

    def pods(self, selector: str = "", *, namespace: str = "default") -> list[dict[str, Any]]:
        """Return the Pods with these labels, by name."""
        found = self.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def pod(self, name: str) -> dict[str, Any]:
        return self.get(f"/api/v1/namespaces/default/pods/{name}")

    def get(self, path: str) -> dict[str, Any]:
        return self.client.get(path, dict[str, Any])

    def items(self, path: str, **params: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get(path, dict[str, Any], params=params)["items"]
        return found

    def extender(self) -> dict[str, Any]:
        """Return the Pod of the extender that leads, or led last."""
        lease = self.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{EXTENDER}")
        name = str(lease["spec"]["holderIdentity"]).partition("_")[0]
        return self.get(f"/api/v1/namespaces/{SYSTEM}/pods/{name}")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.control.kubectl(*arguments, stdin=stdin)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def ask_extender(self, path: str) -> list[dict[str, Any]]:
        """Return the answer at *path*; an empty list if there is none, as during a start."""
        try:
            answer = urllib3.request("GET", f"{self.extender_url}{path}", timeout=5, retries=False)
        except urllib3.exceptions.HTTPError:
            return []
        return list(json.loads(answer.data)) if answer.status == 200 else []

    def explain(self, pod: str) -> str:
        """Return the extender's text on why a pod is where it is, or why it waits."""
        url = f"{self.extender_url}/explain/default/{pod}?format=text"
        return urllib3.request("GET", url, timeout=5).data.decode()


def wait_until_none(problems: Callable[[], list[str]], seconds: float = 60.0) -> None:
    """Poll until *problems* returns none. The error shows what it returned last."""
    deadline = time.monotonic() + seconds
    while found := problems():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:g} s still:\n" + "\n".join(found))
        time.sleep(0.1)
