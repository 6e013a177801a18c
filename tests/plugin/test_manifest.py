"""What is deployed says what the program does: same flags, routes, paths and permissions."""

from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from prometheus_client import CollectorRegistry

from linkwise.plugin.__main__ import main
from linkwise.plugin.app import create_app
from linkwise.plugin.settings import KUBELET_DIR, POD_RESOURCES_SOCKET, Settings

FILE = Path(__file__).parents[2] / "daemonset" / "plugin.yaml"
DEFAULTS = Settings(node_name="n1")


def deployed(kind: str) -> dict[str, Any]:
    (found,) = (each for each in yaml.safe_load_all(FILE.read_text()) if each["kind"] == kind)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    spec = deployed("DaemonSet")["spec"]["template"]["spec"]
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
    assert (params.pop("no_driver"), params.pop("log_level")) == ("wait", "INFO")
    assert Settings(**params) == DEFAULTS


def test_the_probes_ask_routes_that_exist(container: dict[str, Any]) -> None:
    app = create_app(CollectorRegistry(), lambda: "")
    routes = {rule.rule for rule in app.url_map.iter_rules()}
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in routes


def test_the_kubelets_directories_are_mounted_where_the_defaults_look(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == hosts
    assert set(mounts.values()) == {str(KUBELET_DIR), str(POD_RESOURCES_SOCKET.parent)}


def test_no_more_is_allowed_than_what_is_called() -> None:
    allowed = {
        (resource, verb)
        for rule in deployed("ClusterRole")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {
        ("nodes", "get"),
        ("nodes", "patch"),
        ("pods", "list"),
        ("pods", "watch"),
    }
    (subject,) = deployed("ClusterRoleBinding")["subjects"]
    account = deployed("ServiceAccount")["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


@pytest.mark.parametrize(
    ("missing", "status", "text"), [("", 200, "ok\n"), ("no GPUs: x", 503, "no GPUs: x\n")]
)
def test_readiness_says_what_is_missing(missing: str, status: int, text: str) -> None:
    answer = create_app(CollectorRegistry(), lambda: missing).test_client().get("/readyz")
    assert (answer.status_code, answer.text) == (status, text)
