"""The gangs that get a reservation in one pass through the scheduling queue."""

from collections.abc import Hashable

from linkwise.extender.api.records import GangKey
from linkwise.extender.cache.node_table import Bools

_MOST = 16  # reservations: each costs searches, and later gangs soon become the first


class Front:
    """The gangs that get a reservation: the first of each namespace, and behind it those that use
    other nodes than those before them. With *several*, also others of the namespace."""

    def __init__(self, *, several: bool = False) -> None:
        self._several = several
        self.keys: set[GangKey] = set()
        self.unreserved: set[GangKey] = set()  # wait as well, and get none
        self.pools: dict[object, Bools] = {}  # by requests and the state of the nodes
        self._blocked: list[Bools] = []
        self._taken: dict[str, list[Bools]] = {}  # by namespace
        self._refused: set[tuple[str, Hashable]] = set()

    @property
    def is_full(self) -> bool:
        return len(self.keys) >= _MOST

    @property
    def is_blocked(self) -> bool:
        return bool(self._blocked)

    @property
    def takes_alike(self) -> bool:
        """Whether of pods that are alike another one may get a reservation."""
        return self._several and not self.is_full

    def take(self, key: GangKey, alike: Hashable, pool: Bools) -> bool:
        """*pool*: the nodes that the gang could use; of gangs that are *alike*, the same."""
        if self._several:
            return True
        if (key.namespace, alike) in self._refused:
            return False
        before = self._taken.setdefault(key.namespace, [])
        # Pools of one round differ in length if nodes are added during a pause.
        if any((pool[: len(other)] & other[: len(pool)]).any() for other in before):
            self._refused.add((key.namespace, alike))
            return False
        before.append(pool)
        return True

    def block(self, pool: Bools) -> None:
        """Hide GPUs that came free on these nodes from later gangs until the next turns."""
        self._blocked.append(pool)

    def blocks(self, row: int) -> bool:
        return any(row < len(pool) and pool[row] for pool in self._blocked)
