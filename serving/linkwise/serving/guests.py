"""Which connection loses its place: if none is free, the source with the most gives up one.

Strangers share a fixed number of places. A flood from one address takes places only from itself:
the newest connection always gets a place, so an occasional caller always gets in.
"""

from typing import Generic, TypeVar

Guest = TypeVar("Guest")


class Guests(Generic[Guest]):
    """Not thread-safe. A guest is hashable, and has one *source*, such as an IP address."""

    def __init__(self, places: int) -> None:
        """*places*: 1 or more."""
        self._places = places
        self._sources: dict[Guest, str] = {}  # in the order of their last use
        self._by_source: dict[str, dict[Guest, None]] = {}  # each in the same order

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, guest: Guest) -> bool:
        return guest in self._sources

    def arrive(self, guest: Guest, source: str) -> Guest | None:
        """Give *guest* a place. Return the guest that loses its own, which is never *guest*."""
        self._sources[guest] = source
        self._by_source.setdefault(source, {})[guest] = None
        return self.give_up() if len(self._sources) > self._places else None

    def use(self, guest: Guest) -> None:
        """Mark *guest* as the last one of its source to lose its place."""
        source = self._sources.pop(guest, None)
        if source is not None:
            self._sources[guest] = source
            guests = self._by_source[source]
            guests[guest] = guests.pop(guest)

    def leave(self, guest: Guest) -> None:
        """Free the place of *guest*, if it has one."""
        source = self._sources.pop(guest, None)
        if source is not None:
            guests = self._by_source[source]
            del guests[guest]
            if not guests:
                del self._by_source[source]

    def give_up(self) -> Guest | None:
        """Free the place of the least recently used guest of the source with the most guests."""
        if not self._sources:
            return None
        most = max(len(guests) for guests in self._by_source.values())
        chosen = next(
            guest for guest, source in self._sources.items() if len(self._by_source[source]) == most
        )
        self.leave(chosen)
        return chosen
