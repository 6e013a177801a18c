"""The chart on real nodes: install, upgrade, roll back, uninstall, and what goes wrong on the way.

The release is in a namespace of its own, so every name of an account, certificate or policy that
does not follow the namespace shows here.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from linkwise.topology import names
from tests.cluster.support.api.chart import CHART, NEEDED, HelmError, helm, helm_command, values
from tests.cluster.support.api.control_plane import ControlPlane, KubectlError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import shell
from tests.cluster.support.nodes.cluster import RealCluster
from tests.cluster.support.nodes.deployment import wait_until_none
from tests.cluster.support.nodes.installation import (
    create,
    given,
    running,
    start_ready,
    started,
    traces,
    write_simulated,
)

NAMESPACE, RELEASE = "gpus", "team-a"
IN, SYSTEM = f"-n={NAMESPACE}", "-n=kube-system"
# Nodes without GPUs, and a cluster without DNS.
GIVEN = (
    f"--values={NEEDED}",
    *values(
        image__registry="",
        image__pullPolicy="Never",  # the nodes have it
        plugin__simulatedMachines=True,
        extender__service__clusterIP="10.96.0.94",
    ),
)
WAIT = ("--wait", "--timeout=180s")
DOCS = Path(__file__).parents[2] / "docs" / "operating"
NOTEBOOK = """
apiVersion: v1
kind: Pod
metadata: {name: notebook}
spec:
  containers:
    - {name: main, image: registry.example/vision:1, resources: {limits: {nvidia.com/gpu: 2}}}
