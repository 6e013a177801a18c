"""Places a whole gang: a node and a GPU set for every member, or none for any.

`criteria.OF_GANGS` has what counts, in its order.

Members fill node after node and domain after domain in the order of their ranks, so neighbours in
rank are close to each other. Many nodes are alike, so the search looks for sets once per kind of
machine and mask of free GPUs, and counts nodes with arrays: it is near-linear in the number of
nodes.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from linkwise.extender.place.cluster_view import ClusterView
from linkwise.extender.place.communicator import ONE_NODE, Standard
from linkwise.extender.place.request import NONE_PLACED, NoRoom, PlacedMembers, PodSet, Spot
from linkwise.extender.place.search.candidates import Assignment, Scope
from linkwise.extender.place.search.domain_search import DomainSearch
from linkwise.extender.place.search.unequal import UnequalSearch
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_table import NO_DOMAIN, NOT_USABLE, Bools, Ints, popcount
from linkwise.extender.state.records import PodRecord, ResourceList, Template
from linkwise.pods.spans import ANYWHERE, SEPARATOR, Spans


def pod_sets_of(
    members: Sequence[PodRecord],
    nodes: Callable[[Template], Bools],
    more: Sequence[ResourceList] = (),
    masks: Sequence[Bools | None] = (),
) -> list[PodSet]:
    """Group *members*, given in the order of their ranks, by what they request; largest first.
    Each needs *more* than its pod says, and may run only where its mask of *masks* allows it."""
    groups: dict[tuple[GpuRequest, ResourceList, Template, bytes], list[int]] = {}
    # Equal pods share most objects, so few are compared.
    of_same: dict[tuple[int, ...], list[int]] = {}
    for position, record in enumerate(members):
        also = more[position] if more else None
        mask = masks[position] if masks else None
        wishes = (record.demand, record.ask.requirement, record.needs, record.template)
        same = (*map(id, wishes), id(also), id(mask))
        if same not in of_same:
            assert record.template is not None, "every pod that takes GPUs has one"
            request = GpuRequest(record.demand, record.ask.requirement)
            needs = record.needs if also is None else record.needs + also
            of_mask = b"" if mask is None else mask.tobytes()
            of_same[same] = groups.setdefault((request, needs, record.template, of_mask), [])
        of_same[same].append(position)
    found = [
        PodSet(
            request,
            needs,
            template,
            tuple(positions),
            _unit([members[position].ask.subgroup for position in positions]),
            nodes(template)
            if not masks or (mask := masks[positions[0]]) is None
            else nodes(template) & mask,
        )
        for (request, needs, template, _), positions in groups.items()
    ]
    return sorted(found, key=lambda pods: (-pods.request.size, pods.members))


def _unit(subgroups: Sequence[str]) -> int:
    """The size of the subgroups if all have the same size, else 1."""
    sizes = {len(list(same)) for name, same in groupby(subgroups) if name}
    return sizes.pop() if len(sizes) == 1 and all(subgroups) else 1


def place(
    view: ClusterView,
    pod_sets: Sequence[PodSet],
    placed: PlacedMembers = NONE_PLACED,
    spans: Spans = ANYWHERE,
) -> list[Spot] | NoRoom:
    """One spot per member, in the order of the members; or why there is none."""
    best = _best(view, pod_sets, placed, spans)
    if best is None:
        return _refusal(view, pod_sets, placed, spans)
    spots = {
        member: Spot(view.rows.names[row] or "", gpus)
        for member, row, gpus in best.of_members(pod_sets)
    }
    return [spots[member] for member in sorted(spots)]


def _best(
    view: ClusterView,
    pod_sets: Sequence[PodSet],
    placed: PlacedMembers,
    spans: Spans,
    share: float = 1.0,
) -> Assignment | None:
    scopes = [Scope(view, placed, model) for model in _models(view, placed)]
    search = (
        DomainSearch(scopes, pod_sets[0], apart=spans.apart)
        if len(pod_sets) == 1
        else UnequalSearch(scopes, pod_sets, apart=spans.apart, share=share)
    )
    found = (search.within(domains) for domains in scopes[0].in_order(spans))
    return next((each for each in found if each is not None), None)


def _models(view: ClusterView, placed: PlacedMembers) -> list[str | None]:
    """The GPU models to try one by one, then None for any; [None] if there is only one model."""
    of_all = sorted({model for kind in view.kinds for model in kind.models})
    if len(of_all) < 2:
        return [None]
    alone = [model for model in of_all if model in placed.models or not placed.models]
    return [*alone, None]


_SHARE = 0.25  # of the work of a search, for one that only explains


def _refusal(
    view: ClusterView, pod_sets: Sequence[PodSet], placed: PlacedMembers, spans: Spans
) -> NoRoom:
    """The required span that fails; if none does, how much room there is anywhere."""
    wanted = sum(len(pods.members) for pods in pod_sets)
    scope = Scope(view, placed, None)
    if spans.require and _best(view, pod_sets, placed, ANYWHERE, _SHARE) is not None:
        alone = (Spans((key,)) for key in spans.require)
        fails = (each for each in alone if _best(view, pod_sets, placed, each, _SHARE) is None)
        return _refusal_within(scope, pod_sets, wanted, next(fails, spans).require)
    return _refusal_anywhere(scope, pod_sets, wanted)


def _refusal_within(
    scope: Scope, pod_sets: Sequence[PodSet], wanted: int, keys: Sequence[str]
) -> NoRoom:
    """A Refusal that names the nearest domain.

    Domains that are large enough when idle come first, however much of them is free: waiting for
    the others is useless. Then the domain with the most room wins, then the largest.
    """
    view, level = scope.view, SEPARATOR.join(keys)
    domains = scope.required(keys)
    able = np.logical_or.reduce([pods.nodes for pods in pod_sets])
    inside = np.flatnonzero(able & (domains != NO_DOMAIN) & (view.rows.kinds != NOT_USABLE))
    if not len(inside):
        return NoRoom(wanted, 0, "", 0, level)
    of_all, first, of = np.unique(domains[inside], return_index=True, return_inverse=True)
    room = _room_in(scope, pod_sets, domains, of_all)
    gpus = np.bincount(of, popcount(_all_gpus(view, inside)))
    enough = gpus >= sum(pods.request.size * len(pods.members) for pods in pod_sets)
    names = np.full(len(of_all), len(view.rows))
    np.minimum.at(names, of, view.rows.name_ranks()[inside])
    nearest = int(np.lexsort((names, -gpus, -room, ~enough))[0])
    node = int(inside[first[nearest]])
    parts = (view.level(key) for key in keys)
    domain = SEPARATOR.join(part.values[int(part.numbers[node])] or "" for part in parts)
    most, here = int(room.max()), int(room[nearest])
    return NoRoom(wanted, min(most, wanted - 1), domain, min(here, wanted - 1), level)


def _all_gpus(view: ClusterView, rows: Ints) -> Ints:
    return np.array([kind.all_gpus for kind in view.kinds])[view.rows.kinds[rows]]


def _room_in(scope: Scope, pod_sets: Sequence[PodSet], domains: Ints, of_all: Ints) -> Ints:
    """[of_all] how many members have room in each domain at once, by the GPUs of its nodes: the
    smallest first, each where it leaves the fewest."""
    room = np.zeros(len(of_all), dtype=np.int64)
    taken = np.zeros(len(domains), dtype=np.int64)
    for pods in reversed(pod_sets):
        pool = scope.candidates(pods, domains != NO_DOMAIN)
        most, _ = pool.room_at(ONE_NODE, Standard(), pool.wanted)
        left = pool.free_counts - taken[pool.rows]
        places = np.searchsorted(of_all, domains[pool.rows])
        order = np.lexsort((left, places))
        places, rows = places[order], pool.rows[order]
        most = np.minimum(most, left // pods.request.size)[order]
        before = np.cumsum(most) - most
        before -= before[np.searchsorted(places, places)]  # only in the same domain
        here = np.clip(pool.wanted - before, 0, most)
        taken[rows] += here * pods.request.size
        np.add.at(room, places, here)
    return room


def _refusal_anywhere(scope: Scope, pod_sets: Sequence[PodSet], wanted: int) -> NoRoom:
    """A Refusal that names the node with most room for the first pod set that fails even alone;
    it names no node if each pod set alone has room."""
    everywhere = scope.required(())
    had = min(int(_room_in(scope, pod_sets, everywhere, np.unique(everywhere)).sum()), wanted - 1)
    for pods in pod_sets:
        pool = scope.candidates(pods, everywhere != NO_DOMAIN)
        room, _ = pool.room_at(ONE_NODE, Standard(), pool.wanted)
        if room.sum() < len(pods.members):
            first = pool.first(np.arange(len(room)), (-room, pool.free_counts))
            if first is None:
                break
            name = scope.view.rows.names[int(pool.rows[first])] or ""
            return NoRoom(wanted, had, name, int(room[first]))
    return NoRoom(wanted, had, "", 0)
