"""The admission webhook as a process of its own, registered with a real API server.

With the deployed rights and configurations; only where the API server finds it differs: by an
address, as there is no pod behind the Service.
"""

import re
import ssl
import sys
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
    """Several share their certificates; the API server asks the one that was registered."""

    def __init__(self, control: ControlPlane, *flags: str, name: str = ACCOUNT) -> None:
        self._control = control
        self.port = free_port(_HOST)
        control.kubectl("apply", "-f=-", stdin=yaml.safe_dump_all(_of("account.yaml")))
        kubeconfig = control.directory / f"{ACCOUNT}.kubeconfig"
        bearer = {"token": token(control, ACCOUNT)}
        kubeconfig.write_text(control.authority.kubeconfig_text(control.url, ACCOUNT, bearer))
        self.process = LoggedProcess(
            name,
            [
                *(sys.executable, "-m", "linkwise.extender.admission"),
                f"--kubeconfig={kubeconfig}",
                f"--listen-address={_HOST}",
                f"--listen-port={self.port}",
                f"--host={_HOST}",
                *flags,
            ],
            control.logs / f"{name}.log",
        )

    def register(self, **changes: object) -> None:
        """With the API server; *changes* are of every webhook."""
        configurations = _of("configurations.yaml")
        for hook in (hook for each in configurations for hook in each["webhooks"]):
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://{_HOST}:{self.port}{path}"}
            hook |= changes
        self._control.kubectl("apply", "-f=-", stdin=yaml.safe_dump_all(configurations))

    def start(self) -> None:
        self.process.start()

    def wait_asked(self) -> None:
        """Until the API server asks: it hears of a registration when it does."""
        wait_for(self._is_asked, "the webhook is asked", of=self.process)

    def wait_serves(self) -> None:
        """Until it has a certificate, whoever is asked."""
        wait_for(self._serves, "the webhook serves a certificate", of=self.process)

    def certificate(self) -> str:
        """What it serves now, as PEM."""
        return ssl.get_server_certificate((_HOST, self.port), timeout=30)

    def asked(self) -> dict[str, int]:
        """How often it has been asked, by verb."""
        with urllib3.PoolManager(ca_cert_data=self.certificate()) as pool:
            text = pool.request("GET", f"https://{_HOST}:{self.port}/metrics").data.decode()
        counted: dict[str, int] = {}
        for verb, number in re.findall(r'requests_total{.*verb="(\w+)"} ([0-9.]+)', text):
            counted[verb] = counted.get(verb, 0) + int(float(number))
        return counted

    def _serves(self) -> bool:
        with suppress(OSError):  # it does not listen yet, or hangs up
            return bool(self.certificate())
        return False

    def _is_asked(self) -> bool:
        try:
            said = self._control.kubectl(
                *("create", "--dry-run=server", "-f=-", "-o=jsonpath={.spec.schedulingGates}"),
                stdin=yaml.safe_dump(_PROBE),
            )
        except KubectlError:  # where nothing is let in without an answer
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


def _of(file: str) -> list[dict[str, Any]]:
    return documents(_COMPONENT / file)
