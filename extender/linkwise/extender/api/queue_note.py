"""What a gang that waits has in the queue, as its oldest pod carries it: `linkwise.dev/queue`.

Its age, where it was evicted and is older than its pods; the places that are kept for it, and since
when they idle too much (`idle_limit`). So a new leader goes on where the one before stopped, and
nobody younger gets what was kept. The note names its pod: one that was copied with a manifest
counts for nothing.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec

from linkwise.topology import names
from linkwise.topology.annotation_json import check_version, decode

Place = tuple[str, int]
"""A node, and a bitmask of its GPUs."""
VERSION = 1
_LIKE = 'JSON like {"v":1,"uid":"8f0c…","spots":[["gpu-3",["ff"]]]}'


class QueueNote(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="v", tag=VERSION
):
    uid: str  # of the pod that carries it
    since: float | None = None  # seconds since 1970, where that is before its pods were made
    # A place for each member that has none, in the order of their ranks: runs of places on one
    # node, each a bitmask of the node's GPUs in hexadecimal.
    spots: tuple[tuple[str, tuple[str, ...]], ...] = ()
    idle_since: float | None = None  # seconds since 1970
    rests_until: float | None = None  # until when nothing over the share is kept

    def places(self) -> list[Place]:
        """Raises ValueError where a bitmask is none."""
        return [(node, int(mask, 16)) for node, masks in self.spots for mask in masks]


def queue_note(
    uid: str,
    since: float | None,
    places: Sequence[Place],
    *,
    idle_since: float | None = None,
    rests_until: float | None = None,
) -> QueueNote | None:
    """None: there is nothing to note."""
    if since is None and rests_until is None and not places:
        return None
    runs = groupby(places, key=lambda place: place[0])
    spots = tuple((node, tuple(f"{gpus:x}" for _, gpus in run)) for node, run in runs)
    return QueueNote(
        uid=uid, since=since, spots=spots, idle_since=idle_since, rests_until=rests_until
    )


def write_queue_note(note: QueueNote) -> str:
    return msgspec.json.encode(note).decode()


def read_queue_note(text: str) -> QueueNote:
    """Raises AnnotationError (of a newer version: VersionError)."""
    check_version(names.QUEUE, text, VERSION, _LIKE)
    return decode(names.QUEUE, text, QueueNote, _LIKE)