"""
WAITS = "--field-selector spec.nodeName=,spec.schedulerName=linkwise-scheduler"
FREED = (
    "kubectl get pods -A --field-selector spec.nodeName= "
    "-o go-template-file=daemonset/waiting-pods.tpl > waiting.sh\nsh waiting.sh"
)
# What the greeting of `make empty-cluster` and the pages say, in the order of a first try.
TRIED = f"""
set -e
within() {{ for _ in $(seq $1); do sh -c "$2" && return; sleep 1; done; echo "never: $2"; exit 1; }}
{shell.INSTALL}
kubectl linkwise doctor
LOADS
kubectl apply -f examples/04-four-gpu-workers.yaml
within 60 'kubectl linkwise gangs | grep "vision *running"'
kubectl apply -f notebook.yaml
within 60 'kubectl get pod notebook | grep Running'
sed 's/: vision$/: next/' examples/04-four-gpu-workers.yaml | kubectl apply -f -
within 60 'kubectl linkwise explain gang/next | grep "no room for the whole gang"'
within 60 'kubectl get events | grep "GangWaiting.*gang default/next: no room for the whole gang"'
within 150 'kubectl linkwise idle | grep "gang default/next *8  pod default/notebook"'
helm uninstall linkwise -n kube-system --wait
test $(kubectl get pods -l job-name=vision | grep -c "Running *0 ") = 2
test $(kubectl get pods -A {WAITS} -o name | grep -c pod/next-) = 2
{FREED}
within 90 'test $(kubectl get pods -l job-name=next -o yaml | grep -c "Name: default-sched") = 2'
! kubectl get pods | grep SchedulingGated
kubectl delete jobs,pods --all
kubectl -n kube-system delete configmap played-loads
exit 42
"""
RIGHTS = "serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"


@pytest.fixture(scope="module")
def cluster(run_directory: Path) -> Iterator[RealCluster]:
    """Two nodes with the images and an empty namespace; no Linkwise yet."""
    cluster = RealCluster(run_directory / "chart")
    start_ready(cluster)
    shell.import_examples(cluster)
    cluster.control.kubectl("create", "namespace", NAMESPACE)
    cluster.control.kubectl("create", "namespace", "other")
    wait_for(
        lambda: len(listed(cluster.control, "serviceaccounts,configmaps", IN)) == 2,
        "Kubernetes has put its own objects into the namespace",
    )
    yield cluster
    cluster.stop()


@pytest.fixture
def control(cluster: RealCluster) -> ControlPlane:
    return cluster.control


@pytest.fixture
def untouched(cluster: RealCluster, control: ControlPlane) -> Iterator[None]:
    """After the test, the cluster has the objects of before, and the nodes are as before."""
    before, on_nodes = everything(control), traces(cluster)
    assert not [each for each in before if "linkwise" in each]
    yield
    wait_until_none(lambda: sorted(everything(control) ^ before))
    wait_until_none(lambda: sorted(traces(cluster) ^ on_nodes))


def everything(control: ControlPlane) -> set[str]:
    """Return kind, namespace and name of every object. Events expire by themselves."""
    kinds = control.kubectl("api-resources", "--verbs=list", "-o=name").split()
    return listed(control, ",".join(kind for kind in kinds if not kind.startswith("events")), "-A")


def listed(control: ControlPlane, kinds: str, where: str) -> set[str]:
    columns = "-o=custom-columns=:kind,:metadata.namespace,:metadata.name"
    found = control.kubectl("get", kinds, where, columns, "--no-headers", "--ignore-not-found")
    return {" ".join(line.split()) for line in found.splitlines() if line.strip()}


def released(control: ControlPlane, *arguments: str, place: str = IN) -> str:
    return helm(*arguments, place, f"--kubeconfig={control.kubeconfig()}")


def authority(control: ControlPlane) -> str:
    """Return what would be new if an upgrade had emptied an object that the programs fill."""
    found = ("secret/linkwise-extender", "secret/linkwise-scheduler", "secret/linkwise-webhook")
    asked = ("get", IN, *found, "configmap/linkwise-extender", "-o=jsonpath={.items[*].data}")
    data = control.kubectl(*asked)
    assert len(data) > 2000
    hook = ("get", "mutatingwebhookconfiguration", "linkwise")
    return data + control.kubectl(*hook, "-o=jsonpath={.webhooks[*].clientConfig.caBundle}")


def terms(control: ControlPlane) -> list[int]:
    leases = ("get", IN, "lease/linkwise-extender", "lease/linkwise-scheduler", "-o=json")
    found = json.loads(control.kubectl(*leases))["items"]
    return [each["spec"]["leaseTransitions"] for each in found]


def arguments_of(control: ControlPlane, deployment: str) -> list[str]:
    path = "-o=jsonpath={.spec.template.spec.containers[0].args}"
    found: list[str] = json.loads(control.kubectl("get", IN, "deployment", deployment, path))
    return found


def placed(control: ControlPlane, name: str) -> dict[str, Any]:
    """Run a pod of four GPUs that names no scheduler, and check that it has what was planned."""
    create(control, name, 4)
    pod = running(control, name)
    assert pod["spec"]["schedulerName"] == "linkwise-scheduler"
    (chosen,) = json.loads(pod["metadata"]["annotations"][names.GPUS]).values()
    assert len(chosen) == 4
    assert given(control, name) == set(chosen)
    return pod


def delete(control: ControlPlane, pod: str) -> None:
    control.kubectl("delete", "pod", pod, "--grace-period=1")


@pytest.mark.usefixtures("untouched")
def test_a_release_places_pods_and_its_changes_harm_nobody_and_it_leaves_nothing(
    control: ControlPlane,
) -> None:
    said = released(control, "install", RELEASE, str(CHART), *GIVEN, *WAIT)
    notes = [line for line in said.splitlines() if line.startswith("  kubectl ")]
    assert len(notes) == 5
    for line in notes:
        control.kubectl(*line.split()[1:])
    assert f"export KUBECTL_LINKWISE_EXTENDER={NAMESPACE}/linkwise-extender:http" in said
    pod = placed(control, "planned")
    before = authority(control)

    # Changed: a flag, and the second scheduler's file, which restarts it.
    changed = values(
        extender__flags={"call-timeout": "14s", "reserve-share": 0.4}, scheduler__flags={"v": 2}
    )
    released(control, "upgrade", RELEASE, str(CHART), *GIVEN, *changed, *WAIT)
    assert "--reserve-share=0.4" in arguments_of(control, "linkwise-extender")
    config = control.kubectl("get", IN, "configmap", "linkwise-scheduler-config", "-o=yaml")
    assert "httpTimeout: 14s" in config
    assert authority(control) == before
    assert min(terms(control)) >= 0
    delete(control, placed(control, "planned-by-the-second")["metadata"]["name"])

    released(control, "rollback", RELEASE, "1", *WAIT)
    assert "--reserve-share=0.4" not in arguments_of(control, "linkwise-extender")
    assert authority(control) == before
    delete(control, placed(control, "planned-by-the-third")["metadata"]["name"])
    assert started(running(control, "planned")) == started(pod)

    said = released(control, "uninstall", RELEASE, *WAIT)
    assert "uninstalled" in said
    assert started(running(control, "planned")) == started(pod)
    delete(control, "planned")


@pytest.mark.usefixtures("untouched")
def test_a_gang_an_idle_notebook_and_nothing_left_as_the_pages_say(
    control: ControlPlane, tmp_path: Path
) -> None:
    """The gang that waits for the notebook waits on until Linkwise is uninstalled."""
    page = (DOCS / "moves-and-idle.md").read_text()
    assert FREED in (DOCS / "upgrade-and-uninstall.md").read_text()
    commands, played = re.findall(r"^```\w*\n(.*?)^```", page.split("## Try it")[1], re.S | re.M)
    (tmp_path / "played-loads.yaml").write_text(played)
    (tmp_path / "notebook.yaml").write_text(NOTEBOOK)
    for name in ("daemonset", "examples"):
        (tmp_path / name).symlink_to(CHART.parents[1] / name)
    (tmp_path / "typed").write_text(TRIED.replace("LOADS", commands))
    with (tmp_path / "typed").open() as typed:
        assert shell.run_shell(control, tmp_path, 0, typed) == 42


@pytest.mark.usefixtures("untouched")
def test_a_release_is_uninstalled_without_its_hook_in_two_steps(
    cluster: RealCluster, control: ControlPlane
) -> None:
    """The first forced one leaves what the plugins need; they clean their nodes, and it goes."""
    on_nodes = traces(cluster)
    alone = (*GIVEN, *values(extender__enabled=False))
    released(control, "install", RELEASE, str(CHART), *alone, *WAIT)
    with pytest.raises(HelmError, match="failed to delete release"):
        released(control, "uninstall", RELEASE, "--no-hooks")
    wait_until_none(lambda: sorted(traces(cluster) ^ on_nodes))
    released(control, "uninstall", RELEASE, "--no-hooks", *WAIT)


@pytest.mark.usefixtures("untouched")
def test_an_uninstallation_that_a_node_holds_up_deletes_nothing_else_and_is_repeated(
    cluster: RealCluster, control: ControlPlane
) -> None:
    alone = (*GIVEN, *values(extender__enabled=False))
    released(control, "install", RELEASE, str(CHART), *alone, *WAIT)
    needed = listed(control, RIGHTS, IN)
    node = cluster.nodes["node-2"]
    node.kubelet.kill()
    with pytest.raises(HelmError, match="Job/gpus/linkwise-removal not ready"):
        released(control, "uninstall", RELEASE, "--timeout=20s")
    assert listed(control, RIGHTS, IN) >= needed
    wait_for(lambda: not listed(control, "jobs", IN), "the Job is gone")
    node.kubelet.start()
    node.wait_ready()
    released(control, "uninstall", RELEASE, *WAIT)


@pytest.mark.usefixtures("untouched")
def test_a_cluster_has_one_release(control: ControlPlane) -> None:
    alone = (*GIVEN, *values(extender__enabled=False))
    released(control, "install", RELEASE, str(CHART), *alone, *WAIT)
    before = everything(control)
    said = "has Linkwise already: release team-a in namespace gpus"
    for place in ("-n=other", IN):
        with pytest.raises(HelmError, match=said):
            released(control, "install", "second", str(CHART), *GIVEN, place=place)
    wrong = values(plugin__mode="both")
    with pytest.raises(HelmError, match="at '/plugin/mode': value must be one of"):
        released(control, "upgrade", RELEASE, str(CHART), *alone, *wrong)
    assert everything(control) == before
    released(control, "uninstall", RELEASE, *WAIT)


@pytest.mark.usefixtures("untouched")
def test_an_installation_that_was_killed_half_way_is_repeated(control: ControlPlane) -> None:
    command = helm_command("install", RELEASE, str(CHART), *GIVEN, *WAIT, IN)
    half = subprocess.Popen([*command, f"--kubeconfig={control.kubeconfig()}"])
    wait_for(
        lambda: "DaemonSet gpus linkwise-plugin" in listed(control, "daemonsets", IN),
        "a part of it is installed",
    )
    os.kill(half.pid, signal.SIGKILL)
    half.wait()
    with pytest.raises(HelmError):
        released(control, "install", RELEASE, str(CHART), *GIVEN)
    # As documented: take away what is there, and begin again.
    released(control, "uninstall", RELEASE, *WAIT)
    wait_until_none(lambda: sorted(listed(control, "pods", IN)))  # they create the Leases too
    leases = ("lease/linkwise-extender", "lease/linkwise-scheduler")
    control.kubectl("delete", IN, "--ignore-not-found", *leases)
    released(control, "install", RELEASE, str(CHART), *GIVEN, *WAIT)
    delete(control, placed(control, "planned")["metadata"]["name"])
    released(control, "uninstall", RELEASE, *WAIT)


@pytest.mark.usefixtures("untouched")
def test_helm_adopts_what_kubectl_applied_and_running_pods_do_not_notice(
    control: ControlPlane, tmp_path: Path
) -> None:
    control.kubectl("apply", "-k", str(write_simulated(tmp_path)))
    for part in ("deployment/linkwise-scheduler", "daemonset/linkwise-plugin"):
        control.kubectl("rollout", "status", SYSTEM, part, "--timeout=120s")
    create(control, "planned", 4, scheduler="linkwise-scheduler")
    pod = running(control, "planned")
    certificates = ("get", SYSTEM, "secret/linkwise-extender", "-o=jsonpath={.data}")
    before = control.kubectl(*certificates)
    same = (*GIVEN, *values(webhook__enabled=False))

    with pytest.raises(HelmError, match="cannot be imported into the current release"):
        released(control, "install", RELEASE, str(CHART), *same, place=SYSTEM)
    adopt = ("--take-ownership", "--force-conflicts", *WAIT)
    released(control, "install", RELEASE, str(CHART), *same, *adopt, place=SYSTEM)
    assert control.kubectl(*certificates) == before
    assert started(running(control, "planned")) == started(pod)
    delete(control, "planned")
    create(control, "planned-again", 4, scheduler="linkwise-scheduler")
    running(control, "planned-again")
    delete(control, "planned-again")

    released(control, "uninstall", RELEASE, *WAIT, place=SYSTEM)
    generated = [each for each in everything(control) if "linkwise-scheduler-config-" in each]
    assert len(generated) == 1, "as documented, the one whose name kustomize made stays"
    control.kubectl("delete", SYSTEM, "configmap", generated[0].split()[-1])


def is_deleted(control: ControlPlane, namespace: str) -> bool:
    """The API server learns in its own time that a policy is gone."""
    try:
        control.kubectl("delete", "namespace", namespace)
    except KubectlError:
        return False
    return True


@pytest.mark.usefixtures("untouched")
def test_its_namespace_is_not_deleted_before_it_and_there_is_a_way_out_if_it_was(
    control: ControlPlane,
) -> None:
    doomed = "-n=doomed"
    alone = (*GIVEN, *values(extender__enabled=False), *WAIT)
    released(control, "install", RELEASE, str(CHART), *alone, "--create-namespace", place=doomed)
    with pytest.raises(KubectlError, match=r"Uninstall Linkwise, then delete again"):
        control.kubectl("delete", "namespace", "doomed")
    control.kubectl("delete", "validatingadmissionpolicybinding", "linkwise-nodes-first")
    wait_for(lambda: is_deleted(control, "doomed"), "the API server lets the namespace go")

    # As documented.
    with pytest.raises(HelmError, match="not found"):
        released(control, "uninstall", RELEASE, place=doomed)
    with pytest.raises(HelmError, match=f"helm install {RELEASE} in that namespace again"):
        released(control, "install", "second", str(CHART), *alone)
    again = ("--create-namespace", *alone)
    released(control, "install", RELEASE, str(CHART), *again, place=doomed)
    released(control, "uninstall", RELEASE, *WAIT, place=doomed)
    wait_for(lambda: is_deleted(control, "doomed"), "nothing keeps the namespace")
