"""Who waits for GPUs, and whose turn it is: by priority, then age.

A gang that found no room stands aside until there is more, or until it changes itself.
"""

from collections import Counter

from linkwise.extender.books import Books
from linkwise.extender.gang import Gang
from linkwise.extender.muster import Muster
from linkwise.extender.place import Refusal
from linkwise.extender.records import GangKey
from linkwise.extender.roll import Roll


class Line:
    def __init__(self, books: Books, roll: Roll) -> None:
        self._books, self._roll = books, roll
        self._waiting: set[GangKey] = set()
        self._most_room, self._most = -1, dict[int, int]()

    def join(self, key: GangKey) -> None:
        self._waiting.add(key)

    def leave(self, key: GangKey) -> None:
        self._waiting.discard(key)

    def take_up(self, key: GangKey | None) -> None:
        """A gang that was left to wait may be tried again."""
        gang = self._roll.gangs.get(key) if key is not None else None
        if gang is not None:
            gang.tried_room, gang.lacking = -1, {}
            if gang.refused:
                gang.refused, gang.refusals = False, 0

    def untried(self) -> list[Gang]:
        """Whoever may find room, the most urgent first."""
        gangs = self._roll.gangs
        return self._by_urgency([key for key in self._waiting if self.is_untried(gangs[key])])

    def is_untried(self, gang: Gang) -> bool:
        if gang.tried_room == self._books.room:
            return False
        if any(count > self._most_of_size(size) for size, count in gang.lacking.items()):
            gang.tried_room = self._books.room  # sure, without a look at every member
            return False
        return True

    def stand_aside(self, gang: Gang, found: Muster, why: Refusal) -> None:
        """There was no room for it."""
        gang.no_room, gang.tried_room = why, self._books.room
        gang.lacking = Counter(member.needs.gpus for member in found.open)

    def got_room(self, gang: Gang) -> None:
        gang.no_room, gang.tried_room, gang.lacking, gang.reason = None, -1, {}, ""
        self.leave(gang.key)

    def _most_of_size(self, size: int) -> int:
        """As `Rows.most_of_size`, counted once for all who wait: what is free only gets less
        while `Books.room` stays."""
        if self._most_room != self._books.room:
            self._most_room, self._most = self._books.room, {}
        if size not in self._most:
            self._most[size] = self._books.rows.most_of_size(size)
        return self._most[size]

    def _by_urgency(self, keys: list[GangKey]) -> list[Gang]:
        def urgency(key: GangKey) -> tuple[int, float, GangKey]:
            live = [member for member in self._books.members(key) if member.live]
            priority = max((member.priority for member in live), default=0)
            return -priority, min((member.created for member in live), default=0.0), key

        return [self._roll.gangs[key] for key in sorted(keys, key=urgency)]
