"""Which devices a container gets, what the kubelet asks the plugin, and what reports them later."""

from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet import podresources_pb2 as resources
from tests.cluster.support.host.waiting import wait_for
from tests.contract.kubelet_world import EIGHT, INIT_SECONDS, KubeletNode
from tests.simulator.kubelet.tiny_plugin import AllocateCall, PreferCall, TinyPlugin


def kinds(plugin: TinyPlugin) -> list[type]:
    return [type(call) for call in plugin.calls]


def test_a_pod_gets_exactly_the_devices_that_the_plugin_preferred(node: KubeletNode) -> None:
    plugin = node.plugin()
    node.devices_are(8, 8)
    node.create("p", 2)
    node.phase_is("p", "Running")
    preferred, allocated = plugin.calls
    assert isinstance(preferred, PreferCall)
    assert isinstance(allocated, AllocateCall)
    assert set(preferred.available) == set(EIGHT)
    assert (preferred.must_include, preferred.size) == ((), 2)
    assert set(allocated.devices) == {"GPU-6", "GPU-7"}
    assert node.held() == {"p": {"main": {"GPU-6", "GPU-7"}}}


def test_available_devices_come_in_no_order(node: KubeletNode) -> None:
    plugin = node.plugin()
    node.devices_are(8, 8)
    for number in range(4):
        node.create(f"p{number}", 1)
    node.phase_is("p3", "Running")
    wait_for(lambda: len(plugin.calls) == 8, "all four")
    asked = [call.available for call in plugin.calls if isinstance(call, PreferCall)]
    assert any(list(available) != sorted(available) for available in asked)


def test_the_plugin_is_asked_even_if_all_free_devices_are_needed(node: KubeletNode) -> None:
    plugin = node.plugin()
    node.devices_are(8, 8)
    node.create("p", 8)
    node.phase_is("p", "Running")
    assert kinds(plugin) == [PreferCall, AllocateCall]


def test_pods_are_admitted_one_after_the_other(node: KubeletNode) -> None:
    plugin = node.plugin(prefer=lambda asked: sorted(asked.available)[: asked.size])
    node.devices_are(8, 8)
    for name in "abcd":
        node.create(name, 2)
    for name in "abcd":
        node.phase_is(name, "Running")
    assert kinds(plugin) == [PreferCall, AllocateCall] * 4
    held = [frozenset(node.held()[name]["main"]) for name in "abcd"]
    assert set(held) == {frozenset({f"GPU-{n}", f"GPU-{n + 1}"}) for n in (0, 2, 4, 6)}


def test_a_plugin_that_offers_no_preference_is_not_asked(node: KubeletNode) -> None:
    plugin = node.plugin(prefer=None)
    node.devices_are(8, 8)
    node.create("p", 2)
    node.phase_is("p", "Running")
    assert kinds(plugin) == [AllocateCall]


@pytest.mark.parametrize(
    ("advice", "taken"),
    [
        ((), set()),
        (("GPU-3",), {"GPU-3"}),
        (("GPU-3", "GPU-9", "nothing"), {"GPU-3"}),
        (("GPU-3", "GPU-5"), {"GPU-3", "GPU-5"}),
    ],
    ids=["none", "short", "unknown", "whole"],
)
def test_of_the_advice_counts_what_is_free_and_chance_gives_the_rest(
    node: KubeletNode, advice: Sequence[str], taken: set[str]
) -> None:
    node.plugin(prefer=lambda _: advice)
    node.devices_are(8, 8)
    node.create("p", 2)
    node.phase_is("p", "Running")
    held = node.held()["p"]["main"]
    assert len(held) == 2
    assert taken <= held <= set(EIGHT)


def test_init_containers_lend_their_devices_and_sidecars_keep_them(node: KubeletNode) -> None:
    plugin = node.plugin()
    node.devices_are(8, 8)
    node.create_of(
        "p",
        [node.container("c1", 2), node.container("c2", 1)],
        init=[node.container("i1", 2, seconds=INIT_SECONDS), node.sidecar("side", 1)],
    )
    wait_for(lambda: node.held().get("p", {}).get("c2"), "all are given their devices")
    assert node.phase("p") == "Pending"  # i1 has only begun, and is listed neither now nor later
    held = node.held()["p"]
    assert set(held) == {"side", "c1", "c2"}
    node.phase_is("p", "Running")
    assert node.held()["p"] == held
    of_i1, to_i1, to_side, of_c1, to_c1, of_c2, to_c2 = plugin.calls
    assert isinstance(of_i1, PreferCall)
    assert isinstance(of_c1, PreferCall)
    assert isinstance(of_c2, PreferCall)
    given = [
        frozenset(c.devices) for c in (to_i1, to_side, to_c1, to_c2) if type(c) is AllocateCall
    ]
    assert (of_i1.size, of_i1.must_include) == (2, ())
    assert given[0] == {"GPU-6", "GPU-7"}
    assert held["side"] < given[0]
    (left,) = given[0] - held["side"]
    assert (of_c1.size, of_c1.must_include) == (2, (left,))
    assert set(of_c1.available) == set(EIGHT) - held["side"]
    assert held["c1"] == {left, "GPU-5"}
    assert (of_c2.size, of_c2.must_include) == (1, ())
    assert set(of_c2.available) == set(EIGHT) - given[0] - {"GPU-5"}
    assert held["c2"] == {"GPU-4"}
    assert given[1:] == [held[name] for name in ("side", "c1", "c2")]


