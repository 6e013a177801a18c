"""What a busy machine can give to the next requests, if it is known which GPUs end together.

A *state* is the partition of the busy GPUs into running sets: a set comes free as a whole. The next
requests come in a mix of sizes, one after the other. A request that does not fit waits until enough
sets have ended. Each running set is equally likely to end first.

The worth of a state is the expected total of what the requests get, each as a share of the best for
its size on the idle machine, if every choice is the best one (a Markov decision process, solved
backwards from the last request).

For machines of up to 8 GPUs, which have 21,147 states (Bell's number of 9). The states are computed
once per number of GPUs and their worth once per kind of machine.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from linkwise.topology.sets import subsets
from linkwise.topology.sets.bandwidth import positions_of
from linkwise.topology.sets.subsets import Masks
from linkwise.topology.sets.tables import USUAL_SIZES, MachineTable

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MOST_GPUS = 8
"""16 GPUs have 83 billion states."""

_REQUESTS = 8
"""Requests that the outlook looks ahead: 20 choose no better sets than 8, and 4 do worse."""

_USUAL_WEIGHT = 4.0  # a usual size is this much likelier than any other


def expected_sizes(count: int) -> Floats:
    """Return [count+1]: how likely the next request is of each size, without any history."""
    weights = np.array([0.0] + [1.0] * count)
    weights[[size for size in USUAL_SIZES if size <= count]] = _USUAL_WEIGHT
    shares: Floats = weights / weights.sum()
    return shares


class Outlook:
    """The worth of every state of one kind of machine, for one mix of sizes to come.

    *sizes* is [n+1], the probability of each size; it may be 0.
    """

    def __init__(self, table: MachineTable, sizes: Floats, requests: int = _REQUESTS) -> None:
        self._states = states_of(table.count)
        self.worth = _worth(self._states, shares_of_idle(table), sizes, requests)
        self.worth.flags.writeable = False

    def after(self, sets: Masks, free: int, running: Iterable[int]) -> Floats:
        """Return [sets]: the worth once each of the *sets*, all of them *free*, runs beside
        *running*.

        GPUs that are neither free nor in a running set count as sets of one.
        """
        before = self._states.key(running, free)
        worth: Floats = self.worth[self._states.find(before + self._states.codes[sets])]
        return worth


def outlook_of(table: MachineTable) -> Outlook | None:
    """Return the outlook for the sizes expected without history; None beyond `MOST_GPUS`."""
    return None if table.count > MOST_GPUS else _outlook_of(table)


@lru_cache(maxsize=64)
def _outlook_of(table: MachineTable) -> Outlook:
    """It refers to its table, so both stay. Those of `MOST_GPUS` are small."""
    return Outlook(table, expected_sizes(table.count))


def shares_of_idle(table: MachineTable) -> Floats:
    """Return [2^n]: a set's value as a share of the best of its size; 0 for a lone GPU."""
    sizes = subsets.sizes(table.count)
    shares: Floats = table.values / np.maximum(table.best[sizes, -1], 1e-9)
    shares[(sizes < 2) | ~table.may_be] = 0.0
    return shares


class States:
    """All states of *count* GPUs, and the sets that lead from one to another.

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
        """Return the keys in rising order, and the busy GPUs of each: set by set, GPU 0's last."""
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
        """Return every (state, set that fits beside it, state with the set)."""
        begins = [np.flatnonzero((self.busy & part) == 0) for part in range(1, 1 << self.count)]
        parts = np.repeat(np.arange(1, 1 << self.count), [len(rows) for rows in begins])
        joined = np.concatenate(begins)
        return joined, parts, self.find(self._keys[joined] + self.codes[parts])

    def key(self, running: Iterable[int], free: int) -> int:
        """Return the key of the state in which these sets run; each other busy GPU is a set of its
        own."""
        sets = tuple(running)
        alone = ((1 << self.count) - 1) & ~free & ~sum(sets)
        parts = [*sets, *(1 << position for position in positions_of(alone))]
        return int(self.codes[parts].sum()) if parts else 0

    def running(self, state: int) -> tuple[int, ...]:
        """Return the sets that run in a state, in rising order."""
        parts = [0] * (self.count + 1)
        for gpu in range(self.count):
            parts[int(self._keys[state]) >> 4 * gpu & 0xF] |= 1 << gpu
        return tuple(sorted(part for part in parts[1:] if part))

    def find(self, keys: Indices) -> Indices:
        """Return the states that have these keys."""
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
    """Return [states]: the expected total of the shares that *requests* requests get."""
    worth = np.zeros(len(states.busy))
    for _ in range(requests):
        worth = one_request_more(states, shares, sizes, worth)
    # Sums that are equal on paper become equal here.
    return np.round(worth, 9)


def one_request_more(states: States, shares: Floats, sizes: Floats, worth: Floats) -> Floats:
    """Return [states]: what one request of a random size and then *worth* give."""
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
    """Fill in *found* [states] where fewer than *size* GPUs are free: the mean over the sets'
    ends."""
    for free in reversed(range(size)):
        waiting = states.ending[free]
        if len(waiting.steps):
            ended = found[states.begins[waiting.steps]]
            found[waiting.states] = np.add.reduceat(ended, waiting.first) / waiting.counts
