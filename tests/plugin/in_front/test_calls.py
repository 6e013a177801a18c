"""What the kubelet asks and gets, with a healthy vendor's plugin behind the Linkwise plugin."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import grpc
import pytest

from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.topology.machine.model import LinkClass, Machine
from tests.machines import DGX_1V
from tests.plugin.fake_kubelet import Plugin
from tests.plugin.in_front.conftest import UUIDS, FrontNode, healthy, numa_nodes
from tests.plugin.in_front.scripted import GPU
from tests.waiting import wait_for

Call: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
UNKNOWN_FIELD = bytes([0xC2, 0x3E, 4]) + b"kept"
REPLICAS = [f"{uuid}::{number}" for uuid in UUIDS for number in range(4)]
SHARED = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-1g.5gb"
MIG_IDS = [f"MIG-{number:08x}-0000-0000-0000-000000000000" for number in range(7)]


def raw(plugin: Plugin, method: str, request: bytes, seconds: float | None = 20) -> bytes:
    return begin(plugin, method)(request, timeout=seconds)


def begin(plugin: Plugin, method: str) -> Call:
    return plugin.channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")


def allocation(ids: Sequence[str]) -> bytes:
    asked = api.ContainerAllocateRequest(devices_ids=ids)
    return api.AllocateRequest(container_requests=[asked]).SerializeToString()


def test_the_kubelet_sees_the_same_resource_in_one_order_with_numa_nodes(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    assert [device.ID for device in plugin.lists[-1].devices] == list(UUIDS)
    assert healthy(plugin) == set(UUIDS)
    assert numa_nodes(plugin) == {gpu.uuid: list(gpu.numa_nodes) for gpu in DGX_1V.gpus}
    assert plugin.request.options.get_preferred_allocation_available
    assert not plugin.request.options.pre_start_required
    wait_for(lambda: world.front.ready, "readiness")
    assert world.metric("vendor_state", resource=GPU, state="lists") == 1
    assert world.metric("vendor_devices", resource=GPU, health="healthy") == 8
    assert world.metric("vendor_registrations_total", outcome="taken") >= 1


def test_a_list_that_differs_in_its_order_alone_is_not_sent_again(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    changes = world.changed
    for _ in range(5):
        world.vendor.set()
    wait_for(lambda: world.changed > changes, "another list")
    world.vendor.set(unhealthy=[UUIDS[3]])
    wait_for(lambda: UUIDS[3] not in healthy(plugin), "the sick GPU")
    assert len(plugin.lists) == 2


def test_numa_nodes_that_the_vendor_gives_are_passed_on(world: FrontNode) -> None:
    given = {uuid: [7] if uuid == UUIDS[0] else [] for uuid in UUIDS}
    world.vendor.offer(GPU, UUIDS, devices=given)
    nodes = numa_nodes(world.start())
    assert nodes[UUIDS[0]] == [7]
    assert nodes[UUIDS[1]] == list(DGX_1V.gpus[1].numa_nodes)


def test_allocate_and_prestart_pass_byte_for_byte(world: FrontNode) -> None:
    world.vendor.offer(
        GPU, UUIDS, options={"get_preferred_allocation_available": True, "pre_start_required": True}
    )
    plugin = world.start()
    assert plugin.request.options.pre_start_required
    request = allocation(UUIDS[2:4]) + UNKNOWN_FIELD
    reply = raw(plugin, "Allocate", request)
    assert reply.endswith(UNKNOWN_FIELD)
    (response,) = api.AllocateResponse.FromString(reply).container_responses
    assert response.envs["VENDOR_SAYS"] == ",".join(sorted(UUIDS[2:4]))
    assert response.mounts[0].host_path == "/run/mps"
    started = api.PreStartContainerRequest(devices_ids=UUIDS[2:4]).SerializeToString()
    assert raw(plugin, "PreStartContainer", started + UNKNOWN_FIELD) == UNKNOWN_FIELD
    for method, sent in (("Allocate", request), ("PreStartContainer", started + UNKNOWN_FIELD)):
        assert [call["request"] for call in world.vendor.calls(method)] == [sent.hex()]
    assert world.allocated == 1
    assert world.metric("vendor_calls_total", resource=GPU, call="Allocate", outcome="done") == 1


@pytest.mark.parametrize("method", ["Allocate", "PreStartContainer"])
@pytest.mark.parametrize("code", ["UNKNOWN", "INVALID_ARGUMENT", "UNAVAILABLE", "ABORTED"])
def test_a_refusal_is_handed_through_with_its_code_and_text(
    world: FrontNode, method: str, code: str
) -> None:
    text = "invalid allocation request for 'nvidia.com/gpu': unknown device: GPU-x"
    world.vendor.offer(GPU, UUIDS, errors={method: [code, text]})
    plugin = world.start()
    with pytest.raises(grpc.RpcError) as refused:
        raw(plugin, method, api.AllocateRequest().SerializeToString())
    assert isinstance(refused.value, grpc.Call)
    assert (refused.value.code().name, refused.value.details()) == (code, text)
    assert world.allocated == 0
    assert world.metric("vendor_calls_total", resource=GPU, call=method, outcome="failed") == 1


def test_what_the_vendor_gives_is_given_though_we_cannot_make_anything_of_it(
    world: FrontNode, caplog: pytest.LogCaptureFixture
) -> None:
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()

    def broken(_: object) -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.advisor, "allocated", broken)
        assert plugin.allocate(UUIDS[:1]).envs["VENDOR_SAYS"] == UUIDS[0]
    assert "nvidia.com/gpu: an Allocate is not accounted for" in caplog.text
    assert world.allocated == 1


def test_the_callers_deadline_is_the_vendors_and_there_is_none_where_it_has_none(
    world: FrontNode,
) -> None:
    world.vendor.offer(GPU, UUIDS, hangs=["Allocate"])
    plugin = world.start()
    request = allocation(UUIDS[:1])
    with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
        raw(plugin, "Allocate", request, seconds=0.5)
    (call,) = world.vendor.calls("Allocate")
    assert 0 < call["seconds"] < 1
    wait_for(lambda: world.vendor.calls("Allocate given up"), "the end of the vendor's call")
    world.vendor.set(hangs=[])
    raw(plugin, "Allocate", request, seconds=None)
    assert world.vendor.calls("Allocate")[-1]["seconds"] is None


def test_a_caller_that_goes_ends_the_vendors_call_and_frees_our_thread(world: FrontNode) -> None:
    """A kubelet that is killed in the midst of it, more often than the plugin has threads."""
    world.vendor.offer(GPU, UUIDS, hangs=["Allocate"])
    plugin = world.start()
    allocate = begin(plugin, "Allocate")
    for number in range(12):
        call = allocate.future(b"")
        wait_for(lambda n=number: len(world.vendor.calls("Allocate")) > n, "the call")  # type: ignore[misc]
        call.cancel()
    wait_for(lambda: len(world.vendor.calls("Allocate given up")) == 12, "the end of all")
    world.vendor.set(hangs=[])
    assert raw(plugin, "Allocate", b"")


def test_a_planned_pod_gets_its_plan_whatever_the_vendor_prefers(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS, preference=list(UUIDS[2:4]))
    plugin = world.start()
    world.planned("w", (UUIDS[1], UUIDS[6]))
    assert plugin.preferred(UUIDS, 2) == [UUIDS[1], UUIDS[6]]
    assert not world.vendor.calls("GetPreferredAllocation")
    assert world.metric("preferred_total", source="plan") == 1
    plugin.allocate([UUIDS[1], UUIDS[6]])
    assert world.metric("allocations_total", outcome="as-preferred") == 1


def test_without_a_plan_our_answer_counts_unless_the_vendors_is_better(world: FrontNode) -> None:
    """GPUs 0 and 1 of a DGX-1V have one NVLink, 0 and 3 have two."""
    world.vendor.offer(GPU, UUIDS, preference=[UUIDS[0], UUIDS[1]])
    plugin = world.start()
    chosen = [UUIDS.index(uuid) for uuid in plugin.preferred(UUIDS, 2)]
    assert DGX_1V.link(chosen[0], chosen[1]).nvlinks == 2
    assert len(world.vendor.calls("GetPreferredAllocation")) == 1
    assert world.metric("preferred_total", source="free-choice") == 1


def poor(_machine: Machine, _free: int, size: int, must: int, _prefer: LinkClass) -> int | None:
    """GPUs 0 and 1, whatever the question."""
    return 0b11 if size == 2 and not must else None


@pytest.mark.parametrize(
    ("preference", "source"),
    [
        ((0, 3), "vendor"),  # two NVLinks beat one
        ((0, 1), "free-choice"),  # the same
        ((0, 5), "free-choice"),  # no NVLink at all
        ((0, 3, 2), "free-choice"),  # too many
        ((0, 0), "free-choice"),
        ((0, 7), "free-choice"),  # two NVLinks too, and a plan of another pod is spoiled
        ((), "free-choice"),
    ],
)
def test_the_vendors_better_answer_counts_if_it_spoils_no_plan(
    world: FrontNode, preference: tuple[int, ...], source: str
) -> None:
    world.make_front(pick=poor)
    world.vendor.offer(GPU, UUIDS, preference=[UUIDS[i] for i in preference])
    plugin = world.start()
    world.planned("other", (UUIDS[7], UUIDS[4], UUIDS[5]))
    given = plugin.preferred(UUIDS, 2)
    assert given == [UUIDS[i] for i in (preference if source == "vendor" else (0, 1))]
    assert world.metric("preferred_total", source=source) == 1
    plugin.allocate(given)
    assert world.metric("allocations_total", outcome="as-preferred") == 1


def test_where_nothing_of_ours_can_be_judged_the_vendors_answer_counts(world: FrontNode) -> None:
    world.make_front(pick=lambda *_: None)
    world.vendor.offer(GPU, UUIDS, preference=[UUIDS[4], UUIDS[6]])
    assert world.start().preferred(UUIDS, 2) == [UUIDS[4], UUIDS[6]]


@pytest.mark.parametrize(
    "behaviour",
    [
        {"hangs": ["GetPreferredAllocation"]},
        {"errors": {"GetPreferredAllocation": ["INTERNAL", "panic"]}},
    ],
)
def test_a_vendor_that_does_not_say_what_it_prefers_leaves_our_answer(
    world: FrontNode, behaviour: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    world.vendor.offer(GPU, UUIDS, **behaviour)
    assert len(world.start().preferred(UUIDS, 2)) == 2
    assert world.metric("preferred_total", source="free-choice") == 1
    assert "the vendor's plugin does not say which devices it prefers" in caplog.text


@pytest.mark.parametrize("resource", [GPU, MIG])
def test_what_was_not_answered_in_time_is_not_asked_again(
    world: FrontNode, resource: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A vendor's plugin goes on with it. Fewer devices are fewer sets to compare."""
    ids = list(UUIDS) if resource == GPU else MIG_IDS
    world.vendor.offer(resource, ids, hangs=["GetPreferredAllocation"])
    world.open()

    def ask(devices: int) -> int:
        """How many questions the vendor has got."""
        wanted = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=ids[:devices], allocation_size=2
        )
        asked = api.PreferredAllocationRequest(container_requests=[wanted])
        with suppress(grpc.RpcError):  # the kubelet's own deadline, if Linkwise has no answer
            plugin = world.offering(ids, resource)
            raw(plugin, "GetPreferredAllocation", asked.SerializeToString(), seconds=1.5)
        return len(world.vendor.calls("GetPreferredAllocation", resource))

    assert ask(6) == 1
    # The caller's deadline ends its own call first, and then the one to the vendor.
    wait_for(lambda: "it is not asked about so many again" in caplog.text, "the end of the first")
    assert [ask(6), ask(7)] == [1, 1]
    world.vendor.set(resource, hangs=[])
    assert [ask(6), ask(5)] == [1, 2]
    world.vendor.begin()  # another process, for all that Linkwise knows
    wait_for(lambda: ask(6) == 3, "a question to the new one")