def test_what_an_init_container_had_stays_the_pod_s_though_podresources_does_not_say_so(
    node: KubeletNode,
) -> None:
    plugin = node.plugin()
    node.devices_are(8, 8)
    node.create_of("p", [node.container("c1", 1)], init=[node.container("i1", 4, seconds=0.1)])
    node.phase_is("p", "Running")
    held = node.held()["p"]
    assert set(held) == {"c1"}
    assert held["c1"] < {"GPU-4", "GPU-5", "GPU-6", "GPU-7"}
    node.create("q", 4)
    node.phase_is("q", "Running")
    (asked,) = [c for c in plugin.calls if type(c) is PreferCall and c.size == 4][1:]
    assert set(asked.available) == set(EIGHT[:4])
    node.create("r", 1)
    assert "Available: 0" in node.phase_is("r", "Failed")["message"]


def test_a_main_container_that_needs_no_more_than_its_init_container_had_is_not_asked_about(
    node: KubeletNode,
) -> None:
    plugin = node.plugin()
    node.devices_are(8, 8)
    node.create_of("p", [node.container("c1", 2)], init=[node.container("i1", 2, seconds=0.1)])
    node.phase_is("p", "Running")
    assert kinds(plugin) == [PreferCall, AllocateCall, AllocateCall]
    assert node.held()["p"] == {"c1": {"GPU-6", "GPU-7"}}


# What cannot be had


def test_too_few_devices_fail_the_pod_for_good(node: KubeletNode) -> None:
    node.plugin()
    node.devices_are(8, 8)
    node.create("big", 7)
    node.phase_is("big", "Running")
    node.create("late", 2)
    status = node.phase_is("late", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"] == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{node.resource}. Requested: 2, Available: 1, which is unexpected"
    )
    assert set(node.held()) == {"big"}
    node.delete("big")
    wait_for(lambda: not node.exists("big"), "big gone")
    node.create("next", 8)
    node.phase_is("next", "Running")
    assert node.phase("late") == "Failed"


def refuse(_: object) -> Sequence[str]:
    raise RuntimeError("no such GPU")


