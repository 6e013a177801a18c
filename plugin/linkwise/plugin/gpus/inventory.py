"""Where GPUs come from: the driver, or a recorded machine.

Reading everything is slow (hundreds of driver calls) and happens at start, on a timer and on
SIGHUP; probing is quick and happens every few seconds. Neither ever happens inside a kubelet call.
Both return in bounded time, also where the driver hangs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from linkwise.topology.model import Machine


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not well with a GPU now. `condition` is a name of the table in
    `health.conditions`; `text` is what a person reads, and stays the same while the trouble does.
    """

    condition: str
    text: str


Findings = Mapping[str, tuple[Finding, ...]]
"""By uuid; a GPU that is well is not in it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What one look at every GPU found.

    `unanswered` are GPUs about which the driver has not answered yet, and not for so long that it
    is a finding: nothing is known of them, good or bad. `recovery_told` are GPUs of which the
    driver says by itself what they need to recover, and nothing else is needed. `recount` says
    that the driver counts other GPUs than at the last reading.
    """

    findings: Findings = field(default_factory=dict)
    unanswered: frozenset[str] = frozenset()
    recovery_told: frozenset[str] = frozenset()
    recount: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a source of GPUs said at one moment.

    `minors` maps a uuid to the N of its /dev/nvidiaN, where that is known; it is None of a machine
    that is played, which has no device files. `warnings` are answers that were bent; `left_out`
    maps the index of each GPU that cannot be offered to the reason.
    """

    machine: Machine
    minors: Mapping[str, int] | None = None
    probe: Probe = field(default_factory=Probe)
    warnings: tuple[str, ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported by itself; `uuid` is empty where it is unknown whose."""

    uuid: str
    number: int


class Inventory(Protocol):
    """`read`, `probe` and `events` are called from one thread."""

    def read(self) -> Snapshot:
        """Everything, anew. Raises InventoryError."""

    def probe(self, machine: Machine) -> Probe:
        """How the GPUs of *machine* are now. Never raises."""

    def events(self, machine: Machine, seconds: float) -> tuple[Xid, ...] | None:
        """What the driver reports of *machine* within *seconds*, sooner where there is something.

        None, at once, where nothing can be waited for. Never raises.
        """

    def close(self) -> None: ...