@pytest.mark.parametrize(("gpus", "questions"), [(8, 1), (9, 0)])
def test_amds_plugin_is_not_asked_about_more_than_eight_gpus(
    world: FrontNode, gpus: int, questions: int
) -> None:
    """It compares permutations of them."""
    resource, ids = "amd.com/gpu", [f"0000:{number:02x}:00.0" for number in range(gpus)]
    world.vendor.offer(resource, ids, preference=ids[:2])
    world.open()
    wanted = api.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=2)
    asked = api.PreferredAllocationRequest(container_requests=[wanted]).SerializeToString()
    reply = raw(world.offering(ids, resource), "GetPreferredAllocation", asked)
    given = api.PreferredAllocationResponse.FromString(reply).container_responses
    assert [list(each.deviceIDs) for each in given] == [ids[:2]] * questions
    assert len(world.vendor.calls("GetPreferredAllocation", resource)) == questions


def test_a_device_that_linkwise_has_not_read_costs_no_plan(world: FrontNode) -> None:
    world.vendor.offer(GPU, (*UUIDS, "GPU-unread"))
    plugin = world.start()
    assert world.metric("vendor_devices", resource=GPU, health="healthy") == 8
    assert world.metric("vendor_devices", resource=GPU, health="not-read") == 1
    world.planned("w", (UUIDS[1], UUIDS[6]))
    assert plugin.preferred((*UUIDS, "GPU-unread"), 2) == [UUIDS[1], UUIDS[6]]
    plugin.allocate([UUIDS[1], UUIDS[6]])
    assert world.metric("allocations_total", outcome="as-preferred") == 1
    # The vendor answers where the others are too few.
    assert set(plugin.preferred((UUIDS[0], "GPU-unread"), 2)) == {UUIDS[0], "GPU-unread"}
    assert world.metric("preferred_total", source="vendor") == 1


