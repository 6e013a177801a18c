"""A recorded machine as the source of GPUs, for clusters without any, demos and tests.

It can play faults and loads: every probe reads JSON files {"<uuid or index>": "reason"} and
{"<uuid or index>": 0.5}.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.inventory import Finding, Findings, Load, Probe, Stock, Xid
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import read_machine_file, recorded_machine

log = logging.getLogger(__name__)

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Played:
    """The files of what a machine plays; None: nothing. A file may come and go."""

    faults: Path | None = None
    loads: Path | None = None


NOTHING_PLAYED = Played()


class RecordedInventory:
    def __init__(self, machine: Machine, *, played: Played = NOTHING_PLAYED) -> None:
        self._machine, self._played = machine, played
        self._trouble = ""

    @classmethod
    def named(cls, name: str, *, node: str, played: Played = NOTHING_PLAYED) -> "RecordedInventory":
        """A machine of the project; its uuids contain *node*, so they differ from node to node."""
        try:
            return cls(recorded_machine(name, node=node), played=played)
        except LinkwiseError as error:
            raise InventoryError(str(error)) from error

    @classmethod
    def from_file(cls, where: str, *, played: Played = NOTHING_PLAYED) -> "RecordedInventory":
        """*where* is FILE or FILE#name: the format of machines.json, or `nvidia-smi topo -m`."""
        file, _, name = where.partition("#")
        try:
            return cls(read_machine_file(Path(file).read_text(), name or None), played=played)
        except OSError as error:
            raise InventoryError(f"machine file {where}: {error.strerror}") from error
        except (UnicodeDecodeError, LinkwiseError) as error:
            raise InventoryError(f"machine file {where}: {error}") from error

    def read(self) -> Stock:
        return Stock(machine=self._machine, probe=self.probe(self._machine))

    def probe(self, machine: Machine) -> Probe:
        return Probe(self._findings(machine), loads=self._loads(machine))

    def _findings(self, machine: Machine) -> Findings:
        file = self._played.faults
        if file is None:
            return {}
        try:
            played = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            unread = f'{file}: {error}; expected {{"<uuid or index>": "reason"}}'
            return {gpu.uuid: (Finding("played", unread),) for gpu in machine.gpus}
        return {
            gpu.uuid: (Finding("played", reason),)
            for gpu in machine.gpus
            if (reason := played.get(gpu.uuid) or played.get(str(gpu.index)))
        }

    def _loads(self, machine: Machine) -> dict[str, Load]:
        """Of the GPUs in the file; nothing is known of the others, or if it cannot be read."""
        file = self._played.loads
        if file is None:
            return {}
        try:
            played = msgspec.json.decode(file.read_bytes(), type=dict[str, _Share])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            if str(error) != self._trouble:
                log.warning('%s: %s; expected {"<uuid or index>": 0 to 1}', file, error)
            self._trouble = str(error)
            return {}
        found = (
            (gpu.uuid, played.get(gpu.uuid, played.get(str(gpu.index)))) for gpu in machine.gpus
        )
        return {uuid: Load(busy, busy > 0) for uuid, busy in found if busy is not None}

    def events(self, machine: Machine, seconds: float) -> tuple[Xid, ...] | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        pass
