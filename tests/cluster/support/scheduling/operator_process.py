"""An operator's real manager as a process, registered with a real API server.

Its resources, rights and webhooks are what its users install. Only the webhooks' address differs,
as there is no pod behind the Service, and so does their certificate, if the manager does not issue
it. As in its container, the manager has a /tmp of its own, where controller-runtime looks for it.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3
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
_LEFT_OUT = frozenset({"Deployment", "Service", "ConfigMap", "Secret", "APIService"})
_UNANSWERED = "failed calling webhook"
_IN_OWN_TMP = 'mount --bind "$0" /tmp && exec "$@"'
_SETTINGS = "settings.json"
_CONFIGURATION = "controller_manager_config.yaml"


class OperatorProcess:
    """Create it on a started control plane: it registers at once, and `start` waits until the API
    server calls it."""

    def __init__(self, control: ControlPlane, operator: Operator) -> None:
        self._control, self._operator = control, operator
        self._built = operator.build()
        self._port, self._health_port = free_port(_HOST), free_port(_HOST)
        self._manifests = self._deployed()
        (self._account,) = self._of_kind("ServiceAccount")
        registered = {"kind": "List", "apiVersion": "v1", "items": self._registered()}
        control.kubectl("apply", "--server-side", "-f=-", stdin=json.dumps(registered))
        wait_defined(control)
        self._tmp = control.directory / f"{operator.name}-tmp"
        self._certificates = self._tmp / "k8s-webhook-server" / "serving-certs"
        self._fill_tmp()
        name = operator.name
        flags = [f"--config=/tmp/{_SETTINGS}"] if self._configuration() else []
        flags += [
            flag.format(host=_HOST, port=self._port, health=self._health_port)
            for flag in operator.flags
        ]
        self.process = LoggedProcess(
            name,
            [
                *("unshare", "--mount", "sh", "-c", _IN_OWN_TMP, str(self._tmp)),
                *(f"/tmp/{name}", f"{operator.kubeconfig}=/tmp/kubeconfig", *flags),
            ],
            control.logs / f"{name}.log",
            {"TMPDIR": "/tmp"},
        )

    def start(self) -> None:
        """Some 5 s on a quiet machine."""
        hooked = bool(self._pod_hooks())
        if hooked:
            wait_for(lambda: _UNANSWERED in self._refusal(), "its webhooks are registered")
        self.process.start()
        name = self._operator.name
        if self._operator.issues_certificate:
            wait_for(self._mount_certificate, f"{name} has a certificate", of=self.process)
        wait_for(self._is_ready, f"{name} is ready", of=self.process)
        if hooked:
            wait_for(
                lambda: _UNANSWERED not in self._refusal(),
                f"{name} answers the API server",
                of=self.process,
            )

    def _is_ready(self) -> bool:
        url = f"http://{_HOST}:{self._operator.ready.format(health=self._health_port)}"
        try:
            return urllib3.request("GET", url, timeout=10, retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def _mount_certificate(self) -> bool:
        """Do what the kubelet does once the manager has filled its Secret."""
        (secret,) = self._of_kind("Secret")
        name, namespace = (secret["metadata"][key] for key in ("name", "namespace"))
        found = self._control.kubectl("get", "secret", name, f"-n={namespace}", "-o=json")
        data = json.loads(found).get("data", {})
        for file, text in data.items():
            (self._certificates / file).write_bytes(base64.b64decode(text))
        return bool(data)

    def _pod_hooks(self) -> list[dict[str, Any]]:
        return [
            hook
            for each in self._of_kind("MutatingWebhookConfiguration")
            for hook in each["webhooks"]
            if any("pods" in rule["resources"] for rule in hook["rules"])
        ]

    def _refusal(self) -> str:
        """Return why the API server takes no pod of the operator's; empty if it does."""
        keys = {
            expression["key"]
            for hook in self._pod_hooks()
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
        made = subprocess.run(
            [self._control.programs / "kubectl", "kustomize", self._kustomization()],
            check=True,
            capture_output=True,
            text=True,
        )
        # The loader in Python takes 10 s for the resources of an operator.
        return [each for each in yaml.load_all(made.stdout, yaml.CSafeLoader) if each]

    def _kustomization(self) -> Path:
        operator = self._operator
        if not operator.left_out:
            return self._built / operator.manifests
        copy = self._control.directory / f"{operator.name}-manifests"
        shutil.copytree(self._built / operator.folder, copy / operator.folder)
        folder = copy / operator.manifests
        path = folder / "kustomization.yaml"
        whole = yaml.safe_load(path.read_text())
        whole["resources"].remove(operator.left_out)
        path.write_text(yaml.safe_dump(whole))
        return folder

    def _of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self._manifests if each["kind"] == kind]

    def _registered(self) -> list[dict[str, Any]]:
        """Return the manifests with this process behind the webhooks. Changes them."""
        authority = base64.b64encode(self._control.ca.read_bytes()).decode()
        issues = self._operator.issues_certificate
        for each in self._manifests:
            for hook in (*each.get("webhooks", ()), *_conversions(each)):
                service = hook["clientConfig"]["service"]
                if issues:
                    service["port"] = self._port
                else:
                    url = f"https://{_HOST}:{self._port}{service['path']}"
                    hook["clientConfig"] = {"url": url, "caBundle": authority}
            if each["kind"] == "Service":
                # The certificate that the manager issues has the Service's name.
                each["spec"] = {"type": "ExternalName", "externalName": _HOST}
        left_out = _LEFT_OUT - {"Service", "Secret"} if issues else _LEFT_OUT
        return [each for each in self._manifests if each["kind"] not in left_out]

    def _fill_tmp(self) -> None:
        """Write what the manager reads, and the manager."""
        operator = self._operator
        self._certificates.mkdir(parents=True)
        shutil.copy2(self._built / operator.name, self._tmp)
        (self._tmp / "kubeconfig").write_text(self._kubeconfig())
        if self._configuration():
            (self._tmp / _SETTINGS).write_text(json.dumps(self._settings()))
        if not operator.issues_certificate:
            certificate, key = self._control.authority.server(operator.name, _HOST)
            shutil.copyfile(certificate, self._certificates / "tls.crt")
            shutil.copyfile(key, self._certificates / "tls.key")

    def _kubeconfig(self) -> str:
        name, namespace = (self._account["metadata"][key] for key in ("name", "namespace"))
        bearer = {"token": token(self._control, name, namespace=namespace)}
        return self._control.authority.kubeconfig_text(self._control.url, name, bearer)

    def _configuration(self) -> dict[str, Any]:
        """Return the manager's file in the manifests; empty if flags configure it."""
        files = (each.get("data", {}).get(_CONFIGURATION) for each in self._of_kind("ConfigMap"))
        return dict(yaml.safe_load(next(filter(None, files), "{}")))

    def _settings(self) -> dict[str, Any]:
        found = self._configuration()
        certificates = "certManagement" if "certManagement" in found else "internalCertManagement"
        return {
            **found,
            "health": {"healthProbeBindAddress": f"{_HOST}:{self._health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": _HOST, "port": self._port},
            "leaderElection": {"leaderElect": False},
            certificates: {"enable": self._operator.issues_certificate},
            **self._operator.settings,
        }


def _conversions(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the webhook that converts between versions of a custom resource."""
    if manifest["kind"] != "CustomResourceDefinition":
        return []
    return [hook for hook in [manifest["spec"].get("conversion", {}).get("webhook")] if hook]
