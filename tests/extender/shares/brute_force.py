"""Which requests for GPUs and shares fit a node, by trying every way. Slow, and on purpose without
any of the extender's own code but the values that it reads."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.parts import Part

Want = tuple[str, int]
"""resource and count, of one container"""


def free_shares(machine: Machine, taken: frozenset[str], resource: str) -> Mapping[str, int]:
    """The free ids of shares of one resource, and the position of each one's GPU."""
    return {
        each: position
        for position, gpu in enumerate(machine.gpus)
        if gpu.uuid not in taken
        for part in gpu.parts or ()
        if part.resource == resource and part.healthy
        for each in part.ids
        if each not in taken
    }


def free_gpus(machine: Machine, taken: frozenset[str]) -> list[str]:
    """The GPUs that a pod can get whole."""
    return [
        gpu.uuid
        for gpu in machine.gpus
        if gpu.healthy
        and gpu.parts is None
        and gpu.uuid not in taken
        and not any(each.startswith(f"{gpu.uuid}::") for each in taken)
    ]


def ways(
    machine: Machine, taken: frozenset[str], wants: Sequence[Want], share: str
) -> Iterator[frozenset[str]]:
    """Every set of ids that gives each container its shares, as *share* demands."""
    if not wants:
        yield frozenset()
        return
    (resource, count), *rest = wants
    free = free_shares(machine, taken, resource)
    for ids in combinations(sorted(free), count):
        gpus = {free[each] for each in ids}
        if share == "spread" and len(gpus) < count:
            continue
        if share == "pack" and len(gpus) > 1:
            continue
        for others in ways(machine, taken | set(ids), rest, share):
            yield frozenset(ids) | others


def fits_shares(machine: Machine, taken: frozenset[str], wants: Sequence[Want], share: str) -> bool:
    return next(ways(machine, taken, wants, share), None) is not None


def opened(machine: Machine, ids: frozenset[str] | set[str]) -> set[int]:
    """The positions of the GPUs that these shares are on."""
    return {
        position
        for position, gpu in enumerate(machine.gpus)
        for part in gpu.parts or ()
        if ids & set(part.ids)
    }


def parts_of(machine: Machine) -> list[Part]:
    return [part for gpu in machine.gpus for part in gpu.parts or ()]
