"""Where GPUs come from: the driver, or a recorded machine.

Reading everything is slow (hundreds of driver calls) and happens at start, on a timer and on
SIGHUP; probing is quick and happens every few seconds. Neither ever happens inside a kubelet call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from linkwise.topology.model import Machine


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a source of GPUs said at one moment.

    `minors` maps a uuid to the N of its /dev/nvidiaN; `problems` maps the uuid of each GPU that
    must not be given out to the reason; `warnings` are answers that were bent or left out.
    """

    machine: Machine
    minors: Mapping[str, int] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Inventory(Protocol):
    def read(self) -> Snapshot:
        """Everything, anew. Raises InventoryError."""

    def probe(self, machine: Machine) -> Mapping[str, str]:
        """The GPUs of *machine* that are not well now: uuid -> reason. Never raises."""

    def close(self) -> None: ...
