"""What a pod of thousands of containers requests is summed once, while others use the core."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from linkwise.extender.api.records import ResourceList
from linkwise.extender.cache.resource_lists import pod_needs
from linkwise.kube.objects import Pod
from linkwise.topology.demand import PodDemand
from tests.extender.cluster import Cluster, container

T = TypeVar("T")


def test_a_large_pod_is_read_once_and_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    at, unlocked, reads = Cluster(), [False], list[bool]()
    at.add_node("n0")

    def aside(work: Callable[[], T], /) -> T:
        unlocked.append(True)
        try:
            return work()
        finally:
            unlocked.pop()

    def noted(pod: Pod, demand: PodDemand, managed: str) -> ResourceList:
        if pod.metadata.name == "large":
            reads.append(unlocked[-1])
        return pod_needs(pod, demand, managed)

    monkeypatch.setattr("linkwise.extender.cache.ingest.pod_needs", noted)
    at.core.set_unlocker(aside)
    containers = [container(f"c{number}", 0, cpu="1m") for number in range(1000)]
    at.add_pod("large", containers=[container("main", 1), *containers])
    for minutes in range(3):
        at.annotate("large", expected_duration=f"{minutes + 1}m")
    at.settle()
    assert at.filter("large").node_names == ("n0",)
    assert reads == [True]
