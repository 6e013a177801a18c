"""docs/topology.md is true: its numbers are the code's, and its commands print what it shows."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkwise.cli.__main__ import main
from linkwise.topology.machine.hardware import facts_of
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.choose import choose
from linkwise.topology.sets.tables import table_of

PAGE = (Path(__file__).parents[2] / "docs" / "topology.md").read_text(encoding="utf-8")


def examples() -> list[tuple[str, list[str]]]:
    """Yield each command of the page with the output shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ linkwise "):
                found.append((line.removeprefix("$ linkwise "), []))
            else:
                found[-1][1].append(line)
    return found


@pytest.mark.parametrize(("command", "shown"), examples())
def test_a_command_prints_what_the_page_shows(command: str, shown: list[str]) -> None:
    printed = CliRunner().invoke(main, shlex.split(command)).output.splitlines()
    assert shown
    assert [line for line in printed if line in shown] == shown


def test_the_page_has_examples() -> None:
    assert len(examples()) >= 9


def model_rows() -> list[list[str]]:
    table = PAGE.split("| models | per NVLink |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


@pytest.mark.parametrize("row", model_rows(), ids=lambda row: str(row[0]))
def test_the_table_of_models_is_the_codes(row: list[str]) -> None:
    models, per_nvlink, nvlinks, pcie, between_sockets = row
    counts = [{"none": "0", "unknown": "0"}.get(n, n) for n in nvlinks.split(", ")]
    names = models.split(", ")
    for name, count in zip(names, counts if len(counts) > 1 else counts * len(names), strict=True):
        facts = facts_of(name)
        assert facts.nvlinks == int(count)
        assert per_nvlink in ("", f"{facts.nvlink_gbytes_per_s:g}")
        assert pcie == f"{facts.pcie_gbytes_per_s:g}"
        assert between_sockets.split(":")[0] == f"{facts.inter_socket_gbytes_per_s:g}"


def lost_rows() -> list[tuple[str, float, float]]:
    table = PAGE.split("| one GPU of the idle machine taken |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    return [(name.strip("`"), float(lost), float(share)) for name, lost, share in rows[1:]]


@pytest.mark.parametrize(("name", "lost", "share"), lost_rows())
def test_what_one_gpu_taken_loses_is_the_codes(name: str, lost: float, share: float) -> None:
    machine = recorded_machine(name)
    chosen = choose(machine, machine.all_gpus, 1)
    assert chosen is not None
    left = table_of(machine).remaining_gbytes_per_s
    assert left[-1] - left[machine.all_gpus & ~chosen.gpus] == pytest.approx(lost)
    assert 1 - chosen.remaining_value == pytest.approx(share, abs=5e-4)
