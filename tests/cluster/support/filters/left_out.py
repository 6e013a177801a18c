"""The differences from kube-scheduler's filters that are meant to be."""

from tests.cluster.support.filters.differences import Difference, LeftOut
from tests.cluster.support.filters.kube_scheduler import Case

_NO_DISK = "node(s) had no available disk"


def _of_a_disk(_case: Case, difference: Difference) -> bool:
    return _NO_DISK in (difference.theirs.reasons or ())


LEFT_OUT = (
    LeftOut(
        "Pods that name a gcePersistentDisk, awsElasticBlockStore, iscsi or rbd themselves are "
        "left to kube-scheduler: new clusters have CSI drivers instead",
        _of_a_disk,
    ),
)
