"""PURE. Which GPUs vendors' plugins offer in parts, and under which resources: from what they list.

NVIDIA's plugin lists a replica as `<uuid>::<n>`, and a MIG device by its uuid; AMD's lists a
partition by the name of its folder in /sys. Which GPU such a part is of, only the driver says, so
the machine that Linkwise has read names its parts. NVIDIA's drivers before 470 put the GPU into the
uuid, `MIG-GPU-<uuid>/<n>/<n>`; these need no reading.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from linkwise.plugin.in_front.resource import HEALTHY
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.topology.machine.model import Gpu, Machine
from linkwise.topology.machine.parts import (
    MAX_PARTS,
    MAX_REPLICAS,
    MigProfile,
    Part,
    part_of,
    replica_of,
)

_MIG = "MIG-"
_GPU_OF_MIG = re.compile(r"MIG-(GPU-[^/]+)/\d+/\d+")
_PROFILE = re.compile(r"(?:\d+c\.)?(\d+)g\.(\d+)gb")


def is_share(device_id: str, read: Machine | None) -> bool:
    """Whether the id is that of a replica, or of a part of a GPU as Linkwise has read it."""
    is_part = device_id.startswith(_MIG) or device_id in _gpus_of_parts(read)
    return is_part or replica_of(device_id) is not None


def gpus_of(ids: Iterable[str], read: Machine | None) -> frozenset[str]:
    """The GPUs that have these ids, or of which these are shares. An id that Linkwise has not read
    counts as a GPU of its own."""
    gpus = _gpus_of_parts(read)
    return frozenset(_gpu(part, gpus) or part for part in map(part_of, ids))


def divided(
    seen: Machine, read: Machine, lists: Mapping[str, wire.ListAndWatchResponse]
) -> Machine:
    """*seen*, with the parts of its GPUs. *read* is the same machine as Linkwise has read it, with
    its MIG devices and with the health that it found; *lists* is what vendors list by resource."""
    offers = _offers(lists, read)
    gpus = tuple(
        _with_parts(gpu, own, offers) for gpu, own in zip(seen.gpus, read.gpus, strict=True)
    )
    return seen if gpus == seen.gpus else replace(seen, gpus=gpus)


def with_sick_shares(
    seen: Machine, lists: Mapping[str, wire.ListAndWatchResponse]
) -> frozenset[str]:
    """The uuids of the GPUs of which vendors list a share as unhealthy."""
    offers = _offers(lists, seen)
    sick = {uuid for uuid, offer in offers.items() if not all(offer.healthy.values())}
    return frozenset(
        gpu.uuid for gpu in seen.gpus if any(part.uuid in sick for part in gpu.parts or ())
    )


def read_otherwise(read: Machine, lists: Mapping[str, wire.ListAndWatchResponse]) -> frozenset[str]:
    """The uuids in vendors' lists that contradict the reading: MIG devices of which Linkwise does
    not know the GPU, and GPUs without MIG devices that Linkwise has read as cut. Their layout has
    changed since Linkwise read the machine."""
    gpus = _gpus_of_parts(read)
    cut = {gpu.uuid for gpu in read.gpus if gpu.parts is not None} - gpus.keys()
    ids = {part_of(device.ID) for listed in lists.values() for device in listed.devices}
    return frozenset(
        uuid for uuid in ids if (not _gpu(uuid, gpus) if uuid.startswith(_MIG) else uuid in cut)
    )


def not_read(listed: wire.ListAndWatchResponse, read: Machine | None) -> frozenset[str]:
    """The listed ids that are neither GPUs that Linkwise has read nor shares of such GPUs. No plan
    names them. Empty until Linkwise has read the machine."""
    if read is None:
        return frozenset()
    gpus = _gpus_of_parts(read)
    known = {*gpus, *(gpu.uuid for gpu in read.gpus)}
    ids = (device.ID for device in listed.devices)
    return frozenset(
        each for each in ids if known.isdisjoint({part_of(each), _gpu(part_of(each), gpus)})
    )


def still_true(
    lost: wire.ListAndWatchResponse,
    live: Collection[wire.ListAndWatchResponse],
    read: Machine | None,
) -> wire.ListAndWatchResponse:
    """The list of a plugin that is gone, without what the *live* lists contradict.

    A vendor's plugin that starts with other settings offers its GPUs in another form, under another
    resource: whole, as replicas, or as MIG devices. A GPU has one form at a time, so the live list
    is right about it. MIG devices of one GPU may have several resources, so a live list contradicts
    a lost MIG device only if it names the same device. A MIG device that the driver does not name
    any more is gone, once another plugin lists something.
    """
    gpus = _gpus_of_parts(read)
    parts = {part_of(device.ID) for listed in live for device in listed.devices}
    cut = {_gpu(part, gpus) for part in parts if part.startswith(_MIG)}

    def contradicted(part: str) -> bool:
        if part.startswith(_MIG):
            gpu = _gpu(part, gpus)
            is_gone = read is not None and not gpu
            return part in parts or gpu in parts or (is_gone and bool(parts))
        return part in parts or part in cut

    kept = [device for device in lost.devices if not contradicted(part_of(device.ID))]
    return lost if len(kept) == len(lost.devices) else wire.ListAndWatchResponse(devices=kept)


def _gpus_of_parts(read: Machine | None) -> dict[str, str]:
    """Part -> its GPU, as Linkwise has read them; uuids."""
    gpus = read.gpus if read is not None else ()
    return {part.uuid: gpu.uuid for gpu in gpus for part in gpu.parts or ()}


@dataclass(slots=True)
class _Offer:
    """What is listed of one part: its resource, and whether each replica is healthy. A part that
    is no replica has None instead of a number."""

    resource: str
    healthy: dict[int | None, bool] = field(default_factory=dict)


def _offers(lists: Mapping[str, wire.ListAndWatchResponse], read: Machine) -> dict[str, _Offer]:
    """The offers by uuid of the part. If two resources name one part, the first by name counts."""
    found: dict[str, _Offer] = {}
    parts = _gpus_of_parts(read)
    for resource, listed in sorted(lists.items()):
        for device in listed.devices:  # hundreds, while the kubelet waits for the list
            device_id = device.ID
            number = replica_of(device_id)
            if number is None and not device_id.startswith(_MIG) and device_id not in parts:
                continue
            offer = found.get(part_of(device_id))
            if offer is None:
                offer = found[part_of(device_id)] = _Offer(resource)
            if offer.resource == resource:
                offer.healthy[number] = device.health == HEALTHY
    return found


def _with_parts(gpu: Gpu, own: Gpu, offers: Mapping[str, _Offer]) -> Gpu:
    parts: Sequence[Part] | None = None
    # AMD's first partition of a GPU has the GPU's id.
    has_own_id = any(part.uuid == gpu.uuid for part in own.parts or ())
    if gpu.uuid in offers and not has_own_id:
        part = _part(gpu.uuid, offers[gpu.uuid], None, healthy=own.healthy)
        parts = None if part is None else [part]
    elif own.parts is not None:
        parts = [_offered(part, offers) for part in own.parts]
    else:
        named = [uuid for uuid in sorted(offers) if _gpu_of(uuid) == gpu.uuid]
        made = (_part(u, offers[u], _profile(offers[u].resource), healthy=True) for u in named)
        parts = [part for part in made if part is not None][:MAX_PARTS] or None
    if parts is None:
        return gpu
    return replace(gpu, healthy=False, parts=tuple(parts))


def _part(uuid: str, offer: _Offer, mig: MigProfile | None, *, healthy: bool) -> Part | None:
    """None if the list makes no sense of it: replicas that are not counted from 0, or too many. A
    part is healthy if all its replicas are."""
    numbers = set(offer.healthy)
    replicas = 0 if numbers == {None} else len(numbers)
    if replicas and (replicas > MAX_REPLICAS or numbers != set(range(replicas))):
        return None
    if mig is None and not replicas:
        return None
    well = healthy and all(offer.healthy.values())
    return Part(uuid, offer.resource, replicas, mig, well)


def _offered(part: Part, offers: Mapping[str, _Offer]) -> Part:
    """A MIG device of which the driver knows, as it is listed. Its health is what the vendor says:
    Linkwise's own probes see the whole GPU only, which MIG mode itself makes unfit."""
    offer = offers.get(part.uuid)
    listed = None if offer is None else _part(part.uuid, offer, part.mig, healthy=True)
    return replace(part, resource="", replicas=0) if listed is None else listed


def _gpu(mig: str, read: Mapping[str, str]) -> str:
    """The GPU of a MIG device; empty if unknown."""
    return read.get(mig) or _gpu_of(mig)


def _gpu_of(uuid: str) -> str:
    match = _GPU_OF_MIG.fullmatch(uuid)
    return match[1] if match else ""


def _profile(resource: str) -> MigProfile:
    """The profile that the resource's name has in it, such as nvidia.com/mig-1g.10gb."""
    match = _PROFILE.search(resource)
    if match is None:
        return MigProfile("unknown", 0, 0)
    return MigProfile(match[0], int(match[1]), int(match[2]) << 10)
