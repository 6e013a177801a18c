"""The device manager's rules, as seen in kubelet v1.36.3, without gRPC."""

from collections.abc import Sequence

import msgspec
import pytest

from linkwise.kube.objects import Pod
from linkwise.simulator.kubelet.devices import (
    AdmissionError,
    Device,
    DeviceManager,
    container_requests,
)
from tests.simulator.kubelet.scripted_plugin import ScriptedPlugin

GPU = "nvidia.com/gpu"
EIGHT = tuple(str(n) for n in range(8))


def manager_of(
    plugin: ScriptedPlugin, *, devices: Sequence[str] = EIGHT, seed: int = 1
) -> DeviceManager:
    manager = DeviceManager(seed)
    manager.set_plugin(GPU, plugin)
    manager.set_devices(GPU, [Device(device) for device in devices])
    return manager


def pod(init: Sequence[dict[str, object]] = (), **containers: int) -> Pod:
    def container(name: str, gpus: int, **more: object) -> dict[str, object]:
        return {"name": name, "resources": {"limits": {GPU: str(gpus)}}, **more}

    spec = {
        "initContainers": [container(**one) for one in init],  # type: ignore[arg-type]
        "containers": [container(name, gpus) for name, gpus in containers.items()],
    }
    return msgspec.convert({"metadata": {"name": "p", "uid": "u"}, "spec": spec}, Pod)


def admit(manager: DeviceManager, uid: str, wanted: Pod) -> dict[str, set[str]]:
    manager.admit(uid, container_requests(wanted, [GPU]))
    return {name: set(held[GPU]) for name, held in manager.held(uid).items()}


def test_which_reusable_device_the_sidecar_takes_is_chance() -> None:
    init = ({"name": "i1", "gpus": 2}, {"name": "side", "gpus": 1, "restartPolicy": "Always"})
    taken = {
        next(iter(admit(manager_of(ScriptedPlugin(), seed=seed), "u", pod(init, c1=1))["side"]))
        for seed in range(20)
    }
    assert taken == {"6", "7"}


def test_devices_to_allocate_come_in_random_order_too() -> None:
    orders = set()
    for seed in range(20):
        plugin = ScriptedPlugin(("6", "7"))
        admit(manager_of(plugin, seed=seed), "u", pod(c=2))
        orders.add(plugin.orders[-1])
    assert orders == {("6", "7"), ("7", "6")}


def test_free_devices_come_in_random_order_that_a_seed_repeats() -> None:
    orders = []
    for seed in (1, 2, 1):
        plugin = ScriptedPlugin()
        admit(manager_of(plugin, seed=seed), "u", pod(c=2))
        orders.append(plugin.orders[0])
    assert orders[0] == orders[2] != orders[1]
    assert list(orders[0]) != sorted(orders[0])


@pytest.mark.parametrize("answer", [(), ("no-such",), ("1", "2", "3")])
def test_chance_decides_what_the_advice_leaves_open(answer: Sequence[str]) -> None:
    drawn = set()
    for seed in range(20):
        (held,) = admit(manager_of(ScriptedPlugin(answer), seed=seed), "u", pod(c=2)).values()
        drawn.add(frozenset(held))
    assert len(drawn) >= 3


def test_too_many_preferred_devices_are_cut_to_the_number_wanted() -> None:
    (held,) = admit(manager_of(ScriptedPlugin(["1", "2", "3"])), "u", pod(c=2)).values()
    assert len(held) == 2
    assert held < {"1", "2", "3"}


def test_a_refusal_to_allocate_gives_back_what_earlier_containers_got() -> None:
    plugin = ScriptedPlugin()
    manager = manager_of(plugin)
    plugin.refuses = "the driver is gone"
    with pytest.raises(AdmissionError, match="the driver is gone"):
        admit(manager, "u", pod(c1=1, c2=1))
    assert manager.held("u") == {}
    plugin.refuses = ""
    admit(manager, "v", pod(c=8))


def test_a_forgotten_resource_counts_zero() -> None:
    manager = manager_of(ScriptedPlugin())
    manager.forget_resource(GPU)
    assert manager.capacity() == {GPU: (0, 0)}


def test_resources_that_the_node_does_not_name_are_dropped_from_the_pod() -> None:
    (container,) = container_requests(pod(c=2), [])
    assert container.devices == {}


def test_a_test_may_meddle_between_the_advice_and_what_is_taken() -> None:
    """As in the real kubelet, where CPU and Topology Manager take part."""
    seen: list[tuple[list[str], list[str]]] = []

    def meddle(chosen: frozenset[str], spare: frozenset[str]) -> frozenset[str]:
        seen.append((sorted(chosen), sorted(spare)))
        return frozenset(sorted(spare)[: len(chosen)])

    plugin = ScriptedPlugin(["6", "7"])
    manager = DeviceManager(1, meddle=meddle)
    manager.set_plugin(GPU, plugin)
    manager.set_devices(GPU, [Device(device) for device in EIGHT])
    manager.admit("u", container_requests(pod(main=2), [GPU]))
    assert seen == [(["6", "7"], ["0", "1", "2", "3", "4", "5"])]
    assert plugin.allocated == [{"0", "1"}]
    assert manager.held("u") == {"main": {GPU: ("0", "1")}}
