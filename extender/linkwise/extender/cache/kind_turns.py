"""How often a node may become another kind of machine.

A kind costs up to a second of work and 5 MiB, and the word of one node makes one. So a node changes
its kind five times at once, and then once a minute. What it publishes in between is not read, and
nothing is placed there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from linkwise.extender.api.records import NodeRecord
from linkwise.extender.api.timers import Agenda, Timers
from linkwise.extender.cache.machine_kind import kind_key
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.machine.model import Machine

AT_ONCE, EVERY_SECONDS = 5.0, 60.0
_TOO_OFTEN = "changed too often: the last one is read within a minute"


@dataclass(slots=True)
class _Turns:
    left: float  # at the time *at*
    at: float
    waits: NodeRecord | None = None  # what is read next

    def at_time(self, now: float) -> float:
        passed = max(now - self.at, 0.0)  # clocks are set back
        return min(self.left + passed / EVERY_SECONDS, AT_ONCE)


class KindTurns:
    def __init__(self) -> None:
        self._turns: dict[str, _Turns] = {}
        self._agenda = Agenda()
        self._timers = Timers[str](self._agenda)

    def read(
        self, record: NodeRecord, before: NodeRecord | None, known: Machine | None, now: float
    ) -> NodeRecord:
        """Return the record, or one whose topology cannot be read until the node's turn. *before*
        and *known*: its record and its machine until now."""
        name, turns = record.name, self._turns.get(record.name)
        if turns is not None:
            turns.waits = None
            self._timers.drop(name)
        if before is None or before.topology == record.topology:
            return record
        return self.read_again(record, now) if _is_another(record.topology, known) else record

    def read_again(self, record: NodeRecord, now: float) -> NodeRecord:
        """As `read`, of a node that is another kind, maybe as its partitions have changed."""
        name = record.name
        turns = self._turns.setdefault(name, _Turns(AT_ONCE, now))
        turns.left, turns.at = turns.at_time(now), now
        if turns.left >= 1.0:
            turns.left -= 1.0
            return record
        turns.waits = record
        self._timers[name] = now + (1.0 - turns.left) * EVERY_SECONDS
        return replace(record, topology=_TOO_OFTEN)

    def is_next(self, name: str, now: float) -> bool:
        """Whether the node's next kind is read at once."""
        turns = self._turns.get(name)
        return turns is None or turns.at_time(now) >= 1.0

    def due(self, now: float) -> list[NodeRecord]:
        """What is to be read now."""
        waiting = (self._turns[name].waits for name in self._timers.take(now))
        return [record for record in waiting if record is not None]

    def drop(self, name: str) -> None:
        """The node is gone."""
        self._turns.pop(name, None)
        self._timers.drop(name)

    def times(self) -> Iterable[float]:
        return self._agenda.times()


def _is_another(text: str | None, known: Machine | None) -> bool:
    if text is None:
        return False
    try:
        machine = read_topology(text)
    except LinkwiseError:
        return False
    if known is None:
        return True
    # What a DRA driver says of its partitions is not in the annotation.
    return kind_key(replace(machine, partitions=known.partitions)) != kind_key(known)
