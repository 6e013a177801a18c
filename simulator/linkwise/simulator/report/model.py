"""The result of a run: which pod holds which GPUs, what they are worth, and what is wrong.

`text` and `html` print the same `Report`, so they cannot disagree. GPUs come from the kubelet's
podresources, never from the plan. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean
from string import ascii_uppercase
from typing import NamedTuple

from linkwise.drawing.times import PodTimes
from linkwise.drawing.words import named_gpus
from linkwise.topology.machine.model import Machine
from linkwise.topology.vendors.known import RESOURCES

FREE = "·"


class Rival(Enum):
    """Who chooses the devices of a node in the baseline."""

    NVIDIA = "nvidia"  # as NVIDIA's device plugin prefers them
    RANDOM = "random"  # the kubelet, of devices without a preference

    @property
    def words(self) -> str:
        return "NVIDIA's choice" if self is Rival.NVIDIA else "random GPUs"


@dataclass(frozen=True, slots=True)
class PodPlace:
    """The GPUs that a pod holds, by index, and the ring through them."""

    node: str
    gpus: tuple[int, ...]
    link: str  # in the vendor's words
    gbytes_per_s: float

    @property
    def talks(self) -> bool:
        """False for a lone GPU: its bandwidth means nothing."""
        return len(self.gpus) > 1


_START = PodTimes(0.0)


@dataclass(frozen=True, slots=True)
class PodReport:
    """One pod. `stock` has a place, or None, for each draw of the baseline."""

    pod: str  # namespace/name
    member: str  # completion index, or another text that is unique in the workload
    place: PodPlace | None
    times: PodTimes  # since the first pod of the report was created
    waits: str = ""  # why there is no place
    invalid: bool = False  # it waits because what it asks for is wrong
    ended: bool = False  # it has succeeded; the place is where it ran
    chosen: str = ""  # why it is in this place, and not in the next best
    stock: tuple[PodPlace | None, ...] = ()

    @property
    def failed(self) -> bool:
        return self.times.ended is not None and not self.ended

    @property
    def state(self) -> str:
        """Return "ended", "failed", "runs" or "waits"."""
        if self.ended:
            return "ended"
        if self.failed:
            return "failed"
        return "runs" if self.place else "waits"


@dataclass(frozen=True, slots=True)
class WaitingMember:
    """A pod without GPUs that has no node, of a workload whose other pods take GPUs."""

    pod: str  # namespace/name
    workload: str
    why: str


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """A gang, a Job or a lone Pod, with its letter in the drawings."""

    name: str
    letter: str
    pods: tuple[PodReport, ...]
    needed: int = 0  # members that a gang needs to start; 0: not a gang
    # GB/s of a gang as one communicator, else of the slowest pod; None for lone GPUs only.
    gbytes_per_s: float | None = None
    stock_gbytes_per_s: tuple[float | None, ...] = ()  # the same for each draw
    without_gpus: tuple[WaitingMember, ...] = ()

    @property
    def lacks(self) -> Iterator[str]:
        """Yield what keeps a gang from being whole although its pods with GPUs run."""
        if self.needed and self.running:
            for member in self.without_gpus:
                yield (
                    f"{self.name}: {self.running} pods have GPUs, and {member.pod}, which takes "
                    f"none, never ran: {member.why}"
                )

    @property
    def running(self) -> int:
        return sum(1 for pod in self.pods if pod.state == "runs")

    @property
    def ended(self) -> int:
        return sum(1 for pod in self.pods if pod.ended)

    @property
    def failed(self) -> int:
        return sum(1 for pod in self.pods if pod.failed)

    @property
    def waiting(self) -> tuple[PodReport, ...]:
        return tuple(pod for pod in self.pods if pod.state == "waits")

    @property
    def chosen(self) -> tuple[tuple[str, str], ...]:
        """Return the reasons of the places, each with the first member that has it."""
        first: dict[str, str] = {}
        for pod in self.pods:
            if pod.place and pod.chosen:
                first.setdefault(pod.chosen, pod.member)
        return tuple((member, reason) for reason, member in first.items())

    @property
    def bound(self) -> tuple[PodReport, ...]:
        """Return the pods that have got a node and GPUs, even if they have ended since."""
        return tuple(pod for pod in self.pods if pod.times.bound is not None)

    @property
    def bound_after(self) -> float | None:
        """Return the seconds from the creation of the last of the pods that are bound until all of
        them were; None without any."""
        times = [pod.times for pod in self.bound]
        bound = [time.bound for time in times if time.bound is not None]
        return max(bound) - max(time.created for time in times) if bound else None

    @property
    def stock_speeds(self) -> tuple[float, ...]:
        """Return the GB/s of the draws in which enough pods have a place."""
        both = zip(self.stock_running, self.stock_gbytes_per_s, strict=True)
        return tuple(speed for ran, speed in both if ran >= self._whole and speed is not None)

    @property
    def stock_mean(self) -> float | None:
        """Return their mean."""
        return fmean(self.stock_speeds) if self.stock_speeds else None

    @property
    def stock_wholes(self) -> int:
        """Return in how many draws enough pods have a place."""
        return sum(1 for count in self.stock_running if count >= self._whole)

    @property
    def stock_running(self) -> tuple[int, ...]:
        """Return how many pods have a place in each draw."""
        draws = zip(*(pod.stock for pod in self.pods), strict=True)
        return tuple(sum(place is not None for place in draw) for draw in draws)

    @property
    def _whole(self) -> int:
        return self.needed or 1


@dataclass(frozen=True, slots=True)
class NodeReport:
    name: str
    title: str  # of the machine
    machine: Machine

    @property
    def gpu_count(self) -> int:
        return len(self.machine.gpus)


@dataclass(frozen=True, slots=True)
class MovedPod:
    """A pod that the extender evicted so that others fit."""

    pod: str
    node: str  # where it was
    gpus: tuple[int, ...]
    why: str  # what the Event on it says

    @property
    def was(self) -> str:
        return f"{self.node}, {named_gpus(self.gpus)}"


@dataclass(frozen=True, slots=True)
class Report:
    nodes: tuple[NodeReport, ...]
    workloads: tuple[WorkloadReport, ...]
    compared: int = 0  # pods whose plan was compared with the kubelet's list
    faults: tuple[str, ...] = ()  # violations; if there are any, the run has failed
    draws: int = 0  # of the baseline
    seed: int = 0
    rival: Rival = Rival.NVIDIA
    seconds: float = 0.0  # from the creation of the first pod until this report
    moved: tuple[MovedPod, ...] = ()
    to_come: tuple[str, ...] = ()  # what is not created yet, and what for

    @property
    def waiting(self) -> tuple[PodReport, ...]:
        return tuple(pod for workload in self.workloads for pod in workload.waiting)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return why this is no good result, in words. A pod that only waits for room is none."""
        pods = [pod for _, pod in self.pods]
        placed = any(pod.place or pod.ended for pod in pods)
        return (
            *self.faults,
            *(lack for workload in self.workloads for lack in workload.lacks),
            *(f"{pod.pod}: {pod.waits}" for pod in pods if pod.invalid or pod.failed),
            *(() if placed else (_nothing_placed(len(pods), self.to_come),)),
        )

    @property
    def gain(self) -> Mapping[str, float]:
        """Return, for each workload that communicates, and ran whole with Linkwise and in a draw
        without it, its GB/s divided by the mean of these draws."""
        return {
            workload.name: workload.gbytes_per_s / alone
            for workload in self.workloads
            if workload.gbytes_per_s is not None and (alone := workload.stock_mean)
        }

    @property
    def pods(self) -> Iterator[tuple[WorkloadReport, PodReport]]:
        return ((workload, pod) for workload in self.workloads for pod in workload.pods)


