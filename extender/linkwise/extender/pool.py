"""The nodes that could take some of a gang's equal members, and how many each could at which worth.

A node with room for three members at 100 GB/s may have room for four at 50: so a quality is chosen
first, the highest at which all members fit, then nodes are counted at that quality.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.ground import Ground
from linkwise.extender.kinds import Kind, Wish
from linkwise.extender.rows import Ints, popcount
from linkwise.topology.model import MAX_GPUS


class Pool:
    """Arrays over the candidates; a candidate is known by its place in them.

    `rows` [c] of the ground, `free_counts` [c] free GPUs, `ranks` [c] by name.
    """

    def __init__(
        self,
        ground: Ground,
        wish: Wish,
        wanted: int,
        rows: Ints,
        free: Ints,
        room: Ints,
        unit: int,
    ) -> None:
        self.wanted, self.unit = wanted, unit
        self.rows = rows
        self.ranks = ground.rows.name_ranks()[rows]
        self.free_counts = popcount(free)
        self._kinds = ground.kinds
        self._wish = wish
        self._room = np.minimum(room, self.free_counts // wish.size)
        self._alike, self._which = np.unique(
            ground.rows.kinds[rows] << MAX_GPUS | free, return_inverse=True
        )
        self._profiles: NDArray[np.float64] | None = None
        self._sets: dict[tuple[int, int], tuple[int, ...]] = {}

    def qualities(self) -> list[float]:
        """Every quality (`Kind.quality`) that some member could have, best first; none where there
        is no room for all whatever the quality."""
        if self._room.sum() < self.wanted:
            return []  # there are not even enough GPUs, so no set needs to be sought
        profiles = self._profiles_of_alike()
        found: list[float] = np.unique(profiles[profiles > -np.inf])[::-1].tolist()
        return found

    def room_at(self, quality: float) -> Ints:
        """[c] how many members each candidate can take so that none gets less than *quality*."""
        profiles = self._profiles_of_alike()
        of_alike = ((profiles >= quality) & (profiles > -np.inf)).sum(axis=1)
        room: Ints = np.minimum(np.minimum(of_alike[self._which], self._room), self.wanted)
        return room

    def sets(self, candidate: int, count: int) -> tuple[int, ...]:
        alike = int(self._which[candidate]), count
        if alike not in self._sets:
            kind, free = self._kind_and_free(alike[0])
            self._sets[alike] = kind.pack(self._wish, free, count)
        return self._sets[alike]

    def losses(self, candidates: Ints, counts: Ints) -> NDArray[np.float64]:
        """What so many members on each of these candidates take from the jobs to come."""
        pairs, position = np.unique(
            self._which[candidates] * (self.wanted + 1) + counts, return_inverse=True
        )
        losses = []
        for pair in pairs.tolist():
            kind, free = self._kind_and_free(pair // (self.wanted + 1))
            taken = sum(kind.pack(self._wish, free, pair % (self.wanted + 1)))
            losses.append(kind.loss(free, taken))
        return np.array(losses, dtype=np.float64)[position]

    def sorted(self, candidates: Ints, keys: Sequence[NDArray[np.generic]]) -> Ints:
        """By these keys, the first counts most; then the fullest node, then its name."""
        last = (self.ranks[candidates], self.free_counts[candidates])
        return candidates[np.lexsort((*last, *reversed(keys)))]

    def first(self, candidates: Ints, keys: Sequence[NDArray[np.generic]]) -> int | None:
        in_order = self.sorted(candidates, keys)
        return int(in_order[0]) if len(in_order) else None

    def _profiles_of_alike(self) -> NDArray[np.float64]:
        """[alike, k] the quality that each of k+1 members gets at least; -inf beyond the room."""
        if self._profiles is None:
            most = min(self.wanted, MAX_GPUS // self._wish.size) or 1
            self._profiles = np.full((len(self._alike), most), -np.inf)
            for number in range(len(self._alike)):
                kind, free = self._kind_and_free(number)
                room = min(most, free.bit_count() // self._wish.size)
                profile = _profile(kind, self._wish, free, room)
                self._profiles[number, : len(profile)] = profile
        return self._profiles

    def _kind_and_free(self, number: int) -> tuple[Kind, int]:
        key = int(self._alike[number])
        return self._kinds[key >> MAX_GPUS], key & (1 << MAX_GPUS) - 1


@lru_cache(maxsize=65536)
def _profile(kind: Kind, wish: Wish, free: int, most: int) -> tuple[float, ...]:
    """The least quality among 1, 2 … *most* sets side by side, as far as there is room."""
    best = float(kind.qualities(wish, np.array([free]))[0])
    all_of_them = kind.pack(wish, free, most)
    if all(kind.quality(wish, gpus) >= best for gpus in all_of_them):
        return (best,) * len(all_of_them)  # so it is on most machines
    profile: list[float] = []
    for count in range(1, len(all_of_them) + 1):
        least = min(kind.quality(wish, gpus) for gpus in kind.pack(wish, free, count))
        profile.append(min(least, profile[-1]) if profile else least)
    return tuple(profile)
