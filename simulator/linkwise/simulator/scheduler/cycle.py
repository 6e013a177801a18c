"""Tries one pod as kube-scheduler does: filter, ask the extender, score, choose.

The cycle tries a nominated node first and alone, and all nodes only if that one fails. It asks the
extender about the nodes that passed the plugins, if there are any. If one node is left, it skips
scoring.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.objects import Pod
from linkwise.simulator.scheduler import scoring
from linkwise.simulator.scheduler.cache import SchedulerCache
from linkwise.simulator.scheduler.extender import ExtenderClient, ExtenderError
from linkwise.simulator.scheduler.queue import EXTENDER

log = logging.getLogger(__name__)

_EXTENDER_SHARE = 10  # MaxNodeScore / MaxExtenderPriority: an extender's 10 is a plugin's 100


@dataclass(slots=True)
class Unfit:
    """No node fits. Maps a node (or an extender's own key) to its rejection. *nowhere*: the one
    that holds for every node, whatever the nodes are."""

    nodes: int
    rejections: dict[str, Rejection] = field(default_factory=dict)
    nowhere: Rejection | None = None

    @property
    def rejected_by(self) -> frozenset[str]:
        return frozenset(rejection.plugin for rejection in self.rejections.values())

    @property
    def reasons(self) -> Mapping[str, Sequence[str]]:
        return {name: rejection.reasons for name, rejection in self.rejections.items()}


class Cycle:
    """Used by one thread. *lock* guards *cluster*; the cycle releases it during calls to the
    extender."""

    def __init__(
        self,
        cluster: SchedulerCache,
        lock: AbstractContextManager[object],
        extender: ExtenderClient | None,
        *,
        seed: int,
        percentage_of_nodes_to_score: int,
        extender_weight: int,
    ) -> None:
        self._cluster, self._lock, self._extender = cluster, lock, extender
        self._random = random.Random(seed)
        self._percentage = percentage_of_nodes_to_score
        self._weight = extender_weight
        self._next_start = 0  # where the next search for feasible nodes starts

    def schedule(self, pod: Pod) -> str | Unfit:
        """Return the node for *pod*, or why there is none. Raises ExtenderError."""
        with self._lock:
            names = self._cluster.names()
            nowhere = self._cluster.nowhere(pod)
        if nowhere is not None:
            return Unfit(len(names), dict.fromkeys(names, nowhere), nowhere)
        unfit = Unfit(len(names))
        feasible = self._nominated(pod, unfit) or self._all(pod, names, unfit)
        if not feasible:
            return unfit
        if len(feasible) == 1:
            return feasible[0]
        return self._best(pod, feasible)

    def _nominated(self, pod: Pod, unfit: Unfit) -> list[str]:
        name = pod.status.nominated_node_name
        with self._lock:
            if not name or self._cluster.node(name) is None:
                return []
            passed = self._plugins_pass(pod, name, unfit)
        try:
            return self._extender_passes(pod, [name], unfit) if passed else []
        except ExtenderError as error:  # only logged: the cycle tries all nodes next
            log.info("%s: nominated node %s: %s", pod.metadata.name, name, error)
            return []

    def _all(self, pod: Pod, names: Sequence[str], unfit: Unfit) -> list[str]:
        enough = self._enough(len(names))
        passed: list[str] = []
        seen = 0
        with self._lock:
            for offset in range(len(names)):
                if len(passed) == enough:
                    break
                name = names[(self._next_start + offset) % len(names)]
                seen += 1
                gone = self._cluster.node(name) is None
                if not gone and self._plugins_pass(pod, name, unfit):
                    passed.append(name)
        self._next_start = (self._next_start + seen) % len(names) if names else 0
        return self._extender_passes(pod, passed, unfit) if passed else []

    def _enough(self, nodes: int) -> int:
        return scoring.nodes_to_find(nodes, self._percentage)

    def _plugins_pass(self, pod: Pod, name: str, unfit: Unfit) -> bool:
        rejection = self._cluster.rejection(pod, name)
        if rejection is not None:
            unfit.rejections[name] = rejection
        return rejection is None

    def _extender_passes(self, pod: Pod, names: list[str], unfit: Unfit) -> list[str]:
        if self._extender is None or not self._extender.is_interested(pod):
            return names
        answer = self._extender.filter(pod, names)
        for name, reason in answer.failed.items():
            unfit.rejections[name] = Rejection(EXTENDER, (reason,), resolvable=True)
        for name, reason in answer.unresolvable.items():  # overrides the same node in *failed*
            unfit.rejections[name] = Rejection(EXTENDER, (reason,), resolvable=False)
        passed = set(answer.passed)
        silent = [n for n in names if n not in passed and n not in unfit.rejections]
        for name in silent:  # no reason in the event, and no candidate for preemption
            unfit.rejections[name] = Rejection(EXTENDER, (), resolvable=False)
        return [name for name in names if name in passed]

    def _best(self, pod: Pod, names: list[str]) -> str:
        with self._lock:
            there = [name for name in names if self._cluster.node(name) is not None]
            scores = {name: self._cluster.score(pod, name) for name in there}
        if not scores:
            return names[0]  # all nodes went away during the call: the bind will fail
        if self._extender is not None and self._extender.is_interested(pod):
            for name, score in self._extender.prioritize(pod, names).items():
                if name in scores:
                    scores[name] += score * self._weight * _EXTENDER_SHARE
        best = max(scores.values())
        return self._random.choice([name for name, score in scores.items() if score == best])