def nothing(*_: object) -> api.AllocateResponse:
    return api.AllocateResponse()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"allocate": refuse}, "no such GPU"),
        ({"prefer": refuse}, "device plugin GetPreferredAllocation rpc failed with err: "),
    ],
    ids=["Allocate", "GetPreferredAllocation"],
)
def test_an_error_of_the_plugin_fails_the_pod(
    node: KubeletNode, fault: dict[str, Any], says: str
) -> None:
    node.plugin(**fault)
    node.devices_are(8, 8)
    node.create("p", 2)
    status = node.phase_is("p", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"].startswith("Pod was rejected: Allocate failed due to ")
    assert "rpc error: code = Unknown desc = Exception " in status["message"]
    assert says in status["message"]
    assert node.held() == {}


def test_an_empty_answer_to_allocate_fails_the_pod(
    node: KubeletNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TinyPlugin, "Allocate", nothing)
    node.plugin()
    node.devices_are(8, 8)
    node.create("p", 2)
    status = node.phase_is("p", "Failed")
    assert "no containers return in allocation response" in status["message"]


def test_unhealthy_devices_are_given_to_nobody_but_not_taken_away(node: KubeletNode) -> None:
    plugin = node.plugin(("GPU-0", "GPU-1", "GPU-2"))
    node.devices_are(3, 3)
    node.create("p", 1)
    node.phase_is("p", "Running")
    assert node.held()["p"] == {"main": {"GPU-2"}}
    plugin.list_devices(("GPU-0", "bad-1", "bad-2"))
    node.devices_are(3, 1)
    assert node.held()["p"] == {"main": {"GPU-2"}}
    node.create("q", 1)
    node.phase_is("q", "Running")
    assert node.held()["q"] == {"main": {"GPU-0"}}
    node.create("r", 1)
    node.phase_is("r", "Failed")
    assert node.phase("p") == "Running"


# The end of pods


def test_a_pod_that_ended_frees_its_devices_and_is_listed_no_more(node: KubeletNode) -> None:
    node.plugin()
    node.devices_are(8, 8)
    node.create("p", 8, seconds=0.1)
    node.phase_is("p", "Succeeded")
    assert "p" not in node.held()
    node.create("q", 8)
    node.phase_is("q", "Running")


def test_a_terminating_pod_keeps_its_devices_until_its_containers_are_gone(
    node: KubeletNode,
) -> None:
    node.plugin()
    node.devices_are(8, 8)
    node.create("old", 7, stop=6)
    node.phase_is("old", "Running")
    node.delete("old")
    node.create("new", 2)
    status = node.phase_is("new", "Failed")
    assert "Requested: 2, Available: 1" in status["message"]
    assert set(node.held()) == {"old"}
    wait_for(lambda: not node.exists("old"), "old gone")
    assert node.held() == {}
    node.create("next", 8)
    node.phase_is("next", "Running")


def test_a_pod_deleted_by_force_gives_its_devices_back_while_its_containers_still_run(
    node: KubeletNode,
) -> None:
    """The kubelet forgets it with the API server: no component knows which pod uses these GPUs."""
    node.plugin()
    node.devices_are(8, 8)
    node.create("old", 8, stop=100)
    node.phase_is("old", "Running")
    node.delete("old", gracePeriodSeconds=0)
    assert not node.exists("old")
    wait_for(lambda: not node.held(), "not listed any more")
    node.create("next", 8)
    node.phase_is("next", "Running")
    assert node.held() == {"next": {"main": set(EIGHT)}}


# Restart


def test_after_a_restart_running_pods_keep_their_devices_without_a_new_allocate(
    node: KubeletNode,
) -> None:
    plugin = node.plugin()
    node.devices_are(8, 8)
    node.create("p", 2)
    node.phase_is("p", "Running")
    held, calls = node.held(), list(plugin.calls)
    node.kubelet.restart()
    wait_for(plugin.stream_over.is_set, "the stream over")
    assert not (node.kubelet.device_plugins / plugin.socket).exists()
    assert (node.kubelet.device_plugins / "kubelet.sock").exists()
    node.devices_are(0, 0)
    wait_for(lambda: node.held() == held, "listed again, once the kubelet has heard of its pods")
    node.create("early", 1)
    status = node.phase_is("early", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "no healthy devices present; cannot allocate unhealthy devices" in status["message"]
    again = node.plugin()
    node.devices_are(8, 8)
    assert plugin.calls == calls
    node.create("q", 6)
    node.phase_is("q", "Running")
    assert kinds(again) == [PreferCall, AllocateCall]
    assert node.held() == {**held, "q": {"main": set(EIGHT[:6])}}
    assert node.phase("p") == "Running"


def test_a_restart_leaves_what_is_no_socket(node: KubeletNode) -> None:
    file = node.kubelet.device_plugins / "notes.txt"
    file.write_text("kept")
    node.kubelet.restart()
    assert file.read_text() == "kept"
    file.unlink()


# podresources


def test_podresources_lists_one_entry_per_device_with_its_numa_node(node: KubeletNode) -> None:
    node.plugin((*EIGHT, "bad-8"), numa_node=0)
    node.devices_are(9, 8)
    node.create("p", 2)
    node.phase_is("p", "Running")
    with node.lister() as lister:
        request = resources.GetPodResourcesRequest(pod_name="p", pod_namespace=node.api.namespace)
        pod = lister.Get(request).pod_resources
        allocatable = lister.GetAllocatableResources(resources.AllocatableResourcesRequest())
    entries = [
        (entry.resource_name, list(entry.device_ids), [n.ID for n in entry.topology.nodes])
        for entry in pod.containers[0].devices
    ]
    assert sorted(entries) == [
        (node.resource, ["GPU-6"], [0]),
        (node.resource, ["GPU-7"], [0]),
    ]
    listed = {
        device
        for entry in allocatable.devices
        if entry.resource_name == node.resource
        for device in entry.device_ids
    }
    assert listed == set(EIGHT)


def test_podresources_says_which_pod_it_does_not_know(node: KubeletNode) -> None:
    request = resources.GetPodResourcesRequest(pod_name="p", pod_namespace="ml")
    with node.lister() as lister, pytest.raises(grpc.RpcError) as caught:
        lister.Get(request)
    assert "pod p in namespace ml not found" in str(caught.value)


def test_podresources_lists_pods_without_devices(node: KubeletNode) -> None:
    node.create("p")
    node.phase_is("p", "Running")
    assert node.held() == {"p": {"main": set()}}


def test_devices_of_one_numa_node_are_given_as_ever(aligning_node: KubeletNode) -> None:
    """It is one that every machine has."""
    aligning_node.plugin(numa_node=0)
    aligning_node.devices_are(8, 8)
    aligning_node.create("p", 5)
    aligning_node.phase_is("p", "Running")
    aligning_node.create("q", 3)
    aligning_node.phase_is("q", "Running")
    assert len(aligning_node.held()["q"]["main"]) == 3


def test_the_refusal_of_the_topology_manager_has_its_own_reason(aligning_node: KubeletNode) -> None:
    aligning_node.plugin(EIGHT, numa_node_of=lambda device: EIGHT.index(device) // 4)
    aligning_node.devices_are(8, 8)
    aligning_node.create("p", 5)
    status = aligning_node.phase_is("p", "Failed")
    assert status["reason"] == "TopologyAffinityError"
    assert status["message"] == (
        "Pod was rejected: Resources cannot be allocated with Topology locality"
    )
    aligning_node.create("q", 4)
    aligning_node.phase_is("q", "Running")
