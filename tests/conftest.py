"""Options of every run: whether what is tested meets stand-ins or real programs."""

import pytest
from hypothesis import HealthCheck, settings

from tests.serving.tls import Authority

# A busy machine is no mistake: no example of a law has a time that it must keep to.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real",
        action="store_true",
        help="meet a real Kubernetes in place of the stand-ins; inside a sandbox only: "
        "python -m tests.cluster test",
    )


@pytest.fixture(scope="session")
def authority() -> Authority:
    """One for all tests of ports: it never changes."""
    return Authority()