def test_one_that_another_container_has_goes_to_the_vendor(world: FrontNode) -> None:
    """What must be among them is unread."""
    world.vendor.offer(GPU, (*UUIDS, "GPU-unread"), preference=["GPU-unread", UUIDS[0]])
    plugin = world.start()
    wanted = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=[*UUIDS, "GPU-unread"],
        must_include_deviceIDs=["GPU-unread"],
        allocation_size=2,
    )
    asked = api.PreferredAllocationRequest(container_requests=[wanted])
    reply = raw(plugin, "GetPreferredAllocation", asked.SerializeToString())
    (given,) = api.PreferredAllocationResponse.FromString(reply).container_responses
    assert list(given.deviceIDs) == ["GPU-unread", UUIDS[0]]


def test_a_vendor_that_prefers_nothing_is_not_asked(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS, options={})
    plugin = world.start()
    assert plugin.request.options.get_preferred_allocation_available
    assert len(plugin.preferred(UUIDS, 3)) == 3
    assert not world.vendor.calls("GetPreferredAllocation")


@pytest.mark.parametrize(
    ("resource", "ids"), [(GPU, REPLICAS), (SHARED, REPLICAS), (MIG, MIG_IDS), (GPU, MIG_IDS)]
)
def test_what_is_no_whole_gpu_passes_to_the_vendor_untouched(
    world: FrontNode, resource: str, ids: list[str]
) -> None:
    """Though a pod with a plan of that size waits."""
    world.vendor.offer(resource, ids)
    world.open()
    plugin = world.plugin(resource)
    world.planned("w", UUIDS[:2])
    assert [device.ID for device in plugin.lists[-1].devices] == ids
    wanted = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=ids[::-1], allocation_size=2
    )
    asked = api.PreferredAllocationRequest(container_requests=[wanted])
    request = asked.SerializeToString() + UNKNOWN_FIELD
    reply = raw(plugin, "GetPreferredAllocation", request)
    assert reply.endswith(UNKNOWN_FIELD)
    (given,) = api.PreferredAllocationResponse.FromString(reply).container_responses
    assert list(given.deviceIDs) == sorted(ids)[-2:]
    (call,) = world.vendor.calls("GetPreferredAllocation", resource)
    assert call["request"] == request.hex()
    plugin.allocate(ids[:2])
    assert world.allocated == 1
    assert world.metric("preferred_total", source="vendor") == 1
    assert world.metric("preferred_total", source="plan") == 0


