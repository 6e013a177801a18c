"""How long kube-scheduler stands still when the leader's machine dies:
`python -m bench.leader_lost`.

A real cluster runs with Linkwise installed as in the tests: kube-scheduler, kube-proxy, kubelets
and containers are real. From one moment on, every packet to and from the leader's pod is dropped,
so no caller gets a refusal. kube-scheduler tries one pod after the other, so a call without an
answer delays all pods, including those without GPUs. Right after that moment, eight pods of one GPU
each are created, then one pod without GPUs every fifth of a second.

Address out: the time until the Service no longer leads to the dead leader; after it, calls are
refused at once. Without GPUs: the longest wait of such a pod, from its creation until it has a
node. With GPUs: the same for the other pods, which need a new leader.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import click

from bench.support.figures import print_table, this_machine
from bench.support.programs import in_sandbox
from tests.cluster.__main__ import build_all
from tests.cluster.support.host.dropped_packets import swallowed
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import (
    DeployedLinkwise,
    wait_until_none,
)
from tests.cluster.support.nodes.gpu_holders import left_behind, running
from tests.cluster.support.nodes.leader import led_to

GPU_PODS = tuple(f"gpu-{number}" for number in range(8))
_EVERY_SECONDS = 0.2
_PATIENCE_SECONDS = 120.0


@dataclass
class Times:
    out: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)  # pod -> seconds

    @property
    def longest(self) -> float:
        return max(wait for name, wait in self.waits.items() if name not in GPU_PODS)

    @property
    def of_gpu_pods(self) -> float:
        return max(self.waits[name] for name in GPU_PODS)


def lose_leader(deployed: DeployedLinkwise) -> Times:
    """Drop the leader's packets; return once all pods have a node."""
    times = Times()
    address = led_to(deployed)
    deployed.apply(workloads.job("before", 4))
    running(deployed, "job-name=before", 1)  # so that kube-scheduler has connections to the leader
    began, names = time.monotonic(), list(GPU_PODS)
    with swallowed(address):
        deployed.apply(*(workloads.pod(name, 1) for name in GPU_PODS))
        while time.monotonic() - began < _PATIENCE_SECONDS:
            if not times.out and led_to(deployed) != address:
                times.out = time.monotonic() - began
            if times.out and all(bound(deployed.pod(name)) for name in GPU_PODS):
                break
            names.append(f"none-{len(names)}")
            deployed.apply(workloads.pod(names[-1], 0))
            time.sleep(_EVERY_SECONDS)
        wait_for(lambda: all(bound(deployed.pod(name)) for name in names), "all have a node")
    times.waits = {name: waited(deployed.pod(name)) for name in names}
    return times


def bound(pod: Mapping[str, Any]) -> bool:
    return bool(pod["spec"].get("nodeName"))


def waited(pod: Mapping[str, Any]) -> float:
    """Whole seconds: the API server's times have no fractions."""
    (scheduled,) = (c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")
    created, done = pod["metadata"]["creationTimestamp"], scheduled["lastTransitionTime"]
    return (datetime.fromisoformat(done) - datetime.fromisoformat(created)).total_seconds()


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
def main(rounds: int) -> None:
    directory = in_sandbox("bench.leader_lost", build_all)
    click.echo(f"Seconds: {this_machine()}\n")
    deployed = DeployedLinkwise(directory / "deployed")
    try:
        deployed.start()
        rows = []
        for number in range(rounds):
            times = lose_leader(deployed)
            longest = (f"{seconds:.0f}" for seconds in (times.longest, times.of_gpu_pods))
            rows.append([str(number + 1), f"{times.out:.1f}", *longest])
            settle(deployed)
        print_table(["round", "address out", "without GPUs", "with GPUs"], rows)
    finally:
        deployed.stop()


def settle(deployed: DeployedLinkwise) -> None:
    """Restore the state before the round: both extenders run, and no pod is left."""
    deployed.clear()
    wait_until_none(lambda: left_behind(deployed))
    deployed.wait_ready()


if __name__ == "__main__":
    main()
