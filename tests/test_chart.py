"""The chart's values know every flag of the programs, as the programs know them."""

import json
import re
import tomllib
from typing import Any

import click
import pytest
import yaml

from linkwise.extender.__main__ import command as extender
from linkwise.plugin.__main__ import main as plugin
from linkwise.webhook.__main__ import command as webhook
from tests.manifests import DAEMONSET

CHART = DAEMONSET / "chart"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
PROGRAMS = {"plugin": plugin, "extender": extender, "webhook": webhook}
# How each program reaches the API server from its pod, and where it listens there.
_OF_ANY_POD = {"kubeconfig", "api-server", "listen-address", "listen-port", "resource-name"}
# Flags that the chart sets, because they follow from other values, from names or from mounts.
OF_THE_CHART = {
    "plugin": {
        *_OF_ANY_POD,
        "daemonset",
        "host-dev",
        "in-front",
        "kubelet-dir",
        "machine-from-label",
        "node-name",
        "observe",
        "pod-resources-socket",
    },
    "extender": {
        *_OF_ANY_POD,
        "caller-secret",
        "certificates",
        "host",
        "leader-elect",
        "lease-namespace",
        "plain-http",
        "pod-ip",
        "pod-name",
        "service",
        "status-port",
    },
    "webhook": {
        *_OF_ANY_POD,
        "device-class",
        "gpus-from-claims",
        "host",
        "indexed-jobs",
        "secret",
        "shared-resource",
    },
}

# What Helm hands to a chart on which another one depends.
OF_AN_UMBRELLA = {"enabled", "global"}


def flags_of(command: click.Command) -> dict[str, click.Option]:
    return {
        option.opts[0].removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option) and option.opts[0] not in ("--version", "--help")
    }


def in_schema(program: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = SCHEMA["properties"][program]["properties"]["flags"][
        "properties"
    ]
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_flag_is_a_value_or_is_set_by_the_chart(program: str) -> None:
    said = in_schema(program).keys()
    assert said & OF_THE_CHART[program] == set()
    assert said | OF_THE_CHART[program] == flags_of(PROGRAMS[program]).keys()


@pytest.mark.parametrize(
    ("program", "flag"),
    [(program, flag) for program in PROGRAMS for flag in in_schema(program)],
)
def test_a_flags_value_is_of_the_programs_type(program: str, flag: str) -> None:
    option, schema = flags_of(PROGRAMS[program])[flag], in_schema(program)[flag]
    kind = option.type
    types = schema.get("type", [])
    assert ("array" in types) == option.multiple
    assert ("boolean" in types) == (option.is_flag and bool(option.secondary_opts))
    if isinstance(kind, click.Choice):
        choices = [getattr(choice, "value", choice) for choice in kind.choices]
        assert [each for each in schema["enum"] if each is not None] == choices
    elif isinstance(kind, click.IntRange | click.FloatRange):
        assert ("integer" in types) == isinstance(kind, click.IntRange)
        assert (schema.get("minimum"), schema.get("maximum")) == (kind.min, kind.max)
    elif kind.name == "duration":
        assert re.fullmatch(schema["pattern"], "1h30m10s500ms")
        assert not re.fullmatch(schema["pattern"], "90 s")


def test_every_value_has_a_schema_and_every_schema_a_value() -> None:
    assert tree(VALUES) == of_schema(SCHEMA) - OF_AN_UMBRELLA


def tree(values: object, path: str = "") -> set[str]:
    """Return the paths of all values; a map that people fill is one."""
    if (
        not isinstance(values, dict)
        or not values
        or path.endswith(("flags", "resources", ".labels"))
    ):
        return {path}
    return {
        found
        for key, value in values.items()
        for found in tree(value, f"{path}.{key}".removeprefix("."))
    }


def of_schema(schema: dict[str, Any], path: str = "") -> set[str]:
    if "properties" not in schema or path.endswith("flags"):
        return {path}
    return {
        found
        for key, value in schema["properties"].items()
        for found in of_schema(value, f"{path}.{key}".removeprefix("."))
    }


def test_the_notes_name_the_labels_that_people_set_for_the_plugin() -> None:
    """An installation succeeds where no node has one, and starts no pod of the plugin."""
    notes, daemonset = (
        (CHART / "templates" / name).read_text() for name in ("NOTES.txt", "plugin/daemonset.yaml")
    )
    for label in ("linkwise.dev/gpu-node", "linkwise.dev/simulated-machine"):
        assert f"kubectl label node NODE {label}=" in notes
        assert f"key: {label}" in daemonset


def test_the_chart_is_of_the_projects_version() -> None:
    project = tomllib.loads((DAEMONSET.parent / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]
