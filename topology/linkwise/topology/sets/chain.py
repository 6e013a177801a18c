"""In which order the GPU sets of one node are dealt out, so that consecutive ranks are neighbours.

Members talk most to the one before and the one after. The order of indices says nothing of that:
on a DGX-1 GPU 3 and GPU 4 have no NVLink, and on other machines a bridge joins GPU 0 and GPU 2.
A chain is as fast as its slowest hop, so that counts first, then all hops together, and then how
the last is joined to the first, as it may be all of a ring.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise

from linkwise.topology.sets.tables import MachineTable

Hops = Sequence[Sequence[float]]
_OF_A_CLASS = 1e-3  # GB/s: of hops as fast as each other the one of the closer class


def chain(sets: Sequence[int], hops: Hops) -> tuple[int, ...]:
    """These sets, each next to those it has the best hops to.

    From every start the best hop is taken that is left, and the best such chain counts. That is
    no exact answer, but costs microseconds where an exact one costs milliseconds; of equal ones it
    is the one that follows the indices.
    """
    rising = sorted(sets, key=lambda gpus: gpus & -gpus)
    if len(rising) < 3 or not hops:
        return tuple(rising)
    between = [[_hop(one, other, hops) for other in rising] for one in rising]
    chains = [_greedy(start, between) for start in range(len(rising))]
    best = max(chains, key=lambda found: _worth(found, between))  # the first of equals
    return tuple(rising[number] for number in best)


def hops_of(table: MachineTable) -> Hops:
    """How fast any two GPUs of a machine talk to each other; empty where all are alike."""
    gpus = range(table.count)
    hops = [[_speed(table, 1 << one | 1 << other) for other in gpus] for one in gpus]
    alike = len({hops[one][other] for one, other in combinations(gpus, 2)}) < 2
    return [] if alike else hops


def _speed(table: MachineTable, pair: int) -> float:
    return float(table.values[pair]) + _OF_A_CLASS * int(table.ring_classes[pair])


def _hop(one: int, other: int, hops: Hops) -> float:
    """The best way from one set to another."""
    return max(hops[a][b] for a in _positions(one) for b in _positions(other))


def _greedy(start: int, between: Hops) -> list[int]:
    found, left = [start], set(range(len(between))) - {start}
    while left:
        row = between[found[-1]]
        nearest = min(left, key=lambda number: (-row[number], number))
        found.append(nearest)
        left.remove(nearest)
    return found


def _worth(found: Sequence[int], between: Hops) -> tuple[float, float, float]:
    speeds = [between[one][other] for one, other in pairwise(found)]
    return min(speeds), sum(speeds), between[found[-1]][found[0]]


def _positions(mask: int) -> list[int]:
    return [position for position in range(mask.bit_length()) if mask >> position & 1]
