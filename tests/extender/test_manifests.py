"""What is deployed says what the programs do: same flags, routes, port and permissions."""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from linkwise.cli.kubectl import EXTENDER
from linkwise.extender.__main__ import _LEASE, ENV_PREFIX, command
from linkwise.extender.run.informers import CLAIMS, SURROUNDINGS
from linkwise.extender.run.leader_endpoints import CALLS, STATUS
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.dispatch import VERBS
from linkwise.extender.run.ports.routes import create_app
from linkwise.extender.run.settings import Settings
from linkwise.pods.podgrouper.workloads.systems import READ
from linkwise.serving.certificates.callers import CLUSTER_AUTHORITY
from linkwise.simulator.api_server.patches import json_patch
from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, write_plan
from linkwise.topology.names import DEFAULT_RESOURCE
from tests.manifests import BASE, DAEMONSET, STATIC_POD, documents, granted, the

FILES = BASE / "extender"
POLICIES = tuple(f"linkwise-extender-{does}" for does in ("decides", "leads"))
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

    assert context.params["resource_names"] == (DEFAULT_RESOURCE,)
    for flag in ("gang_timeout", "call_timeout"):
        assert context.params[flag] == getattr(Settings(), f"{flag}_seconds")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        CALLS: context.params["listen_port"],
        STATUS: context.params["status_port"],
    }
    assert not isinstance(command, click.Group)


def test_kube_scheduler_is_given_the_routes_that_exist(extender: dict[str, Any]) -> None:
    verbs = {value for key, value in extender.items() if key.endswith("Verb")}
    assert verbs == VERBS


def test_the_port_of_everybody_has_none_of_them() -> None:
    app = create_app(NoShell(), ExtenderMetrics())  # type: ignore[arg-type]
    methods = {method for rule in app.url_map.iter_rules() for method in rule.methods or ()}
    assert methods == {"GET", "HEAD", "OPTIONS"}
    assert not {rule.rule for rule in app.url_map.iter_rules()} & {f"/{verb}" for verb in VERBS}


def test_the_service_leads_to_the_ports_that_the_program_listens_on() -> None:
    ports = {port["name"]: port for port in the(FILES, "Service")["spec"]["ports"]}
    listening = {CALLS: Settings().listen_port, STATUS: Settings().status_port}
    assert {name: port["port"] for name, port in ports.items()} == listening
    assert all(port["targetPort"] == port["port"] for port in ports.values())
    # `kubectl linkwise` asks there by default.
    assert EXTENDER.rpartition(":")[2] == STATUS


