"""How long pods that take GPUs have run, and so how long those may go on that do not say.

The estimate for a pod comes from pods that ended: of the same namespace, owner's kind and number of
GPUs; if too few of those ran for as long as this pod already has, of its namespace, and then of the
cluster. It is the median of what they had left. Where nothing is known, a pod is expected to run
for as long again as it already has: run times of GPU jobs are spread over orders of magnitude, and
for such (a Pareto tail) what is left grows with the age. In memory only; a new extender learns
again.
"""

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from linkwise.extender.api.records import PodRecord

# Of a pod that has just begun, and of which nothing is known: as long as it takes to be worth it.
LEAST_SECONDS = 600.0
ENOUGH = 3  # pods that ran for longer
MANY = 8  # pods that ended: that the next one runs for longer than all of them is one in nine
_MOST_TIMES = 64  # remembered of each kind
_MOST_KINDS = 4096

PodKind = tuple[str, ...]
"""Of pods: namespace, owner's kind and number of GPUs; the first of these; or none."""
NineOfTen = Callable[[PodKind], float | None]
"""As `RunTimes.nine_of_ten`."""


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
        """Seconds; None: too few ran for so long."""
        first = bisect_right(self._rising, age)
        longer = len(self._rising) - first
        return None if longer < ENOUGH else self._rising[first + longer // 2] - age

    def nine_of_ten(self) -> float | None:
        """Within which so many have ended; None: too few have."""
        known = len(self._rising)
        return None if known < MANY else self._rising[known * 9 // 10]


class RunTimes:
    def __init__(self) -> None:
        self._of_kind: OrderedDict[PodKind, _Times] = OrderedDict()  # those used last are last

    def __len__(self) -> int:
        """Of how many kinds of pods something is remembered."""
        return len(self._of_kind)

    def ended(self, pod: PodRecord, seconds: float) -> None:
        """*pod* has ended after it had its GPUs for so long."""
        for kind in _kinds(pod):
            times = self._of_kind.setdefault(kind, _Times())
            times.add(seconds)
            self._of_kind.move_to_end(kind)
        while len(self._of_kind) > _MOST_KINDS:
            self._of_kind.popitem(last=False)

    def left(self, pod: PodRecord, age: float) -> float:
        """For how many seconds *pod*, which has its GPUs for *age*, is expected to go on."""
        for kind in _kinds(pod):
            times = self._of_kind.get(kind)
            left = None if times is None else times.left(age)
            if left is not None:
                return left
        return max(age, LEAST_SECONDS)

    def nine_of_ten(self, kind: PodKind) -> float | None:
        """Seconds within which nine of ten pods of a kind have ended; None: too few have."""
        times = self._of_kind.get(kind)
        return None if times is None else times.nine_of_ten()

    def all_nine_of_ten(self) -> dict[PodKind, float]:
        """The same of all kinds of which it is known, as it is now."""
        found = {kind: times.nine_of_ten() for kind, times in self._of_kind.items()}
        return {kind: seconds for kind, seconds in found.items() if seconds is not None}


def run_time(pod: PodRecord, nine_of_ten: NineOfTen) -> float | None:
    """For how many seconds *pod* runs once it has its GPUs: as it says, or else as nine of ten of
    its own kind have. None: nobody knows, or it never ends by itself."""
    if pod.ask.expected_seconds is not None:
        return pod.ask.expected_seconds
    return None if pod.endless else nine_of_ten(next(_kinds(pod)))


def _kinds(pod: PodRecord) -> Iterator[PodKind]:
    """The nearest first."""
    namespace = pod.ref.namespace
    yield namespace, pod.owner_kind, str(pod.needs.gpus)
    yield (namespace,)
    yield ()
