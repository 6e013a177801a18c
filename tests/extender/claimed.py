"""ResourceSlices and ResourceClaims as the API server has them, and their watches."""

from collections.abc import Iterable, Sequence

import msgspec

from linkwise.kube.device_claims import ResourceClaim, ResourceSlice
from linkwise.kube.objects import Pod
from tests.extender.cluster import GPU, Cluster, change

DRIVER = "gpu.nvidia.com"


def slice_of(
    node: str,
    uuids: Iterable[str | None],
    *,
    name: str = "",
    driver: str = DRIVER,
    generation: int = 1,
    tainted: Iterable[int] = (),
    partitions: Iterable[Sequence[int]] = (),
) -> ResourceSlice:
    """Device gpu-0 and so on; without a UUID it is one that publishes none. *partitions* of
    NVSwitch, by the indices of their GPUs."""
    tainted, numbered = set(tainted), [*enumerate(partitions)]
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "type": {"string": "gpu"},
                "index": {"int": index},
                **({"uuid": {"string": uuid}} if uuid else {}),
                **{
                    f"partition{len(gpus)}": {"int": number}
                    for number, gpus in numbered
                    if index in gpus
                },
            },
            "taints": [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
            if index in tainted
            else [],
        }
        for index, uuid in enumerate(uuids)
    ]
    return msgspec.convert(
        {
            "metadata": {"name": name or f"{node}-{driver}"},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
                "devices": devices,
            },
        },
        ResourceSlice,
    )


def claim_of(
    name: str,
    node: str,
    *devices: int,
    pods: Iterable[Pod] = (),
    driver: str = DRIVER,
    admin: bool = False,
) -> ResourceClaim:
    """In the namespace `ml`; without *devices* it is not allocated."""
    results = [
        {
            "request": "gpus",
            "driver": driver,
            "pool": node,
            "device": f"gpu-{index}",
            **({"adminAccess": True} if admin else {}),
        }
        for index in devices
    ]
    reserved = [
        {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid} for pod in pods
    ]
    allocated = {"allocation": {"devices": {"results": results}}} if results else {}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "ml"},
            "status": {**allocated, **({"reservedFor": reserved} if reserved else {})},
        },
        ResourceClaim,
    )


def publish(at: Cluster, *slices: ResourceSlice) -> None:
    for each in slices:
        at.slices[each.metadata.name] = each
        at.slice_event("MODIFIED", each)


def withdraw(at: Cluster, name: str) -> None:
    at.slice_event("DELETED", at.slices.pop(name))


def claim(at: Cluster, *claims: ResourceClaim) -> None:
    for each in claims:
        at.put_claim(each)


def drop_claim(at: Cluster, name: str) -> None:
    at.remove_claim("ml", name)


def add_node(
    at: Cluster,
    name: str,
    machine: str = "dgx1-v100",
    *,
    tainted: Iterable[int] = (),
    partitions: Iterable[Sequence[int]] = (),
) -> None:
    """A node of which a DRA driver gives out all GPUs, and no device plugin any."""
    node = at.add_node(name, machine)
    offers = {key: amount for key, amount in node.status.allocatable.items() if key != GPU}
    at.put_node(change(node, status=change(node.status, allocatable=offers)))
    publish(at, slice_of(name, uuids(at, name), tainted=tainted, partitions=partitions))


def uuids(at: Cluster, node: str) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in at.machine(node).gpus)


def add_pod(at: Cluster, name: str, node: str, *devices: int) -> Pod:
    """A pod that runs with a claim of its own."""

    def with_claim(pod: Pod) -> Pod:
        wanted = ({"name": "gpus", "resourceClaimName": f"{name}-gpus"},)
        return change(pod, spec=change(pod.spec, resource_claims=wanted))

    pod = at.add_pod(name, node=node, alter=with_claim)
    claim(at, claim_of(f"{name}-gpus", node, *devices, pods=[pod]))
    return pod
