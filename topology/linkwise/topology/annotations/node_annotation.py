"""The Node annotation `linkwise.dev/topology`: a machine as compact JSON.

The plugin writes it, the extender reads it; it is all that the cluster knows of a machine, so
reading gives back exactly the machine that was written. Two GPUs joined by a bridge:

    {"v":1,"models":[["NVIDIA A100-PCIE-40GB",40960,[8,0]]],
     "gpus":[["GPU-8f…",0,0,"0000:b1:00.0",[1]],["GPU-3c…",1,0,"0000:ca:00.0",[1]]],
     "links":["NV12/NODE"],"driver":"550.54.15"}

`models` holds name, memory in MiB, compute capability; `gpus` uuid, index, which of `models`, PCI
bus id, NUMA nodes. `links` has one text for each GPU but the last: its links to the GPUs after it,
written `SYS`, `NV12/NODE` (12 NVLinks, and the PCIe path beside them) or `NV12s/PXB` (through an
NVSwitch). `no_p2p` has, for each GPU but the last, the indices of the GPUs after it with which it
has no peer-to-peer access; if it is missing, the models' names decide. `routed` has likewise those
that it reaches over the vendor's links of other GPUs. `vendor` made the GPUs; without it that is
NVIDIA. `nics` holds name and class
to each GPU; `nic_gbit_per_s`, the speed of each, 0 if it is unknown; `unhealthy`, indices.
`pcie_lanes` has index, lanes that are up and lanes that could be, of GPUs that do not have the
usual 16. What is empty is left out, and unknown fields are ignored, so a field can be added without
a new version.

What the kubelet's Topology Manager demands, if that is known: policy, scope, what said so, options:

    "topology_manager":["single-numa-node","pod","configz",{"prefer-closest-numa-nodes":"true"}]

A policy or scope that the reader does not know counts as unknown.

GPUs that are divided into parts, here GPU 0 by four replicas and GPU 1 by MIG:

    "shares":[["nvidia.com/gpu.shared",4,"",0,0],["nvidia.com/mig-1g.10gb",0,"1g.10gb",1,9856]],
    "divided":[[0,[["",0,true]]],[1,[["MIG-5a…",1,true],["MIG-77…",1,false]]]]

`shares` holds resource, replicas and, for MIG devices, profile, slices and memory in MiB; `divided`
GPU index and its parts: uuid (empty: the GPU's), which of `shares`, and whether it is healthy.
These GPUs are in `unhealthy` too, so a reader that knows no parts gives none of them out.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import msgspec

from linkwise.topology import names
from linkwise.topology.annotations.annotation_json import check_version, decode
from linkwise.topology.errors import AnnotationError, MachineError
from linkwise.topology.machine.link_words import peer_by_name, read_pcie_class
from linkwise.topology.machine.model import USUAL_PCIE_LANES, Gpu, Link, Machine, Nic
from linkwise.topology.machine.parts import MigProfile, Part
from linkwise.topology.machine.topology_manager import Policy, Scope, Source, TopologyManager

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


class _Lanes(msgspec.Struct, frozen=True, array_like=True):
    index: int
    up: int
    most: int


class _Nic(msgspec.Struct, frozen=True, array_like=True):
    name: str
    closeness: str


class _Share(msgspec.Struct, frozen=True, array_like=True):
    resource: str
    replicas: int
    profile: str = ""  # empty: of a whole GPU
    slices: int = 0
    memory_mib: int = 0


class _Part(msgspec.Struct, frozen=True, array_like=True):
    uuid: str
    share: int  # position in `shares`
    healthy: bool = True


class _Divided(msgspec.Struct, frozen=True, array_like=True):
    index: int
    parts: tuple[_Part, ...]


class _TopologyManager(msgspec.Struct, frozen=True, array_like=True):
    policy: str
    scope: str
    source: str
    options: dict[str, str] = {}


class _Topology(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="v", tag=VERSION
):
    vendor: str = "nvidia"
    models: tuple[_Model, ...]
    gpus: tuple[_Gpu, ...]
    links: tuple[str, ...] = ()
    no_p2p: tuple[tuple[int, ...], ...] | None = None
    routed: tuple[tuple[int, ...], ...] = ()
    nics: tuple[_Nic, ...] = ()
    nic_gbit_per_s: tuple[int, ...] = ()
    unhealthy: tuple[int, ...] = ()
    pcie_lanes: tuple[_Lanes, ...] = ()
    shares: tuple[_Share, ...] = ()
    divided: tuple[_Divided, ...] = ()
    clique: str | None = None
    driver: str | None = None
    cuda: str | None = None
    topology_manager: _TopologyManager | None = None


def write_topology(machine: Machine) -> str:
    """Return one line of JSON, about 1 KiB for 8 GPUs."""
    models = list(dict.fromkeys(_model_of(gpu) for gpu in machine.gpus))
    parts = [part for gpu in machine.gpus for part in gpu.parts or ()]
    shares = list(dict.fromkeys(map(_share_of, parts)))
    topology = _Topology(
        vendor=machine.vendor,
        models=tuple(models),
        gpus=tuple(
            _Gpu(gpu.uuid, gpu.index, models.index(_model_of(gpu)), gpu.pci_bus_id, gpu.numa_nodes)
            for gpu in machine.gpus
        ),
        links=tuple(_rows_of(machine)),
        no_p2p=_without_peers(machine),
        routed=_later_gpus(machine, lambda link: link.routed) or (),
        nics=tuple(
            _Nic(nic.name, " ".join(link.name for link in nic.closeness)) for nic in machine.nics
        ),
        nic_gbit_per_s=_speeds_of(machine),
        unhealthy=tuple(
            gpu.index for gpu in machine.gpus if not gpu.healthy or gpu.parts is not None
        ),
        pcie_lanes=tuple(
            _Lanes(gpu.index, gpu.pcie_lanes, gpu.most_pcie_lanes)
            for gpu in machine.gpus
            if gpu.pcie_lanes != USUAL_PCIE_LANES
        ),
        shares=tuple(shares),
        divided=tuple(
            _Divided(gpu.index, tuple(_part(gpu, part, shares) for part in gpu.parts))
            for gpu in machine.gpus
            if gpu.parts is not None
        ),
        clique=machine.clique,
        driver=machine.driver_version,
        cuda=machine.cuda_version,
        topology_manager=_written_manager(machine.topology_manager),
    )
    return msgspec.json.encode(topology).decode()


def read_topology(text: str) -> Machine:
    """Return the machine that was written.

    Raises AnnotationError if *text* is not what `write_topology` writes (VersionError if a newer
    version wrote it), and MachineError if it describes an impossible machine.
    """
    check_version(names.TOPOLOGY, text, VERSION, _AS_WRITTEN)
    topology = decode(names.TOPOLOGY, text, _Topology, _AS_WRITTEN)
    divided = {gpu.index: gpu for gpu in topology.divided}
    lanes = {gpu.index: gpu for gpu in topology.pcie_lanes}
    for what, indices in (
        ("unhealthy", {*topology.unhealthy}),
        ("pcie_lanes", {*lanes}),
        ("divided", {*divided}),
    ):
        unknown = indices - {gpu.index for gpu in topology.gpus}
        if unknown:
            raise AnnotationError(
                names.TOPOLOGY, text, f"indices of its GPUs in {what}, not {sorted(unknown)[0]}"
            )
    try:
        return Machine(
            vendor=topology.vendor,
            gpus=tuple(
                _read_gpu(topology, gpu, divided.get(gpu.index), lanes.get(gpu.index, _ALL_LANES))
                for gpu in topology.gpus
            ),
            links=tuple(_read_links(topology, text)),
            nics=tuple(_read_nics(topology, text)),
            clique=topology.clique,
            driver_version=topology.driver,
            cuda_version=topology.cuda,
            topology_manager=_read_manager(topology.topology_manager),
        )
    except MachineError as error:
        raise MachineError(f"{names.TOPOLOGY}: {error}") from None


def _written_manager(manager: TopologyManager | None) -> _TopologyManager | None:
    if manager is None:
        return None
    return _TopologyManager(manager.policy, manager.scope, manager.source, dict(manager.options))


def _read_manager(manager: _TopologyManager | None) -> TopologyManager | None:
    if manager is None:
        return None
    try:
        policy, scope, source = Policy(manager.policy), Scope(manager.scope), Source(manager.source)
    except ValueError:
        return None
    return TopologyManager(policy, scope, tuple(sorted(manager.options.items())), source)


def _model_of(gpu: Gpu) -> _Model:
    return _Model(gpu.model, gpu.memory_mib, gpu.compute_capability)


def _speeds_of(machine: Machine) -> tuple[int, ...]:
    speeds = tuple(nic.gbit_per_s or 0 for nic in machine.nics)
    return speeds if any(speeds) else ()


def _share_of(part: Part) -> _Share:
    if part.mig is None:
        return _Share(part.resource, part.replicas)
    mig = part.mig
    return _Share(part.resource, part.replicas, mig.name, mig.slices, mig.memory_mib)


def _part(gpu: Gpu, part: Part, shares: list[_Share]) -> _Part:
    uuid = "" if part.uuid == gpu.uuid else part.uuid
    return _Part(uuid, shares.index(_share_of(part)), part.healthy)


def _rows_of(machine: Machine) -> Iterator[str]:
    """Return the rows of the upper triangle; the last GPU has none."""
    count = len(machine.gpus)
    for row in range(count - 1):
        yield " ".join(_token(machine.link(row, column)) for column in range(row + 1, count))


def _without_peers(machine: Machine) -> tuple[tuple[int, ...], ...] | None:
    """Return None if all pairs have peer-to-peer access, as their models' names say."""
    models = [gpu.model for gpu in machine.gpus]
    if all(
        link.peer_to_peer and peer_by_name(models[first], models[second], link.nvlinks)
        for first, second, link in machine.pairs()
    ):
        return None
    return _later_gpus(machine, lambda link: not link.peer_to_peer) or ((),) * (len(models) - 1)


