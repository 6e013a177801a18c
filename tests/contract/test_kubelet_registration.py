"""How a plugin gets to the kubelet, what the Node then shows, and what happens when it goes."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import RegistrationStub
from tests.cluster.support.host.waiting import wait_for
from tests.contract.kubelet_world import EIGHT, KubeletNode
from tests.simulator.kubelet.tiny_plugin import AllocateCall, PreferCall


def test_the_plugin_is_reached_and_asked_its_options_while_it_registers(node: KubeletNode) -> None:
    plugin = node.plugin()
    assert plugin.options_asked == 1  # Register has returned
    node.devices_are(8, 8)


def test_healthy_devices_are_allocatable_and_each_list_replaces_the_last(node: KubeletNode) -> None:
    plugin = node.plugin(("GPU-0", "GPU-1", "bad-2"))
    node.devices_are(3, 2)
    plugin.list_devices(("GPU-0",))
    node.devices_are(1, 1)
    plugin.list_devices(())
    node.devices_are(0, 0)


@pytest.mark.parametrize("ending", ["stream", "server"])
def test_after_the_stream_s_end_nothing_is_allocatable_and_capacity_stays(
    node: KubeletNode, ending: str
) -> None:
    plugin = node.plugin()
    node.devices_are(8, 8)
    if ending == "stream":
        plugin.end_stream()
    else:
        plugin.stop()
    node.devices_are(8, 0)
    node.create("late", 1)
    status = node.phase_is("late", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"


def test_a_plugin_that_comes_back_is_taken_as_if_it_had_never_gone(node: KubeletNode) -> None:
    node.plugin().end_stream()
    node.devices_are(8, 0)
    node.plugin()
    node.devices_are(8, 8)


def test_a_second_registration_takes_the_first_one_s_place(node: KubeletNode) -> None:
    first = node.plugin()
    node.devices_are(8, 8)
    second = node.plugin(EIGHT[:4])
    node.devices_are(4, 4)
    node.create("p", 1)
    node.phase_is("p", "Running")
    assert not first.calls
    assert [type(call) for call in second.calls] == [PreferCall, AllocateCall]


def test_a_replaced_plugin_s_stream_counts_until_it_ends_and_its_end_harms_nobody(
    node: KubeletNode,
) -> None:
    """Before Kubernetes 1.37 its end cut off the new one too. So a plugin that starts again ends
    the old stream before it registers, and looks whether its new one lasts."""
    first = node.plugin()
    node.devices_are(8, 8)
    second = node.plugin(EIGHT[:4])
    node.devices_are(4, 4)
    assert not first.stream_over.is_set()
    first.list_devices(EIGHT[:6])
    node.devices_are(6, 6)
    first.end_stream()
    second.list_devices(EIGHT[:5])
    node.devices_are(5, 5)
    assert not second.stream_over.is_set()
    second.end_stream()
    node.devices_are(5, 0)


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"version": "v1alpha"}, "requested API version"),
        ({"resource": "gpu"}, 'the ResourceName "gpu" is invalid'),
        ({"resource": "kubernetes.io/gpu"}, 'the ResourceName "kubernetes.io/gpu" is invalid'),
        ({"resource": "requests.a.io/gpu"}, 'the ResourceName "requests.a.io/gpu" is invalid'),
        ({"resource": "nvidia.com/my gpu"}, 'the ResourceName "nvidia.com/my gpu" is invalid'),
    ],
)
def test_a_bad_registration_is_refused(
    node: KubeletNode, more: dict[str, object], refusal: str
) -> None:
    with pytest.raises(grpc.RpcError, match=r"StatusCode\.UNKNOWN") as caught:
        node.plugin(EIGHT, **more)
    assert refusal in str(caught.value)


def register(node: KubeletNode, endpoint: str) -> None:
    """A registration of its own, that waits longer than the kubelet does."""
    options = [("grpc.default_authority", "localhost")]
    address = f"unix://{node.kubelet.device_plugins / 'kubelet.sock'}"
    with grpc.insecure_channel(address, options=options) as channel:
        request = api.RegisterRequest(
            version="v1beta1", endpoint=endpoint, resource_name=node.resource
        )
        RegistrationStub(channel).Register(request, timeout=30)


def test_a_plugin_that_is_not_where_it_says_is_refused(node: KubeletNode) -> None:
    """The kubelet appends the endpoint to its directory, so a whole path leads nowhere."""
    serving = node.plugin()
    endpoints = ("no-plugin.sock", str(node.kubelet.device_plugins / serving.socket))

    def refusal(endpoint: str) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            register(node, endpoint)
        return str(caught.value)

    with ThreadPoolExecutor() as pool:  # the kubelet tries each for ten seconds
        refusals = list(pool.map(refusal, endpoints))
    assert all("failed to dial device plugin" in text for text in refusals), refusals


def test_a_pod_that_comes_before_the_node_shows_the_resource_gets_it_all_the_same(
    node: KubeletNode,
) -> None:
    def is_early() -> bool:
        """Not if the Node's next status happened to go out meanwhile."""
        node.resource += "-again"
        node.plugin()
        wait_for(lambda: node.offers(8), "the kubelet has heard of the devices")
        return node.devices() == ("", "")

    wait_for(is_early, "the Node does not show yet what the kubelet has")
    node.create("early", 2)
    node.phase_is("early", "Running")
    assert node.held()["early"] == {"main": {"GPU-6", "GPU-7"}}


def test_a_pod_that_wants_what_no_plugin_has_offered_runs_without_it(node: KubeletNode) -> None:
    """So where a node's plugin has never been, nothing but the scheduler keeps pods away."""
    node.create("p", 2)
    node.phase_is("p", "Running")
    assert node.held()["p"] == {"main": set()}
    plugin = node.plugin()
    node.devices_are(8, 8)
    assert plugin.calls == []
    assert node.held()["p"] == {"main": set()}
