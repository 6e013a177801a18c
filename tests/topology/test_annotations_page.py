"""docs/annotations.md names every annotation and label."""

from dataclasses import replace
from pathlib import Path

import pytest

from linkwise.topology import names
from linkwise.topology.annotations.labels import node_labels
from tests.machines import DGX_A100

PAGE = (Path(__file__).parents[2] / "docs" / "annotations.md").read_text()
ANNOTATIONS = [
    value
    for name, value in vars(names).items()
    if name.isupper() and name != "PREFIX" and str(value).startswith(names.PREFIX)
]
LABELS = node_labels(replace(DGX_A100, clique="a.1", driver_version="1.2.3", cuda_version="1.2"))


@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_every_annotation_has_its_line(annotation: str) -> None:
    assert f"`{annotation.removeprefix(names.PREFIX)}`" in PAGE or f"`{annotation}`" in PAGE


@pytest.mark.parametrize("label", LABELS)
def test_every_label_has_its_line(label: str) -> None:
    """The page has the first label of a family in full, and the last word of the others."""
    last_word = f"`.{label.rpartition('.')[2]}`"
    assert f"`{label.removeprefix(names.PREFIX)}`" in PAGE or last_word in PAGE
