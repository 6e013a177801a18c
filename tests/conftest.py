"""Options of every run: whether what is tested meets stand-ins or real programs. And what tests of
several rooms need: an API server's stand-in, and a client of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from linkwise.kube.client import KubeClient
from linkwise.simulator.api_server import ApiServer
from tests.serving.tls import Authority

# A busy machine is no mistake: no example of a law has a time that it must keep to.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# The longest takes a few minutes, and the first of a module waits for its control plane too.
_REAL_SECONDS = 1800.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real",
        action="store_true",
        help="meet a real Kubernetes instead of the stand-ins; inside a sandbox only: "
        "python -m tests.cluster test",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A real Kubernetes takes minutes for what a stand-in does at once."""
    tests = Path(__file__).parent
    slow = ("",) if config.getoption("--real") else ("beside", "cluster")
    for item in items:
        if any(item.path.is_relative_to(tests / folder) for folder in slow):
            item.add_marker(pytest.mark.timeout(_REAL_SECONDS))


@pytest.fixture(scope="session")
def authority() -> Authority:
    """One for all tests of ports: it never changes."""
    return Authority()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> KubeClient:
    return KubeClient.load(kubeconfig=None, server=server.url)
