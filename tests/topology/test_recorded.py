"""Recorded machines are facts with a source, available by name."""

import json

import pytest

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.machine.recorded import (
    machine_names,
    read_machine_file,
    recorded_machine,
    records,
)
from tests.machines import DGX_1V, DGX_A100, HGX_H100


@pytest.mark.parametrize("name", machine_names())
def test_every_recorded_machine_loads_and_says_where_it_was_seen(name: str) -> None:
    machine = recorded_machine(name)
    assert len(machine.gpus) == len(records()[name].gpus)
    assert records()[name].source
    assert records()[name].title


def test_the_machines_that_people_ask_for_are_there() -> None:
    assert len(machine_names()) >= 31
    assert {"dgx1-v100", "dgx2-v100", "dgx-a100", "hgx-h100", "gb200-tray"} <= set(machine_names())


@pytest.mark.parametrize("name", [name for name in machine_names() if records()[name].pcie])
def test_where_both_tables_were_seen_they_agree_on_pairs_without_nvlink(name: str) -> None:
    record = records()[name]
    assert record.links is not None
    assert record.pcie is not None
    for words, pcie in zip(record.links, record.pcie, strict=True):
        for word, class_word in zip(words, pcie, strict=True):
            assert word == class_word or word.startswith("NV")


def test_uuids_are_the_same_every_time_and_differ_between_nodes() -> None:
    first = recorded_machine("dgx-a100", node="n1")
    assert first == recorded_machine("dgx-a100", node="n1")
    other = recorded_machine("dgx-a100", node="n2")
    assert not {gpu.uuid for gpu in first.gpus} & {gpu.uuid for gpu in other.gpus}


def test_models_tell_memory_and_compute_capability() -> None:
    gpu = HGX_H100.gpus[0]
    assert (gpu.model, gpu.memory_mib) == ("NVIDIA H100 80GB HBM3", 81559)
    assert gpu.compute_capability == (9, 0)


@pytest.mark.parametrize("name", ["dgx2-v100", "dgx-a100", "hgx-h100", "h800-a800", "gb200-tray"])
def test_an_nvswitch_shows_by_more_links_than_the_chip_has(name: str) -> None:
    assert all(link.through_switch for link in recorded_machine(name).links)


@pytest.mark.parametrize(
    "name", ["dgx1-v100", "a100-pcie-8-bridged", "juwels-booster", "h200-nvl-2x4"]
)
def test_links_that_the_chip_has_are_direct(name: str) -> None:
    assert not any(link.through_switch for link in recorded_machine(name).links)


def test_pcie_behind_nvlink_comes_from_its_table_or_else_from_numa() -> None:
    assert DGX_1V.link(0, 1).pcie is LinkClass.PIX  # seen
    assert recorded_machine("v100-sxm2-8").link(0, 1).pcie is LinkClass.NODE  # both on node 0
    assert recorded_machine("v100-sxm2-8").link(0, 4).pcie is LinkClass.SYS
    assert recorded_machine("p3.16xlarge").link(0, 1).pcie is LinkClass.SYS  # NUMA not known


def test_a_machine_without_a_matrix_is_derived_from_numa() -> None:
    machine = recorded_machine("l40s-8-mock")
    assert {link.kind for link in machine.links} == {LinkClass.NODE, LinkClass.SYS}
    for first, second, link in machine.pairs():
        same = machine.gpus[first].numa_node == machine.gpus[second].numa_node
        assert (link.kind is LinkClass.NODE) == same


