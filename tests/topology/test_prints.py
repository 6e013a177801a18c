"""What AMD's tools print and what NCCL dumps, in the shape of real ones."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import Link, LinkClass, Machine
from linkwise.topology.machine.prints import read_print
from linkwise.topology.machine.recorded import read_machine_file
from linkwise.topology.machine.topo_matrix import of_model, read_matrix, write_matrix
from linkwise.topology.sets.choose import choose
from tests.topology.printed import FRONTIER, amd_smi, rccl, rocm_smi, table

EIGHT = range(8)


def links(machine: Machine) -> list[tuple[int, bool, LinkClass]]:
    return [(link.nvlinks, link.routed, link.kind) for link in machine.links]


def test_rocm_smi_shows_which_gpus_links_join_and_not_how_many() -> None:
    read = read_print(rocm_smi(FRONTIER), model="AMD Instinct MI250X")
    assert [(min(n, 1), *others) for n, *others in links(FRONTIER)] == links(read.machine)
    assert [gpu.numa_node for gpu in read.machine.gpus] == [3, 3, 1, 1, 0, 0, 2, 2]
    assert read.machine.vendor == "amd"
    assert "does not show how many xGMI links join two GPUs" in read.untold


def test_amd_smi_counts_links_by_their_bandwidth() -> None:
    read = read_print(amd_smi(FRONTIER))
    assert [link.nvlinks for link in read.machine.links] == [
        link.nvlinks for link in FRONTIER.links
    ]
    assert [gpu.pci_bus_id for gpu in read.machine.gpus][:2] == ["0000:c1:00.0", "0000:c6:00.0"]
    assert read.untold == "rests on `amd-smi topology`, which shows no NUMA nodes"
    assert "how many xGMI links" in read_print(amd_smi(FRONTIER, bandwidths=False)).untold


def test_a_dump_shows_links_switches_and_cards() -> None:
    read = read_print(rccl(FRONTIER))
    assert [link.nvlinks for link in read.machine.links] == [
        link.nvlinks for link in FRONTIER.links
    ]
    assert {gpu.model for gpu in read.machine.gpus} == {"AMD gfx90a"}
    assert [gpu.numa_node for gpu in read.machine.gpus] == [3, 3, 1, 1, 0, 0, 2, 2]
    assert [nic.name for nic in read.machine.nics] == [f"mlx5_{n}" for n in EIGHT]
    assert read.machine.nics[0].closeness[:3] == (LinkClass.PIX, LinkClass.NODE, LinkClass.SYS)
    assert read.machine.nics[0].gbit_per_s == 200
    assert "the GPUs of one job" in read.untold


@pytest.mark.parametrize("written", [amd_smi, rccl, write_matrix])
def test_all_that_count_links_give_one_answer(written: Callable[[Machine], str]) -> None:
    """Of GPUs 0 to 3 and 6, the two dies of a module have most; 0 and 6 have two links."""
    machine = read_print(written(FRONTIER), model="AMD Instinct MI250X").machine
    assert links(machine) == links(FRONTIER) or written is amd_smi
    for free in (0b1001001, 0b1111101, 0b1111111):
        for size in (2, 4, 6):
            found, known = choose(machine, free, size), choose(FRONTIER, free, size)
            assert (found and found.gpus) == (known and known.gpus)


def test_gpus_of_one_hive_without_a_link_reach_each_other_over_others() -> None:
    link = FRONTIER.link(0, 3)
    assert (link.routed, link.kind, link.nvlinks) == (True, LinkClass.NVLINK, 0)
    assert not any(each.routed for each in read_matrix("GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X").links)


NCCL = """$ cat /tmp/topo.xml
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:15:00.0" class="0x060400" link_speed="32.0 GT/s" link_width="16">
      <pci busid="0000:17:00.0" class="0x060400" link_speed="32.0 GT/s" link_width="16">
        <pci busid="0000:19:00.0" class="0x030200" vendor="0x10de" device="0x2330">
          <gpu dev="0" sm="90" rank="0" gdr="1">
            <nvlink target="0000:05:00.0" count="10" tclass="0x068000"/>
            <nvlink target="fffffff:ffff:ff" count="8" tclass="0x068000"/>
          </gpu>
        </pci>
      </pci>
      <pci busid="0000:18:00.0" class="0x060400" link_speed="32.0 GT/s" link_width="16">
        <pci busid="0000:1a:00.0" class="0x030200" vendor="0x10de" device="0x2330">
          <gpu dev="1" sm="90" rank="1" gdr="1">
            <nvlink target="0000:05:00.0" count="18" tclass="0x068000"/>
          </gpu>
        </pci>
      </pci>
    </pci>
  </cpu>
