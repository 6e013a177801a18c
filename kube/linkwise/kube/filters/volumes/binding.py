"""VolumeBinding: whether the volumes of a pod's claims reach a node, or can be made there."""

from collections.abc import Mapping

from linkwise.kube.filters.node_affinity import any_term_matches
from linkwise.kube.filters.nodes import NodeFacts
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.volumes.claims import Claims, Delayed
from linkwise.kube.objects import PersistentVolume, StorageClass, TopologySelectorTerm

_PLUGIN = "VolumeBinding"
_OUT_OF_REACH = "node(s) didn't match PersistentVolume's node affinity"
_NONE_TO_BIND = "node(s) didn't find available persistent volumes to bind"
_GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")


def unreachable(claims: Claims, node: NodeFacts) -> Rejection | None:
    """The free capacity that a CSI driver publishes is left to kube-scheduler."""
    bound = _bound(claims, node.labels)
    reasons = [_OUT_OF_REACH] if bound == _OUT_OF_REACH else []
    reasons += [] if _can_bind(claims.delayed, node) else [_NONE_TO_BIND]
    reasons += [_GONE] if bound == _GONE else []
    return Rejection(_PLUGIN, tuple(reasons), resolvable=False) if reasons else None


def reaches(volume: PersistentVolume, labels: Mapping[str, str]) -> bool:
    affinity = volume.spec.node_affinity
    return not affinity or not affinity.required or any_term_matches(affinity.required, labels)


def _bound(claims: Claims, labels: Mapping[str, str]) -> str:
    for volume in claims.bound:
        if volume is None:
            return _GONE
        if not reaches(volume, labels):
            return _OUT_OF_REACH
    return ""


def _can_bind(delayed: tuple[Delayed, ...], node: NodeFacts) -> bool:
    """Each claim takes the smallest volume that suits it; for the others one is made."""
    chosen: set[str] = set()
    for each in delayed:
        selected = each.claim.metadata.annotations.get(_SELECTED_NODE)
        if selected is not None:
            if selected != node.name:
                return False
            volume = None
        else:
            free = (v for v in each.candidates if v.metadata.name not in chosen)
            volume = next((v for v in free if reaches(v, node.labels)), None)
        if volume is not None:
            chosen.add(volume.metadata.name)
        elif not _can_provision(each.provisioner, node.labels):
            return False
    return True


def _can_provision(known: StorageClass, labels: Mapping[str, str]) -> bool:
    return known.provisioner not in _NO_PROVISIONER and _allows(known, labels)


def _allows(known: StorageClass, labels: Mapping[str, str]) -> bool:
    terms = known.allowed_topologies
    return not terms or any(_term_holds(term, labels) for term in terms)


def _term_holds(term: TopologySelectorTerm, labels: Mapping[str, str]) -> bool:
    wanted = term.match_label_expressions
    return bool(wanted) and all(labels.get(each.key) in each.values for each in wanted)
