"""The extender served as it is deployed, and called as kube-scheduler calls it, in its order."""

from collections.abc import Iterator
from threading import Thread

import pytest

from linkwise.extender.core import Core
from linkwise.extender.core_settings import CoreSettings
from linkwise.extender.runtime.loop import Loop
from linkwise.extender.runtime.metrics import ExtenderMetrics
from linkwise.extender.runtime.ports.dispatch import Verbs
from linkwise.extender.runtime.ports.routes import create_app
from linkwise.extender.runtime.ports.scheduler_port import VerbServer
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.scheduler import SchedulerLoop, SchedulerSettings
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from tests.extender.world import ApiObjects, wait_for

FAST = SchedulerSettings(initial_backoff_seconds=0.05, max_backoff_seconds=0.2, extender_weight=2)


class Deployed:
    """One extender with a port of its own."""

    def __init__(self, world: ApiObjects, port: int = 0) -> None:
        self.metrics = ExtenderMetrics()
        self.loop = Loop(Core(CoreSettings()), world.client, self.metrics)
        self.views = create_app(self.loop, self.metrics).test_client()
        verbs = Verbs(self.loop, self.metrics, max_body_mib=64)
        self._server = VerbServer(
            "127.0.0.1", port, verbs, threads=8, call_seconds=5.0, secure=False
        )
        self.port = self._server.port
        self._thread = Thread(target=self._server.run, daemon=True)
        self.loop.start()
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """As SIGTERM does: no new calls, then the rest."""
        self._server.close()
        self._thread.join(5)
        assert not self._thread.is_alive()
        self.loop.stop()

    def explain(self, pod: str) -> str:
        return self.views.get(f"/explain/ml/{pod}?format=text").text

    def errors(self) -> float:
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            if family.name == "linkwise_extender_errors"
            for sample in family.samples
        )


@pytest.fixture
def world() -> Iterator[ApiObjects]:
    with ApiServer() as server:
        world = ApiObjects(server)
        for name in ("n1", "n2", "n3", "n4"):
            world.add_node(name)
        yield world


@pytest.fixture
def extender(world: ApiObjects) -> Iterator[Deployed]:
    deployed = Deployed(world)
    yield deployed
    assert deployed.loop.audit() == []
    assert deployed.errors() == 0
    deployed.stop()


@pytest.fixture
def scheduler(world: ApiObjects, extender: Deployed) -> Iterator[SchedulerLoop]:
    stand_in = SchedulerLoop(world.client, extender.url, settings=FAST)
    stand_in.start()
    yield stand_in
    stand_in.stop()


def held(world: ApiObjects, pods: list[str]) -> list[tuple[str, str]]:
    """Every GPU that a pod was given, with its node."""
    found = []
    for name in pods:
        pod = world.read(name)
        shares = read_gpus(pod.metadata.annotations[names.GPUS])
        found += [(pod.spec.node_name, uuid) for uuids in shares.values() for uuid in uuids]
    return found


def all_bound(world: ApiObjects, pods: list[str]) -> bool:
    return all(world.read(name).spec.node_name for name in pods)


@pytest.mark.usefixtures("scheduler")
def test_gangs_and_single_pods_share_the_cluster_without_sharing_a_gpu(world: ApiObjects) -> None:
    pods = world.add_gang("big", 2) + world.add_gang("small", 3, gpus=4)
    for number in range(4):
        world.add_pod(f"single-{number}", gpus=1)
        pods.append(f"single-{number}")

    wait_for(lambda: all_bound(world, pods), 20)

    gpus = held(world, pods)
    assert len(gpus) == len(set(gpus)) == 2 * 8 + 3 * 4 + 4
    for name in pods:
        pod = world.read(name)
        assert read_plan(pod.metadata.annotations[names.PLAN]).node == pod.spec.node_name
    small = [f"small-{rank}" for rank in range(3)]
    wait_for(lambda: any(names.STARTED in world.read(each).metadata.annotations for each in small))


@pytest.mark.usefixtures("scheduler")
def test_a_gang_that_does_not_fit_waits_whole_takes_nothing_and_says_why(
    world: ApiObjects, extender: Deployed
) -> None:
    too_large = world.add_gang("too-large", 5)
    wait_for(lambda: "no room for the whole gang" in extender.explain("too-large-0"), 20)

    others = world.add_gang("fits", 4)
    wait_for(lambda: all_bound(world, others), 20)

    assert not any(world.read(name).spec.node_name for name in too_large)
    assert not any(names.PLAN in world.read(name).metadata.annotations for name in too_large)


@pytest.mark.usefixtures("scheduler")
def test_a_waiting_gang_starts_when_room_is_made(world: ApiObjects) -> None:
    first = world.add_gang("first", 3)
    wait_for(lambda: all_bound(world, first), 20)
    second = world.add_gang("second", 2)

    for name in first:
        world.delete(name)

    wait_for(lambda: all_bound(world, second), 20)


def test_an_extender_that_is_replaced_in_the_midst_of_a_gang_leaves_no_trace(
    world: ApiObjects,
) -> None:
    first = Deployed(world)
    pods = world.add_gang("g", 4)
    wait_for(lambda: all(world.is_planned(name) for name in pods), 20)
    plans = {name: world.read(name).metadata.annotations[names.PLAN] for name in pods}
    stand_in = SchedulerLoop(world.client, first.url, settings=FAST)
    first.stop()
    stand_in.start()  # no extender answers: pods wait, and none is bound blind

    successor = Deployed(world, first.port)
    wait_for(lambda: all_bound(world, pods), 30)

    assert {n: world.read(n).metadata.annotations[names.PLAN] for n in pods} == plans
    gpus = held(world, pods)
    assert len(gpus) == len(set(gpus)) == 32
    stand_in.stop()
    assert successor.loop.audit() == []
    successor.stop()
