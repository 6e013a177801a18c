"""Answers to filter, prioritize and preempt: which nodes have a GPU set that will do.

Questions name up to 5,000 nodes, so they are asked of arrays, kind by kind. Refusals are stable
texts, equal on all nodes with the same reason (see `calls.FilterAnswer`); numbers are in `explain`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.books import NO_TOPOLOGY, NOT_SEEN, Books
from linkwise.extender.calls import (
    FilterAnswer,
    FilterCall,
    PreemptAnswer,
    PriorityAnswer,
    Victims,
)
from linkwise.extender.gang import Gang, Phase
from linkwise.extender.kinds import Kind, Wish
from linkwise.extender.muster import muster
from linkwise.extender.planner import Planner
from linkwise.extender.records import PodRecord
from linkwise.extender.rows import NOT_USABLE, Ints, popcount

FEWER = "linkwise: fewer free GPUs than wanted"
NO_LINK = "linkwise: no free GPU set with the required link"
UNPUBLISHED = f"linkwise: {NO_TOPOLOGY}"
UNREADABLE = "linkwise: topology or in-use annotation cannot be read"
UNKNOWN_NODE = "linkwise: node is not known yet"
ELSEWHERE = "linkwise: planned on another node"
# These no preemption can change.
TOO_SMALL = "linkwise: node has fewer GPUs than wanted"
NEVER_LINKED = "linkwise: no GPU set of this node has the required link"
OTHER_MODEL = "linkwise: GPU model or memory does not match"

BEST_SCORE = 100
_BANDWIDTH, _FUTURE, _FULLNESS = 85, 10, 4  # of all scores but the best, 99 at most


def filter_nodes(
    books: Books, planner: Planner, record: PodRecord, call: FilterCall, now: float
) -> FilterAnswer:
    """*record* is of the pod as kube-scheduler sent it."""
    names = call.node_names
    if record.invalid:
        return FilterAnswer(unresolvable=dict.fromkeys(names, f"linkwise: {record.invalid}"))
    if not record.demand.gpus:
        return FilterAnswer(node_names=names)
    known = books.pods.get(record.uid)
    placed = _placed_on(books, known or record)
    if placed is not None:
        _learn(planner, record, names, placed, now)
        return _exactly(placed, names)
    if record.gang is not None:
        _learn(planner, record, names, None, now)
        return FilterAnswer(failed=dict.fromkeys(names, gang_text(books, planner, record)))
    return rooms(books, Wish(record.demand, record.ask.requirement), names)


def gang_text(books: Books, planner: Planner, record: PodRecord) -> str:
    """Why a member without a plan waits."""
    assert record.ask.gang is not None
    gang = planner.gangs.get((record.ref.namespace, record.ask.gang.name))
    return f"linkwise: gang {record.ask.gang.name}{_why(books, gang, record)}"


def prioritize(books: Books, record: PodRecord, names: Sequence[str]) -> PriorityAnswer:
    if record.invalid or not record.demand.gpus or not names:
        return PriorityAnswer(tuple((name, 0) for name in names))
    placed = _placed_on(books, books.pods.get(record.uid) or record)
    if placed is not None or record.gang is not None:
        return PriorityAnswer(tuple((name, BEST_SCORE * (name == placed)) for name in names))
    wish = Wish(record.demand, record.ask.requirement)
    return PriorityAnswer(tuple(zip(names, _scores(books, wish, names), strict=True)))


def preempt(books: Books, record: PodRecord, victims: Mapping[str, Victims]) -> PreemptAnswer:
    """The nodes where the pod has its GPUs once the victims are gone. Whole gangs are not
    preempted for one node at a time, so for a member there are none."""
    if record.invalid or record.gang is not None:
        return PreemptAnswer()
    if not record.demand.gpus:
        return PreemptAnswer(dict(victims))
    wish = Wish(record.demand, record.ask.requirement)
    return PreemptAnswer(
        {node: those for node, those in victims.items() if _fits_without(books, wish, node, those)}
    )


def why_no_room(kind: Kind, wish: Wish, free: int) -> tuple[str, bool]:
    """Why the pod has no set among these free GPUs, and whether it never had one there."""
    allowed = kind.allowed(wish.requirement)
    if kind.all_gpus.bit_count() < wish.size:
        return TOO_SMALL, True
    if allowed.bit_count() < wish.size:
        return OTHER_MODEL, True
    if kind.take(wish, kind.all_gpus) is None:
        return NEVER_LINKED, True
    return (FEWER if (free & allowed).bit_count() < wish.size else NO_LINK), False


def by_kind(books: Books, rows: Ints) -> Iterator[tuple[Kind, Ints, Ints]]:
    """The kinds among these rows (-1: unknown): kind, places in *rows*, masks of free GPUs."""
    kinds = np.where(rows >= 0, books.rows.kinds[rows], NOT_USABLE)
    for number in np.unique(kinds[kinds != NOT_USABLE]):
        places = np.flatnonzero(kinds == number)
        yield books.kinds[number], places, books.rows.free[rows[places]]


def problem_text(books: Books, name: str) -> str:
    book = books.nodes.get(name)
    if book is None or book.no_topology == NOT_SEEN:
        return UNKNOWN_NODE
    return UNPUBLISHED if book.problem == NO_TOPOLOGY else UNREADABLE


def rooms(books: Books, wish: Wish, names: Sequence[str]) -> FilterAnswer:
    rows = books.rows.rows_of(names)
    fits = np.zeros(len(names), dtype=np.bool_)
    reasons: dict[str, list[int]] = {}  # text -> places in *names*
    never: set[str] = set()
    told = np.zeros(len(names), dtype=np.bool_)
    for kind, places, free in by_kind(books, rows):
        fits[places] = kind.qualities(wish, free) > -np.inf
        told[places] = True
        misses = places[~fits[places]]
        if not len(misses):
            continue
        text, is_never = why_no_room(kind, wish, 0)
        if is_never:
            never.add(text)
            reasons.setdefault(text, []).extend(misses.tolist())
            continue
        counts = popcount(books.rows.free[rows[misses]] & kind.allowed(wish.requirement))
        fewer = counts < wish.size
        reasons.setdefault(FEWER, []).extend(misses[fewer].tolist())
        reasons.setdefault(NO_LINK, []).extend(misses[~fewer].tolist())
    for place in np.flatnonzero(~told).tolist():
        reasons.setdefault(problem_text(books, names[place]), []).append(place)
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for text, told_of in reasons.items():
        by_name = dict.fromkeys([names[place] for place in told_of], text)
        (unresolvable if text in never else failed).update(by_name)
    fitting = tuple(compress(names, fits.tolist()))
    return FilterAnswer(fitting, failed, unresolvable)


def _scores(books: Books, wish: Wish, names: Sequence[str]) -> list[int]:
    rows = books.rows.rows_of(names)
    quality: NDArray[np.float64] = np.full(len(names), -np.inf)
    loss, free_share = np.ones(len(names)), np.ones(len(names))
    for kind, places, free in by_kind(books, rows):
        quality[places] = kind.qualities(wish, free)
        loss[places] = kind.losses(wish, free)
        free_share[places] = popcount(free) / kind.all_gpus.bit_count()
    best = quality.max()
    if best == -np.inf:
        return [0] * len(names)
    ratio = np.where(quality > -np.inf, quality / best, 0.0)
    scores = _BANDWIDTH * ratio + _FUTURE * (1 - loss) + _FULLNESS * (1 - free_share)
    scores = np.where(quality > -np.inf, np.clip(scores, 0, BEST_SCORE - 1), 0).astype(np.int64)
    ranks = np.where(rows >= 0, books.rows.name_ranks()[rows], len(books.rows))
    scores[_first(-quality, loss, free_share, ranks)] = BEST_SCORE
    as_list: list[int] = scores.tolist()
    return as_list


def _first(*keys: NDArray[np.generic]) -> int:
    """The place that sorts first by these keys, one after the other; sorts none of the others."""
    places = np.arange(len(keys[0]))
    for key in keys:
        of_places = key[places]
        places = places[of_places == of_places.min()]
    return int(places[0])


def _fits_without(books: Books, wish: Wish, node: str, victims: Victims) -> bool:
    book = books.nodes.get(node)
    if book is None or book.kind is None or book.machine is None or book.problem:
        return False
    freed = 0
    for uid in victims.uids:
        freed |= book.owned.get(uid, 0)
    return book.kind.take(wish, book.free | freed & book.machine.healthy_gpus) is not None


def _placed_on(books: Books, record: PodRecord) -> str | None:
    if record.node:
        return record.node
    for node in books.holds.get(record.uid, ()):
        return node
    if books.keeps_plan(record.uid):
        return books.plans[record.uid].plan.node
    return None


def _exactly(node: str, names: Sequence[str]) -> FilterAnswer:
    return FilterAnswer(
        node_names=(node,) if node in names else (),
        failed={name: ELSEWHERE for name in names if name != node},
    )


def _learn(
    planner: Planner, record: PodRecord, names: tuple[str, ...], placed: str | None, now: float
) -> None:
    """A call without the node that the pod is nominated for says that everything else refused it;
    and any call that is not about one nominated node says which nodes passed."""
    if record.gang is None or record.template is None:
        return
    if placed is None or placed not in names:
        planner.learned.passed(record.template, names, now)
    if placed is None:
        planner.asked(record, now)
    if placed is not None and placed not in names and record.nominated == placed:
        planner.refused(record, placed)


def _why(books: Books, gang: Gang | None, record: PodRecord) -> str:
    if gang is None:
        return " waits for its members"
    if gang.phase is Phase.EXPIRED:
        return " gives back its GPUs after its timeout"
    found = muster(books, gang)
    if found.clash:
        return f": {found.clash}"
    if gang.refused:
        return ": kube-scheduler did not take its plans"
    if any(member.uid == record.uid for member in found.extra):
        return " has all its members without this one"
    if not found.complete and not found.started:
        return " waits for its members"
    return (
        ": no room for the whole gang" if gang.no_room is not None else ": its plan is being made"
    )
