"""NVIDIA: what its model names and compute capabilities say of link speeds, and its labels.

NVML gives the number of NVLinks, the PCIe distance and the PCIe width, never the bandwidth that a
collective gets from them. These GB/s are NCCL's search constants (NVIDIA/nccl `src/graph/topo.h`,
Apache-2.0): per NVLink and direction, per x16 slot, per connection between CPU sockets. Where a
ring was measured to get less of them, that counts. Memory sizes are what `nvidia-smi` prints.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from linkwise.topology.machine.model import Gpu, Machine
from linkwise.topology.vendors.vendor import (
    UNKNOWN,
    ComputeCapability,
    ModelFacts,
    Vendor,
    patterns,
)

_GEN3, _GEN4, _GEN5 = 12.0, 24.0, 48.0  # NCCL knows 12 for Gen3 x16; the others scale with it
_QPI, _UPI_SKYLAKE, _AMD, _UPI_SAPPHIRE, _UPI_EMERALD, _ARM = 6.0, 10.0, 16.0, 22.0, 40.0, 6.0

_PRODUCT, _COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.count"
_REPLICAS = "nvidia.com/gpu.replicas"

_SPEEDS: dict[str, tuple[float, float]] = {  # family -> PCIe, between sockets
    "kepler": (_GEN3, _QPI),
    "maxwell": (_GEN3, _QPI),
    "pascal": (_GEN3, _QPI),  # DGX-1: Broadwell
    "volta": (_GEN3, _QPI),  # DGX-1V: Broadwell
    "turing": (_GEN3, _UPI_SKYLAKE),
    "ampere": (_GEN4, _AMD),  # DGX A100: Rome
    "ada-lovelace": (_GEN4, _UPI_SAPPHIRE),
    "hopper": (_GEN5, _UPI_SAPPHIRE),  # DGX H100: Sapphire Rapids
    "blackwell": (_GEN5, _UPI_EMERALD),  # DGX B200: Emerald Rapids
    "undefined": (_GEN3, _QPI),
}

_UNKNOWN_NVLINK = UNKNOWN.nccl_nvlink_gbytes_per_s
_NVLINK_5 = 40.1
_RING_ON_NVLINK_5 = 37.6
"""Measured: 673 to 682 GB/s on 18 of them (stas00/ml-engineering 744d01e, `network/README.md`)."""


def _nccl_nvlink_gbytes_per_s(capability: ComputeCapability | None) -> float:
    """NCCL's `ncclTopoNVLinkBw`."""
    if capability is None or capability < (6, 0):
        return _UNKNOWN_NVLINK
    if capability >= (10, 0):
        return _NVLINK_5
    if capability >= (9, 0):
        return 20.6
    if capability == (8, 6):
        return 12.0
    return 20.0 if capability >= (7, 0) else 18.0


def _sharp_share(capability: ComputeCapability | None) -> float:
    """NCCL's `nvlsEfficiency` (`src/graph/tuning.cc`). NVSwitches reduce since their third
    generation, Hopper's; none joins Blackwell's cards."""
    if capability is None or not (9, 0) <= capability < (12, 0):
        return 0.0
    return 0.85 if capability < (10, 0) else 0.74


def _facts(
    family: str,
    capability: ComputeCapability | None,
    memory_mib: int | None,
    nvlinks: int,
    inter_socket: float | None = None,
) -> ModelFacts:
    pcie, usual_inter_socket = _SPEEDS[family]
    nvlink = _nccl_nvlink_gbytes_per_s(capability)
    return ModelFacts(
        family=family,
        compute_capability=capability,
        memory_mib=memory_mib,
        nvlinks=nvlinks,
        nvlink_gbytes_per_s=_RING_ON_NVLINK_5 if nvlink == _NVLINK_5 else nvlink,
        nccl_nvlink_gbytes_per_s=nvlink,
        sharp_share=_sharp_share(capability),
        pcie_gbytes_per_s=pcie,
        inter_socket_gbytes_per_s=usual_inter_socket if inter_socket is None else inter_socket,
    )


