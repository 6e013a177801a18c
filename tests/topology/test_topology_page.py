"""docs/topology.md is true: its numbers are the code's, and its commands print what it shows.

Beside it, `measured.csv` has all measurements (settings without `NCCL_`), and `choose.txt` more
commands.
"""

import csv
import re
import shlex
from itertools import combinations
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkwise.cli.__main__ import main
from linkwise.extender.place.communicator import estimate_of
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.topology.machine.hardware import facts_of, has_peer_to_peer
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine, Nic
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.bandwidth import P2P_LEVEL, bandwidth
from linkwise.topology.sets.choose import choose
from linkwise.topology.sets.tables import table_of

PAGE = (Path(__file__).parents[2] / "docs" / "topology.md").read_text(encoding="utf-8")
MORE = Path(__file__).with_name("choose.txt").read_text(encoding="utf-8")
with Path(__file__).with_name("measured.csv").open(encoding="utf-8", newline="") as file:
    MEASURED = list(csv.DictReader(file))
# By recorded machine: what taking one GPU of the idle machine loses in GB/s, and the outlook.
LOST = (
    ("a100-pcie-2", 4.2, 1.000),
    ("l40s-4", 7.6, 0.750),
    ("dgx1-v100", 60.0, 0.583),
    ("a100-pcie-8-bridged", 59.4, 0.583),
    ("dgx-a100", 180.0, 0.583),
    ("hgx-h100", 308.0, 0.583),
)


def examples() -> list[tuple[str, list[str]]]:
    """Yield each command of the page and of `choose.txt` with the output shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in [*re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL), MORE]:
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
    assert len(examples()) >= 12


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


def of_alike(model: str, links: list[Link], nics: tuple[Nic, ...] = ()) -> Machine:
    count = next(n for n in range(2, 17) if n * (n - 1) // 2 == len(links))
    gpus = (Gpu(f"GPU-{n}", n, f"NVIDIA {model}", 0) for n in range(count))
    return Machine(tuple(gpus), tuple(links), nics)


def between(count: int, together: int, near: Link, far: Link) -> list[Link]:
    """*near* within so many neighbours."""
    return [
        near if a // together == b // together else far for a, b in combinations(range(count), 2)
    ]


def of_several_nodes(nodes: int, model: str, gbit_per_s: int) -> float:
    """Of eight GPUs and NICs on each."""
    nics = tuple(Nic(f"mlx5_{n}", (LinkClass.PIX,) * 8, gbit_per_s) for n in range(8))
    switched = Link(LinkClass.PIX, facts_of(model).nvlinks, through_switch=True)
    kind = MachineKind(of_alike(model, [switched] * 28, nics), 0)
    return estimate_of([(kind, 0xFF)] * nodes, [], 0).together


def estimated(count: int, model: str, joined: str, setting: str) -> float:
    if joined == "DGX-1V":
        return bandwidth(recorded_machine("dgx1-v100"), 0xFF)
    if joined == "NVLink clique":
        tray = MachineKind(recorded_machine("gb200-tray"), 0)
        trays = [(tray, 0b1111)] * (count // 4)
        return estimate_of(trays, ["nvidia.com/gpu.clique"], 0).together
    if several := re.fullmatch(r"(\d+) nodes of 8 × (\d+) Gbit/s", joined):
        return of_several_nodes(int(several[1]), model, int(several[2]))
    level = LinkClass.SYS if "P2P_LEVEL=SYS" in setting else P2P_LEVEL
    peers = level is LinkClass.SYS or has_peer_to_peer(model)
    nvlinks, alike = facts_of(model).nvlinks, (1 << count) - 1
    pix, node, sys = (Link(pcie, peer_to_peer=peers) for pcie in map(LinkClass, (4, 1, 0)))
    if joined == "NVSwitch":
        switched = Link(LinkClass.SYS, nvlinks, through_switch=True)
        links = between(count, count, switched, switched)
        if "NVLS_ENABLE=0" in setting:
            alike = 0b11  # two GPUs as well as eight show what a ring gets
    elif joined.startswith("bridge"):
        links = [Link(LinkClass.NODE, nvlinks), node, node][: count * (count - 1) // 2]
    elif switches := re.fullmatch(r"switches of (\d) and NODE", joined):
        links = between(count, int(switches[1]), pix, node)
    else:
        links = between(count, 4 if "SYS" in joined else count, node, sys)
    return bandwidth(of_alike(model, links), alike, level)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: " ".join([*row.values()][:4]))
def test_the_estimate_is_within_a_twentieth_of_what_was_measured(row: dict[str, str]) -> None:
    """Or of the middle of what was, except for rows that say why not."""
    count, model = row["gpus"].split(" × ")
    estimate = estimated(int(count), model, row["joined_by"], row["setting"])
    numbers = [float(number) for number in row["measured"].split(" to ")]
    off = estimate / (sum(numbers) / len(numbers)) - 1
    assert (row["estimate"], row["error_percent"]) == (f"{estimate:.1f}", f"{100 * off:+.1f}")
    assert (abs(off) > 0.05) == bool(row["why"])


def test_the_measurements_of_the_page_are_among_all() -> None:
    table = PAGE.split("| GPUs | joined by | measured |")[1].split("\n\n")[0]
    rows = [tuple(cell.strip() for cell in row.split("|")[1:-1]) for row in table.splitlines()[2:]]
    keys = ("gpus", "joined_by", "measured", "estimate")
    every = {tuple(row[key] for key in keys) for row in MEASURED}
    assert len(rows) >= 5
    assert set(rows) <= every
    near = sum(not row["why"] for row in MEASURED)
    assert f"All {len(MEASURED)} measurements" in PAGE
    assert f"within 5 % of {near};" in PAGE


@pytest.mark.parametrize("pcie", [LinkClass.NODE, LinkClass.SYS])
def test_what_the_page_says_of_the_p2p_level_is_the_codes(pcie: LinkClass) -> None:
    (row,) = re.findall(
        rf"^\| .*`{pcie.name}` \| ([0-9.]+): .* \| ([0-9.]+): .*$", PAGE, re.MULTILINE
    )
    machine = of_alike("RTX PRO 6000", [Link(pcie)])
    levels = (P2P_LEVEL, LinkClass.SYS)
    assert row == tuple(f"{bandwidth(machine, 0b11, level):.1f}" for level in levels)


@pytest.mark.parametrize(("name", "lost", "share"), LOST, ids=[name for name, *_ in LOST])
def test_what_one_gpu_taken_loses_is_the_codes(name: str, lost: float, share: float) -> None:
    machine = recorded_machine(name)
    chosen = choose(machine, machine.all_gpus, 1)
    assert chosen is not None
    left = table_of(machine).remaining_gbytes_per_s
    assert left[-1] - left[machine.all_gpus & ~chosen.gpus] == pytest.approx(lost, abs=0.05)
    assert 1 - chosen.remaining_value == pytest.approx(share, abs=5e-4)


def test_what_the_page_says_of_a_gpu_taken_is_among_these() -> None:
    of_the_page = dict(re.findall(r"of an idle `([\w-]+)`(?: costs)? ([0-9]+\.[0-9])", PAGE))
    assert of_the_page == {name: f"{lost}" for name, lost, _ in LOST if name in of_the_page}
    assert len(of_the_page) == 2
