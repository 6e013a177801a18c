"""Renders the report as JSON, for programs. Bandwidths are estimates, in GB/s."""

import msgspec

from linkwise.simulator.report.model import PodPlace, PodReport, PodTimes, Report, WorkloadReport

_DIGITS = 3  # of seconds


class _Place(msgspec.Struct, frozen=True):
    node: str
    gpus: tuple[int, ...]  # indices
    link: str | None  # None: a lone GPU
    gbytes_per_s: float | None


class _Seconds(msgspec.Struct, frozen=True):
    """Since the first pod of the report was created; None: not yet, or not seen."""

    created: float
    bound: float | None
    running: float | None
    ended: float | None


class _Pod(msgspec.Struct, frozen=True):
    pod: str  # namespace/name
    member: str
    state: str  # runs, waits, ended or failed
    seconds: _Seconds
    place: _Place | None
    waits: str
    chosen: str  # why it is where it is
    stock_draws: tuple[_Place | None, ...]


class _WaitingMember(msgspec.Struct, frozen=True):
    pod: str  # namespace/name
    why: str


class _Workload(msgspec.Struct, frozen=True):
    name: str
    needed: int  # members that a gang needs to start; 0: no gang
    running: int
    waiting: int
    ended: int
    failed: int
    gbytes_per_s: float | None
    # From the last creation of a pod that is bound; None: none is.
    bound_after_seconds: float | None
    stock_gbytes_per_s: tuple[float | None, ...]  # of each draw
    stock_running: tuple[int, ...]  # of each draw
    stock_mean_gbytes_per_s: float | None  # over the draws in which it ran whole
    pods: tuple[_Pod, ...]
    without_gpus: tuple[_WaitingMember, ...]  # those that have no node


class _Node(msgspec.Struct, frozen=True):
    name: str
    machine: str
    gpus: int


class _MovedPod(msgspec.Struct, frozen=True):
    pod: str
    node: str  # where it was
    gpus: tuple[int, ...]
    why: str


class _Report(msgspec.Struct, frozen=True):
    good: bool
    problems: tuple[str, ...]
    compared: int  # pods that hold exactly the GPUs of their plan, if there is no problem
    seed: int
    rival: str  # who chose the devices in the draws: nvidia or random
    draws: int
    seconds: float  # from the creation of the first pod until this report
    nodes: tuple[_Node, ...]
    workloads: tuple[_Workload, ...]
    moved: tuple[_MovedPod, ...]
    to_come: tuple[str, ...]  # what is not created yet, and what for


def render_json(report: Report) -> str:
    """Return the text, with the line break at its end."""
    written = _Report(
        good=not report.problems,
        problems=report.problems,
        compared=report.compared,
        seed=report.seed,
        rival=report.rival.value,
        draws=report.draws,
        seconds=round(report.seconds, _DIGITS),
        nodes=tuple(_Node(node.name, node.title, node.gpu_count) for node in report.nodes),
        workloads=tuple(_workload(workload) for workload in report.workloads),
        moved=tuple(_MovedPod(m.pod, m.node, m.gpus, m.why) for m in report.moved),
        to_come=report.to_come,
    )
    return msgspec.json.format(msgspec.json.encode(written), indent=2).decode() + "\n"


def _workload(workload: WorkloadReport) -> _Workload:
    return _Workload(
        name=workload.name,
        needed=workload.needed,
        running=workload.running,
        waiting=len(workload.waiting),
        ended=workload.ended,
        failed=workload.failed,
        gbytes_per_s=workload.gbytes_per_s,
        bound_after_seconds=_rounded(workload.bound_after),
        stock_gbytes_per_s=workload.stock_gbytes_per_s,
        stock_running=workload.stock_running,
        stock_mean_gbytes_per_s=workload.stock_mean,
        pods=tuple(_pod(pod) for pod in workload.pods),
        without_gpus=tuple(_WaitingMember(m.pod, m.why) for m in workload.without_gpus),
    )


def _pod(pod: PodReport) -> _Pod:
    draws = tuple(_place(place) for place in pod.stock)
    waits = pod.waits if pod.state == "waits" else ""
    return _Pod(
        pod.pod,
        pod.member,
        pod.state,
        _seconds(pod.times),
        _place(pod.place),
        waits,
        pod.chosen,
        draws,
    )


def _seconds(times: PodTimes) -> _Seconds:
    return _Seconds(
        round(times.created, _DIGITS),
        _rounded(times.bound),
        _rounded(times.running),
        _rounded(times.ended),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, _DIGITS)


def _place(place: PodPlace | None) -> _Place | None:
    if place is None:
        return None
    if not place.talks:
        return _Place(place.node, place.gpus, None, None)
    return _Place(place.node, place.gpus, place.link.name, place.gbytes_per_s)
