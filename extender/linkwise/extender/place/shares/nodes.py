"""On which nodes a pod has its shares, which node is best, and why the others are refused.

A pod may ask for shares by their own name, such as nvidia.com/gpu.shared. It may also ask for whole
GPUs, on a node that offers shares under that name: then whole GPUs come first, on every node, and
shares only if no node has whole ones.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from linkwise.extender.place.nodes.best_node import left_on
from linkwise.extender.place.nodes.node_filters import may_run
from linkwise.extender.place.nodes.reasons import NO_LINK, OTHER_MODEL, problem_text
from linkwise.extender.place.room import Room
from linkwise.extender.place.shares.choice import (
    Effort,
    Rank,
    ShareChoice,
    ShareRequest,
    UnsoughtError,
    choose_shares,
    remembered,
    suitable,
)
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.cache.shares.book import ShareBook
from linkwise.extender.state.extender_calls import FilterAnswer
from linkwise.extender.state.records import PodRecord, ResourceList
from linkwise.pods.annotations import Sharing
from linkwise.topology.machine.model import LinkClass

BEST_SCORE = 100
UNSOUGHT = "linkwise: its shares have not been looked at yet"
_AS_THEY_ARE: Mapping[str, ShareBook] = {}


def request_of(record: PodRecord, *, in_place: bool = False) -> ShareRequest:
    """What the pod takes of resources that only shares have; with *in_place*, shares stand in for
    its whole GPUs too."""
    wants = record.shares
    if in_place and record.demand.gpus:
        wants = (*wants, (record.resource, record.demand))
    return ShareRequest(wants, record.ask.sharing, record.ask.requirement)


def choice_on(
    info: NodeInfo,
    request: ShareRequest,
    effort: Effort | None = None,
    books: Mapping[str, ShareBook] = _AS_THEY_ARE,
) -> ShareChoice | None:
    """The shares that the pod would get on this node; None if there are none that suit. *books*, by
    node, count in place of what the node says. Raises UnsoughtError."""
    if info.kind is None or info.closed:
        return None
    return choose_shares(info.kind, books.get(info.name, info.shares), request, effort)


def offers_any(info: NodeInfo | None, request: ShareRequest) -> bool:
    """Whether the node offers shares of every resource of *request*."""
    return info is not None and all(info.shares.offers(name) for name, _ in request.wants)


def share_rooms(cache: Cache, request: ShareRequest, names: Sequence[str]) -> FilterAnswer:
    """Which of these nodes have shares for the pod, and why the others have none."""
    fitting: list[str] = []
    effort = Effort()
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    is_partial = False
    for name in names:
        info = cache.nodes.get(name)
        if info is None or info.kind is None or info.closed:
            failed[name] = problem_text(cache, name)
            continue
        try:
            if choice_on(info, request, effort) is not None:
                fitting.append(name)
                continue
            text, never = _why_none(info.kind, info.shares, request, effort)
            (unresolvable if never else failed)[name] = text
        except UnsoughtError:
            failed[name], is_partial = UNSOUGHT, True
    return FilterAnswer(tuple(fitting), failed, unresolvable, is_partial=is_partial)


def _why_none(
    kind: MachineKind, book: ShareBook, request: ShareRequest, effort: Effort
) -> tuple[str, bool]:
    """`why_no_shares`, found once for each book: thousands of full nodes do not change."""
    return remembered(book, ("why", request), lambda: why_no_shares(kind, book, request, effort))


def why_no_shares(
    kind: MachineKind, book: ShareBook, request: ShareRequest, effort: Effort | None = None
) -> tuple[str, bool]:
    """Why the pod has no shares on a node, and whether that stays so whichever pods end. Raises
    UnsoughtError."""
    for resource, demand in request.wants:
        own = [place for place in book.places if place.part.resource == resource]
        if sum(place.part.shares for place in own) < demand.gpus:
            return f"linkwise: node offers fewer {resource} than wanted", True
        like = [place for place in own if suitable(kind, place, request.requirement)]
        if sum(place.part.shares for place in like) < demand.gpus:
            return OTHER_MODEL, True
    if choose_shares(kind, ShareBook(book.places), request, effort) is None:
        return _apart(request), all(place.part.healthy for place in book.places)
    for resource, demand in request.wants:
        free = [
            len(book.free_ids(place.part))
            for place in book.of(resource)
            if suitable(kind, place, request.requirement)
        ]
        if sum(free) < demand.gpus:
            return f"linkwise: fewer free {resource} than wanted", False
    return _apart(request), False


def _apart(request: ShareRequest) -> str:
    """The reason for which enough shares do not suit."""
    if request.requirement.require is not LinkClass.SYS:
        return NO_LINK
    if request.sharing is Sharing.PACK:
        return "linkwise: no GPU has all shares that a container wants"
    return "linkwise: shares on fewer GPUs than a container wants"


def share_scores(
    cache: Cache, room: Room, request: ShareRequest, needs: ResourceList, names: Sequence[str]
) -> list[int]:
    """0 for a node without shares for the pod, BEST_SCORE for the best node."""
    found = _ranked(cache, room, request, needs, names, Effort())
    ranks = sorted({rank for rank, _ in found.values()})
    step = (BEST_SCORE - 1) / len(ranks) if ranks else 0.0
    scores = {
        name: max(1, int(BEST_SCORE - 1 - step * ranks.index(rank)))
        for name, (rank, _) in found.items()
    }
    if found:
        scores[min(found, key=found.__getitem__)] = BEST_SCORE
    return [scores.get(name, 0) for name in names]


def best_share_node(
    cache: Cache,
    room: Room,
    record: PodRecord,
    request: ShareRequest,
    effort: Effort,
    suits: Callable[[NodeInfo], bool] = lambda _: True,
    books: Mapping[str, ShareBook] = _AS_THEY_ARE,
) -> str | None:
    """The best node that *suits* and has room for the pod, as far as the extender sees, and as the
    *effort* reaches. *books*: see `choice_on`."""
    needs = record.needs
    names = [
        name
        for name in cache.divided
        if offers_any(info := cache.nodes[name], request)
        and record.template is not None
        and may_run(record.template, info.record)
        and cache.rows.left.fits_on(info.row, needs)
        and suits(info)
    ]
    found = _ranked(cache, room, request, needs, names, effort, books)
    return min(found, key=found.__getitem__) if found else None


def _ranked(
    cache: Cache,
    room: Room,
    request: ShareRequest,
    needs: ResourceList,
    names: Sequence[str],
    effort: Effort,
    books: Mapping[str, ShareBook] = _AS_THEY_ARE,
) -> dict[str, tuple[Rank, int]]:
    """Node -> the rank of its choice, and the place of its name; the best is the least. Nodes that
    the *effort* does not reach are left out."""
    choices: dict[int, ShareChoice] = {}
    for name in names:
        info = cache.nodes.get(name)
        if info is None or not offers_any(info, request):
            continue
        with suppress(UnsoughtError):
            if (choice := choice_on(info, request, effort, books)) is not None:
                choices[info.row] = choice
    rows = np.array([*choices], dtype=np.int64)
    before = left_on(cache, cache.rows, rows, room.resources)
    wants = {resource: demand.gpus for resource, demand in request.wants}
    lost = room.lost(before, before.without(needs, wants=wants)).tolist()
    order = cache.rows.name_ranks()
    return {
        cache.rows.names[row] or "": (choice.rank(lost_room), int(order[row]))
        for (row, choice), lost_room in zip(choices.items(), lost, strict=True)
    }
