"""A recorded machine as the source of GPUs, for clusters without any, demos and tests.

It can play faults: every probe reads a JSON file {"<uuid or index>": "reason"}.
"""

from pathlib import Path

import msgspec

from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.inventory import Finding, Probe, Snapshot, Xid
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import read_machine_file, recorded_machine


class RecordedInventory:
    def __init__(self, machine: Machine, *, faults: Path | None = None) -> None:
        self._machine, self._faults = machine, faults

    @classmethod
    def named(cls, name: str, *, node: str, faults: Path | None = None) -> "RecordedInventory":
        """A machine of the project; its uuids contain *node*, so they differ from node to node."""
        try:
            return cls(recorded_machine(name, node=node), faults=faults)
        except LinkwiseError as error:
            raise InventoryError(str(error)) from error

    @classmethod
    def from_file(cls, where: str, *, faults: Path | None = None) -> "RecordedInventory":
        """*where* is FILE or FILE#name: the format of machines.json, or `nvidia-smi topo -m`."""
        file, _, name = where.partition("#")
        try:
            return cls(read_machine_file(Path(file).read_text(), name or None), faults=faults)
        except OSError as error:
            raise InventoryError(f"machine file {where}: {error.strerror}") from error
        except (UnicodeDecodeError, LinkwiseError) as error:
            raise InventoryError(f"machine file {where}: {error}") from error

    def read(self) -> Snapshot:
        return Snapshot(machine=self._machine, probe=self.probe(self._machine))

    def probe(self, machine: Machine) -> Probe:
        if self._faults is None:
            return Probe()
        try:
            played = msgspec.json.decode(self._faults.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return Probe()
        except (OSError, msgspec.MsgspecError) as error:
            unread = f'{self._faults}: {error}; expected {{"<uuid or index>": "reason"}}'
            return Probe({gpu.uuid: (Finding("played", unread),) for gpu in machine.gpus})
        return Probe(
            {
                gpu.uuid: (Finding("played", reason),)
                for gpu in machine.gpus
                if (reason := played.get(gpu.uuid) or played.get(str(gpu.index)))
            }
        )

    def events(self, machine: Machine, seconds: float) -> tuple[Xid, ...] | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        pass
