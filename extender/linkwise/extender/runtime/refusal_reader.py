"""Reads from the API server why pods of a namespace could not be created."""

import logging
from threading import Lock

import msgspec

from linkwise.extender.gangs.uncreated import FetchRefusals, RefusedPod
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.kube.events import Event, Events, why_not_created

log = logging.getLogger(__name__)
# The warnings of which there are many are about pods that exist.
_NOT = "FailedScheduling", "GangWaiting", "Unhealthy", "BackOff", "FailedMount"
_FIELDS = ",".join(("type=Warning", *(f"reason!={reason}" for reason in _NOT)))
_MOST = 100  # Events in one answer


class RefusalReads:
    """Safe for threads."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._lock = Lock()
        self._is_told = False

    def read(self, asked: FetchRefusals) -> tuple[RefusedPod, ...] | None:
        """The last refusal for each owner; None: no answer."""
        path = f"/api/v1/namespaces/{asked.namespace}/events"
        params = {"fieldSelector": _FIELDS, "limit": str(_MOST)}
        try:
            events = self._client.get(path, Events, params=params).items
        except msgspec.DecodeError as error:
            log.warning("%s: %s", asked, error)
            return None
        except ApiError as error:
            self._tell(asked, error)
            return None
        last: dict[str, Event] = {}
        for event in sorted(events, key=lambda each: each.last):
            if why_not_created(event):
                last[event.involved_object.uid] = event
        return tuple(map(_refused, last.values()))

    def _tell(self, asked: FetchRefusals, error: ApiError) -> None:
        with self._lock:
            is_known, self._is_told = self._is_told, self._is_told or error.status == 403
        if error.status != 403:
            log.info("reading %s: %s", asked, error)
        elif not is_known:
            log.warning("no right to list Events: gangs do not say who refuses pods: %s", error)


def _refused(event: Event) -> RefusedPod:
    about = event.involved_object
    return RefusedPod(about.kind, about.name, about.uid, event.last, why_not_created(event))
