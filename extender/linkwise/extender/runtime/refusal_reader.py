"""Reads from the API server why pods of a namespace could not be created."""

import logging
from collections.abc import Iterator
from threading import Lock

import msgspec

from linkwise.extender.gangs.uncreated import FetchRefusals, RefusedPod
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.kube.events import Event, Events, why_not_created
from linkwise.kube.quoted import one_line

log = logging.getLogger(__name__)
# The warnings of which there are many are about pods that exist.
_NOT = "FailedScheduling", "GangWaiting", "Unhealthy", "BackOff", "FailedMount"
_FIELDS = ",".join(("type=Warning", *(f"reason!={reason}" for reason in _NOT)))
# An Event's message may have a megabyte: few are read at once, and only the beginning is kept.
_PAGE, _MOST_PAGES = 10, 50


class RefusalReads:
    """Safe for threads."""

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
