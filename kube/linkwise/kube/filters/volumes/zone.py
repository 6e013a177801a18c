"""VolumeZone: the zone and region labels of bound volumes, which stand for a node affinity."""

from linkwise.kube.filters.nodes import NodeFacts
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.volumes.claims import Claims
from linkwise.kube.objects import PersistentVolume

ELSEWHERE = Rejection("VolumeZone", ("node(s) had no available volume zone",), resolvable=False)
_BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
_BETA_REGION = "failure-domain.beta.kubernetes.io/region"
_NEWER = {
    _BETA_ZONE: "topology.kubernetes.io/zone",
    _BETA_REGION: "topology.kubernetes.io/region",
}
_KEYS = (*_NEWER, *_NEWER.values())
_BETWEEN = "__"  # two zones of a volume that is in both


def elsewhere(claims: Claims, node: NodeFacts) -> Rejection | None:
    """A node without any such label is in every zone."""
    if not any(key in node.labels for key in _KEYS):
        return None
    for volume in claims.zoned:
        for key, zones in _zones(volume):
            at = node.labels.get(key, node.labels.get(_NEWER.get(key, key)))
            if at not in zones:
                return ELSEWHERE
    return None


def _zones(volume: PersistentVolume) -> list[tuple[str, frozenset[str]]]:
    """Label -> the zones that it names; a label with an empty name says nothing."""
    labels = volume.metadata.labels
    found = [(k, [z.strip() for z in labels[k].split(_BETWEEN)]) for k in _KEYS if k in labels]
    return [(key, frozenset(zones)) for key, zones in found if all(zones)]
