"""What nodes have left of every resource that kube-scheduler counts, as one array.

CPU, memory, GPUs and places for pods are its first columns. `CountedResources` says which others
get one; a node that does not list such a resource has none of it. What no node lists is not
counted: a DRA driver or another extender provides it, and kube-scheduler decides. So it does beyond
256 others.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.state.records import NodeRecord, PodRecord, ResourceList
from linkwise.kube.filters.requests import lenient_amount, pod_requests
from linkwise.kube.objects import LARGEST, Node, Pod
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.demand import PodDemand
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.vendors.known import resource_of_machine

_resources = lru_cache(maxsize=1024)(ResourceList)  # one for equal ones, which are compared
_STANDARD = ("cpu", "memory", "pods")
_MOST_SHARED = 32  # other resources of one list; a node may list 30,000, others each time
# No machine has as much. A kubelet may say anything up to LARGEST, to which the cache's arrays
# could add nothing: GPUs that come from claims, or what other nodes offer.
_MOST_OFFERED = 2**53
# Resources of one node; machines have some 20. A kubelet may list 30,000, others each second.
_MOST_LISTED = 1024


def pod_needs(pod: Pod, demand: PodDemand, managed: str) -> ResourceList:
    """What kube-scheduler counts; of the *managed* resource, *demand*."""
    # Capped, since a sum of capped quantities may exceed what the cache's arrays can store.
    capped = {
        name: min(needed, LARGEST) for name, needed in pod_requests(pod, lenient_amount).items()
    }
    return _resource_list({**capped, managed: min(demand.gpus, LARGEST)}, managed)


def resource_on(node: Node, resources: Sequence[str]) -> str:
    """The one of *resources* that is a GPU on the node: the one that it lists, whole or in shares.
    If it lists several, or none, by the vendor of its machine; else the first."""
    if len(resources) == 1:
        return resources[0]
    listed = {each: _listed_of(node, each) for each in resources}
    most = min(max(listed.values()), 1)  # if it has some of one, 0 of another means none
    able = tuple(each for each in resources if listed[each] >= most)
    text = node.metadata.annotations.get(names.TOPOLOGY)
    return able[0] if len(able) == 1 or text is None else _by_machine(text, able)


def _listed_of(node: Node, resource: str) -> int:
    """How much the node lists of *resource*, whole or in shares; -1: it does not list it."""
    status = node.status
    amounts = (
        lenient_amount(name, listed[name])
        for listed in (status.capacity, status.allocatable)
        for name in _counted(listed, resource)
        if name == resource or names.is_share(name, resource)
    )
    return max(amounts, default=-1)


def _by_machine(text: str, resources: tuple[str, ...]) -> str:
    try:
        return resource_of_machine(read_topology(text), resources)
    except LinkwiseError:  # the node is closed
        return resources[0]


def node_offers(node: Node, managed: str) -> ResourceList:
    """What pods may request of the node in all."""
    listed = _counted(node.status.allocatable, managed)
    return _resource_list({name: _offered(node, name) for name in listed}, managed)


def _counted(listed: Mapping[str, object], managed: str) -> Iterable[str]:
    """The names that count of those that a node has *listed*; the API server sorts them."""
    if len(listed) <= _MOST_LISTED:
        return listed
    kept = (name for name in (*_STANDARD, managed) if name in listed)
    return (*kept, *islice(listed, _MOST_LISTED))


def most_pods(node: Node) -> int:
    """How many pods the node takes. Every kubelet reports it; if one does not, kube-scheduler
    decides."""
    return _offered(node, "pods") if "pods" in node.status.allocatable else 2**31


def _offered(node: Node, name: str) -> int:
    return min(lenient_amount(name, node.status.allocatable[name]), _MOST_OFFERED)


def _resource_list(counted: Mapping[str, int], managed: str) -> ResourceList:
    named = {*_STANDARD, managed}
    others = tuple(sorted(item for item in counted.items() if item[0] not in named))
    make = _resources if len(others) <= _MOST_SHARED else ResourceList
    return make(
        milli_cpu=counted.get("cpu", 0),
        memory=counted.get("memory", 0),
        gpus=counted.get(managed, 0),
        others=others,
    )


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_MOST_OTHERS = 256  # a column costs memory for every node
_MILLI_CPU, _MEMORY, _GPUS, _PODS, _FIRST_OTHER = range(5)


class ResourcesLeft:
    """`amounts` is [columns, rows]; negative where pods request more than the node offers."""

    def __init__(self, rows: int) -> None:
        self.amounts: Ints = np.zeros((_FIRST_OTHER, rows), dtype=np.int64)
        # Replaced, never changed: copies share it.
        self._columns: Mapping[str, int] = {}
        # Whose columns `show` sets; those of `with_columns` follow.
        self._names: tuple[str, ...] = ()

    @property
    def _shown(self) -> int:
        """So many columns `show` sets."""
        return _FIRST_OTHER + len(self._names)

    @property
    def milli_cpu(self) -> Ints:
        return self._column(_MILLI_CPU)

    @property
    def memory(self) -> Ints:
        return self._column(_MEMORY)

    @property
    def gpus(self) -> Ints:
        return self._column(_GPUS)

    @property
    def pods(self) -> Ints:
        return self._column(_PODS)

    def of_rows(self, rows: Ints | slice) -> "ResourcesLeft":
        """A copy with these rows, which may be changed while the original changes."""
        other = ResourcesLeft(0)
        other.amounts = self.amounts[:, rows].copy()
        other._columns, other._names = self._columns, self._names
        return other

    def with_columns(self, extra: Mapping[str, Ints]) -> "ResourcesLeft":
        """A copy with more resources: name -> [rows] how much is left. Members that need some of
        them count against each other, as with any resource."""
        other = self.of_rows(slice(None))
        other._columns = {**self._columns, **other._numbered(extra)}
        other.amounts = np.vstack([other.amounts, *extra.values()])
        return other

    def equals(self, other: "ResourcesLeft", rows: Sequence[int]) -> bool:
        """Whether these rows have the same left in both; columns of `with_columns` do not count."""
        return self._names == other._names and np.array_equal(
            self.amounts[: self._shown, rows], other.amounts[: self._shown, rows]
        )

    def count_too(self, more: Iterable[str], counts: Callable[[str], bool]) -> bool:
        """Count these resources from now on. If there are too many, only those of the others stay
        that still *counts*. Returns whether anything changed: new columns are 0 until `show` sets
        them."""
        unknown = [name for name in more if name not in self._columns]
        if not unknown:
            return False
        kept = [*self._names]
        if len(kept) + len(unknown) > _MOST_OTHERS:
            kept = [name for name in kept if counts(name)]
        rows = [*range(_FIRST_OTHER), *(self._columns[name] for name in kept)]
        self._names = (*kept, *unknown)[:_MOST_OTHERS]
        self._columns = {name: number for number, name in enumerate(self._names, _FIRST_OTHER)}
        new = np.zeros((self._shown - len(rows), self.amounts.shape[1]), dtype=np.int64)
        self.amounts = np.vstack([self.amounts[rows], new])
        return True

    def grow(self) -> None:
        """Twice as many rows."""
        self.amounts = np.hstack([self.amounts, np.zeros_like(self.amounts)])

    def show(self, row: int, left: ResourceList, pods: int) -> None:
        """Set what a node has left. No lower than `-LARGEST`: pods that request more than any node
        has are counted too."""
        self.amounts[: self._shown, row] = self._of_node(left, pods)

    def shows(self, row: int, left: ResourceList, pods: int) -> bool:
        """Whether `show` would change nothing."""
        there: list[int] = self.amounts[: self._shown, row].tolist()
        return there == self._of_node(left, pods)

    def on(self, row: int) -> ResourceList:
        """What one node has left, also those resources of which it has none."""
        cpu, memory, gpus, _, *amounts = self.amounts[:, row].tolist()
        others = sorted(zip(self._columns, amounts, strict=True))
        return ResourceList(cpu, memory, gpus, tuple(others))

    def counted(self, needs: ResourceList) -> ResourceList:
        """*needs* without what no node lists."""
        others = tuple(item for item in needs.others if item[0] in self._columns)
        return ResourceList(needs.milli_cpu, needs.memory, needs.gpus, others)

    def pods_that_fit(self, needs: ResourceList, rows: int) -> Ints:
        """[rows] how many pods with these needs fit beside all bound and planned pods; the first
        *rows* of them."""
        count = self.pods[:rows].copy()
        for column, need in self._needed(needs):
            np.minimum(count, self.amounts[column, :rows] // need, out=count)
        return np.maximum(count, 0)

    def fits(self, needs: ResourceList, rows: int) -> Bools:
        """[rows] whether one such pod fits; `pods_that_fit` divides, and takes longer."""
        fits: Bools = self.pods[:rows] > 0
        for column, need in self._needed(needs):
            fits &= self.amounts[column, :rows] >= need
        return fits

    def fits_on(self, row: int, needs: ResourceList) -> bool:
        """`fits` for one row."""
        of_row = self.amounts[:, row].tolist()
        return of_row[_PODS] > 0 and all(of_row[c] >= need for c, need in self._needed(needs))

    def give_back(self, row: int, needs: ResourceList) -> None:
        """As if a pod with these needs left the node."""
        self.amounts[_PODS, row] += 1
        for column, need in self._needed(needs):
            self.amounts[column, row] += need

    def take(self, row: int, needs: ResourceList) -> None:
        """As if a pod with these needs came to the node."""
        self.amounts[_PODS, row] -= 1
        for column, need in self._needed(needs):
            self.amounts[column, row] -= need

    def columns_of(self, needs: Sequence[ResourceList], pods: Sequence[int]) -> Mapping[int, Ints]:
        """Column -> what each of *needs* takes of it, and each of *pods* of the places for pods."""
        found = {
            _MILLI_CPU: np.array([each.milli_cpu for each in needs], dtype=np.int64),
            _MEMORY: np.array([each.memory for each in needs], dtype=np.int64),
            _GPUS: np.array([each.gpus for each in needs], dtype=np.int64),
            _PODS: np.array(pods, dtype=np.int64),
        }
        for number, each in enumerate(needs):
            for name, amount in each.others:
                if (column := self._columns.get(name)) is not None:
                    of_all = found.setdefault(column, np.zeros(len(needs), dtype=np.int64))
                    of_all[number] = amount
        return found

    def vectors(self, needs: Sequence[ResourceList]) -> tuple[list[int], list[tuple[int, ...]]]:
        """The columns of which any pod with one of these *needs* takes some, and the amounts that
        each takes of these columns."""
        taken = [{_PODS: 1, **dict(self._needed(each))} for each in needs]
        columns = sorted({column for each in taken for column in each})
        return columns, [tuple(each.get(column, 0) for column in columns) for each in taken]

    def _of_node(self, left: ResourceList, pods: int) -> list[int]:
        amounts = [left.milli_cpu, left.memory, left.gpus, pods]
        amounts += [0] * (self._shown - _FIRST_OTHER)
        for name, amount in left.others:
            if (column := self._columns.get(name)) is not None:
                amounts[column] = amount
        return [max(amount, -LARGEST) for amount in amounts]

    def _column(self, number: int) -> Ints:
        column: Ints = self.amounts[number]
        return column

    def _needed(self, needs: ResourceList) -> list[tuple[int, int]]:
        """Column and amount of what the pod needs, without its place."""
        first = (_MILLI_CPU, needs.milli_cpu), (_MEMORY, needs.memory), (_GPUS, needs.gpus)
        found = [each for each in first if each[1]]
        if needs.others:  # few pods have any
            columns = self._columns
            found += [(columns[name], need) for name, need in needs.others if name in columns]
        return found

    def _numbered(self, names: Iterable[str]) -> dict[str, int]:
        return {name: number for number, name in enumerate(names, len(self.amounts))}


class CountedResources:
    """Which resources are counted beside CPU, memory, GPUs and places for pods.

    Each costs a column for every node, so their number is limited, and no node may use it up: any
    kubelet lists what it likes. A resource counts once a node lists it and a pod requests it that a
    scheduler places. Where there are too many, those make room that no node lists, or no pod
    requests, any more.
    """

    def __init__(self, left: ResourcesLeft) -> None:
        self._left = left
        self._nodes: Counter[str] = Counter()  # how many list a resource
        self._pods: Counter[str] = Counter()  # how many request it

    def node_changed(self, before: NodeRecord | None, after: NodeRecord | None) -> bool:
        """Returns whether other resources count now: all nodes have to be shown again."""
        return self._changed(self._nodes, _listed(before), _listed(after))

    def pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> bool:
        """As `node_changed`."""
        return self._changed(self._pods, _requested(before), _requested(after))

    def _changed(self, of: Counter[str], before: frozenset[str], after: frozenset[str]) -> bool:
        if before == after:
            return False
        of.update(after - before)
        for name in before - after:
            of[name] -= 1
            if not of[name]:
                del of[name]
        return self._left.count_too(filter(self._counts, sorted(after - before)), self._counts)

    def _counts(self, name: str) -> bool:
        return name in self._nodes and name in self._pods


def _listed(node: NodeRecord | None) -> frozenset[str]:
    return frozenset() if node is None else _names(node.offers.others)


def _requested(pod: PodRecord | None) -> frozenset[str]:
    """A kubelet creates static pods itself, so theirs would be another list of its own."""
    return frozenset() if pod is None or pod.ended or pod.static else _names(pod.needs.others)


def _names(amounts: Iterable[tuple[str, int]]) -> frozenset[str]:
    return frozenset(name for name, _ in amounts)