# The first pattern that matches counts, so variants come before their base model.
_MODELS: tuple[tuple[str, ModelFacts], ...] = (
    (r"\bGB300", _facts("blackwell", (10, 3), 284208, 18, _ARM)),
    (r"\bGB200", _facts("blackwell", (10, 0), 189471, 18, _ARM)),
    (r"\bB300", _facts("blackwell", (10, 3), 275040, 18)),
    (r"\bB[12]00", _facts("blackwell", (10, 0), 183359, 18)),
    (r"\bRTX PRO \d+.*Blackwell|\bRTX PRO 6000", _facts("blackwell", (12, 0), 97887, 0)),
    # Quadro RTX 4000 and RTX 4000 Ada are no RTX 4000 of GeForce, which begins with 4050.
    (r"\bRTX 5090", _facts("blackwell", (12, 0), 32607, 0)),
    (r"\bRTX 50[5-9]0", _facts("blackwell", (12, 0), None, 0)),
    (r"\bGH200", _facts("hopper", (9, 0), 97871, 18, _ARM)),
    (r"\bH200", _facts("hopper", (9, 0), 143771, 18)),
    (r"\bH100.*NVL", _facts("hopper", (9, 0), 95830, 12)),
    (r"\bH100.*PCIe", _facts("hopper", (9, 0), 81559, 12)),
    (r"\bH100", _facts("hopper", (9, 0), 81559, 18)),
    (r"\bH800", _facts("hopper", (9, 0), 81559, 8)),
    (r"\bH20\b", _facts("hopper", (9, 0), 97871, 18)),
    (r"\bRTX 6000.*Ada", _facts("ada-lovelace", (8, 9), 49140, 0)),
    (r"\bRTX \d+.*Ada", _facts("ada-lovelace", (8, 9), None, 0)),
    (r"\bL40S?\b", _facts("ada-lovelace", (8, 9), 46068, 0)),
    (r"\bL4\b", _facts("ada-lovelace", (8, 9), 23034, 0)),
    (r"\bL20?\b", _facts("ada-lovelace", (8, 9), None, 0)),
    (r"\bRTX 4090", _facts("ada-lovelace", (8, 9), 24564, 0)),
    (r"\bRTX 40[5-9]0", _facts("ada-lovelace", (8, 9), None, 0)),
    (r"\bA100.*80 ?GB", _facts("ampere", (8, 0), 81920, 12)),
    (r"\bA100", _facts("ampere", (8, 0), 40960, 12)),
    (r"\bA800", _facts("ampere", (8, 0), 81920, 8)),
    (r"\bA30\b", _facts("ampere", (8, 0), 24576, 4)),
    (r"\bA40\b", _facts("ampere", (8, 6), 46068, 4)),
    (r"\bA10G?\b", _facts("ampere", (8, 6), 23028, 0)),
    (r"\bA(2|16)\b", _facts("ampere", (8, 6), 15356, 0)),
    (r"\bRTX A6000", _facts("ampere", (8, 6), 49140, 4)),
    (r"\bRTX A\d+", _facts("ampere", (8, 6), None, 0)),
    (r"\bRTX 3090", _facts("ampere", (8, 6), 24576, 4)),
    (r"\bRTX 30[5-9]0", _facts("ampere", (8, 6), None, 0)),
    (r"\bT4G?\b", _facts("turing", (7, 5), 15360, 0)),
    (r"\bQuadro RTX 8000", _facts("turing", (7, 5), 49152, 2)),
    (r"\bQuadro RTX 6000|\bTITAN RTX", _facts("turing", (7, 5), 24576, 2)),
    (r"\bQuadro RTX 5000", _facts("turing", (7, 5), 16384, 1)),
    (r"\bRTX 2080 Ti", _facts("turing", (7, 5), 11264, 2)),
    (r"\bRTX 20\d0|\bGTX 16\d0|\bQuadro RTX", _facts("turing", (7, 5), None, 0)),
    (r"\bV100.*PCIe.*32 ?GB", _facts("volta", (7, 0), 32768, 0)),
    (r"\bV100.*PCIe", _facts("volta", (7, 0), 16384, 0)),
    (r"\bV100.*32 ?GB", _facts("volta", (7, 0), 32768, 6)),
    (r"\bV100", _facts("volta", (7, 0), 16384, 6)),
    (r"\bTITAN V\b|\bGV100", _facts("volta", (7, 0), None, 0)),
    (r"\bP100.*PCIe", _facts("pascal", (6, 0), 16384, 0)),
    (r"\bP100", _facts("pascal", (6, 0), 16384, 4)),
    (r"\bP40\b", _facts("pascal", (6, 1), 23040, 0)),
    (r"\bP4\b|\bGTX 10\d0|\bTITAN Xp?\b", _facts("pascal", (6, 1), None, 0)),
    (r"\bM(4|10|40|60)\b|\bGTX 9\d0", _facts("maxwell", (5, 2), None, 0)),
    (r"\bK80\b", _facts("kepler", (3, 7), None, 0)),
)


