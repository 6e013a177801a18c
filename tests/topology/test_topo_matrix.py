"""Tables of `nvidia-smi topo -m`, as drivers print them and as people paste them."""

import json
import re
from collections.abc import Callable
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from linkwise.topology.machine.topo_matrix import lacks_nvlinks, read_matrix, write_matrix
from tests.machines import TWO_SWITCHES, any_machine

PRINTED = (  # driver 550, on a terminal: tabs, an underlined header, two tabs before the last
    "\x1b[4m\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tPXB\tSYS\t48-63,176-191\t3\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tPXB\t16-31,144-159\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)


SQUARE = "      GPU0  GPU1\nGPU0   X    NV4\nGPU1  NV4    X\n"


def test_a_real_print_is_read_whole() -> None:
    machine = read_matrix(PRINTED, model="NVIDIA A100-SXM4-40GB")
    assert [gpu.numa_nodes for gpu in machine.gpus] == [(3,), (1,)]
    assert machine.link(0, 1).nvlinks == 12
    assert machine.link(0, 1).pcie is LinkClass.SYS  # not printed; the NUMA nodes differ
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "mlx5_1"]
    assert machine.nics[0].closeness == (LinkClass.PXB, LinkClass.SYS)
    assert {gpu.model for gpu in machine.gpus} == {"NVIDIA A100-SXM4-40GB"}


@pytest.mark.parametrize(
    "pasted",
    [
        PRINTED.replace("\n", "\r\n"),
        PRINTED.replace("\t", "   "),
        PRINTED.replace("\t", "  ").replace("NIC0: mlx5_0\n  NIC1", "NIC0: mlx5_0 NIC1"),
        PRINTED.replace("NIC0: mlx5_0", "NIC0:\n    mlx5_0"),
        "root@n1:~# nvidia-smi topo -m\n" + PRINTED + "root@n1:~# ",
        "    " + PRINTED.replace("\n", "\n    "),
        PRINTED.replace("\x1b[4m", "").replace("\x1b[0m", ""),
        PRINTED.replace("NIC0\tPXB\tSYS\t X \tSYS\t\t\t\t\n", ""),
    ],
    ids=["crlf", "blanks", "one-line", "wrapped", "prompt", "indented", "plain", "no-nic-row"],
)
def test_however_it_was_pasted_it_is_the_same_machine(pasted: str) -> None:
    assert read_matrix(pasted) == read_matrix(PRINTED)


PEERS = """
        GPU0  GPU1  GPU2  GPU3
  GPU0   X    OK    CNS   U
  GPU1   OK    X    OK    U
  GPU2   CNS   OK    X    NS
  GPU3   U     U     NS    X

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
"""
PAIRS = list(combinations(range(4), 2))


def apart(text: str, model: str) -> list[tuple[int, int]]:
    """The pairs without peer-to-peer access."""
    machine = read_matrix(text, model=model)
    return [(a, b) for a, b, link in machine.pairs() if not link.peer_to_peer]


def test_the_table_of_peer_to_peer_access_may_stand_beside_that_of_links() -> None:
    found = {model: apart(TWO_SWITCHES + PEERS, model) for model in ("RTX 4090", "L40S")}
    assert found["RTX 4090"] == [(0, 2), (0, 3), (1, 3), (2, 3)]  # U: its name decides
    assert found["L40S"] == [(0, 2), (2, 3)]
    both = read_matrix(TWO_SWITCHES + PEERS)
    assert read_matrix(PEERS + TWO_SWITCHES) == both
    coloured = PEERS.replace("        GPU0", "\x1b[4m        GPU0").replace(
        "GPU3\n", "GPU3\x1b[0m\n"
    )
    assert read_matrix(TWO_SWITCHES + coloured) == both


