"""The advisor of each resource: the managed one, and those under which a vendor's plugin offers
shares of GPUs. All get the same news about pods."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock

from linkwise.kube.objects import Pod
from linkwise.plugin.device_plugin.allocate import Question, Source
from linkwise.plugin.device_plugin.preferred_allocation import Advisor, Judgement
from linkwise.plugin.metrics import Metrics
from linkwise.topology.annotations.plan import ContainerGpus, InUse
from linkwise.topology.machine.model import Machine

log = logging.getLogger(__name__)


class ShareAdvice:
    """Asks the advisor of one resource which shares the kubelet should take."""

    def __init__(self, resource: str, advisor: Advisor, metrics: Metrics) -> None:
        self._resource, self._advisor, self._metrics = resource, advisor, metrics

    def prefer(
        self,
        machine: Machine,
        questions: Sequence[Question],
        others: Sequence[Callable[[], Sequence[str]]],
    ) -> list[tuple[str, ...]] | None:
        """The shares to prefer for each question; None if no pod's plan matters for any, so that
        the vendor's answer stands. *others* ask the vendor. Never raises."""
        try:
            answers = [self._advisor.ask(machine, question) for question in questions]
            planned = any(answer.source is Source.PLAN for answer in answers)
            if not (planned or self._advisor.has_plans):
                return None
            for place, (question, other) in enumerate(zip(questions, others, strict=True)):
                if answers[place].source is not Source.PLAN:
                    answers[place] = self._advisor.compare(
                        machine, question, answers[place], other()
                    )
        except Exception:  # an error here would fail the pod for good; any shares are better
            log.exception("%s: GetPreferredAllocation of shares", self._resource)
            return None
        for answer in answers:
            self._metrics.preferred.labels(answer.source.value).inc()
            pod = f"{answer.pod.key}/{answer.container}" if answer.pod else "a pod not seen yet"
            about = {"pod": answer.pod.key} if answer.pod else {}
            log.info("%s: preferred %s for %s", self._resource, list(answer.gpus), pod, extra=about)
        return [answer.gpus for answer in answers]

    def allocated(self, ids: frozenset[str]) -> None:
        """A container has received these shares."""
        self._advisor.allocated(ids)

    def kubelet_restarted(self) -> None:
        self._advisor.kubelet_restarted()


class Advisors:
    """`make` makes the advisor of a resource."""

    def __init__(self, managed: str, make: Callable[[str], Advisor], metrics: Metrics) -> None:
        self._make, self._metrics, self._managed_name = make, metrics, managed
        self._lock = Lock()
        self._pods: dict[str, Pod] = {}  # by uid: for an advisor that begins later
        self.managed = make(managed)
        self._of: dict[str, Advisor] = {managed: self.managed}

    def on_shares(self, resource: str) -> ShareAdvice:
        with self._lock:
            if resource not in self._of:
                self._of[resource] = self._make(resource)
                self._of[resource].replace_pods(self._pods.values())
            return ShareAdvice(resource, self._of[resource], self._metrics)

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        with self._lock:
            self._pods = {pod.metadata.uid: pod for pod in pods}
            for advisor in self._of.values():
                advisor.replace_pods(self._pods.values())

    def pod_event(self, kind: str, pod: Pod) -> None:
        with self._lock:
            if kind == "DELETED":
                self._pods.pop(pod.metadata.uid, None)
            else:
                self._pods[pod.metadata.uid] = pod
            for advisor in self._of.values():
                advisor.pod_event(kind, pod)

    def account_for(self, in_use: InUse) -> None:
        """Take note of what the kubelet's podresources shows."""
        for resource, advisor in self._all().items():
            advisor.account_for(self._held(resource, in_use))

    def judge(self, in_use: InUse) -> list[Judgement]:
        """Compare what planned containers really hold with their pods' plans, each one once."""
        return [
            judgement
            for resource, advisor in self._all().items()
            for judgement in advisor.judge(self._held(resource, in_use))
        ]

    def _all(self) -> Mapping[str, Advisor]:
        with self._lock:
            return dict(self._of)

    def _held(self, resource: str, in_use: InUse) -> Mapping[str, ContainerGpus]:
        """Which pod has which devices of one resource."""
        held: dict[str, ContainerGpus] = {}
        if resource == self._managed_name:
            held.update(in_use.pods)
        for pod, containers in in_use.shares.items():
            ids = {name: of[resource] for name, of in containers.items() if resource in of}
            if ids:
                held[pod] = {**held.get(pod, {}), **ids}
        return held
