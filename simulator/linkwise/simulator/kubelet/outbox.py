"""The kubelet's pending writes about pods.

A later write about a pod replaces an earlier one. The outbox keeps a write and retries it until the
API server takes it.
"""

import logging
from collections.abc import Callable
from functools import partial

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.objects import Pod
from linkwise.simulator.kubelet.statuses import Body

log = logging.getLogger(__name__)


class StatusOutbox:
    """Pending writes by pod; used by the kubelet's worker alone."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._statuses: dict[str, tuple[Pod, Body]] = {}
        self._deletions: dict[str, Pod] = {}

    def __bool__(self) -> bool:
        return bool(self._statuses or self._deletions)

    def say(self, pod: Pod, body: Body) -> None:
        """Patch the pod's status with *body*."""
        self._statuses[pod.metadata.uid] = (pod, body)

    def delete(self, pod: Pod) -> None:
        """Delete the pod from the API server: nothing of it runs here any more."""
        self._deletions[pod.metadata.uid] = pod

    def flush(self) -> None:
        for uid, (pod, body) in list(self._statuses.items()):
            if self._done(pod, partial(self._client.patch, f"{_path(pod)}/status", body)):
                del self._statuses[uid]
        for uid, pod in list(self._deletions.items()):
            request = partial(self._client.delete, _path(pod), uid=uid, grace_seconds=0)
            if uid not in self._statuses and self._done(pod, request):
                del self._deletions[uid]

    def _done(self, pod: Pod, request: Callable[[], None]) -> bool:
        """Return False if the request must be retried.

        A pod that is gone needs no write, nor does one whose name another pod has (422: a patch may
        not change a uid).
        """
        try:
            request()
        except ApiError as error:
            if error.status in (404, 409, 422):
                return True
            log.warning("%s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)
            return False
        return True


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
