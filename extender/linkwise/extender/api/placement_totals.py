"""How well gangs were placed, as immutable histograms for the metrics."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

# Starts at the slowest connection between two sockets and doubles; docs/topology.md.
GBYTES_PER_S = (6.0, 12.0, 24.0, 48.0, 96.0, 192.0, 384.0, 768.0)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
ONE, SEVERAL = "one", "several"  # nodes


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram: the count of values up to each bound and above the last, and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> "Spread":
        return cls(bounds, (0,) * (len(bounds) + 1))

    def with_one(self, value: float) -> "Spread":
        place = bisect_left(self.bounds, value)
        counts = tuple(count + (number == place) for number, count in enumerate(self.counts))
        return Spread(self.bounds, counts, self.total + value)


def _empty(bounds: tuple[float, ...]) -> dict[str, Spread]:
    return {nodes: Spread.empty(bounds) for nodes in (ONE, SEVERAL)}


@dataclass(frozen=True, slots=True)
class Placed:
    """All gangs that got a new plan since the start, by whether it uses one node or several."""

    gbytes_per_s: Mapping[str, Spread] = field(default_factory=lambda: _empty(GBYTES_PER_S))
    shares: Mapping[str, Spread] = field(default_factory=lambda: _empty(SHARES))

    def with_gang(self, nodes: int, gbytes_per_s: float, ideal: float) -> "Placed":
        """*ideal* is the GB/s that idle machines would give the gang."""
        where = ONE if nodes == 1 else SEVERAL
        share = min(gbytes_per_s / ideal, 1.0) if ideal else 1.0
        return Placed(
            {**self.gbytes_per_s, where: self.gbytes_per_s[where].with_one(gbytes_per_s)},
            {**self.shares, where: self.shares[where].with_one(share)},
        )
