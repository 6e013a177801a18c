"""Remembers how long GPU pods ran, and estimates how long those continue that do not declare it.

The estimate for a pod comes from pods that ended: of the same namespace, owner's kind and number of
GPUs; if too few of those ran as long as this pod already has, of its namespace, and then of the
cluster. The estimate is the median of the time that they had left. If nothing is known, a pod is
expected to run as long again as it already has: run times of GPU jobs spread over orders of
magnitude, and for such a distribution (a Pareto tail) the time left grows with the age. The order
of pods that wait goes by `means`. The times are in memory only. A standby learns them too, and
keeps them when it leads; a new process starts without any.
"""

import math
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping

from linkwise.extender.api.records import PodRecord

# For a pod that has just started, if nothing is known: a GPU job takes this long to be worth it.
LEAST_SECONDS = 600.0
ENOUGH = 3  # pods that ran for longer
MANY = 8  # pods that ended: the chance that the next one outlasts them all is one in nine
_MOST_TIMES = 64  # remembered of each kind
_MOST_KINDS = 4096

PodKind = tuple[str, ...]
"""Namespace, owner's kind and number of GPUs; or the namespace alone; or empty for all pods."""
NineOfTen = Callable[[PodKind], float | None]
"""See `RunTimes.nine_of_ten`."""


class _Times:
    """The latest run times of one kind of pods."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._rising: list[float] = []

    def add(self, seconds: float) -> None:
        if len(self._latest) == _MOST_TIMES:
            oldest = self._latest.popleft()
            del self._rising[bisect_right(self._rising, oldest) - 1]
        self._latest.append(seconds)
        insort(self._rising, seconds)

    def left(self, age: float) -> float | None:
        """The expected seconds left at *age*; None: too few pods ran that long."""
        first = bisect_right(self._rising, age)
        longer = len(self._rising) - first
        return None if longer < ENOUGH else self._rising[first + longer // 2] - age

    def mean(self, most: float) -> float | None:
        """The mean seconds, where a longer run counts as *most*; None: too few pods ended."""
        known = len(self._rising)
        return None if known < ENOUGH else sum(min(each, most) for each in self._rising) / known

    def nine_of_ten(self) -> float | None:
        """The seconds within which nine of ten pods ended; None: too few have ended."""
        known = len(self._rising)
        return None if known < MANY else self._rising[known * 9 // 10]


class RunTimes:
    def __init__(self) -> None:
        self._of_kind: OrderedDict[PodKind, _Times] = OrderedDict()  # the last used is last

    def __len__(self) -> int:
        """The number of kinds of pods with remembered times."""
        return len(self._of_kind)

    def ended(self, pod: PodRecord, seconds: float) -> None:
        """Record that *pod* ended *seconds* after it got its GPUs."""
        for kind in _kinds(pod):
            times = self._of_kind.setdefault(kind, _Times())
            times.add(seconds)
            self._of_kind.move_to_end(kind)
        while len(self._of_kind) > _MOST_KINDS:
            self._of_kind.popitem(last=False)

    def left(self, pod: PodRecord, age: float) -> float:
        """For how many more seconds *pod*, which has had its GPUs for *age*, is expected to run."""
        learnt = self.learnt(pod, age)
        return max(age, LEAST_SECONDS) if learnt is None else learnt

    def learnt(self, pod: PodRecord, age: float) -> float | None:
        """`left`, as learnt from pods that ended; None: too few like it ran for so long."""
        for kind in _kinds(pod):
            times = self._of_kind.get(kind)
            left = None if times is None else times.left(age)
            if left is not None:
                return left
        return None

    def nine_of_ten(self, kind: PodKind) -> float | None:
        """The seconds within which nine of ten pods of *kind* ended; None: too few have ended."""
        times = self._of_kind.get(kind)
        return None if times is None else times.nine_of_ten()

    def means(self, most: float) -> dict[PodKind, float]:
        """The mean run time in seconds, where a longer run counts as *most*, for all kinds of which
        enough pods have ended.

        The mean, and not the median: those behind a pod wait for its whole run. If the shortest
        expected run goes first (SEPT), one machine's mean wait is the least (Rothkopf 1966). The
        limit is no part of that rule: it keeps one run of weeks from outweighing all others.
        """
        found = {kind: times.mean(most) for kind, times in self._of_kind.items()}
        return {kind: seconds for kind, seconds in found.items() if seconds is not None}

    def all_nine_of_ten(self) -> dict[PodKind, float]:
        """A snapshot of `nine_of_ten` for all kinds for which it is known."""
        found = {kind: times.nine_of_ten() for kind, times in self._of_kind.items()}
        return {kind: seconds for kind, seconds in found.items() if seconds is not None}


def run_time(pod: PodRecord, nine_of_ten: NineOfTen) -> float | None:
    """For how many seconds *pod* runs once it has its GPUs: as declared, or as nine of ten pods of
    its own kind did. None: unknown, or it never ends by itself."""
    if pod.ask.expected_seconds is not None:
        return pod.ask.expected_seconds
    return None if pod.endless else nine_of_ten(next(_kinds(pod)))


def expected_run_time(pod: PodRecord, means: Mapping[PodKind, float]) -> float:
    """For how many seconds *pod* runs once it has its GPUs: as declared, or the first of
    `RunTimes.means`, limited as those are, that is known for a kind of it. Infinity: it never ends
    by itself."""
    if pod.ask.expected_seconds is not None:
        return pod.ask.expected_seconds
    if pod.endless:
        return math.inf
    return next((means[kind] for kind in _kinds(pod) if kind in means), LEAST_SECONDS)


def _kinds(pod: PodRecord) -> Iterator[PodKind]:
    """The most specific kind first."""
    namespace = pod.ref.namespace
    yield namespace, pod.owner_kind, str(pod.needs.gpus)
    yield (namespace,)
    yield ()
