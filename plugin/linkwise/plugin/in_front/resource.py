"""PURE. Joins what a vendor's plugin lists with what Linkwise knows about this node's GPUs.

Linkwise knows a device if its id is a GPU's uuid, or a replica of one, which NVIDIA's plugin calls
`<uuid>::<n>`. For all others (MIG devices, other makers' ids) the vendor's list stands. Functions
copy messages and change the copies in place, so unknown fields pass through.
"""

from collections.abc import Iterable
from dataclasses import replace

from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.topology.machine.model import Gpu, Machine

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
VENDOR_SAYS_SO = "the vendor's plugin says so"
_REPLICA = "::"


def joined(
    listed: wire.ListAndWatchResponse, machine: Machine | None, *, alive: bool
) -> wire.ListAndWatchResponse:
    """The list for the kubelet, in an order that does not change.

    A device is healthy if the vendor and Linkwise say so, and the vendor's plugin is *alive*. NUMA
    nodes stay as the vendor gives them; if it gives none, Linkwise adds those that it knows.
    """
    gpus = _by_uuid(machine)
    answer = wire.ListAndWatchResponse()
    answer.CopyFrom(listed)
    del answer.devices[:]
    places = {uuid: place for place, uuid in enumerate(gpus)}
    # All at once: one by one takes several times as long, and the kubelet waits for it.
    answer.devices.extend(sorted(listed.devices, key=lambda device: _order(device.ID, places)))
    known = {uuid: (gpu.healthy, _topology(gpu)) for uuid, gpu in gpus.items()}
    for device in answer.devices:
        healthy, topology = known.get(gpu_of(device.ID), (True, None))
        if not (alive and healthy):
            device.health = UNHEALTHY
        if topology is not None and not device.topology.nodes:
            device.topology.MergeFrom(topology)
    return answer


def _topology(gpu: Gpu) -> wire.TopologyInfo | None:
    """None if its NUMA nodes are unknown."""
    nodes = [wire.NUMANode(ID=node) for node in gpu.numa_nodes if node >= 0]
    return wire.TopologyInfo(nodes=nodes) if nodes else None


def offered(machine: Machine, listed: wire.ListAndWatchResponse) -> Machine:
    """The machine as the cluster should see it: a GPU is healthy if Linkwise found it healthy and
    the vendor's plugin offers it whole and healthy."""
    whole = {device.ID for device in listed.devices if device.health == HEALTHY}
    gpus = tuple(replace(gpu, healthy=gpu.healthy and gpu.uuid in whole) for gpu in machine.gpus)
    return machine if gpus == machine.gpus else replace(machine, gpus=gpus)


def not_offered(machine: Machine, listed: wire.ListAndWatchResponse) -> dict[str, str]:
    """The GPUs that the vendor's plugin offers neither whole and healthy nor in parts: uuid -> why.
    *machine* has the parts."""
    health = {device.ID: device.health for device in listed.devices}
    return {
        gpu.uuid: (
            VENDOR_SAYS_SO
            if gpu.uuid in health
            else "the vendor's plugin does not offer it as a whole"
        )
        for gpu in machine.gpus
        if health.get(gpu.uuid) != HEALTHY and gpu.parts is None
    }


def gpu_of(device_id: str) -> str:
    """The uuid of the GPU, if this is its id or a replica's; else the id itself."""
    return device_id.partition(_REPLICA)[0]


def are_whole(device_ids: Iterable[str], machine: Machine | None) -> bool:
    """Whether every id is that of a whole GPU of the machine, and of no part of one."""
    return _by_uuid(machine).keys() >= set(device_ids)


def _by_uuid(machine: Machine | None) -> dict[str, Gpu]:
    """Without GPUs whose id is that of their first part, as of AMD's partitions."""
    gpus = machine.gpus if machine is not None else ()
    return {gpu.uuid: gpu for gpu in gpus if all(part.uuid != gpu.uuid for part in gpu.parts or ())}


def _order(device_id: str, places: dict[str, int]) -> tuple[int, str, int, str]:
    """GPUs by index, replicas by number, unknown devices last."""
    uuid, _, replica = device_id.partition(_REPLICA)
    number = int(replica) if replica.isascii() and replica.isdecimal() else -1
    return places.get(uuid, len(places)), uuid, number, device_id
