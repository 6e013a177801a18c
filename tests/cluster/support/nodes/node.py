"""A node: kubelet and containerd in a separate mount namespace, on a shared machine.

The kubelet's device plugins are always in `/var/lib/kubelet`, and containerd resolves a hostPath.
So every node mounts its own: its disk at `/var/lib` and `/etc`, its logs at `/var/log`, and a
`/run` that a power cut erases. The network is the sandbox's.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc

from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host import cgroups
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import node_files
from tests.cluster.support.programs import binaries, busybox

_READY_SECONDS = 90.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NodeError(Exception):
    """A node refused something: names the node, the thing, and why."""


class RealNode:
    """`number` 1 is `node-1`, 172.31.0.11, with pods in 10.244.1.0/24."""

    def __init__(
        self,
        control: ControlPlane,
        number: int,
        *,
        cgroup: str,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        """*configuration*: what its KubeletConfiguration has beside that of all nodes."""
        self.name = f"node-{number}"
        self.address = f"172.31.0.{10 + number}"
        self.pod_range = f"10.244.{number}.0/24"
        self.directory = control.directory / "nodes" / self.name
        self.logs = control.logs / self.name
        self._control = control
        self._client = control.client()
        self._cgroup = f"{cgroup}/{self.name}"
        self._configuration = configuration or {}
        for directory in (self._disk, self._etc, self.logs):
            directory.mkdir(parents=True)
        # Links to paths that exist only while the node is on, so that tests can name them before.
        self.root = self.directory / "root"
        self._namespace = self.directory / "namespace"
        self._on = self._process("node", ["unshare", "--mount", "/bin/sh", "-euc", self._mounts()])
        self.containerd = self._process("containerd", self._containerd_command())
        self.kubelet = self._process("kubelet", self._kubelet_command())

    def start(self) -> None:
        """Switch the node on. Return when the API server reports it ready."""
        for part in ("system", "pods"):
            cgroups.create(f"{self._cgroup}/{part}")
        self._on.start()
        self._link(self.root, f"/proc/{self._on.pid}/root")
        self._link(self._namespace, f"/proc/{self._on.pid}/ns/mnt")
        wait_for(
            (self.root / "run/on").exists,
            f"{self.name} has its mounts",
            _READY_SECONDS,
            of=self._on,
        )
        self.containerd.start()
        self.wait_containerd()
        if not self._busybox.exists():
            busybox.write_images(self._busybox)
            self.import_image(self._busybox)
        self.kubelet.start()
        self.wait_ready()

    def stop(self) -> None:
        """Cut its power: kubelet, containerd, shims and all pods' processes end at one moment.

        Its disk stays, its `/run` does not, and the API server hears nothing.
        """
        cgroups.kill(self._cgroup)
        for process in (self.kubelet, self.containerd, self._on):
            process.kill()  # already dead: this only records it
        cgroups.remove_cgroups(self._cgroup)
        for link in (self.root, self._namespace):
            link.unlink(missing_ok=True)

    def wait_containerd(self) -> None:
        """Return when containerd accepts calls."""
        what = f"containerd of {self.name} answers"
        wait_for(self._containerd_answers, what, _READY_SECONDS, of=self.containerd)

    def wait_ready(self) -> None:
        """Return when the kubelet of this start has reported the node ready."""
        wait_for(self._is_ready, f"{self.name} is ready", _READY_SECONDS, of=self.kubelet)

    def import_image(self, archive: Path) -> None:
        """Import the images of an OCI archive. Raises NodeError."""
        ended = self.enter(
            [str(binaries.containerd() / "ctr"), "-n=k8s.io", "images", "import", str(archive)]
        )
        if ended.returncode != 0:
            raise NodeError(f"{self.name}: {archive} was not imported: {ended.stderr}")

    def enter(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run *command* in the node's mount namespace. For files alone, use `root`."""
        return subprocess.run(
            [*self._entered(), *command], capture_output=True, text=True, check=False
        )

    @property
    def _disk(self) -> Path:
        return self.directory / "disk"

    @property
    def _etc(self) -> Path:
        return self.directory / "etc"

    @property
    def _busybox(self) -> Path:
        return self.directory / "busybox.tar"

    def _mounts(self) -> str:
        """Make the mounts private first, so that none is visible outside. Then share them inside,
        as containers may request mount propagation in both directions."""
        return f"""
            mount --no-mtab -t tmpfs -o mode=755 tmpfs /run
            mount --bind {self._disk} /var/lib
            mount --bind {self.logs} /var/log
            test -e {self._etc}/kubernetes || cp -a /etc/. {self._etc}
            mount --bind {self._etc} /etc
            mount --make-rshared /
            mkdir -p /var/lib/kubelet /run/lock /run/netns /run/cdi {node_files.STATIC_PODS}
            touch /run/on
            exec sleep 2147483647
        """

    def _containerd_command(self) -> list[str]:
        node_files.write_network(self.directory, self.pod_range)
        config = node_files.write_containerd(self.directory)
        return [*self._entered(), str(binaries.containerd() / "containerd"), f"--config={config}"]

    def _kubelet_command(self) -> list[str]:
        authority = self._control.authority
        certificate, key = authority.server(self.name, self.name, self.address)
        config = node_files.write_kubelet(
            self.directory,
            address=self.address,
            authority=authority.certificate,
            certificate=certificate,
            key=key,
            cgroup=f"{self._cgroup}/pods",
            more=self._configuration,
        )
        kubeconfig = self._control.kubeconfig(f"system:node:{self.name}", "system:nodes")
        return [
            *(*self._entered(), str(self._control.programs / "kubelet")),
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            "--v=2",
        ]

    def _process(self, name: str, command: Sequence[str]) -> LoggedProcess:
        return LoggedProcess(
            f"{name} of {self.name}",
            cgroups.joined(f"{self._cgroup}/system", command),
            self._control.logs / f"{self.name}.{name}.log",
            env={"PATH": f"{binaries.containerd()}:{_PATH}"},
        )

    def _entered(self) -> list[str]:
        return ["nsenter", f"--mount={self._namespace}", "--"]

    def _containerd_answers(self) -> bool:
        """Make the kubelet's first call, after which it ends if containerd is not there yet."""
        address = f"unix://{self.root}{node_files.CONTAINERD_SOCKET}"
        with grpc.insecure_channel(address) as channel, suppress(grpc.RpcError):
            version: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/runtime.v1.RuntimeService/Version"
            )
            version(b"", timeout=2.0)
            return True
        return False

    def _is_ready(self) -> bool:
        """True if the node is ready and its lease is recent: a node that was cut off stays ready
        for a while."""
        found = self._get(f"/api/v1/nodes?fieldSelector=metadata.name={self.name}")
        leases = self._get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        conditions = [
            condition["status"]
            for node in found
            for condition in node["status"].get("conditions", [])
            if condition["type"] == "Ready"
        ]
        renewed = [
            datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()
            for lease in leases
            if lease["metadata"]["name"] == self.name
        ]
        return conditions == ["True"] and any(when > _started_at(self.kubelet) for when in renewed)

    def _get(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._client.get(path, dict[str, Any])["items"]
        return items

    @staticmethod
    def _link(link: Path, target: str) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _started_at(process: LoggedProcess) -> float:
    """Return when *process* started, in seconds of the clock."""
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
