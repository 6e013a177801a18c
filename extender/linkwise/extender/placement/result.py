"""What a search for a place answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spot:
    node: str
    gpus: int  # bitmask


@dataclass(frozen=True, slots=True)
class Refusal:
    """Of *wanted* members no more than *had* could be placed."""

    wanted: int
    had: int
    nearest: str  # the node with room for most members; empty where none has any. Or the domain
    nearest_had: int
    level: str = ""  # the required span at which it failed: `nearest` is a domain of this level.
    # Several, where only all of them together failed, and `nearest` then has as many parts
