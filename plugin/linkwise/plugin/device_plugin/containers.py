"""What a container gets so that it sees its GPUs, and only those.

Pure, except that it looks which CDI specs and which of the driver's device files exist.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from linkwise.plugin.device_plugin.cdi import CDI_KIND, Cdi
from linkwise.plugin.errors import NoDeviceFileError, UnknownDeviceError
from linkwise.plugin.health.book import Devices

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")  # by all GPUs


@dataclass(frozen=True, slots=True)
class Granting:
    """How a container receives its GPUs.

    If *cdi* injects them, CDI devices bring all that is needed. Otherwise an environment variable
    names the GPUs, and `device_specs` adds the device files themselves. `host_dev` is where the
    plugin sees the host's /dev.
    """

    cdi: Cdi
    device_specs: bool = False
    host_dev: Path = Path("/dev")


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    envs: Mapping[str, str]
    device_paths: tuple[str, ...] = ()
    cdi_names: tuple[str, ...] = ()


def grant(devices: Devices, uuids: Sequence[str], how: Granting) -> ContainerGrant:
    """What the container needs for the GPUs with these uuids, in index order.

    Raises UnknownDeviceError, and NoDeviceFileError if a device file would have to be guessed.
    """
    unknown = set(uuids) - devices.known
    if unknown:
        raise UnknownDeviceError(unknown, len(devices.known))
    machine = devices.machine
    ordered = machine.uuids_of(machine.mask_of(uuids))
    if how.cdi.injects(ordered):
        # "void": an image may carry NVIDIA_VISIBLE_DEVICES=all, which NVIDIA's runtime would obey.
        names = tuple(f"{CDI_KIND}={uuid}" for uuid in ordered)
        return ContainerGrant({VISIBLE_DEVICES: "void"}, cdi_names=names)
    paths = _device_files(devices, ordered, how.host_dev) if how.device_specs else ()
    return ContainerGrant({VISIBLE_DEVICES: ",".join(ordered)}, paths)


def _device_files(devices: Devices, uuids: Sequence[str], host_dev: Path) -> tuple[str, ...]:
    """The files of the GPUs, and of those that all GPUs share only the ones that exist: with a
    missing file, the container would not start. None for a played machine."""
    if devices.minors is None:
        return ()
    for gpu in devices.machine.gpus:
        if gpu.uuid in uuids and gpu.uuid not in devices.minors:
            raise NoDeviceFileError(gpu.index, gpu.uuid)
    shared = (f"/dev/{name}" for name in _SHARED if (host_dev / name).exists())
    return (*shared, *(f"/dev/nvidia{devices.minors[uuid]}" for uuid in uuids))
