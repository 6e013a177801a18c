"""Real API servers and a real scheduler accept everything that is deployed, word for word."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.support.api.chart import template
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.api.schemas import write_schemas
from tests.cluster.support.api.small_objects import pod
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.programs import binaries
from tests.manifests import (
    BASE,
    DAEMONSET,
    OVERLAYS,
    STATIC_POD,
    WEBHOOK,
    documents,
    write_overlay,
)
from tests.value_pages import Example, examples

SCHEDULER = "system:serviceaccount:kube-system:linkwise-scheduler"
POLICIES = {
    item["metadata"]["name"]
    for part in ("extender", "plugin")
    for item in documents(BASE / part / "admission.yaml")
    if item["kind"] == "ValidatingAdmissionPolicy"
}


def overlay(name: str) -> str:
    return str(DAEMONSET / "overlays" / name)


@pytest.fixture(scope="module", params=[binaries.NEWEST, *binaries.OLDER])
def some_version(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """An API server of one version without controllers, so that objects are only stored."""
    directory = run_directory / f"manifests-{request.param}"
    control = ControlPlane(directory, version=request.param, controllers=False)
    control.start()
    yield control
    control.stop()


@pytest.fixture(params=[*OVERLAYS, *(f"{name} and the webhook" for name in WEBHOOK)])
def deployed(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the directory of one deployment."""
    name, _, webhook = str(request.param).partition(" ")
    return str(write_overlay(tmp_path, name, *WEBHOOK[name])) if webhook else overlay(name)


def test_every_api_server_takes_every_overlay(some_version: ControlPlane, deployed: str) -> None:
    said = some_version.kubectl(*("apply", "--dry-run=server", "--validate=strict", "-k", deployed))
    objects = list(yaml.safe_load_all(some_version.kubectl("kustomize", deployed)))
    assert said.count("created (server dry run)") == len(objects) > 10


@pytest.mark.parametrize("example", examples(), ids=str)
def test_every_api_server_takes_the_chart_with_the_values_of_each_page(
    some_version: ControlPlane, example: Example, tmp_path: Path
) -> None:
    """Without what belongs to another cluster: its Service range, Prometheus Operator's kinds."""
    own = ["extender.service.clusterIP=", "podMonitors.enabled=false"]
    (tmp_path / example.file).write_text(yaml.safe_dump(example.values))
    given = f"--values={tmp_path / example.file}"
    manifests = template(given, *(f"--set={value}" for value in own), namespace="default")
    said = some_version.kubectl(
        *("apply", "--dry-run=server", "--validate=strict", "-f", "-"), stdin=manifests
    )
    objects = [each for each in yaml.safe_load_all(manifests) if each]
    assert said.count("created (server dry run)") == len(objects) > 10


def test_a_field_that_does_not_exist_would_be_refused(some_version: ControlPlane) -> None:
    """Shows that the tests above check fields."""
    wrong = some_version.kubectl("kustomize", overlay("kubeadm")).replace("maxSurge", "maxSurges")
    with pytest.raises(Exception, match=r'unknown field "spec\.updateStrategy.*maxSurges"'):
        some_version.kubectl(
            *("apply", "--dry-run=server", "--validate=strict", "-f", "-"), stdin=wrong
        )


@pytest.fixture(scope="module")
def conform(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    """Return kubeconform's judgement of manifests, by the API server's own schemas."""
    location = write_schemas(control_plane, tmp_path_factory.mktemp("made") / "schemas")

    def judge(manifests: str) -> dict[str, Any]:
        ended = subprocess.run(
            [
                str(binaries.kubeconform() / "kubeconform"),
                *("-strict", "-summary", "-output=json", f"-schema-location={location}"),
            ],
            input=manifests,
            capture_output=True,
            text=True,
            check=False,
        )
        answer: dict[str, Any] = json.loads(ended.stdout)
        return answer

    return judge


def test_kubeconform_finds_nothing_wrong(
    control_plane: ControlPlane, conform: Callable[[str], dict[str, Any]], deployed: str
) -> None:
    manifests = control_plane.kubectl("kustomize", deployed)
    judged = conform(manifests)
    assert judged["resources"] == []
    count = len(list(yaml.safe_load_all(manifests)))
    assert judged["summary"] == {"valid": count, "invalid": 0, "errors": 0, "skipped": 0}


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("maxUnavailable: 1", "maxUnavailables: 1", "additional properties 'maxUnavailables'"),
        ("replicas: 2", 'replicas: "2"', "got string, want integer"),
        ("containerPort: 9402", "hostPort: 9402", "missing property 'containerPort'"),
        ("kind: DaemonSet", "kind: DaemonSets", "could not find schema for DaemonSets"),
    ],
)
def test_kubeconform_would_find_what_is_wrong(
    control_plane: ControlPlane,
    conform: Callable[[str], dict[str, Any]],
    right: str,
    wrong: str,
    said: str,
) -> None:
    manifests = control_plane.kubectl("kustomize", overlay("kubeadm"))
    assert right in manifests
    judged = conform(manifests.replace(right, wrong))
    assert said in json.dumps(judged["resources"]).replace('\\"', '"')


