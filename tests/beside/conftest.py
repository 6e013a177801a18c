"""The same run directory and the same logs of what fails as in tests/cluster."""

from tests.cluster.conftest import pytest_runtest_makereport, run_directory

__all__ = ["pytest_runtest_makereport", "run_directory"]
