"""Which world the scenarios run in: the stand-ins, or with `--real` the real programs.

A real control plane takes seconds to start, so there is one for all scenarios; the stand-in is
treated the same, so that no scenario counts on an empty server.
"""

from collections.abc import Iterator

import pytest

from tests.contract.api_world import Api, Server
from tests.contract.servers import real_server, stand_in_server


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    chosen = real_server if request.config.getoption("--real") else stand_in_server
    with chosen() as running:
        yield running


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)
