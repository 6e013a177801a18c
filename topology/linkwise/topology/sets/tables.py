"""The value of every GPU set of a *kind* of machine, computed once and then looked up.

Thousands of nodes are of a few kinds. Links, the models' speeds, NUMA and NICs make a kind; uuids
and health do not. All arrays are indexed by bitmask and must not be written to. Safe to call from
several threads: at worst two of them compute the same table.
"""

from collections.abc import Hashable
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from linkwise.topology.machine.hardware import facts_of_gpu, is_a100_card, slot_gbytes_per_s
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.sets import subsets
from linkwise.topology.sets.bandwidth import (
    LOCAL_GBYTES_PER_S,
    MEMORY_COST,
    direct_nvlinks,
    islands,
    pair_gbytes_per_s,
    positions_of,
    rings_each_way,
    sharing_the_way_up,
    sharp_gain,
)
from linkwise.topology.sets.rings import MOST_GPUS

Floats = NDArray[np.float64]

UNITS_PER_GBYTE = 10_000
"""Values are whole multiples of 0.1 MB/s, so that totals are exact and equal values compare
equal."""

USUAL_SIZES = (1, 2, 4, 8)
"""Sizes of the expected jobs in GPUs. A lone GPU uses no link, so size 1 loses no GB/s."""


_MOST_WORTHS = 8
"""Remembered for each table; one of 16 GPUs takes 1 MB."""


class Worth(NamedTuple):
    """[2^n] of all GPU sets: GB/s, the `LinkClass` of a ring, and the GB/s in units."""

    values: Floats
    ring_classes: NDArray[np.int8]
    units: NDArray[np.int64]