@pytest.mark.parametrize(
    ("model", "pairs"),
    [
        ("NVIDIA GeForce RTX 4090", PAIRS),
        ("RTX 5090", PAIRS),
        ("NVIDIA-GeForce-RTX-3080", PAIRS),
        ("NVIDIA L20", []),
        ("NVIDIA RTX 5000 Ada Generation", []),
        ("Quadro RTX 4000", []),
        ("GPU", []),
    ],
)
def test_without_such_a_table_the_name_of_the_model_decides(
    model: str, pairs: list[tuple[int, int]]
) -> None:
    assert apart(TWO_SWITCHES, model) == pairs


def test_a_bridge_gives_geforce_cards_access() -> None:
    bridged = TWO_SWITCHES.replace("GPU0   X    PIX", "GPU0   X    NV4").replace(
        "GPU1  PIX ", "GPU1  NV4 "
    )
    assert apart(bridged, "NVIDIA GeForce RTX 3090") == PAIRS[1:]


def lines(change: Callable[[str], str]) -> str:
    """The printed table with each line changed."""
    return "".join(change(line) + "\n" for line in PRINTED.splitlines())


def cut_at(width: int) -> str:
    """The printed table as a terminal of this width shows it, each of its lines one of the text."""
    shown = PRINTED.replace("\x1b[4m", "").replace("\x1b[0m", "").expandtabs(8)
    return "".join(
        line[start : start + width] + "\n"
        for line in shown.splitlines()
        for start in range(0, len(line) or 1, width)
    )


NO_CODES = PRINTED.replace("\x1b[4m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize(
    "pasted",
    [
        PRINTED.replace("\x1b", ""),
        PRINTED.replace("\x1b", "^["),
        PRINTED.replace("\x1b[4m", "\x1b[01;31m\x1b[K").replace("\x1b[0m", "\x1b[m\x1b[K"),
        json.dumps(PRINTED),
        json.dumps(json.dumps(PRINTED)),
        lines(lambda line: line.replace("\t", "^I") + "$"),
        lines(lambda line: "> > " + line),
        lines(lambda line: "# " + line),
        lines(lambda line: "topo.txt:12:" + line),
        lines(lambda line: "topo.txt-12-" + line),
        lines(lambda line: "2026-11-26T10:15:00.123Z stdout F " + line),
        lines(lambda line: "Nov 26 10:15:00 n1 check[812]: " + line),
        lines(lambda line: "[pod/check-x7k2p/main] " + line),
        lines(lambda line: "[1,0]<stdout>:" + line),
        lines(lambda line: "+" + line),
        lines(lambda line: f'    "{line}",'),
        lines(lambda line: f"\u2502 {line}   \u2502"),
        lines(lambda line: f"{line} \\\\"),
        lines(lambda line: json.dumps({"log": line + "\n", "stream": "stdout"})),
        NO_CODES.replace("\t", " | "),
        NO_CODES.replace("\t", " | ").replace("GPU0 |  X", "--|--|--|--|--|--|--\nGPU0 |  X"),
        NO_CODES.replace("\t", " \u2502 ").replace(
            "\nGPU", "\n\u251c\u2500\u2500\u253c\u2500\nGPU"
        ),
        NO_CODES.replace("\t", "&nbsp;&nbsp;").replace("\n", "<br/>"),
        NO_CODES.replace("\t", "</td><td>").replace("\n", "</td></tr>\n<tr><td>"),
        NO_CODES.replace("\t", "\u00a0\u2003").replace("-", "\u2013"),
        NO_CODES.replace("\t", "\u200b\t\ufeff"),
        NO_CODES.replace("\t", ", ").replace("GPU1, NIC0", "GPU1,NIC0"),
        NO_CODES.replace("NUMA Affinity", "NUMA").replace("CPU Affinity", "CPU"),
        NO_CODES.replace("\tGPU1\tNIC0\tNIC1\tCPU", "GPU1NIC0NIC1CPU"),
        NO_CODES.replace("Affinity\t", "Affinity"),
        NO_CODES.replace("NV12\tPXB\tSYS\t48", "NV12PXBSYS48").replace("\t X \tNV", "X NV"),
        NO_CODES.replace("3\t\tN/A\n", "3N/A"),
        *(cut_at(width) for width in range(30, 70)),
        NO_CODES + NO_CODES,
        NO_CODES.replace("Legend:\n", "", 1),
        NO_CODES + "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n",
    ],
)
def test_what_pasting_adds_and_loses_changes_nothing(pasted: str) -> None:
    assert read_matrix(pasted) == read_matrix(PRINTED)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Failed to run topology matrix\n", "none in 'Failed to run topology matrix': expected"),
        ("nvidia-smi: command not found", "none in 'nvidia-smi: command not found': expected"),
        ("x" * 99, f"none in '{'x' * 57}...': expected what `nvidia-smi topo -m` prints"),
        ("== Hops between two GPUs ==\n  GPU0 GPU1\nGPU0 0 2\nGPU1 2 0\n", "`rocm-smi --showtopo`"),
        ("  GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n", "this is `rocm-smi --showtopo` of AMD GPUs"),
        ("LINK TYPE TABLE:\n   0000:0c:00.0\n0000:0c:00.0  SELF\n", "this is `amd-smi topology`"),
        ("GPU 0: NVIDIA H200 (UUID: GPU-00)\n", "`nvidia-smi -L`, the list of GPUs: expected"),
        ("GPU 0: NVIDIA H200 (UUID: GPU-00)\n  Link 0: 26 GB/s\n", "this is `nvidia-smi nvlink`"),
        ("| NVIDIA-SMI 570.86  Driver Version: 570.86 |\n", "this is `nvidia-smi`, the state"),
        (SQUARE.replace("NV4", "OK"), "this is `nvidia-smi topo -p2p`: expected"),
        (SQUARE.replace("NV4", "CNS"), "this is `nvidia-smi topo -p2p`: expected"),
    ],
)
def test_another_print_is_named(text: str, said: str) -> None:
    with pytest.raises(MachineError, match=re.escape(said)) as refused:
        read_matrix(text)
    assert "expected what `nvidia-smi topo -m` prints" in str(refused.value)


