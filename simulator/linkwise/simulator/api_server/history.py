"""The changes of one kind, newest last, up to a limit."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from linkwise.simulator.api_server.refusals import Object, expired
from linkwise.simulator.api_server.selectors import Selector


@dataclass(frozen=True, slots=True)
class Stored:
    """An object at one version, and its JSON."""

    obj: Object
    version: int
    json: bytes

    def at(self, version: int) -> bytes:
        """Return its JSON with another version and no other change."""
        metadata = self.obj["metadata"] | {"resourceVersion": str(version)}
        return msgspec.json.encode(self.obj | {"metadata": metadata})


@dataclass(frozen=True, slots=True)
class StoredChange:
    """`before` is None for a created object; a deleted object's `after` is its last state."""

    type: str  # ADDED, MODIFIED, DELETED
    version: int
    before: Stored | None
    after: Stored

    def seen_through(self, namespace: str | None, selector: Selector) -> tuple[str, bytes] | None:
        """Return the event and object for a watch with this selector, or None.

        An object that begins to match is ADDED. One that stops matching is DELETED, in its last
        matching state.
        """
        if namespace and self.after.obj["metadata"].get("namespace") != namespace:
            return None
        if not selector:
            return self.type, self.after.json
        now = self.type != "DELETED" and selector.matches(self.after.obj)
        before = self.before is not None and selector.matches(self.before.obj)
        if not now and not before:
            return None
        if now:
            return "MODIFIED" if before else "ADDED", self.after.json
        if self.type == "DELETED" or self.before is None:
            return "DELETED", self.after.json
        return "DELETED", self.before.at(self.version)


class ChangeHistory:
    """Keeps at least `limit` changes, and at most twice as many."""

    def __init__(self, limit: int, start: int) -> None:
        self._limit = limit
        self._changes: list[StoredChange] = []
        self._forgotten = start  # version of the newest change that was dropped

    def add(self, change: StoredChange) -> None:
        self._changes.append(change)
        if len(self._changes) > 2 * self._limit:
            self.forget(self._changes[-self._limit - 1].version)

    def since(self, version: int) -> Sequence[StoredChange]:
        """Return the changes after *version*. Raises RequestRefusedError 410 if some were
        dropped."""
        if version < self._forgotten:
            raise expired(f"too old resource version: {version} ({self._forgotten})")
        return self._changes[bisect_right(self._changes, version, key=attrgetter("version")) :]

    def forget(self, up_to: int) -> None:
        """Drop the changes up to this version, as the real API server does every five minutes."""
        kept = bisect_right(self._changes, up_to, key=attrgetter("version"))
        del self._changes[:kept]
        self._forgotten = max(self._forgotten, up_to)
