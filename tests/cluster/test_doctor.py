"""The doctor on a real API server, whose controllers write why they create no pod."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkwise.cli.kubectl import main
from tests.cluster.support.api.chart import template, values
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for

NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {linkwise.dev/gpu-node: "true"}}
status: {capacity: {nvidia.com/gpu: "8"}, allocatable: {nvidia.com/gpu: "8"}}
"""
QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: none, namespace: gpus}
spec: {hard: {pods: "0"}}
"""
LEVEL = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="module")
def control(run_directory: Path) -> Iterator[ControlPlane]:
    directory = run_directory / "doctor"
    control = ControlPlane(directory)
    control.start()
    control.kubectl("create", "namespace", "gpus")
    control.kubectl("label", "namespace", "gpus", f"{LEVEL}=baseline")
    control.kubectl("create", "-f=-", stdin=NODE)
    # Neither the second scheduler nor the extender runs here: nothing answers the doctor but the
    # API server.
    classes = values(plugin__runtimeClassName="", webhook__enabled=False, scheduler__mode="none")
    control.kubectl("apply", "-f=-", stdin=template(*classes, namespace="gpus"))
    yield control
    control.stop()
    shutil.rmtree(directory, ignore_errors=True)


def told(control: ControlPlane) -> str:
    arguments = ("doctor", "--extender=gpus/linkwise-extender:http")
    return CliRunner().invoke(main, [*arguments, f"--kubeconfig={control.kubeconfig()}"]).stdout


def test_it_says_what_refuses_the_plugins_pods_until_one_is_created(control: ControlPlane) -> None:
    wait_for(lambda: "violates PodSecurity" in told(control), "Pod Security is named")
    found = told(control)
    assert "problem  linkwise-plugin: its pods are not created: violates PodSecurity" in found
    assert f"kubectl label namespace gpus {LEVEL}=privileged --overwrite" in found
    assert "label the node" not in found

    control.kubectl("create", "-f=-", stdin=QUOTA)
    control.kubectl("label", "namespace", "gpus", f"{LEVEL}=privileged", "--overwrite")
    control.kubectl("annotate", "daemonset", "-n=gpus", "linkwise-plugin", "now=1")  # tries again
    wait_for(lambda: "exceeded quota: none" in told(control), "the quota is named")

    control.kubectl("delete", "resourcequota", "-n=gpus", "none")
    control.kubectl("annotate", "daemonset", "-n=gpus", "linkwise-plugin", "now=2", "--overwrite")
    wait_for(lambda: "are not created" not in told(control), "a pod was created")
