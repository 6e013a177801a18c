"""Random small clusters: what the core chooses beside the best there is, by brute force.

2 to 6 nodes, partly in use; gangs of up to 8 members, in 40 % of unequal size. Brute force, with
code of its own, estimates the worth of every way. A flaw is a refusal where there is room, a GPU
given twice, or CPU that a node lacks.

python -m tests.extender.place.near_best --cases 0-9999
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from statistics import fmean

import click

from linkwise.topology.machine.model import LINK_WORDS
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.bandwidth import ring_class
from tests.extender.cluster import Cluster
from tests.extender.place.brute_force import (
    CLIQUE,
    LEAF,
    ZONE,
    Member,
    Place,
    best_worth,
    domain_counts,
    has_room,
    joined_by,
    worth_of,
)

LABELS = {  # the clique is in the machine's topology
    LEAF: "network.topology.nvidia.com/leaf",
    ZONE: "topology.kubernetes.io/zone",
}
KINDS = (
    "dgx1-v100",
    "dgx1-p100",
    "dgx-a100",
    "a100-pcie-8-bridged",
    "a100-pcie-2",
    "hgx-h100",
    "gb200-tray",
    "l40s-4",
    "rtx4090-8-phb",
    "p100-pcie-8",
    "plx-8-pxb",
    "h200-nvl-2x4",
    "rtx8000-4",
)


ALIKE = {"dgx-a100", "hgx-h100", "gb200-tray"}
"""Machines on which all GPU sets of one size are worth the same."""


@dataclass(frozen=True)
class Case:
    places: tuple[Place, ...]
    members: tuple[Member, ...]  # that have no GPUs yet
    mates: tuple[tuple[int, int], ...] = ()  # those that have: on which place, which (bitmask)
    require: str = "node"  # as in the annotation


@dataclass(frozen=True)
class Judged:
    """GB/s, None where there was no room; *flaw*: what may never be."""

    got: float | None
    best: float | None
    flaw: str = ""

    @property
    def share(self) -> float:
        return 1.0 if self.got is None or self.best is None else self.got / self.best


def case_of(number: int) -> Case:
    random = Random(f"near-best-{number}")
    kinds = random.sample(KINDS, random.choice([1, 1, 2, 3]))
    labelled = random.random() < 0.5
    places = []
    for position in range(random.randint(2, 6)):
        kind = random.choice(kinds)
        machine = recorded_machine(kind, node=f"n{position}")
        share = random.choice([0.0, 0.3, 0.5, 0.7])
        free = sum(1 << gpu for gpu in range(len(machine.gpus)) if random.random() >= share)
        zone = random.choice("ab")
        leaf = zone + random.choice("12")
        domains = {LEAF: leaf, ZONE: zone} if labelled else {}
        clique = f"{leaf}.1" if labelled and kind == "gb200-tray" else None
        machine = replace(machine, clique=clique)
        if clique is not None:
            domains[CLIQUE] = clique
        cpus = random.choice([96, 96, 96, 8, 12])
        places.append(Place(f"n{position}", machine, free, cpus, domains, kind))
    members = _members(random)
    require = random.choice(["node"] * 7 + ["nvlink", "switch", "numa"])
    if random.random() < 0.7 or len(members) < 2:
        return Case(tuple(places), members, require=require)
    return _with_mates(random, places, members, require)


def of_many_kinds(number: int) -> Case:
    """The nodes of `case_of` that number, for a few members of which hardly two are alike."""
    random = Random(f"many-kinds-{number}")
    members = tuple(
        Member(random.choice([1, 1, 2, 3, 4, 5]), random.choice([1, 2, 3, 4]))
        for _ in range(random.randint(5, 6))
    )
    return replace(case_of(number), members=members, mates=())


def of_network(number: int) -> Case:
    """A gang on machines of one kind that is in several leaves, if it fits into none."""
    random = Random(f"network-{number}")
    kind = random.choice(sorted(ALIKE))
    gpus = len(recorded_machine(kind, node="n").gpus)
    leaves = {zone: random.choice([2, 2, 4]) for zone in "ab"}
    places = []
    for position in range(8):
        zone = random.choice("ab")
        domains = {LEAF: f"{zone}{random.randint(1, leaves[zone])}", ZONE: zone}
        free = (1 << random.choice([gpus, gpus, gpus, gpus // 2, 0])) - 1
        machine = replace(recorded_machine(kind, node=f"n{position}"), clique=None)
        places.append(Place(f"n{position}", machine, free, 96, domains, kind))
    sizes = [gpus] if random.random() < 0.5 else [gpus, gpus, gpus // 2]
    members = tuple(Member(random.choice(sizes)) for _ in range(random.randint(2, 4)))
    return Case(tuple(places), members)


def _with_mates(
    random: Random, places: list[Place], members: tuple[Member, ...], require: str
) -> Case:
    """Some of the members run already, wherever there was room."""
    mates = []
    for member in members[: random.randint(1, len(members) - 1)]:
        able = [p for p in range(len(places)) if places[p].free.bit_count() >= member.gpus]
        if able:
            place = places[number := random.choice(able)]
            free = [p for p in range(len(place.machine.gpus)) if place.free >> p & 1]
            gpus = sum(1 << p for p in random.sample(free, member.gpus))
            cpus = max(place.cpus - member.cpus, 0)
            places[number] = replace(
                place, free=place.free & ~gpus, beside=place.beside | gpus, cpus=cpus
            )
            mates.append((number, gpus))
    return Case(tuple(places), members[len(mates) :], tuple(mates), require)


def _members(random: Random) -> tuple[Member, ...]:
    count = random.choice([1, 2, 2, 3, 4, 4, 6, 8])
    if random.random() < 0.6:
        return (Member(random.choice([1, 1, 2, 2, 3, 4, 8]), random.choice([1, 1, 2, 4])),) * count
    return tuple(
        Member(random.choice([1, 1, 2, 2, 3, 4]), random.choice([1, 1, 2, 4])) for _ in range(count)
    )


def judged(case: Case) -> Judged:
    at = Cluster()
    names = fill(at, case)
    at.settle()
    best = best_worth(case.places, case.members, LINK_WORDS[case.require])
    plans = [at.plan(name) for name in names]
    if not all(plans):
        return Judged(None, best, "refused, though there is room" if best is not None else "")
    dealt = {place.name: place.beside for place in case.places}
    taken = dict.fromkeys(dealt, 0)
    cpus = dict.fromkeys(dealt, 0)
    for name, member, plan in zip(names, case.members, plans, strict=True):
        assert plan is not None
        gpus = sum(1 << index for index in at.indices(name))
        if gpus & dealt[plan.node] or gpus.bit_count() != member.gpus:
            return Judged(None, best, f"{name} has GPUs of another, or too few")
        place = next(place for place in case.places if place.name == plan.node)
        if ring_class(place.machine, gpus) < LINK_WORDS[case.require]:
            return Judged(None, best, f"{name} has not the link that it requires")
        dealt[plan.node] |= gpus
        taken[plan.node] |= gpus
        cpus[plan.node] += member.cpus
    for place in case.places:
        if taken[place.name] & ~place.free or cpus[place.name] > place.cpus:
            return Judged(None, best, f"{place.name} has not so much")
    used = [place for place in case.places if dealt[place.name]]
    got, fewest = domain_counts(used, case.places), _fewest_domains(case, used)
    more = max((one - other for one, other in zip(got, fewest, strict=True)), default=0)
    # Members of unequal size are dealt out within bounds.
    is_flaw = more > (len(set(case.members)) > 1)
    flaw = f"it is in {got} domains, the widest first, not in {fewest}" if is_flaw else ""
    return Judged(worth_of(case.places, dealt), best, flaw)


def _fewest_domains(case: Case, used: Sequence[Place]) -> tuple[int, ...]:
    """The fewest domains that share the nearest level of the nodes *used* and have room for the
    gang on as many nodes; those of *used* if other things may count before."""
    kinds, levels = {place.kind for place in case.places}, _levels(case.places)
    if case.mates or len(used) == 1 or not kinds <= ALIKE or len(kinds) > 1:
        return domain_counts(used, case.places)
    joined = joined_by(used, levels)
    return min(
        domain_counts(some, case.places)
        for some in combinations(case.places, len(used))
        if joined_by(some, levels) == joined
        and has_room(some, case.members, *joined, LINK_WORDS[case.require])
    )


def _levels(places: Sequence[Place]) -> set[str]:
    return {level for place in places for level in place.domains}


def fill(at: Cluster, case: Case) -> list[str]:
    """The nodes, the pods that run there, and the gang; the members without GPUs."""
    _fill(at, case)
    names = [f"g-{rank}" for rank in range(len(case.mates), len(case.mates) + len(case.members))]
    for name, member in zip(names, case.members, strict=True):
        at.add_pod(name, member.gpus, cpu=f"{member.cpus}", said=_said(case, name))
    return names


def _fill(at: Cluster, case: Case) -> None:
    """The nodes, the pods that run there, and the gang's members that do."""
    for number, place in enumerate(case.places):
        labels = {
            LABELS[level]: domain for level, domain in place.domains.items() if level in LABELS
        }
        at.add_node(place.name, place.machine, cpu="96", labels=labels)
        others = place.machine.all_gpus & ~place.free & ~place.beside
        runs = {f"busy-{place.name}": others}
        runs |= {
            f"g-{rank}": gpus for rank, (where, gpus) in enumerate(case.mates) if where == number
        }
        for name, gpus in runs.items():
            mine = name.startswith("g-")
            at.add_pod(
                name,
                gpus.bit_count(),
                node=place.name,
                cpu="0" if mine else f"{96 - place.cpus}",
                said=_said(case, name) if mine else {},
            )
        at.set_in_use(
            place.name,
            {
                f"ml/{name}": {"main": place.machine.uuids_of(gpus)}
                for name, gpus in runs.items()
                if gpus
            },
        )


