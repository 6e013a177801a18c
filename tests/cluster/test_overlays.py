"""The overlays on real nodes, from `kubectl apply -k` to a removal that leaves nothing behind.

The cluster's scheduler is a stock one. The kubeadm overlay's script makes its static pod call the
extender, and restores it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane, KubectlError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes.cluster import RealCluster
from tests.cluster.support.nodes.deployment import wait_until_none
from tests.cluster.support.nodes.installation import (
    create,
    given,
    running,
    start_ready,
    started,
    traces,
    write_overlay,
    write_simulated,
    written_on,
)
from tests.cluster.support.nodes.node import RealNode
from tests.cluster.support.programs import binaries
from tests.manifests import DAEMONSET, STATIC_POD

SYSTEM = "-n=kube-system"
INSTALL, CHECK, UNINSTALL = (f"sh install.sh {task}" for task in ("install", "check", "uninstall"))


@pytest.fixture(scope="module")
def cluster(run_directory: Path) -> Iterator[RealCluster]:
    """Two nodes with the images and the label for their simulated machine; no Linkwise yet."""
    cluster = RealCluster(run_directory / "overlays")
    start_ready(cluster)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def untouched(cluster: RealCluster) -> set[str]:
    """Return what the nodes contain before the installation."""
    return traces(cluster)


@pytest.fixture
def control(cluster: RealCluster) -> ControlPlane:
    return cluster.control


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    return write_simulated(tmp_path)


@pytest.fixture
def plugin_only(tmp_path: Path) -> Path:
    return write_overlay(
        tmp_path,
        DAEMONSET / "overlays" / "plugin-only",
        components=[DAEMONSET / "components" / "simulated-machines"],
    )


@pytest.fixture
def kubeadm(tmp_path: Path) -> Path:
    return write_overlay(
        tmp_path,
        DAEMONSET / "overlays" / "kubeadm",
        components=[DAEMONSET / "components" / "simulated-machines"],
    )


def test_a_second_scheduler_places_pods_that_name_it_and_updates_and_a_removal_harm_nobody(
    cluster: RealCluster, control: ControlPlane, untouched: set[str], simulated: Path
) -> None:
    control.kubectl("apply", "-k", str(simulated))
    for part in (
        "deployment/linkwise-extender",
        "deployment/linkwise-scheduler",
        "daemonset/linkwise-plugin",
    ):
        control.kubectl("rollout", "status", SYSTEM, part, "--timeout=120s")
    create(control, "planned", 4, scheduler="linkwise-scheduler")
    pod = running(control, "planned")
    (chosen,) = json.loads(pod["metadata"]["annotations"][names.GPUS]).values()
    assert given(control, "planned") == set(chosen)
    assert len(chosen) == 4

    update(cluster, control)
    assert started(running(control, "planned")) == started(pod)

    with pytest.raises(KubectlError, match="still carries Linkwise's labels") as refused:
        control.kubectl("delete", "-k", str(simulated))
    assert str(refused.value).count("denied request") == 5  # what the plugins still need
    wait_until_none(lambda: sorted(traces(cluster) ^ untouched))
    assert started(running(control, "planned")) == started(pod)

    control.kubectl("delete", "-k", str(simulated), "--ignore-not-found")
    wait_until_none(lambda: left(control))
    control.kubectl("delete", "pod", "planned", "--grace-period=1")


def test_the_plugin_alone_gives_gpus_to_what_a_stock_scheduler_binds_and_goes_without_a_trace(
    cluster: RealCluster, control: ControlPlane, untouched: set[str], plugin_only: Path
) -> None:
    control.kubectl("apply", "-k", str(plugin_only))
    control.kubectl("rollout", "status", SYSTEM, "daemonset/linkwise-plugin", "--timeout=120s")
    create(control, "unplanned", 4)
    pod = running(control, "unplanned")
    assert names.PLAN not in pod["metadata"].get("annotations", {})
    assert len(given(control, "unplanned")) == 4
    control.kubectl("delete", "pod", "unplanned", "--grace-period=1")

    # As documented: once the plugins have left, one command removes the rest silently.
    control.kubectl("delete", SYSTEM, "daemonset", "linkwise-plugin", "--cascade=foreground")
    assert traces(cluster) == untouched
    control.kubectl("delete", "-k", str(plugin_only), "--ignore-not-found")
    wait_until_none(lambda: left(control))


def test_a_static_pod_of_kubeadm_is_told_of_the_extender_and_forgets_it_again(
    cluster: RealCluster, control: ControlPlane, untouched: set[str], kubeadm: Path
) -> None:
    control_plane_node = cluster.nodes["node-1"]
    with static_scheduler(cluster, control_plane_node):
        control.kubectl("apply", "-k", str(kubeadm))
        for part in ("deployment/linkwise-extender", "daemonset/linkwise-plugin"):
            control.kubectl("rollout", "status", SYSTEM, part, "--timeout=120s")
        manifest = control_plane_node.root / "etc/kubernetes/manifests/kube-scheduler.yaml"
        stock = manifest.read_text()
        assert "kube-scheduler calls Linkwise" in type_in(control_plane_node, INSTALL)
        wait_scheduler(control, asks_extender=True)

        create(control, "planned", 4)
        pod = running(control, "planned")
        (chosen,) = json.loads(pod["metadata"]["annotations"][names.GPUS]).values()
        assert given(control, "planned") == set(chosen)
        control.kubectl("delete", "pod", "planned", "--grace-period=1")

        (scheduler,) = schedulers(control)
        renew_scheduler_conf(control, control_plane_node)
        assert "kube-scheduler runs on" in type_in(control_plane_node, INSTALL)
        assert "all is in place" in type_in(control_plane_node, CHECK)
        create(control, "planned-again", 4)
        running(control, "planned-again")
        control.kubectl("delete", "pod", "planned-again", "--grace-period=1")
        assert [started(pod) for pod in schedulers(control)] == [started(scheduler)]

        type_in(control_plane_node, UNINSTALL)
        assert manifest.read_text() == stock
        wait_scheduler(control, asks_extender=False)
        control.kubectl("delete", SYSTEM, "daemonset", "linkwise-plugin", "--cascade=foreground")
        control.kubectl("delete", "-k", str(kubeadm), "--ignore-not-found")
        wait_until_none(lambda: left(control))
        wait_until_none(lambda: sorted(traces(cluster) ^ untouched))
        create(control, "without-gpu", 0)
        running(control, "without-gpu")
        control.kubectl("delete", "pod", "without-gpu", "--grace-period=1")


@contextmanager
def static_scheduler(cluster: RealCluster, node: RealNode) -> Iterator[None]:
    """Run the cluster's scheduler as a static pod of *node*, as kubeadm does."""
    control, etc = cluster.control, node.root / "etc/kubernetes"
    (etc / "admin.conf").write_text(flattened(control, "admin"))
    (etc / "scheduler.conf").write_text(flattened(control, "system:kube-scheduler"))
    usual = control.parts["kube-scheduler"]
    usual.stop()
    manifest = etc / "manifests/kube-scheduler.yaml"
    manifest.write_text(yaml.safe_dump(STATIC_POD))
    try:
        wait_scheduler(control, asks_extender=False)
        yield
    finally:
        manifest.unlink(missing_ok=True)
        usual.start()
    wait_for(lambda: not schedulers(control), "the static pod is gone")


