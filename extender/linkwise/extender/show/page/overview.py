"""The first page: how many GPUs are in which state, who waits, and all groups of nodes."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from linkwise.drawing.tables import Table
from linkwise.drawing.words import gpus_in_words
from linkwise.extender.show.explain.idle.idle_pods import idle_pods
from linkwise.extender.show.explain.moves import view_moves
from linkwise.extender.show.explain.node_arrays import why_closed
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.show.page import elements, idle_rows, moves_rows, queue_rows
from linkwise.extender.show.page.elements import Slots
from linkwise.extender.show.page.gpu_states import (
    STATES,
    SmallDrawing,
    count,
    draw_small,
    masks_of,
)
from linkwise.extender.show.page.groups import Group
from linkwise.extender.show.page.queue_rows import queue_of

_CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the table of groups; `slots` are those of its drawing and its numbers."""

    group: Group
    number: int
    link: str
    gpus: int
    drawing: SmallDrawing
    counts: Mapping[str, int]  # by state
    idle: Mapping[str, int]  # node -> bitmask of the GPUs of idle pods
    slots: Slots

    @property
    def shape(self) -> Hashable:
        group, drawing = self.group, self.drawing
        nodes = len(group.nodes)
        return group.key, group.title, group.within, nodes, self.gpus, drawing.width, drawing.height


@dataclass(frozen=True, slots=True)
class Overview:
    nodes: int
    gpus: int
    rows: tuple[GroupRow, ...]
    queue: Table
    idle: Table
    slots: Slots
    shape: Hashable  # if it changes, an open page has to load the page again


class Overviews:
    """Makes the first page of one snapshot after the other. The row of a group whose nodes did not
    change stays the same object."""

    def __init__(self) -> None:
        self._rows: dict[str, GroupRow] = {}

    def of(self, snapshot: Snapshot, groups: tuple[Group, ...]) -> Overview:
        idle = idle_pods(snapshot)
        masks = idle_rows.masks_of(idle)
        rows = tuple(self._row(number, group, masks) for number, group in enumerate(groups))
        self._rows = {row.group.key: row for row in rows}
        total: Counter[str] = Counter()
        slots: dict[str, Mapping[str, str]] = {}
        for row in rows:
            total.update(row.counts)
            slots.update(row.slots)
        slots |= {f"all-{state}": {"text": f"{total[state]:,}"} for state in STATES}
        queue, idle_table = queue_of(snapshot), idle_rows.first_table(idle, snapshot.at)
        slots |= queue_rows.first_slots(queue)
        slots |= moves_rows.first_slots(view_moves(snapshot))
        slots |= idle_rows.first_slots(idle, idle_table)
        return Overview(
            nodes=sum(len(group.nodes) for group in groups),
            gpus=sum(row.gpus for row in rows),
            rows=rows,
            queue=queue.table,
            idle=idle_table,
            slots=slots,
            shape=tuple(row.shape for row in rows),
        )

    def _row(self, number: int, group: Group, all_idle: Mapping[str, int]) -> GroupRow:
        idle = {node.name: all_idle[node.name] for node in group.nodes if node.name in all_idle}
        known = self._rows.get(group.key)
        same = known is not None and known.group is group and known.number == number
        if known is not None and same and known.idle == idle:
            return known
        masks = [masks_of(node) for node in group.nodes]
        counts, drawing = count(masks), draw_small(group.nodes, masks, idle)
        return GroupRow(
            group=group,
            number=number,
            link=elements.to_group(group.key),
            gpus=sum(counts.values()),
            drawing=drawing,
            counts=counts,
            idle=idle,
            slots=_group_slots(number, group, drawing, counts, idle),
        )


def _group_slots(
    number: int,
    group: Group,
    drawing: SmallDrawing,
    counts: Mapping[str, int],
    idle: Mapping[str, int],
) -> Slots:
    idle_gpus = sum(mask.bit_count() for mask in idle.values())
    closed = sum(bool(why_closed(node)) for node in group.nodes)
    name = f"g{number}"
    slots = {f"{name}-{state}": {"d": path} for state, path in drawing.paths.items()}
    slots |= {f"{name}-n-{state}": {"text": _number(counts[state])} for state in STATES}
    slots[f"{name}-{_CLOSED}"] = {"d": drawing.closed}
    slots[f"{name}-n-{_CLOSED}"] = {"text": _number(closed)}
    slots[f"{name}-{idle_rows.NAME}"] = {"d": drawing.idle}
    slots[f"{name}-n-{idle_rows.NAME}"] = {"text": _number(idle_gpus)}
    slots[f"{name}-all"] = {"aria-label": in_words(counts, idle_gpus)}
    return slots


def in_words(counts: Mapping[str, int], idle: int) -> str:
    """`12 GPUs: 8 in use (2 idle), 4 free`."""
    words = STATES | ({"used": f"{STATES['used']} ({idle} idle)"} if idle else {})
    parts = [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    return f"{gpus_in_words(sum(counts.values()))}: {', '.join(parts)}" if parts else "no GPUs"


def _number(count: int) -> str:
    return f"{count:,}" if count else "–"
