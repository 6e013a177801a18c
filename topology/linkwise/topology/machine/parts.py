"""What a GPU is divided into, if containers get parts of it: replicas, or MIG devices.

A *share* is what one container gets of a divided GPU, a device for the kubelet. NVIDIA's plugin
gives shares these ids (NVIDIA/k8s-device-plugin 1b826acc6, `internal/rm/devices.go`):

- the uuid of a MIG device;
- `<uuid>::<n>` for each replica, counted from 0, of a GPU or of a MIG device.
"""

from dataclasses import dataclass

from linkwise.topology.errors import MachineError

MAX_PARTS = 16  # MIG cuts a GPU into 7 at most; the annotation leaves room
MAX_REPLICAS = 1024
_REPLICA = "::"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """The size of a MIG device. `slices` counts the GPU instance's slices, 1 to 8."""

    name: str  # as NVIDIA writes it: 1g.10gb
    slices: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a GPU: a MIG device, or the GPU itself if replicas of it are given out."""

    uuid: str  # of the MIG device, or of the GPU
    resource: str = ""  # under which the kubelet knows its shares; empty: no plugin offers it
    replicas: int = 0  # 0: it is one share, and has no replicas
    mig: MigProfile | None = None  # None: the whole GPU, of which replicas are given out
    healthy: bool = True

    def __post_init__(self) -> None:
        if not self.uuid or len(self.uuid) > 63 or self.uuid.split() != [self.uuid]:
            raise MachineError(f"part {self.uuid!r}: uuid: expected 1 to 63 characters, no blanks")
        least = 1 if self.mig is None else 0
        if not least <= self.replicas <= MAX_REPLICAS:
            raise MachineError(
                f"part {self.uuid}: {self.replicas} replicas: expected {least} to {MAX_REPLICAS}"
            )

    @property
    def ids(self) -> tuple[str, ...]:
        """The shares' ids, in their order."""
        if not self.replicas:
            return (self.uuid,)
        return tuple(f"{self.uuid}{_REPLICA}{number}" for number in range(self.replicas))

    @property
    def shares(self) -> int:
        return max(self.replicas, 1)


def part_of(device_id: str) -> str:
    """The uuid of the part, if this is a share's id; the uuid itself for a whole GPU's."""
    return device_id.partition(_REPLICA)[0]


def replica_of(device_id: str) -> int | None:
    """The number of the replica; None if the id is that of no replica."""
    _, mark, number = device_id.partition(_REPLICA)
    return int(number) if mark and number.isascii() and number.isdecimal() else None


def check_parts(gpu_uuid: str, parts: tuple[Part, ...]) -> None:
    """Raise MachineError if this GPU cannot consist of these parts."""
    if len(parts) > MAX_PARTS:
        raise MachineError(f"GPU {gpu_uuid}: {len(parts)} parts: expected {MAX_PARTS} at most")
    if any(part.mig is None for part in parts) and [part.uuid for part in parts] != [gpu_uuid]:
        raise MachineError(f"GPU {gpu_uuid}: replicas of it beside other parts: expected one part")
