"""The changes of one kind, newest last, and as far back as memory is allowed."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from linkwise.simulator.api_server.refusals import Object, expired
from linkwise.simulator.api_server.selectors import Selector


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was at one version, and its JSON."""

    obj: Object
    version: int
    json: bytes

    def at(self, version: int) -> bytes:
        """Its JSON, as if nothing but its version had changed."""
        metadata = self.obj["metadata"] | {"resourceVersion": str(version)}
        return msgspec.json.encode(self.obj | {"metadata": metadata})


@dataclass(frozen=True, slots=True)
class StoredChange:
    """`before` is None for what was created; a deleted object's `after` is its last state."""

    type: str  # ADDED, MODIFIED, DELETED
    version: int
    before: Stored | None
    after: Stored

    def seen_through(self, namespace: str | None, selector: Selector) -> tuple[str, bytes] | None:
        """The event and object that a watch with this selector is sent, if any.

        What begins to match is ADDED to it. What no longer does is DELETED, and shown as it was
        while it did.
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
    """`limit` changes at least, twice as many at most."""

    def __init__(self, limit: int, start: int) -> None:
        self._limit = limit
        self._changes: list[StoredChange] = []
        self._forgotten = start  # the version of the newest change that is no longer here

    def add(self, change: StoredChange) -> None:
        self._changes.append(change)
        if len(self._changes) > 2 * self._limit:
            self.forget(self._changes[-self._limit - 1].version)

    def since(self, version: int) -> Sequence[StoredChange]:
        """The changes after *version*. Raises RequestRefusedError 410 where some are forgotten."""
        if version < self._forgotten:
            raise expired(f"too old resource version: {version} ({self._forgotten})")
        return self._changes[bisect_right(self._changes, version, key=attrgetter("version")) :]

    def forget(self, up_to: int) -> None:
        """Drop the changes up to and with this version, as the real one does every five minutes."""
        kept = bisect_right(self._changes, up_to, key=attrgetter("version"))
        del self._changes[:kept]
        self._forgotten = max(self._forgotten, up_to)
