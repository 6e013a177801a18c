"""Reads from the API server when pods were bound, began to run and ended.

The cache keeps none of it: 20,000 pods would pay for what few people look at. A pod is read when
its page is worked out, and again only once it has got further. It is a list of one pod, because
the extender may list pods and not get them; `resourceVersion=0` has the API server answer from
memory.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from threading import Lock
from urllib.parse import quote

import msgspec

from linkwise.drawing.times import PodTimes
from linkwise.extender.state.records import PodRecord
from linkwise.kube.client import KubeClient, Params
from linkwise.kube.errors import ApiError

log = logging.getLogger(__name__)
_MOST_SECONDS = 2.0  # for all reads of one page
_REST_SECONDS = 10.0  # without a read after one that failed
_MOST_KEPT = 4096  # pods


class _Read(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class _Running(_Read, frozen=True):
    started_at: datetime | None = None


class _Terminated(_Read, frozen=True):
    started_at: datetime | None = None
    finished_at: datetime | None = None


class _State(_Read, frozen=True):
    running: _Running | None = None
    terminated: _Terminated | None = None


class _Container(_Read, frozen=True):
    state: _State = _State()


class _Condition(_Read, frozen=True):
    type: str
    status: str
    last_transition_time: datetime | None = None


class _Status(_Read, frozen=True):
    conditions: tuple[_Condition, ...] = ()
    container_statuses: tuple[_Container, ...] = ()


class _Meta(_Read, frozen=True):
    uid: str = ""


class _Pod(_Read, frozen=True):
    metadata: _Meta = _Meta()
    status: _Status = _Status()


class _Pods(_Read, frozen=True):
    items: tuple[_Pod, ...] = ()


class PodTimesReader:
    """Safe for threads."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._lock = Lock()  # guards the fields below
        self._kept: OrderedDict[tuple[str, bool, bool], PodTimes] = OrderedDict()
        self._rests_until = 0.0

    def __call__(self, pods: Sequence[PodRecord]) -> Mapping[str, PodTimes]:
        """The times of those of *pods* that are known, by uid. A pod without a node has none."""
        found = {}
        with suppress(ApiError, msgspec.MsgspecError), self._client.within(_MOST_SECONDS):
            for pod in pods:
                if (pod.node or pod.ended) and (times := self._times(pod)) is not None:
                    found[pod.uid] = times
        return found

    def _times(self, pod: PodRecord) -> PodTimes | None:
        """Raises ApiError and MsgspecError."""
        key = pod.uid, pod.running, pod.ended
        with self._lock:
            kept = self._kept.get(key)
            rests = self._clock() < self._rests_until
        if kept is not None or rests:
            return kept
        try:
            read = self._read(pod)
        except (ApiError, msgspec.MsgspecError) as error:
            log.info("when pod %s was bound is not known: %s", pod.key, error)
            with self._lock:
                self._rests_until = self._clock() + _REST_SECONDS
            raise
        if read is not None:
            with self._lock:
                self._kept[key] = read
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return read

    def _read(self, pod: PodRecord) -> PodTimes | None:
        path = f"/api/v1/namespaces/{quote(pod.ref.namespace, safe='')}/pods"
        named = f"metadata.name={_escaped(pod.ref.name)}"
        params: Params = {"fieldSelector": named, "resourceVersion": 0}
        listed = self._client.get(path, _Pods, params=params)
        same = (each for each in listed.items if each.metadata.uid == pod.uid)
        return next((_times_of(each.status, pod.created) for each in same), None)


def _escaped(value: str) -> str:
    """As the grammar of field selectors wants it."""
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def _times_of(status: _Status, created: float) -> PodTimes:
    scheduled = [
        each.last_transition_time
        for each in status.conditions
        if each.type == "PodScheduled" and each.status == "True"
    ]
    states = [container.state for container in status.container_statuses]
    began = [
        state.running.started_at
        if state.running
        else state.terminated.started_at
        if state.terminated
        else None
        for state in states
    ]
    ended = [state.terminated.finished_at if state.terminated else None for state in states]
    return PodTimes(created, _last(scheduled), _last(began), _last(ended))


def _last(moments: Sequence[datetime | None]) -> float | None:
    """None if there are none, or if one is missing."""
    known = [moment.timestamp() for moment in moments if moment is not None]
    return max(known) if known and len(known) == len(moments) else None
