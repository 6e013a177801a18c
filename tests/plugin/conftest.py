"""A kubelet to drive, in a directory of its own; a driver to ask, whose calls may hang.

Unix socket paths are short, so the kubelet's directory is not tmp_path.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from linkwise.kube.client import KubeClient
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.simulator.api_server import ApiServer
from tests.machines import HGX_H100
from tests.plugin.fake_kubelet import FakeKubelet
from tests.plugin.fake_nvml import DRIVER_SECONDS, NO_SYSFS, FakeNvml


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lw-") as directory:
        yield Path(directory)


@pytest.fixture
def kubelet(kubelet_dir: Path) -> Iterator[FakeKubelet]:
    running = FakeKubelet(kubelet_dir)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def released() -> Iterator[Event]:
    """Lets the calls that hang return; set at the end, so that no test leaves a thread behind."""
    event = Event()
    yield event
    event.set()


@pytest.fixture
def driver(released: Event) -> FakeNvml:
    return FakeNvml(HGX_H100, released=released)


@pytest.fixture
def source(driver: FakeNvml) -> NvmlInventory:
    return NvmlInventory(driver, sys_root=NO_SYSFS, driver_seconds=DRIVER_SECONDS)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """With the Node n1."""
    with ApiServer() as running:
        client = KubeClient.load(kubeconfig=None, server=running.url)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        client.post("/api/v1/nodes", node)
        yield running