def test_a_vendor_without_preferences_among_replicas_leaves_the_choice_to_the_kubelet(
    world: FrontNode,
) -> None:
    world.vendor.offer(SHARED, REPLICAS, options={})
    world.open()
    plugin = world.plugin(SHARED)
    assert not plugin.request.options.get_preferred_allocation_available
    assert raw(plugin, "GetPreferredAllocation", b"") == b""


def test_resources_beside_each_other_keep_apart(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS[:6])
    world.vendor.offer(MIG, MIG_IDS, socket="nvidia-mig-1g.5gb.sock")
    gpus, slices = world.start(), world.plugin(MIG)
    assert healthy(gpus) == set(UUIDS[:6])
    assert healthy(slices) == set(MIG_IDS)
    slices.allocate(MIG_IDS[:1])
    assert not world.vendor.calls("Allocate", GPU)
    assert len(world.vendor.calls("Allocate", MIG)) == 1
    seen = world.front.seen(DGX_1V)
    assert [gpu.uuid for gpu in seen.gpus if gpu.healthy] == list(UUIDS[:6])
    why = "the vendor's plugin does not offer it as a whole"
    assert world.front.not_offered(DGX_1V) == dict.fromkeys(UUIDS[6:], why)


def test_a_node_that_offers_only_parts_of_gpus_offers_none_whole(world: FrontNode) -> None:
    world.make_front(first_list=0.1)
    world.vendor.offer(SHARED, REPLICAS)
    world.open()
    world.plugin(SHARED)
    wait_for(lambda: world.front.seen(DGX_1V).healthy_gpus == 0, "no whole GPU")


@pytest.mark.parametrize("ids", [UUIDS, REPLICAS], ids=["whole", "replicas"])
def test_a_gpu_is_unhealthy_if_either_says_so_and_ours_recovers(
    world: FrontNode, ids: Sequence[str]
) -> None:
    world.vendor.offer(GPU, ids)
    plugin = world.start()
    world.sick(UUIDS[2])
    wait_for(lambda: len(healthy(plugin)) < len(ids), "the one that is sick by our knowledge")
    assert {each.partition("::")[0] for each in set(ids) - healthy(plugin)} == {UUIDS[2]}
    world.vendor.set(unhealthy=[ids[0]])
    wait_for(lambda: ids[0] not in healthy(plugin), "the one that is sick by the vendor's")
    world.sick()
    wait_for(lambda: healthy(plugin) == set(ids) - {ids[0]}, "our recovery")
    assert world.metric("vendor_devices", resource=GPU, health="unhealthy") == 1
    assert world.front.ready
    if ids == UUIDS:
        assert world.front.seen(DGX_1V).uuids_of(world.front.seen(DGX_1V).healthy_gpus) == UUIDS[1:]
        why = "the vendor's plugin says so"
        assert world.front.not_offered(DGX_1V) == {UUIDS[0]: why}