class MachineTable:
    """All GPU sets of one kind of machine with n GPUs.

    `values` [2^n] is the GB/s of the set, and `ring_values` [2^n] as a part of a ring through
    several machines, where its NVSwitches do not reduce. `ring_classes` [2^n] is the `LinkClass`
    that a ring through it keeps to. `best` [n+1, 2^n] is the best value of any k of the GPUs, -inf
    if there are fewer. `may_be` [2^n] is whether a pod may have exactly these GPUs
    (`Machine.partitions`). `numa_nodes` [2^n] counts the NUMA nodes that a set spans; all GPUs of
    unknown nodes count as one more. `nic_classes` [2^n] is the closeness of the nearest common NIC.
    `models` [2^n] counts the GPU models in a set, `nvlinks` [2^n] the NVLinks that its GPUs have to
    any GPU.

    `remaining_value` [2^n] is what a set of free GPUs is worth to the jobs to come, from 0 to 1 of
    the idle machine: for each usual job size from 2 on, the best total value of disjoint sets of
    that size; then the mean. `remaining_gbytes_per_s` [2^n], which compares machines, is the mean
    of the same totals in GB/s over all of `USUAL_SIZES`; sizes that the machine cannot hold count
    as 0. `side_by_side` has these totals in GB/s, [2^n] for each usual size from 2 on that the
    machine can hold. A superset never has less of any of them.
    """

    def __init__(self, machine: Machine) -> None:
        self.count = len(machine.gpus)
        self.may_be = _may_be(machine)
        self.ring_classes = _ring_classes(machine)
        rings = _ring_values(machine)
        self.ring_values = np.round(rings, 4)
        self.values = _values(machine, rings)
        self.numa_nodes = _numa_nodes(machine)
        self.nic_classes = _nic_classes(machine)
        self.models = _models(machine)
        self.nvlinks = _nvlinks(machine)
        self.units = np.rint(self.values * UNITS_PER_GBYTE).astype(np.int64)
        packed = _packed(np.where(self.may_be, self.units, 0), self.count)
        self.remaining_value = _remaining_value(packed)
        self.remaining_gbytes_per_s = _remaining_gbytes_per_s(packed)
        sizes = [size for size in USUAL_SIZES if 2 <= size <= self.count]
        self.side_by_side = dict(zip(sizes, packed / UNITS_PER_GBYTE, strict=True))
        self._best: dict[LinkClass, Floats] = {}
        self._whole = Worth(self.values, self.ring_classes, self.units)
        self._worst: dict[int, tuple[Floats, Floats]] = {}
        self._worth: dict[tuple[int, ...], Worth] = {}
        for array in (
            self.may_be,
            self.ring_classes,
            self.values,
            self.ring_values,
            self.numa_nodes,
            self.nic_classes,
        ):
            array.flags.writeable = False
        self.nvlinks.flags.writeable = False
        self.units.flags.writeable = self.remaining_value.flags.writeable = False
        self.remaining_gbytes_per_s.flags.writeable = self.models.flags.writeable = False
        for array in self.side_by_side.values():
            array.flags.writeable = False

    @property
    def best(self) -> Floats:
        return self.best_with(LinkClass.SYS)

    def best_with(self, require: LinkClass) -> Floats:
        """Return `best` of the sets that pods may have, through which a ring keeps to *require* or
        closer."""
        known = self._best.get(require)
        if known is not None:
            return known
        best = np.full((self.count + 1, 1 << self.count), -np.inf)
        allowed = np.flatnonzero(self.may_be & (self.ring_classes >= require))
        best[subsets.sizes(self.count)[allowed], allowed] = self.values[allowed]
        subsets.best_within(best)
        best.flags.writeable = False
        return self._best.setdefault(require, best)

    def worth(self, drawn: tuple[int, ...]) -> Worth:
        """Return the worth of every set of which containers of the sizes *drawn* get some GPUs,
        whichever (`demand.drawn_sizes`): the least of the whole set and of all those it may be."""
        if not drawn:
            return self._whole
        known = self._worth.get(drawn)
        if known is not None:
            return known
        values, classes = self.values, self.ring_classes
        for size in drawn:
            worst_value, worst_class = self._worst_of(size)
            values = np.minimum(values, worst_value)
            classes = np.minimum(classes, worst_class).astype(np.int8)
        units = np.rint(values * UNITS_PER_GBYTE).astype(np.int64)
        for array in (values, classes, units):
            array.flags.writeable = False
        if len(self._worth) >= _MOST_WORTHS:  # pods may have containers of any sizes
            self._worth.clear()
        return self._worth.setdefault(drawn, Worth(values, classes, units))

    def _worst_of(self, size: int) -> tuple[Floats, Floats]:
        """Return the least GB/s and the farthest class of *size* GPUs of each set; inf if it has
        fewer."""
        known = self._worst.get(size)
        if known is None:
            of_size = subsets.sizes(self.count) == size
            found = []
            for own in (self.values, self.ring_classes):
                below = np.where(of_size, -own.astype(np.float64), -np.inf)
                subsets.best_within(below)
                found.append(-below)
            known = self._worst[size] = (found[0], found[1])
        return known


def fingerprint(machine: Machine) -> Hashable:
    """Return a value that is equal for machines on which every set has the same worth and look."""
    speeds = []
    for gpu in machine.gpus:
        facts = facts_of_gpu(gpu)
        speeds.append(
            (
                facts.nvlink_gbytes_per_s,
                slot_gbytes_per_s(gpu),
                facts.inter_socket_gbytes_per_s,
                facts.sharp_share,
                facts.one_way_rings,
                facts.compute_capability == (8, 0),
                is_a100_card(gpu),
                gpu.numa_node,
            )
        )
    links = tuple(
        (link.pcie, link.nvlinks, link.through_switch, link.peer_to_peer, link.routed)
        for link in machine.links
    )
    nics = tuple(sorted((nic.closeness, nic.gbit_per_s or 0) for nic in machine.nics))
    return tuple(speeds), links, nics, tuple(_model_numbers(machine)), machine.partitions


class _Same:
    """A machine as a key by identity: hashing its 120 links takes longer than the look-up."""

    __slots__ = ("machine",)

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __hash__(self) -> int:
        return id(self.machine)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.machine is other.machine


class _Kind:
    """A machine as a key by its fingerprint."""

    __slots__ = ("_hash", "fingerprint", "machine")

    def __init__(self, machine: Machine) -> None:
        self.machine, self.fingerprint = machine, fingerprint(machine)
        self._hash = hash(self.fingerprint)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self.fingerprint == other.fingerprint


_tables: WeakValueDictionary[_Kind, MachineTable] = WeakValueDictionary()


