"""How many members of a gang start at once: all open members if they fit, else as many as do.

Ranks decide which: the first ones. Until a gang has its minimum, it gets all of that or nothing.
From then on, each group of equal members is placed on its own, so that a member without room does
not delay the others.

If a gang accepts fewer members than its size, it is not planned as soon as so many exist: the
others mostly follow within a moment, and are placed better together. So the gang waits until no
member was created for a moment, and not for long in all. Members beyond the minimum reserve nothing
while they wait, and no other member waits for them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.members import GangMembers, Members
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.state.records import PodRecord

# A controller creates the pods of a job one after the other, some 20 to 50 per second.
MOMENT_SECONDS = 1.0
LONGEST_SECONDS = 5.0

Seek = Callable[[GangMembers], list[Spot] | NoRoom]
"""Finds room for the `open` members."""


def waits_until(gang: Gang, members: GangMembers) -> float | None:
    """Until when the gang waits for more members; None: not at all."""
    has_begun = members.placed > len(members.idle)
    if members.all_there or has_begun or gang.able_since is None:
        return None
    return min(gang.came + MOMENT_SECONDS, gang.able_since + LONGEST_SECONDS)


def parts(members: GangMembers) -> Iterator[Members]:
    """The groups of `open` of which as many as possible are placed, each on its own; a single group
    if they have to start together."""
    if not (members.started or members.enough_placed):
        yield members.open
        return
    alike: dict[object, list[PodRecord]] = {}
    for member in members.open:
        requests = (member.demand, member.ask.requirement, member.needs, member.template)
        alike.setdefault(requests, []).append(member)
    yield from map(tuple, alike.values())


def most(members: GangMembers, seek: Seek) -> tuple[list[Spot], NoRoom | None]:
    """Spots for as many of the first `open` members as possible, and why not for all. Never for
    fewer than may start."""
    counts = members.together()
    if not counts:
        return [], None
    of_all = seek(_first(members, counts[-1]))
    if not isinstance(of_all, NoRoom):
        return of_all, None
    best: list[Spot] = []
    low, high = 0, len(counts) - 2
    # The count in the refusal is mostly exact: try that many, and one more to be sure.
    guess = sum(count <= of_all.had for count in counts) - 1
    while low <= high:
        guesses = (each for each in (guess, guess + 1) if low <= each <= high)
        probe = next(guesses, (low + high + 1) // 2)
        spots = seek(_first(members, counts[probe]))
        if isinstance(spots, NoRoom):
            high = probe - 1
        else:
            best, low = spots, probe + 1
    return best, of_all


def least(members: GangMembers) -> Members:
    """The fewest of `open` that may start."""
    counts = members.together()
    return members.open[: counts[0]] if counts else members.open


def needed(members: GangMembers) -> GangMembers:
    """*members* with only those `open` that the gang needs to start or to continue."""
    return replace(members, open=() if members.enough_placed else least(members))


def _first(members: GangMembers, count: int) -> GangMembers:
    return members if count == len(members.open) else replace(members, open=members.open[:count])
