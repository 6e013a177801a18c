"""The topology annotation gives back exactly the machine that was written, or a refusal."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.annotations.node_annotation import read_topology, write_topology
from linkwise.topology.errors import AnnotationError, MachineError, VersionError
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from linkwise.topology.machine.topology_manager import Policy, Scope, Source, TopologyManager
from tests.machines import GEFORCE_4, any_machine, machine

BRIDGED_PAIR = machine(
    """
          GPU0  GPU1  NIC0  NUMA Affinity
    GPU0   X    NV12  PIX   1
    GPU1  NV12   X    NODE  1

    NIC Legend:
      NIC0: mlx5_0
    """
)


def test_the_annotation_can_be_read_by_people_too() -> None:
    first, second = (gpu.uuid for gpu in BRIDGED_PAIR.gpus)
    assert write_topology(BRIDGED_PAIR) == (
        '{"v":1,"models":[["GPU",0,null]],'
        f'"gpus":[["{first}",0,0,null,[1]],["{second}",1,0,null,[1]]],'
        '"links":["NV12/NODE"],"nics":[["mlx5_0","PIX NODE"]]}'
    )


def test_the_speed_of_a_nic_comes_back_if_it_is_known() -> None:
    near, far = replace(BRIDGED_PAIR.nics[0], gbit_per_s=400), BRIDGED_PAIR.nics[0]
    fast = replace(BRIDGED_PAIR, nics=(near, replace(far, name="mlx5_1")))
    text = write_topology(fast)
    assert '"nics":[["mlx5_0","PIX NODE"],["mlx5_1","PIX NODE"]],"nic_gbit_per_s":[400,0]' in text
    assert read_topology(text) == fast


def test_what_the_topology_manager_demands_comes_back() -> None:
    options = (("prefer-closest-numa-nodes", "true"),)
    manager = TopologyManager(Policy.RESTRICTED, Scope.POD, options, Source.FILE)
    aligned = replace(BRIDGED_PAIR, topology_manager=manager)
    text = write_topology(aligned)
    assert (
        '"topology_manager":["restricted","pod","file",{"prefer-closest-numa-nodes":"true"}]'
        in text
    )
    assert read_topology(text) == aligned


def test_an_unknown_policy_of_a_newer_plugin_counts_as_unknown() -> None:
    manager = TopologyManager(Policy.RESTRICTED)
    text = write_topology(replace(BRIDGED_PAIR, topology_manager=manager))
    assert read_topology(text.replace("restricted", "whole-rack")) == BRIDGED_PAIR


@pytest.mark.parametrize("name", machine_names())
def test_every_recorded_machine_comes_back_exactly(name: str) -> None:
    machine = recorded_machine(name, node="n1")
    assert read_topology(write_topology(machine)) == machine


@given(any_machine())
def test_any_machine_comes_back_exactly(machine: Machine) -> None:
    assert read_topology(write_topology(machine)) == machine


@pytest.mark.parametrize("name", machine_names())
def test_it_is_small(name: str) -> None:
    """All annotations of a Node share 256 KiB, and every watcher of Nodes receives them."""
    machine = recorded_machine(name)
    assert len(write_topology(machine)) < (1300 if len(machine.gpus) <= 8 else 2600)


def changed(**changes: object) -> str:
    fields: dict[str, object] = json.loads(write_topology(BRIDGED_PAIR))
    return json.dumps(fields | changes)


def test_unknown_fields_of_this_version_are_ignored() -> None:
    assert read_topology(changed(colour="green")) == BRIDGED_PAIR


def test_pairs_without_peer_to_peer_access_are_told_by_index() -> None:
    text = write_topology(GEFORCE_4)
    assert '"links":["PIX SYS SYS","SYS SYS","PIX"],"no_p2p":[[1,2,3],[2,3],[3]]' in text
    one = replace(GEFORCE_4.links[0], peer_to_peer=True)
    some = replace(GEFORCE_4, links=(one, *GEFORCE_4.links[1:]))
    assert '"no_p2p":[[2,3],[2,3],[3]]' in write_topology(some)
    assert "no_p2p" not in write_topology(BRIDGED_PAIR)


def test_of_a_plugin_that_says_nothing_of_it_the_models_names_do() -> None:
    fields: dict[str, object] = json.loads(write_topology(GEFORCE_4))
    del fields["no_p2p"]
    assert read_topology(json.dumps(fields)) == GEFORCE_4


def test_a_driver_may_give_geforce_cards_access() -> None:
    links = tuple(replace(link, peer_to_peer=True) for link in GEFORCE_4.links)
    opened = replace(GEFORCE_4, links=links)
    assert '"no_p2p":[[],[],[]]' in write_topology(opened)
    assert read_topology(write_topology(opened)) == opened


def test_machines_of_one_kind_share_their_links() -> None:
    one, other = (
        read_topology(write_topology(recorded_machine("p4d.24xlarge", node=node)))
        for node in ("n1", "n2")
    )
    assert all(link is same for link, same in zip(one.links, other.links, strict=True))


def test_only_gpus_without_sixteen_pcie_lanes_are_told() -> None:
    lanes = ((8, 16), (4, 4))
    gpus = (
        replace(gpu, pcie_lanes=up, most_pcie_lanes=most)
        for gpu, (up, most) in zip(BRIDGED_PAIR.gpus, lanes, strict=True)
    )
    narrow = replace(BRIDGED_PAIR, gpus=tuple(gpus))
    text = write_topology(narrow)
    assert '"pcie_lanes":[[0,8,16],[1,4,4]]' in text
    assert read_topology(text) == narrow
    assert "pcie_lanes" not in write_topology(BRIDGED_PAIR)


def test_unhealthy_gpus_are_told_by_index() -> None:
    assert [gpu.healthy for gpu in read_topology(changed(unhealthy=[1])).gpus] == [True, False]


def test_a_newer_version_is_refused_whatever_its_shape() -> None:
    with pytest.raises(VersionError, match="'version 2': expected version 1 or older"):
        read_topology('{"v":2,"machine":"in a shape of the future"}')


GPU_0 = ["GPU-a", 0, 0]
GPU_1 = ["GPU-b", 1, 0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "JSON as the plugin writes it"),
        ("no JSON", "JSON as the plugin writes it"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `models`"),
        ('{"v":1}', "missing required field `models`"),
        ('{"v":"1"}', r"Expected `int`, got `str` - at `\$.v`"),
        ('{"v":0}', r"Invalid value 0 - at `\$.v`"),
        ('{"v":1,"x":' + "[" * 99999, "JSON as the plugin writes it"),
        ('{"v":"\ud800"}', "surrogates not allowed"),
        (changed(gpus=None), r"Expected `array`, got `null` - at `\$.gpus`"),
        (changed(gpus=[["GPU-a"]]), r"at `\$.gpus\[0\]`"),
        (changed(gpus=[GPU_0]), "0 rows of links"),
        (changed(gpus=[GPU_0, GPU_0]), r"GPU indices \[0, 0\]: expected rising, each once"),
        (changed(gpus=[GPU_1, GPU_0]), "expected rising"),
        (changed(gpus=[], links=[]), "0 GPUs: expected 1 to 16"),
        (changed(gpus=[["", 0, 0], GPU_1]), "expected 1 to 63 characters"),
        (changed(gpus=[["GPU-a", 0, 1], GPU_1]), "GPU 0: model 1: expected a place in models"),
        (changed(gpus=[["GPU-a", 0, -1], GPU_1]), "GPU 0: model -1: expected a place in"),
        (changed(gpus=[["GPU-a", 0, 0, "1A:00"], GPU_1]), "PCI bus id '1A:00'"),
        (changed(models=[["T4", -1]]), "memory -1 MiB: expected 0 or more"),
        (changed(models=[["T4", 1, [7]]]), "`array` of length 2"),
        (changed(links=[]), "1 rows of links"),
        (changed(links=["SYS SYS"]), "1 links in row 0"),
        (changed(links=["NV12"]), "links, row 0: 'NV12': expected like SYS"),
        (changed(links=["NV0/SYS"]), "links, row 0: 'NV0/SYS': expected like SYS, NV12/NODE"),
        (changed(links=["NV99/SYS"]), "99 NVLinks: expected 0 to 36"),
        (changed(links=["NV4/NVLINK"]), "'NVLINK': expected SYS, NODE, PHB, PXB or PIX"),
        (changed(no_p2p=[]), "1 rows of no_p2p"),
        (changed(no_p2p=[[0]]), "indices of later GPUs in no_p2p, row 0"),
        (changed(no_p2p=[[9]]), "indices of later GPUs in no_p2p, row 0"),
        (changed(nics=[["mlx5_0", "PIX"]]), "NIC mlx5_0: 1 entries: expected 2"),
        (changed(nics=[["mlx5_0", "PIX NV4"]]), "NIC mlx5_0: 'NV4'"),
        (changed(nic_gbit_per_s=[400, 400]), "1 speeds of its NICs"),
        (changed(nic_gbit_per_s=[-1]), "NIC mlx5_0: -1 Gbit/s: expected 1 to 100000"),
        (changed(unhealthy=[7]), "indices of its GPUs in unhealthy, not 7"),
        (changed(pcie_lanes=[[7, 8, 16]]), "indices of its GPUs in pcie_lanes, not 7"),
        (changed(clique=7), r"Expected `str \| null`, got `int` - at `\$.clique`"),
    ],
)
def test_bad_text_is_refused_with_the_key_and_the_place(text: str, error: str) -> None:
    with pytest.raises((AnnotationError, MachineError), match=error) as refusal:
        read_topology(text)
    assert str(refusal.value).startswith("linkwise.dev/topology: ")


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_a_machine_or_a_refusal(text: str) -> None:
    with pytest.raises((AnnotationError, MachineError)):
        read_topology(text)


_VALUES = st.none() | st.integers() | st.text() | st.lists(st.integers() | st.text())
_FIELDS = st.sampled_from(
    ["models", "gpus", "links", "nics", "nic_gbit_per_s", "unhealthy", "pcie_lanes", "clique", "v"]
)


@given(st.dictionaries(_FIELDS, _VALUES | st.lists(_VALUES)))
def test_any_change_to_a_field_is_a_machine_or_a_refusal(changes: dict[str, object]) -> None:
    try:
        read = read_topology(changed(**changes))
    except (AnnotationError, MachineError) as error:
        assert str(error).startswith("linkwise.dev/topology: ")  # noqa: PT017 - or it is read
    else:
        assert read_topology(write_topology(read)) == read


def test_the_vendor_and_pairs_that_other_links_join_come_back() -> None:
    """A reader that knows neither takes such a pair for what PCIe makes of it."""
    made = replace(BRIDGED_PAIR, vendor="amd", links=(replace(BRIDGED_PAIR.links[0], nvlinks=0),))
    routed = replace(made, links=(replace(made.links[0], routed=True),))
    text = write_topology(routed)
    assert text.startswith('{"v":1,"vendor":"amd",')
    assert '"links":["NODE"],"routed":[[1]]' in text
    assert read_topology(text) == routed
    assert "vendor" not in write_topology(BRIDGED_PAIR)
    with pytest.raises(AnnotationError, match="1 rows of routed"):
        read_topology(text.replace('"routed":[[1]]', '"routed":[[1],[1]]'))
    with pytest.raises(AnnotationError, match="indices of later GPUs in routed, row 0"):
        read_topology(text.replace('"routed":[[1]]', '"routed":[[7]]'))