def test_odd_facts_survive() -> None:
    assert [gpu.numa_node for gpu in DGX_A100.gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert recorded_machine("azure-ndv4").gpus[4].pci_bus_id == "000b:00:00.0"
    assert recorded_machine("p3.16xlarge").gpus[0].numa_nodes == ()


def test_the_nodes_of_one_nvlink_fabric_share_a_clique() -> None:
    first, second = (recorded_machine("gb200-tray", node=node) for node in ("n1", "n2"))
    assert first.clique == second.clique is not None
    assert DGX_A100.clique is None


def one_machine(**changes: object) -> str:
    fields: dict[str, object] = {
        "title": "mine",
        "kind": "real",
        "source": "my server",
        "gpus": [{"index": 0, "model": "Tesla T4", "numa": 0}, {"index": 1, "model": "Tesla T4"}],
        "links": [["X", "PHB"], ["PHB", "X"]],
    } | changes
    return json.dumps({"machines": {"mine": fields}})


def test_a_file_of_ones_own_is_read_by_name_or_when_it_holds_one() -> None:
    machine = read_machine_file(one_machine())
    assert machine == read_machine_file(one_machine(), "mine")
    assert machine.link(0, 1).kind is LinkClass.PHB
    assert machine.gpus[0].numa_node == 0


def test_numa_may_be_a_list_and_may_be_minus_one() -> None:
    gpus = [{"index": 0, "model": "T4", "numa": [0, 1]}, {"index": 1, "model": "T4", "numa": -1}]
    machine = read_machine_file(one_machine(gpus=gpus))
    assert [gpu.numa_nodes for gpu in machine.gpus] == [(0, 1), (-1,)]


def test_a_printed_table_is_read_from_a_file_too() -> None:
    table = "      GPU0 GPU1\nGPU0   X   NV4\nGPU1  NV4   X\n"
    machine = read_machine_file(table, model="NVIDIA RTX A6000")
    assert machine.gpus[1].model == "NVIDIA RTX A6000"
    assert machine.link(0, 1).nvlinks == 4


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        ("", None, "no text"),
        ("{", None, "machines file: Input data was truncated"),
        ("{}", None, "missing required field `machines`"),
        ('{"machines":{}}', None, "no machine in it: expected one or more"),
        ('{"machines":{"a":{}}}', None, r"missing required field `title` - at `\$.machines"),
        ('{"machines":' + "[" * 99999, None, "machines file: "),
        (one_machine(), "yours", "'yours': not known: expected one of: mine"),
        (one_machine(kind="seen"), None, "Invalid enum value 'seen'"),
        (one_machine(gpus=[]), None, "links: 2 rows: expected 0"),
        (one_machine(gpus=[{"index": "a", "model": "T4"}]), None, "Expected `int`, got `str`"),
        (one_machine(gpus=[{"index": 0, "model": "T4"}]), None, "links: 2 rows: expected 1"),
        (one_machine(gpus=[{"index": 0, "model": "T4"}] * 2), None, "expected rising, each once"),
        (one_machine(links=[["X", "PHB"]]), None, "links: 1 rows: expected 2"),
        (one_machine(links=[["X"], ["PHB", "X"]]), None, "links, row GPU0: 1 cells: expected 2"),
        (one_machine(links=[["PIX", "PHB"], ["PHB", "X"]]), None, "row GPU0, column GPU0: 'PIX'"),
        (one_machine(links=[["X", "NV4"], ["NV2", "X"]]), None, "'NV2': expected the same both"),
        (one_machine(links=[["X", "WIFI"], ["WIFI", "X"]]), None, "column GPU1: 'WIFI': expected"),
        (one_machine(links=[["X", "NV99"], ["NV99", "X"]]), None, "expected NV1 to NV36"),
        (
            one_machine(pcie=[["X", "NV1"], ["NV1", "X"]]),
            None,
            "pcie, row GPU0, column GPU1: 'NV1'",
        ),
        (one_machine(nics={"mlx5_0": ["PIX"]}), None, "NIC mlx5_0: 1 entries: expected 2"),
        (one_machine(nics={"mlx5_0": ["PIX", "X"]}), None, "NIC mlx5_0, entry 1: 'X'"),
        ("GPU0\nGPU0 X", "a", "#a: a table holds one machine without a name"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(text: str, name: str | None, error: str) -> None:
    with pytest.raises(MachineError, match=error):
        read_machine_file(text, name)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(MachineError, match=r"'dgx-9': not known: expected one of: dgx1-p100, .*"):
        recorded_machine("dgx-9")


def test_a_table_inside_json_is_a_table() -> None:
    table = "GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n"
    assert read_machine_file(json.dumps({"stdout": table})) == read_machine_file(table)
