"""What is free on the nodes of openb, as arrays, and the choice of GPUs on a node."""

import numpy as np
from numpy.typing import NDArray

from bench.replay.traces.openb import MILLI, MOST_GPUS, Ints, OpenbTrace, Request

Bools = NDArray[np.bool_]


class State:
    """`gpu` [nodes, 8] is what is left of each GPU in thousandths, 0 for a missing GPU."""

    def __init__(self, trace: OpenbTrace) -> None:
        self.cpu: Ints = np.array([node.milli_cpu for node in trace.nodes])
        self.memory: Ints = np.array([node.memory_mib for node in trace.nodes])
        self.counts: Ints = np.array([node.gpus for node in trace.nodes])
        self.gpu: Ints = np.where(np.arange(MOST_GPUS) < self.counts[:, None], MILLI, 0)
        self.all_cpu, self.all_memory = self.cpu.copy(), self.memory.copy()
        # By kind of request, the number of its pods on each node so far: share, 1, 2, 4, 8 GPUs.
        self.tags: dict[str, Ints] = {}
        self._models = np.array([node.model for node in trace.nodes])
        # The models by number: an example [models] of each, and the number [nodes] of each node's.
        _, self.examples, self.model = np.unique(
            self._models, return_index=True, return_inverse=True
        )
        self._taking: dict[str, Bools] = {}

    def takes(self, request: Request) -> Bools:
        """Return for each node whether its model suits the request."""
        known = self._taking.get(request.models)
        if known is None:
            models = {model: request.takes(model) for model in set(self._models.tolist())}
            known = np.array([models[model] for model in self._models.tolist()])
            self._taking[request.models] = known
        return known

    def fits(self, request: Request, nodes: Ints) -> Bools:
        """A pod of one or more whole GPUs needs idle ones."""
        good = (self.cpu[nodes] >= request.milli_cpu) & (self.memory[nodes] >= request.memory_mib)
        if not request.gpus:
            return good
        enough = (self.gpu[nodes] >= request.gpu_milli).sum(axis=1) >= request.gpus
        fitting: Bools = good & enough & self.takes(request)[nodes]
        return fitting

    def tightest(self, request: Request, node: int) -> tuple[int, ...]:
        """Return the GPU with the least left for a share, else the lowest idle ones."""
        left = self.gpu[node]
        fitting = np.flatnonzero(left >= request.gpu_milli)
        if request.shares:
            return (int(fitting[left[fitting].argmin()]),)
        return tuple(fitting[: request.gpus].tolist())

    def give(self, request: Request, node: int, gpus: tuple[int, ...]) -> None:
        self.cpu[node] -= request.milli_cpu
        self.memory[node] -= request.memory_mib
        for gpu in gpus:
            self.gpu[node, gpu] -= request.gpu_milli
        if request.gpus:
            tag = tag_of(request)
            self.tags.setdefault(tag, np.zeros(len(self.cpu), dtype=np.int64))[node] += 1


def tag_of(request: Request) -> str:
    return "share" if request.shares else f"{request.gpus}"