@lru_cache(maxsize=1024)
def _facts_of_capability(capability: ComputeCapability) -> ModelFacts:
    for family, newest in (
        ("kepler", (4, 99)),
        ("maxwell", (5, 99)),
        ("pascal", (6, 99)),
        ("volta", (7, 4)),
        ("turing", (7, 99)),
        ("ampere", (8, 8)),
        ("ada-lovelace", (8, 99)),
        ("hopper", (9, 99)),
        ("blackwell", (12, 99)),
    ):
        if capability <= newest:
            return _facts(family, capability, None, 0)
    return _facts("undefined", capability, None, 0)


@lru_cache(maxsize=1024)
def _facts_of(model: str) -> ModelFacts:
    return NVIDIA.facts_of(model)


def facts_of_gpu(gpu: Gpu) -> ModelFacts:
    """Return the facts of the name, but those of the compute capability if that is known, and of
    another family than the name: names come again in other generations."""
    facts = _facts_of(gpu.model)
    if gpu.compute_capability is None:
        return facts
    known = _facts_of_capability(gpu.compute_capability)
    return known if facts is UNKNOWN or facts.family != known.family else facts


def gfd_labels(machine: Machine) -> dict[str, str]:
    """Return the labels of GPU feature discovery (GFD), so that manifests for it work on a cluster
    without it. On a node with several GPU models they name the last GPU's, as GFD does."""
    last = machine.gpus[-1]
    labels = {
        "gpu.product": last.model,
        "gpu.count": str(sum(gpu.model == last.model for gpu in machine.gpus)),
    }
    if last.memory_mib:
        labels["gpu.memory"] = str(last.memory_mib)
    facts = facts_of_gpu(last)
    capability = last.compute_capability or facts.compute_capability
    if capability:
        labels["gpu.family"] = facts.family
        labels["gpu.compute.major"], labels["gpu.compute.minor"] = map(str, capability)
    if machine.clique:
        labels["gpu.clique"] = machine.clique
    return labels | _driver_labels(machine.driver_version) | _cuda_labels(machine.cuda_version)


def _not_whole(labels: Mapping[str, str], offered: int) -> str:
    product, count = labels.get(_PRODUCT, ""), labels.get(_COUNT, "")
    if product.endswith("-SHARED") or labels.get(_REPLICAS, "1") not in ("0", "1"):
        return "its GPUs are shared (time slicing or MPS)"
    if "-MIG-" in product or (count.isdigit() and int(count) != offered):
        return f"it offers {offered} GPUs and {_COUNT} says {count or 'nothing'} (MIG?)"
    return ""


def _driver_labels(version: str | None) -> dict[str, str]:
    """Return the driver's labels. Like GFD, they know X.Y and X.Y.Z only."""
    if version is None or not re.fullmatch(r"[0-9]+\.[0-9]+(\.[0-9]+)?", version):
        return {}
    major, minor, revision = (*version.split("."), "")[:3]
    return {
        "cuda.driver-version.full": version,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        # Older names, which GFD still writes.
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
    }


def _cuda_labels(version: str | None) -> dict[str, str]:
    if version is None or not re.fullmatch(r"[0-9]+\.[0-9]+", version):
        return {}
    major, minor = version.split(".")
    return {
        "cuda.runtime-version.full": version,
        "cuda.runtime-version.major": major,
        "cuda.runtime-version.minor": minor,
        "cuda.runtime.major": major,
        "cuda.runtime.minor": minor,
    }


NVIDIA = Vendor(
    name="nvidia",
    link="NVLink",
    links="NVLinks",
    link_prefix="NV",
    label_prefix="nvidia.com/",
    labels=gfd_labels,
    product_label=_PRODUCT,
    label_blank="-",
    not_whole=_not_whole,
    models=patterns(_MODELS),
    # GeForce cards do not reach each other over PCIe (NVIDIA/nccl#1309). Of others a driver may say
    # so: a virtual machine, or access control on the way.
    no_peer_to_peer=re.compile(r"\bGeForce\b|\bRTX[ -][2-5]0[5-9]0", re.IGNORECASE),
    part=re.compile(r"mig-.*"),
    routed=False,
    parts_linked=False,
    pci_vendor="10de",
    dra_driver="gpu.nvidia.com",
    dra_id="uuid",
    plugin_words=("nvidia",),
    most_asked=None,
)
