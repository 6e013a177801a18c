"""Keys, and prefixes of keys, of what controllers, operators and kubelets put on pods."""

from collections.abc import Mapping

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"  # label and annotation
JOB_SET_LABEL = "jobset.sigs.k8s.io/"
LWS = "leaderworkerset.sigs.k8s.io/"
RAY = "ray.io/"
TRAINING = "training.kubeflow.org/"
VOLCANO = "volcano.sh/"
AIBRIX = "stormservice.orchestration.aibrix.ai/"
KTHENA = "modelserving.volcano.sh/"
MIRROR_POD = "kubernetes.io/config.mirror"  # annotation, of a static pod that its kubelet shows
TEMPLATE_HASH = "pod-template-hash"


def deployment_of(replica_set: str, labels: Mapping[str, str]) -> str:
    """Return the name of the Deployment that made the ReplicaSet of a pod with these *labels*;
    empty if none did."""
    suffix = f"-{labels.get(TEMPLATE_HASH, '')}"
    return (
        replica_set.removesuffix(suffix) if len(suffix) > 1 and replica_set.endswith(suffix) else ""
    )
