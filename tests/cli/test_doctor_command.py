"""`kubectl linkwise doctor`, against the extender's own routes and an API server's objects."""

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from linkwise.cli.kubectl import main
from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.run.loop import Loop
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.routes import create_app
from linkwise.serving.certificates.pairs import Lifetime, bundle, make_authority
from linkwise.simulator.api_server import ApiServer
from tests.cli.api_proxy import SERVICE, Proxy, served, write_kubeconfig
from tests.extender.world import ApiObjects, wait_for

ROOT = Path(__file__).parents[2]
DAEMONSETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/linkwise-extender"
CONFIG = "/api/v1/namespaces/kube-system/configmaps/linkwise-extender"
EVENTS = "/api/v1/namespaces/kube-system/events"
OF_SCHEDULER = "/api/v1/namespaces/kube-system/configmaps/linkwise-scheduler-config-8h2k"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/linkwise"
SCHEDULER_CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: linkwise-scheduler}]
extenders:
  - urlPrefix: https://linkwise-extender.kube-system.svc:9402
    managedResources: [{name: nvidia.com/gpu}, {name: nvidia.com/gpu.shared}]
"""


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A cluster of one node that is well, the extender behind its API server."""
    with ApiServer() as server:
        world, metrics = ApiObjects(server), ExtenderMetrics()
        world.add_node("n1")
        metrics.watch_certificates(lambda: {"server": 4e9})
        shell = Loop(Core(CoreSettings()), world.client, metrics)
        shell.start()
        wait_for(lambda: not shell.waits_for())
        with served(create_app(shell, metrics)) as proxy:
            node = world.client.get("/api/v1/nodes/n1", dict[str, Any])
            now = datetime.now(UTC).isoformat()
            spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": now}
            proxy.objects = {
                "/api/v1/nodes": {"items": [node]},
                "/api/v1/pods": {"items": [plugin("n1"), running("linkwise-extender", "n1")]},
                DAEMONSETS: {"items": [{"metadata": {"name": "linkwise-plugin"}}]},
                LEASE: {"spec": spec},
            }
            path = write_kubeconfig(tmp_path / "config", proxy.url)
            monkeypatch.setenv("KUBECONFIG", str(path))
            # The kubernetes package reads the environment when it is imported.
            for module in ("linkwise.cli.proxied", "kubernetes.config.kube_config"):
                monkeypatch.setattr(f"{module}.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
            monkeypatch.setattr("linkwise.cli.kubectl.PASSING_SECONDS", 0.0)
            yield proxy
        shell.stop()


def running(program: str, node: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"{program}-{node}",
            "namespace": "kube-system",
            "labels": {"app.kubernetes.io/name": program},
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "linkwise"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def plugin(node: str) -> dict[str, Any]:
    return running("linkwise-plugin", node)


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


@pytest.mark.usefixtures("proxy")
def test_a_cluster_that_is_well() -> None:
    answer = doctor()
    assert answer.exit_code == 0, answer.output
    assert answer.stdout == (
        "Nothing is missing. Linkwise's plugin runs on 1 node: 1 without a vendor's plugin.\n"
    )
    answer = doctor("-o", "json")
    assert (answer.exit_code, json.loads(answer.stdout)) == (0, {"findings": []})


def test_a_fault_is_named_with_its_place_and_a_way_out(proxy: Proxy) -> None:
    proxy.objects["/api/v1/pods"] = {"items": [running("linkwise-extender", "n1")]}
    answer = doctor()
    assert answer.exit_code == 1
    assert answer.stdout == (
        "problem  n1: no plugin of Linkwise runs, and its annotations are left\n"
        "         start the plugin there, or clean the node "
        "(docs/operating/upgrade-and-uninstall.md#clean-a-node-by-hand)\n"
    )
    (found,) = json.loads(doctor("-o", "json").stdout)["findings"]
    assert (found["level"], found["where"]) == ("problem", ["n1"])


def test_shares_that_the_webhook_leaves_to_another_scheduler(proxy: Proxy) -> None:
    """The ConfigMap of the second scheduler has the name that its pods mount."""
    pods = [plugin("n1"), running("linkwise-extender", "n1"), running("linkwise-webhook", "n1")]
    scheduler = running("linkwise-scheduler", "n1")
    mounted = {"name": "config", "configMap": {"name": OF_SCHEDULER.rpartition("/")[2]}}
    scheduler["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}, mounted]
    flags = ["--scheduler-name=linkwise-scheduler", "--shared-resource=nvidia.com/gpu.shared"]
    proxy.objects["/api/v1/pods"] = {"items": [*pods, scheduler]}
    proxy.objects[OF_SCHEDULER] = {"data": {"config.yaml": SCHEDULER_CONFIG}}
    condition = "object.spec.containers.exists(c, {} in c.resources.limits)"
    called = {"name": "takes-gpus", "expression": condition.format("'nvidia.com/gpu'")}
    authority = make_authority(["linkwise"], datetime.now(UTC), Lifetime(100 * 86400))
    trusted = {"caBundle": base64.b64encode(bundle([authority])).decode()}
    hook = {"clientConfig": trusted, "matchConditions": [called]}
    proxy.objects[HOOKS] = {"webhooks": [hook]}
    pods[2]["spec"]["containers"][0]["args"] = flags[:1]
    found = doctor().stdout.splitlines()
    assert len(found) == 2
    assert found[0].startswith(
        "problem  linkwise-webhook, mutatingwebhookconfiguration linkwise, linkwise-scheduler: "
        "they differ in the resources whose pods Linkwise plans: "
    )
    pods[2]["spec"]["containers"][0]["args"] = flags
    assert "mutatingwebhookconfiguration linkwise has nvidia.com/gpu;" in doctor().stdout
    shares = condition.format("'nvidia.com/gpu' in c || 'nvidia.com/gpu.shared'")
    called["expression"] = shares
    assert doctor().stdout.startswith("Nothing is missing.")
    proxy.objects[OF_SCHEDULER] = {"data": {"config.yaml": "profiles: 3"}}
    assert "unknown  configmap of the scheduler: cannot be read" in doctor().stdout


def test_why_the_api_server_takes_no_pod_of_the_plugin(proxy: Proxy) -> None:
    message = 'violates PodSecurity "baseline:latest"'
    refused = {
        "metadata": {"name": "a", "creationTimestamp": datetime.now(UTC).isoformat()},
        "involvedObject": {"kind": "DaemonSet", "name": "linkwise-plugin"},
        "reason": "FailedCreate",
        "message": f'Error creating: pods "linkwise-plugin-x7" is forbidden: {message}',
    }
    proxy.objects[EVENTS] = {"items": [refused]}
    proxy.objects["/api/v1/pods"] = {"items": [running("linkwise-extender", "n1")]}
    answer = doctor()
    assert f"problem  linkwise-plugin: its pods are not created: {message}\n" in answer.stdout
    assert "kubectl label namespace kube-system pod-security" in answer.stdout
    assert "label the node" not in answer.stdout


def of_vendor(name: str, vendor: str) -> dict[str, Any]:
    container = {"name": "plugin", "args": [f"--resource-name={vendor}.com/gpu"]}
    spec = {"containers": [container], "nodeSelector": {vendor: "yes"}}
    return {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}


def test_both_vendors_daemonsets_are_read_without_the_extender_too(proxy: Proxy) -> None:
    proxy.refusal = ("503 Service Unavailable", "ServiceUnavailable", "no endpoints available")
    both = [of_vendor("linkwise-plugin", "nvidia"), of_vendor("linkwise-plugin-amd", "amd")]
    proxy.objects[DAEMONSETS] = {"items": both}
    status = {"capacity": {"amd.com/gpu": "8"}, "allocatable": {"amd.com/gpu": "8"}}
    proxy.objects["/api/v1/nodes"] = {"items": [{"metadata": {"name": "a1"}, "status": status}]}
    what = "outside the nodeSelector and affinity of linkwise-plugin-amd: pods are placed by count"
    assert f"note     a1: {what}\n" in doctor().stdout


def test_linkwise_in_another_namespace_is_looked_for_there(proxy: Proxy) -> None:
    proxy.service = SERVICE.replace("kube-system", "gpus")
    proxy.objects = {
        path.replace("kube-system", "gpus"): body for path, body in proxy.objects.items()
    }
    there = ("--extender", "gpus/linkwise-extender:http")
    assert doctor(*there).stdout.startswith("Nothing is missing.")
    proxy.objects["/api/v1/nodes"] = proxy.objects["/api/v1/pods"] = {"items": []}
    assert "kubectl -n gpus describe daemonset linkwise-plugin" in doctor(*there).stdout


def test_an_extender_that_does_not_answer_is_a_finding_beside_the_others(proxy: Proxy) -> None:
    del proxy.objects[DAEMONSETS]
    proxy.refusal = ("503 Service Unavailable", "ServiceUnavailable", "no endpoints available")
    answer = doctor()
    assert answer.exit_code == 1
    assert "problem  extender: the extender at kube-system/linkwise-extender:http" in answer.stdout


def test_what_may_not_be_read_is_said(proxy: Proxy) -> None:
    proxy.objects["/api/v1/nodes"] = {"items": "none"}
    answer = doctor()
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith("unknown  nodes: cannot be read: ")


@pytest.mark.parametrize(("age_days", "status"), [(10, 0), (95, 1)])
def test_the_authority_that_the_extender_publishes(
    proxy: Proxy, age_days: float, status: int
) -> None:
    made = datetime.now(UTC) - timedelta(days=age_days)
    authority = make_authority(["linkwise"], made, Lifetime(100 * 86400))
    proxy.objects[CONFIG] = {"data": {"ca.crt": bundle([authority]).decode()}}
    assert doctor().exit_code == status


def test_every_page_that_it_names_exists() -> None:
    source = "".join(path.read_text() for path in (ROOT / "cli/linkwise/cli/doctor").glob("*.py"))
    pages = set(re.findall(r'"((?:docs/)?[\w/.-]+\.md)(#[\w-]+)?"', source))
    assert len(pages) > 8
    for page, anchor in pages:
        path = ROOT / page if page.startswith("docs/") else ROOT / "docs/operating" / page
        headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}
        assert anchor.removeprefix("#") in {"", *anchors}, (page, anchor)
