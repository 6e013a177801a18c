"""kube-scheduler's sample of the nodes: pkg/scheduler/schedule_one.go, numFeasibleNodesToFind and
findNodesThatPassFilters."""

import numpy as np
from numpy.typing import NDArray

from bench.replay.traces.openb import Ints

_LEAST_NODES = 100  # minFeasibleNodesToFind
_LEAST_PERCENT = 5  # minFeasibleNodesPercentageToFind, of its own formula


class Sample:
    """Takes the first nodes that fit, from where the last search ended.

    *percent* is percentageOfNodesToScore; 0: kube-scheduler's own formula.
    """

    def __init__(self, percent: int, nodes: int) -> None:
        self._start = 0
        self.most = most_nodes(percent, nodes)

    def take(self, fits: NDArray[np.bool_]) -> Ints:
        """Return the positions of the nodes to compare, ascending; *fits*: [nodes]."""
        nodes = len(fits)
        order = (np.arange(nodes) + self._start) % nodes
        found = np.flatnonzero(fits[order])[: self.most]
        tried = int(found[-1]) + 1 if len(found) == self.most else nodes
        self._start = (self._start + tried) % nodes
        taken: Ints = np.sort(order[found])
        return taken


def most_nodes(percent: int, nodes: int) -> int:
    """Return after how many nodes that fit kube-scheduler ends its search."""
    share = percent or max(50 - nodes // 125, _LEAST_PERCENT)
    return max(nodes * share // 100, min(nodes, _LEAST_NODES))
