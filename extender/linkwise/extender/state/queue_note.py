"""The queue state of a gang, as its oldest waiting pod carries it in `linkwise.dev/queue`.

The note holds the gang's age, if the gang was evicted and is older than its pods; the places that
are reserved for it; since when its namespace idles such places (`idle_limit`); and the targets of
the pods that move for it. A new leader continues from it, so that no younger gang gets what was
reserved, and each pod that was evicted has its place. The note names its pod by uid: one that was
copied with a manifest has no effect.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec

from linkwise.topology import names
from linkwise.topology.annotations.annotation_json import check_version, decode
from linkwise.topology.annotations.plan import PlannedShares

Place = tuple[str, int]
"""A node's name, and a bitmask of its GPUs."""
VERSION = 1
_LIKE = 'JSON like {"v":1,"uid":"8f0c…","spots":[["gpu-3",["ff"]]]}'


class NotedMove(msgspec.Struct, frozen=True, array_like=True):
    """A pod that moves for the gang, and where its replacement goes."""

    pod: str  # namespace/name
    uid: str
    owner: str  # uid of its controller
    node: str
    gpus: str  # bitmask in hexadecimal
    # Of a member of a gang: the gang's name and source, and the member's rank.
    gang: str = ""
    source: str = ""
    rank: int | None = None
    shares: tuple[PlannedShares, ...] = ()


class QueueNote(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="v", tag=VERSION
):
    uid: str  # of the pod that carries it
    since: float | None = None  # seconds since 1970, if the gang is older than its pods
    # One place for each member without GPUs, in the order of their ranks: runs of places on one
    # node, each a bitmask of the node's GPUs in hexadecimal.
    spots: tuple[tuple[str, tuple[str, ...]], ...] = ()
    idle_since: float | None = None  # seconds since 1970
    idle_used: float = 0.0  # how much of what its namespace may idle was used up, 0 to 1
    rests_until: float | None = None  # seconds since 1970; until then nothing is reserved for it
    moves: tuple[NotedMove, ...] = ()
    moves_at: float | None = None  # seconds since 1970; when the last of them was planned
    # Seconds since 1970; when others had given way for its missing pods (`quota_turns`). No leader
    # needs it, but the controller of its pods sees that one changed.
    turn: float | None = None

    def places(self) -> list[Place]:
        """Raises ValueError if a bitmask is not hexadecimal."""
        return [(node, int(mask, 16)) for node, masks in self.spots for mask in masks]


def queue_note(
    uid: str,
    since: float | None,
    places: Sequence[Place],
    *,
    idle_since: float | None = None,
    idle_used: float = 0.0,
    rests_until: float | None = None,
    moves: tuple[NotedMove, ...] = (),
    moves_at: float | None = None,
    turn: float | None = None,
) -> QueueNote | None:
    """None if there is nothing to note."""
    if since is None and rests_until is None and turn is None and not (places or moves):
        return None
    runs = groupby(places, key=lambda place: place[0])
    spots = tuple((node, tuple(f"{gpus:x}" for _, gpus in run)) for node, run in runs)
    return QueueNote(
        uid=uid,
        since=since,
        spots=spots,
        idle_since=idle_since,
        idle_used=idle_used,
        rests_until=rests_until,
        moves=moves,
        moves_at=moves_at,
        turn=turn,
    )


def write_queue_note(note: QueueNote) -> str:
    return msgspec.json.encode(note).decode()


def read_queue_note(text: str) -> QueueNote:
    """Raises AnnotationError; for a newer version its subclass VersionError."""
    check_version(names.QUEUE, text, VERSION, _LIKE)
    return decode(names.QUEUE, text, QueueNote, _LIKE)
