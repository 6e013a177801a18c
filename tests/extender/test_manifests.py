"""What is deployed says what the programs do: same flags, routes, port and permissions."""

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from linkwise.extender.__main__ import command
from linkwise.extender.app import create_app
from linkwise.extender.metrics import Metrics
from linkwise.extender.recognise.kinds import READ
from linkwise.extender.settings import Settings
from linkwise.simulator.api_server.patches import json_patch
from linkwise.topology import names
from linkwise.topology.names import DEFAULT_RESOURCE
from tests.manifests import BASE, DAEMONSET, STATIC_POD, documents, granted, the

FILES = BASE / "extender"
CONFIGS = {
    name: DAEMONSET / "overlays" / name / "scheduler-config.yaml"
    for name in ("kubeadm", "second-scheduler")
}


def config_of(overlay: str) -> dict[str, Any]:
    (config,) = documents(CONFIGS[overlay])
    return config


@pytest.fixture
def container() -> dict[str, Any]:
    (found,) = the(FILES, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(params=CONFIGS)
def extender(request: pytest.FixtureRequest) -> dict[str, Any]:
    (found,) = config_of(request.param)["extenders"]
    assert isinstance(found, dict)
    return found


def test_the_deployment_passes_only_flags_that_exist(container: dict[str, Any]) -> None:
    context = command.make_context("linkwise-extender", list(container["args"]))

    assert context.params["resource_name"] == DEFAULT_RESOURCE
    assert context.params["gang_timeout"] == Settings().gang_timeout_seconds
    assert context.params["listen_port"] == container["ports"][0]["containerPort"]
    assert not isinstance(command, click.Group)


def test_kube_scheduler_is_given_the_routes_that_exist(extender: dict[str, Any]) -> None:
    app = create_app(NoShell(), Metrics())  # type: ignore[arg-type]
    posts = {rule.rule for rule in app.url_map.iter_rules() if "POST" in (rule.methods or ())}

    verbs = {value for key, value in extender.items() if key.endswith("Verb")}
    assert {f"/{verb}" for verb in verbs} == posts


def test_the_service_leads_to_the_port_that_the_program_listens_on() -> None:
    service = the(FILES, "Service")
    (port,) = service["spec"]["ports"]
    assert port["port"] == Settings().listen_port
    labels = the(FILES, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (allowed,) = the(FILES, "NetworkPolicy")["spec"]["ingress"]
    assert allowed["ports"] == [{"port": Settings().listen_port}]


def test_a_scheduler_in_a_pod_finds_the_service_by_name() -> None:
    meta, (port,) = the(FILES, "Service")["metadata"], the(FILES, "Service")["spec"]["ports"]
    (extender,) = config_of("second-scheduler")["extenders"]
    assert extender["urlPrefix"] == (
        f"http://{meta['name']}.{meta['namespace']}.svc:{port['port']}"
    )


def test_a_scheduler_on_its_hosts_network_finds_the_service_by_the_address_it_is_given() -> None:
    (overlay,) = documents(DAEMONSET / "overlays" / "kubeadm" / "kustomization.yaml")
    (service,) = (patch for patch in overlay["patches"] if patch["target"]["kind"] == "Service")
    (address,) = (step["value"] for step in yaml.safe_load(service["patch"]))
    (extender,) = config_of("kubeadm")["extenders"]
    assert extender["urlPrefix"] == f"http://{address}:{Settings().listen_port}"


def test_both_ways_to_configure_the_scheduler_say_the_same_but_for_the_address() -> None:
    (first,), (second,) = (config_of(overlay)["extenders"] for overlay in CONFIGS)
    assert first | {"urlPrefix": ""} == second | {"urlPrefix": ""}


def test_the_static_pod_is_given_the_file_and_the_directory_it_is_in() -> None:
    (steps,) = documents(DAEMONSET / "overlays" / "kubeadm" / "kube-scheduler+json.yaml")
    spec = json_patch(STATIC_POD, steps)["spec"]
    (container,) = spec["containers"]
    (config,) = (flag for flag in container["command"] if flag.startswith("--config="))
    file = Path(config.removeprefix("--config="))
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert hosts[mounts[str(file.parent)]] == str(file.parent)
    assert f"#   {file}\n" in CONFIGS["kubeadm"].read_text()
    # --kubeconfig counts no more beside --config, so the file has to name it.
    kubeconfig = config_of("kubeadm")["clientConnection"]["kubeconfig"]
    assert f"--kubeconfig={kubeconfig}" in container["command"]


def test_kube_scheduler_never_binds_a_gpu_pod_without_us(extender: dict[str, Any]) -> None:
    assert extender["ignorable"] is False
    assert extender["nodeCacheCapable"] is True
    assert extender["managedResources"] == [{"name": DEFAULT_RESOURCE, "ignoredByScheduler": False}]


def test_the_probes_ask_routes_that_exist(container: dict[str, Any]) -> None:
    app = create_app(NoShell(), Metrics())  # type: ignore[arg-type]
    routes = {rule.rule for rule in app.url_map.iter_rules()}

    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in routes


def test_there_is_never_more_than_one_set_of_books() -> None:
    spec = the(FILES, "Deployment")["spec"]

    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_role_names_just_what_the_program_does() -> None:
    assert granted(the(FILES, "ClusterRole")) == {
        ("nodes", "list"),
        ("nodes", "watch"),
        ("pods", "list"),
        ("pods", "watch"),
        ("pods", "patch"),
        ("pods/status", "patch"),
        ("pods/binding", "create"),
        ("pods/eviction", "create"),
        ("poddisruptionbudgets", "list"),
        ("poddisruptionbudgets", "watch"),
        ("events", "create"),
        ("events", "patch"),
        *((kind.plural, "get") for kind in READ),
    }


def test_it_may_get_just_the_kinds_that_the_table_may_ask_for() -> None:
    gets = {
        (group, resource)
        for rule in the(FILES, "ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if "get" in rule["verbs"]
    }
    assert gets == {(kind.group, kind.plural) for kind in READ}


def test_the_policies_speak_of_every_annotation_that_the_extender_decides() -> None:
    """Others are refused these, the extender is refused all others."""
    decided = f"['{names.GPUS}', '{names.PLAN}', '{names.STARTED}']"
    for policy in ("linkwise-extender-decides", "linkwise-extender-only-plans"):
        variables = the(FILES, "ValidatingAdmissionPolicy", policy)["spec"]["variables"]
        assert [each for each in variables if decided in each["expression"]]


def test_the_policies_know_the_account_that_the_program_runs_under() -> None:
    meta = the(FILES, "ServiceAccount")["metadata"]
    account = f"'system:serviceaccount:{meta['namespace']}:{meta['name']}'"
    said = [
        condition["expression"]
        for policy in ("linkwise-extender-decides", "linkwise-extender-only-plans")
        for condition in the(FILES, "ValidatingAdmissionPolicy", policy)["spec"]["matchConditions"]
    ]
    assert said == [
        f"request.userInfo.username != {account}",
        f"request.userInfo.username == {account}",
    ]
    spec = the(FILES, "Deployment")["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == meta["name"]


def test_every_policy_is_bound_and_denies() -> None:
    for policy in ("linkwise-extender-decides", "linkwise-extender-only-plans"):
        binding = the(FILES, "ValidatingAdmissionPolicyBinding", policy)["spec"]
        assert binding == {"policyName": policy, "validationActions": ["Deny"]}


class NoShell:
    """Routes are looked at here, not called."""
