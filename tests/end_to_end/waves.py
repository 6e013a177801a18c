"""The law of gangs whose owners create some members only after others are ready.

- When the first member of such a gang is bound, each of the others exists or has a noted place.
- At rest either no member is bound, or all are bound or have such a place.

Excused: a gang that had all its members bound once.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from linkwise.extender.run.places import Places
from linkwise.extender.state.noted_places import read_places
from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Pod


class WaveLaw:
    """Each workload is one gang. Its pods have its name as label `app`."""

    def __init__(self, client: KubeClient) -> None:
        self._places = Places(client, "kube-system")
        self._sizes: dict[str, int] = {}  # replaced as a whole: several threads use it
        self._was_whole: set[str] = set()

    def submitted(self, name: str, size: int) -> None:
        self._sizes = {**self._sizes, name: size}

    def forget(self) -> None:
        self._sizes = {}

    def covers(self, pod: Pod) -> bool:
        return workload_of(pod) in self._sizes

    def notes(self) -> Mapping[str, str]:
        """Raises ApiError."""
        return self._places.read()

    def is_first(self, pod: Pod, others: Iterable[Pod]) -> bool:
        """Whether the pod is bound, and none of the *others* of its gang is."""
        return _is_bound(pod) and self.covers(pod) and not _bound(others)[workload_of(pod)]

    def at_first_binding(
        self, pod: Pod, notes: Mapping[str, str], pods: Iterable[Pod]
    ) -> list[str]:
        """*pods* are read after *notes*, so a member that has come meanwhile is not missed. One
        that has left or failed meanwhile counts too."""
        there = {each.metadata.uid: each for each in (pod, *pods)}
        exist = Counter(map(workload_of, there.values()))
        return self._lacking({workload_of(pod)}, exist, notes)

    def at_rest(self, notes: Mapping[str, str], pods: Iterable[Pod]) -> list[str]:
        bound = _bound(pods)
        return self._lacking({*bound}, bound, notes)

    def look(self, pods: Iterable[Pod]) -> None:
        """See which gangs are whole."""
        bound = _bound(pods)
        self._was_whole |= {name for name, size in self._sizes.items() if bound[name] >= size}

    def _lacking(
        self, workloads: set[str], placed: Counter[str], notes: Mapping[str, str]
    ) -> list[str]:
        noted, sizes = _noted(notes), self._sizes
        return [
            f"{name}: {placed[name]} members and {noted[name]} places, of {sizes[name]}"
            for name in sorted((workloads & sizes.keys()) - self._was_whole)
            if placed[name] + noted[name] < sizes[name]
        ]


def workload_of(pod: Pod) -> str:
    return pod.metadata.labels.get("app", "")


def _bound(pods: Iterable[Pod]) -> Counter[str]:
    return Counter(workload_of(pod) for pod in pods if _is_bound(pod))


def _is_bound(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.is_live


def _noted(notes: Mapping[str, str]) -> Counter[str]:
    """Workload -> how many places are noted for it."""
    found: Counter[str] = Counter()
    for noted in filter(None, map(read_places, notes.values())):
        found[noted.name.rpartition("/")[2].partition("#")[0]] += len(noted.places)
    return found
