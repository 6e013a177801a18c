"""What is deployed says what the program does: same flags, routes, ports, names and rights."""

import re
from typing import Any

import click
import pytest
from click.testing import CliRunner

from linkwise.extender.__main__ import command as extender
from linkwise.topology.names import DEFAULT_RESOURCE
from linkwise.webhook.__main__ import _CONFIGURATION, PORT, SERVICE, command
from linkwise.webhook.answers import Answers
from linkwise.webhook.patch import Rules
from tests.manifests import BASE, DAEMONSET, documents, granted, the

FILES = DAEMONSET / "components" / "webhook"
MUTATING, VALIDATING = (f"{word}WebhookConfiguration" for word in ("Mutating", "Validating"))
ROUTES = Answers(Rules()).routes()


def container() -> dict[str, Any]:
    (found,) = the(FILES, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def flags() -> dict[str, Any]:
    return command.make_context("linkwise-webhook", list(container()["args"])).params


def hooks() -> list[dict[str, Any]]:
    return [hook for kind in (MUTATING, VALIDATING) for hook in the(FILES, kind)["webhooks"]]


def test_the_deployment_starts_this_program_with_flags_that_exist() -> None:
    assert container()["command"] == ["python3", "-m", "linkwise.webhook"]
    assert flags()["resource_names"] == (DEFAULT_RESOURCE,)
    assert not isinstance(command, click.Group)


def test_the_default_of_every_flag_is_what_is_deployed() -> None:
    assert flags() == command.make_context("linkwise-webhook", []).params


def test_what_both_programs_are_told_has_the_same_default() -> None:
    theirs = extender.make_context("linkwise-extender", []).params
    for name in ("resource_names", "indexed_jobs"):
        assert flags()[name] == theirs[name]


def test_the_service_leads_to_the_port_and_bears_the_name_of_the_certificate() -> None:
    service, (port,) = the(FILES, "Service"), container()["ports"]
    meta = service["metadata"]
    assert (f"{meta['name']}.{meta['namespace']}.svc",) == flags()["hosts"] == (SERVICE,)
    assert service["spec"]["ports"] == [
        {"name": port["name"], "port": 443, "targetPort": port["name"]}
    ]
    assert port["containerPort"] == flags()["listen_port"] == PORT
    template = the(FILES, "Deployment")["spec"]["template"]["metadata"]
    assert service["spec"]["selector"].items() <= template["labels"].items()
    assert template["annotations"]["prometheus.io/port"] == str(PORT)
    (allowed,) = the(FILES, "NetworkPolicy")["spec"]["ingress"]
    assert allowed["ports"] == [{"port": PORT}]


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: str(hook["name"]))
def test_the_api_server_asks_routes_that_exist_and_never_for_long(hook: dict[str, Any]) -> None:
    service = hook["clientConfig"]["service"]
    assert ("POST", service["path"]) in ROUTES
    assert f"{service['name']}.{service['namespace']}.svc" == SERVICE
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 2)
    assert hook["sideEffects"] == "None"
    namespaces, labels = hook["namespaceSelector"], hook["objectSelector"]
    opted_out = {"key": "linkwise.dev/webhook", "operator": "NotIn", "values": ["ignore"]}
    assert opted_out in namespaces["matchExpressions"]
    assert labels == {"matchExpressions": [opted_out]}
    (system,) = (each for each in namespaces["matchExpressions"] if each != opted_out)
    assert system["values"] == ["kube-system", "kube-public", "kube-node-lease"]


def test_the_gate_is_asked_about_for_pods_that_take_the_resource_that_is_a_gpu() -> None:
    (hook,) = the(FILES, MUTATING)["webhooks"]
    takes, bound = hook["matchConditions"]
    assert set(re.findall(r"'([^']+)' in", takes["expression"])) == {*flags()["resource_names"]}
    assert bound["name"] == "is-not-bound"
    assert [rule["operations"] for rule in hook["rules"]] == [["CREATE"]]


def test_the_probes_ask_routes_that_exist() -> None:
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container()[probe]["httpGet"]
        assert ("GET", asked["path"]) in ROUTES
        assert asked["scheme"] == "HTTPS"


def test_who_comes_and_who_goes_is_heard_of_before_anybody_relies_on_it() -> None:
    deployment = the(FILES, "Deployment")["spec"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    goes = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert deployment["minReadySeconds"] == goes == 5


def test_its_rights_are_for_the_objects_that_it_is_told_and_for_no_others() -> None:
    secret, role = the(FILES, "Secret")["metadata"], the(FILES, "Role")
    assert (secret["namespace"], secret["name"]) == flags()["secret"]
    assert [rule["resourceNames"] for rule in role["rules"]] == [[secret["name"]]]
    assert granted(role) == {("secrets", "get"), ("secrets", "update")}

    role = the(FILES, "ClusterRole")
    configuration = _CONFIGURATION
    assert [rule["resourceNames"] for rule in role["rules"]] == [[configuration]]
    assert granted(role) == {
        (resource, verb)
        for resource in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
        for verb in ("get", "patch")
    }
    for kind in (MUTATING, VALIDATING):
        assert the(FILES, kind)["metadata"]["name"] == configuration
    account = the(FILES, "ServiceAccount")["metadata"]["name"]
    assert the(FILES, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert account != the(BASE / "extender", "ServiceAccount")["metadata"]["name"]


def test_of_a_second_scheduler_the_name_is_the_one_that_it_is_deployed_under() -> None:
    (component,) = documents(DAEMONSET / "components/webhook-second-scheduler/kustomization.yaml")
    (config,) = documents(DAEMONSET / "overlays/second-scheduler/scheduler-config.yaml")
    (profile,) = config["profiles"]
    assert f"--scheduler-name={profile['schedulerName']}" in component["patches"][0]["patch"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resource-name=gpu"], "'gpu': expected a name like nvidia.com/gpu"),
        (["--shared-resource=shared"], "'shared': expected a name like nvidia.com/gpu"),
        (["--secret=linkwise-webhook"], "expected NAMESPACE/NAME"),
        (["--certificate-lifetime=9s"], "9 s: expected 10s or more"),
        (["--certificate-lifetime=90d"], "expected a duration like"),
        (["--gate=some"], "'some' is not one of 'gangs', 'all', 'none'"),
    ],
)
def test_a_flag_that_cannot_be_is_refused_with_what_was_expected(
    arguments: list[str], said: str
) -> None:
    with pytest.raises(click.BadParameter) as refused:
        command.make_context("linkwise-webhook", arguments)
    assert said in refused.value.format_message()


def test_shares_that_the_extender_does_not_plan_are_refused() -> None:
    given = ["--resource-name=amd.com/gpu", "--shared-resource=nvidia.com/gpu.shared"]
    ended = CliRunner().invoke(command, given)
    assert ended.exit_code == 2
    assert "nvidia.com/gpu.shared is not planned where amd.com/gpu is a GPU" in ended.output
