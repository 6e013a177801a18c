"""What the pods of each namespace say beyond a few KiB each, and who may say more.

What the extender keeps of a pod takes up to eighteen times its size, and nothing else bounds how
many pods there are.
"""

from collections import Counter

from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import Pod
from linkwise.pods.large_pods import too_large
from linkwise.topology import names

FREE_BYTES = 4096  # of each pod
MOST_BYTES_OF_NAMESPACE = 8 << 20


class PodBytes:
    def __init__(self) -> None:
        self._of_pod: dict[str, tuple[str, int]] = {}  # uid -> namespace, bytes; of larger pods
        self._of_namespace: Counter[str] = Counter()

    def too_large(self, pod: Pod, size: int) -> str:
        """Why nothing of the pod is kept but what it requests; empty: all of it is."""
        if why := too_large(pod, size):
            return why
        if size <= FREE_BYTES:
            return ""
        if MIRROR_POD in pod.metadata.annotations:  # a kubelet may create some in any namespace
            return f"a mirror pod of more than {FREE_BYTES >> 10} KiB"
        namespace, (_, own) = pod.metadata.namespace, self._of_pod.get(pod.metadata.uid, ("", 0))
        others = self._of_namespace[namespace] - own
        # Pods come in another order to the next leader, which must not lose members of a gang that
        # this one has placed. They are bounded by its bytes, so all have room beside as many.
        is_planned = pod.metadata.uid in pod.metadata.annotations.get(names.PLAN, "")
        if others + size <= MOST_BYTES_OF_NAMESPACE * (2 if is_planned else 1):
            return ""
        return (
            f"labels, owners and spec of {size >> 10} KiB: expected {FREE_BYTES >> 10} KiB at "
            f"most, as larger pods of {namespace} have {MOST_BYTES_OF_NAMESPACE >> 20} MiB together"
        )

    def put(self, pod: Pod, size: int) -> None:
        """So many bytes of the pod are kept."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        self.drop(uid)
        if size > FREE_BYTES:
            self._of_pod[uid] = namespace, size
            self._of_namespace[namespace] += size

    def drop(self, uid: str) -> None:
        namespace, size = self._of_pod.pop(uid, ("", 0))
        if size:
            self._of_namespace[namespace] -= size
            if not self._of_namespace[namespace]:
                del self._of_namespace[namespace]