def test_the_policies_expressions_fit_the_types_they_speak_of(control_plane: ControlPlane) -> None:
    """The API server compiles them untyped; a controller reports type errors."""
    control_plane.kubectl("apply", "-k", overlay("kubeadm"))

    def policies() -> list[dict[str, Any]]:
        asked = ("get", "validatingadmissionpolicies", "-o=json")
        found: list[dict[str, Any]] = json.loads(control_plane.kubectl(*asked))["items"]
        return [each for each in found if each["metadata"]["name"].startswith("linkwise-")]

    wait_for(
        lambda: all("observedGeneration" in each.get("status", {}) for each in policies()),
        "the policies have been looked at",
    )
    warned = {
        each["metadata"]["name"]: each["status"].get("typeChecking", {}) for each in policies()
    }
    assert warned.keys() == POLICIES
    assert not any(warned.values()), warned


def test_the_second_scheduler_needs_no_more_rights_than_it_is_given(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """With the deployed configuration. Only the API server's address and the files differ, and no
    extender is called, since this pod requests no GPU."""
    control_plane.kubectl("apply", "-k", overlay("second-scheduler"))
    kubeconfig = control_plane.kubeconfig(SCHEDULER, "system:serviceaccounts")
    config = yaml.safe_load(
        (Path(overlay("second-scheduler")) / "scheduler-config.yaml").read_text()
    )
    config["clientConnection"] = {"kubeconfig": str(kubeconfig)}
    certificate, key = control_plane.authority.client(SCHEDULER)
    config["extenders"][0]["tlsConfig"] |= {
        "caFile": str(control_plane.ca),
        "certFile": str(certificate),
        "keyFile": str(key),
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    program = str(control_plane.programs / "kube-scheduler")
    flags = [f"--config={file}", f"--authentication-kubeconfig={kubeconfig}"]
    scheduler = LoggedProcess(
        "linkwise-scheduler",
        [program, *flags, f"--authorization-kubeconfig={kubeconfig}", "--bind-address=127.0.0.1"],
        control_plane.logs / "linkwise-scheduler.log",
    )
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-1"},
        "status": {
            "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    ours = pod("ours")
    ours["metadata"]["namespace"] = "default"
    ours["spec"] |= {"schedulerName": "linkwise-scheduler", "tolerations": [{"operator": "Exists"}]}
    asked = ("get", "pod", "ours", "-o=jsonpath={.spec.nodeName}")
    control_plane.kubectl("create", "-f=-", stdin=yaml.safe_dump_all([node, ours]))
    scheduler.start()
    try:
        wait_for(
            lambda: control_plane.kubectl(*asked) == "node-1", "the pod is bound", of=scheduler
        )
        holder = control_plane.kubectl(
            *("get", "lease", "linkwise-scheduler", "-n=kube-system"),
            "-o=jsonpath={.spec.holderIdentity}",
        )
        assert holder
        assert "forbidden" not in scheduler.log.read_text()
    finally:
        scheduler.stop()


def test_the_static_pods_manifest_is_changed_by_the_documented_command(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """As kubeadm and `kubectl patch --local` read it."""
    manifest = tmp_path / "kube-scheduler.yaml"
    manifest.write_text(yaml.safe_dump(STATIC_POD))
    for kind, patch in (("json", "0+json"), ("strategic", "1+strategic")):
        file = Path(overlay("kubeadm")) / f"kube-scheduler{patch}.yaml"
        patched = control_plane.kubectl(
            *("patch", "--local", f"--type={kind}", f"-f={manifest}"),
            *(f"--patch-file={file}", "-o=yaml"),
        )
        manifest.write_text(patched)
    made = yaml.safe_load(patched)
    (container,) = made["spec"]["containers"]
    before = STATIC_POD["spec"]["containers"][0]["command"]
    config = "/etc/kubernetes/linkwise/scheduler-config.yaml"
    assert container["command"] == [*before, f"--config={config}"]
