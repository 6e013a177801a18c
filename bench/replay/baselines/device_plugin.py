"""The GPUs that a baseline's pods get on a node: NVIDIA's device plugin prefers them there."""

from collections.abc import Sequence

from bench.replay.baselines.placements import Prefer
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.partition import best_of_partition, pair_scores


def nvidias_choice(machines: Sequence[str]) -> Prefer:
    """Return what chooses a pod's GPUs on nodes that are these recorded machines.

    It chooses as the best-effort policy of NVIDIA/go-gpuallocator, which NVIDIA's device plugin
    uses by default. Raises MachineError for a machine that is not recorded.
    """
    scores = {name: pair_scores(recorded_machine(name, node="node")) for name in set(machines)}

    def prefer(node: int, free: int, wanted: int) -> int:
        chosen = best_of_partition(scores[machines[node]], free, wanted)
        if chosen is None:
            raise ValueError(f"node {node}: {wanted} of {free.bit_count()} GPUs")
        return chosen

    return prefer
