"""The admission webhook as a process, registered with a real API server.

Rights and configurations are the deployed ones. Only the URL differs, as there is no pod behind the
Service.
"""

import re
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import urllib3
import yaml

from tests.cluster.support.api.accounts import token
from tests.cluster.support.api.control_plane import ControlPlane, KubectlError, free_port
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for
from tests.manifests import DAEMONSET, documents

ACCOUNT = "linkwise-webhook"
_COMPONENT = DAEMONSET / "components" / "webhook"
_HOST = "127.0.0.1"


class Webhook:
    """Several webhooks share certificates. The API server calls the registered one. *manifests*
    are the deployed ones by file."""

    def __init__(
        self,
        control: ControlPlane,
        *flags: str,
        name: str = ACCOUNT,
        manifests: Callable[[str], list[dict[str, Any]]] = lambda file: documents(
            _COMPONENT / file
        ),
    ) -> None:
        self._control, self._manifests = control, manifests
        self.port = free_port(_HOST)
        control.kubectl("apply", "-f=-", stdin=yaml.safe_dump_all(manifests("account.yaml")))
        kubeconfig = control.directory / f"{ACCOUNT}.kubeconfig"
        bearer = {"token": token(control, ACCOUNT)}
        kubeconfig.write_text(control.authority.kubeconfig_text(control.url, ACCOUNT, bearer))
        self.process = LoggedProcess(
            name,
            [
                *(sys.executable, "-m", "linkwise.webhook"),
                f"--kubeconfig={kubeconfig}",
                f"--listen-address={_HOST}",
                f"--listen-port={self.port}",
                f"--host={_HOST}",
                *flags,
            ],
            control.logs / f"{name}.log",
        )

    def register(self, **changes: object) -> None:
        """Register it with the API server; *changes* apply to every webhook."""
        configurations = self._manifests("configurations.yaml")
        for hook in (hook for each in configurations for hook in each["webhooks"]):
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://{_HOST}:{self.port}{path}"}
            hook |= changes
        self._control.kubectl("apply", "-f=-", stdin=yaml.safe_dump_all(configurations))

    def unregister(self) -> None:
        """Return when the API server no longer calls it."""
        configurations = self._manifests("configurations.yaml")
        self._control.kubectl("delete", "-f=-", stdin=yaml.safe_dump_all(configurations))
        wait_for(lambda: not self._is_asked(), "the webhook is not asked")

    def start(self) -> None:
        self.process.start()

    def wait_asked(self) -> None:
        """Wait until the API server calls it, which takes a moment after the registration."""
        wait_for(self._is_asked, "the webhook is asked", of=self.process)

    def wait_serves(self) -> None:
        """Wait until it has a certificate, whether or not it is registered."""
        wait_for(self._serves, "the webhook serves a certificate", of=self.process)

    def certificate(self) -> str:
        """Return the certificate that it serves now, as PEM."""
        return ssl.get_server_certificate((_HOST, self.port), timeout=30)

    def asked(self) -> dict[str, int]:
        """Return how many requests it got, by verb."""
        with urllib3.PoolManager(ca_cert_data=self.certificate()) as pool:
            text = pool.request("GET", f"https://{_HOST}:{self.port}/metrics").data.decode()
        counted: dict[str, int] = {}
        for verb, number in re.findall(r'requests_total{.*verb="(\w+)"} ([0-9.]+)', text):
            counted[verb] = counted.get(verb, 0) + int(float(number))
        return counted

    def _serves(self) -> bool:
        with suppress(OSError):  # it does not listen yet, or closes the connection
            return bool(self.certificate())
        return False

    def _is_asked(self) -> bool:
        try:
            said = self._control.kubectl(
                *("create", "--dry-run=server", "-f=-", "-o=jsonpath={.spec.schedulingGates}"),
                stdin=yaml.safe_dump(_PROBE),
            )
        except KubectlError:  # if the API server refuses everything without the webhook's answer
            return False
        return "linkwise.dev/plan" in said


_PROBE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "probe",
        "namespace": "default",
        "annotations": {"linkwise.dev/gang": "probe", "linkwise.dev/gang-size": "2"},
    },
    "spec": {
        "containers": [
            {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        ]
    },
}
