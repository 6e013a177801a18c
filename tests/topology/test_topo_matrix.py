"""Tables of `nvidia-smi topo -m`, as drivers print them and as people paste them."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from linkwise.topology.machine.topo_matrix import read_matrix, write_matrix
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
        ("CPU Affinity", ("0-15", "N/A", ""), [(0,), (), ()]),
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


SQUARE = "      GPU0  GPU1\nGPU0   X    NV4\nGPU1  NV4    X\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no header: expected a line that begins GPU0 GPU1"),
        ("nvidia-smi: command not found", "no header"),
        ("GPU0 X NV4\nGPU1 NV4 X", "no header"),
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
        (SQUARE.replace("NV4", "OK"), "row GPU0, column GPU1: 'OK': expected"),
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
