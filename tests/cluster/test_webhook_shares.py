"""Pods with shares on a real API server, with the webhook as the chart deploys it for them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.support.api.chart import CHART, NEEDED, helm, values
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.scheduling.webhook import Webhook

GPU, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
OURS, USUAL = "linkwise-scheduler", "default-scheduler"


def rendered(file: str) -> list[dict[str, Any]]:
    text = helm(
        *("template", "linkwise", str(CHART), "--namespace=kube-system"),
        *(f"--show-only=templates/webhook/{file}", f"--values={NEEDED}"),
        *values(sharedResources=[SHARED, SLICE]),
    )
    return [each for each in yaml.safe_load_all(text) if each]


def flags() -> list[str]:
    """What the chart says to the webhook about pods; the rest is about its place."""
    (found,) = (each for each in rendered("deployment.yaml") if each["kind"] == "Deployment")
    given = found["spec"]["template"]["spec"]["containers"][0]["args"]
    return [flag for flag in given if flag.startswith(("--shared-resource", "--scheduler-name"))]


@pytest.fixture(scope="module")
def control(run_directory: Path) -> Iterator[ControlPlane]:
    directory = run_directory / "webhook-shares"
    control = ControlPlane(directory, controllers=False, disable_admission=["ServiceAccount"])
    control.start()
    try:
        webhook = Webhook(control, *flags(), manifests=rendered)
        try:
            webhook.register(timeoutSeconds=30, failurePolicy="Fail")
            webhook.start()
            webhook.wait_asked()
            yield control
        finally:
            webhook.process.stop()
    finally:
        control.stop()
    shutil.rmtree(directory, ignore_errors=True)


def taking(resource: str, name: str = "main") -> dict[str, Any]:
    return {"name": name, "image": "none", "resources": {"limits": {resource: 1}}}


def scheduler_of(control: ControlPlane, **spec: Any) -> str:
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    asked = ("create", "--dry-run=server", "-f=-", "-o=jsonpath={.spec.schedulerName}")
    return control.kubectl(*asked, stdin=yaml.safe_dump(made))


@pytest.mark.parametrize(
    ("resource", "scheduler"),
    [(GPU, OURS), (SHARED, OURS), (SLICE, OURS), ("nvidia.com/mig-2g.20gb", USUAL), ("cpu", USUAL)],
)
def test_pods_go_to_the_scheduler_that_asks_about_them(
    control: ControlPlane, resource: str, scheduler: str
) -> None:
    assert scheduler_of(control, containers=[taking(resource)]) == scheduler
    warm = {"initContainers": [taking(resource, "warm")], "containers": [taking("cpu")]}
    assert scheduler_of(control, **warm) == scheduler
