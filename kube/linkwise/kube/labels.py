"""Keys, and prefixes of keys, of what controllers, operators and kubelets put on pods."""

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"  # label and annotation
JOB_SET_LABEL = "jobset.sigs.k8s.io/"
LWS = "leaderworkerset.sigs.k8s.io/"
RAY = "ray.io/"
TRAINING = "training.kubeflow.org/"
VOLCANO = "volcano.sh/"
AIBRIX = "stormservice.orchestration.aibrix.ai/"
KTHENA = "modelserving.volcano.sh/"
MIRROR_POD = "kubernetes.io/config.mirror"  # annotation, of a static pod that its kubelet shows
