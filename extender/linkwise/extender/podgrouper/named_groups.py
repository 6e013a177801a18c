"""Which pods name one group, with GPUs or without.

A group that pods name counts all its pods, also those without GPUs, such as a driver. They matter
only to pods with GPUs: of the groups that take none, nothing is read and nothing is planned.
"""

from collections.abc import Iterable

from linkwise.extender.podgrouper.workloads.declared import group_named
from linkwise.kube.objects import Pod

Group = tuple[str, ...]
_NONE: dict[str, Pod] = {}


class NamedGroups:
    def __init__(self) -> None:
        self._of: dict[str, Group] = {}  # uid -> group
        self._takers: dict[Group, set[str]] = {}  # the pods with GPUs, by uid
        self._others: dict[Group, dict[str, Pod]] = {}

    def put(self, pod: Pod, *, takes_gpus: bool) -> Iterable[str]:
        """Add a pod, or its newer version. Return the pods without GPUs to judge again, by uid:
        those of a group that takes GPUs now, and did not before, or the other way round."""
        uid, group = pod.metadata.uid, group_named(pod)
        changed = () if self._of.get(uid) == group else self.drop(uid)
        if group is None:
            return changed
        self._of[uid] = group
        if not takes_gpus:
            self._others.setdefault(group, {})[uid] = pod
            return changed
        takers = self._takers.setdefault(group, set())
        is_first = not takers
        takers.add(uid)
        return (*changed, *self._others.get(group, _NONE)) if is_first else changed

    def drop(self, uid: str) -> Iterable[str]:
        """As `put`."""
        group = self._of.pop(uid, None)
        if group is None:
            return ()
        others, takers = self._others.get(group, {}), self._takers.get(group, set())
        if others.pop(uid, None) is not None and not others:
            del self._others[group]
        if uid in takers:
            takers.discard(uid)
            if not takers:
                del self._takers[group]
                return (*others,)
        return ()

    def takes_gpus(self, uid: str) -> bool:
        """Whether any pod of the pod's group does."""
        return self._of.get(uid) in self._takers

    def pod(self, uid: str) -> Pod | None:
        """The newest version of a pod without GPUs."""
        group = self._of.get(uid)
        return None if group is None else self._others.get(group, _NONE).get(uid)
