"""An operator's real manager as a process, registered with a real API server.

Its resources, rights and webhooks are what its users install. Only the webhooks' URL differs, as
there is no pod behind the Service, and the certificate is the test cluster's.
"""

import base64
import json
import shutil
import subprocess
from typing import Any

import yaml

from tests.cluster.support.api.accounts import token
from tests.cluster.support.api.control_plane import ControlPlane, KubectlError, free_port
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.programs.operators import Operator
from tests.cluster.support.scheduling.workload_pods import wait_defined

_HOST = "127.0.0.1"
# A process stands for the Deployment, and needs no Service; its settings and its certificate are
# files.
_LEFT_OUT = frozenset({"Deployment", "Service", "ConfigMap", "Secret"})
_UNANSWERED = "failed calling webhook"


class OperatorProcess:
    """Create it on a started control plane: it registers at once, and `start` waits until the API
    server calls it."""

    def __init__(self, control: ControlPlane, operator: Operator) -> None:
        self._control, self._operator = control, operator
        self._built = operator.build()
        self._port = free_port(_HOST)
        self._manifests = self._deployed()
        (self._account,) = self._of_kind("ServiceAccount")
        control.kubectl(
            *("apply", "--server-side", "-f=-"), stdin=yaml.safe_dump_all(self._registered())
        )
        wait_defined(control)
        name = operator.name
        self.process = LoggedProcess(
            name,
            [str(self._built / name), f"--kubeconfig={self._kubeconfig()}", self._settings()],
            control.logs / f"{name}.log",
        )

    def start(self) -> None:
        """Some 5 s on a quiet machine."""
        wait_for(lambda: _UNANSWERED in self._refusal(), "its webhooks are registered")
        self.process.start()
        wait_for(
            lambda: _UNANSWERED not in self._refusal(),
            f"{self._operator.name} answers the API server",
            of=self.process,
        )

    def _refusal(self) -> str:
        """Return why the API server takes no pod of the operator's; empty if it does."""
        hooks = [
            hook
            for each in self._of_kind("MutatingWebhookConfiguration")
            for hook in each["webhooks"]
            if any("pods" in rule["resources"] for rule in hook["rules"])
        ]
        keys = {
            expression["key"]
            for hook in hooks
            for expression in hook.get("objectSelector", {}).get("matchExpressions", ())
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "probe",
                "namespace": "default",
                "labels": dict.fromkeys(keys, "probe"),
            },
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }
        try:
            self._control.kubectl("create", "--dry-run=server", "-f=-", stdin=json.dumps(pod))
        except KubectlError as error:
            return str(error)
        return ""

    def _deployed(self) -> list[dict[str, Any]]:
        folder = self._built / self._operator.manifests
        made = subprocess.run(
            [self._control.programs / "kubectl", "kustomize", folder],
            check=True,
            capture_output=True,
            text=True,
        )
        return [each for each in yaml.safe_load_all(made.stdout) if each]

    def _of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self._manifests if each["kind"] == kind]

    def _registered(self) -> list[dict[str, Any]]:
        """Return the manifests with this process behind the webhooks. Changes them."""
        authority = base64.b64encode(self._control.ca.read_bytes()).decode()
        for each in self._manifests:
            for hook in each.get("webhooks", ()):
                path = hook["clientConfig"]["service"]["path"]
                url = f"https://{_HOST}:{self._port}{path}"
                hook["clientConfig"] = {"url": url, "caBundle": authority}
        return [each for each in self._manifests if each["kind"] not in _LEFT_OUT]

    def _kubeconfig(self) -> str:
        name, namespace = (self._account["metadata"][key] for key in ("name", "namespace"))
        bearer = {"token": token(self._control, name, namespace=namespace)}
        path = self._control.directory / f"{self._operator.name}.kubeconfig"
        url, authority = self._control.url, self._control.authority
        path.write_text(authority.kubeconfig_text(url, name, bearer))
        return str(path)

    def _settings(self) -> str:
        name = self._operator.name
        certificates = self._control.directory / f"{name}-certificates"
        certificates.mkdir()
        certificate, key = self._control.authority.server(name, _HOST)
        shutil.copyfile(certificate, certificates / "tls.crt")
        shutil.copyfile(key, certificates / "tls.key")
        settings = {
            "apiVersion": self._operator.settings,
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": "0"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": _HOST, "port": self._port, "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
        }
        path = self._control.directory / f"{name}.json"
        path.write_text(json.dumps(settings))
        return f"--config={path}"
