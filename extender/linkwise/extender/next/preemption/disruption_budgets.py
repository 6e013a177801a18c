"""Which pods PodDisruptionBudgets allow to evict.

The Eviction API refuses what a budget forbids. A scheduler that learns this from the refusals has
evicted half of a gang by then. So the extender watches the budgets and counts before it evicts.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from linkwise.extender.state.records import PodRecord
from linkwise.kube.filters.selectors import Selector, selector_of, selects
from linkwise.kube.objects import PodDisruptionBudget

_Key = tuple[str, str]
_Pair = tuple[str, str] | None  # a label; None: of selectors that name no single value
_MOST = 256  # expressions and values that a pod is compared with for one label
# No pod with two budgets may be evicted. Nor, here, one that would have to be compared with more:
# its tenant could as well give it two budgets.
_TOO_MANY: dict[_Key, int] = {("", "1"): 0, ("", "2"): 0}


@dataclass(frozen=True, slots=True)
class _Budget:
    selector: Selector
    allowed: int

    def covers(self, pod: PodRecord) -> bool:
        return selects(self.selector, pod.labels)

    @property
    def weight(self) -> int:
        return 1 + sum(1 + len(each.values) for each in self.selector or ())

    @property
    def pair(self) -> _Pair:
        """A label without which it covers no pod."""
        for each in self.selector or ():
            if each.operator == "In" and len(each.values) == 1:
                return each.key, each.values[0]
        return None


@dataclass(slots=True)
class _Bucket:
    """The budgets of one namespace that look for one label."""

    budgets: dict[_Key, _Budget] = field(default_factory=dict)
    weight: int = 0


class DisruptionBudgets:
    def __init__(self) -> None:
        self.known = False  # listed once; before that, no pod may be evicted
        self.changes = 0
        # By namespace and label: a tenant may have thousands, and they cost no other.
        self._buckets: dict[tuple[str, _Pair], _Bucket] = {}
        self._budgets: dict[_Key, _Budget] = {}

    def copied(self) -> "DisruptionBudgets":
        """For a search that goes on while budgets change."""
        other = DisruptionBudgets()
        for key, budget in self._budgets.items():
            other._add(key, budget)
        other.known, other.changes = self.known, self.changes
        return other

    def replace(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._budgets, self._buckets = {}, {}
        for budget in budgets:
            self.put(budget)
        self.known = True
        self.changes += 1

    def put(self, budget: PodDisruptionBudget) -> None:
        self._remove(_key(budget))
        self._add(_key(budget), _read(budget))
        self.changes += 1

    def drop(self, budget: PodDisruptionBudget) -> None:
        self._remove(_key(budget))
        self.changes += 1

    def _add(self, key: _Key, budget: _Budget) -> None:
        bucket = self._buckets.setdefault((key[0], budget.pair), _Bucket())
        bucket.budgets[key] = self._budgets[key] = budget
        bucket.weight += budget.weight

    def _remove(self, key: _Key) -> None:
        budget = self._budgets.pop(key, None)
        if budget is None:
            return
        bucket = self._buckets[key[0], budget.pair]
        del bucket.budgets[key]
        bucket.weight -= budget.weight
        if not bucket.budgets:
            del self._buckets[key[0], budget.pair]

    def allow(self, pods: Iterable[PodRecord]) -> bool:
        """Whether all of *pods* may be evicted together."""
        if not self._budgets:
            return self.known
        evicted: Counter[_Key] = Counter()
        allowed: dict[_Key, int] = {}
        for pod in pods:
            over = self._over(pod)
            if len(over) > 1:
                return False  # the Eviction API refuses a pod with two budgets
            evicted.update(over.keys())
            allowed |= over
        return self.known and all(count <= allowed[key] for key, count in evicted.items())

    def broken_by(self, pods: Iterable[PodRecord]) -> int:
        """How many of *pods* violate a budget, as kube-scheduler counts it."""
        left: dict[_Key, int] = {}
        broken = 0
        for pod in pods:
            over = self._over(pod)
            for key, allowed in over.items():
                left[key] = left.get(key, allowed) - 1
            broken += any(left[key] < 0 for key in over)
        return broken

    def _over(self, pod: PodRecord) -> dict[_Key, int]:
        """The budgets that cover the pod, and how many evictions each allows."""
        found: dict[_Key, int] = {}
        for pair in (None, *pod.labels.items()):
            bucket = self._buckets.get((pod.ref.namespace, pair))
            if bucket is None:
                continue
            if bucket.weight > _MOST and len(bucket.budgets) > 1:
                return _TOO_MANY
            found |= {key: one.allowed for key, one in bucket.budgets.items() if one.covers(pod)}
        return found


def _key(budget: PodDisruptionBudget) -> _Key:
    return budget.metadata.namespace, budget.metadata.name


def _read(budget: PodDisruptionBudget) -> _Budget:
    return _Budget(selector_of(budget.spec.selector), budget.status.disruptions_allowed)
