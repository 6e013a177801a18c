"""What a GPU's model name says about link speeds, which no tool on the node reports.

Each vendor's module has its models (`vendors/`). They only fill gaps of recorded machines; a live
node reports its own memory. Every name has an answer: an unknown model gets `UNKNOWN`, the slowest
of each kind.
"""

from functools import lru_cache

from linkwise.topology.machine.model import USUAL_PCIE_LANES, Gpu
from linkwise.topology.vendors import nvidia
from linkwise.topology.vendors.known import VENDORS
from linkwise.topology.vendors.vendor import UNKNOWN, ModelFacts


@lru_cache(maxsize=1024)
def facts_of(model: str) -> ModelFacts:
    """Return the facts of a model by its driver's name for it, or part of that. Never fails."""
    found = (vendor.facts_of(model) for vendor in VENDORS.values())
    return next((facts for facts in found if facts is not UNKNOWN), UNKNOWN)


def facts_of_gpu(gpu: Gpu) -> ModelFacts:
    """Return the facts as `facts_of`, or by the compute capability, which only NVIDIA's GPUs
    have."""
    return facts_of(gpu.model) if gpu.compute_capability is None else nvidia.facts_of_gpu(gpu)


def is_a100_card(gpu: Gpu) -> bool:
    """Whether the name says that this is an A100 or A30 of PCIe form: only a bridge joins two."""
    is_card = "pcie" in gpu.model.lower()
    return is_card and facts_of_gpu(gpu).compute_capability == (8, 0)


@lru_cache(maxsize=1024)
def has_peer_to_peer(model: str) -> bool:
    """Whether GPUs of this model reach each other over PCIe, if nothing else is known."""
    patterns = (vendor.no_peer_to_peer for vendor in VENDORS.values())
    return not any(pattern and pattern.search(model) for pattern in patterns)


def slot_gbytes_per_s(gpu: Gpu) -> float:
    """Return what the PCIe lanes of this GPU that are up carry."""
    return facts_of_gpu(gpu).pcie_gbytes_per_s * gpu.pcie_lanes / USUAL_PCIE_LANES
