"""What is deployed says what the program does: same flags, routes, paths and permissions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from prometheus_client import CollectorRegistry

from linkwise.plugin.__main__ import main
from linkwise.plugin.app import create_app
from linkwise.plugin.settings import KUBELET_DIR, POD_RESOURCES_SOCKET, Settings
from linkwise.simulator.api_server.patches import json_patch, strategic
from linkwise.topology import names
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from tests.manifests import BASE, DAEMONSET, documents, granted, the

FILES = BASE / "plugin"
DEFAULTS = Settings(node_name="n1")
DOCS = DAEMONSET.parent / "docs"
POLICY = "linkwise-plugin-own-node"


@pytest.fixture
def pod() -> dict[str, Any]:
    spec = the(FILES, "DaemonSet")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


def test_only_flags_that_exist_are_passed(
    container: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "from-the-downward-api"))
    assert isinstance(main, click.Command)
    params = main.make_context("linkwise-plugin", list(container["args"])).params
    assert params["node_name"] == "from-the-downward-api"
    assert params["resource_name"] == DEFAULTS.resource_name
    assert params["listen_port"] == container["ports"][0]["containerPort"] == DEFAULTS.listen_port


def test_every_setting_has_a_flag_and_every_default_is_the_settings_own() -> None:
    params = main.make_context("linkwise-plugin", ["--node-name", "n1"]).params
    assert (params.pop("no_driver"), params.pop("log_level")) == ("wait", "info")
    assert params.pop("log_format") == "text"
    assert Settings(**params) == DEFAULTS


def test_treatments_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINKWISE_PLUGIN_TREAT", "xid-94=unhealthy nvlink-down=note")
    params = main.make_context("linkwise-plugin", ["--node-name", "n1"]).params
    assert params["treat"] == ("xid-94=unhealthy", "nvlink-down=note")


def test_the_probes_ask_routes_that_exist(container: dict[str, Any]) -> None:
    app = create_app(CollectorRegistry(), lambda: "")
    routes = {rule.rule for rule in app.url_map.iter_rules()}
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in routes


def test_the_policy_lets_in_prometheus_alone_and_out_to_the_api_server_and_the_kubelet() -> None:
    policy = the(FILES, "NetworkPolicy")["spec"]
    (way_in,) = policy["ingress"]
    assert way_in["ports"] == [{"port": DEFAULTS.listen_port}]
    (source,) = way_in["from"]
    said = source["namespaceSelector"]["matchLabels"]
    assert said == {"kubernetes.io/metadata.name": "monitoring"}
    to_api_server, to_kubelet = policy["egress"]
    assert to_api_server.keys() == {"ports"}
    assert to_kubelet == {"ports": [{"port": 10250}]}


def test_the_kubelets_directories_are_mounted_where_the_defaults_look(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    hosts, mounts = mounted(pod, container)
    assert hosts.keys() == mounts.keys()
    same = {name for name, path in mounts.items() if path == hosts[name]}
    kubelets = {str(KUBELET_DIR), str(POD_RESOURCES_SOCKET.parent)}
    assert {mounts[name] for name in same} == kubelets | {*map(str, DEFAULTS.cdi_directories)}
    assert len(mounts) == len(same) + 1  # and the host's /dev


def test_the_hosts_device_files_are_looked_at_where_they_are_mounted_and_not_written(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    params = main.make_context("p", ["--node-name", "n1", *container["args"]]).params
    hosts, mounts = mounted(pod, container)
    (name,) = (name for name, path in hosts.items() if path == "/dev")
    assert mounts[name] == str(params["host_dev"])
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == name)
    assert mount["readOnly"] is True
    assert mount["recursiveReadOnly"] == "IfPossible"
    assert params["pass_device_specs"] is True


def test_the_hosts_shared_memory_and_terminals_are_hidden_behind_nothing(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """They are mounts of their own below /dev, so that a read-only /dev leaves them writable."""
    (empty,) = (volume["name"] for volume in pod["volumes"] if "emptyDir" in volume)
    hidden = {
        mount["mountPath"]: mount["readOnly"]
        for mount in container["volumeMounts"]
        if mount["name"] == empty
    }
    assert hidden == {"/host/dev/shm": True, "/host/dev/pts": True}


def mounted(
    pod: dict[str, Any], container: dict[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
    """By volume of the host: where it is there, and where in the container."""
    hosts = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in pod["volumes"]
        if "hostPath" in volume
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    return hosts, {name: path for name, path in mounts.items() if name in hosts}


def test_no_more_is_allowed_than_what_is_called() -> None:
    assert granted(the(FILES, "ClusterRole")) == {
        ("nodes", "get"),
        ("nodes", "list"),
        ("nodes", "watch"),
        ("nodes", "patch"),
        ("pods", "list"),
        ("pods", "watch"),
        ("resourceslices", "list"),
        ("resourceslices", "watch"),
        ("nodes/configz", "get"),
        ("noderesourcetopologies", "get"),
    }
    assert granted(the(FILES, "Role")) == {("daemonsets", "get")}
    account = the(FILES, "ServiceAccount")["metadata"]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        (subject,) = the(FILES, kind)["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


def test_it_asks_for_its_own_daemonset_and_may(container: dict[str, Any]) -> None:
    meta = the(FILES, "DaemonSet")["metadata"]
    params = main.make_context("p", ["--node-name", "n1", *container["args"]]).params
    assert params["daemonset"] == f"{meta['namespace']}/{meta['name']}"
    assert the(FILES, "Role")["metadata"]["namespace"] == meta["namespace"]
    assert the(FILES, "Role")["rules"][0]["resourceNames"] == [meta["name"]]


def test_one_plugin_at_a_time_is_replaced_and_never_two_are_on_a_node() -> None:
    update = the(FILES, "DaemonSet")["spec"]["updateStrategy"]
    assert update["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def in_policy(variable: str) -> str:
    """The expression of a variable of the policy on Nodes, on one line."""
    variables = the(FILES, "ValidatingAdmissionPolicy", POLICY)["spec"]["variables"]
    (found,) = (each["expression"] for each in variables if each["name"] == variable)
    return str(found)


def test_the_policy_lets_it_write_every_label_and_annotation_that_it_writes() -> None:
    vendors = yaml.safe_load(in_policy("vendorsLabels"))
    peoples = yaml.safe_load(in_policy("peoplesLabels"))
    machines = [recorded_machine(name) for name in machine_names()]
    for machine in (*machines, replace(machines[0], vendor="amd")):
        for label in node_labels(machine):
            assert label in vendors or label.startswith(names.PREFIX)
            assert label not in peoples
    policy = " ".join(in_policy("foreignAnnotations").split())
    assert f"[{', '.join(map(repr, names.BY_PLUGIN))}]" in policy


def test_the_policy_knows_the_account_that_the_program_runs_under(pod: dict[str, Any]) -> None:
    meta = the(FILES, "ServiceAccount")["metadata"]
    (condition,) = the(FILES, "ValidatingAdmissionPolicy", POLICY)["spec"]["matchConditions"]
    account = f"system:serviceaccount:{meta['namespace']}:{meta['name']}"
    assert condition["expression"] == f"request.userInfo.username == '{account}'"
    assert pod["serviceAccountName"] == meta["name"]


def test_what_cleaning_a_node_needs_is_held_as_long_as_a_node_is_labelled() -> None:
    spec = the(FILES, "ValidatingAdmissionPolicy", "linkwise-nodes-first")["spec"]
    guarded = {
        (resource, name)
        for rule in spec["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ["of the binding"])
    }
    assert guarded == {
        (f"{item['kind'].lower()}s", item["metadata"]["name"])
        for item in documents(FILES / "account.yaml")
    } | {("namespaces", "of the binding")}
    binding = the(FILES, "ValidatingAdmissionPolicyBinding", "linkwise-nodes-first")["spec"]
    (expression,) = binding["paramRef"]["selector"]["matchExpressions"]
    for name in machine_names():
        assert expression["key"] in node_labels(recorded_machine(name))
    assert expression["key"] in spec["validations"][0]["expression"]


def patched(pod: dict[str, Any], component: Path) -> dict[str, Any]:
    """The pod of the DaemonSet with the patches of a component."""
    daemonset: dict[str, Any] = {"spec": {"template": {"spec": pod}}}
    for each in documents(component)[0]["patches"]:
        patch = yaml.safe_load(each["patch"])
        daemonset = (json_patch if isinstance(patch, list) else strategic)(daemonset, patch)
    spec: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


def test_simulated_machines_need_no_driver_and_no_nvidia_runtime(
    pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paths of the component's patches are those of the DaemonSet."""
    played = patched(pod, DAEMONSET / "components" / "simulated-machines" / "kustomization.yaml")
    assert "runtimeClassName" not in played
    (container,) = played["containers"]
    assert [each["name"] for each in container["env"]] == ["LINKWISE_PLUGIN_NODE_NAME"]
    monkeypatch.setenv("LINKWISE_PLUGIN_NODE_NAME", "n1")
    params = main.make_context("p", list(container["args"])).params
    label = params["machine_from_label"]
    terms = "requiredDuringSchedulingIgnoredDuringExecution"
    (term,) = played["affinity"]["nodeAffinity"][terms]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": label, "operator": "Exists"}]}
    assert label in in_policy("peoplesLabels")


