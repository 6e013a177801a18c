"""Replays openb: pods arrive one after the other, get the best node or are dropped, and never
end."""

from collections.abc import Callable, Mapping

import numpy as np

from bench.replay.openb import policies
from bench.replay.openb.policies import WORST, Policy
from bench.replay.openb.production import Linkwise, UnderKubeScheduler
from bench.replay.openb.room import Room
from bench.replay.openb.sample import Sample
from bench.replay.openb.state import State
from bench.replay.traces.openb import Ints, OpenbTrace, Request

POLICIES: Mapping[str, Callable[[OpenbTrace, int], Policy]] = {
    "dotprod": lambda trace, seed: policies.DotProduct(),  # noqa: ARG005
    "clustering": lambda trace, seed: policies.Clustering(),  # noqa: ARG005
    "packing": lambda trace, seed: policies.Packing(),  # noqa: ARG005
    "bestfit": lambda trace, seed: policies.BestFit(),  # noqa: ARG005
    "fgd": lambda trace, seed: policies.Fgd(trace.pods),  # noqa: ARG005
    "firstfit": lambda trace, seed: policies.FirstFit(),  # noqa: ARG005
    "worstfit": lambda trace, seed: policies.WorstFit(),  # noqa: ARG005
    "leastallocated": lambda trace, seed: policies.Allocated(least=True),  # noqa: ARG005
    "mostallocated": lambda trace, seed: policies.Allocated(least=False),  # noqa: ARG005
    "room": lambda trace, seed: Room(),  # noqa: ARG005
    "linkwise": lambda trace, seed: UnderKubeScheduler(Linkwise(trace)),  # noqa: ARG005
    "bestfit-gpus": lambda trace, seed: UnderKubeScheduler(policies.BestFit()),  # noqa: ARG005
    "fgd-gpus": lambda trace, seed: UnderKubeScheduler(policies.Fgd(trace.pods)),  # noqa: ARG005
    "room-gpus": lambda trace, seed: UnderKubeScheduler(Room()),  # noqa: ARG005
    "random": lambda trace, seed: policies.Random(seed),  # noqa: ARG005
}
PUBLISHED = {
    "dotprod": "DotProd",
    "clustering": "GpuClustering",
    "packing": "GpuPacking",
    "bestfit": "BestFit",
    "fgd": "FGD",
}
"""Policies whose published curves the replay meets exactly, with their published names."""
NOT_BELOW = {"room": "fgd"}
"""Our own policies, with those whose published curves they may not fall below."""


class _Scores:
    """The nodes' scores for each kind of request. Only nodes that changed are scored again, until
    the policy changes its mind."""

    def __init__(self, state: State, policy: Policy, sample: Sample | None) -> None:
        self._state, self._policy, self._sample = state, policy, sample
        self._known: dict[Request, Ints] = {}
        self._seen: dict[Request, int] = {}
        self._changed: list[int] = []

    def changed(self, node: int) -> None:
        self._changed.append(node)

    def of(self, request: Request) -> Ints:
        """Return the scores; WORST for a node on which the request does not fit, or that is not in
        the sample."""
        if self._policy.sees(self._state, request):
            self._known.clear()
        if self._sample is not None:
            return self._of_sample(request, self._sample)
        known = self._known.get(request)
        if known is None:
            nodes = np.arange(len(self._state.cpu))
            known = self._known[request] = np.empty(len(nodes), dtype=np.int64)
        else:
            nodes = np.array(sorted(set(self._changed[self._seen[request] :])), dtype=np.int64)
        self._seen[request] = len(self._changed)
        if len(nodes):
            known[nodes] = WORST
            fitting = nodes[self._state.fits(request, nodes)]
            if len(fitting):
                known[fitting] = self._policy.scores(self._state, request, fitting)
        return known

    def _of_sample(self, request: Request, sample: Sample) -> Ints:
        scores = np.full(len(self._state.cpu), WORST, dtype=np.int64)
        nodes = sample.take(self._state.fits(request, np.arange(len(scores))))
        if len(nodes):
            scores[nodes] = self._policy.scores(self._state, request, nodes)
        return scores


def allocated_curve(
    trace: OpenbTrace,
    policy: Policy,
    progress: Callable[[int], object] = lambda _: None,
    sample: Sample | None = None,
) -> dict[int, float]:
    """Return the allocated GPUs in % by the requested GPUs in %. Without *sample*, all nodes are
    compared, as published.

    As published, each whole percent has the mean over the arrivals that round to it.
    """
    state = State(trace)
    scores = _Scores(state, policy, sample)
    rank = np.empty(len(trace.nodes), dtype=np.int64)
    rank[trace.node_order] = np.arange(len(trace.nodes))
    arrived = allocated = 0
    points: dict[int, list[float]] = {}
    for number, pod in enumerate(trace.arrivals.tolist()):
        request = trace.pods[pod]
        arrived += request.milli
        of_nodes = scores.of(request)
        best = of_nodes.max()
        if best > WORST:
            first = np.flatnonzero(of_nodes == best)
            node = int(first[rank[first].argmin()])
            state.give(request, node, policy.gpus(state, request, node))
            scores.changed(node)
            allocated += request.milli
        percent = round(arrived / trace.gpus / 10)
        points.setdefault(percent, []).append(round(allocated / trace.gpus / 10, 2))
        progress(number + 1)
    return {percent: float(np.mean(shares)) for percent, shares in points.items()}
