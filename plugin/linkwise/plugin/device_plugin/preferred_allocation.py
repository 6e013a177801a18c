"""Remembers which pods wait on this node and what the kubelet has asked: the state behind advice.

`allocate.preferred`, which is pure, decides. This module has the lock, the marks of what each
container received, and the short wait for a pod that the kubelet knows before the plugin's own
watch shows it.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from threading import Condition

from linkwise.kube.objects import Pod
from linkwise.plugin.device_plugin.allocate import (
    Answer,
    Pick,
    Question,
    WaitingPod,
    askers,
    compared,
    preferred,
)
from linkwise.plugin.node.pods import read_pod
from linkwise.topology.annotations.plan import ContainerGpus
from linkwise.topology.machine.model import Machine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What Allocate named, against what was preferred just before (None: nothing was asked)."""

    pod: str  # namespace/name; empty if unknown
    container: str
    preferred: frozenset[str] | None
    as_preferred: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a container holds GPUs of its pod's plan only."""

    pod: str  # namespace/name
    container: str
    as_planned: bool


class Advisor:
    """`managed` is False for a resource that offers shares only. `pod_wait_seconds` bounds the wait
    for the asking pod. `watching` says whether the watch of pods is alive; if it is not, the
    advisor does not wait."""

    def __init__(
        self,
        *,
        node: str,
        resource: str,
        pick: Pick,
        managed: bool = True,
        pod_wait_seconds: float = 0.5,
        watching: Callable[[], bool] = lambda: True,
    ) -> None:
        self._node, self._resource, self._pick = node, resource, pick
        self._managed = managed
        self._pod_wait_seconds, self._watching = pod_wait_seconds, watching
        self._changed = Condition()
        self._waiting: dict[str, WaitingPod] = {}  # by uid, in first-seen order
        self._asked: Answer | None = None  # no Allocate has followed it yet
        self._complaints: dict[str, str] = {}  # by uid: said once
        self._left: dict[str, WaitingPod] = {}  # by uid: had a plan, waits no more, still exists
        self._judged: set[tuple[str, str]] = set()  # uid, container: compared with its plan

    @property
    def waiting(self) -> tuple[WaitingPod, ...]:
        with self._changed:
            return tuple(self._waiting.values())

    @property
    def has_plans(self) -> bool:
        """Whether plans give devices to containers that have not received theirs."""
        with self._changed:
            return any(pod.still_planned for pod in self._waiting.values())

    # What the watch of pods reports.

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        oldest_first = sorted(pods, key=_age)
        with self._changed:
            alive = {pod.metadata.uid for pod in oldest_first}
            for uid in (self._waiting.keys() | self._left.keys()) - alive:
                self._forget(uid)
            for pod in oldest_first:
                self._take(pod)

    def pod_event(self, kind: str, pod: Pod) -> None:
        with self._changed:
            if kind == "DELETED":
                self._forget(pod.metadata.uid)
            else:
                self._take(pod)

    def _forget(self, uid: str) -> None:
        for by_uid in (self._waiting, self._left, self._complaints):
            by_uid.pop(uid, None)
        self._judged = {judged for judged in self._judged if judged[0] != uid}

    def _take(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        reading = read_pod(pod, node=self._node, resource=self._resource, managed=self._managed)
        if reading.complaint and self._complaints.get(uid) != reading.complaint:
            self._complaints[uid] = reading.complaint
            key = pod.key
            log.warning("pod %s: %s", key, reading.complaint, extra={"pod": key})
        if reading.pod is None:
            gone = self._waiting.pop(uid, None)
            if gone is not None and any(container.gpus for container in gone.containers):
                self._left[uid] = gone
            return
        known = self._waiting.get(uid)
        self._waiting[uid] = replace(reading.pod, served=known.served if known else {})
        self._changed.notify_all()

    def account_for(self, in_use: Mapping[str, ContainerGpus]) -> None:
        """Mark as served the containers that podresources shows and that no question was put down
        to: their pods were admitted before the plugin started, or before its watch showed them.

        The kubelet serves containers in their order. If podresources shows one, those before it
        have been served too, even if they have ended since. GPUs that a question was put down to
        are left alone: if that was the wrong pod, the two pods swap their plans.
        """
        with self._changed:
            marked = {
                gpu for pod in self._waiting.values() for got in pod.served.values() for gpu in got
            }
            for uid, pod in self._waiting.items():
                got = in_use.get(pod.key, {})
                shown = [place for place, c in enumerate(pod.containers) if c.name in got]
                held = {gpu for gpus in got.values() for gpu in gpus}
                if shown and marked.isdisjoint(held):
                    served = pod.containers[: shown[-1] + 1]
                    self._waiting[uid] = replace(
                        pod, served={c.name: tuple(got.get(c.name, ())) for c in served}
                    )

    def judge(self, in_use: Mapping[str, ContainerGpus]) -> list[Judgement]:
        """Compare what planned containers really hold with their pods' plans, each one once."""
        with self._changed:
            judgements: list[Judgement] = []
            for uid, pod in (*self._waiting.items(), *self._left.items()):
                planned = {gpu for container in pod.containers for gpu in container.gpus}
                for container, gpus in in_use.get(pod.key, {}).items():
                    if planned and (uid, container) not in self._judged:
                        self._judged.add((uid, container))
                        judgements.append(Judgement(pod.key, container, planned >= set(gpus)))
            return judgements

    def kubelet_restarted(self) -> None:
        """The new kubelet asks again for what the old one asked and never allocated."""
        with self._changed:
            asked, self._asked = self._asked, None
            if asked is not None and asked.pod is not None:
                self._unmark(asked.pod.uid, asked.container)

    # What the kubelet asks.

    def ask(self, machine: Machine, question: Question) -> Answer:
        """The devices to prefer; marks their container as served. Raises what `pick` raises."""
        with self._changed:
            if self._watching():
                self._changed.wait_for(
                    lambda: any(askers(question, tuple(self._waiting.values()))),
                    self._pod_wait_seconds,
                )
            answer = preferred(machine, question, tuple(self._waiting.values()), self._pick)
            if answer.pod is not None:
                self._mark(answer.pod.uid, answer.container, answer.gpus)
            self._asked = answer
            return answer

    def compare(
        self, machine: Machine, question: Question, answer: Answer, theirs: Collection[str]
    ) -> Answer:
        """The better of *answer*, which `ask` gave and which follows no plan, and *theirs*, which
        the vendor's plugin prefers. The result replaces *answer*."""
        with self._changed:
            waiting = tuple(self._waiting.values())
            better = compared(machine, question, waiting, answer, theirs)
            if self._asked is answer:
                self._asked = better
                if better.pod is not None:
                    self._mark(better.pod.uid, better.container, better.gpus)
            return better

    def allocated(self, gpus: frozenset[str]) -> Allocation:
        """Record what a container really received."""
        with self._changed:
            asked, self._asked = self._asked, None
            if asked is not None and len(asked.gpus) == len(gpus):
                if asked.pod is not None:
                    self._mark(asked.pod.uid, asked.container, tuple(sorted(gpus)))
                wanted = frozenset(asked.gpus)
                key = asked.pod.key if asked.pod else ""
                return Allocation(key, asked.container, wanted, as_preferred=wanted == gpus)
            return self._unasked(gpus)

    def _unasked(self, gpus: frozenset[str]) -> Allocation:
        """If an ended init container's GPUs, or the aligned ones, are just enough, the kubelet does
        not ask."""
        question = Question(available=gpus, must=gpus, size=len(gpus))
        found = list(askers(question, tuple(self._waiting.values())))
        found.sort(key=lambda asker: not gpus <= asker[0].own)  # stable
        if not found:
            return Allocation("", "", None, as_preferred=True)
        pod, container = found[0]
        self._mark(pod.uid, container.name, tuple(sorted(gpus)))
        return Allocation(pod.key, container.name, None, as_preferred=True)

    def _mark(self, uid: str, container: str, gpus: tuple[str, ...]) -> None:
        pod = self._waiting.get(uid)
        if pod is not None:
            self._waiting[uid] = replace(pod, served={**pod.served, container: gpus})

    def _unmark(self, uid: str, container: str) -> None:
        pod = self._waiting.get(uid)
        if pod is not None:
            served = {name: gpus for name, gpus in pod.served.items() if name != container}
            self._waiting[uid] = replace(pod, served=served)


def _age(pod: Pod) -> tuple[float, str, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created else 0.0, pod.metadata.namespace, pod.metadata.name)
