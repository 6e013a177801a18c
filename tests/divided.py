"""Machines of which some GPUs are divided, by MIG or by replicas."""

from collections.abc import Mapping
from dataclasses import replace

from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.parts import MigProfile, Part

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG_1G = "nvidia.com/mig-1g.10gb"
MIG_3G = "nvidia.com/mig-3g.40gb"
PROFILE_1G, PROFILE_3G = MigProfile("1g.10gb", 1, 9856), MigProfile("3g.40gb", 3, 40192)


def divided(machine: Machine, parts: Mapping[int, tuple[Part, ...]]) -> Machine:
    """*machine*, with these parts of the GPUs at these positions."""
    gpus = tuple(
        replace(gpu, healthy=False, parts=parts[position]) if position in parts else gpu
        for position, gpu in enumerate(machine.gpus)
    )
    return replace(machine, gpus=gpus)


def replicas(machine: Machine, counts: Mapping[int, int], resource: str = SHARED) -> Machine:
    """*machine*, with so many replicas of the GPUs at these positions."""
    return divided(
        machine,
        {at: (Part(machine.gpus[at].uuid, resource, count),) for at, count in counts.items()},
    )


def cut(machine: Machine, position: int, *resources: str) -> Machine:
    """*machine*, with a MIG device for each of *resources* on one GPU."""
    own = machine.gpus[position].uuid.removeprefix("GPU-")
    parts = tuple(
        Part(
            f"MIG-{number}-{own}",
            resource,
            mig=PROFILE_3G if resource == MIG_3G else PROFILE_1G,
        )
        for number, resource in enumerate(resources)
    )
    return divided(machine, {position: parts})


def all_three(machine: Machine) -> Machine:
    """GPUs 0 to 2 whole, 3 and 4 with replicas, 5 with replicas under the managed name, 6 and 7 cut
    by MIG."""
    machine = replicas(machine, {3: 2, 4: 3})
    machine = replicas(machine, {5: 2}, GPU)
    return cut(cut(machine, 6, MIG_1G, MIG_1G, MIG_3G), 7, MIG_1G)
