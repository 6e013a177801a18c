"""docs/topology.md is true: its numbers are the code's, and its commands print what it shows."""

import re
import shlex
from itertools import combinations
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkwise.cli.__main__ import main
from linkwise.extender.cache.machine_kind import MachineKind
from linkwise.extender.placement.worth.estimate import estimate_of
from linkwise.topology.machine.hardware import facts_of, has_peer_to_peer
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.bandwidth import bandwidth
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


def of_alike(model: str, links: list[Link]) -> Machine:
    count = next(n for n in range(2, 17) if n * (n - 1) // 2 == len(links))
    gpus = (Gpu(f"GPU-{n}", n, f"NVIDIA {model}", 0) for n in range(count))
    return Machine(tuple(gpus), tuple(links))


def between(count: int, near: Link, far: Link) -> list[Link]:
    """*near* within the first four GPUs and within the others."""
    return [near if a // 4 == b // 4 else far for a, b in combinations(range(count), 2)]


def estimated(count: int, model: str, joined: str) -> float:
    if joined == "DGX-1V":
        return bandwidth(recorded_machine("dgx1-v100"), 0xFF)
    if joined == "NVLink clique":
        tray = MachineKind(recorded_machine("gb200-tray"), 0)
        trays = [(tray, 0b1111)] * (count // 4)
        return estimate_of(trays, ["nvidia.com/gpu.clique"], 0).together
    nvlinks, peers = facts_of(model).nvlinks, has_peer_to_peer(model)
    node, sys = (Link(pcie, peer_to_peer=peers) for pcie in (LinkClass.NODE, LinkClass.SYS))
    if joined == "NVSwitch":
        switched = Link(LinkClass.SYS, nvlinks, through_switch=True)
        links = between(count, switched, switched)
    elif joined.startswith("bridge"):
        links = [Link(LinkClass.NODE, nvlinks), node, node][: count * (count - 1) // 2]
    else:
        links = between(count, node, sys)
    return bandwidth(of_alike(model, links), (1 << count) - 1)


def measured_rows() -> list[list[str]]:
    table = PAGE.split("| GPUs | joined by | measured |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


@pytest.mark.parametrize("row", measured_rows(), ids=lambda row: str(row[0]))
def test_the_estimate_is_within_a_tenth_of_what_was_measured(row: list[str]) -> None:
    gpus, joined, measured, shown, _ = row
    count, model = gpus.split(" × ")
    estimate = estimated(int(count), model, joined)
    assert f"{estimate:.1f}" == shown
    assert estimate == pytest.approx(float(measured), rel=0.1)


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
    assert left[-1] - left[machine.all_gpus & ~chosen.gpus] == pytest.approx(lost, abs=0.05)
    assert 1 - chosen.remaining_value == pytest.approx(share, abs=5e-4)
