"""Control planes for the tests, and their logs if a test fails."""

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host import sandbox
from tests.cluster.support.host.logs import keep, tails


@pytest.fixture(scope="session")
def run_directory() -> Path:
    """Return the directory of this run. Fails outside a sandbox, where no test can work."""
    directory = sandbox.directory()
    if directory is None:
        pytest.fail("needs the sandbox; run: python -m tests.cluster test", pytrace=False)
    return directory


@pytest.fixture(scope="module")
def control_plane(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane without nodes or a scheduler, for the tests of one module."""
    directory = run_directory / f"control-plane-{request.module.__name__.rpartition('.')[2]}"
    plane = ControlPlane(directory)
    plane.start()
    yield plane
    plane.stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    directory = sandbox.directory()
    if report.failed and directory is not None:
        kept = keep(directory, item.name)
        report.sections.append((f"logs of the cluster, kept in {kept}", tails(kept)))
    return report
