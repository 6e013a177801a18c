"""Which nodes `filter` let each pod through to: what kube-scheduler may bind it to.

kube-scheduler binds a pod to a node only after `filter` named that node for it, so any other bind
comes from a mistake, or from somebody who is not kube-scheduler. Earlier answers count too: of a
PodGroup, kube-scheduler tries several placements and binds to the best one.

This is one process's memory. After a restart a pod without a plan is refused once, and kube-
scheduler asks again from the beginning; a planned pod needs no memory, its plan is on it.
"""

from collections import deque
from threading import Lock

from linkwise.kube.objects import Pod

# In all: some 20 MB at worst. By default kube-scheduler asks about 500 of 5,000 nodes, and mostly
# one of them is let through.
_MOST_NAMES = 200_000
_MOST_ANSWERS = 256  # about one pod: more than there are domains that a PodGroup is tried in

_Answer = tuple[str, tuple[str, ...]]
"""schedulerName, nodes."""


class LetThrough:
    """Safe for threads."""

    def __init__(self, most_names: int = _MOST_NAMES) -> None:
        self._most_names, self._names = most_names, 0
        self._answers: dict[str, deque[_Answer]] = {}  # by uid; oldest first
        self._lock = Lock()

    def note(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        """*pod* as kube-scheduler sent it."""
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
        """The scheduler whose pod it was let through to *node* as; empty where it was not."""
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
