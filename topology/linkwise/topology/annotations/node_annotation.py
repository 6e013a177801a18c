"""The Node annotation `linkwise.dev/topology`: a machine as compact JSON.

The plugin writes it, the extender reads it; it is all that the cluster knows of a machine, so
reading gives back exactly the machine that was written. Two GPUs joined by a bridge:

    {"v":1,"models":[["NVIDIA A100-PCIE-40GB",40960,[8,0]]],
     "gpus":[["GPU-8f…",0,0,"0000:b1:00.0",[1]],["GPU-3c…",1,0,"0000:ca:00.0",[1]]],
     "links":["NV12/NODE"],"driver":"550.54.15"}

`models` holds name, memory in MiB, compute capability; `gpus` uuid, index, which of `models`, PCI
bus id, NUMA nodes. `links` has one text for each GPU but the last: its links to the GPUs after it,
written `SYS`, `NV12/NODE` (12 NVLinks, and the PCIe path beside them) or `NV12s/PXB` (through an
NVSwitch). `nics` holds name and class to each GPU; `nic_gbit_per_s`, the speed of each, 0 if it is
unknown; `unhealthy`, indices. What is empty is left out, and unknown fields are ignored, so a field
can be added without a new version.
"""

import re
from collections.abc import Iterator

import msgspec

from linkwise.topology import names
from linkwise.topology.annotations.annotation_json import check_version, decode
from linkwise.topology.errors import AnnotationError, MachineError
from linkwise.topology.machine.link_words import read_pcie_class
from linkwise.topology.machine.model import Gpu, Link, Machine, Nic

VERSION = 1
_AS_WRITTEN = "JSON as the plugin writes it"

_LINK = re.compile(r"(?:NV([1-9][0-9]?)(s?)/)?([A-Z]+)")


class _Model(msgspec.Struct, frozen=True, array_like=True):
    name: str
    memory_mib: int
    compute_capability: tuple[int, int] | None = None


class _Gpu(msgspec.Struct, frozen=True, array_like=True):
    uuid: str
    index: int
    model: int  # position in `models`
    pci_bus_id: str | None = None
    numa_nodes: tuple[int, ...] = ()


class _Nic(msgspec.Struct, frozen=True, array_like=True):
    name: str
    closeness: str


class _Topology(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="v", tag=VERSION
):
    models: tuple[_Model, ...]
    gpus: tuple[_Gpu, ...]
    links: tuple[str, ...] = ()
    nics: tuple[_Nic, ...] = ()
    nic_gbit_per_s: tuple[int, ...] = ()
    unhealthy: tuple[int, ...] = ()
    clique: str | None = None
    driver: str | None = None
    cuda: str | None = None


def write_topology(machine: Machine) -> str:
    """Return one line of JSON, about 1 KiB for 8 GPUs."""
    models = list(dict.fromkeys(_model_of(gpu) for gpu in machine.gpus))
    topology = _Topology(
        models=tuple(models),
        gpus=tuple(
            _Gpu(gpu.uuid, gpu.index, models.index(_model_of(gpu)), gpu.pci_bus_id, gpu.numa_nodes)
            for gpu in machine.gpus
        ),
        links=tuple(_rows_of(machine)),
        nics=tuple(
            _Nic(nic.name, " ".join(link.name for link in nic.closeness)) for nic in machine.nics
        ),
        nic_gbit_per_s=_speeds_of(machine),
        unhealthy=tuple(gpu.index for gpu in machine.gpus if not gpu.healthy),
        clique=machine.clique,
        driver=machine.driver_version,
        cuda=machine.cuda_version,
    )
    return msgspec.json.encode(topology).decode()