@lru_cache(maxsize=16)
def _table_of_kind(kind: _Kind) -> MachineTable:
    """A table without users stays for a while, and is made beside its first use."""
    return MachineTable(kind.machine)


@lru_cache(maxsize=8192)
def _kind_of(same: _Same) -> _Kind:
    return _Kind(same.machine)


def table_of(machine: Machine) -> MachineTable:
    """Return the table of this kind of machine: a look-up while anybody has it."""
    kind = _kind_of(_Same(machine))
    table = _tables.get(kind)
    if table is None:
        table = _tables[kind] = _table_of_kind(kind)
    return table


def _symmetric(machine: Machine, entries: list[float]) -> Floats:
    """Return [n, n], with -inf on the diagonal: no path leads from a GPU to itself."""
    count = len(machine.gpus)
    matrix = np.full((count, count), subsets.NO_RING)
    for (first, second, _), entry in zip(machine.pairs(), entries, strict=True):
        matrix[first, second] = matrix[second, first] = entry
    return matrix


def _may_be(machine: Machine) -> NDArray[np.bool_]:
    found = np.full(1 << len(machine.gpus), not machine.partitions)
    found[[*machine.partitions]] = True
    return found


def _ring_classes(machine: Machine) -> NDArray[np.int8]:
    kinds = _symmetric(machine, [float(link.kind) for link in machine.links])
    classes = subsets.best_bottlenecks(kinds)
    classes[subsets.sizes(len(machine.gpus)) < 2] = LinkClass.NVLINK
    return classes.astype(np.int8)


def _values(machine: Machine, rings: Floats) -> Floats:
    """See `bandwidth.bandwidth`."""
    count = len(machine.gpus)
    values: Floats = np.round(rings * _sharp_gains(machine), 4)
    values[subsets.layer(count, 1)] = LOCAL_GBYTES_PER_S
    values[0] = 0.0
    return values


def _ring_values(machine: Machine) -> Floats:
    """Return [2^n] GB/s of the best rings, without NVSwitches that reduce."""
    count = len(machine.gpus)
    pairs = [(first, second) for first, second, _ in machine.pairs()]
    hops = _symmetric(machine, [pair_gbytes_per_s(machine, *pair) for pair in pairs])
    per_link = subsets.least(
        np.array([facts_of_gpu(gpu).nvlink_gbytes_per_s for gpu in machine.gpus]), np.inf
    )
    slowest_hop: Floats = np.minimum(subsets.best_bottlenecks(hops), _into_memory(machine))
    rings = _nvlink_rings(machine)
    with_rings = np.flatnonzero(rings)
    values = slowest_hop.copy()
    values[with_rings] = np.maximum(
        slowest_hop[with_rings], per_link[with_rings] * rings[with_rings]
    )
    values[subsets.layer(count, 1)] = LOCAL_GBYTES_PER_S
    values[0] = 0.0
    return values


def _sharp_gains(machine: Machine) -> Floats:
    """Return [2^n]: how much faster a set is by NVSwitches that reduce; 1 without them."""
    count = len(machine.gpus)
    facts = [facts_of_gpu(gpu) for gpu in machine.gpus]
    if not any(each.sharp_share for each in facts):
        return np.ones(1 << count)
    masks = np.arange(1 << count)
    reached = [1 << position for position in range(count)]
    for first, second, link in machine.pairs():
        if link.through_switch:
            reached[first] |= 1 << second
            reached[second] |= 1 << first
    apart = np.zeros(1 << count, dtype=bool)
    for position, others in enumerate(reached):
        apart |= (masks >> position & 1 == 1) & (masks & ~others != 0)
    gains: Floats = np.ones(1 << count)
    for size in range(2, count + 1):
        alike = (subsets.sizes(count) == size) & ~apart
        gain = np.array([sharp_gain(each, size) for each in facts])
        gains[alike] = subsets.least(gain, np.inf)[alike]
    return gains


def _into_memory(machine: Machine) -> Floats:
    """Return [2^n], as `bandwidth` has it for one set."""
    count = len(machine.gpus)
    masks, sizes = np.arange(1 << count), subsets.sizes(count)
    found: Floats = np.full(1 << count, np.inf)
    for position, others in enumerate(sharing_the_way_up(machine)):
        if others:
            slot = slot_gbytes_per_s(machine.gpus[position])
            shared = (masks >> position & 1 == 1) & (masks & others != 0)
            sharing = sizes[masks & others].astype(np.float64)
            share = slot / (MEMORY_COST * (1 + sharing))
            found[shared] = np.minimum(found, share)[shared]
    return found


