"""The promises about the books, checked against the facts and not against the running account."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from linkwise.extender.api.records import PodRecord, WrittenPlan
from linkwise.extender.cache.cache import Books
from linkwise.extender.cache.node_info import NodeBook, plan_on
from linkwise.extender.cache.node_table import NOT_USABLE
from linkwise.extender.cycle.planner import Planner
from linkwise.extender.gangs.gang import Phase
from linkwise.extender.gangs.members import muster
from linkwise.topology.plan import Plan


def audit(books: Books, planner: Planner) -> list[str]:
    """What does not hold; empty when all is sound."""
    facts = _Facts()
    for uid, record in books.pods.items():
        if record.node and not record.ended and record.demand.gpus:
            facts.bound[record.node][uid] = record
        facts.charged[_charged_on(books, record)].append(record)
    for uid, plan in books.plans.items():
        facts.plans[plan.plan.node][uid] = plan
    for uid, holds in books.holds.items():
        for node, hold in holds.items():
            facts.holds[node][uid] = hold
    return [
        *(text for book in books.nodes.values() for text in _of_node(books, book, facts)),
        *_holds_without_pod(books),
        *_gangs(books, planner),
    ]


@dataclass(slots=True)
class _Facts:
    """Pods, plans and holds by node, from the lists of all of them."""

    bound: dict[str, dict[str, PodRecord]] = field(default_factory=lambda: defaultdict(dict))
    plans: dict[str, dict[str, WrittenPlan]] = field(default_factory=lambda: defaultdict(dict))
    holds: dict[str, dict[str, WrittenPlan]] = field(default_factory=lambda: defaultdict(dict))
    charged: dict[str, list[PodRecord]] = field(default_factory=lambda: defaultdict(list))


def _of_node(books: Books, book: NodeBook, facts: _Facts) -> Iterator[str]:
    yield from _promised_twice(book)
    bound = facts.bound.get(book.name, {})
    if bound != book.bound:
        yield f"node {book.name}: {len(book.bound)} pods with GPUs, there are {len(bound)}"
    if (book.plans, book.holds) != (facts.plans[book.name], facts.holds[book.name]):
        yield f"node {book.name}: plans or holds that are not its own"
    again = replace(book, owned={}, used=0, free=0, held=0)
    again.settle()
    if (again.free, again.used, again.owned) != (book.free, book.used, book.owned):
        yield f"node {book.name}: free {book.free:#b}, counted anew {again.free:#b}"
    seen = 0
    for holder, mask in sorted(book.owned.items()):
        if seen & mask:
            yield f"node {book.name}: a GPU of {holder} has another holder too"
        seen |= mask
    if seen & book.free:
        yield f"node {book.name}: a free GPU has a holder"
    yield from _in_arrays(books, book)
    charged = facts.charged.get(book.name, [])
    cpu = sum(record.needs.milli_cpu for record in charged)
    if (len(charged), cpu) != (book.charged, book.spent.milli_cpu):
        yield f"node {book.name}: {book.charged} pods counted, there are {len(charged)}"


def _in_arrays(books: Books, book: NodeBook) -> Iterator[str]:
    rows, row = books.rows, book.row
    usable = book.kind is not None and not book.closed
    if int(rows.held[row]) != (book.held if usable else 0) or book.held & book.free:
        yield f"node {book.name}: kept {book.held:#b}, in the arrays {int(rows.held[row]):#b}"
    if int(rows.free[row]) != (book.free if usable else 0):
        yield f"node {book.name}: free {book.free:#b}, in the arrays {int(rows.free[row]):#b}"
    if (int(rows.kinds[row]) == NOT_USABLE) is usable:
        yield f"node {book.name}: usable in the arrays only, or in the books only"


def _promised_twice(book: NodeBook) -> Iterator[str]:
    """Of pods that the kubelet has not given anything yet, no two may be promised one GPU.

    Two that are bound by the very same plan are not our doing: one was made from the other's
    manifest, and put on the node past us.
    """
    promised: dict[str, str] = {}
    plans: set[tuple[Plan, frozenset[str]]] = set()
    bound = {
        uid: plan
        for uid, record in book.bound.items()
        if uid not in book.given and (plan := plan_on(record, book.name))
    }
    for uid, written in sorted({**book.plans, **book.holds, **bound}.items()):
        if uid in book.plans and uid not in book.holds and not book.keeps(uid):
            continue  # it lost a GPU and will be made anew; nobody is let through on it
        if uid in bound and (written.plan, written.uuids) in plans:
            continue
        plans.add((written.plan, written.uuids))
        for gpu in sorted(written.uuids):
            if gpu in promised:
                yield f"node {book.name}: {gpu} is promised to {promised[gpu]} and to {uid}"
            promised[gpu] = uid


def _holds_without_pod(books: Books) -> Iterator[str]:
    for what, uids in (("plan", books.plans), ("hold", books.holds)):
        for uid in uids:
            record = books.pods.get(uid)
            if record is None or record.ended or record.node:
                yield f"{what} for {uid}, which is gone, has ended or is bound"


def _gangs(books: Books, planner: Planner) -> Iterator[str]:
    for key, gang in planner.gangs.items():
        yield from gang.broken
        if key not in books.gangs:
            continue  # forgotten at the next look
        found = muster(books, gang)
        if gang.phase is Phase.EXPIRED and found.planned:
            yield f"gang {gang.name}: expired, and still holds GPUs"


def _charged_on(books: Books, record: PodRecord) -> str:
    uid = record.uid
    if record.ended:
        return ""
    if record.node:
        return record.node
    for node in books.holds.get(uid, ()):
        return node
    return books.plans[uid].plan.node if uid in books.plans else ""
