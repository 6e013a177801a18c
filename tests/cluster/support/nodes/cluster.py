"""A whole cluster: control plane, and nodes with real kubelets, containers and Service addresses.

It uses the sandbox's network, so a sandbox has one cluster at a time. Nothing schedules until a
test calls `control.start_scheduler`, because tests differ in the scheduler's configuration.
"""

import json
import shutil
import socket
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.support.api.control_plane import API_SERVICE_ADDRESS, ControlPlane
from tests.cluster.support.host import cgroups, sandbox
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes.node import RealNode

POD_RANGE = "10.244.0.0/16"
# From Kubernetes 1.37 on, kube-proxy ends when its Node is deleted, and a kubelet starts it again.
_AGAIN = "trap 'kill $!; wait; exit' TERM; while true; do \"$@\" & wait; sleep 1; done"


class RealCluster:
    """A cluster with nodes node-1, node-2, …"""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 2,
        kubelets: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """*kubelets*: what the KubeletConfiguration of a node has beside that of all nodes."""
        run = sandbox.directory()
        if run is None:
            raise RuntimeError("a cluster needs the sandbox: python -m tests.cluster run -- …")
        self._cgroup = run.name  # the sandbox's sweeper finds it by this name
        self.control = ControlPlane(directory)
        made = [
            RealNode(
                self.control,
                number,
                cgroup=self._cgroup,
                configuration=(kubelets or {}).get(f"node-{number}"),
            )
            for number in range(1, nodes + 1)
        ]
        self.nodes: Mapping[str, RealNode] = {node.name: node for node in made}
        self.kube_proxy = LoggedProcess(
            "kube-proxy",
            [
                *("sh", "-c", _AGAIN, "sh"),
                *(str(self.control.programs / "kube-proxy"), f"--config={self._write_proxy()}"),
            ],
            self.control.logs / "kube-proxy.log",
        )

    def start(self) -> None:
        """Return when every node is ready; about 8 s on two idle cores."""
        for node in self.nodes.values():
            _ip(f"addr add {node.address}/24 dev {sandbox.BRIDGE}")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self.control.start()
        self.kube_proxy.start()
        with ThreadPoolExecutor() as pool:
            list(pool.map(RealNode.start, self.nodes.values()))
        wait_for(self._has_default_account, "pods can be made in the namespace default")
        wait_for(_service_answers, "the API server has its Service address", of=self.kube_proxy)

    def stop(self) -> None:
        """Remove everything except the logs: processes, mounts, cgroups, addresses and rules."""
        for node in self.nodes.values():
            node.stop()
        self.kube_proxy.stop()
        self.control.stop()
        _flush_rules()
        for node in self.nodes.values():
            _ip(f"addr del {node.address}/24 dev {sandbox.BRIDGE}")
        cgroups.remove_cgroups(self._cgroup)
        shutil.rmtree(self.control.directory / "nodes")

    def _has_default_account(self) -> bool:
        path = "/api/v1/namespaces/default/serviceaccounts"
        accounts = self.control.client().get(path, dict[str, Any])["items"]
        return any(account["metadata"]["name"] == "default" for account in accounts)

    def _write_proxy(self) -> Path:
        """Write kube-proxy's configuration. One serves all nodes and the scheduler, as they share a
        network."""
        path = self.control.directory / "kube-proxy.json"
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.control.kubeconfig("system:kube-proxy"))},
            "mode": "nftables",
            "clusterCIDR": POD_RANGE,
            "hostnameOverride": next(iter(self.nodes)),
            # Each would set a sysctl that only the machine's own network has.
            "conntrack": {
                "maxPerCore": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
        path.write_text(json.dumps(config, indent=1))
        return path


def _service_answers() -> bool:
    with suppress(OSError), socket.create_connection((API_SERVICE_ADDRESS, 443), timeout=1.0):
        return True
    return False


def _flush_rules() -> None:
    said = subprocess.run(["nft", "--json", "list", "tables"], capture_output=True, check=True)
    for entry in json.loads(said.stdout)["nftables"]:
        table = entry.get("table", {})
        if table.get("name") == "kube-proxy":
            subprocess.run(["nft", "delete", "table", table["family"], table["name"]], check=True)


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)
