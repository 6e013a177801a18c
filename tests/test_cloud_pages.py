"""The pages about clouds and distributions have one form, and their values are the chart's."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.cloud_pages import CLOUDS, PAGES, Example, examples
from tests.manifests import DAEMONSET

CHART = DAEMONSET / "chart"
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
PLATFORMS = tuple(page for page in PAGES if page.stem != "README")
PARTS = ["What the platform brings", "What to set", "What was tried", "Sources"]


def merged(default: Any, given: Any) -> Any:
    """*given* over *default*, as Helm does it: maps are merged, all else is replaced."""
    if not isinstance(default, dict) or not isinstance(given, dict):
        return given
    return default | {key: merged(default.get(key), value) for key, value in given.items()}


@pytest.mark.parametrize("example", examples(), ids=str)
def test_values_of_a_page_pass_the_charts_schema(example: Example) -> None:
    found = SCHEMA.iter_errors(merged(DEFAULTS, example.values))
    assert [f"{error.json_path}: {error.message}" for error in found] == []


def test_a_wrong_value_on_a_page_would_be_found() -> None:
    wrong = merged(DEFAULTS, {"plugin": {"kubeletDir": "/var/lib/k0s/kubelet"}})
    assert [error.json_path for error in SCHEMA.iter_errors(wrong)] == ["$.plugin"]


@pytest.mark.parametrize("page", PLATFORMS, ids=lambda page: page.stem)
def test_every_page_has_the_same_parts_values_and_sources(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == PARTS
    assert [example for example in examples() if example.page == page.stem]
    sources = text.split("\n## Sources\n", 1)[1]
    assert re.search(r"^Read on \d{4}-\d{2}-\d{2}\b", sources, re.MULTILINE)
    assert len(re.findall(r"https://", sources)) >= 4


def test_the_index_leads_to_every_page() -> None:
    index = (CLOUDS / "README.md").read_text()
    assert [page.name for page in PLATFORMS if f"({page.name})" not in index] == []
    assert len(PLATFORMS) >= 5
