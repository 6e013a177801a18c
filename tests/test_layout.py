"""The tree keeps its promises."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOTS: list[str] = PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]


@pytest.mark.parametrize("root", ROOTS)
def test_namespace_roots_hold_no_init_file(root: str) -> None:
    """One `__init__.py` there would hide the other packages from editable installs."""
    assert not (ROOT / root / "linkwise" / "__init__.py").exists()


def test_every_source_root_is_built_typed_and_tested() -> None:
    """hatchling ignores a missing path without a word, and so would mypy and pytest."""
    roots = {path.parent.name for path in ROOT.glob("*/linkwise") if path.parent.name != "proto"}
    tools = PROJECT["tool"]
    wheel = tools["hatch"]["build"]["targets"]["wheel"]
    assert set(ROOTS) == roots
    assert {Path(path).parent.name for path in wheel["only-include"]} == roots
    assert set(wheel["sources"]) == roots
    assert {Path(path).name for path in tools["mypy"]["mypy_path"]} == roots
    assert roots <= set(tools["mypy"]["files"])
    assert roots <= set(tools["pytest"]["ini_options"]["pythonpath"])


@pytest.mark.parametrize("script", PROJECT["project"]["scripts"].values())
def test_every_console_script_leads_to_a_file(script: str) -> None:
    module = script.split(":")[0].split(".")
    assert list(ROOT.glob("*/" + "/".join(module) + ".py")), script
