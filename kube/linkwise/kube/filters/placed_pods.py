"""Which pods are on which node, and how many of them a term selects there."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from linkwise.kube.filters.nodes import Ints
from linkwise.kube.filters.pod_affinity import AffinityTerm, Namespaces, select_all
from linkwise.kube.filters.pod_facts import PodFacts
from linkwise.kube.filters.selectors import selects, value_test

MOST_COUNTS = 512  # remembered; pods may have any terms
MOST_APART = 256  # terms of one namespace's pods, with which all others are compared
_K = TypeVar("_K")
_V = TypeVar("_V")
_NO_PODS: Mapping[str, "Placed"] = {}
_NO_ROWS: Mapping[str, int] = {}


class Placed(NamedTuple):
    facts: PodFacts
    row: int
    leaving: bool


class PlacedPods:
    """Nodes are rows. `changes` rises with each change that may make a difference to another pod,
    `openings` with each that may let a pod in. Both know the counts that were requested before.

    A count is kept up to date from its first request on, so a cluster without affinity and spread
    only pays for the entry of each pod. Of more than `MOST_COUNTS` the oldest are forgotten. From
    then on no change can be told from an opening, and `may_have_opened` says that there was one.
    """

    def __init__(self) -> None:
        self.changes = self.openings = 0
        self._pods: dict[str, Placed] = {}  # uid -> pod
        self._in_namespace: dict[str, dict[str, Placed]] = {}
        self._label_keys: Counter[str] = Counter()  # of their labels
        self.work = 0  # pods that were compared to make counts, since the start
        # Required anti-affinity -> uid -> row. Pods of one workload have equal terms.
        self._keeping_apart: dict[AffinityTerm, dict[str, int]] = {}
        self._apart_keys: Counter[str] = Counter()  # the labels that they look at
        self._apart_of: dict[AffinityTerm, str] = {}  # the namespace of the first pod with the term
        self._apart_terms: Counter[str] = Counter()  # by that namespace
        self._on_ports: dict[int, dict[str, Placed]] = {}  # row -> uid -> pod with host ports
        self._with_claims: dict[int, dict[str, Placed]] = {}
        self._users: Counter[tuple[str, str]] = Counter()  # of claims that are no pod's own
        self._counts: dict[_Key, Ints] = {}  # the last one used comes last
        self._inviting: set[_Key] = set()  # more of these pods may let others in
        self._is_full = False  # some are forgotten since `forget_openings`
        self.may_have_opened = False  # for a pod whose count is forgotten

    def put(self, uid: str, facts: PodFacts, row: int, *, leaving: bool = False) -> None:
        """Add a pod, or move it. *leaving*: it has a deletionTimestamp."""
        pod, before = Placed(facts, row, leaving), self._pods.get(uid)
        if before == pod:
            return
        if before is not None:
            self.drop(uid)
        self._pods[uid] = pod
        self._in_namespace.setdefault(facts.namespace, {})[uid] = pod
        for key in facts.labels:
            self._label_keys[key] += 1
        for term in set(facts.rules.apart):
            self._keep_apart(term, facts.namespace, uid, row)
        if facts.rules.ports:
            self._on_ports.setdefault(row, {})[uid] = pod
        if facts.claims:
            self._with_claims.setdefault(row, {})[uid] = pod
            self._users.update(_shared_claims(facts))
        self._count(pod, 1)

    def drop(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        facts, row = pod.facts, pod.row
        _forget(self._in_namespace, facts.namespace, uid)
        _take_off(self._label_keys, facts.labels.keys())
        for term in set(facts.rules.apart):
            if uid in self._keeping_apart.get(term, _NO_ROWS):
                _forget(self._keeping_apart, term, uid)
                if term not in self._keeping_apart:
                    _take_off(self._apart_keys, _keys(term))
                    _take_off(self._apart_terms, [self._apart_of.pop(term)])
        if facts.rules.ports:
            _forget(self._on_ports, row, uid)
        if facts.claims:
            _forget(self._with_claims, row, uid)
            _take_off(self._users, _shared_claims(facts))
        self._count(pod, -1)

    def _keep_apart(self, term: AffinityTerm, namespace: str, uid: str, row: int) -> None:
        if term not in self._keeping_apart:
            if self._apart_terms[namespace] == MOST_APART:
                return  # the others are left to kube-scheduler
            self._apart_of[term] = namespace
            self._apart_terms[namespace] += 1
            self._apart_keys.update(_keys(term))
        self._keeping_apart.setdefault(term, {})[uid] = row

    def forget_openings(self) -> None:
        """All who wait are tried again: they request the counts again that they still need."""
        self._is_full = self.may_have_opened = False

    def get(self, uid: str) -> Placed | None:
        return self._pods.get(uid)

    def selected(
        self,
        terms: tuple[AffinityTerm, ...],
        rows: int,
        *,
        live: bool = False,
        invites: bool = False,
        without: frozenset[str] = frozenset(),
    ) -> Ints:
        """[rows] how many pods on each node all *terms* select; of a term, the namespaces must be
        known by name. *live*: terminating pods do not count. *invites*: more of them may let the
        pod in that asks. Read only."""
        key = _Key(terms, live)
        counts = self._counts.pop(key, None)
        if invites:
            self._inviting.add(key)
        if counts is not None:
            self._counts[key] = counts
        else:
            while len(self._counts) >= MOST_COUNTS:
                oldest = next(iter(self._counts))
                del self._counts[oldest]
                self._inviting.discard(oldest)
                self._is_full = True
            counts = self._counts[key] = np.zeros(max(rows, 64), dtype=np.int64)
            there = [pod.row for pod in self._all_that_count(key)]
            if there:
                counts = self._add(key, max(there), 0)
                np.add.at(counts, there, 1)
        while len(counts) < rows:
            counts = self._add(key, rows - 1, 0)
        counts = counts[:rows]
        left_out = [p for uid in without if (p := self._pods.get(uid)) and key.counts(p)]
        if left_out:
            counts = counts.copy()
            np.subtract.at(counts, [pod.row for pod in left_out], 1)
        return counts

    def keeping_apart(self) -> Mapping[AffinityTerm, Mapping[str, int]]:
        """The terms of required anti-affinity, each with the rows of its pods by uid."""
        return self._keeping_apart

    def apart_keys(self) -> Set[str]:
        """The labels of pods by which others may keep them out."""
        return self._apart_keys.keys()

    def keeps_out(self, pod: PodFacts, namespaces: Namespaces) -> bool:
        """Whether any pod has a required anti-affinity to *pod*."""
        return any(term.selects(pod, namespaces) for term in self._keeping_apart)

    def on_ports(self) -> Mapping[int, Mapping[str, Placed]]:
        """row -> uid -> the pods that use ports of the node."""
        return self._on_ports

    def with_claims(self, row: int, without: frozenset[str] = frozenset()) -> list[PodFacts]:
        """The pods on the node that use claims."""
        there = self._with_claims.get(row, _NO_PODS).items()
        return [pod.facts for uid, pod in there if uid not in without]

    def users(self, namespace: str, claim: str, without: frozenset[str] = frozenset()) -> int:
        """How many pods with a node use the claim."""
        left_out = (self._pods[uid].facts for uid in without if uid in self._pods)
        others = sum((namespace, claim) in _shared_claims(facts) for facts in left_out)
        return self._users[namespace, claim] - others

    def _all_that_count(self, key: "_Key") -> list[Placed]:
        """All pods that `_Key.counts`. There may be 100,000, so each test is made for all of them
        in one go, which takes a tenth of the time. The tests that most pods fail come first."""
        named = [term.namespaces for term in key.terms if not _selects_all(term)]
        pods: list[Placed]
        if named:
            inside = frozenset.intersection(*named)
            pods = [p for name in inside for p in self._in_namespace.get(name, _NO_PODS).values()]
        else:
            pods = [*self._pods.values()] if key.terms else []
        if key.live:
            pods = [pod for pod in pods if not pod.leaving]
        if any(term.selector is None for term in key.terms):
            return []
        wanted: dict[str, _Values] = {}
        for requirement in (each for term in key.terms for each in term.selector or ()):
            wanted.setdefault(requirement.key, _Values()).tests.append(value_test(requirement))
        # For each label: how many pods can pass.
        most = {
            label: len(self._pods) if values[None] else self._label_keys[label]
            for label, values in wanted.items()
        }
        for label in sorted(wanted, key=lambda each: most[each]):
            values = wanted[label]
            if label in self._label_keys:
                self.work += len(pods)
                pods = [pod for pod in pods if values[pod.facts.labels.get(label)]]
            elif not values[None]:
                return []
        return pods

    def _count(self, pod: Placed, sign: int) -> None:
        matters = self._is_full or bool(pod.facts.rules or pod.facts.claims)
        self.may_have_opened |= self._is_full
        for key in self._counts:
            if key.counts(pod):
                self._add(key, pod.row, sign)
                self.openings += sign < 0 or key in self._inviting
                matters = True
        self.changes += matters

    def _add(self, key: "_Key", row: int, amount: int) -> Ints:
        counts = self._counts[key]
        if row >= len(counts):
            grown = np.zeros(max(row + 1, 2 * len(counts)), dtype=np.int64)
            grown[: len(counts)] = counts
            counts = self._counts[key] = grown
        counts[row] += amount
        return counts


class _Values(dict[str | None, bool]):
    """Value of a label -> whether it passes all tests; pods have few different ones."""

    def __init__(self) -> None:
        self.tests: list[Callable[[str | None], bool]] = []

    def __missing__(self, value: str | None) -> bool:
        self[value] = passes = all(test(value) for test in self.tests)
        return passes


@dataclass(frozen=True, slots=True)
class _Key:
    terms: tuple[AffinityTerm, ...]
    live: bool

    def counts(self, pod: Placed) -> bool:
        return not (self.live and pod.leaving) and select_all(self.terms, pod.facts, {})


def _selects_all(term: AffinityTerm) -> bool:
    """Whether its namespaces are all, as of a term that is `resolved`."""
    return selects(term.namespace_selector, {})


def _keys(term: AffinityTerm) -> set[str]:
    return {requirement.key for requirement in term.selector or ()}


def _shared_claims(facts: PodFacts) -> set[tuple[str, str]]:
    return {(facts.namespace, use.name) for use in facts.claims if use.owner is None}


def _take_off(counts: Counter[_K], keys: Iterable[_K]) -> None:
    for key in keys:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


def _forget(index: dict[_K, dict[str, _V]], key: _K, uid: str) -> None:
    pods = index[key]
    del pods[uid]
    if not pods:
        del index[key]
