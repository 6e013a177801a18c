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


def test_init_containers_and_sidecars_get_what_the_real_kubelet_gave_them() -> None:
    """docs/simulator.md: i1 (2), side (1, restartable), c1 (2), c2 (1): four GPUs in all."""
    plugin = ScriptedPlugin()
    manager = manager_of(plugin)
    init = ({"name": "i1", "gpus": 2}, {"name": "side", "gpus": 1, "restartPolicy": "Always"})
    held = admit(manager, "u", pod(init, c1=2, c2=1))

    (of_side,) = held["side"]
    (left,) = {"6", "7"} - held["side"]
    assert of_side in {"6", "7"}
    assert held == {"i1": {"6", "7"}, "side": {of_side}, "c1": {left, "5"}, "c2": {"4"}}
    # side needed no new device, so the plugin got only three calls.
    assert plugin.preferred_calls == [
        (set(EIGHT), set(), 2),
        (set(EIGHT) - {of_side}, {left}, 2),
        (set(EIGHT) - {"5", "6", "7"}, set(), 1),
    ]
    assert plugin.allocated == [{"6", "7"}, {of_side}, {left, "5"}, {"4"}]


def test_which_reusable_device_the_sidecar_takes_is_chance() -> None:
    init = ({"name": "i1", "gpus": 2}, {"name": "side", "gpus": 1, "restartPolicy": "Always"})
    taken = {
        next(iter(admit(manager_of(ScriptedPlugin(), seed=seed), "u", pod(init, c1=1))["side"]))
        for seed in range(20)
    }
    assert taken == {"6", "7"}


def test_the_plugin_is_asked_even_if_all_free_devices_are_needed() -> None:
    plugin = ScriptedPlugin()
    admit(manager_of(plugin), "u", pod(c=8))
    assert plugin.preferred_calls == [(set(EIGHT), set(), 8)]


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


@pytest.mark.parametrize(
    ("answer", "surely"),
    [
        ([], set()),
        (["3"], {"3"}),
        (["no-such"], set()),
        (["0", "3"], {"3"}),  # 0 is in use
    ],
)
def test_a_short_or_wrong_answer_is_filled_up_at_random(
    answer: Sequence[str], surely: set[str]
) -> None:
    manager = manager_of(ScriptedPlugin(["0"], answer))
    admit(manager, "first", pod(c=1))
    (held,) = admit(manager, "second", pod(c=2)).values()
    assert len(held) == 2
    assert surely <= held <= set(EIGHT) - {"0"}


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
    plugin._refuses = "the driver is gone"
    with pytest.raises(AdmissionError, match="the driver is gone"):
        admit(manager, "u", pod(c1=1, c2=1))
    assert manager.held("u") == {}
    plugin._refuses = ""
    admit(manager, "v", pod(c=8))


def test_too_few_free_devices_name_both_numbers() -> None:
    manager = manager_of(ScriptedPlugin())
    admit(manager, "first", pod(c=7))
    refusal = "requested number of devices unavailable for nvidia.com/gpu. "
    with pytest.raises(AdmissionError, match=f"{refusal}Requested: 2, Available: 1"):
        admit(manager, "second", pod(c=2))


def test_released_devices_are_free_again() -> None:
    manager = manager_of(ScriptedPlugin())
    admit(manager, "first", pod(c=8))
    manager.release("first")
    assert len(admit(manager, "second", pod(c=8))["c"]) == 8


def test_unhealthy_devices_are_capacity_and_not_allocatable() -> None:
    manager = manager_of(ScriptedPlugin())
    manager.set_devices(GPU, [Device("0"), Device("1", healthy=False)])
    assert manager.capacity() == {GPU: (2, 1)}
    assert admit(manager, "u", pod(c=1)) == {"c": {"0"}}


def test_after_the_stream_s_end_nothing_may_be_allocated_and_capacity_stays() -> None:
    manager = manager_of(ScriptedPlugin())
    manager.set_unhealthy(GPU)
    assert manager.capacity() == {GPU: (8, 0)}
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        admit(manager, "u", pod(c=1))


def test_a_device_that_turns_unhealthy_stays_with_its_pod_and_goes_to_no_other() -> None:
    manager = manager_of(ScriptedPlugin(["0"]))
    assert admit(manager, "u", pod(c=1)) == {"c": {"0"}}
    manager.set_devices(GPU, [Device(d, healthy=d not in "01") for d in EIGHT])
    assert manager.held("u") == {"c": {GPU: ("0",)}}
    assert admit(manager, "v", pod(c=6)) == {"c": set(EIGHT) - {"0", "1"}}
    manager.release("u")
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        admit(manager, "w", pod(c=1))


def test_a_forgotten_resource_counts_zero() -> None:
    manager = manager_of(ScriptedPlugin())
    manager.forget_resource(GPU)
    assert manager.capacity() == {GPU: (0, 0)}


def test_a_restart_keeps_who_holds_what_and_counts_none_until_the_plugin_is_back() -> None:
    manager = manager_of(ScriptedPlugin())
    before = admit(manager, "u", pod(c=2))
    manager.restart()
    assert manager.capacity() == {GPU: (0, 0)}
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        admit(manager, "v", pod(c=1))
    manager.set_plugin(GPU, ScriptedPlugin())
    manager.set_devices(GPU, [Device(device) for device in EIGHT])
    assert {"c": set(manager.held("u")["c"][GPU])} == before
    assert not admit(manager, "v", pod(c=6))["c"] & before["c"]


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