@dataclass(frozen=True, slots=True)
class GpuTenant:
    """The pod that holds a GPU, and its workload."""

    workload: WorkloadReport
    pod: PodReport

    @property
    def short(self) -> str:
        """Return the workload's letter, with the member if there are several: `A3`."""
        if len(self.workload.pods) == 1:
            return self.workload.letter
        return f"{self.workload.letter}{self.pod.member}"


def tenants(report: Report, node: str) -> dict[int, GpuTenant]:
    """Return the holder of each GPU index on *node*."""
    return {
        gpu: GpuTenant(workload, pod)
        for workload, pod in report.pods
        if pod.place and pod.place.node == node and not pod.ended
        for gpu in pod.place.gpus
    }


def stock_tenants(report: Report, node: str, draw: int = 0) -> dict[int, GpuTenant]:
    """Return the same for one draw of the baseline."""
    return {
        gpu: GpuTenant(workload, pod)
        for workload, pod in report.pods
        if draw < len(pod.stock) and (place := pod.stock[draw]) and place.node == node
        for gpu in place.gpus
    }


def letters() -> Iterator[str]:
    """Yield A, B … Z, AA, AB …: a letter for each workload, in the order of the manifests."""
    yield from ascii_uppercase
    for first in letters():
        for second in ascii_uppercase:
            yield first + second


