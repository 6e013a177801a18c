"""What a busy machine can give to the next requests, when it is known which GPUs end together.

A *state* is the cut of the busy GPUs into running sets: a set comes free as a whole. The next
requests are expected in a mix of sizes, one after the other. A request that does not fit waits
until enough sets have ended, and each running set is as likely as any other to end first.
The worth of a state is the expected total of what the requests get, each as a share of the best
for its size on the idle machine, if every choice is the best one (a Markov decision process,
solved backwards from the last of the requests).

Machines of up to 8 GPUs: they have 21,147 states, Bell's number of 9. All states of one number of
GPUs are found once, the worth of them once per kind of machine, and then looked up.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from linkwise.topology import subsets
from linkwise.topology.subsets import Masks
from linkwise.topology.tables import USUAL_SIZES, MachineTable
from linkwise.topology.value import positions_of

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MOST_GPUS = 8
"""16 GPUs have 83 billion states."""

_REQUESTS = 8
"""Requests that are looked at: 20 choose no better sets than 8, and 4 do worse."""

_USUAL_WEIGHT = 4.0  # a usual size is so much likelier than any other


def expected_sizes(count: int) -> Floats:
    """[count+1] how likely the next request is of each size, where no history tells it."""
    weights = np.array([0.0] + [1.0] * count)
    weights[[size for size in USUAL_SIZES if size <= count]] = _USUAL_WEIGHT
    shares: Floats = weights / weights.sum()
    return shares


class Outlook:
    """The worth of every state of one kind of machine, for one mix of sizes to come.

    *sizes* is [n+1], the probability of each size; 0 of a size is allowed.
    """

    def __init__(self, table: MachineTable, sizes: Floats, requests: int = _REQUESTS) -> None:
        self._states = states_of(table.count)
        self.worth = _worth(self._states, shares_of_idle(table), sizes, requests)
        self.worth.flags.writeable = False

    def after(self, sets: Masks, free: int, running: Iterable[int]) -> Floats:
        """[sets] the worth once each of the *sets*, all of them *free*, runs beside *running*.

        GPUs neither free nor in a running set are taken to come back one by one.
        """
        before = self._states.key(running, free)
        worth: Floats = self.worth[self._states.find(before + self._states.codes[sets])]
        return worth


@lru_cache(maxsize=64)
def outlook_of(table: MachineTable) -> Outlook | None:
    """For the sizes expected without any history; None beyond `MOST_GPUS`."""
    if table.count > MOST_GPUS:
        return None
    return Outlook(table, expected_sizes(table.count))


def shares_of_idle(table: MachineTable) -> Floats:
    """[2^n] a set's value by the best of its size; 0 of a lone GPU, which waits for no link."""
    sizes = subsets.sizes(table.count)
    shares: Floats = table.values / np.maximum(table.best[sizes, -1], 1e-9)
    shares[sizes < 2] = 0.0
    return shares


class States:
    """All states of *count* GPUs, and which set leads from one to another.

    A state's key is the sum of its sets' codes. A code puts the set's lowest GPU, counted from 1,
    into the four bits of each of its members, so that no two states share a key.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        lowest = np.array([(gpus & -gpus).bit_length() for gpus in range(1 << count)])
        members = np.zeros(1, dtype=np.int64)
        for gpu in range(count):
            members = np.concatenate([members, members | 1 << 4 * gpu])
        self.codes: Indices = lowest * members
        self._keys, self.busy = self._all()
        self.free: Indices = subsets.sizes(count)[((1 << count) - 1) ^ self.busy].astype(np.int64)
        self.begins, self.parts, self.ends = self._steps()
        part_sizes = subsets.sizes(count)[self.parts]
        self.starting = [
            _Groups(self.begins, np.flatnonzero(part_sizes == size)) for size in range(count + 1)
        ]
        free_after = self.free[self.ends]
        self.ending = [
            _Groups(self.ends, np.flatnonzero(free_after == free)) for free in range(count)
        ]

    def _all(self) -> tuple[Indices, Indices]:
        """The keys, rising, and the busy GPUs of each: set by set, the one of GPU 0 last."""
        keys = busy = np.zeros(1, dtype=np.int64)
        for gpu in reversed(range(self.count)):
            found = [(keys, busy)]
            for others in range(1 << (self.count - 1 - gpu)):
                part = 1 << gpu | others << (gpu + 1)
                fits = (busy & part) == 0
                found.append((keys[fits] + self.codes[part], busy[fits] | part))
            keys, busy = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        order = np.argsort(keys)
        return keys[order], busy[order]

    def _steps(self) -> tuple[Indices, Indices, Indices]:
        """Every (state, set that fits beside it, state with the set)."""
        begins = [np.flatnonzero((self.busy & part) == 0) for part in range(1, 1 << self.count)]
        parts = np.repeat(np.arange(1, 1 << self.count), [len(rows) for rows in begins])
        joined = np.concatenate(begins)
        return joined, parts, self.find(self._keys[joined] + self.codes[parts])

    def key(self, running: Iterable[int], free: int) -> int:
        """Of the state in which these sets run; busy GPUs that are in none, each as a set."""
        sets = tuple(running)
        alone = ((1 << self.count) - 1) & ~free & ~sum(sets)
        parts = [*sets, *(1 << position for position in positions_of(alone))]
        return int(self.codes[parts].sum()) if parts else 0

    def running(self, state: int) -> tuple[int, ...]:
        """The sets that run in a state, rising."""
        parts = [0] * (self.count + 1)
        for gpu in range(self.count):
            parts[int(self._keys[state]) >> 4 * gpu & 0xF] |= 1 << gpu
        return tuple(sorted(part for part in parts[1:] if part))

    def find(self, keys: Indices) -> Indices:
        """The states that have these keys."""
        return np.searchsorted(self._keys, keys)


@lru_cache(maxsize=MOST_GPUS)
def states_of(count: int) -> States:
    return States(count)


class _Groups:
    """Some steps, by one of their ends: `reduceat` over `steps` gives one number per state."""

    def __init__(self, states: Indices, steps: Indices) -> None:
        self.steps = steps[np.argsort(states[steps], kind="stable")]
        self.states, self.first, self.counts = np.unique(
            states[self.steps], return_index=True, return_counts=True
        )


def _worth(states: States, shares: Floats, sizes: Floats, requests: int) -> Floats:
    """[states] before *requests* requests: the expected total of the shares that they get."""
    worth = np.zeros(len(states.busy))
    for _ in range(requests):
        worth = one_request_more(states, shares, sizes, worth)
    # Sums that are equal on paper are then equal here.
    return np.round(worth, 9)


def one_request_more(states: States, shares: Floats, sizes: Floats, worth: Floats) -> Floats:
    """[states] what a request and then *worth* give, the request being of a random size."""
    total = np.zeros(len(worth))
    got = shares[states.parts] + worth[states.ends]
    for size in np.flatnonzero(sizes).tolist():
        found = np.zeros(len(worth))
        fitting = states.starting[size]
        found[fitting.states] = np.maximum.reduceat(got[fitting.steps], fitting.first)
        wait(states, size, found)
        total += sizes[size] * found
    return total


def wait(states: States, size: int, found: Floats) -> None:
    """Fill in [states] *found* where fewer than *size* GPUs are free: the mean over what ends."""
    for free in reversed(range(size)):
        waiting = states.ending[free]
        if len(waiting.steps):
            ended = found[states.begins[waiting.steps]]
            found[waiting.states] = np.add.reduceat(ended, waiting.first) / waiting.counts