PCI = SQUARE.replace("NV4", "SYS")
PCI_LEGEND = "\nLegend:\n\n  X    = Self\n  NODE = one NUMA node\n  PIX  = one PCIe bridge\n"


@pytest.mark.parametrize("text", ["$ nvidia-smi topo -mp\n" + PCI, PCI + PCI_LEGEND])
def test_a_print_without_nvlinks_is_refused_unless_the_gpus_have_none(text: str) -> None:
    for model in ("GPU", "NVIDIA H100 80GB HBM3"):
        with pytest.raises(MachineError, match="`nvidia-smi topo -mp`, which leaves NVLinks out"):
            read_matrix(text, model=model)
    assert not lacks_nvlinks(read_matrix(text, model="NVIDIA L40S"))


def test_a_print_that_shows_nvlinks_or_may_show_some_is_read() -> None:
    assert lacks_nvlinks(read_matrix(PCI + PCI_LEGEND + "  NV#  = # NVLinks\n"))
    assert not lacks_nvlinks(read_matrix(SQUARE + PCI_LEGEND))
    both = f"$ nvidia-smi topo -m\n{PCI}$ nvidia-smi topo -mp\n{PCI}"
    assert lacks_nvlinks(read_matrix(both))


def damaged(random: Random, text: str) -> str:
    """The text with one thing cut, lost, mistyped or doubled."""
    at = random.randrange(len(text))
    rows = text.splitlines(keepends=True)
    row = random.randrange(len(rows))
    blanks = random.choice([found.span() for found in re.finditer(r"[ \t]+", text)])
    typed = random.choice("0123456789GPUNVIXSYODEHB \t\n-,/")
    return random.choice(
        [
            text[:at] + text[at + random.randint(1, 3) :],
            text[: blanks[0]] + text[blanks[1] :],
            text[:at] + typed + text[at + 1 :],
            text[:at] + typed + text[at:],
            text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :],
            "".join(rows[: row + 1] + rows[row:]),
            "".join(rows[:row] + rows[row + 1 :]),
            text[: 1 + at],
            text[at % 60 :],
        ]
    )