</system>
$ """


def test_gpus_that_reach_switches_are_joined_by_them() -> None:
    """Two GPUs have no more links than their chip, so only a dump shows the switch."""
    machine = read_print(NCCL).machine
    assert machine.links == (Link(LinkClass.PXB, nvlinks=18, through_switch=True),)
    assert machine.gpus[0].compute_capability == (9, 0)
    assert machine.vendor == "nvidia"
    named = of_model(machine, "NVIDIA H100 80GB HBM3")
    assert named.links == machine.links
    assert named.gpus[0].memory_mib == 81559


def test_links_to_what_is_not_in_a_dump_do_not_count() -> None:
    only = re.sub(r"\btclass=\"0x068000\"", 'tclass="0x030200"', NCCL)
    assert read_print(only).machine.links == (Link(LinkClass.PXB),)


ROCM = rocm_smi(FRONTIER)
AMD = amd_smi(FRONTIER)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROCM.replace("XGMI", "XXXX", 1), "line 26: link type, row GPU0, column GPU1: 'XXXX': exp"),
        (ROCM.replace("15", "13", 1), "line 4: weight, row GPU0, column GPU1: '13': expected 15 "),
        (ROCM.replace("15", "N/A", 1), "line 4: weight, row GPU0, column GPU1: 'N/A': expected a"),
        (ROCM.replace("Numa Node: 3", "Numa Node: x", 1), "line 36: NUMA node 'x': expected a num"),
        (ROCM[: ROCM.index("Hops")], "link type: no row GPU0: expected a row for every GPU"),
        (ROCM[: ROCM.index("GPU5", ROCM.index("Link"))], "expected"),
        (ROCM + ROCM, "a second table of the weight: expected one"),
        (ROCM.replace("GPU3", "GPU9", 2), "expected"),
        (ROCM.replace("GPU1  ", "GPU0  ", 1), "line 3: columns GPU0 GPU0 GPU2"),
        ("Weight between two GPUs\nGPU0 0 15\n", "line 2: row GPU0: expected each of the columns"),
        ("WEIGHT TABLE:\n" + " ".join(f"GPU{n}" for n in range(17)), "line 2: 17 GPUs: expected 1"),
        (AMD.replace("50000-200000", "50000-70", 1), "numa bw, row 0000:c1:00.0, column 0000:c6:0"),
        (AMD.replace("50000-200000", "failed", 1), "'failed': expected N/A, or MB/s like 50000-20"),
        (AMD.replace("ENABLED", "PERHAPS", 2), "line 3: access, row 0000:c1:00.0, column 0000:c6"),
        (
            AMD.replace("50000-200000", "50000-50000", 1),
            "'XGMI1', but links, row GPU1, column GPU0",
        ),
        (NCCL.replace('sm="90"', 'sm="x"', 1), "line 7, gpu: sm 'x': expected a number from 10 to"),
        (NCCL.replace('dev="0"', "", 1), "line 7, gpu: dev None: expected a number"),
        (NCCL.replace('dev="1"', 'dev="0"'), "GPU indices [0, 0]: expected rising, each once"),
        (NCCL.replace('count="10"', 'count="99"'), "line 8, nvlink: count '99': expected a number"),
        (NCCL.replace("0x10de", "0x8086", 1), "line 6, pci: vendor '0x8086': expected 0x10de or 0"),
        (NCCL.replace("0000:19:00.0", "19", 1), "PCI bus id '19': expected like 0000:1a:00.0"),
        (NCCL.replace('numaid="0"', ""), "line 3, cpu: numaid None: expected a number from -1"),
        (NCCL.replace("</gpu>", "", 1), "NCCL dump, line 11: mismatched tag: expected XML"),
        (NCCL[: NCCL.index("</system>")], "no element found: expected XML"),
        (
            NCCL.replace("<gpu", "<card").replace("/gpu", "/card"),
            "no gpu in a pci: expected one or",
        ),
        (
            '<!DOCTYPE system [<!ENTITY sm "90">]>\n' + NCCL.replace('"ffff"', '"&sm;"'),
            "line 4: undefined entity: expected XML",
        ),
        ("<system>&lol;</system>", "line 1: undefined entity: expected XML"),
        ("<system>" + "<a>" * 99, "expected at most 32 elements in each other"),
        (NCCL + " " * (1 << 20), "characters: expected <= 1048576"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(MachineError, match=re.escape(said)):
        read_print(text)


def test_gpus_without_access_do_not_reach_each_other() -> None:
    names = ["0000:0c:00.0", "0000:22:00.0"]
    text = (
        "ACCESS TABLE:\n" + table(names, lambda *_: "DISABLED", "ENABLED") + "WEIGHT TABLE:\n"
        + table(names, lambda *_: 40, "0") + "LINK TYPE TABLE:\n"
        + table(names, lambda *_: "PCIE", "SELF")
    )  # fmt: skip
    machine = read_print(text).machine
    assert machine.links == (Link(LinkClass.NODE, peer_to_peer=False),)


def test_a_print_takes_the_place_of_a_file(tmp_path: Path) -> None:
    for name, text in (("a", ROCM), ("b", AMD), ("c", NCCL)):
        assert read_machine_file(text) == read_print(text).machine
        (tmp_path / name).write_text(text)
    with pytest.raises(MachineError, match="one machine without a name"):
        read_machine_file(NCCL, "mine")


@given(st.data())
def test_damaged_text_is_a_machine_or_a_refusal(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from((ROCM, AMD, NCCL)))
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    other = data.draw(st.text('GPUXMI 0195:.-<>"=/\n', max_size=9))
    try:
        machine = read_print(text[:start] + other + text[end:]).machine
    except MachineError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
    else:
        assert 1 <= len(machine.gpus) <= 16
