"""The states of a node's GPUs, and the small drawing of a group: a column of cells a node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from linkwise.extender.explain.node_arrays import why_closed
from linkwise.extender.explain.snapshot import NodeState

# In the order in which legends name them.
STATES: dict[str, str] = {
    "used": "in use",
    "held": "planned",
    "reserved": "reserved",
    "free": "free",
    "unhealthy": "unhealthy",
    "divided": "divided",
}
_CELL = 6  # pixels from one cell to the next; a cell has 5


@dataclass(frozen=True, slots=True)
class SmallDrawing:
    """*paths* by state: one stroke a GPU. Lengths in pixels."""

    width: int
    height: int
    paths: Mapping[str, str]
    closed: str  # a mark above each node that takes no pods now
    idle: str  # a mark in the cell of each GPU whose pod is idle


def masks_of(node: NodeState) -> dict[str, int]:
    """State -> bitmask of the GPUs in it. GPUs that are only counted have no place of their own:
    those in use come first."""
    if node.machine is None:
        count = node.by_count
        used = (1 << count.used) - 1 if count is not None else 0
        return {"used": used, "free": (1 << count.gpus) - 1 & ~used if count is not None else 0}
    taken = 0
    for mask in node.owned.values():
        taken |= mask
    divided = sum(1 << p for p, gpu in enumerate(node.machine.gpus) if gpu.parts is not None)
    divided &= ~taken
    known = taken | node.free | node.reserved | divided
    return {
        "used": node.used & taken,
        "held": taken & ~node.used,
        "reserved": node.reserved,
        "free": node.free,
        "unhealthy": node.machine.all_gpus & ~known,
        "divided": divided,
    }


def count(masks: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """State -> GPUs."""
    return {state: sum(each.get(state, 0).bit_count() for each in masks) for state in STATES}


def draw_small(
    nodes: Sequence[NodeState], masks: Sequence[Mapping[str, int]], idle: Mapping[str, int]
) -> SmallDrawing:
    """*masks*: of each of *nodes*, by state; *idle*: node -> GPUs of idle pods."""
    rows = max((mask.bit_length() for each in masks for mask in each.values()), default=1)
    closed = "".join(f"M{x * _CELL} 1h5" for x, node in enumerate(nodes) if why_closed(node))
    return SmallDrawing(
        width=len(nodes) * _CELL,
        height=rows * _CELL + 4,
        paths={
            state: "".join(_column(x, each.get(state, 0)) for x, each in enumerate(masks))
            for state in STATES
        },
        closed=closed,
        idle="".join(_marks(x, idle.get(node.name, 0)) for x, node in enumerate(nodes)),
    )


@lru_cache(maxsize=16384)
def _column(x: int, mask: int) -> str:
    return "".join(
        f"M{x * _CELL} {y * _CELL + 6.5:g}h5" for y in range(mask.bit_length()) if mask >> y & 1
    )


@lru_cache(maxsize=16384)
def _marks(x: int, mask: int) -> str:
    return "".join(
        f"M{x * _CELL + 1.5:g} {y * _CELL + 6.5:g}h2"
        for y in range(mask.bit_length())
        if mask >> y & 1
    )
