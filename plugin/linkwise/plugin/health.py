"""PURE. Which GPUs may be given out: a bad probe counts at once, a good one only with others.

A GPU that fails and answers again may fail once more under load, so it stays out until several
probes in a row are clean; then it comes back by itself. One GPU's fault never touches another.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    reason: str
    clean_probes: int = 0  # in a row, since it was last seen bad


@dataclass(frozen=True, slots=True)
class Change:
    uuid: str
    healthy: bool
    reason: str


def next_faults(
    faults: Mapping[str, Fault], problems: Mapping[str, str], *, clean_probes_needed: int
) -> dict[str, Fault]:
    """The GPUs that are out after one more probe, which found *problems* (uuid -> reason)."""
    after = {uuid: Fault(reason) for uuid, reason in problems.items()}
    for uuid, fault in faults.items():
        if uuid not in problems and fault.clean_probes + 1 < clean_probes_needed:
            after[uuid] = Fault(fault.reason, fault.clean_probes + 1)
    return after


def changes(before: Mapping[str, Fault], after: Mapping[str, Fault]) -> tuple[Change, ...]:
    """What a person should hear: GPUs that went out, came back, or are out for a new reason."""
    told = [
        Change(uuid, healthy=False, reason=fault.reason)
        for uuid, fault in after.items()
        if uuid not in before or before[uuid].reason != fault.reason
    ]
    told += [
        Change(uuid, healthy=True, reason=f"clean again after: {fault.reason}")
        for uuid, fault in before.items()
        if uuid not in after
    ]
    return tuple(sorted(told, key=lambda change: change.uuid))
