"""A source of GPUs: the driver, or a recorded machine.

A full reading is slow (hundreds of driver calls) and happens at start, on a timer and on SIGHUP. A
probe is quick and happens every few seconds. Neither ever happens inside a kubelet call. Both
return in bounded time, even if the driver hangs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from linkwise.topology.machine.model import Gpu, Machine


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a GPU has now. `condition` is a name of the table in `health.conditions`.
    `text` is for people, and stays the same while the problem lasts."""

    condition: str
    text: str


Findings = Mapping[str, tuple[Finding, ...]]
"""By uuid; a GPU that is well is not in it."""


def lanes_down(gpus: Iterable[Gpu]) -> dict[str, Finding]:
    """By uuid, the GPUs of whose PCIe lanes some are not up."""
    return {
        gpu.uuid: Finding(
            "pcie-width", f"{gpu.pcie_lanes} of {gpu.most_pcie_lanes} PCIe lanes are up"
        )
        for gpu in gpus
        if gpu.pcie_lanes < gpu.most_pcie_lanes
    }


@dataclass(frozen=True, slots=True)
class Load:
    """What a GPU does.

    `busy` is the share of the last second, 0 to 1, in which a kernel ran. `worked` is True if the
    GPU is known to have worked at any time since the look before. `memory_mib` is in use.
    """

    busy: float
    worked: bool
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What one look at every GPU found.

    `unanswered` are GPUs about which the driver has not answered yet, but not for so long that the
    silence is a finding: nothing is known of them, good or bad. `recovery_told` are GPUs of which
    the driver itself reports what they need to recover; they need nothing else.
    `recount` is True if the driver counts other GPUs than at the last reading. `loads` lacks the
    GPUs of which the driver does not say what they do.
    """

    findings: Findings = field(default_factory=dict)
    unanswered: frozenset[str] = frozenset()
    recovery_told: frozenset[str] = frozenset()
    recount: bool = False
    loads: Mapping[str, Load] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stock:
    """What a source of GPUs said at one moment.

    `minors` maps a uuid to the N of its /dev/nvidiaN, if known; it is None for a played machine,
    which has no device files. `warnings` are about answers that the source had to bend. `left_out`
    maps the index of each GPU that cannot be offered to the reason.
    """

    machine: Machine
    minors: Mapping[str, int] | None = None
    probe: Probe = field(default_factory=Probe)
    warnings: tuple[str, ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported by itself; `uuid` is empty if the GPU is unknown."""

    uuid: str
    number: int


class Inventory(Protocol):
    """One thread calls `read`, `probe` and `events`."""

    def read(self) -> Stock:
        """Read everything again. Raises InventoryError."""

    def probe(self, machine: Machine) -> Probe:
        """The state of the GPUs of *machine* now. Never raises."""

    def events(self, machine: Machine, seconds: float) -> tuple[Xid, ...] | None:
        """What the driver reports about *machine* within *seconds*; returns at the first report.

        If the source reports no events, returns None at once. Never raises.
        """

    def close(self) -> None: ...
