"""How many GPUs a pod takes, and in which order the kubelet gives them to its containers.

Kubernetes' arithmetic (KEP-753): containers and restartable init containers run together, so they
add up. An ordinary init container runs beside the restartable ones declared before it, so only the
largest moment counts. The kubelet lets later containers of a pod reuse the devices of its ended
init containers, and asks for the rest.

If it hands on fewer than there are, it takes them in the order of a Go map and asks no plugin
(pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate, from 1.31 to 1.37). So no plan can say
which of them a container gets: `draws` says what is certain. The pod keeps all of them until it
ends, though podresources does not list the init container.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Generic, TypeVar

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
        object.__setattr__(self, "gpus", max(self._peak_of_init(), self.listed))
        object.__setattr__(self, "_hash", hash(self.containers))

    def __hash__(self) -> int:
        return self._hash

    @property
    def listed(self) -> int:
        """GPUs of the containers that run together, which are those that podresources lists."""
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


@dataclass(frozen=True, slots=True)
class Draw(Generic[Gpu]):
    """What the kubelet gives to a container: all of `sure`, and some of `others`, which it chooses
    by itself. `others` is empty where the plan decides."""

    sure: tuple[Gpu, ...]
    others: tuple[Gpu, ...] = ()

    @property
    def among(self) -> tuple[Gpu, ...]:
        """The GPUs of which the container gets as many as it requests."""
        return (*self.others, *self.sure)


def draws(demand: PodDemand, shares: Mapping[str, Sequence[Gpu]]) -> dict[str, Draw[Gpu]]:
    """What is certain of *shares*, each container's GPUs as of `split`, or as `Draw.among`."""
    found: dict[str, Draw[Gpu]] = {}
    pool: tuple[Gpu, ...] = ()  # GPUs of ended init containers, of which `left` are handed on
    left = 0
    for container in demand.containers:
        again = min(left, container.gpus)
        newly = tuple([gpu for gpu in shares[container.name] if gpu not in pool])
        if again == len(pool):
            found[container.name] = Draw(tuple(shares[container.name]))
        else:
            found[container.name] = Draw(newly, pool)
        if container.role is Role.INIT:
            pool, left = (*pool, *newly), left + len(newly)
        else:
            left -= again
            pool = pool if left else ()
    return found


@lru_cache(maxsize=4096)
def drawn_sizes(demand: PodDemand) -> tuple[int, ...]:
    """The sizes, rising, of the containers running together whose GPUs the kubelet chooses by
    itself; without 1, as a lone GPU uses no link."""
    found = draws(demand, split(demand, range(demand.gpus)))
    drawn = (c for c in demand.containers if c.role is not Role.INIT and found[c.name].others)
    return tuple(sorted({container.gpus for container in drawn} - {1}))
