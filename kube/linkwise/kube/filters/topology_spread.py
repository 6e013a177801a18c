"""PodTopologySpread: how evenly equal pods are spread over domains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.kube.filters.nodes import NO_DOMAIN, Bools, Ints, at_rows, in_all, per_domain
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.selectors import Selector, selector_of
from linkwise.kube.objects import Requirement, TopologySpreadConstraint

_PLUGIN = "PodTopologySpread"
NO_LABEL = Rejection(
    _PLUGIN,
    ("node(s) didn't match pod topology spread constraints (missing required label)",),
    resolvable=False,
)
TOO_UNEVEN = Rejection(
    _PLUGIN, ("node(s) didn't match pod topology spread constraints",), resolvable=True
)


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    topology_key: str
    max_skew: int
    min_domains: int
    selector: Selector  # selects pods of the same namespace
    honors_affinity: bool  # whether only nodes count that the pod's node affinity matches
    honors_taints: bool  # whether only nodes count whose taints the pod tolerates


def hard_constraints(
    constraints: Sequence[TopologySpreadConstraint], labels: Mapping[str, str]
) -> tuple[SpreadConstraint, ...]:
    """Read what a pod with *labels* must keep."""
    return tuple(
        SpreadConstraint(
            each.topology_key,
            each.max_skew,
            1 if each.min_domains is None else each.min_domains,
            _selector(each, labels),
            honors_affinity=each.node_affinity_policy != "Ignore",
            honors_taints=each.node_taints_policy == "Honor",
        )
        for each in constraints
        if each.when_unsatisfiable == "DoNotSchedule"
    )


def _selector(each: TopologySpreadConstraint, labels: Mapping[str, str]) -> Selector:
    selector = selector_of(each.label_selector)
    if selector is None:
        return None
    same = ((key, labels[key]) for key in each.match_label_keys if key in labels)
    return (*(Requirement(key, "In", (value,)) for key, value in same), *selector)


def labelled(domains: Sequence[Ints]) -> Bools:
    """[rows] the nodes that have the labels of all of a pod's constraints; only these count."""
    return in_all(domain != NO_DOMAIN for domain in domains)


@dataclass(frozen=True, slots=True)
class Spread:
    """A constraint and the pods that it selects now. *counts* is [domains], -1 for a domain that
    does not count."""

    constraint: SpreadConstraint
    domain: Ints  # [rows]
    counts: Ints

    @property
    def lowest(self) -> int:
        """The global minimum."""
        counting = self.counts[self.counts >= 0]
        if len(counting) < self.constraint.min_domains:
            return 0
        return int(counting.min(initial=2**31))

    def allows(self, *, selects_itself: bool) -> Bools:
        """[rows] the nodes with the label where one more pod is not too uneven."""
        room = self.constraint.max_skew + self.lowest - selects_itself
        fits = np.maximum(self.counts, 0) <= room
        return at_rows(self.domain, fits.astype(np.int64)) > 0


def spread(constraint: SpreadConstraint, domain: Ints, selected: Ints, counting: Bools) -> Spread:
    """*selected* is [rows] the number of pods on a node that the constraint selects, *counting* is
    [rows] the nodes that count."""
    size = int(domain.max(initial=NO_DOMAIN)) + 1
    of_counting = np.where(counting, domain, NO_DOMAIN)
    counts = np.full(size, -1, dtype=np.int64)
    if constraint.selector == ():
        selected = np.zeros_like(selected)  # kube-scheduler counts no pod for an empty selector
    sums = per_domain(of_counting, selected)
    present = np.unique(of_counting[of_counting != NO_DOMAIN])
    counts[present] = sums[present]
    return Spread(constraint, domain, counts)
