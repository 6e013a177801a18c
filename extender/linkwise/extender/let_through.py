"""Which nodes `filter` let each pod through to: what kube-scheduler may bind it to.

kube-scheduler binds a pod to a node only after `filter` named that node for it, so any other bind
comes from a mistake, or from somebody who is not kube-scheduler. Earlier answers count too: of a
PodGroup, kube-scheduler tries several placements and binds to the best one.

This is one process's memory. After a restart a pod without a plan is refused once, and kube-
scheduler asks again from the beginning; a planned pod needs no memory, its plan is on it.
"""

from sys import intern
from threading import Lock

from linkwise.kube.objects import Pod

# In all: some 20 MB at worst. By default kube-scheduler asks about 500 of 5,000 nodes, and mostly
# one of them is let through.
_MOST_NAMES = 200_000


class LetThrough:
    """Safe for threads."""

    def __init__(self, most_names: int = _MOST_NAMES) -> None:
        self._most_names, self._names = most_names, 0
        self._nodes: dict[str, dict[str, str]] = {}  # uid -> node -> schedulerName; oldest first
        self._lock = Lock()

    def note(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        """*pod* as kube-scheduler sent it."""
        if not nodes:
            return
        scheduler = intern(pod.spec.scheduler_name)
        with self._lock:
            known = self._take(pod.metadata.uid)
            # The same few thousand names, over and over.
            known.update((intern(node), scheduler) for node in nodes)
            self._nodes[pod.metadata.uid] = known
            self._names += len(known)
            while self._names > self._most_names and len(self._nodes) > 1:
                self._take(next(iter(self._nodes)))

    def as_whose(self, uid: str, node: str) -> str:
        """The scheduler whose pod it was let through to *node* as; empty where it was not."""
        with self._lock:
            return self._nodes.get(uid, {}).get(node, "")

    def forget(self, uid: str) -> None:
        with self._lock:
            self._take(uid)

    def _take(self, uid: str) -> dict[str, str]:
        found = self._nodes.pop(uid, {})
        self._names -= len(found)
        return found
