"""AMD: what its model names say of link speeds, and its labels.

The kernel gives the number of xGMI links, and of newer GPUs the speed of their wires, never the
bandwidth that a collective gets from them. These GB/s are RCCL's search constants (ROCm/rccl
`src/graph/topo.h`, MIT): per xGMI link and direction, per x16 slot, per connection between CPU
sockets. One value is measured: 8 MI300X reach 310 to 330 GB/s, usually 319 (AMD's blog
"mi300x-rccl-xgmi"). Rings that use each link in one direction only give 7 x 48 = 336, 5 % more;
rings that use both directions of their links give 288, 10 % less. So the first rule counts for that
generation, and for the next, which has the same mesh. Of the others nothing measured was found.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from linkwise.topology.machine.model import MAX_NVLINKS, Machine
from linkwise.topology.vendors.vendor import UNKNOWN, ModelFacts, Vendor, patterns

_GEN4, _GEN5 = 24.0, 48.0
_ROME, _GENOA = 16.0, 24.0


def _facts(
    family: str,
    xgmi: float,
    memory_gib: int | None,
    *,
    pcie: float = _GEN4,
    sockets: float = _ROME,
    one_way_rings: bool = False,
) -> ModelFacts:
    return replace(
        UNKNOWN,
        family=family,
        memory_mib=memory_gib and memory_gib << 10,
        nvlink_gbytes_per_s=xgmi,
        nccl_nvlink_gbytes_per_s=xgmi,
        pcie_gbytes_per_s=pcie,
        inter_socket_gbytes_per_s=sockets,
        one_way_rings=one_way_rings,
    )


def _mesh(memory_gib: int | None, family: str = "gfx942") -> ModelFacts:
    return _facts(family, 48.0, memory_gib, pcie=_GEN5, sockets=_GENOA, one_way_rings=True)


# A GPU whose product the driver does not name has its architecture for a model: AMD gfx942.
_MODELS: tuple[tuple[str, ModelFacts], ...] = (
    (r"\bMI350X", _mesh(288, "gfx950")),
    (r"\bMI355X", _mesh(288, "gfx950")),
    (r"\bgfx950", _mesh(None, "gfx950")),
    (r"\bMI325X", _mesh(256)),
    (r"\bMI30[08]X", _mesh(192)),
    (r"\bMI300A", _mesh(128)),
    (r"\bgfx942", _mesh(None)),
    (r"\bMI2[15]0", _facts("gfx90a", 36.0, 64)),  # 64 for each of the two dies of an MI250
    (r"\bgfx90a", _facts("gfx90a", 36.0, None)),
    (r"\bMI100", _facts("gfx908", 24.0, 32)),
    (r"\bgfx908", _facts("gfx908", 24.0, None)),
    (r"\bMI60\b", _facts("gfx906", 24.0, 32)),
    (r"\bMI50\b|\bgfx906", _facts("gfx906", 24.0, None)),
)
# Weights of xGMI between two GPUs, within one, and between partitions of two: 13 + 15 + 13.
_DIRECT = frozenset({15, 13, 41})
_GCN = re.compile(r"(?:gfx)?(9[0-9a-f]{2}|1[0-9a-f]{3})(?::.*)?")
_PARTITIONS = "amd.com/compute-memory-partition"  # of all GPUs of the node
_MISSING_IN_LABELS = re.compile(r"[()]")


def direct_links(weight: int, least: int, most: int) -> int | None:
    """Return the xGMI links of a pair, 0 if it is joined over other GPUs, by the weight and MB/s of
    the kernel. None if no number of links has such speeds.

    Links are bundled: the highest bandwidth is the lowest times their number. The kernel gives both
    as 0 before GC 9.4.2, and for what is not one hop; then the weight says whether it is one.
    """
    if not least and not most:
        return int(weight in _DIRECT)
    links = most // least if least else 0
    return links if 1 <= links <= MAX_NVLINKS else None


def model_of_gcn(gcn: str) -> str:
    """Return the model that is named by its architecture, as RCCL writes that: gfx942, or 910 for
    gfx90a. Empty if it is none."""
    match = _GCN.fullmatch(gcn)
    return "" if match is None else f"AMD gfx{'90a' if match[1] == '910' else match[1]}"


def node_labels(machine: Machine) -> Mapping[str, str]:
    """Return two labels of AMD's node labeller, as it writes them (ROCm/k8s-device-plugin,
    `cmd/k8s-node-labeller`): by the last GPU, if the models differ."""
    last = machine.gpus[-1]
    labels = {"gpu.product-name": _MISSING_IN_LABELS.sub("", last.model).replace(" ", "_")}
    if last.memory_mib:
        labels["gpu.vram"] = f"{round(last.memory_mib / 1024)}G"
    return labels


def _not_whole(labels: Mapping[str, str], offered: int) -> str:  # noqa: ARG001
    mode = labels.get(_PARTITIONS, "spx")
    return "" if mode.startswith("spx") else f"its GPUs are partitioned ({mode})"


AMD = Vendor(
    name="amd",
    link="xGMI",
    links="xGMI links",
    link_prefix="XGMI",
    label_prefix="amd.com/",
    labels=node_labels,
    product_label="amd.com/gpu.product-name",
    label_blank="_",
    not_whole=_not_whole,
    models=patterns(_MODELS),
    no_peer_to_peer=None,
    part=re.compile(r"[dtqc]px_nps[1248]"),
    routed=True,
    parts_linked=True,  # KFD: 819 GB/s, where a GPU's link to another carries 48
    pci_vendor="1002",
    dra_driver="gpu.amd.com",
    dra_id="resource.kubernetes.io/pciBusID",  # ROCm/k8s-gpu-dra-driver publishes no UUID
    plugin_words=("amd", "rocm"),
    # It compares permutations: 6 of 16 GPUs took 12.9 s and 1.4 GB, 7 of 8 took 0.06 s.
    most_asked=8,
)
