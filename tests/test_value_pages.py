"""Values that pages name exist in the chart, and all platforms are described in one form."""

import json
import re
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.doc_pages import OPERATING, quoted
from tests.manifests import DAEMONSET
from tests.value_pages import Example, examples, sections

CHART = DAEMONSET / "chart"
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
PLATFORMS = ("EKS", "GKE", "AKS", "k3s and RKE2", "OpenShift")
PARTS = {key for key, value in DEFAULTS.items() if isinstance(value, dict)}
# As `plugin.flags.no-driver`, with a value or without.
VALUE = re.compile(rf"((?:{'|'.join(PARTS)})(?:\.[\w-]+)+)(?:: .*)?")
FILE = re.compile(r"\.(conf|json|md|py|yaml)$")


def merged(default: Any, given: Any) -> Any:
    """*given* over *default*, as Helm does it: maps are merged, all else is replaced."""
    if not isinstance(default, dict) or not isinstance(given, dict):
        return given
    return default | {key: merged(default.get(key), value) for key, value in given.items()}


def wrong_in(values: dict[str, Any]) -> list[str]:
    found = SCHEMA.iter_errors(merged(DEFAULTS, values))
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.parametrize("example", examples(), ids=str)
def test_values_of_a_page_pass_the_charts_schema(example: Example) -> None:
    assert wrong_in(example.values) == []


def test_a_wrong_value_on_a_page_would_be_found() -> None:
    wrong = merged(DEFAULTS, {"plugin": {"kubeletDir": "/var/lib/k0s/kubelet"}})
    assert [error.json_path for error in SCHEMA.iter_errors(wrong)] == ["$.plugin"]


def named_in(page: str) -> dict[str, Any]:
    """The values that the page's text names, dotted, with what it sets them to."""
    found: dict[str, Any] = {}
    for text in quoted((OPERATING / page).read_text()):
        if (named := VALUE.fullmatch(text)) and not FILE.search(text):
            found[named[1]] = yaml.safe_load(text).get(named[1]) if ": " in text else None
    return found


@pytest.mark.parametrize("page", sorted(path.name for path in OPERATING.glob("*.md")))
def test_values_that_a_text_names_exist(page: str) -> None:
    for dotted, value in named_in(page).items():
        *path, last = dotted.split(".")
        place = DEFAULTS
        for key in path:
            place = place[key]
        if value is None and path[-1] != "flags":
            assert last in place, dotted
        else:
            nested: Any = value
            for key in (last, *reversed(path)):
                nested = {key: nested}
            assert wrong_in(nested) == [], dotted


def test_the_pages_name_values() -> None:
    assert len(named_in("install.md")) > 25
    assert len(named_in("clouds.md")) > 8
    assert named_in("install.md")["plugin.mode"] in ("in-front", "observe")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_platform_has_the_same_parts_values_and_sources(platform: str) -> None:
    text = sections("clouds.md")[platform]
    assert text.startswith("\n| subject | on ")
    assert [example for example in examples() if example.section == platform]
    sources = text.split("\nSources, ", 1)[1]
    assert re.match(r"read on \d{4}-\d{2}-\d{2}\b", sources)
    assert len(re.findall(r"https://", sources)) >= 4


def test_the_index_leads_to_every_platform() -> None:
    index = (OPERATING / "clouds.md").read_text().split("\n## ", 1)[0]
    anchors = [f"(#{platform.lower().replace(' ', '-')})" for platform in PLATFORMS]
    assert [anchor for anchor in anchors if anchor not in index] == []
