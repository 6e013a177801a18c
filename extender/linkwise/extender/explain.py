"""Says of pods, gangs and nodes what the books know, in words and numbers for people."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from linkwise.extender import answers
from linkwise.extender.asks import link_word
from linkwise.extender.books import Books
from linkwise.extender.gang import Gang
from linkwise.extender.kinds import Kind, Wish
from linkwise.extender.muster import Muster, muster, plan_of
from linkwise.extender.node_book import NodeBook
from linkwise.extender.planner import Planner
from linkwise.extender.records import PodRecord
from linkwise.extender.rooms import by_kind, rooms
from linkwise.extender.views import (
    Counts,
    Explanation,
    GangView,
    GpuView,
    MemberView,
    NearestMiss,
    NodeView,
    ReasonCount,
    Wanted,
)
from linkwise.topology.choose import nearest_miss


def explain(books: Books, planner: Planner, record: PodRecord) -> Explanation:
    gang = planner.gangs.get(record.gang) if record.ask.gang and record.gang else None
    written = plan_of(books, record)
    state = _state(books, record)
    reasons: tuple[ReasonCount, ...] = ()
    fitting, nearest = 0, None
    if state == "waiting":
        wish = Wish(record.demand, record.ask.requirement)
        reasons, fitting = _reasons(books, wish)
        nearest = None if fitting else _nearest(books, wish)
    return Explanation(
        namespace=record.ref.namespace,
        name=record.ref.name,
        uid=record.uid,
        state=state,
        summary=_summary(books, planner, record, state, fitting),
        wanted=_wanted(record) if record.demand.gpus else None,
        node=record.node or (written.plan.node if written else ""),
        gpus=_gpus(books, record),
        link=written.plan.link if written else "",
        gbytes_per_s=written.plan.gbytes_per_s if written else 0.0,
        reasons=reasons,
        fitting_nodes=fitting,
        nearest=nearest,
        gang=None if gang is None else view_gang(books, planner, gang),
    )


def view_gangs(books: Books, planner: Planner) -> tuple[GangView, ...]:
    return tuple(
        view_gang(books, planner, gang)
        for _, gang in sorted(planner.gangs.items())
        if not gang.alone
    )


def view_gang(books: Books, planner: Planner, gang: Gang) -> GangView:
    found = muster(books, gang)
    return GangView(
        namespace=gang.key.namespace,
        name=gang.key.name,
        phase=gang.phase.value,
        reason=_gang_reason(gang, found),
        size=found.size,
        members=tuple(_member(books, member) for member in found.members),
        plan=gang.plan_id if gang.made is not None else "",
        made=gang.made,
        deadline=planner.deadline(gang),
        refusals=gang.refusals,
        started=found.started,
    )


def view_nodes(books: Books) -> tuple[NodeView, ...]:
    seen = [book for _, book in sorted(books.nodes.items()) if book.record is not None]
    return tuple(
        NodeView(
            name=book.name,
            usable=not book.problem,
            reason=book.problem,
            clique=(book.machine.clique or "") if book.machine else "",
            gpus=_gpus_of_node(books, book),
            free=(book.free | book.held).bit_count(),
            future=float(book.kind.table.future[book.free]) if book.kind else 0.0,
        )
        for book in seen
        # A node that never had GPUs is nobody's question.
        if book.machine is not None or book.owned or (book.record and book.record.offers.gpus)
    )


def view_counts(books: Books, planner: Planner) -> Counts:
    gpus: Counter[str] = Counter(free=0, held=0, used=0, unhealthy=0)
    nodes: Counter[str] = Counter(usable=0, unusable=0)
    for book in books.nodes.values():
        if book.record is None or (book.machine is None and not book.record.offers.gpus):
            continue
        nodes["unusable" if book.problem else "usable"] += 1
        if book.machine is not None:
            taken = sum(book.owned.values())
            gpus["used"] += book.used.bit_count()
            gpus["held"] += (taken & ~book.used).bit_count()
            idle = book.free | book.held
            gpus["free"] += idle.bit_count()
            gpus["unhealthy"] += (book.machine.all_gpus & ~taken & ~idle).bit_count()
    gangs = Counter(gang.phase.value for gang in planner.gangs.values() if not gang.alone)
    return Counts(gangs, gpus, nodes, planner.swaps, planner.refusals)


def _state(books: Books, record: PodRecord) -> str:
    if record.ended:
        return "ended"
    if record.node:
        return "bound"
    if record.invalid:
        return "invalid"
    if not record.demand.gpus:
        return "not-ours"
    if record.uid in books.holds or books.keeps_plan(record.uid):
        return "planned"
    return "waiting"


def _summary(books: Books, planner: Planner, record: PodRecord, state: str, fitting: int) -> str:
    if state == "ended":
        return f"The pod has ended.{_still_held(books, record)}"
    if state == "bound":
        if record.leaving:
            return f"The pod is ending on node {record.node}.{_still_held(books, record)}"
        return f"The pod is bound to node {record.node}."
    if state == "invalid":
        return f"The pod cannot be placed: {record.invalid}"
    if state == "not-ours":
        return "The pod takes no GPU, so Linkwise has no say in it."
    if state == "planned":
        return "The pod has GPUs held and waits for kube-scheduler to bind it."
    if record.held_back:
        return _held_back(record)
    if record.ask.gang is not None:
        text = answers.gang_text(planner, record).removeprefix("linkwise: ")
        return f"{text[:1].upper()}{text[1:]}."
    if fitting:
        nodes, them = ("1 node has", "it") if fitting == 1 else (f"{fitting} nodes have", "them")
        return (
            f"{nodes} GPUs for the pod; kube-scheduler has not tried {them} yet, "
            "or objects for other reasons (see the pod's events)."
        )
    return "No node has a GPU set for the pod now."


def _held_back(record: PodRecord) -> str:
    if record.awaits:
        return f"The pod waits until its gang is known: {record.awaits.removeprefix('gang: ')}."
    return "The pod waits behind a scheduling gate that is not ours; until then no GPU is held."


def _still_held(books: Books, record: PodRecord) -> str:
    book = books.nodes.get(record.node)
    held = book.owned.get(record.uid, 0).bit_count() if book is not None else 0
    return f" {held} of its GPUs are in use until its node says otherwise." if held else ""


def _wanted(record: PodRecord) -> Wanted:
    requirement = record.ask.requirement
    return Wanted(
        gpus=record.demand.gpus,
        containers={c.name: c.gpus for c in record.demand.containers},
        require_link=link_word(requirement.require),
        prefer_link=link_word(requirement.prefer),
        models=tuple(" ".join(words) for words in requirement.models),
        memory_mib=requirement.memory_mib,
    )


def _gpus(books: Books, record: PodRecord) -> Mapping[str, tuple[str, ...]]:
    book = books.nodes.get(record.node)
    truth = book.truth_of(record) if book is not None else None
    if truth is not None:
        return truth
    written = plan_of(books, record)
    return {} if written is None or record.ended else written.gpus


def _reasons(books: Books, wish: Wish) -> tuple[tuple[ReasonCount, ...], int]:
    names = [book.name for book in books.nodes.values() if book.record is not None]
    answer = rooms(books, wish, names)
    counted = Counter([*answer.failed.values(), *answer.unresolvable.values()])
    reasons = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ReasonCount(text, nodes) for text, nodes in reasons), len(answer.node_names)


def _nearest(books: Books, wish: Wish) -> NearestMiss | None:
    """Of the nodes that could ever do, else of all, the one with the most GPUs that would; of
    equals, the one with the closest link."""
    best: tuple[bool, int, int, int] | None = None
    nearest: NearestMiss | None = None
    for kind, rows, free in by_kind(books, np.arange(len(books.rows))):
        ever = kind.take(wish, kind.all_gpus) is not None
        by_name = np.argsort(books.rows.name_ranks()[rows])
        # Nodes with the same GPUs free are alike: the first by name stands for them.
        masks, first = np.unique(free[by_name] & kind.allowed(wish.requirement), return_index=True)
        for mask, row in zip(masks.tolist(), rows[by_name][first].tolist(), strict=True):
            count = min(mask.bit_count(), wish.size)
            rank = int(books.rows.name_ranks()[row])
            worth = (ever, count, _closest(kind, wish, mask), -rank)
            if best is None or worth > best:
                best = worth
                nearest = NearestMiss(books.rows.names[row] or "", _lacks(kind, wish, mask))
    return nearest


def _closest(kind: Kind, wish: Wish, mask: int) -> int:
    link = nearest_miss(kind.machine, mask, wish.size, wish.requirement.require)
    return -1 if link is None else int(link)


def _lacks(kind: Kind, wish: Wish, mask: int) -> str:
    wanted, require = wish.size, link_word(wish.requirement.require)
    if mask.bit_count() < wanted:
        suitable, has = kind.allowed(wish.requirement).bit_count(), kind.all_gpus.bit_count()
        if has < wanted:
            return f"it has {has} GPUs, {wanted} are wanted"
        if suitable < wanted:
            return f"{suitable} of its {has} GPUs have the model and memory wanted, not {wanted}"
        return f"{mask.bit_count()} of {suitable} suitable GPUs are free, {wanted} are wanted"
    link = nearest_miss(kind.machine, mask, wanted, wish.requirement.require)
    joined = "no link at all" if link is None else link_word(link)
    return f"the best link of {wanted} of its free GPUs is {joined}, {require} is required"


def _gang_reason(gang: Gang, found: Muster) -> str:
    if found.clash:
        return found.clash
    if found.open and gang.no_room is not None:
        room = gang.no_room
        near = f"; node {room.nearest} has room for {room.nearest_had}" if room.nearest else ""
        return f"room for {room.had} of {room.wanted} members{near}"
    if not found.complete:
        return f"{len(found.seats) + found.done} of {found.size} members are there"
    if gang.refused:
        return f"{gang.reason}; it waits until a node or a member changes"
    return gang.reason


def _member(books: Books, record: PodRecord) -> MemberView:
    written = plan_of(books, record)
    gpus = [uuid for share in _gpus(books, record).values() for uuid in share]
    state = "leaving" if record.leaving and not record.ended else _state(books, record)
    return MemberView(
        pod=record.ref.name,
        rank=record.ask.rank,
        state=state,
        node=record.node or (written.plan.node if written else ""),
        gpus=tuple(dict.fromkeys(gpus)),  # an init container's are dealt out again
    )


def _gpus_of_node(books: Books, book: NodeBook) -> tuple[GpuView, ...]:
    if book.machine is None:
        return ()
    holder_of = {
        position: holder
        for holder, mask in book.owned.items()
        for position in range(mask.bit_length())
        if mask >> position & 1
    }
    listed = {uid: key for key, uid in book.listed_as.items()}
    views = []
    for position, gpu in enumerate(book.machine.gpus):
        holder = holder_of.get(position)
        if holder is None:
            state = "free" if gpu.healthy else "unhealthy"
        else:
            state = "used" if book.used >> position & 1 else "held"
        record = books.pods.get(holder or "")
        shown = record.key if record is not None else listed.get(holder or "", holder or "")
        views.append(GpuView(gpu.index, gpu.uuid, gpu.model, gpu.healthy, state, shown))
    return tuple(views)
