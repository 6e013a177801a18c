"""Reads the objects that pods depend on from the API server.

"Not found", "forbidden" and "kind not served" are answers too. Only if the API server gives no
answer does the owner cache read the object again soon.
"""

import logging
from threading import Lock

import msgspec

from linkwise.extender.membership.owner_cache import FetchOwner, Found
from linkwise.extender.runtime.metrics import ExtenderMetrics
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.pods.podgrouper.workloads.answer import Missing
from linkwise.pods.podgrouper.workloads.essence import essence

log = logging.getLogger(__name__)
_RESULTS = {
    None: "failed",
    Missing.NOT_FOUND: "missing",
    Missing.FORBIDDEN: "forbidden",
    Missing.NOT_SERVED: "unserved",
    Missing.NO_NAME: "missing",
    Missing.TOO_LARGE: "too-large",
    Missing.NAMESPACE_FULL: "namespace-full",
}
# Of what the rules read, as JSON; some 100 pod templates. Each pod of the object is judged by all
# of it, while calls wait.
MOST_BYTES = 32 << 10


class OwnerReads:
    """Safe for threads."""

    def __init__(self, client: KubeClient, metrics: ExtenderMetrics) -> None:
        self._client, self._metrics = client, metrics
        self._lock = Lock()
        self._forbidden: set[str] = set()  # kinds that were logged

    def read(self, asked: FetchOwner) -> Found | None:
        """The part of the object that the rules read, or why there is none; None: no answer."""
        found = self._read(asked)
        result = _RESULTS[found] if found is None or isinstance(found, Missing) else "found"
        self._metrics.owner_reads.labels(asked.ref.qualified_kind, result).inc()
        return found

    def _read(self, asked: FetchOwner) -> Found | None:
        missing = Missing.NOT_SERVED
        for path in asked.paths:
            found = self._get(asked, path)
            if found is Missing.NOT_FOUND:
                missing = found  # another version may have it
            elif found is not Missing.NOT_SERVED:
                return found
        return missing

    def _get(self, asked: FetchOwner, path: str) -> Found | None:
        try:
            found = essence(self._client.get(path, dict[str, object]))
            size = len(msgspec.json.encode(found))
        except msgspec.DecodeError as error:
            log.warning("%s: %s", asked.ref, error)
            return None
        except ApiError as error:
            if error.status == 404:
                # If the API server serves the kind, its message names the missing object.
                named = f'"{asked.ref.name}"' in error.message
                return Missing.NOT_FOUND if named else Missing.NOT_SERVED
            if error.status == 403:
                self._tell_forbidden(asked, error)
                return Missing.FORBIDDEN
            log.info("reading %s: %s", asked.ref, error)
            return None
        if size > MOST_BYTES:
            return Missing.TOO_LARGE
        return Missing.NAMESPACE_FULL if size > asked.room else found

    def _tell_forbidden(self, asked: FetchOwner, error: ApiError) -> None:
        with self._lock:
            kind = asked.ref.qualified_kind
            is_news = kind not in self._forbidden
            self._forbidden.add(kind)
        if is_news:
            log.warning("no right to read %s: its pods count as single pods: %s", kind, error)
