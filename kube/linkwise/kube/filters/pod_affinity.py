"""InterPodAffinity: near which pods a pod must run, and near which it must not.

Anti-affinity is symmetric: a pod that runs keeps out the pods that its terms select.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from linkwise.kube.filters.nodes import NO_DOMAIN, Bools, Ints, at_rows, in_all, per_domain
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.selectors import Selector, selector_of, selects
from linkwise.kube.objects import PodAffinity, PodAffinityTerm

_PLUGIN = "InterPodAffinity"
NOT_NEAR = Rejection(_PLUGIN, ("node(s) didn't match pod affinity rules",), resolvable=False)
NOT_APART = Rejection(_PLUGIN, ("node(s) didn't match pod anti-affinity rules",), resolvable=True)
KEPT_OUT = Rejection(
    _PLUGIN, ("node(s) didn't satisfy existing pods anti-affinity rules",), resolvable=True
)

Namespaces = Mapping[str, Mapping[str, str]]
"""The labels of each namespace."""


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """Pods in *namespaces*, and in those that *namespace_selector* selects."""

    topology_key: str
    selector: Selector
    namespaces: frozenset[str]
    namespace_selector: Selector = None

    def selects(self, pod: "Labelled", namespaces: Namespaces) -> bool:
        inside = pod.namespace in self.namespaces or selects(
            self.namespace_selector, namespaces.get(pod.namespace, {})
        )
        return inside and selects(self.selector, pod.labels)

    def resolved(self, namespaces: Namespaces) -> "AffinityTerm":
        """Return the term with its selected namespaces by name, as a pod that comes has it. The
        empty selector, which selects all, stays."""
        if not self.namespace_selector:
            return self
        named = (n for n, labels in namespaces.items() if selects(self.namespace_selector, labels))
        return replace(self, namespaces=self.namespaces.union(named), namespace_selector=None)


class Labelled(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


def required_terms(affinity: PodAffinity | None, namespace: str) -> tuple[AffinityTerm, ...]:
    """Read the terms of a pod in *namespace*."""
    if affinity is None:
        return ()
    required = affinity.required_during_scheduling_ignored_during_execution
    return tuple(_term(each, namespace) for each in required)


def select_all(terms: Collection[AffinityTerm], pod: Labelled, namespaces: Namespaces) -> bool:
    """Whether every term selects the pod; a pod without terms selects none."""
    return bool(terms) and all(term.selects(pod, namespaces) for term in terms)


def near(domains: Sequence[Ints], selected: Ints, *, selects_itself: bool) -> Bools:
    """[rows] the nodes in whose domains, for every term, are pods that all terms select.

    *domains* has each term's [rows], *selected* is [rows] the number of such pods on a node. The
    first pod of a group that selects itself may run wherever the nodes have all the labels.
    """
    labelled = in_all(domain != NO_DOMAIN for domain in domains)
    if selects_itself and not any((selected[domain != NO_DOMAIN] > 0).any() for domain in domains):
        return labelled
    return in_all([labelled, *(~apart(domain, selected) for domain in domains)])


def apart(domain: Ints, selected: Ints) -> Bools:
    """[rows] the nodes in whose domain is none of the *selected* pods. A node without the label is
    in no domain."""
    return ~at_rows(domain, per_domain(domain, selected)).astype(np.bool_)


def _term(term: PodAffinityTerm, namespace: str) -> AffinityTerm:
    own = not term.namespaces and term.namespace_selector is None
    return AffinityTerm(
        term.topology_key,
        selector_of(term.label_selector),
        frozenset([namespace] if own else term.namespaces),
        selector_of(term.namespace_selector),
    )
