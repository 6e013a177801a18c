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
    selector: Selector
    allowed: int

    def covers(self, pod: PodRecord) -> bool:
        return selects(self.selector, pod.labels)


class DisruptionBudgets:
    def __init__(self) -> None:
        self.known = False  # listed once; before that, no pod may be evicted
        self.changes = 0
        # By namespace: a tenant may have thousands, and they cost no other.
        self._budgets: dict[str, dict[_Key, _Budget]] = {}

    def copied(self) -> "DisruptionBudgets":
        """For a search that goes on while budgets change."""
        other = copy(self)
        other._budgets = {name: dict(budgets) for name, budgets in self._budgets.items()}
        return other

    def replace(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._budgets = {}
        for budget in budgets:
            self.put(budget)
        self.known = True
        self.changes += 1

    def put(self, budget: PodDisruptionBudget) -> None:
        of_namespace = self._budgets.setdefault(budget.metadata.namespace, {})
        of_namespace[_key(budget)] = _read(budget)
        self.changes += 1

    def drop(self, budget: PodDisruptionBudget) -> None:
        namespace = budget.metadata.namespace
        of_namespace = self._budgets.get(namespace, {})
        of_namespace.pop(_key(budget), None)
        if not of_namespace:
            self._budgets.pop(namespace, None)
        self.changes += 1

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
        own = self._budgets.get(pod.ref.namespace, {})
        return {key: budget.allowed for key, budget in own.items() if budget.covers(pod)}


def _key(budget: PodDisruptionBudget) -> _Key:
    return budget.metadata.namespace, budget.metadata.name


def _read(budget: PodDisruptionBudget) -> _Budget:
    return _Budget(selector_of(budget.spec.selector), budget.status.disruptions_allowed)
