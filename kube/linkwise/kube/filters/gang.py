"""What the members of one gang demand of each other, as resources that can be counted.

A filter looks at one pod beside those that are placed. A planner places all members at once, so it
must know what each of them will be to the others. Where a rule cannot be counted exactly, the limit
is the stricter one: a plan that keeps all limits passes the filters.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from linkwise.kube.filters.host_ports import ALL_IPS
from linkwise.kube.filters.nodes import NO_DOMAIN, Ints, at_rows, per_domain
from linkwise.kube.filters.plugins import Candidate, PodFilters, World
from linkwise.kube.filters.pod_affinity import AffinityTerm, select_all
from linkwise.kube.filters.selectors import selects
from linkwise.kube.filters.topology_spread import Spread
from linkwise.kube.filters.volumes.claims import one_pod_only
from linkwise.kube.filters.volumes.limits import attached, room

UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class Kind:
    """Members that are equal."""

    pod: Candidate
    count: int


@dataclass(frozen=True, slots=True)
class Limit:
    """`most` is [domains] how much there is, `needs` how much a member of each kind takes. A node
    without a domain has no limit."""

    name: str
    needs: tuple[int, ...]  # by kind
    domain: Ints  # [rows]
    most: Ints


@dataclass(frozen=True, slots=True)
class Together:
    """All members of these kinds must be in one domain of this label."""

    topology_key: str
    kinds: frozenset[int]


@dataclass(frozen=True, slots=True)
class Demands:
    limits: tuple[Limit, ...] = ()
    together: tuple[Together, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.limits or self.together)


NONE = Demands()


def between(
    kinds: Sequence[Kind],
    world: World,
    rooms: Ints,
    without: frozenset[str] = frozenset(),
) -> Demands:
    """Return what members demand of each other, beside the pods of *world* but those *without*.

    *rooms* is [rows] how many members fit on a node for all other reasons.
    """
    if not any(kind.pod.facts.demands for kind in kinds):
        return NONE
    found = (
        *_apart(kinds, world),
        *_spread(kinds, world, rooms, without),
        *_ports(kinds, world),
        *_claims(kinds, world),
        *_volumes(kinds, world, without),
    )
    numbers = count(1)
    named = (
        Limit(f"{each.name} {next(numbers)}", each.needs, each.domain, each.most) for each in found
    )
    return Demands(tuple(named), tuple(_together(kinds, world, without)))


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


def _apart(kinds: Sequence[Kind], world: World) -> Iterator[Limit]:
    """In a domain, a pod that has a term and a pod that it selects exclude each other."""
    namespaces = world.namespaces or {}
    for term in dict.fromkeys(each for kind in kinds for each in kind.pod.facts.rules.apart):
        having = [term in kind.pod.facts.rules.apart for kind in kinds]
        coming = term.resolved(namespaces)  # if its pod comes after the others
        selected = [
            term.selects(kind.pod.facts, namespaces) or coming.selects(kind.pod.facts, {})
            for kind in kinds
        ]
        if any(selected):
            domain = world.domain(term.topology_key)
            needs, most = _exclusive(kinds, having, selected)
            if _is_shared(kinds, needs, most):
                yield _limit(f"InterPodAffinity {term.topology_key}", needs, domain, most)


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


def _spread(
    kinds: Sequence[Kind], world: World, rooms: Ints, without: frozenset[str]
) -> Iterator[Limit]:
    seen = set()
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


def _together(kinds: Sequence[Kind], world: World, without: frozenset[str]) -> Iterator[Together]:
    """Members that follow each other. If a pod that they follow is there already, the filters allow
    its domain alone."""
    if world.namespaces is None and any(
        term.namespace_selector for kind in kinds for term in kind.pod.facts.rules.near
    ):
        return
    namespaces = world.namespaces or {}
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
            yield Together(key, involved)


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
