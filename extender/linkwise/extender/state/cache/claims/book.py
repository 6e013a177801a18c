"""Which GPUs of which node come from claims, and who has them: a function of the ResourceSlices and
ResourceClaims that the API server shows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from linkwise.extender.state.cache.claims.records import (
    ClaimRecord,
    GpuDevice,
    LateClaim,
    PodName,
    PoolName,
    SliceRecord,
)
from linkwise.extender.state.records import PodRecord

K = TypeVar("K")


class Given(NamedTuple):
    """The GPUs of one node that are allocated to one claim."""

    claim: str  # namespace/name
    uuids: tuple[str, ...]
    pods: tuple[PodName, ...]

    @property
    def holder(self) -> str:
        """Several pods may share a claim: the first one counts. The name of a claim that no pod
        uses stands for it."""
        return self.pods[0].uid if self.pods else self.claim


@dataclass(frozen=True)
class ClaimedGpus:
    """What drivers and claims say of one node's GPUs. A value: a change makes a new one."""

    gpus: frozenset[str] = frozenset()  # UUIDs of those that a driver offers
    # Of these: offered as a whole, without a taint, and in a complete pool, so that a new claim may
    # get it.
    open: frozenset[str] = frozenset()
    given: tuple[Given, ...] = ()  # in the order of the claims' names
    # NVSwitch partitions, as the UUIDs of their GPUs: a claim has to have exactly one of these.
    # No set, not even the empty one: any GPUs will do.
    partitions: frozenset[frozenset[str]] = frozenset()

    @cached_property
    def pods(self) -> frozenset[str]:
        """The uids of the pods that have some."""
        return frozenset(pod.uid for each in self.given for pod in each.pods)

    def of_pod(self, uid: str) -> Mapping[str, tuple[str, ...]]:
        """The UUIDs that a pod has, by claim."""
        if uid not in self.pods:
            return {}
        return {
            each.claim: each.uuids
            for each in self.given
            if any(pod.uid == uid for pod in each.pods)
        }

    def name_of(self, uid: str) -> str | None:
        """The namespace/name of a pod that has some, whether or not the API server shows it."""
        if uid not in self.pods:
            return None
        pods = (pod for each in self.given for pod in each.pods)
        return next(pod.key for pod in pods if pod.uid == uid)


NONE_CLAIMED = ClaimedGpus()


