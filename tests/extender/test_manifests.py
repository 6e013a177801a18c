"""What is deployed says what the programs do: same flags, routes, port and permissions."""

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from linkwise.extender.__main__ import command
from linkwise.extender.app import create_app
from linkwise.extender.metrics import Metrics
from linkwise.extender.settings import Settings
from linkwise.topology.names import DEFAULT_RESOURCE

DAEMONSET = Path(__file__).parents[2] / "daemonset"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DAEMONSET / name).read_text()))


def deployed(kind: str) -> dict[str, Any]:
    (found,) = (item for item in documents("extender.yaml") if item["kind"] == kind)
    return found


@pytest.fixture
def container() -> dict[str, Any]:
    (found,) = deployed("Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def extender() -> dict[str, Any]:
    (config,) = documents("scheduler-config.yaml")
    (found,) = config["extenders"]
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


def test_kube_scheduler_finds_the_service(extender: dict[str, Any]) -> None:
    service = deployed("Service")
    meta, (port,) = service["metadata"], service["spec"]["ports"]

    assert extender["urlPrefix"] == (
        f"http://{meta['name']}.{meta['namespace']}.svc:{port['port']}"
    )
    assert port["port"] == Settings().listen_port
    labels = deployed("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


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
    spec = deployed("Deployment")["spec"]

    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_role_names_just_what_the_program_does() -> None:
    granted = {
        (resource, verb)
        for rule in deployed("ClusterRole")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert granted == {
        ("nodes", "list"),
        ("nodes", "watch"),
        ("pods", "list"),
        ("pods", "watch"),
        ("pods/status", "patch"),
        ("pods/binding", "create"),
        ("pods/eviction", "create"),
        ("events", "create"),
    }


class NoShell:
    """Routes are looked at here, not called."""
