"""A real control plane: etcd, kube-apiserver and kube-controller-manager; kube-scheduler optional.

Alone it serves tests of the API, of the scheduler and of scale, in which nodes are only objects.
`cluster.RealCluster` adds kubelets. It runs inside the sandbox, whose network is separate, so every
address and port is free.
"""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import urllib3

from linkwise.kube.client import KubeClient
from tests.cluster.support.api.pki import CertificateAuthority
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.programs import binaries

ADDRESS = "172.31.0.1"  # of the sandbox's bridge
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
READY_SECONDS = 120.0
SERVER = ("etcd", "kube-apiserver")
_PORTS = iter(range(20000, 30000))  # below Linux's ephemeral ports, and below NodePorts


class KubectlError(Exception):
    """kubectl failed: the command, and its output."""


class ControlPlane:
    """Without `controllers` nothing taints nodes, creates pods or collects garbage."""

    def __init__(
        self,
        directory: Path,
        *,
        version: str = binaries.NEWEST,
        address: str = ADDRESS,
        controllers: bool = True,
        disable_admission: Sequence[str] = (),
        api_flags: Sequence[str] = (),
        controller_flags: Sequence[str] = (),
    ) -> None:
        self.directory, self.version, self.address = directory, version, address
        self.logs = directory / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.programs = binaries.kubernetes()
        self._older = binaries.kubernetes(version)
        self.authority = CertificateAuthority(directory / "pki")
        self._token_key = self.authority.signing_key("service-account-tokens")
        self._api_port, self._etcd_port = free_port(address), free_port("127.0.0.1")
        self.url = f"https://{address}:{self._api_port}"
        self.parts: dict[str, LoggedProcess] = {}
        self._add("etcd", self._etcd_flags())
        self._add(
            "kube-apiserver",
            [
                *self._api_server_flags(),
                *(
                    [f"--disable-admission-plugins={','.join(disable_admission)}"]
                    if disable_admission
                    else []
                ),
                *api_flags,
            ],
        )
        if controllers:
            flags = [*self._controller_flags(), *controller_flags]
            self._add("kube-controller-manager", flags)

    @property
    def ca(self) -> Path:
        return self.authority.certificate

    def start(self) -> None:
        """Return when the API server is ready; 5 s on a quiet machine."""
        for name in SERVER:
            self.parts[name].start()
        self.wait_ready()
        # Controllers give up if the API server is not ready 10 s after their start.
        for name in self.parts.keys() - SERVER:
            self.parts[name].start()

    def wait_ready(self) -> None:
        """Raises ProcessError with the end of its log if a part of the server has ended."""
        deadline = time.monotonic() + READY_SECONDS
        while not self._ready():
            for name in SERVER:
                self.parts[name].check()
            if time.monotonic() > deadline:
                server = self.parts["kube-apiserver"]
                raise AssertionError(
                    f"kube-apiserver not ready after {READY_SECONDS:g} s:\n{server.log_tail()}"
                )
            time.sleep(0.1)

    def stop(self) -> None:
        for part in reversed(list(self.parts.values())):
            part.stop()
        shutil.rmtree(self.directory / "etcd", ignore_errors=True)

    def kubeconfig(self, user: str = "admin", group: str = "system:masters") -> Path:
        return self.authority.kubeconfig(self.url, user, group)

    def client(self, user: str = "admin", group: str = "system:masters") -> KubeClient:
        return KubeClient.load(kubeconfig=str(self.kubeconfig(user, group)))

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the cluster's administrator and return its output. Raises KubectlError."""
        # By default, kubectl keeps which kinds a server has by its address, and the clusters in
        # sandboxes side by side have the same one.
        own = f"--kubeconfig={self.kubeconfig()}", f"--cache-dir={self.directory / 'kubectl'}"
        ended = subprocess.run(
            [self.programs / "kubectl", *own, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            command = " ".join(arguments)
            raise KubectlError(f"kubectl {command}: exit {ended.returncode}: {ended.stderr}")
        return ended.stdout

    def start_scheduler(
        self,
        config: Mapping[str, object] | None = None,
        *,
        name: str = "kube-scheduler",
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        limited: bool = False,
    ) -> LoggedProcess:
        """Start a kube-scheduler with this KubeSchedulerConfiguration, or with its defaults.
        *limited*: its client keeps its own limits, 50 requests a second after a burst of 100.

        It becomes one of `parts`, so `stop` ends it too.
        """
        whole = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            **(config or {}),
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig("system:kube-scheduler", group="")),
                # The client's own limits would dominate the measurement.
                **({} if limited else {"qps": 5000, "burst": 5000}),
            },
        }
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(whole))
        scheduler = self._add(
            name,
            [f"--config={path}", "--secure-port=0", "--v=2", *flags],
            program="kube-scheduler",
            env=env,
        )
        scheduler.start()
        return scheduler

    def _ready(self) -> bool:
        try:
            # /readyz needs no account, so the certificate is all there is to check.
            with urllib3.PoolManager(ca_certs=str(self.ca), retries=False, timeout=2.0) as pool:
                return pool.request("GET", f"{self.url}/readyz").status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def _add(
        self,
        name: str,
        flags: Sequence[str],
        *,
        program: str = "",
        env: Mapping[str, str] | None = None,
    ) -> LoggedProcess:
        program = program or name
        older = self._older / program
        path = older if older.exists() else self.programs / program
        process = LoggedProcess(name, [str(path), *flags], self.logs / f"{name}.log", env)
        self.parts[name] = process
        return process

    def _etcd_flags(self) -> list[str]:
        url, peers = f"http://127.0.0.1:{self._etcd_port}", free_port("127.0.0.1")
        return [
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-cluster=default=http://127.0.0.1:{peers}",
            "--unsafe-no-fsync",  # nothing here outlives the machine
            "--quota-backend-bytes=4294967296",
            "--log-level=warn",
        ]

    def _api_server_flags(self) -> list[str]:
        certificate, key = self.authority.server(
            "kube-apiserver",
            self.address,
            API_SERVICE_ADDRESS,
            "127.0.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        )
        kubelet_certificate, kubelet_key = self.authority.client(
            "kube-apiserver-kubelet-client", "system:masters"
        )
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self._api_port}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.ca}",
            f"--kubelet-client-certificate={kubelet_certificate}",
            f"--kubelet-client-key={kubelet_key}",
            f"--kubelet-certificate-authority={self.ca}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-account-key-file={self._token_key}",
            f"--service-account-signing-key-file={self._token_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--allow-privileged",
        ]

    def _controller_flags(self) -> list[str]:
        kubeconfig = self.kubeconfig("system:kube-controller-manager", group="")
        return [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--root-ca-file={self.ca}",
            f"--service-account-private-key-file={self._token_key}",
            "--use-service-account-credentials",
            # It creates this directory, by default below /usr/libexec.
            f"--flex-volume-plugin-dir={self.directory / 'volume-plugins'}",
            "--leader-elect=false",
            "--secure-port=0",
        ]


def free_port(address: str) -> int:
    """Return a port without a listener that no connection gets as its ephemeral port, since its
    server may start, or restart, much later."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind((address, port))
            return port
    raise AssertionError(f"no port of {address} is free")
