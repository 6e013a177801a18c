"""A running API server stand-in, a client of it, and waiting for what threads do."""

from collections.abc import Iterator

import pytest

from linkwise.kube.client import KubeClient
from linkwise.simulator.api_server import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> KubeClient:
    return KubeClient.load(kubeconfig=None, server=server.url)