class ClaimBook:
    """Each change returns the nodes of which `of_node` may differ; `take_changed` has the pods of
    which `late` may."""

    def __init__(self) -> None:
        self._slices: dict[str, SliceRecord] = {}
        self._on_node: dict[str, dict[str, None]] = {}  # the names of its slices
        self._in_pool: dict[PoolName, dict[str, None]] = {}  # the names of its slices
        self._claims: dict[str, ClaimRecord] = {}  # those that have devices, or are the extender's
        self._changed: set[str] = set()
        self._users: dict[PoolName, dict[str, None]] = {}  # the claims that have devices of it

    def replace_slices(self, records: Iterable[SliceRecord]) -> set[str]:
        """*records* are all that there are."""
        there = {record.name: record for record in records}
        gone = [name for name in self._slices if name not in there]
        return set[str]().union(*map(self.drop_slice, gone), *map(self.put_slice, there.values()))

    def put_slice(self, record: SliceRecord) -> set[str]:
        before = self._slices.get(record.name)
        if before == record:
            return set()
        changed = self.drop_slice(record.name)
        self._slices[record.name] = record
        if record.node:
            self._on_node.setdefault(record.node, {})[record.name] = None
        self._in_pool.setdefault(record.pool, {})[record.name] = None
        return changed | self._nodes_of(record.pool)

    def drop_slice(self, name: str) -> set[str]:
        record = self._slices.get(name)
        if record is None:
            return set()
        changed = self._nodes_of(record.pool)
        del self._slices[name]
        if record.node:
            _remove(self._on_node, record.node, name)
        _remove(self._in_pool, record.pool, name)
        return changed

    def replace_claims(self, records: Iterable[ClaimRecord]) -> set[str]:
        """*records* are all that there are."""
        there = {record.key: record for record in records}
        gone = [key for key in self._claims if key not in there]
        return set[str]().union(*map(self.drop_claim, gone), *map(self.put_claim, there.values()))

    def put_claim(self, record: ClaimRecord) -> set[str]:
        if self._claims.get(record.key) == record:
            return set()
        changed = self.drop_claim(record.key)
        if record.late is not None:
            self._changed.add(record.late.pod)
        elif not record.devices:
            return changed
        self._claims[record.key] = record
        for pool, _ in record.devices:
            self._users.setdefault(pool, {})[record.key] = None
        return changed | self._nodes_with(record)

    def drop_claim(self, key: str) -> set[str]:
        record = self._claims.pop(key, None)
        if record is None:
            return set()
        for pool in {pool for pool, _ in record.devices}:
            _remove(self._users, pool, key)
        if record.late is not None:
            self._changed.add(record.late.pod)
        return self._nodes_with(record)

    def late(self, pod: PodRecord) -> LateClaim | None:
        """The claim that the extender has created for the pod's plan."""
        if pod.claim is None:
            return None
        record = self._claims.get(f"{pod.ref.namespace}/{pod.claim.claim}")
        late = None if record is None else record.late
        return late if late is not None and late.pod == pod.uid else None

    def take_changed(self) -> set[str]:
        """The uids of the pods whose `late` claim may have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def of_node(self, node: str) -> ClaimedGpus:
        pools = self._pools_on(node)
        devices: dict[tuple[PoolName, str], GpuDevice] = {
            (pool, gpu.name): gpu
            for pool, slices in pools.items()
            for each in slices
            for gpu in each.gpus
        }
        if not devices:
            return NONE_CLAIMED
        claims = {key for pool in pools for key in self._users.get(pool, ())}
        given = (_given(self._claims[key], devices) for key in sorted(claims))
        gpus = frozenset(gpu.uuid for gpu in devices.values())
        # Parts of one GPU may have its id, as AMD's have.
        times = Counter(gpu.uuid for gpu in devices.values() if gpu.whole)
        whole = {uuid for uuid, count in times.items() if count == 1}
        closed = gpus - whole | {gpu.uuid for gpu in devices.values() if gpu.tainted}
        for pool, slices in pools.items():
            if not self._may_allocate(pool, slices):
                closed |= {gpu.uuid for each in slices for gpu in each.gpus}
        return ClaimedGpus(
            gpus,
            gpus - closed if closed else gpus,  # of nearly all nodes one set for both
            tuple(each for each in given if each.uuids),
            _partitions(devices.values()),
        )

    def driver_of(self, node: str, uuid: str) -> str:
        """That offers this GPU of the node; empty: none does."""
        return next(
            (
                pool.driver
                for pool, slices in self._pools_on(node).items()
                for each in slices
                for gpu in each.gpus
                if gpu.uuid == uuid
            ),
            "",
        )

    def _pools_on(self, node: str) -> dict[PoolName, list[SliceRecord]]:
        """The node's slices of each pool, of the newest generation among them. A slice of another
        node counts for nothing: a node's own account writes it, and may write any pool and any
        generation into it. As `GatherPools` of `k8s.io/dynamic-resource-allocation`, so this and
        `_may_allocate` are compared with it (`tests/cluster/test_devices.py`)."""
        pools: dict[PoolName, list[SliceRecord]] = {}
        for name in self._on_node.get(node, ()):
            record = self._slices[name]
            known = pools.get(record.pool)
            if known is None or record.generation > known[0].generation:
                pools[record.pool] = [record]
            elif record.generation == known[0].generation:
                known.append(record)
        return pools

    def _may_allocate(self, pool: PoolName, slices: Sequence[SliceRecord]) -> bool:
        """Whether kube-scheduler allocates devices of *slices*, all that the node has of the pool.
        If they are not all of the pool, it waits for the others."""
        names = [name for each in slices for name in each.names]
        if len(names) > len(set(names)):
            return False
        sizes = {each.pool_size for each in slices}
        if sizes == {len(slices)}:
            return True
        of_pool = [self._slices[name].generation for name in self._in_pool[pool]]
        newest = max(of_pool)
        return newest == slices[0].generation and sizes == {of_pool.count(newest)}

    def _nodes_of(self, pool: PoolName) -> set[str]:
        slices = (self._slices[name] for name in self._in_pool.get(pool, ()))
        return {each.node for each in slices if each.node}

    def _nodes_with(self, record: ClaimRecord) -> set[str]:
        return set[str]().union(*(self._nodes_of(pool) for pool, _ in record.devices))


def _partitions(gpus: Iterable[GpuDevice]) -> frozenset[frozenset[str]]:
    """Those of which all GPUs are published, and the empty one if there are any."""
    found: dict[tuple[int, int], set[str]] = {}
    for gpu in gpus:
        for partition in gpu.partitions:
            found.setdefault(partition, set()).add(gpu.uuid)
    whole = (frozenset(gpus) for (size, _), gpus in found.items() if len(gpus) == size)
    return frozenset([frozenset(), *whole]) if found else frozenset()


def _given(record: ClaimRecord, devices: Mapping[tuple[PoolName, str], GpuDevice]) -> Given:
    uuids = (devices[each].uuid for each in record.devices if each in devices)
    return Given(record.key, tuple(dict.fromkeys(uuids)), record.pods)


def _remove(index: dict[K, dict[str, None]], key: K, name: str) -> None:
    names = index[key]
    del names[name]
    if not names:
        del index[key]
