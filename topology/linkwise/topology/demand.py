"""How many GPUs a pod takes, and in which order the kubelet gives them to its containers.

Kubernetes' arithmetic (KEP-753): containers and restartable init containers run together, so they
add up. An ordinary init container runs beside the restartable ones declared before it, so only the
largest moment counts. The kubelet lets later containers of a pod reuse the devices of its ended
init containers, and asks for the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

Gpu = TypeVar("Gpu")


class Role(Enum):
    INIT = "init"  # runs to its end before the next one starts
    SIDECAR = "sidecar"  # an init container with restartPolicy Always
    MAIN = "main"


@dataclass(frozen=True, slots=True)
class ContainerDemand:
    name: str
    role: Role
    gpus: int


@dataclass(frozen=True, slots=True)
class PodDemand:
    """The containers that request GPUs, in the kubelet's order: init containers, then
    containers."""

    containers: tuple[ContainerDemand, ...]
    gpus: int = field(init=False, compare=False, repr=False)
    """GPUs that the pod holds at its largest moment, as the scheduler counts them."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Computed once: caches use it as a key thousands of times for a gang.
        object.__setattr__(self, "gpus", max(self._peak_of_init(), self._together()))
        object.__setattr__(self, "_hash", hash(self.containers))

    def __hash__(self) -> int:
        return self._hash

    def _together(self) -> int:
        return sum(c.gpus for c in self.containers if c.role is not Role.INIT)

    def _peak_of_init(self) -> int:
        peak = sidecars = 0
        for container in self.containers:
            if container.role is Role.SIDECAR:
                sidecars += container.gpus
            elif container.role is Role.INIT:
                peak = max(peak, sidecars + container.gpus)
        return peak


def split(demand: PodDemand, gpus: Sequence[Gpu]) -> dict[str, tuple[Gpu, ...]]:
    """Assign the pod's GPUs to its containers in the order given, as the kubelet does.

    *gpus* holds at least `demand.gpus` of them, and the first ones are used first. Containers after
    an init container get its GPUs again.
    """
    if len(gpus) < demand.gpus:
        raise ValueError(f"{len(gpus)} GPUs for a pod that takes {demand.gpus}")
    shares: dict[str, tuple[Gpu, ...]] = {}
    reusable: list[Gpu] = []
    fresh = list(gpus)
    for container in demand.containers:
        from_init = reusable[: container.gpus]
        newly = fresh[: container.gpus - len(from_init)]
        shares[container.name] = (*from_init, *newly)
        fresh = fresh[len(newly) :]
        if container.role is Role.INIT:
            reusable += newly
        else:
            reusable = reusable[len(from_init) :]
    return shares
