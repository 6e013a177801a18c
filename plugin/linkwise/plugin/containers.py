"""PURE. What a container gets so that it sees its GPUs, and only those."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from linkwise.plugin.devices import Devices
from linkwise.plugin.errors import UnknownDeviceError

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_CONTROL_DEVICES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)


@dataclass(frozen=True, slots=True)
class Granting:
    """How GPUs are handed over: `cdi_kind` (vendor/class) names CDI devices in place of the
    environment variable; `device_specs` adds the device files themselves."""

    cdi_kind: str | None = None
    device_specs: bool = False


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    envs: Mapping[str, str]
    device_paths: tuple[str, ...] = ()
    cdi_names: tuple[str, ...] = ()


def grant(devices: Devices, uuids: Sequence[str], how: Granting) -> ContainerGrant:
    """Hand over the GPUs with these uuids, in index order. Raises UnknownDeviceError."""
    unknown = set(uuids) - devices.known
    if unknown:
        raise UnknownDeviceError(unknown, len(devices.known))
    machine = devices.machine
    ordered = machine.uuids_of(machine.mask_of(uuids))
    paths: tuple[str, ...] = ()
    if how.device_specs:
        paths = (*_CONTROL_DEVICES, *(f"/dev/nvidia{devices.minors[u]}" for u in ordered))
    if how.cdi_kind:
        # "void": an image may carry NVIDIA_VISIBLE_DEVICES=all, which NVIDIA's runtime would obey.
        names = tuple(f"{how.cdi_kind}={uuid}" for uuid in ordered)
        return ContainerGrant({VISIBLE_DEVICES: "void"}, paths, names)
    return ContainerGrant({VISIBLE_DEVICES: ",".join(ordered)}, paths)