@pytest.mark.parametrize(
    "name", ["dgx1-v100", "a100-pcie-8-bridged", "hgx-h100", "p4d.24xlarge", "mixed-5"]
)
def test_a_damaged_table_is_refused_in_one_line_or_read_as_it_was(name: str) -> None:
    machine, random, read = recorded_machine(name), Random(name), 0
    whole = write_matrix(machine)
    for _ in range(250):
        text = whole
        for _ in range(random.choice((1, 1, 2, 3))):
            text = damaged(random, text + " \n")
        try:
            again = read_matrix(text)
        except MachineError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
        else:
            assert [link.kind for link in again.links] == [link.kind for link in machine.links]
            assert [link.nvlinks for link in again.links] == [
                link.nvlinks for link in machine.links
            ]
            read += 1
    assert read > 30


def test_a_lost_tab_never_makes_another_machine() -> None:
    machine = recorded_machine("dgx-a100")
    whole = write_matrix(machine)
    read = 0
    for found in re.finditer(r"(?<=\S) +(?=\S)", whole.partition("\n\n")[0]):
        try:
            again = read_matrix(whole[: found.start()] + whole[found.end() :])
        except MachineError as error:
            assert whole[: found.start()].split()[-1] in str(error)  # noqa: PT017
        else:
            assert again.nics == machine.nics
            assert [gpu.numa_nodes for gpu in again.gpus] == [g.numa_nodes for g in machine.gpus]
            read += 1
    assert read > 80


def test_old_drivers_say_soc_name_nics_directly_and_print_cpus_for_numa_nodes() -> None:
    machine = read_matrix(
        "      GPU0  GPU1  mlx5_0  CPU Affinity\n"
        "GPU0   X    SOC   PIX     0-19,40-59\n"
        "GPU1  SOC    X    SOC     20-39,60-79\n"
    )
    assert machine.link(0, 1).kind is LinkClass.SYS
    assert machine.nics[0].name == "mlx5_0"
    assert machine.nics[0].closeness == (LinkClass.PIX, LinkClass.SYS)
    assert [gpu.numa_nodes for gpu in machine.gpus] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("header", "cells", "nodes"),
    [
        ("CPU Affinity", ("16-31", "0-15", "16-31"), [(0,), (1,), (0,)]),
        ("CPU Affinity", ("0-15", "N/A", "N/A"), [(0,), (), ()]),
        ("CPU Affinity  NUMA Affinity", ("0-15  N/A", "0-15  N/A", "16-31  N/A"), [(), (), ()]),
        ("", ("", "", ""), [(), (), ()]),
    ],
)
def test_cpus_stand_for_the_numa_node_only_if_there_is_no_such_column(
    header: str, cells: tuple[str, ...], nodes: list[tuple[int, ...]]
) -> None:
    machine = read_matrix(
        f"      GPU0  GPU1  GPU2  {header}\n"
        f"GPU0   X    SYS   SYS   {cells[0]}\n"
        f"GPU1  SYS    X    SYS   {cells[1]}\n"
        f"GPU2  SYS   SYS    X    {cells[2]}\n"
    )
    assert [gpu.numa_nodes for gpu in machine.gpus] == nodes


@pytest.mark.parametrize(
    ("cell", "nodes"),
    [("3", (3,)), ("0-1", (0, 1)), ("0,2-3", (0, 2, 3)), ("-1", (-1,)), ("N/A", ()), ("", ())],
)
def test_numa_nodes_are_a_number_a_list_or_not_known(cell: str, nodes: tuple[int, ...]) -> None:
    machine = read_matrix(f"\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-63\t{cell}\n")
    assert machine.gpus[0].numa_nodes == nodes