def flattened(control: ControlPlane, user: str) -> str:
    """Return a kubeconfig file without references to other files, as kubeadm creates it."""
    group = "system:masters" if user == "admin" else ""
    as_user = f"--kubeconfig={control.kubeconfig(user, group)}"
    return control.kubectl("config", as_user, "view", "--raw", "--flatten")


def renew_scheduler_conf(control: ControlPlane, node: RealNode) -> None:
    """Replace certificate and key as `kubeadm certs renew scheduler.conf` does."""
    control.authority.client("system:kube-scheduler")
    renewed, conf = flattened(control, "system:kube-scheduler"), "etc/kubernetes/scheduler.conf"
    assert renewed != (node.root / conf).read_text()
    (node.root / conf).write_text(renewed)


def schedulers(control: ControlPlane) -> list[dict[str, Any]]:
    asked = ("get", "pods", SYSTEM, "--selector=component=kube-scheduler", "-o=json")
    found: list[dict[str, Any]] = json.loads(control.kubectl(*asked))["items"]
    return found


def wait_scheduler(control: ControlPlane, *, asks_extender: bool) -> None:
    """Wait until the API server shows the one static pod as ready, with or without the extender."""

    def so() -> bool:
        found = schedulers(control)
        told = [any("linkwise" in word for word in command_of(pod)) for pod in found]
        return told == [asks_extender] and all(map(is_ready, found))

    wait_for(so, f"a ready kube-scheduler that calls the extender: {asks_extender}", 120)


def command_of(pod: dict[str, Any]) -> list[str]:
    (container,) = pod["spec"]["containers"]
    return list(container["command"])


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def type_in(node: RealNode, command: str) -> str:
    """Run a command as a person does in a copy of the overlay's directory; return its output."""
    pages = (DAEMONSET.parent / "docs" / "operating").glob("*.md")
    assert any(f"`{command}`" in page.read_text() for page in pages)
    kubectl = f"PATH={binaries.kubernetes()}:/usr/bin:/bin"
    overlay = DAEMONSET / "overlays" / "kubeadm"
    ended = node.enter(["env", kubectl, "sh", "-euc", f"cd {overlay}; {command}"])
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def update(cluster: RealCluster, control: ControlPlane) -> None:
    """Replace every plugin, and check that the nodes never lose their topology."""
    before = {name: written_on(control, name) for name in cluster.nodes}
    control.kubectl("rollout", "restart", SYSTEM, "daemonset/linkwise-plugin")

    def done() -> bool:
        now = {name: written_on(control, name) for name in cluster.nodes}
        # What its pods do with their GPUs may come meanwhile.
        assert all(set(before[name]) <= set(now[name]) for name in cluster.nodes), now
        asked = ("rollout", "status", SYSTEM, "daemonset/linkwise-plugin", "--watch=false")
        return "successfully rolled out" in control.kubectl(*asked)

    wait_for(done, "every plugin has been replaced", 120)


def left(control: ControlPlane) -> list[str]:
    """Return Linkwise's objects, also those that no manifest names; Events expire by themselves."""
    kinds = control.kubectl("api-resources", "--verbs=list", "-o=name").split()
    asked = ",".join(kind for kind in kinds if not kind.startswith("events"))
    found = control.kubectl("get", asked, "--all-namespaces", "-o=name", "--ignore-not-found")
    return [each for each in found.split() if "linkwise" in each]
