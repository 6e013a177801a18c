"""The page of one group: each node with its GPUs and links, and who has which GPU."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

from linkwise.drawing.shapes import COLOURS, Drawing, Holder, How, draw
from linkwise.drawing.words import indices
from linkwise.extender.show.explain.idle.idle_pods import Held, held_on
from linkwise.extender.show.explain.node_arrays import why_closed
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.show.explain.usage import kind_in_words
from linkwise.extender.show.page import elements, idle_rows
from linkwise.extender.show.page.elements import Slots
from linkwise.extender.show.page.gpu_states import count, masks_of
from linkwise.extender.show.page.groups import Group
from linkwise.extender.show.page.overview import in_words
from linkwise.extender.state.records import PodRecord
from linkwise.kube.filters.taints import CORDONED, KEEPS_OUT
from linkwise.topology.vendors.known import vendor_of

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Some GPUs of a node that one pod has, or that are reserved for one gang or pod."""

    mask: int
    who: str
    link: str  # empty: none
    state: str
    unit: str  # who shares its colour: a gang, or a pod in no gang
    how: How | Literal[""]  # empty: no pod has them
    idle: str = ""  # for how long its pod has been idle; empty: it is not known to be idle
    busy: str = ""  # the share of the last day in which they worked; empty: unknown

    def gpus(self, node: NodeState) -> str:
        if node.machine is None:
            return str(self.mask.bit_count() or "")
        return indices(node.machine.indices_of(self.mask))


_NOBODY = Tenant(0, "", "", "", "", "")


@dataclass(frozen=True, slots=True)
class NodeCard:
    number: int  # in the group
    name: str
    kind: str
    drawing: Drawing | None  # None: the node publishes no topology
    lines: int  # in its table; some may be hidden
    idle: int  # GPUs of idle pods
    slots: Slots

    @property
    def shape(self) -> Hashable:
        drawing = self.drawing
        if drawing is None:
            return self.name, self.lines
        boxes = tuple((box.x, box.index) for box in drawing.gpus)
        return self.name, self.kind, self.lines, boxes, tuple(line.path for line in drawing.lines)


@dataclass(frozen=True, slots=True)
class GroupPage:
    group: Group
    cards: tuple[NodeCard, ...]
    slots: Slots
    shape: Hashable
    links: str  # the vendors' words for the links that are drawn


def group_page(snapshot: Snapshot, group: Group) -> GroupPage:
    tenants = [
        sorted(_tenants(snapshot, node), key=lambda each: each.mask & -each.mask)
        for node in group.nodes
    ]
    colours = _colours(tenants)
    cards = tuple(
        _card(number, node, there, colours)
        for number, (node, there) in enumerate(zip(group.nodes, tenants, strict=True))
    )
    slots: dict[str, Mapping[str, str]] = {}
    for card in cards:
        slots.update(card.slots)
    counts = count([masks_of(node) for node in group.nodes])
    slots["all"] = {"text": in_words(counts, sum(card.idle for card in cards))}
    machines = [node.machine for node in group.nodes if node.machine is not None]
    links = sorted({vendor_of(machine).links for machine in machines})
    return GroupPage(
        group, cards, slots, tuple(card.shape for card in cards), " or ".join(links) or "links"
    )


def _card(
    number: int, node: NodeState, tenants: list[Tenant], colours: Mapping[str, int]
) -> NodeCard:
    name, machine, closed = f"n{number}", node.machine, why_closed(node)
    idle = sum(tenant.mask.bit_count() for tenant in tenants if tenant.idle)
    slots: dict[str, Mapping[str, str]] = {
        f"{name}-sum": {"text": in_words(count([masks_of(node)]), idle)},
        f"{name}-closed": elements.shown(f"takes no pods now: {closed}" if closed else ""),
        f"{name}-taints": elements.shown(_taints(node)),
    }
    drawing = None
    lines = 2
    if machine is not None:
        drawing = draw(machine, _holders(node, tenants, colours))
        slots.update(_drawing_slots(name, drawing))
        lines = len(machine.gpus)
    for line in range(lines):
        slots.update(_line_slots(f"{name}-{line}", node, line, tenants, colours))
    kind = kind_in_words(machine) if machine is not None else "unknown GPUs"
    return NodeCard(number, node.name, kind, drawing, lines, idle, slots)


def _taints(node: NodeState) -> str:
    if node.record is None:
        return ""
    said = {CORDONED.key} if node.record.unschedulable else set()
    keys = (taint.key for taint in node.record.taints if taint.effect in KEEPS_OUT)
    tolerated = ", ".join(key for key in keys if key not in said)
    return f"takes only pods that tolerate {tolerated}" if tolerated else ""


def _line_slots(
    name: str, node: NodeState, line: int, tenants: list[Tenant], colours: Mapping[str, int]
) -> Slots:
    tenant = tenants[line] if line < len(tenants) else _NOBODY
    badge = f"badge {tenant.how} b{colours[tenant.unit]}" if tenant.how else "badge"
    return {
        name: elements.shown_if(tenant is not _NOBODY),
        f"{name}-label": {"text": _label(line) if tenant.how else "", "class": badge},
        f"{name}-who": {
            **elements.shown(tenant.who if tenant.link else ""),
            "href": tenant.link or elements.OVERVIEW,
        },
        f"{name}-none": {"text": "" if tenant.link else tenant.who},
        f"{name}-gpus": {"text": tenant.gpus(node)},
        f"{name}-state": {
            "text": f"{tenant.state}, idle for {tenant.idle}" if tenant.idle else tenant.state
        },
        f"{name}-busy": {"text": tenant.busy},
    }


