"""Which pods name one group, with GPUs or without.

A group that pods name counts all its pods, also those without GPUs, such as a driver. They matter
only to pods with GPUs: of the groups that take none, nothing is read and nothing is planned.

Groups below one CompositePodGroup are one group here. Only the PodGroups name it, so `unite` learns
it from each pod that was judged; in a namespace with any, pods without GPUs are judged for that.
"""

from collections.abc import Iterable

from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.declared import group_named

Group = tuple[str, ...]
_NONE: dict[str, Pod] = {}


class NamedGroups:
    def __init__(self) -> None:
        self._of: dict[str, Group] = {}  # uid -> group
        self._takers: dict[Group, set[str]] = {}  # the pods with GPUs, by uid
        self._others: dict[Group, dict[str, Pod]] = {}
        self._roots: dict[Group, Group] = {}  # a PodGroup -> the group of groups around it
        self._with_roots: set[str] = set()  # namespaces

    def put(self, pod: Pod, *, takes_gpus: bool) -> Iterable[str]:
        """Add a pod, or its newer version. Return the pods without GPUs to judge again, by uid:
        those of a group that takes GPUs now, and did not before, or the other way round."""
        uid, group = pod.metadata.uid, group_named(pod)
        group = None if group is None else self._roots.get(group, group)
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
        is_last = uid in takers and len(takers) == 1
        others.pop(uid, None)
        takers.discard(uid)
        if not others:
            self._others.pop(group, None)
        if not takers:
            self._takers.pop(group, None)
        if not (others or takers) and group in self._roots.values():
            self._roots = {leaf: root for leaf, root in self._roots.items() if root != group}
        return (*others,) if is_last else ()

    def unite(self, pod: Pod, root: Group) -> Iterable[str]:
        """Record that the group that *pod* names is in *root*. Return uids as `put` does."""
        leaf, namespace = group_named(pod), pod.metadata.namespace
        if leaf is None or self._roots.get(leaf) == root:
            return ()
        again: set[str] = set()
        if namespace not in self._with_roots:
            self._with_roots.add(namespace)
            native = [group for group in self._others if group[:2] == leaf[:2]]
            again.update(uid for group in native for uid in self._others[group])
        self._roots[leaf] = root
        others, takers = self._others.pop(leaf, {}), self._takers.pop(leaf, set())
        for uid in (*others, *takers):
            self._of[uid] = root
        if others:
            self._others.setdefault(root, {}).update(others)
        if takers:
            self._takers.setdefault(root, set()).update(takers)
        return again.union(self._others.get(root, _NONE))

    def may_be_united(self, pod: Pod) -> bool:
        """Whether the pod must be judged to know all that its group is in."""
        return pod.metadata.namespace in self._with_roots and pod.spec.scheduling_group is not None

    def takes_gpus(self, uid: str) -> bool:
        """Whether any pod of the pod's group does."""
        return self._of.get(uid) in self._takers

    def pod(self, uid: str) -> Pod | None:
        """The newest version of a pod without GPUs."""
        group = self._of.get(uid)
        return None if group is None else self._others.get(group, _NONE).get(uid)
