"""The states of a node's GPUs, and the small drawing of a group: a column of cells a node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from linkwise.extender.show.explain.node_arrays import why_closed
from linkwise.extender.show.explain.snapshot import NodeState
from linkwise.extender.show.explain.usage import gpus_in_states

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
# What is drawn in a cell, from the middle of its left edge on. The states differ in shape too:
# not everybody can tell the colours apart. page.css has the width of each line.
_SHAPES: Mapping[str, str] = {
    "used": "h5",
    "held": "h2m1 0h2",  # divided from top to bottom
    "reserved": "m1.5 0h2",  # a narrow bar
    "free": "h5",
    "unhealthy": "m.5-2l4 4m0-4l-4 4",  # a cross
    "divided": "m0-1.5h5m-5 3h5",  # divided from left to right
}


@dataclass(frozen=True, slots=True)
class SmallDrawing:
    """*paths* by state: one shape a GPU. Lengths in pixels."""

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
    return gpus_in_states(node.machine, node.owned, node.used, node.free, node.reserved)


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
            state: "".join(_column(x, each.get(state, 0), shape) for x, each in enumerate(masks))
            for state, shape in _SHAPES.items()
        },
        closed=closed,
        idle="".join(_marks(x, idle.get(node.name, 0)) for x, node in enumerate(nodes)),
    )


@lru_cache(maxsize=16384)
def _column(x: int, mask: int, shape: str) -> str:
    return "".join(
        f"M{x * _CELL} {y * _CELL + 6.5:g}{shape}"
        for y in range(mask.bit_length())
        if mask >> y & 1
    )


@lru_cache(maxsize=16384)
def _marks(x: int, mask: int) -> str:
    return "".join(
        f"M{x * _CELL + 1.5:g} {y * _CELL + 6.5:g}h2"
        for y in range(mask.bit_length())
        if mask >> y & 1
    )