def test_the_policy_lets_everybody_try_the_port_with_tls_and_prometheus_alone_the_other() -> None:
    calls, status = the(FILES, "NetworkPolicy")["spec"]["ingress"]
    assert calls == {"ports": [{"port": Settings().listen_port}]}
    assert status["ports"] == [{"port": Settings().status_port}]
    (source,) = status["from"]
    said = source["namespaceSelector"]["matchLabels"]
    assert said == {"kubernetes.io/metadata.name": "monitoring"}
    pod = the(FILES, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert pod["prometheus.io/port"] == str(Settings().status_port)


def test_a_scheduler_in_a_pod_finds_the_service_by_name() -> None:
    meta = the(FILES, "Service")["metadata"]
    (extender,) = config_of("second-scheduler")["extenders"]
    host = f"{meta['name']}.{meta['namespace']}.svc"
    assert extender["urlPrefix"] == f"https://{host}:{Settings().listen_port}"
    assert extender["tlsConfig"]["serverName"] == host


def test_the_scheduler_trusts_and_shows_what_the_extender_makes(extender: dict[str, Any]) -> None:
    said = flags()
    assert said["plain_http"] is False
    assert extender["enableHTTPS"] is True
    assert "insecure" not in extender["tlsConfig"]
    assert [extender["tlsConfig"]["serverName"]] == list(said["hosts"])
    for kind in ("Secret", "ConfigMap"):
        made = the(FILES, kind, said["certificates"][1])
        assert made["metadata"]["namespace"] == said["certificates"][0]
        assert "data" not in made, "what is applied again would take its keys out"


def test_a_second_scheduler_is_given_the_certificate_that_the_extender_keeps() -> None:
    overlay = DAEMONSET / "overlays" / "second-scheduler"
    (kustomization,) = documents(overlay / "kustomization.yaml")
    (steps,) = (
        yaml.safe_load(patch["patch"])
        for patch in kustomization["patches"]
        if patch["target"] == {"kind": "Deployment", "name": "linkwise-extender"}
    )
    said = flags(*(step["value"] for step in steps))
    secret = the(overlay, "Secret")["metadata"]
    assert said["caller_secret"] == (secret["namespace"], secret["name"])
    assert said["callers"] == ("linkwise-scheduler",)
    (rule,) = the(overlay, "Role", "linkwise-extender-caller")["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == ([secret["name"]], ["get", "update"])

    pod = the(overlay, "Deployment")["spec"]["template"]["spec"]
    (volume,) = (volume for volume in pod["volumes"] if "projected" in volume)
    files = {
        (kind, source[kind]["name"], item["key"]): item["path"]
        for source in volume["projected"]["sources"]
        for kind in source
        for item in source[kind]["items"]
    }
    assert files == {
        ("secret", "linkwise-scheduler", "tls.crt"): "tls.crt",
        ("secret", "linkwise-scheduler", "tls.key"): "tls.key",
        ("configMap", "linkwise-extender", "ca.crt"): "ca.crt",
    }
    (mount,) = (
        mount["mountPath"]
        for mount in pod["containers"][0]["volumeMounts"]
        if mount["name"] == volume["name"]
    )
    (extender,) = config_of("second-scheduler")["extenders"]
    tls = extender["tlsConfig"]
    assert [tls[key] for key in ("certFile", "keyFile", "caFile")] == [
        f"{mount}/{name}" for name in ("tls.crt", "tls.key", "ca.crt")
    ]


def test_both_schedulers_give_up_a_dead_connection_long_before_a_call() -> None:
    (more,) = documents(DAEMONSET / "overlays" / "kubeadm" / "kube-scheduler1+strategic.yaml")
    static = more["spec"]["containers"][0]["env"]
    pod = the(DAEMONSET / "overlays" / "second-scheduler", "Deployment")["spec"]["template"]
    assert pod["spec"]["containers"][0]["env"] == static
    said = {each["name"]: int(each["value"]) for each in static}
    assert set(said) == {f"HTTP2_{what}_TIMEOUT_SECONDS" for what in ("READ_IDLE", "PING")}
    assert sum(said.values()) <= Settings().call_timeout_seconds


def test_a_call_is_given_up_by_both_sides_at_once(extender: dict[str, Any]) -> None:
    assert extender["httpTimeout"] == f"{flags()['call_timeout']:g}s"


def test_a_scheduler_on_its_hosts_network_finds_the_service_by_the_address_it_is_given() -> None:
    (overlay,) = documents(DAEMONSET / "overlays" / "kubeadm" / "kustomization.yaml")
    (service,) = (patch for patch in overlay["patches"] if patch["target"]["kind"] == "Service")
    (address,) = (step["value"] for step in yaml.safe_load(service["patch"]))
    (extender,) = config_of("kubeadm")["extenders"]
    assert extender["urlPrefix"] == f"https://{address}:{Settings().listen_port}"


def test_both_ways_to_configure_the_scheduler_say_the_same_but_for_the_address() -> None:
    (first,), (second,) = (config_of(overlay)["extenders"] for overlay in CONFIGS)
    own = {"urlPrefix": "", "tlsConfig": {}}
    assert first | own == second | own
    assert first["tlsConfig"].keys() == second["tlsConfig"].keys()


def test_the_static_pod_is_given_the_file_and_the_directory_it_is_in() -> None:
    overlay = DAEMONSET / "overlays" / "kubeadm"
    (steps,) = documents(overlay / "kube-scheduler0+json.yaml")
    (stock,) = STATIC_POD["spec"]["containers"]
    command = json_patch(STATIC_POD, steps)["spec"]["containers"][0]["command"]
    (config,) = (flag for flag in command if flag.startswith("--config="))
    file = Path(config.removeprefix("--config="))
    (more,) = documents(overlay / "kube-scheduler1+strategic.yaml")
    spec = more["spec"]
    (container,) = spec["containers"]
    assert container["name"] == stock["name"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert hosts[mounts[str(file.parent)]] == str(file.parent)
    assert f"#   {file}\n" in CONFIGS["kubeadm"].read_text()
    # --kubeconfig counts no more beside --config, so the file has to name it.
    kubeconfig = config_of("kubeadm")["clientConnection"]["kubeconfig"]
    assert f"--kubeconfig={kubeconfig}" in command


def test_kube_scheduler_never_binds_a_gpu_pod_without_us(extender: dict[str, Any]) -> None:
    assert extender["ignorable"] is False
    assert extender["nodeCacheCapable"] is True
    assert extender["managedResources"] == [{"name": DEFAULT_RESOURCE, "ignoredByScheduler": False}]


def test_the_probes_ask_routes_that_exist(container: dict[str, Any]) -> None:
    app = create_app(NoShell(), ExtenderMetrics())  # type: ignore[arg-type]
    routes = {rule.rule for rule in app.url_map.iter_rules()}

    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"].partition("?")[0] in routes
        assert container[probe]["httpGet"]["port"] == STATUS


def test_two_of_which_one_leads_and_is_led_to(container: dict[str, Any]) -> None:
    spec = the(FILES, "Deployment")["spec"]
    service, lease = the(FILES, "Service"), the(FILES, "Lease")
    said = command.make_context("linkwise-extender", list(container["args"])).params
    namespace, names_ = service["metadata"]["namespace"], lease["metadata"]

    assert spec["replicas"] == 2
    assert said["leader_elect"] is True
    assert (said["lease_namespace"], _LEASE) == (names_["namespace"], names_["name"])
    assert (said["lease_namespace"], said["service"]) == (namespace, service["metadata"]["name"])
    assert "selector" not in service["spec"], "else the standby would be asked as well"
    assert "spec" not in lease, "an upgrade would take the lease from its holder"
    assert {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]
    } == {
        f"{ENV_PREFIX}_POD_NAME": "metadata.name",
        f"{ENV_PREFIX}_POD_IP": "status.podIP",
    }


def test_the_standby_counts_as_ready() -> None:
    """Else no rollout ends, and the budget blocks every drain of the leader's node."""
    spec = the(FILES, "Deployment")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz?exclude=leader"
    assert the(FILES, "PodDisruptionBudget")["spec"]["minAvailable"] < spec["replicas"]


def test_the_role_in_its_namespace_names_the_objects_that_the_program_writes() -> None:
    rules = the(FILES, "Role")["rules"]
    named = {
        (resource, verb, name)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    assert named == {
        ("leases", "get", "linkwise-extender"),
        ("leases", "update", "linkwise-extender"),
        ("leases", "create", ""),
        ("endpointslices", "get", "linkwise-extender-leader"),
        ("endpointslices", "update", "linkwise-extender-leader"),
        ("endpointslices", "create", ""),
        ("endpoints", "get", "linkwise-extender"),
        ("endpoints", "update", "linkwise-extender"),
        ("endpoints", "create", ""),
        ("services", "get", "linkwise-extender"),
        ("secrets", "get", "linkwise-extender"),
        ("secrets", "update", "linkwise-extender"),
        ("configmaps", "get", "linkwise-extender"),
        ("configmaps", "get", "linkwise-places"),
        ("configmaps", "patch", "linkwise-places"),
        ("configmaps", "update", "linkwise-extender"),
    }


def test_it_may_read_whom_the_api_server_trusts_by_kubernetes_own_role() -> None:
    binding = the(FILES, "RoleBinding", "linkwise-extender-authentication")
    assert binding["metadata"]["namespace"] == CLUSTER_AUTHORITY[0]
    assert binding["roleRef"]["name"] == "extension-apiserver-authentication-reader"


def test_the_fence_knows_the_lease_and_how_a_plan_names_its_leader() -> None:
    policy = the(FILES, "ValidatingAdmissionPolicy", "linkwise-extender-leads")["spec"]
    binding = the(FILES, "ValidatingAdmissionPolicyBinding", "linkwise-extender-leads")["spec"]
    lease = the(FILES, "Lease")
    assert policy["paramKind"] == {"apiVersion": lease["apiVersion"], "kind": lease["kind"]}
    found = {key: binding["paramRef"][key] for key in ("name", "namespace")}
    assert found == {key: lease["metadata"][key] for key in ("name", "namespace")}
    expression = policy["matchConditions"][-1]["expression"]
    named = re.search(r"find\('(\"leader.*?)'\)", expression)
    assert named is not None
    text = write_plan(Plan(id="x", node="n1", leader=17))
    assert re.findall(named[1], text) == ['"leader":17']
    assert re.findall(named[1], write_plan(Plan(id="x", node="n1"))) == []


def test_what_it_may_create_is_limited_to_what_the_role_names() -> None:
    policy = the(FILES, "ValidatingAdmissionPolicy", "linkwise-extender-own-service")["spec"]
    created = {
        (group, resource)
        for rule in the(FILES, "Role")["rules"]
        if "create" in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    limited = {
        (group, resource)
        for rule in policy["matchConstraints"]["resourceRules"]
        if "CREATE" in rule["operations"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert created == limited


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
        *((plural, verb) for plural in (*SURROUNDINGS, *CLAIMS) for verb in ("list", "watch")),
        ("events", "list"),
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
    (condition,) = the(FILES, "ValidatingAdmissionPolicy", POLICIES[0])["spec"]["matchConditions"]
    rule = " ".join(condition["expression"].split())
    lists = re.findall(r"\['linkwise\.dev/[^]]*\]", rule)
    assert len(lists) == 4
    assert set(lists) == {str([*names.BY_EXTENDER])}


def test_each_policy_is_a_condition_and_refuses_whatever_meets_it() -> None:
    """Conditions cost the API server a quarter of what validations cost it, so these only tell the
    reason."""
    for policy in POLICIES:
        spec = the(FILES, "ValidatingAdmissionPolicy", policy)["spec"]
        assert spec["failurePolicy"] == "Fail"
        assert "variables" not in spec
        (validation,) = spec["validations"]
        assert validation["expression"] == "false"


def test_the_policies_know_the_account_that_the_program_runs_under() -> None:
    meta = the(FILES, "ServiceAccount")["metadata"]
    account = f"'system:serviceaccount:{meta['namespace']}:{meta['name']}'"
    said = []
    for policy in POLICIES:
        spec = the(FILES, "ValidatingAdmissionPolicy", policy)["spec"]
        texts = [each["expression"] for each in spec["matchConditions"]]
        texts += [each["messageExpression"] for each in spec["validations"]]
        said += re.findall(r"userInfo\.username (==|!=) ('[^']*')", " ".join(texts))
    assert said == [("!=", account), ("!=", account), ("==", account)]
    spec = the(FILES, "Deployment")["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == meta["name"]


def test_every_policy_is_bound_and_denies() -> None:
    for policy in POLICIES:
        binding = the(FILES, "ValidatingAdmissionPolicyBinding", policy)["spec"]
        assert (binding["policyName"], binding["validationActions"]) == (policy, ["Deny"])


def flags(*more: str) -> dict[str, Any]:
    """The Deployment's, with *more* of them."""
    (container,) = the(FILES, "Deployment")["spec"]["template"]["spec"]["containers"]
    return command.make_context("linkwise-extender", [*container["args"], *more]).params


class NoShell:
    """Routes are looked at here, not called."""
