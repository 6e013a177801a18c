"""PURE. What a vendor's plugin lists, joined with what we know of this node's GPUs.

A device is known to us where its id is a GPU's uuid, or a replica of it, which NVIDIA's plugin
calls `<uuid>::<n>`. Of all others (MIG devices, other makers' ids) the vendor's word stands.
Messages are copied and changed in place, so fields that we do not know of pass through.
"""

from collections.abc import Iterable
from dataclasses import replace

from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.topology.model import Gpu, Machine

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
_REPLICA = "::"


def joined(
    listed: wire.ListAndWatchResponse, machine: Machine | None, *, alive: bool
) -> wire.ListAndWatchResponse:
    """The list for the kubelet, in an order that does not change.

    A device is healthy where the vendor and we say so, and the vendor's plugin is *alive*. NUMA
    nodes stay as the vendor gives them; where it gives none, they are those that we know.
    """
    gpus = _by_uuid(machine)
    answer = wire.ListAndWatchResponse()
    answer.CopyFrom(listed)
    del answer.devices[:]
    places = {uuid: place for place, uuid in enumerate(gpus)}
    for device in sorted(listed.devices, key=lambda device: _order(device.ID, places)):
        own = answer.devices.add()
        own.CopyFrom(device)
        gpu = gpus.get(gpu_of(device.ID))
        if not alive or (gpu is not None and not gpu.healthy):
            own.health = UNHEALTHY
        if gpu is not None and not device.topology.nodes:
            own.topology.nodes.extend(
                wire.NUMANode(ID=node) for node in gpu.numa_nodes if node >= 0
            )
            if not own.topology.nodes and not device.HasField("topology"):
                own.ClearField("topology")
    return answer


def offered(machine: Machine, listed: wire.ListAndWatchResponse) -> Machine:
    """The machine as the cluster should see it: of its GPUs those are healthy that are well by our
    own knowledge, and that the vendor's plugin offers whole and healthy."""
    whole = {device.ID for device in listed.devices if device.health == HEALTHY}
    gpus = tuple(replace(gpu, healthy=gpu.healthy and gpu.uuid in whole) for gpu in machine.gpus)
    return machine if gpus == machine.gpus else replace(machine, gpus=gpus)


def why_not(uuid: str, listed: wire.ListAndWatchResponse) -> str:
    """What keeps the vendor's plugin from offering this GPU whole; empty where it offers it."""
    health = {device.ID: device.health for device in listed.devices}.get(uuid)
    if health is None:
        return "the vendor's plugin does not offer it as a whole"
    return "" if health == HEALTHY else "the vendor's plugin says so"


def gpu_of(device_id: str) -> str:
    """The uuid of the GPU that this is, or a replica of; else the id itself."""
    return device_id.partition(_REPLICA)[0]


def are_whole(device_ids: Iterable[str], machine: Machine | None) -> bool:
    """Whether all of these are whole GPUs of the machine."""
    return _by_uuid(machine).keys() >= set(device_ids)


def _by_uuid(machine: Machine | None) -> dict[str, Gpu]:
    return {gpu.uuid: gpu for gpu in machine.gpus} if machine is not None else {}


def _order(device_id: str, places: dict[str, int]) -> tuple[int, str, int, str]:
    """GPUs by index, replicas by number; what is not known comes last."""
    uuid, _, replica = device_id.partition(_REPLICA)
    number = int(replica) if replica.isascii() and replica.isdecimal() else -1
    return places.get(uuid, len(places)), uuid, number, device_id