def _nvlink_rings(machine: Machine) -> NDArray[np.int64]:
    """Return [2^n]: rings of direct NVLinks through three or more GPUs, each way round."""
    count = len(machine.gpus)
    links = _symmetric(
        machine, [float(direct_nvlinks(machine, a, b)) for a, b, _ in machine.pairs()]
    )
    narrowest = subsets.best_bottlenecks(links)
    narrowest[subsets.sizes(count) < 3] = 0
    rings = 2 * narrowest.astype(np.int64)
    for island in islands(machine):
        if 3 <= island.bit_count() <= MOST_GPUS:
            inside = np.flatnonzero((rings > 0) & ((np.arange(1 << count) & ~island) == 0))
            for gpus in inside.tolist():
                rings[gpus] = rings_each_way(machine, positions_of(gpus))
    return rings


def _model_numbers(machine: Machine) -> list[int]:
    """Number the GPUs' models by first appearance, so that model names alone do not make a kind."""
    number: dict[str, int] = {}
    return [number.setdefault(gpu.model, len(number)) for gpu in machine.gpus]


def _models(machine: Machine) -> NDArray[np.int8]:
    numbers = _model_numbers(machine)
    return subsets.sizes(max(numbers) + 1)[subsets.union([1 << number for number in numbers])]


def _nvlinks(machine: Machine) -> NDArray[np.int16]:
    direct, switched = [0] * len(machine.gpus), [0] * len(machine.gpus)
    for first, second, link in machine.pairs():
        for gpu in (first, second):
            if link.through_switch:
                switched[gpu] = max(switched[gpu], link.nvlinks)
            else:
                direct[gpu] += link.nvlinks
    masks = np.arange(1 << len(machine.gpus))
    counts = np.zeros(len(masks), dtype=np.int16)
    for gpu, count in enumerate(map(sum, zip(direct, switched, strict=True))):
        counts[masks >> gpu & 1 == 1] += count
    return counts


def _numa_nodes(machine: Machine) -> NDArray[np.int8]:
    nodes = sorted({gpu.numa_node for gpu in machine.gpus if gpu.numa_node is not None})
    number = {node: position for position, node in enumerate(nodes)}
    spanned = subsets.union(
        [
            1 << (len(nodes) if gpu.numa_node is None else number[gpu.numa_node])
            for gpu in machine.gpus
        ]
    )
    return subsets.sizes(len(nodes) + 1)[spanned]


def _nic_classes(machine: Machine) -> NDArray[np.int8]:
    nearest = np.full(1 << len(machine.gpus), -1.0)
    for closeness in {nic.closeness for nic in machine.nics}:
        common = subsets.least(np.array(closeness, dtype=np.float64), float(LinkClass.NVLINK))
        np.maximum(nearest, common, out=nearest)
    return nearest.astype(np.int8)


def _packed(units: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return [sizes, 2^n]: for each usual size from 2 on that the machine can hold, the best total,
    in units, of disjoint sets of that size."""
    rows = []
    for size in (size for size in USUAL_SIZES if 2 <= size <= count):
        weights = np.where(subsets.sizes(count) == size, units, subsets.INFEASIBLE)
        rows.append(np.maximum(subsets.best_partitions(weights, size), 0))
    packed = np.array(rows, dtype=np.int64).reshape(len(rows), 1 << count)
    subsets.best_within(packed)
    return packed


def _remaining_value(packed: NDArray[np.int64]) -> Floats:
    if not len(packed):  # a lone GPU
        return np.array([0.0, 1.0])
    mean: Floats = (packed / np.maximum(packed[:, -1:], 1)).mean(axis=0)
    return np.round(mean, 9)  # sums of shares that are equal on paper become equal here


def _remaining_gbytes_per_s(packed: NDArray[np.int64]) -> Floats:
    total: Floats = packed.sum(axis=0) / (len(USUAL_SIZES) * UNITS_PER_GBYTE)
    return total
