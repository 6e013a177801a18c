"""How many of a gang go at once: all that wait for GPUs where they fit, else the most that do.

Ranks decide who: the first so many. Before a gang has its minimum it is one matter, all of that or
nothing. From then on members that are alike are looked at for themselves, so that one for whom
there is no room keeps no other from his.

A gang that is content with fewer members than its size is not planned the moment so many exist:
the others mostly are about to be made, and are placed better together. So it waits until nobody
has come for a moment, and not for long in all. Members beyond the minimum hold nothing while they
wait, and nobody waits for them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from linkwise.extender.api.records import PodRecord
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.members import GangMembers, Members
from linkwise.extender.placement.result import Refusal, Spot

# A controller makes the pods of a job one after the other, some 20 to 50 in a second.
MOMENT_SECONDS = 1.0
LONGEST_SECONDS = 5.0

Seek = Callable[[GangMembers], list[Spot] | Refusal]
"""Room for those who are `open`."""


def waits_until(gang: Gang, members: GangMembers) -> float | None:
    """Until when more members are waited for; None: not at all."""
    has_begun = members.placed > len(members.idle)
    if members.all_there or has_begun or gang.able_since is None:
        return None
    return min(gang.came + MOMENT_SECONDS, gang.able_since + LONGEST_SECONDS)


def parts(members: GangMembers) -> Iterator[Members]:
    """Those of `open` who go together or, where they may, as many of them as there is room for."""
    if not (members.started or members.enough_placed):
        yield members.open
        return
    alike: dict[object, list[PodRecord]] = {}
    for member in members.open:
        requests = (member.demand, member.ask.requirement, member.needs, member.template)
        alike.setdefault(requests, []).append(member)
    yield from map(tuple, alike.values())


def most(members: GangMembers, seek: Seek) -> tuple[list[Spot], Refusal | None]:
    """Spots for the first so many of `open`, and why not for all; never for fewer than may go."""
    counts = members.together()
    if not counts:
        return [], None
    everybody = seek(_first(members, counts[-1]))
    if not isinstance(everybody, Refusal):
        return everybody, None
    best: list[Spot] = []
    low, high = 0, len(counts) - 2
    # What the refusal names is mostly exact: that many, and one more to be sure.
    guess = sum(count <= everybody.had for count in counts) - 1
    while low <= high:
        guesses = (each for each in (guess, guess + 1) if low <= each <= high)
        probe = next(guesses, (low + high + 1) // 2)
        spots = seek(_first(members, counts[probe]))
        if isinstance(spots, Refusal):
            high = probe - 1
        else:
            best, low = spots, probe + 1
    return best, everybody


def least(members: GangMembers) -> Members:
    """The fewest of `open` whose going would be something."""
    counts = members.together()
    return members.open[: counts[0]] if counts else members.open


def needed(members: GangMembers) -> GangMembers:
    """Of `open` those without whom the gang cannot start, or go on; others have time."""
    return replace(members, open=() if members.enough_placed else least(members))


def _first(members: GangMembers, count: int) -> GangMembers:
    return members if count == len(members.open) else replace(members, open=members.open[:count])
