"""Jobs and nodes for which lost room counts."""

from collections.abc import Mapping
from random import Random

import numpy as np

from bench.replay.openb.run import POLICIES, allocated_curve
from bench.replay.traces.openb import OpenbNode, OpenbTrace, Request

LARGE = OpenbNode("large", 96_000, 393_216, 8, "G2")
SMALL = OpenbNode("small", 104_000, 524_288, 2, "T4")
OLD = OpenbNode("old", 16_000, 122_880, 2, "P100")
MIX = {
    Request(3_000, 810, 1, "", 5_600): 13,
    Request(11_000, 1000, 1, "", 48_000): 36,
    Request(18_000, 1000, 1, "", 64_000): 8,
    Request(12_000, 470, 1, "", 47_000): 6,
    Request(8_000, 470, 1, "T4|P100", 30_000): 4,
    Request(12_000, 650, 1, "", 47_000): 3,
    Request(4_000, 320, 1, "", 20_000): 4,
    Request(88_000, 1000, 8, "", 320_000): 1,
    Request(16_000, 0, 0, "", 50_000): 12,
}


def made_up(nodes: tuple[OpenbNode, ...], mix: Mapping[Request, int], seed: int) -> OpenbTrace:
    """Pods of *mix*, until they ask for 130 % of the GPUs."""
    random = Random(seed)
    pods: list[Request] = []
    most = 1300 * sum(node.gpus for node in nodes)
    while sum(pod.milli for pod in pods) < most:
        pods += random.choices([*mix], [*mix.values()])
    return OpenbTrace(nodes, tuple(pods), np.arange(len(pods)), np.arange(len(nodes)))


def lost(trace: OpenbTrace, policy: str) -> float:
    """Return the GPUs that are not allocated in the end, in %."""
    curve = allocated_curve(trace, POLICIES[policy](trace, 0))
    return 100.0 - curve[max(curve)]