def test_gpu_numbers_may_have_gaps_and_rows_any_order() -> None:
    machine = read_matrix("      GPU4  GPU1\nGPU1  PIX    X\nGPU4   X    PIX\n")
    assert [gpu.index for gpu in machine.gpus] == [1, 4]
    assert machine.link(0, 1).kind is LinkClass.PIX


def test_made_up_uuids_depend_on_the_node_alone() -> None:
    one, same, other = (read_matrix(PRINTED, node=node) for node in ("a", "a", "b"))
    assert one == same
    assert one.gpus[0].uuid != other.gpus[0].uuid


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no text: expected what `nvidia-smi topo -m` prints"),
        ("GPU0 X NV4\nGPU1 NV4 X", "no header: expected a line that begins GPU0 GPU1"),
        ("GPU0 GPU1 CPUX\nGPU0 X NV4\n", "header: 'CPUX'|header: 'X': expected columns like GPU0"),
        ("GPU0 NIC0 mlx5_0\nGPU0 X PIX PIX\n", "header: 'mlx5_0': expected columns like GPU0"),
        ("GPU0 GPU1\n", "no row GPU0: expected a row for every GPU column"),
        ("GPU0 GPU1\nGPU0 X NV4\n", "no row GPU1"),
        (SQUARE.replace("GPU1  NV4    X", "GPU1  NV4"), "row GPU1, column GPU1: missing"),
        (SQUARE.replace("GPU1  NV4    X", "GPU1  NV4  X  0-3"), "row GPU1: 3 cells: expected 2"),
        (SQUARE + "GPU1  NV4    X\n", "row GPU1 appears twice"),
        (SQUARE + "GPU2  NV4    X\n", "row GPU2: expected one of the columns GPU0 GPU1"),
        (SQUARE.replace("GPU0  GPU1\n", "GPU0  GPU0\n"), "column GPU0 appears twice"),
        (SQUARE.replace("X    NV4", "X    NV2"), "row GPU0, column GPU1: 'NV2', but .* 'NV4'"),
        (SQUARE.replace("X    NV4", "X    SYS"), "expected the same both ways"),
        (SQUARE.replace("NV4", "NV0"), "column GPU1: 'NV0': expected NV1 to NV36"),
        (SQUARE.replace("NV4", "NVX"), "'NVX': expected X, SYS, NODE, PHB, PXB, PIX or NV and"),
        (SQUARE.replace("NV4", "MX"), "row GPU0, column GPU1: 'MX': expected"),
        (
            SQUARE.replace("GPU0   X    NV4", "GPU0   X    NV4  NV4"),
            "row GPU0: 3 links: expected 2",
        ),
        ("GPU0 CPU Affinity\nGPU0 X far\n", "column CPU Affinity: 'far': expected CPUs like"),
        (
            "GPU0 GPU1 CPU Affinity\nGPU0 X NV40-15\nGPU1 NV4 X 0-15\n",
            "row GPU0, column GPU1: 'NV40-15': expected X",
        ),
        (
            "GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X NV4 0-150\nGPU1 NV4 X 0-15 0\n",
            "row GPU0: '0-150' after the links: expected 2 cells as in other rows",
        ),
        (
            "GPU0 GPU1 mlx5_0\nGPU0 X NV4 PIX\nGPU1 NV4 X PIX\nmlx5_0 PIX SYS X\n",
            "row GPU1, column mlx5_0: 'PIX', but row mlx5_0, column GPU1: 'SYS'",
        ),
        (SQUARE + "NIC3 PIX SYS\n", "row NIC3: expected one of the columns GPU0 GPU1"),
        (SQUARE + SQUARE.replace("NV4", "NV2"), "several tables that differ"),
        (
            "GPU0 GPU1\nGPU0 X\n" + "NV4\n" * 9 + "GPU1 NV4 X\n",
            "row GPU0: on more than 8 lines: expected one",
        ),
        (SQUARE.replace("X    NV4", "NV4  NV4"), "row GPU0, column GPU0: 'NV4': expected X"),
        ("GPU0 NIC0\nGPU0 X NV4\n", "row GPU0, column NIC0: 'NV4': expected SYS, NODE"),
        ("GPU0 CPU Affinity NUMA Affinity\nGPU0 X 0-3 far\n", "column NUMA Affinity: 'far'"),
        ("GPU0 CPU Affinity NUMA Affinity\nGPU0 X 0-3 3-1\n", "'3-1': expected nodes like 3, 0-1"),
        (" ".join(f"GPU{n}" for n in range(17)), "17 GPUs: expected 1 to 16"),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_row_and_column(text: str, error: str) -> None:
    with pytest.raises(MachineError, match=error):
        read_matrix(text)