def _said(case: Case, name: str) -> dict[str, str]:
    size = len(case.mates) + len(case.members)
    rank = name.rpartition("-")[2]
    return {"gang": "g", "gang_size": f"{size}", "rank": rank, "require_link": case.require}


@click.command()
@click.option("--cases", default="0-999", show_default=True, help="Like 7 or 0-9999.")
@click.option("--show", default=5, show_default=True, help="So many of the worst are printed.")
def main(cases: str, show: int) -> None:
    """Compare what the core chooses with the best there is, in random small clusters."""
    first, _, last = cases.partition("-")
    found = {
        number: judged(case_of(number)) for number in range(int(first), int(last or first) + 1)
    }
    flaws = {number: each.flaw for number, each in found.items() if each.flaw}
    placed = {number: each for number, each in found.items() if each.got is not None}
    for number, flaw in flaws.items():
        print(f"case {number}: {flaw}")
    worst = sorted(placed, key=lambda number: placed[number].share)
    for number in worst[:show]:
        each = placed[number]
        print(f"case {number}: {each.got:.1f} GB/s, the best is {each.best:.1f}: {each.share:.3f}")
    begins = {number: each for number, each in placed.items() if not case_of(number).mates}
    goes_on = {number: each for number, each in placed.items() if number not in begins}
    for what, some in (("that begin", begins), ("beside members that run", goes_on)):
        if some:
            shares = [each.share for each in some.values()]
            print(
                f"{len(some)} placed {what}: on average {fmean(shares):.4f} of the best,"
                f" {min(shares):.3f} at the least, {sum(share < 0.8 for share in shares)} below 0.8"
            )
    print(f"{len(found)} cases: {len(found) - len(placed) - len(flaws)} have no room,", end="")
    print(f" {len(flaws)} flaws")
    sys.exit(bool(flaws))


if __name__ == "__main__":
    main()
