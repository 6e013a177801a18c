"""Which pod really has which GPU, over a real socket."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from linkwise.plugin.errors import PodResourcesError
from linkwise.plugin.kubelet import podresources_pb2 as wire
from linkwise.plugin.node.in_use import InUsePoller, PodResources, read_in_use
from linkwise.topology.annotations.plan import InUse
from tests.plugin.fake_kubelet import FakeKubelet, of_claim
from tests.plugin.pods import RESOURCE
from tests.waiting import wait_for

HELD = InUse(pods={"ml/w": {"main": ("GPU-a", "GPU-b")}})


def test_entries_of_one_resource_add_up_and_other_resources_do_not_count() -> None:
    def devices(resource: str, *ids: str) -> wire.ContainerDevices:
        return wire.ContainerDevices(resource_name=resource, device_ids=ids)

    main = wire.ContainerResources(
        name="main",
        devices=[
            devices(RESOURCE, "GPU-b"),
            devices("rdma/hca", "mlx5_0"),
            devices(RESOURCE, "GPU-a"),
        ],
    )
    idle = wire.ContainerResources(name="logger")
    answer = wire.ListPodResourcesResponse(
        pod_resources=[
            wire.PodResources(name="w", namespace="ml", containers=[main, idle]),
            wire.PodResources(name="web", namespace="default", containers=[idle]),
        ]
    )
    assert read_in_use(answer, RESOURCE) == HELD


def test_gpus_from_claims_count_and_other_devices_do_not() -> None:
    claimed = {("gpu.nvidia.com", "n1", "gpu-0"): "GPU-b"}
    main = wire.ContainerResources(
        name="main",
        devices=[wire.ContainerDevices(resource_name=RESOURCE, device_ids=["GPU-a"])],
        dynamic_resources=[
            of_claim("ml/w", [("gpu.nvidia.com", "n1", "gpu-0")]),
            of_claim("ml/w", [("dra.net", "n1", "nic-0")]),
        ],
    )
    answer = wire.ListPodResourcesResponse(
        pod_resources=[wire.PodResources(name="w", namespace="ml", containers=[main])]
    )
    assert read_in_use(answer, RESOURCE, claimed=lambda device: claimed.get(device, "")) == HELD


class Told:
    def __init__(self) -> None:
        self.readings: list[InUse] = []
        self.changes: list[InUse] = []
        self.errors = 0
        self.fault: Exception | None = None

    def change(self, in_use: InUse) -> None:
        if self.fault is not None:
            raise self.fault
        self.changes.append(in_use)

    def error(self) -> None:
        self.errors += 1


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def poller(kubelet_dir: Path, told: Told) -> Iterator[InUsePoller]:
    running = InUsePoller(
        PodResources(kubelet_dir / "pod-resources", RESOURCE),
        every_seconds=3600,
        on_reading=told.readings.append,
        on_change=told.change,
        on_error=told.error,
    )
    yield running
    running.stop()


def test_a_change_is_told_once_and_at_once_after_a_poke(
    kubelet: FakeKubelet, poller: InUsePoller, told: Told
) -> None:
    poller.start()
    wait_for(lambda: told.changes == [InUse()], "the first reading")
    kubelet.holds = {"ml/w": {"main": ["GPU-b", "GPU-a"]}}
    poller.poke()
    wait_for(lambda: told.changes == [InUse(), HELD], "the change")
    assert poller.poll() == HELD
    assert len(told.changes) == 2
    assert told.readings == [InUse(), HELD, HELD]


@pytest.mark.usefixtures("kubelet")
def test_a_listener_that_fails_is_told_again_and_nothing_stands_still(
    poller: InUsePoller, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    told.fault = ZeroDivisionError()
    poller.start()
    wait_for(lambda: "telling what is in use failed" in caplog.text, "the complaint")
    told.fault = None
    poller.poke()
    wait_for(lambda: told.changes == [InUse()], "the change")


def test_a_kubelet_that_does_not_answer_says_nothing_and_what_was_said_stays(
    kubelet: FakeKubelet, poller: InUsePoller, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.holds = {"ml/w": {"main": ["GPU-b", "GPU-a"]}}
    assert poller.poll() == HELD
    kubelet.stop()
    assert [poller.poll() for _ in range(3)] == [None] * 3
    assert told.changes == [HELD]
    assert told.errors == 3
    # The first poll may meet the connection as it ends. What is the same is told once.
    said = [r.message for r in caplog.records if "podresources" in r.message]
    assert 1 <= len(said) == len(set(said)) <= 2
    kubelet.start()
    wait_for(lambda: poller.poll() == HELD, "the kubelet's return")


def test_an_absent_socket_is_named(kubelet_dir: Path) -> None:
    said = r"podresources at .*/absent\.sock\): UNAVAILABLE: "
    with (
        closing(PodResources(kubelet_dir / "absent.sock", RESOURCE)) as source,
        pytest.raises(PodResourcesError, match=said),
    ):
        source.read()