def _label(line: int) -> str:
    return _LETTERS[line % len(_LETTERS)]


def _drawing_slots(name: str, drawing: Drawing) -> Slots:
    slots: dict[str, Mapping[str, str]] = {}
    for place, box in enumerate(drawing.gpus):
        slots[f"{name}-g{place}"] = {"class": box.classes}
        slots[f"{name}-t{place}"] = {"text": box.hover}
        slots[f"{name}-b{place}"] = {"text": box.label}
        slots[f"{name}-i{place}"] = {"text": box.note}
    for place, link in enumerate(drawing.lines):
        slots[f"{name}-l{place}"] = {"class": link.classes}
    return slots


def _holders(
    node: NodeState, tenants: list[Tenant], colours: Mapping[str, int]
) -> dict[int, Holder]:
    """By GPU index."""
    assert node.machine is not None, "only a machine is drawn"
    found = {}
    for line, tenant in enumerate(tenants):
        if tenant.how:
            holder = Holder(
                _label(line),
                colours[tenant.unit],
                f"{tenant.state}{', idle' if tenant.idle else ''}: {tenant.who}",
                tenant.how,
                idle_rows.NAME if tenant.idle else "",
            )
            found.update(dict.fromkeys(node.machine.indices_of(tenant.mask), holder))
    return found


def _tenants(snapshot: Snapshot, node: NodeState) -> Iterator[Tenant]:
    masks = masks_of(node)
    if node.machine is None:
        yield from _all_in_state(masks, used="counted as in use", free="counted as free")
        return
    held = {each.record.uid: each for each in held_on(snapshot, node)}
    for uid, mask in node.owned.items():
        if mask:  # pods that have shares alone have none
            yield _owner(node, uid, mask, snapshot.by_uid.get(uid), held.get(uid), snapshot.at)
    yield from _reserved(snapshot, node, masks["reserved"])
    yield from _all_in_state(masks, free="free", unhealthy="unhealthy")
    yield from _divided(snapshot, node, masks["divided"])


def _all_in_state(masks: Mapping[str, int], **words: str) -> Iterator[Tenant]:
    for state, word in words.items():
        if masks[state]:
            yield Tenant(masks[state], "", "", word, "", "")


def _reserved(snapshot: Snapshot, node: NodeState, left: int) -> Iterator[Tenant]:
    for reservation in snapshot.reservations:
        mask = left & reservation.gpus.get(node.name, 0)
        left &= ~mask
        if mask:
            key = reservation.key
            name = f"{key.namespace}/{key.name}"
            link = elements.to_pod(name) if key.uid else elements.to_gang(name)
            unit = name if key.uid else key.title
            yield Tenant(mask, name, link, "reserved for", unit, "reserved")


def _owner(
    node: NodeState, uid: str, mask: int, record: PodRecord | None, held: Held | None, at: float
) -> Tenant:
    used = bool(mask & node.used)
    if record is None:  # the kubelet still reports it, and the API server has deleted it
        who = next((name for name, listed in node.listed_as.items() if listed == uid), uid)
        return Tenant(mask, who, "", "in use, deleted", who, "taken")
    gang = record.gang if record.gang is not None and not record.gang.uid else None
    unit = gang.title if gang is not None else record.key
    state = ("in use" if used else "planned") if record.live else "ending"
    how: How = "taken" if used else "planned"
    idle, busy = idle_rows.use_of(held, at)
    return Tenant(mask, record.key, elements.to_pod(record.key), state, unit, how, idle, busy)


def _divided(snapshot: Snapshot, node: NodeState, mask: int) -> Iterator[Tenant]:
    assert node.machine is not None, "GPUs that are only counted are not divided"
    for position, gpu in enumerate(node.machine.gpus):
        if not mask >> position & 1:
            continue
        ids = [each for part in gpu.parts or () for each in part.ids]
        uids = dict.fromkeys(
            node.shares.holders[each] for each in ids if each in node.shares.holders
        )
        pods = [record.key if (record := snapshot.by_uid.get(uid)) else uid for uid in uids]
        taken = sum(each in node.shares.holders for each in ids)
        state = f"divided, {len(ids) - taken} of {len(ids)} shares not taken"
        yield Tenant(1 << position, ", ".join(pods), "", state, "", "")


def _colours(nodes: Sequence[Sequence[Tenant]]) -> dict[str, int]:
    """By unit: its own colour in every process, or the next one that no other unit on one of its
    nodes has, if there is one. Those on many nodes choose first."""
    on: dict[str, set[int]] = {}
    for number, tenants in enumerate(nodes):
        for tenant in tenants:
            if tenant.how:
                on.setdefault(tenant.unit, set()).add(number)
    taken: list[set[int]] = [set() for _ in nodes]
    colours = {}
    for unit, there in sorted(on.items(), key=lambda each: (-len(each[1]), each[0])):
        own = crc32(unit.encode())
        others = set().union(*(taken[number] for number in there))
        wanted = [(own + step) % COLOURS for step in range(COLOURS)]
        colours[unit] = next((each for each in wanted if each not in others), wanted[0])
        for number in there:
            taken[number].add(colours[unit])
    return colours