SOME_EMPTY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tNV4\tNV4\tNODE\t0-15\t0\t\tN/A
GPU1\tNV4\t X \tNV4\tNV4\tNODE\t\t1\t\tN/A
GPU2\tNV4\tNV4\t X \tNV4\tNODE\t0-15\t\t\tN/A
GPU3\tNV4\tNV4\tNV4\t X \tNODE\t\t\t\tN/A
NIC0\tNODE\tNODE\tNODE\tNODE\t X \t\t\t\t
"""
NO_IDS = SOME_EMPTY.replace("\tGPU NUMA ID", "").replace("\t\tN/A", "")


@pytest.mark.parametrize(
    "text",
    [
        SOME_EMPTY,
        SOME_EMPTY.expandtabs(),
        "".join(f"$ {line}" for line in SOME_EMPTY.expandtabs().splitlines(keepends=True)),
        NO_IDS,
    ],
    ids=["tabs", "blanks", "behind a prompt", "without GPU NUMA ID"],
)
def test_affinities_that_are_empty_are_not_known_and_move_no_other(text: str) -> None:
    assert [gpu.numa_nodes for gpu in read_matrix(text).gpus] == [(0,), (1,), (), ()]


def test_two_tabs_between_all_cells_are_no_empty_cells() -> None:
    text = "GPU0\t\tNUMA Affinity\nGPU0\t\tX\t\t3\n"
    assert read_matrix(text).gpus[0].numa_nodes == (3,)


@pytest.mark.parametrize("name", machine_names())
def test_what_a_table_can_say_of_a_recorded_machine_survives_print_and_read(name: str) -> None:
    machine = recorded_machine(name)
    again = read_matrix(write_matrix(machine))
    assert [gpu.index for gpu in again.gpus] == [gpu.index for gpu in machine.gpus]
    assert [gpu.numa_nodes for gpu in again.gpus] == [gpu.numa_nodes for gpu in machine.gpus]
    assert [link.nvlinks for link in again.links] == [link.nvlinks for link in machine.links]
    assert [link.kind for link in again.links] == [link.kind for link in machine.links]
    assert again.nics == machine.nics


@given(any_machine(most_gpus=5))
def test_whatever_is_printed_can_be_read(machine: Machine) -> None:
    again = read_matrix(write_matrix(machine))
    assert [link.nvlinks for link in again.links] == [link.nvlinks for link in machine.links]
    assert [nic.closeness for nic in again.nics] == [nic.closeness for nic in machine.nics]


@given(st.text() | st.text("GPU01 \tXNVSYS\n-/A3"))
def test_any_text_is_a_machine_or_a_refusal(text: str) -> None:
    try:
        machine = read_matrix("GPU0 GPU1 NIC0 NUMA Affinity\n" + text)
    except MachineError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
    else:
        assert len(machine.gpus) == 2
