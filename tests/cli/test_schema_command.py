"""The schema for editors says of an annotation what the extender says of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from linkwise.cli.__main__ import main
from linkwise.cli.schema import schema
from linkwise.pods.annotations import BY_PODS, ask_of
from linkwise.topology import names
from linkwise.topology.errors import AnnotationError

DOCS = Path(__file__).parents[2] / "docs"
CHECK = Draft7Validator(schema())
# With the annotations that they need beside them. A gang of the largest size, so that `gang-min`
# may have any value: that it is at most `gang-size` is more than a schema can say.
BESIDE = {
    names.GANG: {names.GANG_SIZE: "4096"},
    names.GANG_SIZE: {names.GANG: "train"},
    names.GANG_MIN: {names.GANG: "train", names.GANG_SIZE: "4096"},
    names.GANG_TIMEOUT: {names.GANG: "train", names.GANG_SIZE: "4096"},
    names.GANG_TO_COME: {names.GANG: "train", names.GANG_SIZE: "4096"},
}
# As people write and mistype them.
PARTS = st.sampled_from(
    [
        *[
            "0",
            "1",
            "4096",
            "4097",
            "h",
            "m",
            "s",
            "ms",
            "Gi",
            "k",
            "e3",
            ".",
            ",",
            "-",
            "+",
            "a",
            "_",
            "/",
            "é",
            "node",
            "clique",
            "zone/x",
            "nvlink",
            "switch",
            "nvidia.com/gpu=8",
            "cpu=",
        ],
        *["NVLink", "gang", "pod", "true", "yes", "spread", "pack", "H100"],
        " ",
    ]
)
VALUES = st.lists(PARTS, max_size=5).map("".join)


def manifest(annotations: dict[str, Any]) -> dict[str, Any]:
    template = {"metadata": {"annotations": annotations}}
    return {"kind": "JobSet", "spec": {"replicatedJobs": [{"template": {"spec": template}}]}}


def faults(annotations: dict[str, Any]) -> list[str]:
    return [error.message for error in CHECK.iter_errors(manifest(annotations))]


def is_read(annotations: dict[str, str]) -> bool:
    try:
        ask_of(annotations, {})
    except AnnotationError:
        return False
    return True


@given(st.sampled_from(sorted(BY_PODS)), VALUES)
def test_the_schema_refuses_nothing_that_the_extender_reads(key: str, value: str) -> None:
    said = {**BESIDE.get(key, {}), key: value}
    assert not is_read(said) or not faults(said)


# Whatever these allow, the extender reads; the patterns of the others are wider than the parser.
EXACT = sorted(
    set(BY_PODS)
    - {
        names.GANG_TIMEOUT,
        names.GANG_TO_COME,
        names.EXPECTED_DURATION,
        names.GPU_MEMORY,
        names.MOVE_COST,
    }
)


@given(st.sampled_from(EXACT), VALUES)
def test_the_schema_allows_nothing_else(key: str, value: str) -> None:
    said = {**BESIDE.get(key, {}), key: value}
    assert bool(faults(said)) is not is_read(said)


@pytest.mark.parametrize(
    ("annotations", "fault"),
    [
        ({"linkwise.dev/gang-sise": "4"}, "False schema does not allow '4'"),
        ({names.GANG: "train"}, "'linkwise.dev/gang-size' is a dependency of 'linkwise.dev/gang'"),
        ({names.GANG_MIN: "2"}, "'linkwise.dev/gang' is a dependency of 'linkwise.dev/gang-min'"),
        ({names.RANK: 4}, "4 is not of type 'string'"),
        ({names.PREFER_LINK: "NVLINK"}, "'NVLINK' is not one of ['nvlink', 'switch', "),
        ({names.EXPECTED_DURATION: "2 hours"}, "'2 hours' does not match"),
        ({names.EXPECTED_DURATION: "0s"}, "'0s' does not match"),
        (
            {names.GANG: "g", names.GANG_SIZE: "2", names.GANG_TO_COME: "8 GPUs"},
            "'8 GPUs' does not match",
        ),
        ({names.GPU_MEMORY: "40 GB"}, "'40 GB' does not match"),
        ({names.GPU_MEMORY: "0"}, "'0' does not match"),
        ({names.REQUIRE_SPAN: "x" * 2000}, "is too long"),
    ],
)
def test_a_slip_is_marked_in_a_template_at_any_depth(
    annotations: dict[str, Any], fault: str
) -> None:
    assert any(fault in found for found in faults(annotations)), faults(annotations)


@pytest.mark.parametrize("found", [None, 3, ["linkwise.dev/gang"], "linkwise.dev/gang-sise"])
def test_annotations_of_another_shape_and_of_others_are_not_its_business(found: object) -> None:
    assert CHECK.is_valid({"metadata": {"annotations": found}})
    assert not faults({"example.com/gang": "x", names.PLAN: "{}", names.QUEUE: "{}"})


def test_the_file_of_the_docs_is_what_the_command_prints() -> None:
    result = CliRunner().invoke(main, ["schema"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, schema())
    assert (DOCS / "annotations.schema.json").read_text() == result.stdout, (
        "run: linkwise schema > docs/annotations.schema.json"
    )


def test_the_page_has_a_row_for_each_annotation() -> None:
    page = (DOCS / "annotations.md").read_text()
    rows = page[page.index("## You write, on Pods") : page.index("Link words, closest first")]
    named = {line.split("`")[1] for line in rows.splitlines() if line.startswith("| `")}
    assert {names.PREFIX + name for name in named} == set(BY_PODS)
