"""The places that a gang keeps for members to come, as the ConfigMap `linkwise-places` has them.

No kubelet can write that ConfigMap. A note on a pod that is bound could be replaced by its node,
which would reserve GPUs of other nodes with it.
"""

from hashlib import sha256

import msgspec

from linkwise.extender.state.records import GangKey, Seat

VERSION = 1
NAME = "linkwise-places"
"""The ConfigMap, in the namespace of the extender's Lease: one key for each gang."""
MOST_BYTES = 900 << 10
"""Of all notes together: the API server takes objects of 1 MiB."""


class NotedPlace(msgspec.Struct, frozen=True, array_like=True):
    seat: Seat
    role: str
    node: str
    gpus: str  # bitmask in hexadecimal
    lost: float | None = None  # when the member was lost that comes again; None: it never was there


class NotedPlaces(msgspec.Struct, frozen=True, kw_only=True, tag_field="v", tag=VERSION):
    namespace: str
    name: str  # of the gang, as `GangKey` has it
    source: str
    plan: str  # the id of the gang's plan
    made: float  # seconds since 1970
    places: tuple[NotedPlace, ...]


def key_of_note(key: GangKey) -> str:
    """The gang's key in the ConfigMap, whose keys have few letters."""
    return sha256("/".join(key).encode()).hexdigest()[:32]


def write_places(noted: NotedPlaces) -> str:
    return msgspec.json.encode(noted).decode()


def read_places(text: str) -> NotedPlaces | None:
    """None for what a person or a later version wrote there."""
    try:
        noted = msgspec.json.decode(text, type=NotedPlaces)
        is_mask = all(int(place.gpus, 16) >= 0 for place in noted.places)
    except (msgspec.DecodeError, ValueError):
        return None
    return noted if is_mask else None
