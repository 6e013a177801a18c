"""A node on which Linkwise's plugin is in front of a vendor's; the test drives the kubelet."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from linkwise.plugin.device_plugin.allocate import Pick, pick_ring
from linkwise.plugin.device_plugin.preferred_allocation import Advisor
from linkwise.plugin.device_plugin.server import Advice
from linkwise.plugin.in_front.front import Front
from linkwise.plugin.in_front.patience import Patience
from linkwise.plugin.metrics import Metrics
from linkwise.topology.machine.model import Machine
from tests.machines import DGX_1V
from tests.plugin.fake_kubelet import FakeKubelet, Plugin
from tests.plugin.in_front.scripted import GPU, ScriptedVendor
from tests.plugin.pods import decided, pod
from tests.waiting import wait_for

UUIDS = tuple(gpu.uuid for gpu in DGX_1V.gpus)
# What never comes to be due in a test that does not say so.
PATIENCE = Patience(
    look=0.01,
    probe=3600.0,
    first_list=3600.0,
    renewal=3600.0,
    own_knowledge=3600.0,
)


class FrontNode:
    """One node. Not started: `front.open`, then `front.start`."""

    def __init__(self, directory: Path) -> None:
        self.kubelet = FakeKubelet(directory)
        self.kubelet.start()
        self.registry = directory / "linkwise" / "kubelet.sock"
        self.vendor = ScriptedVendor(directory, self.registry)
        self.metrics = Metrics()
        self.allocated = self.lost = self.changed = 0
        self.machine: Machine = DGX_1V
        self.front = self.make_front()

    def make_front(self, *, pick: Pick = pick_ring, **patience: float) -> Front:
        """Instead of the one there is, if that has not been opened."""
        self.front = Front(
            kubelet_socket=self.kubelet.socket,
            vendor_socket=self.registry,
            managed=GPU,
            metrics=self.metrics,
            patience=replace(PATIENCE, **patience),
        )
        self.advisor = Advisor(node="n1", resource=GPU, pick=pick, pod_wait_seconds=0.0)
        self.front.know(self.machine)
        self.front.advise(
            Advice(self.advisor, self.metrics),
            on_allocated=self._on_allocated,
            on_lost=self._on_lost,
            on_change=self._on_change,
        )
        return self.front

    def _on_allocated(self) -> None:
        self.allocated += 1

    def _on_lost(self) -> None:
        self.lost += 1

    def _on_change(self) -> None:
        self.changed += 1

    def open(self) -> None:
        self.front.open()
        self.front.start()

    def start(self) -> Plugin:
        """Wait until the kubelet has the GPUs; return its end of the connection."""
        self.open()
        return self.plugin()

    def plugin(self, resource: str = GPU, registrations: int = 1) -> Plugin:
        """Once the kubelet has heard a list of that resource's devices."""
        of = self.kubelet.of
        wait_for(
            lambda: len(of(resource)) >= registrations and of(resource)[-1].lists,
            f"a list of {resource}",
        )
        return of(resource)[-1]

    def offering(self, ids: Collection[str], resource: str = GPU) -> Plugin:
        """Once the kubelet's newest connection lists just *ids* as healthy. A vendor's plugin that
        begins again may be noticed as lost first, and the resource then registers once more."""
        of = self.kubelet.of
        wait_for(
            lambda: (
                of(resource)
                and not of(resource)[-1].ended
                and healthy(of(resource)[-1]) == set(ids)
            ),
            f"healthy devices of {resource}: {', '.join(ids)}",
        )
        return of(resource)[-1]

    def planned(self, name: str, gpus: tuple[str, ...]) -> None:
        notes = decided(f"uid-{name}", {"main": gpus})
        self.advisor.pod_event("ADDED", pod(name, ("main", len(gpus)), annotations=notes))

    def sick(self, *uuids: str) -> None:
        """By Linkwise's own knowledge, these GPUs and no others."""
        gpus = tuple(replace(gpu, healthy=gpu.uuid not in uuids) for gpu in DGX_1V.gpus)
        self.machine = replace(DGX_1V, gpus=gpus)
        self.front.know(self.machine)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"linkwise_plugin_{name}", labels) or 0.0

    def stop(self) -> None:
        self.front.stop()
        self.vendor.leave()
        self.kubelet.stop()


@pytest.fixture
def world(kubelet_dir: Path) -> Iterator[FrontNode]:
    running = FrontNode(kubelet_dir)
    yield running
    running.stop()


def healthy(plugin: Plugin) -> set[str]:
    return {each for each, health in plugin.health.items() if health == "Healthy"}


def numa_nodes(plugin: Plugin) -> Mapping[str, list[int]]:
    return {d.ID: [node.ID for node in d.topology.nodes] for d in plugin.lists[-1].devices}
