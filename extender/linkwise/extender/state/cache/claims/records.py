"""What the cache keeps of a ResourceSlice and of a ResourceClaim.

A large cluster has 40,000 devices and 20,000 claims, so a record has only what is read of it. The
GPUs of a driver are known by their UUIDs, which the topology annotation has too.
"""

from dataclasses import dataclass
from sys import intern
from typing import NamedTuple

from linkwise.kube.device_claims import (
    ResourceClaim,
    ResourceSlice,
    parent_of,
    partitions_of,
    uuid_of,
)
from linkwise.topology.names import EDITION

_TAKEN_OUT = frozenset({"NoSchedule", "NoExecute"})


class PoolName(NamedTuple):
    """Device names are unique in a pool, and pool names of one driver."""

    driver: str
    pool: str


class GpuDevice(NamedTuple):
    name: str
    uuid: str  # of the GPU: the device itself, or that of which it is a part
    tainted: bool  # kube-scheduler gives it to claims that tolerate that alone
    whole: bool = True  # and no part of the GPU
    partitions: tuple[tuple[int, int], ...] = ()  # size and id of each that has it


class PodName(NamedTuple):
    uid: str
    key: str  # namespace/name


@dataclass(frozen=True, slots=True)
class SliceRecord:
    """*gpus* lacks devices that publish no UUID, *names* lacks none."""

    name: str
    node: str  # empty: its devices are not those of one node
    pool: PoolName
    generation: int
    gpus: tuple[GpuDevice, ...]
    names: tuple[str, ...]
    pool_size: int = 1  # slices of this generation in the whole pool


class LateClaim(NamedTuple):
    """A claim that the extender has created for the planned GPUs of one pod."""

    pod: str  # its uid
    name: str
    uid: str
    version: str
    edition: str  # of the plan
    allocated: bool


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    key: str  # namespace/name
    devices: tuple[tuple[PoolName, str], ...]  # pool and device, of those that are allocated to it
    pods: tuple[PodName, ...]  # that it is reserved for
    late: LateClaim | None = None


def slice_record(read: ResourceSlice) -> SliceRecord:
    spec = read.spec
    pool = PoolName(intern(spec.driver), intern(spec.pool.name))
    found = (
        GpuDevice(
            intern(device.name),
            uuid,
            any(taint.effect in _TAKEN_OUT for taint in device.taints),
            not parent_of(device, spec.driver),
            tuple(sorted(partitions_of(device, spec.driver).items())),
        )
        for device in spec.devices
        if (uuid := uuid_of(device, spec.driver))
    )
    return SliceRecord(
        read.metadata.name,
        spec.node_name,
        pool,
        spec.pool.generation,
        tuple(found),
        tuple(intern(device.name) for device in spec.devices),
        spec.pool.resource_slice_count,
    )


def claim_record(read: ResourceClaim) -> ClaimRecord:
    meta, allocation = read.metadata, read.status.allocation
    results = () if allocation is None else allocation.devices.results
    return ClaimRecord(
        f"{meta.namespace}/{meta.name}",
        tuple(
            (PoolName(intern(each.driver), intern(each.pool)), intern(each.device))
            for each in results
            if not each.admin_access
        ),
        tuple(
            PodName(each.uid, f"{meta.namespace}/{each.name}")
            for each in read.status.reserved_for
            if each.resource == "pods" and not each.api_group
        ),
        _late_claim(read),
    )


def _late_claim(read: ResourceClaim) -> LateClaim | None:
    meta, edition = read.metadata, read.metadata.annotations.get(EDITION, "")
    owners = [owner.uid for owner in meta.owner_references if owner.kind == "Pod"]
    if not edition or len(owners) != 1:
        return None
    allocated = read.status.allocation is not None
    return LateClaim(owners[0], meta.name, meta.uid, meta.resource_version, edition, allocated)