def read_topology(text: str) -> Machine:
    """Return the machine that was written.

    Raises AnnotationError if *text* is not what `write_topology` writes (VersionError if a newer
    version wrote it), and MachineError if it describes an impossible machine.
    """
    check_version(names.TOPOLOGY, text, VERSION, _AS_WRITTEN)
    topology = decode(names.TOPOLOGY, text, _Topology, _AS_WRITTEN)
    unknown = set(topology.unhealthy) - {gpu.index for gpu in topology.gpus}
    if unknown:
        raise AnnotationError(
            names.TOPOLOGY, text, f"indices of its GPUs in unhealthy, not {sorted(unknown)[0]}"
        )
    try:
        return Machine(
            gpus=tuple(_read_gpu(topology, gpu) for gpu in topology.gpus),
            links=tuple(_read_links(topology, text)),
            nics=tuple(_read_nics(topology, text)),
            clique=topology.clique,
            driver_version=topology.driver,
            cuda_version=topology.cuda,
        )
    except MachineError as error:
        raise MachineError(f"{names.TOPOLOGY}: {error}") from None


def _model_of(gpu: Gpu) -> _Model:
    return _Model(gpu.model, gpu.memory_mib, gpu.compute_capability)


def _speeds_of(machine: Machine) -> tuple[int, ...]:
    speeds = tuple(nic.gbit_per_s or 0 for nic in machine.nics)
    return speeds if any(speeds) else ()


def _rows_of(machine: Machine) -> Iterator[str]:
    """Return the rows of the upper triangle; the last GPU has none."""
    count = len(machine.gpus)
    for row in range(count - 1):
        yield " ".join(_token(machine.link(row, column)) for column in range(row + 1, count))


def _token(link: Link) -> str:
    if not link.nvlinks:
        return link.pcie.name
    return f"NV{link.nvlinks}{'s' if link.through_switch else ''}/{link.pcie.name}"


def _read_gpu(topology: _Topology, gpu: _Gpu) -> Gpu:
    if not 0 <= gpu.model < len(topology.models):
        last = len(topology.models) - 1
        expected = f"expected a place in models, 0 to {last}"
        raise MachineError(f"GPU {gpu.index}: model {gpu.model}: {expected}")
    model = topology.models[gpu.model]
    return Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        model=model.name,
        memory_mib=model.memory_mib,
        pci_bus_id=gpu.pci_bus_id,
        numa_nodes=gpu.numa_nodes,
        compute_capability=model.compute_capability,
        healthy=gpu.index not in topology.unhealthy,
    )


def _read_links(topology: _Topology, text: str) -> Iterator[Link]:
    """Read the links. Checks each row's length, so that a long row cannot make up for a short
    one."""
    rows = len(topology.gpus) - 1
    if len(topology.links) != max(rows, 0):
        raise AnnotationError(names.TOPOLOGY, text, f"{rows} rows of links")
    for row, line in enumerate(topology.links):
        tokens = line.split(" ")
        if len(tokens) != rows - row:
            raise AnnotationError(names.TOPOLOGY, text, f"{rows - row} links in row {row}")
        for token in tokens:
            yield _read_link(token, f"links, row {row}")


def _read_link(token: str, where: str) -> Link:
    match = _LINK.fullmatch(token)
    if match is None:
        raise MachineError(f"{where}: {token!r}: expected like SYS, NV12/NODE or NV12s/PXB")
    nvlinks, switch, word = match.groups()
    return Link(
        pcie=read_pcie_class(word, where),
        nvlinks=int(nvlinks or 0),
        through_switch=bool(switch),
    )


def _read_nics(topology: _Topology, text: str) -> Iterator[Nic]:
    speeds = topology.nic_gbit_per_s or (0,) * len(topology.nics)
    if len(speeds) != len(topology.nics):
        raise AnnotationError(names.TOPOLOGY, text, f"{len(topology.nics)} speeds of its NICs")
    for nic, speed in zip(topology.nics, speeds, strict=True):
        words = nic.closeness.split(" ")
        closeness = tuple(read_pcie_class(word, f"NIC {nic.name}") for word in words)
        yield Nic(nic.name, closeness, speed or None)
