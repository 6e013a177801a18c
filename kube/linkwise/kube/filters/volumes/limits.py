"""NodeVolumeLimits: how many volumes of a CSI driver a node can attach."""

from collections import Counter
from collections.abc import Iterable

from linkwise.kube.filters.pod_facts import PodFacts
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.volumes.storage import Storage, claim_class
from linkwise.kube.objects import PersistentVolumeClaim

TOO_MANY = Rejection("NodeVolumeLimits", ("node(s) exceed max volume count",), resolvable=True)

Attached = dict[str, str]
"""A volume's unique name -> its driver."""


def attached(pods: Iterable[PodFacts], storage: Storage) -> Attached:
    """Return the volumes that *pods* need on their node. Volumes of in-tree plugins, and those
    attached for no pod, are left to kube-scheduler."""
    found: Attached = {}
    for pod in pods:
        for use in pod.claims:
            claim = storage.claim(pod.namespace, use.name)
            driver, handle = _of(claim, storage) if claim is not None else ("", "")
            if driver and handle:
                found[f"{driver}/{handle}"] = driver
    return found


def room(limits: dict[str, int], there: Attached) -> dict[str, int]:
    """Driver -> how many more volumes the node can attach."""
    taken = Counter(there.values())
    return {driver: limit - taken[driver] for driver, limit in limits.items()}


def too_many(
    pod: PodFacts, beside: Iterable[PodFacts], limits: dict[str, int], storage: Storage
) -> Rejection | None:
    wanted = attached([pod], storage)
    if not wanted or not limits:
        return None
    there = attached(beside, storage)
    left = room(limits, there)
    more = Counter(driver for name, driver in wanted.items() if name not in there)
    return TOO_MANY if any(count > left.get(d, count) for d, count in more.items()) else None


def _of(claim: PersistentVolumeClaim, storage: Storage) -> tuple[str, str]:
    """The driver and the name of a claim's volume. One that is not bound yet counts by itself."""
    volume = storage.volume(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is not None:
        source = volume.spec.csi
        return (source.driver, source.volume_handle) if source is not None else ("", "")
    known = storage.storage_class(claim_class(claim))
    if known is None:
        return "", ""
    return known.provisioner, f"{claim.metadata.namespace}/{claim.metadata.name}"
