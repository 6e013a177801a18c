"""The same run directory and the same logs of what fails as in tests/cluster."""

from collections.abc import Iterator

import pytest

from tests.beside.world import clean
from tests.cluster.conftest import pytest_runtest_makereport, run_directory
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

__all__ = ["pytest_runtest_makereport", "run_directory"]


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    """The module's cluster. After the test it has no workload, and all GPUs are free."""
    yield started
    clean(started)
