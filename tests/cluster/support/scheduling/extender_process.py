"""The scheduler and the extender without kubelets: nodes that are only objects, the extender as a
process with its deployed rights, and the configuration from `daemonset/`.

A client may create a Node with its status, and a control plane without controllers leaves it alone.
So five thousand GPU machines take seconds, and kube-scheduler sees no difference.
"""

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import urllib3
import yaml

from linkwise.extender.state import noted_places
from linkwise.kube.errors import ApiError
from linkwise.topology import names
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.recorded import recorded_machine
from tests.cluster.support.api.accounts import token
from tests.cluster.support.api.control_plane import ControlPlane, free_port
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for

GPU = names.DEFAULT_RESOURCE
DEPLOYED = Path(__file__).parents[4] / "daemonset/overlays/kubeadm"
# These plugins taint nodes (and no controller removes that), need an account in each namespace, and
# reject a priority without a class.
ADMISSION_OFF = ("TaintNodesByCondition", "ServiceAccount", "Priority")
ACCOUNT = "linkwise-extender"
_ITS_OBJECTS = (ACCOUNT, noted_places.NAME)  # how their names begin
_PUBLISHED = "/api/v1/namespaces/kube-system/configmaps/linkwise-extender"
_RIGHTS = (
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Secret",
    "ConfigMap",
)
_POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def gpu_node(
    name: str, machine: str = "hgx-h100", labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a Node of a recorded machine, as the kubelet and the plugin would fill it in."""
    recorded = recorded_machine(machine, node=name)
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", GPU: str(len(recorded.gpus))}
    hostname = {"kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**hostname, **node_labels(recorded), **(labels or {})},
            "annotations": {names.TOPOLOGY: write_topology(recorded)},
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


class ExtenderProcess:
    """The program as in its Deployment: with a token of its account, which must exist
    (`allow_extender`), and only the rights of its role. kube-scheduler uses `calls`, people use
    `url`. *plain*: without TLS, to measure what TLS costs."""

    def __init__(
        self,
        control: ControlPlane,
        *flags: str,
        address: str = "127.0.0.1",
        plain: bool = False,
    ) -> None:
        ports = [free_port(address) for _ in range(2)]
        self.calls = f"http{'' if plain else 's'}://{address}:{ports[0]}"
        self.url = f"http://{address}:{ports[1]}"
        kubeconfig = control.directory / "linkwise-extender.kubeconfig"
        bearer = {"token": token(control, ACCOUNT)}
        kubeconfig.write_text(control.authority.kubeconfig_text(control.url, ACCOUNT, bearer))
        self.process = LoggedProcess(
            "linkwise-extender",
            [
                str(Path(sys.executable).parent / ACCOUNT),
                f"--kubeconfig={kubeconfig}",
                f"--listen-address={address}",
                f"--listen-port={ports[0]}",
                f"--status-port={ports[1]}",
                *(["--plain-http=true"] if plain else []),
                *flags,
            ],
            control.logs / "linkwise-extender.log",
        )

    def start(self) -> float:
        """Return when the extender is ready, with the seconds that it took."""
        began = time.monotonic()
        self.process.start()
        wait_for(self._ready, "the extender is ready", 120, of=self.process)
        return time.monotonic() - began

    def explain(self, namespace: str, pod: str) -> str:
        return self.get(f"/explain/{namespace}/{pod}?format=text")

    def get(self, path: str) -> str:
        return urllib3.request("GET", f"{self.url}{path}", timeout=30).data.decode()

    def resident_mib(self, what: str = "VmRSS") -> float:
        """Return its resident memory; `VmHWM`: the peak."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        assert found, status
        return int(found[1]) / 1024

    def _ready(self) -> bool:
        try:
            return (
                urllib3.request("GET", f"{self.url}/readyz", timeout=10, retries=False).status
                == 200
            )
        except urllib3.exceptions.HTTPError:
            return False


def allow_extender(control: ControlPlane) -> None:
    """Create the extender's account with its deployed rights, and the objects that it may write but
    not create."""
    _apply(control, _RIGHTS, "apply")


def guard_plans(control: ControlPlane) -> None:
    """Let only the extender write its decisions. Return when the API server enforces that."""
    _apply(control, _POLICIES, "apply")
    wait_guarded(control)


def wait_guarded(control: ControlPlane) -> None:
    """Wait for the policies, which take effect some time after their creation."""
    wait_for(lambda: _is_guarded(control), "the admission policies are in force")


def leave_plans_unguarded(control: ControlPlane) -> None:
    """Remove the policies, as on a cluster without Linkwise. The extender's rights stay."""
    _apply(control, _POLICIES, "delete", "--ignore-not-found")
    wait_for(lambda: not _is_guarded(control), "the admission policies are gone")


def _apply(control: ControlPlane, kinds: Sequence[str], *verb: str) -> None:
    documents = [
        document
        for document in _deployed(control.programs / "kubectl")
        if document["kind"] in kinds and document["metadata"]["name"].startswith(_ITS_OBJECTS)
    ]
    assert {document["kind"] for document in documents} == set(kinds)
    control.kubectl(*verb, "-f", "-", stdin=yaml.safe_dump_all(documents))


def _is_guarded(control: ControlPlane) -> bool:
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "probe", "annotations": {names.PLAN: "of no extender"}},
        "target": {"kind": "Node", "name": "none"},
    }
    try:
        control.client().post("/api/v1/namespaces/default/pods/probe/binding?dryRun=All", binding)
    except ApiError as error:
        # Without the policy the API server finds no such pod.
        return "linkwise-extender-decides" in str(error)
    return False


def scheduler_config(control: ControlPlane, calls: str) -> dict[str, Any]:
    """Return kube-scheduler's deployed configuration with what every cluster changes: the
    extender's address, and the files for mutual TLS. The extender must be ready."""
    config = yaml.safe_load((DEPLOYED / "scheduler-config.yaml").read_text())
    (extender,) = config["extenders"]
    extender = {**extender, "urlPrefix": calls}
    if calls.startswith("https:"):
        extender["tlsConfig"] = {**extender["tlsConfig"], **trust_files(control)}
    else:
        extender = {**extender, "enableHTTPS": False, "tlsConfig": None}
    return {**config, "extenders": [extender]}


def scheduler_env() -> dict[str, str]:
    """Return the deployed environment of kube-scheduler."""
    patch = yaml.safe_load((DEPLOYED / "kube-scheduler1+strategic.yaml").read_text())
    (container,) = patch["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def trust_files(control: ControlPlane) -> dict[str, str]:
    """Write the files as install.sh does on a control plane node; by their names in `tlsConfig`."""
    published = control.client().get(_PUBLISHED, dict[str, Any])
    trusted = control.directory / "linkwise-extender.crt"
    trusted.write_text(published["data"]["ca.crt"])
    certificate, key = control.authority.client("system:kube-scheduler")
    return {"caFile": str(trusted), "certFile": str(certificate), "keyFile": str(key)}


@cache
def _deployed(kubectl: Path) -> tuple[dict[str, Any], ...]:
    made = subprocess.run(
        [kubectl, "kustomize", DEPLOYED], check=True, capture_output=True, text=True
    )
    return tuple(yaml.safe_load_all(made.stdout))
