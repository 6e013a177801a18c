"""Which node a pod of openb gets: the policies that FGD's authors compared, and kube-scheduler's.

A policy gives every node an integer score, and the highest wins. The integers matter: ties decide
much of what a policy does.

Sources of the formulas: the artifact of Weng et al., "Beware of Fragmentation" (ATC 2023), for
DotProd (Tetris, with the smaller product preferred), clustering, packing, best fit and FGD.
LeastAllocated and MostAllocated are kube-scheduler's, over CPU, memory and GPUs.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bench.replay.openb.state import State, tag_of
from bench.replay.traces.openb import MILLI, MOST_GPUS, Ints, Request

Floats = NDArray[np.float64]
_MOST_CPU = 128_000.0  # of the largest node, in thousandths; the policies' unit
_MOST_GPU = MOST_GPUS * MILLI
WORST = np.iinfo(np.int64).min  # the score of a node or GPU on which the request does not fit
_TYPICAL = 0.95  # share of the pods, the most frequent kinds first


class Policy(Protocol):
    def sees(self, state: State, request: Request) -> bool:
        """Take note of an arrival. Return True if the scores of unchanged nodes may change."""

    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        """Return the scores of *nodes*, on which the request fits, in their order."""

    def gpus(self, state: State, request: Request, node: int) -> tuple[int, ...]: ...


class _Steady:
    def sees(self, state: State, request: Request) -> bool:  # noqa: ARG002
        return False


class _Tightest(_Steady):
    """Chooses the GPUs of a node as most policies do."""

    def gpus(self, state: State, request: Request, node: int) -> tuple[int, ...]:
        return state.tightest(request, node) if request.gpus else ()


class DotProduct(_Tightest):
    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        cpu = (state.cpu[nodes] / _MOST_CPU) * (request.milli_cpu / _MOST_CPU)
        gpu = (state.gpu[nodes].sum(axis=1) / _MOST_GPU) * (request.milli / _MOST_GPU)
        return _whole(100.0 * (1.0 - (cpu + gpu) / 2.0))


def _whole(scores: Floats) -> Ints:
    """Truncate, as Go's int64() does."""
    cut: Ints = scores.astype(np.int64)
    return cut


class BestFit(_Tightest):
    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        return _whole((1.0 - _left_over(state, request, nodes)) * 100.0)


class WorstFit(_Tightest):
    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        return _whole(_left_over(state, request, nodes) * 100.0)


def _left_over(state: State, request: Request, nodes: Ints) -> Floats:
    cpu = (state.cpu[nodes] - request.milli_cpu) / _MOST_CPU * 0.5
    left: Floats = cpu + (state.gpu[nodes].sum(axis=1) - request.milli) / _MOST_GPU * 0.5
    return left


