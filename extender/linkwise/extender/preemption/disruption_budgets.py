"""Which pods PodDisruptionBudgets allow to evict.

The Eviction API refuses what a budget forbids. A scheduler that learns this from the refusals has
evicted half of a gang by then. So the extender watches the budgets and counts before it evicts.
"""

from collections import Counter
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

from linkwise.extender.api.records import PodRecord
from linkwise.kube.filters.selectors import Selector, selector_of, selects
from linkwise.kube.objects import PodDisruptionBudget

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Budget:
    namespace: str
    selector: Selector
    allowed: int

    def covers(self, pod: PodRecord) -> bool:
        return pod.ref.namespace == self.namespace and selects(self.selector, pod.labels)


class DisruptionBudgets:
    def __init__(self) -> None:
        self.known = False  # listed once; before that, no pod may be evicted
        self.changes = 0
        self._budgets: dict[_Key, _Budget] = {}

    def copied(self) -> "DisruptionBudgets":
        """For a search that goes on while budgets change."""
        other = copy(self)
        other._budgets = dict(self._budgets)
        return other

    def replace(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._budgets = {_key(budget): _read(budget) for budget in budgets}
        self.known = True
        self.changes += 1

    def put(self, budget: PodDisruptionBudget) -> None:
        self._budgets[_key(budget)] = _read(budget)
        self.changes += 1

    def drop(self, budget: PodDisruptionBudget) -> None:
        self._budgets.pop(_key(budget), None)
        self.changes += 1

    def allow(self, pods: Iterable[PodRecord]) -> bool:
        """Whether all of *pods* may be evicted together."""
        if not self._budgets:
            return self.known
        evicted: Counter[_Key] = Counter()
        for pod in pods:
            over = [key for key, budget in self._budgets.items() if budget.covers(pod)]
            if len(over) > 1:
                return False  # the Eviction API refuses a pod with two budgets
            evicted.update(over)
        return self.known and all(
            count <= self._budgets[key].allowed for key, count in evicted.items()
        )

    def broken_by(self, pods: Iterable[PodRecord]) -> int:
        """How many of *pods* violate a budget, as kube-scheduler counts it."""
        left = {key: budget.allowed for key, budget in self._budgets.items()}
        broken = 0
        for pod in pods:
            over = [key for key, budget in self._budgets.items() if budget.covers(pod)]
            for key in over:
                left[key] -= 1
            broken += any(left[key] < 0 for key in over)
        return broken


def _key(budget: PodDisruptionBudget) -> _Key:
    return budget.metadata.namespace, budget.metadata.name


def _read(budget: PodDisruptionBudget) -> _Budget:
    return _Budget(
        budget.metadata.namespace,
        selector_of(budget.spec.selector),
        budget.status.disruptions_allowed,
    )
