"""A policy of our own for parts of GPUs: it keeps room for the kinds of pods that came so far.

It learns the mix of pods from the arrivals alone. A pod goes where a potential of the node grows
least. The potential has two parts, both in thousandths of GPUs:

- *Room*. The room of a kind is the number of its pods that the cluster could take if no others
  came. A placement takes room from each kind: a part of what the kind has. The average of these
  parts over the mix, times all that is free, is what the placement costs. This is a step along the
  gradient of -sum(frequency * log(room)). So the policy spares what is scarce, and needs no list of
  it: a model that many pods insist on, nodes with eight idle GPUs, CPU beside idle GPUs.
- *Rest*. What stays unused of a GPU, with its part of the node's free CPU, if pods of the mix come
  one after the other, each is given what it asks for where it fits, and the GPU is closed at some
  time. A pod leaves the rest of what it leaves, so one pass over the sizes finds all rests.
"""

from collections import Counter

import numpy as np

from bench.replay.openb.policies import Floats, Gradient
from bench.replay.openb.state import State
from bench.replay.traces.openb import MILLI, Ints, Request

# The mix is learnt when so many times as many pods came as the last time, or when so much is left
# of what was free then: what is nearly used up becomes dear at once.
_GROWTH, _SHRINKAGE = 1.5, 0.9
_ROOM = 0.5  # weight of the room beside the rest
_CLOSES = 0.01  # how often a GPU is closed, per arrival
_SIZE = MILLI // 100  # step of the sizes in the table of rests
_CORES = 64  # in the same table; more do not help one GPU


class Room(Gradient):
    def __init__(self) -> None:
        self._seen: Counter[Request] = Counter()
        self._arrivals, self._next_arrivals, self._next_free = 0, 1.0, 0.0

    def sees(self, state: State, request: Request) -> bool:
        self._seen[request] += 1
        self._arrivals += 1
        free = int(state.gpu.sum())
        if self._arrivals < self._next_arrivals and free >= self._next_free:
            return False
        self._next_arrivals, self._next_free = self._arrivals * _GROWTH, free * _SHRINKAGE
        self._mix = Mix(self._seen, state)
        self._rests = rests(self._mix)
        nodes = np.arange(len(state.cpu))
        room = self._mix.room(nodes, state.cpu, state.memory, state.gpu).sum(axis=0)
        self._price = _ROOM * free * self._mix.share / np.maximum(room, 1)
        return True

    def _potential(self, state: State, nodes: Ints, cpu: Ints, memory: Ints, gpu: Ints) -> Floats:
        whole = np.maximum(gpu.sum(axis=1), 1)[:, None]
        cores = np.minimum(cpu[:, None] * gpu // (whole * MILLI), _CORES)
        rest = self._rests[state.model[nodes][:, None], gpu // _SIZE, cores].sum(axis=1)
        potential: Floats = rest - self._mix.room(nodes, cpu, memory, gpu) @ self._price
        return potential

    def _score(self, gain: Floats) -> Ints:
        score: Ints = np.rint(gain).astype(np.int64)
        return score


class Mix:
    """The kinds of pods with GPUs among *seen*, and how often each came, of 1."""

    def __init__(self, seen: Counter[Request], state: State) -> None:
        kinds = [kind for kind in seen if kind.gpus]
        counts: Ints = np.array([seen[kind] for kind in kinds], dtype=np.int64)
        self.share: Floats = counts / max(counts.sum(), 1)
        columns = ((k.milli_cpu, k.memory_mib, k.gpus, k.gpu_milli) for k in kinds)
        table: Ints = np.array([*columns], dtype=np.int64).reshape(-1, 4)
        self.cpu, self._memory, self.gpus, self.milli = table.T
        self._sizes = sorted({(kind.gpus, kind.gpu_milli) for kind in kinds})
        places = [self._sizes.index((kind.gpus, kind.gpu_milli)) for kind in kinds]
        self._size: Ints = np.array(places, dtype=np.int64)
        takes = [state.takes(kind)[state.examples] for kind in kinds]
        self.takes = np.array(takes, dtype=np.bool_).reshape(-1, len(state.examples)).T
        self._model = state.model

    def room(self, nodes: Ints, cpu: Ints, memory: Ints, gpu: Ints) -> Ints:
        """Return [nodes, kinds], how many pods of the kind alone each node takes with so much left.
        *gpu* is [nodes, 8]."""
        of_sizes = [(gpu // milli).sum(axis=1) // gpus for gpus, milli in self._sizes]
        if not of_sizes:
            return np.zeros((len(nodes), 0), dtype=np.int64)
        room = np.stack(of_sizes, axis=1)[:, self._size]
        np.minimum(room, cpu[:, None] // np.maximum(self.cpu, 1), out=room)
        np.minimum(room, memory[:, None] // np.maximum(self._memory, 1), out=room)
        room *= self.takes[self._model[nodes]]
        return room


def rests(mix: Mix) -> Floats:
    """Return [models, sizes, cores], the thousandths of a GPU of the model that stay unused. Sizes
    are in steps of _SIZE. A pod of several GPUs counts as one for each, with its part of the
    CPU."""
    often = mix.share * mix.gpus
    often = (mix.takes * often / max(often.sum(), 1.0))[:, :, None]
    size = -(-mix.milli // _SIZE)
    need = -(-mix.cpu // (mix.gpus * MILLI))[:, None]
    cores = np.arange(_CORES + 1)
    rest: Floats = np.zeros((len(mix.takes), MILLI // _SIZE + 1, len(cores)))
    for left in range(1, rest.shape[1]):
        comes = often * ((size[:, None] <= left) & (need <= cores))
        then = rest[:, np.maximum(left - size, 0)[:, None], np.maximum(cores - need, 0)]
        unused = _CLOSES * left * _SIZE + (comes * then).sum(axis=1)
        rest[:, left] = unused / (_CLOSES + comes.sum(axis=1))
    return rest
