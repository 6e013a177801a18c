"""What tests of several ports need."""

import pytest

from tests.extender.serving.tls import Authority


@pytest.fixture(scope="session")
def authority() -> Authority:
    """It never changes."""
    return Authority()
