"""The last decisions of this leader, bounded in number and in memory: tenants write their texts.

The namespace whose decisions take the most memory loses its oldest one. So no namespace makes the
leader forget those about the others, however many it causes.
"""

from collections import Counter, deque
from collections.abc import Iterable
from itertools import count

from linkwise.extender.api.decisions import MOST, Decision

MOST_BYTES = 4 << 20


class History:
    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._decisions: dict[int, Decision] = {}  # by number; the oldest first
        self._numbers = count()
        self._of: dict[str, deque[int]] = {}  # by namespace
        self._bytes: Counter[str] = Counter()  # by namespace
        self._all_bytes = 0
        self._untold: deque[Decision] = deque(maxlen=most)
        self.dropped = 0  # decisions of this term that it no longer has

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The oldest first."""
        return tuple(self._decisions.values())

    def add(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            number = next(self._numbers)
            self._decisions[number] = decision
            self._of.setdefault(decision.namespace, deque()).append(number)
            self._untold.append(decision)
            self._count_bytes(decision, 1)
            while len(self._decisions) > self._most or self._all_bytes > self._most_bytes:
                self._drop_one()

    def _drop_one(self) -> None:
        most = max(self._bytes, key=self._bytes.__getitem__)
        self._count_bytes(self._decisions.pop(self._of[most].popleft()), -1)
        if not self._of[most]:
            del self._of[most], self._bytes[most]
        self.dropped += 1

    def _count_bytes(self, decision: Decision, sign: int) -> None:
        self._bytes[decision.namespace] += sign * decision.bytes
        self._all_bytes += sign * decision.bytes

    def take_untold(self) -> tuple[Decision, ...]:
        """Those since the last call, for the log."""
        untold = tuple(self._untold)
        self._untold.clear()
        return untold
