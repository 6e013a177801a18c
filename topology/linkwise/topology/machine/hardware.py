"""What a GPU's model name says about link speeds, which no tool on the node reports.

NVML gives the number of NVLinks and the PCIe distance, never the bandwidth that a collective gets
from them. These GB/s are NCCL's search constants (NVIDIA/nccl `src/graph/topo.h`, Apache-2.0): per
NVLink and direction, per x16 slot, per connection between CPU sockets. Memory sizes are what
`nvidia-smi` prints. They only fill gaps of recorded machines; a live node reports its own. Every
name has an answer: an unknown model gets `UNKNOWN`, the slowest of each kind.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from linkwise.topology.machine.model import Gpu

ComputeCapability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model. Speeds are GB/s in one direction.

    `family` is GPU Feature Discovery's word. `nvlinks` is the chip's number of NVLinks, 0 if it has
    none or if that is unknown. `sharp_share` is the part of the NVLinks' speed that NVLink SHARP
    uses, 0 if NVSwitches of the GPU's generation do not reduce. `pcie_gbytes_per_s` is x16 below
    one switch. The speed between sockets is that of the CPUs in NVIDIA's own server of the GPU's
    generation.
    """

    family: str
    compute_capability: ComputeCapability | None
    memory_mib: int | None
    nvlinks: int
    nvlink_gbytes_per_s: float
    sharp_share: float
    pcie_gbytes_per_s: float
    inter_socket_gbytes_per_s: float


_GEN3, _GEN4, _GEN5 = 12.0, 24.0, 48.0  # NCCL knows 12 for Gen3 x16; the others scale with it
_QPI, _UPI_SKYLAKE, _AMD, _UPI_SAPPHIRE, _UPI_EMERALD, _ARM = 6.0, 10.0, 16.0, 22.0, 40.0, 6.0

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

_UNKNOWN_NVLINK = 12.0  # the slowest of all, so that no unknown chip wins over a known one


def _nvlink_gbytes_per_s(capability: ComputeCapability | None) -> float:
    """NCCL's `ncclTopoNVLinkBw`."""
    if capability is None or capability < (6, 0):
        return _UNKNOWN_NVLINK
    if capability >= (10, 0):
        return 40.1
    if capability >= (9, 0):
        return 20.6
    if capability == (8, 6):
        return 12.0
    return 20.0 if capability >= (7, 0) else 18.0


def _sharp_share(capability: ComputeCapability | None) -> float:
    """NCCL's `nvlsEfficiency`, and its 15 of 16 channels that carry data (`src/graph/tuning.cc`).
    NVSwitches reduce since their third generation, Hopper's; none joins Blackwell's cards."""
    if capability is None or not (9, 0) <= capability < (12, 0):
        return 0.0
    return (0.85 if capability < (10, 0) else 0.74) * 15 / 16


def _facts(
    family: str,
    capability: ComputeCapability | None,
    memory_mib: int | None,
    nvlinks: int,
    inter_socket: float | None = None,
) -> ModelFacts:
    pcie, usual_inter_socket = _SPEEDS[family]
    return ModelFacts(
        family=family,
        compute_capability=capability,
        memory_mib=memory_mib,
        nvlinks=nvlinks,
        nvlink_gbytes_per_s=_nvlink_gbytes_per_s(capability),
        sharp_share=_sharp_share(capability),
        pcie_gbytes_per_s=pcie,
        inter_socket_gbytes_per_s=usual_inter_socket if inter_socket is None else inter_socket,
    )


UNKNOWN = _facts("undefined", None, None, 0)

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
_PATTERNS = tuple(
    # Spaces may have become dashes, as in the label nvidia.com/gpu.product.
    (re.compile(pattern.replace(" ", "[ -]"), re.IGNORECASE), facts)
    for pattern, facts in _MODELS
)


@lru_cache(maxsize=1024)
def facts_of(model: str) -> ModelFacts:
    """Return the facts of a model by NVML's name for it, or part of that. Never fails."""
    for pattern, facts in _PATTERNS:
        if pattern.search(model):
            return facts
    return UNKNOWN


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


def is_a100_card(gpu: Gpu) -> bool:
    """Whether the name says that this is an A100 or A30 of PCIe form: only a bridge joins two."""
    is_card = "pcie" in gpu.model.lower()
    return is_card and facts_of_gpu(gpu).compute_capability == (8, 0)


_NO_PEER_TO_PEER = re.compile(r"\bGeForce\b|\bRTX[ -][2-5]0[5-9]0", re.IGNORECASE)


@lru_cache(maxsize=1024)
def has_peer_to_peer(model: str) -> bool:
    """Whether GPUs of this model reach each other over PCIe, if nothing else is known.

    GeForce cards do not (NVIDIA/nccl#1309). Of others a driver may say so: a virtual machine, or
    access control on the way.
    """
    return _NO_PEER_TO_PEER.search(model) is None


def facts_of_gpu(gpu: Gpu) -> ModelFacts:
    """Return the facts as `facts_of`, but those of the compute capability if that is known, and of
    another family than the name: names come again in other generations."""
    facts = facts_of(gpu.model)
    if gpu.compute_capability is None:
        return facts
    known = _facts_of_capability(gpu.compute_capability)
    return known if facts is UNKNOWN or facts.family != known.family else facts
