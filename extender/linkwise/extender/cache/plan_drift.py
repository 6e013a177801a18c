"""Finds pods that have other GPUs than planned: what the kubelet gave them is the truth."""

from collections.abc import Mapping
from dataclasses import dataclass

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.node_info import NodeInfo
from linkwise.topology.annotations.plan import held_of


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A pod that has other GPUs than its plan says."""

    record: PodRecord
    gpus: Mapping[str, tuple[str, ...]]  # container -> uuids that it really has
    swapped: bool  # more than another split among its own containers


def note_mismatches(known: dict[str, Mismatch], info: NodeInfo) -> None:
    """Update *known* (uid -> mismatch) for the pods of one node."""
    for uid, record in info.bound.items():
        found = mismatch_of(info, record)
        if found is None:
            known.pop(uid, None)
        else:
            known[uid] = found


def mismatch_of(info: NodeInfo, record: PodRecord) -> Mismatch | None:
    written, truth = record.written, info.truth_of(record)
    if written is None or truth is None or info.machine is None:
        return None  # without the machine no set can be named; it shows once that is known
    if written.plan.node != info.name:  # bound without the extender, elsewhere than planned
        return Mismatch(record, truth, swapped=False)
    by_claim = record.claim is not None
    right = held_of(info.in_use, record.key, written.gpus, by_claim=by_claim)
    if written.gpus.keys() == right.keys() and all(
        set(written.gpus[container]) == set(gpus) for container, gpus in right.items()
    ):
        return None
    real = {uuid for gpus in truth.values() for uuid in gpus}
    return Mismatch(record, right, swapped=not real <= written.uuids)
