"""Two nodes with Linkwise as a user installs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.support.nodes.deployment import DeployedLinkwise, wait_until_none
from tests.cluster.support.nodes.gpu_holders import left_behind


@pytest.fixture(scope="session")
def deployment(run_directory: Path) -> Iterator[DeployedLinkwise]:
    """One deployment for all tests, as it takes a minute and the sandbox's network."""
    deployed = DeployedLinkwise(run_directory / "deployed")
    try:
        deployed.start()
        yield deployed
    finally:
        deployed.stop()


@pytest.fixture
def deployed(deployment: DeployedLinkwise) -> Iterator[DeployedLinkwise]:
    """Two nodes with Linkwise and all GPUs free. After the test nothing of it may be left."""
    yield deployment
    deployment.clear()
    wait_until_none(lambda: left_behind(deployment))
