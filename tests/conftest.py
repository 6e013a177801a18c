"""Options of every run: whether what is tested meets stand-ins or real programs."""

import pytest

from tests.serving.tls import Authority


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
