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
from linkwise.extender.gangs.members import Members, Muster
from linkwise.extender.placement.result import Refusal, Spot

# A controller makes the pods of a job one after the other, some 20 to 50 in a second.
MOMENT_SECONDS = 1.0
LONGEST_SECONDS = 5.0

Seek = Callable[[Muster], list[Spot] | Refusal]
"""Room for those who are `open`."""


def waits_until(gang: Gang, found: Muster) -> float | None:
    """Until when more members are waited for; None: not at all."""
    has_begun = found.placed > len(found.idle)
    if found.all_there or has_begun or gang.able_since is None:
        return None
    return min(gang.came + MOMENT_SECONDS, gang.able_since + LONGEST_SECONDS)


def parts(found: Muster) -> Iterator[Members]:
    """Those of `open` who go together or, where they may, as many of them as there is room for."""
    if not (found.started or found.enough_placed):
        yield found.open
        return
    alike: dict[object, list[PodRecord]] = {}
    for member in found.open:
        wishes = (member.demand, member.ask.requirement, member.needs, member.template)
        alike.setdefault(wishes, []).append(member)
    yield from map(tuple, alike.values())


def most(found: Muster, seek: Seek) -> tuple[list[Spot], Refusal | None]:
    """Spots for the first so many of `open`, and why not for all; never for fewer than may go."""
    counts = found.together()
    if not counts:
        return [], None
    everybody = seek(_first(found, counts[-1]))
    if not isinstance(everybody, Refusal):
        return everybody, None
    best: list[Spot] = []
    low, high = 0, len(counts) - 2
    # What the refusal names is mostly exact: that many, and one more to be sure.
    guess = sum(count <= everybody.had for count in counts) - 1
    while low <= high:
        guesses = (each for each in (guess, guess + 1) if low <= each <= high)
        probe = next(guesses, (low + high + 1) // 2)
        spots = seek(_first(found, counts[probe]))
        if isinstance(spots, Refusal):
            high = probe - 1
        else:
            best, low = spots, probe + 1
    return best, everybody


def least(found: Muster) -> Members:
    """The fewest of `open` whose going would be something."""
    counts = found.together()
    return found.open[: counts[0]] if counts else found.open


def needed(found: Muster) -> Muster:
    """Of `open` those without whom the gang cannot start, or go on; others have time."""
    return replace(found, open=() if found.enough_placed else least(found))


def _first(found: Muster, count: int) -> Muster:
    return found if count == len(found.open) else replace(found, open=found.open[:count])