def test_in_front_no_device_files_are_looked_at_and_the_socket_is_in_what_is_mounted(
    pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    component = DAEMONSET / "components" / "in-front" / "kustomization.yaml"
    placed = patched(pod, component)
    (container,) = placed["containers"]
    monkeypatch.setenv("LINKWISE_PLUGIN_NODE_NAME", "n1")
    params = main.make_context("p", list(container["args"])).params
    assert params["in_front"]
    assert params["host_dev"] == DEFAULTS.host_dev
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {str(KUBELET_DIR), str(POD_RESOURCES_SOCKET.parent)}
    assert {volume["name"] for volume in placed["volumes"]} == set(mounts.values())
    assert KUBELET_DIR in DEFAULTS.registry_socket.parents
    for told in (component, DOCS / "in-front.md"):
        assert f"{DEFAULTS.registry_socket}" in told.read_text()


def test_observing_mounts_nothing_but_podresources(
    pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    observing = patched(pod, DAEMONSET / "components" / "observe" / "kustomization.yaml")
    (container,) = observing["containers"]
    monkeypatch.setenv("LINKWISE_PLUGIN_NODE_NAME", "n1")
    params = main.make_context("p", list(container["args"])).params
    assert params["observe"]
    assert params["host_dev"] == DEFAULTS.host_dev
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == str(POD_RESOURCES_SOCKET.parent)
    assert [volume["name"] for volume in observing["volumes"]] == [mount["name"]]


@pytest.mark.parametrize(
    ("missing", "status", "text"), [("", 200, "ok\n"), ("no GPUs: x", 503, "no GPUs: x\n")]
)
def test_readiness_says_what_is_missing(missing: str, status: int, text: str) -> None:
    answer = create_app(CollectorRegistry(), lambda: missing).test_client().get("/readyz")
    assert (answer.status_code, answer.text) == (status, text)
