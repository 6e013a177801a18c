"""The fields of `resource.k8s.io/v1` that Linkwise reads: the devices that DRA drivers publish, and
the claims to which kube-scheduler allocates them.

All may create claims, and each driver writes its own slices, so sizes are bounded as the API
server bounds them (`pkg/apis/resource/types.go`): an object beyond that does not decode, and costs
itself only.
"""

import re
from typing import Annotated

import msgspec

from linkwise.kube.objects import ObjectMeta
from linkwise.topology.vendors.known import id_attribute

VERSION = "resource.k8s.io/v1"
ROOT = f"/apis/{VERSION}"

_Name = Annotated[str, msgspec.Meta(max_length=253)]
_MOST_DEVICES = 128  # of a slice
_MOST_RESULTS = 32  # devices of a claim
_MOST_CONSUMERS = 256  # of a claim
_PARTITION = re.compile("partition([1-9][0-9]?)")


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """As in `linkwise.kube.objects`."""


class Attribute(_Object, frozen=True):
    string: _Name | None = None  # None: a value of another type
    number: int | None = msgspec.field(default=None, name="int")


class DeviceTaint(_Object, frozen=True):
    effect: str = ""  # NoSchedule, NoExecute, or None, which only informs


class Device(_Object, frozen=True):
    name: _Name
    attributes: dict[str, Attribute] = {}
    taints: tuple[DeviceTaint, ...] = ()


class Pool(_Object, frozen=True):
    name: _Name
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(_Object, frozen=True):
    driver: _Name
    pool: Pool
    node_name: _Name = ""  # empty: its devices are not those of one node
    devices: Annotated[tuple[Device, ...], msgspec.Meta(max_length=_MOST_DEVICES)] = ()


class ResourceSlice(_Object, frozen=True):
    spec: ResourceSliceSpec
    metadata: ObjectMeta = ObjectMeta()


class AllocatedDevice(_Object, frozen=True):
    driver: _Name
    pool: _Name
    device: _Name
    admin_access: bool = False  # it watches a device that others have


class DeviceAllocation(_Object, frozen=True):
    results: Annotated[tuple[AllocatedDevice, ...], msgspec.Meta(max_length=_MOST_RESULTS)] = ()


class Allocation(_Object, frozen=True):
    devices: DeviceAllocation = DeviceAllocation()


class Consumer(_Object, frozen=True):
    resource: str  # "pods" of the core API, or else another kind
    name: _Name
    uid: _Name
    api_group: str = ""


class ResourceClaimStatus(_Object, frozen=True):
    allocation: Allocation | None = None
    reserved_for: Annotated[tuple[Consumer, ...], msgspec.Meta(max_length=_MOST_CONSUMERS)] = ()


class ResourceClaim(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: ResourceClaimStatus = ResourceClaimStatus()


def uuid_of(device: Device, driver: str) -> str:
    """The id that *driver* publishes of the GPU, or of that of which the device is a part; empty:
    it publishes none."""
    return parent_of(device, driver) or _text_of(device, *id_attribute(driver))


def parent_of(device: Device, driver: str) -> str:
    """The UUID of the device of which this one is a part; empty: it is a whole one."""
    return _text_of(device, driver, "parentUUID")


def partitions_of(device: Device, driver: str) -> dict[int, int]:
    """The NVSwitch partitions that have the device: by their number of GPUs, their ids in the node.

    NVIDIA's driver publishes `partition4: 2` of a GPU in partition 2, which has four GPUs, if its
    feature gate FabricManagerPartitioning is on; it prepares no claim whose GPUs are not exactly
    one of these (its page "Fabric Manager partitioning")."""
    found = {}
    for name, attribute in device.attributes.items():
        said = _PARTITION.fullmatch(name.removeprefix(f"{driver}/"))
        if said is not None and attribute.number is not None:
            found[int(said[1])] = attribute.number
    return found


def _text_of(device: Device, domain: str, name: str) -> str:
    for known_as in (name, f"{domain}/{name}"):
        attribute = device.attributes.get(known_as)
        if attribute is not None and attribute.string:
            return attribute.string
    return ""
