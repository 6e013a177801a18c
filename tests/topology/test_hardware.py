"""What a model's name tells; the expected values are the table of docs/topology.md."""

import pytest

from linkwise.topology.machine.hardware import facts_of, facts_of_gpu
from linkwise.topology.machine.model import Gpu
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from linkwise.topology.vendors.vendor import UNKNOWN

UNNAMED = {"plx-8-pxb", "mixed-5", "gpu-manager-6"}  # their sources give no model


@pytest.mark.parametrize(
    ("model", "family", "capability", "nvlinks", "nvlink", "pcie"),
    [
        ("Tesla P100-SXM2-16GB", "pascal", (6, 0), 4, 18.0, 12.0),
        ("Tesla V100-SXM2-32GB", "volta", (7, 0), 6, 20.0, 12.0),
        ("Tesla T4", "turing", (7, 5), 0, 20.0, 12.0),
        ("Quadro RTX 8000", "turing", (7, 5), 2, 20.0, 12.0),
        ("NVIDIA A100-SXM4-80GB", "ampere", (8, 0), 12, 20.0, 24.0),
        ("NVIDIA A10G", "ampere", (8, 6), 0, 12.0, 24.0),
        ("NVIDIA RTX A6000", "ampere", (8, 6), 4, 12.0, 24.0),
        ("NVIDIA L40S", "ada-lovelace", (8, 9), 0, 20.0, 24.0),
        ("NVIDIA RTX 6000 Ada Generation", "ada-lovelace", (8, 9), 0, 20.0, 24.0),
        ("NVIDIA GeForce RTX 4090", "ada-lovelace", (8, 9), 0, 20.0, 24.0),
        ("NVIDIA H100 80GB HBM3", "hopper", (9, 0), 18, 20.6, 48.0),
        ("NVIDIA H100 PCIe", "hopper", (9, 0), 12, 20.6, 48.0),
        ("NVIDIA H200", "hopper", (9, 0), 18, 20.6, 48.0),
        ("NVIDIA B200", "blackwell", (10, 0), 18, 37.6, 48.0),
        ("NVIDIA GB200", "blackwell", (10, 0), 18, 37.6, 48.0),
        ("NVIDIA GeForce RTX 5090", "blackwell", (12, 0), 0, 37.6, 48.0),
        ("NVIDIA GeForce RTX 4060 Ti", "ada-lovelace", (8, 9), 0, 20.0, 24.0),
        # Numbers of GeForce come again in other generations.
        ("Quadro RTX 4000", "turing", (7, 5), 0, 20.0, 12.0),
        ("Quadro RTX 5000", "turing", (7, 5), 1, 20.0, 12.0),
        ("Quadro RTX 6000", "turing", (7, 5), 2, 20.0, 12.0),
        ("NVIDIA RTX 4000 SFF Ada Generation", "ada-lovelace", (8, 9), 0, 20.0, 24.0),
        ("NVIDIA RTX 5000 Ada Generation", "ada-lovelace", (8, 9), 0, 20.0, 24.0),
        ("NVIDIA RTX A5000", "ampere", (8, 6), 0, 12.0, 24.0),
        ("NVIDIA RTX PRO 5000 Blackwell", "blackwell", (12, 0), 0, 37.6, 48.0),
    ],
)
def test_a_known_model_of_nvidia(
    model: str,
    family: str,
    capability: tuple[int, int],
    nvlinks: int,
    nvlink: float,
    pcie: float,
) -> None:
    facts = facts_of(model)
    assert (facts.family, facts.compute_capability) == (family, capability)
    assert (facts.nvlinks, facts.nvlink_gbytes_per_s) == (nvlinks, nvlink)
    assert facts.pcie_gbytes_per_s == pcie


@pytest.mark.parametrize(
    ("model", "memory_mib"),
    [
        ("Tesla V100-SXM2-16GB", 16384),
        ("Tesla V100-SXM2-32GB", 32768),
        ("A100-SXM4-40GB", 40960),
        ("A100 80GB PCIe", 81920),
        ("H100-SXM5-80GB", 81559),
        ("NVIDIA GH200 480GB", 97871),  # the name counts the CPU's memory
    ],
)
def test_memory_is_what_nvidia_smi_prints(model: str, memory_mib: int) -> None:
    assert facts_of(model).memory_mib == memory_mib