class Packing(_Tightest):
    """Prefers shared GPUs, then idle GPUs of nodes in use, then idle nodes."""

    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        if not request.gpus:
            return np.zeros(len(nodes), dtype=np.int64)
        left, counts = state.gpu[nodes], state.counts[nodes]
        idle = (left == MILLI).sum(axis=1)
        usable = np.where(left >= request.gpu_milli, left, 2 * MILLI)
        used = np.sort(usable, axis=1)[:, : request.gpus]
        to_use = (used == MILLI).sum(axis=1)
        in_use = np.maximum(50 - to_use, 33)
        ratio = np.where(used <= MILLI, used * 100 // MILLI, 0).sum(axis=1)
        shared = np.maximum(100 - ratio // 10, 50)
        scores = np.where(to_use > 0, in_use, shared)
        packed: Ints = np.where(idle == counts, np.maximum(33 - idle, idle), scores)
        return packed


class Clustering(_Tightest):
    """Prefers nodes with pods of the same size, above all those with no other pods."""

    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        if not request.gpus:
            return np.zeros(len(nodes), dtype=np.int64)
        nothing = np.zeros(len(nodes), dtype=np.int64)
        kinds = sum(((of[nodes] > 0).astype(np.int64) for of in state.tags.values()), nothing)
        same = state.tags[tag_of(request)][nodes] > 0 if tag_of(request) in state.tags else nothing
        of_same = np.where(kinds == 1, 75, 50)
        base = np.where(same, of_same, np.where(kinds == 0, 25, 0))
        left = state.gpu[nodes].sum(axis=1)
        scores: Ints = 25 * (_MOST_GPU - left) // _MOST_GPU + base
        return scores


class FirstFit(_Tightest):
    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:  # noqa: ARG002
        return np.zeros(len(nodes), dtype=np.int64)


class Random(_Tightest):
    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def sees(self, state: State, request: Request) -> bool:  # noqa: ARG002
        return True

    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:  # noqa: ARG002
        return self._random.permutation(len(nodes))


class Allocated(_Tightest):
    """kube-scheduler's LeastAllocated, or MostAllocated, with equal weights."""

    def __init__(self, *, least: bool) -> None:
        self._least = least

    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        offers = (
            (state.cpu[nodes] - request.milli_cpu, state.all_cpu[nodes]),
            (state.memory[nodes] - request.memory_mib, state.all_memory[nodes]),
            (state.gpu[nodes].sum(axis=1) - request.milli, state.counts[nodes] * MILLI),
        )
        free = [left * 100 // np.maximum(whole, 1) for left, whole in offers]
        parts = free if self._least else [100 - share for share in free]
        return sum(parts, np.zeros(len(nodes), dtype=np.int64)) // len(parts)


class Gradient(ABC):
    """Chooses the node and GPU where a potential of the node grows least."""

    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        if not request.shares:
            before = self._now(state, nodes)
            return self._of(state, request, nodes, before, _packed(state, request, nodes))
        best: Ints = self._of_each_gpu(state, request, nodes).max(axis=1)
        return best

    def gpus(self, state: State, request: Request, node: int) -> tuple[int, ...]:
        if not request.gpus:
            return ()
        if not request.shares:
            return state.tightest(request, node)
        return (int(self._of_each_gpu(state, request, np.array([node]))[0].argmax()),)

    def _of_each_gpu(self, state: State, request: Request, nodes: Ints) -> Ints:
        """Return [nodes, 8]; WORST for a GPU with too little left, or with as much as an earlier
        one: the result is the same, and the first of equals is taken."""
        left = state.gpu[nodes]
        scores = np.full(left.shape, WORST, dtype=np.int64)
        as_before = np.tril(left[:, :, None] == left[:, None, :], -1).any(axis=2)
        which, gpu = np.nonzero((left >= request.gpu_milli) & ~as_before)
        then = left[which]
        then[np.arange(len(which)), gpu] -= request.gpu_milli
        before = self._now(state, nodes)[which]
        scores[which, gpu] = self._of(state, request, nodes[which], before, then)
        return scores

    def _now(self, state: State, nodes: Ints) -> Floats:
        return self._potential(
            state, nodes, state.cpu[nodes], state.memory[nodes], state.gpu[nodes]
        )

    def _of(self, state: State, request: Request, nodes: Ints, before: Floats, then: Ints) -> Ints:
        cpu, memory = state.cpu[nodes] - request.milli_cpu, state.memory[nodes] - request.memory_mib
        return self._score(before - self._potential(state, nodes, cpu, memory, then))

    @abstractmethod
    def _potential(self, state: State, nodes: Ints, cpu: Ints, memory: Ints, gpu: Ints) -> Floats:
        """Return for each of *nodes* what it would be with so much left, in thousandths of GPUs.
        *gpu* is [nodes, 8]."""

    @abstractmethod
    def _score(self, gain: Floats) -> Ints:
        """Return the score of a placement by what it takes off the potential."""


def _packed(state: State, request: Request, nodes: Ints) -> Ints:
    left = state.gpu[nodes].copy()
    if request.gpus:
        fitting = left >= request.gpu_milli
        taken = fitting & (fitting.cumsum(axis=1) <= request.gpus)
        left[taken] -= request.gpu_milli
    return left


class Fgd(_Steady, Gradient):
    """Fragmentation gradient descent: the potential is the GPUs that a typical pod could not use.
    It knows the frequency of each kind of pod in the whole trace."""

    def __init__(self, pods: Sequence[Request]) -> None:
        typical = typical_pods(pods)
        self._kinds = tuple(typical)
        self._share: Floats = np.array(list(typical.values()))
        self._cpu: Ints = np.array([kind.milli_cpu for kind in typical])
        self._milli: Ints = np.array([kind.gpu_milli for kind in typical])
        self._count: Ints = np.array([kind.gpus for kind in typical])
        self._access: NDArray[np.bool_] | None = None  # [kinds, nodes]

    def _score(self, gain: Floats) -> Ints:
        return _whole(1.0 / (1.0 + np.exp(-gain / MILLI)) * 100.0)

    def _potential(
        self,
        state: State,
        nodes: Ints,
        cpu: Ints,
        memory: Ints,  # noqa: ARG002
        gpu: Ints,
    ) -> Floats:
        """Return the thousandths of GPUs that a typical pod could not use, on average. The sums
        follow the authors' order, because the last bit decides at the edge of an integer."""
        if self._access is None:
            self._access = np.array([state.takes(kind) for kind in self._kinds])
        left = gpu.sum(axis=1)
        fitting = gpu[None] >= self._milli[:, None, None]  # [kinds, nodes, 8]
        enough = fitting.sum(axis=2) >= self._count[:, None]
        has_cpu = cpu >= self._cpu[:, None]
        access = self._access[:, nodes]
        wants_gpu = (self._milli > 0)[:, None]
        too_small = np.where(fitting, 0, gpu[None]).sum(axis=2)
        share = self._share[:, None]
        all_left, part_left = share * left, share * too_small
        of_gpu = wants_gpu & access
        sums = (
            np.where(of_gpu & ~enough & ~has_cpu, all_left, 0.0),
            np.where(of_gpu & enough & has_cpu, part_left, 0.0)
            + np.where(of_gpu & ~enough & has_cpu, all_left, 0.0),
            np.where(of_gpu & enough & ~has_cpu, all_left, 0.0),
            np.where(~wants_gpu & has_cpu, all_left, 0.0),
            np.where(~wants_gpu & ~has_cpu, all_left, 0.0),
            np.where(wants_gpu & ~access, all_left, 0.0),
        )
        total: Floats = np.zeros(len(nodes))
        for part in sums:
            total = total + part.cumsum(axis=0)[-1]  # sequential, unlike sum()
        return total


def typical_pods(pods: Sequence[Request]) -> Mapping[Request, float]:
    """Return the most frequent kinds of pods with their shares, most frequent first."""
    counts = Counter(Request(p.milli_cpu, p.gpu_milli, p.gpus, p.models) for p in pods)
    kinds = sorted(counts, key=lambda kind: (counts[kind], kind), reverse=True)
    typical: list[Request] = []
    seen = 0
    for kind in kinds:
        if seen >= _TYPICAL * len(pods):
            break
        typical.append(kind)
        seen += counts[kind]
    if len(typical) == len(kinds):
        return {kind: counts[kind] / len(pods) for kind in typical}
    return {kind: (counts[kind] / len(pods)) / (seen / len(pods)) for kind in typical}