def _later_gpus(
    machine: Machine, which: Callable[[Link], bool]
) -> tuple[tuple[int, ...], ...] | None:
    """Return for each GPU but the last the indices of those after it with such a link; None if
    there is no such link."""
    found: list[list[int]] = [[] for _ in machine.gpus[1:]]
    for first, second, link in machine.pairs():
        if which(link):
            found[first].append(machine.gpus[second].index)
    return tuple(map(tuple, found)) if any(found) else None


def _token(link: Link) -> str:
    if not link.nvlinks:
        return link.pcie.name
    return f"NV{link.nvlinks}{'s' if link.through_switch else ''}/{link.pcie.name}"


_ALL_LANES = _Lanes(0, USUAL_PCIE_LANES, USUAL_PCIE_LANES)


def _read_gpu(topology: _Topology, gpu: _Gpu, divided: _Divided | None, lanes: _Lanes) -> Gpu:
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
        parts=None
        if divided is None
        else tuple(_read_part(topology, gpu.uuid, part) for part in divided.parts),
        pcie_lanes=lanes.up,
        most_pcie_lanes=lanes.most,
    )


def _read_part(topology: _Topology, gpu_uuid: str, part: _Part) -> Part:
    if not 0 <= part.share < len(topology.shares):
        last = len(topology.shares) - 1
        expected = f"expected a place in shares, 0 to {last}"
        raise MachineError(f"part {part.uuid or gpu_uuid}: share {part.share}: {expected}")
    share = topology.shares[part.share]
    mig = MigProfile(share.profile, share.slices, share.memory_mib) if share.profile else None
    return Part(part.uuid or gpu_uuid, share.resource, share.replicas, mig, part.healthy)


