"""The results of a search."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spot:
    node: str
    gpus: int  # bitmask


@dataclass(frozen=True, slots=True)
class NoRoom:
    """*had* of *wanted* members have room at once, by the GPUs of the nodes."""

    wanted: int
    had: int
    nearest: str  # the node or domain with room for most members; empty: none has room for any
    nearest_had: int
    level: str = ""  # the required span that failed, of which `nearest` is a domain. If only a
    # combination failed: its levels with commas, and `nearest` has one part for each
