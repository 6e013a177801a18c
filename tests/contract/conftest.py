"""Which world the scenarios run in: the stand-ins, or with `--real` the real programs.

A real control plane takes seconds to start, so there is one for all scenarios; the stand-in is
treated the same, so that no scenario counts on an empty server.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import pytest_runtest_makereport
from tests.contract.api_world import Api
from tests.contract.kubelet_world import KubeletNode
from tests.contract.kubelets import Kubelets, real_kubelets, stand_in_kubelets
from tests.contract.scheduler_world import Scenario, wipe
from tests.contract.servers import Programs, real_programs, stand_ins
from tests.simulator.scheduler.recording_extender import RecordingExtender

__all__ = ["pytest_runtest_makereport"]  # a failed scenario shows the real programs' logs


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Iterator[Programs]:
    chosen = real_programs if request.config.getoption("--real") else stand_ins
    with chosen() as running:
        yield running


@pytest.fixture
def api(programs: Programs) -> Api:
    return Api(programs.server)


@pytest.fixture
def world(programs: Programs, api: Api) -> Iterator[Scenario]:
    wipe(api)
    with RecordingExtender() as extender:
        world = Scenario(api, extender, programs.schedulers)
        yield world
        world.stop()


@pytest.fixture(scope="session")
def kubelets(request: pytest.FixtureRequest) -> Iterator[Kubelets]:
    chosen = real_kubelets if request.config.getoption("--real") else stand_in_kubelets
    with chosen() as made:
        yield made


@pytest.fixture
def node(kubelets: Kubelets) -> Iterator[KubeletNode]:
    yield from _world(kubelets, aligns=False)


@pytest.fixture
def aligning_node(kubelets: Kubelets) -> Iterator[KubeletNode]:
    """Its kubelet has topologyManagerPolicy single-numa-node."""
    yield from _world(kubelets, aligns=True)


def _world(kubelets: Kubelets, *, aligns: bool) -> Iterator[KubeletNode]:
    with kubelets(aligns) as kubelet:
        world = KubeletNode(kubelet)
        yield world
        world.leave_nothing()