class GangSeen(NamedTuple):
    """A pod's gang: `minimum` members start together, those without GPUs too."""

    name: str
    minimum: int


@dataclass(frozen=True, slots=True)
class SeenPod:
    """The record of one pod: its plan at the binding, and the kubelet's list."""

    pod: str
    workload: str
    needed: int
    member: str = ""
    times: PodTimes = _START  # of a clock that all pods of a run share
    node: str = ""
    planned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # container -> GPU uuids
    # Container -> GPUs that it requests, where more are planned: it gets some of an ended init
    # container's, which the kubelet chooses by itself.
    wanted: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    had: frozenset[str] = frozenset()  # all GPUs that it was seen to hold
    gang: str = ""  # as the extender calls it; empty: the workload is the gang, if `needed`
    ended: bool = False  # succeeded, and gave its GPUs back
    waits: str = ""  # why it holds none
    invalid: bool = False  # what it asks for is wrong
    chosen: str = ""  # why it is where it is

    @property
    def held_gpus(self) -> frozenset[str]:
        return frozenset(uuid for uuids in self.held.values() for uuid in uuids)


def faults(seen: Iterable[SeenPod]) -> tuple[str, ...]:
    """Return every violation: GPUs that differ from the plan, a GPU held twice, half a gang."""
    pods = tuple(seen)
    return (*_unplanned(pods), *_held_twice(pods), *_half_gangs(pods))


def _unplanned(pods: tuple[SeenPod, ...]) -> Iterator[str]:
    for pod in pods:
        # The plan still names an ended init container; the kubelet's list does not.
        for container, gpus in pod.held.items():
            planned = pod.planned.get(container)
            if planned is None:
                yield f"{pod.pod}, container {container}: holds {_list(gpus)} without a plan"
            elif not set(gpus) <= set(planned) or len(gpus) != pod.wanted.get(
                container, len(planned)
            ):
                yield (
                    f"{pod.pod}, container {container}: planned {_list(planned)}, "
                    f"holds {_list(gpus)}"
                )


def _held_twice(pods: tuple[SeenPod, ...]) -> Iterator[str]:
    holders: dict[str, str] = {}
    for pod in pods:
        for gpu in sorted(pod.held_gpus):
            if gpu in holders:
                yield f"{gpu} on {pod.node}: held by {holders[gpu]} and by {pod.pod}"
            holders[gpu] = pod.pod


def _half_gangs(pods: tuple[SeenPod, ...]) -> Iterator[str]:
    gangs: dict[str, list[SeenPod]] = {}
    for pod in pods:
        if pod.needed:
            gangs.setdefault(pod.gang or pod.workload, []).append(pod)
    for name, members in gangs.items():
        running = sum(1 for member in members if member.held or member.ended)
        needed = max(member.needed for member in members)
        if 0 < running < needed:
            yield f"gang {name}: {running} of {needed} members run"


def _list(gpus: Iterable[str]) -> str:
    return ", ".join(sorted(gpus))


def _nothing_placed(pods: int, to_come: Sequence[str]) -> str:
    if not pods and to_come:
        return "no pod has GPUs: those that take some are not created yet"
    if not pods:
        of = " or ".join(RESOURCES)
        return f"no pod takes GPUs: expected a container with a limit of {of}"
    return f"no pod has GPUs: {pods} wait"
