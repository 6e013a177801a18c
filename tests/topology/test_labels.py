"""Labels say what a nodeSelector may ask, in legal values, and as GFD would where it has a name."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.annotations.labels import label_value, node_labels
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from linkwise.topology.machine.recorded import recorded_machine
from tests.machines import DGX_1V, DGX_A100, PCIE_8, any_machine

LEGAL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")  # apimachinery


def test_a_dgx_a100_tells_all_of_this() -> None:
    machine = replace(DGX_A100, driver_version="550.107.02", cuda_version="12.4")
    assert node_labels(machine) == {
        "linkwise.dev/gpu.count": "8",
        "linkwise.dev/gpu.model": "NVIDIA-A100-SXM4-40GB",
        "linkwise.dev/gpu.memory": "40960",
        "linkwise.dev/nvlink": "NV12-switch",
        "linkwise.dev/nvlink.island": "8",
        "linkwise.dev/pcie.switches": "4",
        "linkwise.dev/numa.nodes": "4",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/cuda.driver-version.full": "550.107.02",
        "nvidia.com/cuda.driver-version.major": "550",
        "nvidia.com/cuda.driver-version.minor": "107",
        "nvidia.com/cuda.driver-version.revision": "02",
        "nvidia.com/cuda.driver.major": "550",
        "nvidia.com/cuda.driver.minor": "107",
        "nvidia.com/cuda.driver.rev": "02",
        "nvidia.com/cuda.runtime-version.full": "12.4",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "4",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "4",
    }


@pytest.mark.parametrize(
    ("name", "nvlink", "island", "switches"),
    [
        ("dgx1-v100", "NV1-2", "8", "4"),
        ("dgx2-v100", "NV6-switch", "16", "0"),  # its PCIe switches were not seen
        ("hgx-h100", "NV18-switch", "8", "0"),  # a switch for each GPU
        ("h200-nvl-2x4", "NV6", "4", "0"),
        ("a100-pcie-8-bridged", "NV12", "2", "0"),
        ("p100-pcie-8", "none", "1", "2"),
        ("mixed-5", "none", "1", "0"),
    ],
)
def test_links_are_told_by_kind_island_and_switches(
    name: str, nvlink: str, island: str, switches: str
) -> None:
    labels = node_labels(recorded_machine(name))
    assert labels["linkwise.dev/nvlink"] == nvlink
    assert labels["linkwise.dev/nvlink.island"] == island
    assert labels["linkwise.dev/pcie.switches"] == switches


def test_both_name_the_clique() -> None:
    machine = replace(PCIE_8, clique="7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1")
    labels = node_labels(machine)
    assert labels["linkwise.dev/clique"] == labels["nvidia.com/gpu.clique"] == machine.clique


MIXED = Machine(
    gpus=(
        Gpu("GPU-a", 0, "Tesla T4", 15360, compute_capability=(7, 5)),
        Gpu("GPU-b", 1, "NVIDIA H200", 143771),
        Gpu("GPU-c", 2, "NVIDIA H200", 143771),
    ),
    links=(Link(LinkClass.SYS),) * 3,
)


def test_of_mixed_models_ours_promise_no_more_than_every_gpu_keeps() -> None:
    labels = node_labels(MIXED)
    assert labels["linkwise.dev/gpu.count"] == "3"
    assert labels["linkwise.dev/gpu.model"] == "mixed"
    assert labels["linkwise.dev/gpu.memory"] == "15360"


def test_of_mixed_models_gfds_labels_tell_the_last_one_as_gfd_does() -> None:
    labels = node_labels(MIXED)
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert labels["nvidia.com/gpu.count"] == "2"
    assert labels["nvidia.com/gpu.memory"] == "143771"
    assert labels["nvidia.com/gpu.family"] == "hopper"


def test_nvlinks_are_through_a_switch_where_all_of_them_are() -> None:
    direct = replace(DGX_A100.links[0], through_switch=False)
    partly = replace(DGX_A100, links=(direct, *DGX_A100.links[1:]))
    assert node_labels(partly)["linkwise.dev/nvlink"] == "NV12"


def test_a_model_not_known_is_told_by_what_the_driver_says_of_it() -> None:
    gpu = Gpu("GPU-a", 0, "NVIDIA Secret", 1024, compute_capability=(9, 0))
    labels = node_labels(Machine(gpus=(gpu,), links=()))
    assert labels["nvidia.com/gpu.family"] == "hopper"
    assert labels["nvidia.com/gpu.compute.major"] == "9"


def test_what_is_not_known_is_left_out() -> None:
    unknown = Machine(gpus=(Gpu("GPU-a", 0, "GPU", 0),), links=())
    assert node_labels(unknown) == {
        "linkwise.dev/gpu.count": "1",
        "linkwise.dev/gpu.model": "GPU",
        "linkwise.dev/nvlink": "none",
        "linkwise.dev/nvlink.island": "1",
        "linkwise.dev/pcie.switches": "0",
        "nvidia.com/gpu.product": "GPU",
        "nvidia.com/gpu.count": "1",
    }


@pytest.mark.parametrize("version", ["", "550", "550.x", "1.2.3.4", "550.54.15 beta"])
def test_a_driver_version_of_another_form_gives_no_label(version: str) -> None:
    labels = node_labels(replace(DGX_1V, driver_version=version, cuda_version=version))
    assert not [name for name in labels if "cuda" in name]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA A100 80GB PCIe", "NVIDIA-A100-80GB-PCIe"),
        ("Quadro  RTX 8000 ", "Quadro-RTX-8000"),
        ("PCIe GPU (model not given)", "PCIe-GPU-model-not-given"),
        ("_.-", ""),
        ("x" * 62 + "-y", "x" * 62),
        ("GPU ü", "GPU"),
        ("NVIDIA  RTX™ 6000/Ada (48 GB)", "NVIDIA-RTX-6000Ada-48-GB"),
        ("™", ""),
    ],
)
def test_a_text_becomes_a_label_value(text: str, value: str) -> None:
    assert label_value(text) == value


@given(st.text())
def test_a_label_value_is_always_legal(text: str) -> None:
    assert LEGAL_VALUE.fullmatch(label_value(text))


@given(any_machine(most_gpus=4))
def test_every_label_of_any_machine_is_legal(machine: Machine) -> None:
    for value in node_labels(machine).values():
        assert LEGAL_VALUE.fullmatch(value)


AMD_PAIR = Machine(
    gpus=tuple(
        Gpu(f"0000:0{index}:00.0", index, "AMD Instinct MI250X (MCM)", 65520) for index in (0, 1)
    ),
    links=(Link(LinkClass.NODE, nvlinks=4),),
    vendor="amd",
)


def test_of_amds_gpus_no_label_is_nvidias() -> None:
    """The names and values are those of AMD's own labeller."""
    labels = node_labels(AMD_PAIR)
    assert {key: text for key, text in labels.items() if "linkwise.dev" not in key} == {
        "amd.com/gpu.product-name": "AMD_Instinct_MI250X_MCM",
        "amd.com/gpu.vram": "64G",
    }
    assert labels["linkwise.dev/nvlink"] == "XGMI4"
