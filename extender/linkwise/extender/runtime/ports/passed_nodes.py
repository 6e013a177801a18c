"""The nodes that `filter` returned for each pod: kube-scheduler may bind the pod to these.

kube-scheduler binds a pod to a node only after `filter` returned that node for it. Any other bind
call is a mistake, or comes from another program. Earlier answers count too: for a PodGroup,
kube-scheduler tries several placements and binds to the best one.

The record is in this process's memory only. After a restart, the bind of a pod without a plan is
refused once, and kube-scheduler schedules it again. A planned pod carries its plan and needs no
record.
"""

from collections import deque
from threading import Lock

from linkwise.kube.objects import Pod

# At most some 20 MB in total. By default kube-scheduler sends 500 of 5,000 nodes, and `filter`
# usually returns one of them.
_MOST_NAMES = 200_000
_MOST_ANSWERS = 256  # for one pod: more than the domains in which a PodGroup is tried

_Answer = tuple[str, tuple[str, ...]]
"""schedulerName, nodes."""


class PassedNodes:
    """Thread-safe."""

    def __init__(self, most_names: int = _MOST_NAMES) -> None:
        self._most_names, self._names = most_names, 0
        self._answers: dict[str, deque[_Answer]] = {}  # uid -> answers, oldest first
        self._lock = Lock()

    def note(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        """Record an answer of `filter`; *pod* is as kube-scheduler sent it."""
        if not nodes:
            return
        with self._lock:
            answers = self._take(pod.metadata.uid)
            answers.append((pod.spec.scheduler_name, nodes))
            self._answers[pod.metadata.uid] = answers
            self._names += sum(len(names) for _, names in answers)
            while self._names > self._most_names and len(self._answers) > 1:
                self._take(next(iter(self._answers)))
            while self._names > self._most_names and len(answers) > 1:
                self._names -= len(answers.popleft()[1])

    def as_whose(self, uid: str, node: str) -> str:
        """The schedulerName of the pod when `filter` last returned *node* for it; empty if it never
        did."""
        with self._lock:
            answers = self._answers.get(uid, ())
            return next((whose for whose, nodes in reversed(answers) if node in nodes), "")

    def forget(self, uid: str) -> None:
        with self._lock:
            self._take(uid)

    def _take(self, uid: str) -> deque[_Answer]:
        found = self._answers.pop(uid, None)
        if found is None:
            return deque(maxlen=_MOST_ANSWERS)
        self._names -= sum(len(names) for _, names in found)
        return found
