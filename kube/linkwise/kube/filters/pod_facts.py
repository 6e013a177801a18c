"""What the filters read of a pod, apart from its requests, tolerations and node affinity."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from linkwise.kube.filters.host_ports import HostPort, host_ports
from linkwise.kube.filters.pod_affinity import AffinityTerm, required_terms
from linkwise.kube.filters.topology_spread import SpreadConstraint, hard_constraints
from linkwise.kube.objects import Affinity, Pod, Requirement


@dataclass(frozen=True, slots=True)
class PodRules:
    """What a pod demands of the pods around it. Most pods have NO_RULES."""

    near: tuple[AffinityTerm, ...] = ()
    apart: tuple[AffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    ports: tuple[HostPort, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.near or self.apart or self.spread or self.ports)

    @property
    def count(self) -> int:
        return len(self.near) + len(self.apart) + len(self.spread) + len(self.ports)

    @property
    def weight(self) -> int:
        """`count`, and all that its terms and constraints compare: namespaces, expressions and
        values. Looking at a pod with them takes a time in proportion."""
        terms = (*self.near, *self.apart)
        compared = [*self._requirements, *(r for t in terms for r in t.namespace_selector or ())]
        named = sum(len(term.namespaces) for term in terms) - len(terms)
        return self.count + max(named, 0) + sum(1 + len(each.values) for each in compared)

    @property
    def label_keys(self) -> frozenset[str]:
        """The labels of pods that its selectors look at."""
        return frozenset(each.key for each in self._requirements)

    @property
    def _requirements(self) -> list[Requirement]:
        selectors = [term.selector for term in (*self.near, *self.apart)]
        selectors += [constraint.selector for constraint in self.spread]
        return [each for selector in selectors for each in selector or ()]


NO_RULES = PodRules()


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A PersistentVolumeClaim that a pod uses. *owner*: of an ephemeral volume's claim, the uid of
    the pod with which it is created."""

    name: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Equal pods have equal facts, except that StatefulSets give each pod its own claims."""

    namespace: str
    labels: Mapping[str, str]
    rules: PodRules = NO_RULES
    claims: tuple[ClaimUse, ...] = ()

    def __hash__(self) -> int:
        return hash((self.namespace, frozenset(self.labels.items()), self.rules, self.claims))

    @property
    def demands(self) -> bool:
        """Whether anything but the rules of other pods can keep it off a node."""
        return bool(self.rules or self.claims)

    def with_labels(self, keys: Collection[str]) -> "PodFacts":
        """The same with the labels of these keys alone: equal pods differ in others, such as their
        index."""
        kept = {key: value for key, value in self.labels.items() if key in keys}
        return self if len(kept) == len(self.labels) else replace(self, labels=kept)


NO_FACTS = PodFacts("", {})


def rules_of(pods: Iterable[PodFacts]) -> set[PodRules]:
    """The rules of these pods. Equal pods mostly share theirs, so few are compared."""
    return {*{id(each.rules): each.rules for each in pods}.values()}


def pod_facts(pod: Pod) -> PodFacts:
    meta = pod.metadata
    return PodFacts(meta.namespace, meta.labels, pod_rules(pod), claims_of(pod))


def pod_rules(pod: Pod) -> PodRules:
    spec, namespace = pod.spec, pod.metadata.namespace
    affinity = spec.affinity or Affinity()
    rules = PodRules(
        required_terms(affinity.pod_affinity, namespace),
        required_terms(affinity.pod_anti_affinity, namespace),
        hard_constraints(spec.topology_spread_constraints, pod.metadata.labels),
        host_ports(spec),
    )
    return rules or NO_RULES


def claims_of(pod: Pod) -> tuple[ClaimUse, ...]:
    meta = pod.metadata
    return tuple(
        ClaimUse(volume.persistent_volume_claim.claim_name)
        if volume.persistent_volume_claim is not None
        else ClaimUse(f"{meta.name}-{volume.name}", owner=meta.uid)
        for volume in pod.spec.volumes
        if volume.persistent_volume_claim is not None or volume.ephemeral is not None
    )