def _read_links(topology: _Topology, text: str) -> Iterator[Link]:
    """Read the links. Checks each row's length, so that a long row cannot make up for a short
    one."""
    rows = len(topology.gpus) - 1
    if len(topology.links) != max(rows, 0):
        raise AnnotationError(names.TOPOLOGY, text, f"{rows} rows of links")
    for what, of_rows in (("no_p2p", topology.no_p2p), ("routed", topology.routed or None)):
        if of_rows is not None and len(of_rows) != len(topology.links):
            raise AnnotationError(names.TOPOLOGY, text, f"{len(topology.links)} rows of {what}")
    for row, line in enumerate(topology.links):
        tokens, others = line.split(" "), topology.gpus[row + 1 :]
        if len(tokens) != len(others):
            raise AnnotationError(names.TOPOLOGY, text, f"{rows - row} links in row {row}")
        apart = None if topology.no_p2p is None else {*topology.no_p2p[row]}
        routed = {*topology.routed[row]} if topology.routed else set()
        for what, indices in (("no_p2p", apart or set()), ("routed", routed)):
            if not indices <= {gpu.index for gpu in others}:
                raise AnnotationError(
                    names.TOPOLOGY, text, f"indices of later GPUs in {what}, row {row}"
                )
        for token, other in zip(tokens, others, strict=True):
            link = _read_link(token, f"links, row {row}")
            peer = (
                _peer_by_name(topology, topology.gpus[row], other, link)
                if apart is None
                else other.index not in apart
            )
            yield _shared(replace(link, peer_to_peer=peer, routed=other.index in routed))


def _peer_by_name(topology: _Topology, first: _Gpu, second: _Gpu, link: Link) -> bool:
    # Places in models were checked when the GPUs were read.
    one, other = topology.models[first.model].name, topology.models[second.model].name
    return peer_by_name(one, other, link.nvlinks)


@lru_cache(maxsize=1024)
def _shared(link: Link) -> Link:
    """One object for all equal links: thousands of machines have a few different ones."""
    return link


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
