"""When the pods of a listing were created, got their nodes and ended.

Reads kubectl's output: `metadata.creationTimestamp`, the condition PodScheduled or
`status.startTime`, and the containers' `finishedAt`. Times are seconds since 1970.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from linkwise.kube.objects import Condition, ContainerStatus, Pod, PodStatus
from linkwise.pods.annotations import demand_of, resource_of


class _Span(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    started_at: datetime | None = None
    finished_at: datetime | None = None


class _State(msgspec.Struct, frozen=True, omit_defaults=True):
    running: _Span | None = None
    terminated: _Span | None = None


class PastContainer(ContainerStatus, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    state: _State = _State()


class PastCondition(Condition, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    last_transition_time: datetime | None = None


class PastStatus(PodStatus, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    conditions: tuple[PastCondition, ...] = ()
    start_time: datetime | None = None
    init_container_statuses: tuple[PastContainer, ...] = ()
    container_statuses: tuple[PastContainer, ...] = ()


class PastPod(Pod, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A Pod, with the times that only its history needs."""

    status: PastStatus = PastStatus()


@dataclass(frozen=True, slots=True)
class Life:
    """A pod that takes GPUs."""

    pod: Pod
    gpus: int
    created: float
    bound: float | None  # when it got its node; None: it waits
    ended: float | None  # None: it runs, or waits

    @property
    def key(self) -> str:
        return self.pod.key


@dataclass(frozen=True, slots=True)
class Useless:
    """A pod with GPUs that says too little to be replayed, and why."""

    key: str
    because: str


def ended_at(start: datetime | None, end: datetime | None) -> PastContainer:
    """Return the end of a container that ran from *start* to *end*; None: it has not ended."""
    if end is None:
        return PastContainer(state=_State(running=_Span(start)))
    return PastContainer(state=_State(terminated=_Span(start, end)))


def life_of(
    pod: PastPod, resources: tuple[str, ...], vanished: float | None
) -> Life | Useless | None:
    """Return None if it takes no GPUs. *vanished*: its last listing, if a later one lacks it."""
    key, resource = pod.key, resource_of(pod, resources)
    try:
        gpus = demand_of(pod, resource).gpus
    except ValueError as error:
        return Useless(key, f"{resource}: {error}")
    if not gpus:
        return None
    created = max(_seconds(pod.metadata.creation_timestamp), default=None)
    if created is None:
        return Useless(key, "no creationTimestamp")
    bound, ended = _bound(pod), _ended(pod)
    over = pod.has_ended
    if bound is None and (over or vanished is not None):
        return Useless(key, "gone before it got a node")
    if bound is None and pod.spec.node_name:
        return Useless(key, "nothing says when it got its node")
    if over and ended is None:
        return Useless(key, "nothing says when it ended")
    if not over:
        ended = vanished
    if bound is not None:
        bound = max(bound, created)
        ended = None if ended is None else max(ended, bound)
    return Life(pod, gpus, created, bound, ended)


def newest(pods: Iterable[PastPod]) -> float:
    """Return the latest time in these pods; 0.0 for none. The listing is of then, or later."""
    return max((time for pod in pods for time in _times(pod)), default=0.0)


def further(one: PastPod, other: PastPod) -> PastPod:
    """Of two listings of a pod, return the one that knows more of its life."""
    return one if _progress(one) > _progress(other) else other


def _progress(pod: PastPod) -> tuple[bool, bool, float]:
    over = pod.has_ended
    return over, bool(pod.spec.node_name), max(_times(pod), default=0.0)


def _times(pod: PastPod) -> Iterator[float]:
    status = pod.status
    yield from _seconds(pod.metadata.creation_timestamp, status.start_time)
    yield from _seconds(*(condition.last_transition_time for condition in status.conditions))
    for span in _spans(status):
        yield from _seconds(span.started_at, span.finished_at)


def _spans(status: PastStatus) -> Iterator[_Span]:
    for container in (*status.init_container_statuses, *status.container_statuses):
        state = container.state
        yield from (span for span in (state.running, state.terminated) if span is not None)


def _bound(pod: PastPod) -> float | None:
    scheduled = _seconds(
        *(
            condition.last_transition_time
            for condition in pod.status.conditions
            if (condition.type, condition.status) == ("PodScheduled", "True")
        )
    )
    begun = sorted(_seconds(*(span.started_at for span in _spans(pod.status))))
    return next(iter((*scheduled, *_seconds(pod.status.start_time), *begun)), None)


def _ended(pod: PastPod) -> float | None:
    """Return the end of its last container; for an evicted pod, whose containers have none, when it
    stopped being ready."""
    finished = _seconds(*(span.finished_at for span in _spans(pod.status)))
    unready = _seconds(
        *(
            condition.last_transition_time
            for condition in pod.status.conditions
            if condition.type in ("Ready", "ContainersReady") and condition.status == "False"
        )
    )
    return max(finished or unready or _seconds(pod.metadata.deletion_timestamp), default=None)


def _seconds(*times: datetime | None) -> list[float]:
    """Return the known times; one without a zone is UTC, as Kubernetes writes them."""
    return [
        (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        for time in times
        if time is not None
    ]