def test_a_variant_is_not_taken_for_what_its_name_contains() -> None:
    assert facts_of("NVIDIA GB200") != facts_of("NVIDIA B200")  # Arm CPUs between its sockets
    assert facts_of("NVIDIA L4").memory_mib != facts_of("NVIDIA L40").memory_mib
    assert facts_of("NVIDIA A100").memory_mib != facts_of("NVIDIA A10").memory_mib


def test_the_label_of_a_name_tells_as_much_as_the_name() -> None:
    for model in ("NVIDIA A100 80GB PCIe", "NVIDIA GeForce RTX 4090", "NVIDIA RTX A6000"):
        assert facts_of(model.replace(" ", "-")) == facts_of(model)


def test_a_model_nobody_has_heard_of_gets_the_slowest_of_each_kind() -> None:
    facts = facts_of("Frobnicator 9000")
    assert facts is UNKNOWN
    assert (facts.family, facts.compute_capability, facts.nvlinks) == ("undefined", None, 0)
    assert facts.pcie_gbytes_per_s == 12.0
    assert facts.inter_socket_gbytes_per_s == 6.0
    known = (facts_of(gpu.model) for name in machine_names() for gpu in recorded_machine(name).gpus)
    assert facts.nvlink_gbytes_per_s <= min(each.nvlink_gbytes_per_s for each in known)


@pytest.mark.parametrize(
    ("capability", "family", "nvlink"),
    [
        ((6, 1), "pascal", 18.0),
        ((8, 7), "ampere", 20.0),
        ((8, 9), "ada-lovelace", 20.0),
        ((9, 0), "hopper", 20.6),
        ((10, 3), "blackwell", 37.6),
        ((13, 0), "undefined", 37.6),
    ],
)
def test_an_unknown_name_is_told_by_its_compute_capability(
    capability: tuple[int, int], family: str, nvlink: float
) -> None:
    facts = facts_of_gpu(Gpu("GPU-1", 0, "Frobnicator", 1, compute_capability=capability))
    assert (facts.family, facts.nvlink_gbytes_per_s) == (family, nvlink)


def test_the_compute_capability_decides_against_a_name() -> None:
    def family(model: str, major: int, minor: int) -> str:
        gpu = Gpu("GPU-1", 0, model, 1, compute_capability=(major, minor))
        return facts_of_gpu(gpu).family

    assert family("NVIDIA GeForce RTX 5090", 8, 9) == "ada-lovelace"
    assert family("NVIDIA GeForce RTX 5090", 12, 0) == "blackwell"
    gb300 = Gpu("GPU-1", 0, "NVIDIA B200", 1, compute_capability=(10, 3))
    assert facts_of_gpu(gb300) == facts_of("NVIDIA B200"), "the same family"


@pytest.mark.parametrize("name", sorted(set(machine_names()) - UNNAMED))
def test_every_recorded_machine_with_a_model_is_of_a_known_one(name: str) -> None:
    for gpu in recorded_machine(name).gpus:
        assert facts_of(gpu.model) is not UNKNOWN


@pytest.mark.parametrize(
    ("model", "family", "xgmi", "pcie", "memory_gib"),
    [
        ("AMD Instinct MI300X OAM", "gfx942", 48.0, 48.0, 192),
        ("AMD-Instinct-MI325X-OAM", "gfx942", 48.0, 48.0, 256),
        ("AMD Instinct MI355X", "gfx950", 48.0, 48.0, 288),
        ("AMD Instinct MI300A", "gfx942", 48.0, 48.0, 128),
        ("AMD gfx942", "gfx942", 48.0, 48.0, None),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "gfx90a", 36.0, 24.0, 64),
        ("AMD Instinct MI210", "gfx90a", 36.0, 24.0, 64),
        ("Arcturus GL-XL [Instinct MI100]", "gfx908", 24.0, 24.0, 32),
        ("AMD Radeon Instinct MI60", "gfx906", 24.0, 24.0, 32),
        ("AMD gfx906", "gfx906", 24.0, 24.0, None),
    ],
)
def test_a_known_model_of_amd(
    model: str, family: str, xgmi: float, pcie: float, memory_gib: int | None
) -> None:
    facts = facts_of(model)
    assert (facts.family, facts.nvlink_gbytes_per_s, facts.pcie_gbytes_per_s) == (
        family,
        xgmi,
        pcie,
    )
    assert facts.memory_mib == (memory_gib and memory_gib * 1024)
    assert facts.compute_capability is None
