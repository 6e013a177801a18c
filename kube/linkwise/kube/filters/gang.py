"""What the members of one gang demand of each other, as resources that can be counted.

A filter looks at one pod beside those that are placed. A planner places all members at once, so it
must know what each of them will be to the others. Where a rule cannot be counted exactly, the limit
is the stricter one: a plan that keeps all limits passes the filters.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from linkwise.kube.filters.host_ports import ALL_IPS
from linkwise.kube.filters.nodes import NO_DOMAIN, Bools, Ints, at_rows, per_domain
from linkwise.kube.filters.plugins import Candidate, PodFilters, World
from linkwise.kube.filters.pod_affinity import AffinityTerm, select_all
from linkwise.kube.filters.selectors import selects
from linkwise.kube.filters.topology_spread import Spread
from linkwise.kube.filters.volumes.claims import one_pod_only
from linkwise.kube.filters.volumes.limits import attached, room

UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class Kind:
    """Members that are equal to all filters. *rooms* is [rows] how many of each of them fit on a
    node for all other reasons."""

    pod: Candidate
    count: int
    rooms: Ints


@dataclass(frozen=True, slots=True)
class Limit:
    """`most` is [domains] how much there is, `needs` how much a member of each kind takes. A node
    without a domain has no limit."""

    name: str
    needs: tuple[int, ...]  # by kind
    domain: Ints  # [rows]
    most: Ints


@dataclass(frozen=True, slots=True)
class Demands:
    """*together*: labels of which all members must have one value. *homes*: by kind, [rows] the
    nodes of the domain that is chosen for those that follow each other, if they are not all; None:
    any node."""

    limits: tuple[Limit, ...] = ()
    together: tuple[str, ...] = ()
    homes: tuple[Bools | None, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.limits or self.together or self.homes)


NONE = Demands()


def between(
    kinds: Sequence[Kind],
    world: World,
    without: frozenset[str] = frozenset(),
) -> Demands:
    """Return what members demand of each other, beside the pods of *world* but those *without*."""
    if not any(kind.pod.facts.demands for kind in kinds):
        return NONE
    groups = [*_groups(kinds, world, without)]
    everywhere = range(len(kinds))
    together = tuple(group.topology_key for group in groups if {*everywhere} == group.kinds)
    parts = [group for group in groups if group.topology_key not in together]
    homes = dict(_homes(parts, kinds, world))
    found = (
        *_apart(kinds, world, homes),
        *_spread(kinds, world, without),
        *_ports(kinds, world),
        *_claims(kinds, world),
        *_volumes(kinds, world, without),
    )
    numbers = count(1)
    named = (
        Limit(f"{each.name} {next(numbers)}", each.needs, each.domain, each.most) for each in found
    )
    masks = tuple(_home(kind, homes, world) for kind in everywhere) if homes else ()
    return Demands(tuple(named), together, masks)


def trimmed(limit: Limit, rooms: Ints, used: Ints | None = None) -> Ints:
    """[rows] the limit of each node, so that each domain keeps its own.

    The nodes with the most room come first, until what their domain has is used up. *used* is
    [rows] the members of other kinds that another limit lets there: nodes without them come first.
    """
    units = rooms * max(limit.needs)
    order = np.lexsort((-units, limit.domain) if used is None else (-units, used, limit.domain))
    domain, wanted = limit.domain[order], units[order]
    most = at_rows(domain, limit.most, UNLIMITED)
    # What the nodes before take: a sum per domain, as each domain's rows follow each other.
    wanted = np.minimum(wanted, most)
    before = np.cumsum(wanted) - wanted
    starts = np.flatnonzero(np.r_[True, domain[1:] != domain[:-1]])
    before -= np.repeat(before[starts], np.diff(np.r_[starts, len(domain)]))
    left = np.empty_like(units)
    left[order] = np.clip(most - before, 0, wanted)
    left[limit.domain == NO_DOMAIN] = UNLIMITED
    return left


def spread_caps(spread: Spread, members: int, rooms: Ints) -> Ints:
    """[domains] how many of *members* may be in each, so that none is too uneven.

    *rooms* is [domains] how many fit there. If the skew that is allowed now has room for all, any
    order of their placement is allowed. Else they fill the emptiest domains first, each as many as
    it gets that way: then the pods must be placed in an order that keeps the skew too.
    """
    constraint, counts = spread.constraint, np.maximum(spread.counts, 0)
    now: Ints = np.maximum(constraint.max_skew + spread.lowest - counts, 0)
    counting = spread.counts >= 0
    if np.minimum(now, rooms)[counting].sum() >= members or not counting.any():
        return now
    short = int(counting.sum()) < constraint.min_domains
    more = np.zeros_like(counts)
    left = members
    while left > 0:
        after = counts + more
        lowest = 0 if short else int(after[counting].min())
        open_ = counting & (more < rooms) & (after + 1 - lowest <= constraint.max_skew)
        if not open_.any():
            break
        # One more in each of the emptiest, so that a pass is a step of the level.
        emptiest = np.flatnonzero(open_ & (after == after[open_].min()))[:left]
        more[emptiest] += 1
        left -= len(emptiest)
    return np.where(counting, more, now)


def _apart(
    kinds: Sequence[Kind], world: World, homes: Mapping[tuple[str, int], int]
) -> Iterator[Limit]:
    """In a domain, a pod that has a term and a pod that it selects exclude each other."""
    for term in _terms_apart(kinds):
        having, selected = _sides(term, kinds, world)
        if _may_meet(term.topology_key, having, selected, homes):
            domain = world.domain(term.topology_key)
            needs, most = _exclusive(kinds, having, selected)
            if _is_shared(kinds, needs, most):
                yield _limit(f"InterPodAffinity {term.topology_key}", needs, domain, most)


def _terms_apart(kinds: Sequence[Kind]) -> Iterable[AffinityTerm]:
    return dict.fromkeys(each for kind in kinds for each in kind.pod.facts.rules.apart)


def _sides(
    term: AffinityTerm, kinds: Sequence[Kind], world: World
) -> tuple[list[bool], list[bool]]:
    """Which kinds have the term, and which ones it selects."""
    namespaces = world.namespaces or {}
    coming = term.resolved(namespaces)  # if its pod comes after the others
    return [term in kind.pod.facts.rules.apart for kind in kinds], [
        term.selects(kind.pod.facts, namespaces) or coming.selects(kind.pod.facts, {})
        for kind in kinds
    ]


def _may_meet(
    key: str,
    having: Sequence[bool],
    selected: Sequence[bool],
    homes: Mapping[tuple[str, int], int],
) -> bool:
    """Whether a member of one side may be in the domain of one of the other side."""
    sides = [
        {homes.get((key, n)) for n, is_of in enumerate(side) if is_of}
        for side in (having, selected)
    ]
    return all(sides) and (any(None in side for side in sides) or not sides[0].isdisjoint(sides[1]))


def _exclusive(
    kinds: Sequence[Kind], having: Sequence[bool], selected: Sequence[bool]
) -> tuple[tuple[int, ...], int]:
    """Members on one side alone may share a domain, so they take one each of as many as there are.
    All others take a whole domain; if both sides have such members, so does the smaller side."""
    sides = list(zip(having, selected, strict=True))
    has = sum(kind.count for kind, side in zip(kinds, sides, strict=True) if side == (True, False))
    is_ = sum(kind.count for kind, side in zip(kinds, sides, strict=True) if side == (False, True))
    shares = (True, False) if has > is_ else (False, True)
    most = max(has, is_, 1)
    return tuple(0 if not any(s) else 1 if s == shares else most for s in sides), most


def _spread(kinds: Sequence[Kind], world: World, without: frozenset[str]) -> Iterator[Limit]:
    seen, rooms = set(), np.maximum.reduce([kind.rooms for kind in kinds])
    for kind in kinds:
        namespace = kind.pod.facts.namespace
        for spread in PodFilters(kind.pod, world, without).spreads:
            constraint = spread.constraint
            if (namespace, constraint) in seen:
                continue
            seen.add((namespace, constraint))
            needs = tuple(
                int(
                    each.pod.facts.namespace == namespace
                    and selects(constraint.selector, each.pod.facts.labels)
                )
                for each in kinds
            )
            members = sum(n * each.count for n, each in zip(needs, kinds, strict=True))
            if members:
                inside = np.minimum(rooms, members)
                caps = spread_caps(spread, members, per_domain(spread.domain, inside))
                name = f"PodTopologySpread {constraint.topology_key}"
                yield Limit(name, needs, spread.domain, caps)


def _ports(kinds: Sequence[Kind], world: World) -> Iterator[Limit]:
    """Of one port at most one member is on a node; of different addresses of it, one each."""
    used = {port for kind in kinds for port in kind.pod.facts.rules.ports}
    everywhere = {port[1:] for port in used if port.ip == ALL_IPS}
    groups = {port[1:] if port[1:] in everywhere else tuple(port) for port in used}
    for group in sorted(groups, key=str):
        needs = tuple(
            int(any(port[-len(group) :] == group for port in kind.pod.facts.rules.ports))
            for kind in kinds
        )
        if _is_shared(kinds, needs, 1):
            yield _limit(f"NodePorts {group[-1]}", needs, np.arange(len(world.nodes)), 1)


def _claims(kinds: Sequence[Kind], world: World) -> Iterator[Limit]:
    """A claim for one pod."""
    if world.storage is None:
        return
    alone = [
        {(kind.pod.facts.namespace, name) for name in one_pod_only(kind.pod.facts, world.storage)}
        for kind in kinds
    ]
    for claim in sorted(set().union(*alone)):
        needs = tuple(int(claim in claims) for claims in alone)
        if _is_shared(kinds, needs, 1):
            anywhere = np.zeros(len(world.nodes), dtype=np.int64)
            yield _limit(f"VolumeRestrictions {claim[1]}", needs, anywhere, 1)


def _volumes(kinds: Sequence[Kind], world: World, without: frozenset[str]) -> Iterator[Limit]:
    """How many volumes of a driver a node can attach. A volume that members share counts once on
    every node."""
    storage = world.storage
    if storage is None or not any(kind.pod.facts.claims for kind in kinds):
        return
    wanted = [attached([kind.pod.facts], storage) for kind in kinds]
    users: Counter[str] = Counter()
    for kind, volumes in zip(kinds, wanted, strict=True):
        users.update(dict.fromkeys(volumes, kind.count))
    drivers = {name: driver for volumes in wanted for name, driver in volumes.items()}
    shared = Counter(driver for name, driver in drivers.items() if users[name] > 1)
    left = [
        room(storage.limits(node.name), attached(world.pods.with_claims(row, without), storage))
        if node is not None
        else {}
        for row, node in enumerate(world.nodes)
    ]
    for driver in sorted(set(drivers.values())):
        needs = tuple(
            sum(of == driver and users[name] == 1 for name, of in volumes.items())
            for volumes in wanted
        )
        most = [max(at[driver] - shared[driver], 0) if driver in at else UNLIMITED for at in left]
        if any(needs) and min(most, default=UNLIMITED) < UNLIMITED:
            rows = np.arange(len(world.nodes))
            yield Limit(f"NodeVolumeLimits {driver}", needs, rows, np.array(most, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class _Group:
    """Members of these kinds follow each other: they must be in one domain of this label."""

    topology_key: str
    kinds: frozenset[int]


def _groups(kinds: Sequence[Kind], world: World, without: frozenset[str]) -> Iterator[_Group]:
    """If a pod that they follow is there already, the filters allow its domain alone."""
    if world.namespaces is None and any(
        term.namespace_selector for kind in kinds for term in kind.pod.facts.rules.near
    ):
        return
    namespaces = world.namespaces or {}
    followed: dict[str, list[frozenset[int]]] = {}
    for terms in dict.fromkeys(kind.pod.facts.rules.near for kind in kinds):
        resolved = tuple(term.resolved(namespaces) for term in terms)
        if not terms or _is_there(resolved, world, without):
            continue
        involved = frozenset(
            number
            for number, kind in enumerate(kinds)
            if kind.pod.facts.rules.near == terms or select_all(resolved, kind.pod.facts, {})
        )
        for key in dict.fromkeys(term.topology_key for term in terms):
            others = followed.setdefault(key, [])
            joined = involved.union(*(each for each in others if each & involved))
            others[:] = [*(each for each in others if not each & involved), joined]
    for key, groups in followed.items():
        for group in groups:
            yield _Group(key, group)


def _homes(
    groups: Sequence[_Group], kinds: Sequence[Kind], world: World
) -> Iterator[tuple[tuple[str, int], int]]:
    """Choose a domain for each of several groups: (label, kind) -> domain. The largest group comes
    first, and each gets the smallest domain with room for it. Groups that exclude each other get
    different ones."""
    used = np.zeros(len(world.nodes))  # of each node, from 0 to 1
    taken: dict[_Group, int] = {}
    sizes = {group: sum(kinds[number].count for number in group.kinds) for group in groups}
    for group in sorted(groups, key=lambda group: -sizes[group]):
        domain, size = world.domain(group.topology_key), sizes[group]
        rooms = np.minimum.reduce([kinds[number].rooms for number in group.kinds])
        left = (rooms * (1.0 - used) + 1e-6).astype(np.int64)
        most = per_domain(domain, np.minimum(left, size))
        if not len(most):
            continue
        for other, there in taken.items():
            if other.topology_key == group.topology_key and _exclude(group, other, kinds, world):
                most[there] = 0
        enough = np.flatnonzero(most >= size)
        home = int(enough[most[enough].argmin()]) if len(enough) else int(most.argmax())
        taken[group] = home
        inside = np.flatnonzero(domain == home)
        inside = inside[np.argsort(-left[inside], kind="stable")]
        before = np.cumsum(left[inside]) - left[inside]
        goes = np.clip(size - before, 0, left[inside])
        used[inside] += goes / np.maximum(rooms[inside], 1)
        yield from (((group.topology_key, number), home) for number in group.kinds)


def _exclude(first: _Group, second: _Group, kinds: Sequence[Kind], world: World) -> bool:
    """Whether members of one have an anti-affinity to those of the other, in such a domain."""
    for term in _terms_apart(kinds):
        having, selected = _sides(term, kinds, world)
        if term.topology_key == first.topology_key and any(
            any(having[number] for number in one.kinds)
            and any(selected[number] for number in other.kinds)
            for one, other in ((first, second), (second, first))
        ):
            return True
    return False


def _home(kind: int, homes: Mapping[tuple[str, int], int], world: World) -> Bools | None:
    """[rows] the nodes in all domains that are chosen for the kind."""
    masks = [world.domain(key) == home for (key, number), home in homes.items() if number == kind]
    return np.logical_and.reduce(masks) if masks else None


def _is_there(terms: tuple[AffinityTerm, ...], world: World, without: frozenset[str]) -> bool:
    selected = world.pods.selected(terms, len(world.nodes), invites=True, without=without)
    domains = (world.domain(term.topology_key) for term in terms)
    return any((selected[domain != NO_DOMAIN] > 0).any() for domain in domains)


def _is_shared(kinds: Sequence[Kind], needs: Sequence[int], most: int) -> bool:
    """Whether there is less than all members need together."""
    return sum(need * kind.count for need, kind in zip(needs, kinds, strict=True)) > most


def _limit(name: str, needs: tuple[int, ...], domain: Ints, most: int) -> Limit:
    domains = int(domain.max(initial=NO_DOMAIN)) + 1
    return Limit(name, needs, domain, np.full(domains, most, dtype=np.int64))
