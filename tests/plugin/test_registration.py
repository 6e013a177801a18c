"""The kubelet forgets plugins without a word; each way in which it does is noticed."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tenacity import RetryCallState

from linkwise.plugin.device_plugin import registration
from linkwise.plugin.device_plugin.allocate import pick_ring
from linkwise.plugin.device_plugin.containers import Granting
from linkwise.plugin.device_plugin.grpc_channel import dial
from linkwise.plugin.device_plugin.preferred_allocation import Advisor
from linkwise.plugin.device_plugin.registration import Registrar
from linkwise.plugin.device_plugin.server import Advice, DevicePlugin
from linkwise.plugin.gpus.inventory import Stock
from linkwise.plugin.health.book import DeviceBook
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.metrics import Metrics
from tests.machines import DGX_1V
from tests.plugin.fake_kubelet import FakeKubelet
from tests.plugin.grants import NO_CDI
from tests.plugin.pods import RESOURCE
from tests.waiting import wait_for

Lost = list[str]


@pytest.fixture
def lost() -> Lost:
    return []


@pytest.fixture
def make_registrar(kubelet_dir: Path, lost: Lost) -> Iterator[Callable[[], Registrar]]:
    made: list[Registrar] = []
    advisor = Advisor(node="n1", resource=RESOURCE, pick=pick_ring, pod_wait_seconds=0.0)
    book, metrics = DeviceBook(Stock(DGX_1V)), Metrics()

    def make() -> Registrar:
        registrar = Registrar(
            kubelet_socket=kubelet_dir / "kubelet.sock",
            resource=RESOURCE,
            make_service=lambda: DevicePlugin(
                book, Advice(advisor, metrics), Granting(NO_CDI), metrics
            ),
            metrics=metrics,
            on_lost=lambda: lost.append("lost"),
            look_seconds=0.01,
            longest_wait_seconds=0.05,
            stream_seconds=0.2,
        )
        made.append(registrar)
        return registrar

    yield make
    for registrar in made:
        registrar.stop()


def listening(kubelet: FakeKubelet, registrar: Registrar, registrations: int) -> bool:
    return (
        len(kubelet.plugins) == registrations
        and len(kubelet.plugin.health) == 8
        and registrar.ready
    )


def test_serving_comes_first_then_one_registration_and_the_list(
    kubelet: FakeKubelet, make_registrar: Callable[[], Registrar]
) -> None:
    registrar = make_registrar()
    assert not registrar.ready
    registrar.start()
    wait_for(lambda: listening(kubelet, registrar, 1), "a registered plugin")
    request = kubelet.plugin.request
    assert (request.version, request.resource_name) == ("v1beta1", RESOURCE)
    assert request.options.get_preferred_allocation_available
    assert "/" not in request.endpoint
    assert (kubelet.directory / request.endpoint).is_socket()


def test_a_kubelet_that_comes_later_or_refuses_at_first_is_tried_again(
    kubelet_dir: Path,
    make_registrar: Callable[[], Registrar],
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    registrar = make_registrar()
    registrar.start()
    wait_for(lambda: registrar.trouble.endswith("kubelet.sock: no kubelet yet"), "the first reason")
    kubelet = FakeKubelet(kubelet_dir, refusals=2)
    request.addfinalizer(kubelet.stop)
    kubelet.start()
    wait_for(lambda: listening(kubelet, registrar, 1), "a registered plugin")
    assert kubelet.refusals == 0
    wait_for(lambda: registrar.trouble == "", "no trouble")
    reasons = [r.message.split("the kubelet: ")[1] for r in caplog.records if "cannot" in r.message]
    assert reasons[0].endswith("no kubelet yet; trying again")
    assert "UNKNOWN: not now; trying again" in reasons
    assert len(set(reasons)) == len(reasons)


def test_a_kubelet_that_comes_is_not_kept_waiting(
    kubelet_dir: Path,
    make_registrar: Callable[[], Registrar],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """However long it has been away: until it knows the plugin, it refuses every pod with GPUs."""
    monkeypatch.setattr(registration, "wait_random_exponential", lambda **_: lambda _: 3600.0)
    registrar = make_registrar()
    registrar.start()
    wait_for(lambda: registrar.trouble.endswith("kubelet.sock: no kubelet yet"), "the first reason")
    kubelet = FakeKubelet(kubelet_dir)
    request.addfinalizer(kubelet.stop)
    kubelet.start()
    wait_for(lambda: listening(kubelet, registrar, 1), "a registered plugin")


def test_a_kubelet_that_drops_us_at_once_each_time_is_given_more_and_more_time_and_told_once(
    kubelet: FakeKubelet,
    make_registrar: Callable[[], Registrar],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts: list[int] = []

    def waiting(**_: float) -> Callable[[RetryCallState], float]:
        def seconds(state: RetryCallState) -> float:
            attempts.append(state.attempt_number)
            return 0.0

        return seconds

    def drop(request: wire.RegisterRequest) -> None:
        take(request)
        kubelet.plugin.cancel()

    take = kubelet.take
    monkeypatch.setattr(kubelet, "take", drop)
    monkeypatch.setattr(registration, "wait_random_exponential", waiting)
    make_registrar().start()
    wait_for(lambda: len(attempts) >= 3, "several attempts")
    assert attempts[:3] == [1, 2, 3]
    assert caplog.text.count("registering again") == 1
    monkeypatch.setattr(kubelet, "take", take)


def test_a_fault_of_ours_does_not_end_the_registering(
    kubelet: FakeKubelet,
    make_registrar: Callable[[], Registrar],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(registration, "dial", lambda _: 1 // 0)
    registrar = make_registrar()
    registrar.start()
    wait_for(lambda: "ZeroDivisionError" in caplog.text, "the complaint")
    monkeypatch.setattr(registration, "dial", dial)
    wait_for(lambda: listening(kubelet, registrar, 1), "a registered plugin")


def test_a_restarted_kubelet_gets_a_new_socket(
    kubelet: FakeKubelet, make_registrar: Callable[[], Registrar], lost: Lost
) -> None:
    registrar = make_registrar()
    registrar.start()
    wait_for(lambda: listening(kubelet, registrar, 1), "the first registration")
    kubelet.restart()
    wait_for(lambda: listening(kubelet, registrar, 2), "the second registration")
    first, second = (plugin.request.endpoint for plugin in kubelet.plugins)
    assert first != second
    assert lost == ["lost"]


def test_a_new_kubelet_is_noticed_though_our_stream_and_our_socket_stand(
    kubelet: FakeKubelet, make_registrar: Callable[[], Registrar]
) -> None:
    registrar = make_registrar()
    registrar.start()
    wait_for(lambda: listening(kubelet, registrar, 1), "the first registration")
    os.utime(kubelet.socket)  # the new socket may have the old one's inode number
    wait_for(lambda: listening(kubelet, registrar, 2), "the second registration")


def test_a_removed_socket_of_ours_is_noticed(
    kubelet: FakeKubelet, make_registrar: Callable[[], Registrar]
) -> None:
    registrar = make_registrar()
    registrar.start()
    wait_for(lambda: listening(kubelet, registrar, 1), "the first registration")
    (kubelet.directory / kubelet.plugin.request.endpoint).unlink()
    wait_for(lambda: listening(kubelet, registrar, 2), "the second registration")


def test_a_cancelled_stream_is_noticed_though_both_sockets_stand(
    kubelet: FakeKubelet, make_registrar: Callable[[], Registrar]
) -> None:
    registrar = make_registrar()
    registrar.start()
    wait_for(lambda: listening(kubelet, registrar, 1), "the first registration")
    kubelet.plugin.cancel()
    wait_for(lambda: listening(kubelet, registrar, 2), "the second registration")
    assert len(list(kubelet.directory.glob("linkwise-*"))) == 1


def test_a_kubelet_that_registers_us_and_never_listens_is_asked_again(
    kubelet: FakeKubelet,
    make_registrar: Callable[[], Registrar],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[str] = []
    monkeypatch.setattr(kubelet, "take", lambda request: registered.append(request.endpoint))
    registrar = make_registrar()
    registrar.start()
    wait_for(lambda: len(registered) >= 2, "a second registration")
    assert not registrar.ready
    assert registered[0] != registered[1]


def test_stopping_ends_the_stream_and_leaves_no_socket(
    kubelet: FakeKubelet, make_registrar: Callable[[], Registrar]
) -> None:
    registrar = make_registrar()
    registrar.start()
    wait_for(lambda: listening(kubelet, registrar, 1), "a registered plugin")
    registrar.stop()
    wait_for(lambda: kubelet.plugin.ended, "the stream's end")
    assert not registrar.ready
    assert list(kubelet.directory.glob("linkwise-*")) == []
