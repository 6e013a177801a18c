"""Reads from the API server what the core asks for: the objects that pods depend on, and why pods
of a namespace could not be created.

"Not found", "forbidden" and "kind not served" are answers too. Only if the API server gives no
answer does the owner cache read the object again soon.
"""

import logging
from collections.abc import Iterator
from threading import Lock

import msgspec

from linkwise.extender.next.gangs.uncreated import FetchRefusals, RefusedPod
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.state.membership.owner_cache import FetchOwner, Found
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.kube.events import Event, Events, why_not_created
from linkwise.kube.quoted import one_line
from linkwise.pods.podgrouper.workloads.answer import Missing
from linkwise.pods.podgrouper.workloads.essence import essence

log = logging.getLogger(__name__)
# The warnings of which there are many are about pods that exist.
_NOT = "FailedScheduling", "GangWaiting", "Unhealthy", "BackOff", "FailedMount"
_FIELDS = ",".join(("type=Warning", *(f"reason!={reason}" for reason in _NOT)))
# An Event's message may have a megabyte: few are read at once, and only the beginning is kept.
_PAGE, _MOST_PAGES = 10, 50


class RefusalReads:
    """Reads from the API server why pods of a namespace could not be created.

    Safe for threads.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._lock = Lock()
        self._is_told = False

    def read(self, asked: FetchRefusals) -> tuple[RefusedPod, ...] | None:
        """The last refusal for each owner; None: no answer."""
        last: dict[str, RefusedPod] = {}
        try:
            for event in self._events(asked.namespace):
                refused = _refused(event)
                known = last.get(refused.uid)
                if refused.why and (known is None or refused.at >= known.at):
                    last[refused.uid] = refused
        except msgspec.DecodeError as error:
            log.warning("%s: %s", asked, error)
            return None
        except ApiError as error:
            self._tell(asked, error)
            return None
        return tuple(last.values())

    def _events(self, namespace: str) -> Iterator[Event]:
        path = f"/api/v1/namespaces/{namespace}/events"
        params: dict[str, str | int] = {"fieldSelector": _FIELDS, "limit": _PAGE}
        for _ in range(_MOST_PAGES):
            page = self._client.get(path, Events, params=params)
            yield from page.items or ()
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_

    def _tell(self, asked: FetchRefusals, error: ApiError) -> None:
        with self._lock:
            is_known, self._is_told = self._is_told, self._is_told or error.status == 403
        if error.status != 403:
            log.info("reading %s: %s", asked, error)
        elif not is_known:
            log.warning("no right to list Events: gangs do not say who refuses pods: %s", error)


def _refused(event: Event) -> RefusedPod:
    about, why = event.involved_object, one_line(why_not_created(event))
    return RefusedPod(
        one_line(about.kind), one_line(about.name), one_line(about.uid), event.last, why
    )


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
