"""Draws what kube-scheduler and kubelet alone give the same manifests, several times.

Stock Kubernetes decides much by chance (nodes of equal score, the kubelet's order of devices). One
run therefore says little, and each draw has its own seed.
"""

from collections.abc import Callable, Sequence

from linkwise.simulator.demo.cluster import SimulatedCluster
from linkwise.simulator.demo.run import ManifestRun
from linkwise.simulator.manifests.read_manifests import Manifest
from linkwise.simulator.report.model import Rival, SeenPod


def draw(
    cluster: SimulatedCluster,
    manifests: Sequence[Manifest],
    *,
    draws: int,
    rival: Rival,
    seed: int,
    seconds: float,
    say: Callable[[str], None],
) -> tuple[tuple[SeenPod, ...], ...]:
    """Run the manifests *draws* times without Linkwise. Leave the cluster as it was.

    Raises ChildError, and ClusterTimeoutError if a draw takes longer than *seconds*.
    """
    outcomes = []
    for number in range(draws):
        say(f"draw {number + 1} of {draws}")
        with ManifestRun(cluster, manifests, seed=seed + number, rival=rival) as run:
            run.settle(seconds)
            outcomes.append(run.seen())
            run.clean_away(seconds)
    return tuple(outcomes)
