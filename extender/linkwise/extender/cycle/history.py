"""The last decisions of this leader, bounded in number and in memory: tenants write their texts."""

from collections import deque
from collections.abc import Iterable

from linkwise.extender.api.decisions import MOST, Decision

MOST_BYTES = 4 << 20


class History:
    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._decisions: deque[Decision] = deque()
        self._bytes = 0
        self._untold: deque[Decision] = deque(maxlen=most)
        self.dropped = 0  # decisions of this term that it no longer has

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The oldest first."""
        return tuple(self._decisions)

    def add(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self._decisions.append(decision)
            self._untold.append(decision)
            self._bytes += decision.bytes
            while len(self._decisions) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._decisions.popleft().bytes
                self.dropped += 1

    def take_untold(self) -> tuple[Decision, ...]:
        """Those since the last call, for the log."""
        untold = tuple(self._untold)
        self._untold.clear()
        return untold
