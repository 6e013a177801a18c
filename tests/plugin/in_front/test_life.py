"""A vendor's plugin that is late, gone, back, hanging, refusing, or offers something else: what the
kubelet sees, and that nothing is left behind."""

import socket
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from linkwise.plugin.device_plugin.registration import identity
from linkwise.plugin.device_plugin.server import Advice
from linkwise.plugin.in_front.front import Front
from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from tests.machines import DGX_1V
from tests.plugin.fake_kubelet import FakeKubelet
from tests.plugin.in_front.conftest import PATIENCE, UUIDS, FrontNode, healthy
from tests.plugin.in_front.scripted import GPU, ScriptedVendor
from tests.waiting import wait_for

MIG = "nvidia.com/mig-1g.5gb"
ALL = set(UUIDS)


def test_before_a_vendors_plugin_registers_the_kubelet_hears_of_nothing(world: FrontNode) -> None:
    world.open()
    wait_for(lambda: world.registry.is_socket(), "the socket to register at")
    assert not world.front.ready
    assert world.front.trouble == (
        f"no vendor's plugin has registered at {world.registry}: expected "
        f"KUBELET_SOCKET={world.registry} in its environment"
    )
    world.vendor.offer(GPU, UUIDS)
    world.vendor.begin()
    assert healthy(world.plugin()) == ALL
    assert len(world.kubelet.plugins) == 1
    wait_for(lambda: world.front.ready, "readiness")


def test_what_is_planned_is_known_before_the_kubelet_hears_of_gpus(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS)
    world.front.open()
    wait_for(lambda: world.metric("vendor_state", resource=GPU, state="lists"), "the vendor's list")
    assert not world.kubelet.plugins
    world.front.start()
    world.plugin()


def test_where_our_own_knowledge_does_not_come_the_vendors_word_is_handed_on(
    world: FrontNode,
) -> None:
    """As without a driver's library that Linkwise can load: the node must lose nothing by it."""
    world.front = Front(
        kubelet_socket=world.kubelet.socket,
        vendor_socket=world.registry,
        managed=GPU,
        metrics=world.metrics,
        patience=replace(PATIENCE, own_knowledge=0.05),
    )
    world.vendor.offer(GPU, UUIDS, preference=list(UUIDS[2:4]))
    world.front.open()
    plugin = world.plugin()
    assert healthy(plugin) == ALL
    assert plugin.preferred(UUIDS, 2) == list(UUIDS[2:4])
    assert plugin.allocate(UUIDS[:1]).envs["VENDOR_SAYS"] == UUIDS[0]
    world.sick(UUIDS[0])
    wait_for(lambda: healthy(plugin) == ALL - {UUIDS[0]}, "what we know at last")


def test_of_a_plugin_that_is_killed_the_kubelets_stream_ends_and_begins_when_it_is_back(
    world: FrontNode,
) -> None:
    """It ends at once: where the new plugin registers with the kubelet itself, a later end of
    Linkwise's stream would cut it off."""
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    world.vendor.kill()
    wait_for(lambda: plugin.ended, "the end of our stream")
    wait_for(lambda: not list(world.kubelet.directory.glob("linkwise-*")), "no socket of ours")
    assert not world.front.ready
    assert world.front.trouble.startswith("nvidia.com/gpu: the vendor's plugin lost: UNAVAILABLE")
    assert world.metric("vendor_state", resource=GPU, state="lost") == 1
    assert world.front.seen(world.machine).healthy_gpus == 0xFF, "plans outlive a restart"
    world.vendor = ScriptedVendor(world.kubelet.directory, world.registry)
    world.vendor.offer(GPU, UUIDS)
    world.vendor.begin()
    again = world.plugin(registrations=2)
    wait_for(lambda: healthy(again) == ALL, "all healthy again")
    wait_for(lambda: world.front.ready, "readiness")


def test_a_plugin_that_registers_with_the_kubelet_itself_is_left_to_it(world: FrontNode) -> None:
    """It serves at the same path. Registered by both, it would be cut off when Linkwise ends."""
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    world.vendor.kill()
    wait_for(lambda: plugin.ended, "the end of our stream")
    world.vendor = ScriptedVendor(world.kubelet.directory, world.kubelet.socket)
    world.vendor.offer(GPU, UUIDS)
    world.vendor.begin()
    alone = world.plugin(registrations=2)
    assert alone.request.endpoint == "nvidia-gpu.sock"
    wait_for(lambda: "created again: expected a registration" in world.front.trouble, "the reason")
    world.front.stop()
    assert world.kubelet.of(GPU) == [plugin, alone]
    assert len(world.vendor.calls("ListAndWatch")) == 1
    assert healthy(alone) == ALL


def test_the_kubelet_hears_of_every_change_though_the_cluster_cannot_be_told(
    world: FrontNode,
) -> None:
    """What a change means for the cluster takes time, and the kubelet does not wait for it."""
    telling, may_end = threading.Event(), threading.Event()

    def tell() -> None:
        telling.set()
        may_end.wait()

    world.front.advise(
        Advice(world.advisor, world.metrics),
        on_allocated=lambda: None,
        on_lost=lambda: None,
        on_change=tell,
    )
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    telling.wait()
    world.vendor.set(unhealthy=UUIDS[:1])
    wait_for(lambda: healthy(plugin) == ALL - {UUIDS[0]}, "the first change")
    world.vendor.set(unhealthy=UUIDS[:2])
    wait_for(lambda: healthy(plugin) == ALL - set(UUIDS[:2]), "the second change")
    may_end.set()


def test_a_list_that_ends_is_asked_for_again_though_nobody_registers(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    world.vendor.set(errors={"ListAndWatch": ["UNAVAILABLE", "going down"]})
    wait_for(lambda: plugin.ended, "the end of our stream")
    assert "the vendor's plugin lost: UNAVAILABLE: going down" in world.front.trouble
    world.vendor.set(errors={})
    again = world.plugin(registrations=2)
    wait_for(lambda: healthy(again) == ALL, "all healthy again")
    world.vendor.do("end_lists", resource=GPU)  # without an error
    third = world.plugin(registrations=3)
    wait_for(lambda: world.front.ready and healthy(third) == ALL, "all healthy again")


def test_a_list_that_is_refused_is_asked_for_again(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS, errors={"ListAndWatch": ["INTERNAL", "no"]})
    world.open()
    wait_for(lambda: len(world.vendor.calls("ListAndWatch")) > 2, "several attempts")
    assert not world.kubelet.plugins
    assert "the vendor's plugin lost: INTERNAL: no" in world.front.trouble
    world.vendor.set(errors={})
    assert healthy(world.plugin()) == ALL


def test_a_plugin_that_registers_and_lists_nothing_is_told_and_not_offered(
    world: FrontNode, caplog: pytest.LogCaptureFixture
) -> None:
    world.make_front(first_list=0.05)
    world.vendor.offer(GPU, UUIDS, hangs=["ListAndWatch"])
    world.open()
    wait_for(lambda: "it has registered, and lists nothing" in world.front.trouble, "the reason")
    said = "silent: it has registered, and lists nothing"
    wait_for(lambda: said in caplog.text, "the log says it")
    assert not world.kubelet.plugins
    assert world.metric("vendor_state", resource=GPU, state="silent") == 1


def test_what_an_earlier_plugin_listed_does_not_count_where_its_successor_is_silent(
    world: FrontNode,
) -> None:
    world.make_front(first_list=0.2)
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    world.vendor.set(hangs=["ListAndWatch"])
    assert world.vendor.do("register", resource=GPU) == ""
    wait_for(lambda: not healthy(plugin), "all unhealthy")
    assert set(plugin.health) == ALL


def test_a_plugin_that_hangs_makes_all_unhealthy_until_it_answers(world: FrontNode) -> None:
    """Stopped by SIGSTOP: connections stay, it answers nothing, the kubelet would not notice."""
    world.make_front(probe=0.05)
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    world.vendor.freeze()
    wait_for(lambda: not healthy(plugin), "all unhealthy")
    assert "the vendor's plugin hangs: it answers no call" in world.front.trouble
    assert world.metric("vendor_state", resource=GPU, state="hangs") == 1
    world.vendor.thaw()
    wait_for(lambda: healthy(plugin) == ALL, "all healthy again")


def test_a_second_registration_takes_the_place_of_the_first_without_a_gap(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    for _ in range(3):
        assert world.vendor.do("register", resource=GPU) == ""
    # Only the last one counts. One that is replaced at once may never be asked for its list.
    world.vendor.set(unhealthy=[UUIDS[1]])
    wait_for(lambda: healthy(plugin) == ALL - {UUIDS[1]}, "what the last one lists")
    assert [len(healthy_of(message)) for message in plugin.lists] == [8, 7]
    assert world.kubelet.plugins == [plugin]
    assert plugin.allocate(UUIDS[:1]).envs["VENDOR_SAYS"] == UUIDS[0]


def test_a_call_under_way_ends_well_though_another_plugin_has_registered_meanwhile(
    world: FrontNode,
) -> None:
    """As where a vendor's plugin is updated and the new one starts before the old one ends."""
    world.vendor.offer(GPU, UUIDS, hangs=["Allocate"])
    plugin = world.start()
    under_way = plugin.stub.Allocate.future(api.AllocateRequest(), timeout=60)
    wait_for(lambda: world.vendor.calls("Allocate"), "the call")
    assert world.vendor.do("register", resource=GPU) == ""
    wait_for(lambda: len(world.vendor.calls("ListAndWatch")) == 2, "the second stream")
    world.vendor.set(hangs=[])
    assert not under_way.result(60).container_responses
    wait_for(lambda: vendors() == 1, "the end of the old one")


def vendors() -> int:
    return sum(each.name.startswith("vendor nvidia") for each in threading.enumerate())


def healthy_of(message: api.ListAndWatchResponse) -> list[str]:
    return [device.ID for device in message.devices if device.health == "Healthy"]


def test_options_that_change_are_told_to_the_kubelet(world: FrontNode) -> None:
    """It reads them only when a plugin registers."""
    world.vendor.offer(GPU, UUIDS)
    assert not world.start().options.pre_start_required
    world.vendor.set(
        options={"get_preferred_allocation_available": True, "pre_start_required": True}
    )
    world.vendor.do("register", resource=GPU)
    again = world.plugin(registrations=2)
    assert again.options.pre_start_required
    assert healthy(again) == ALL


def test_another_mig_layout_is_another_resource_and_the_old_one_ends(
    world: FrontNode,
) -> None:
    world.vendor.offer(GPU, UUIDS)
    whole = world.start()
    world.vendor.do("drop", resource=GPU)
    world.vendor.offer(MIG, ["MIG-1", "MIG-2"], socket="nvidia-mig.sock")
    world.vendor.begin()
    assert healthy(world.plugin(MIG)) == {"MIG-1", "MIG-2"}
    assert set(whole.health) == ALL
    assert "nvidia.com/gpu: the vendor's plugin lost" in world.front.trouble
    wait_for(lambda: whole.ended, "the end of what is gone")
    world.front._patience = replace(world.front._patience, grace=0.0)
    wait_for(lambda: world.front.ready, "readiness without the old resource")
    assert world.metric("vendor_state", resource=GPU, state="lost") == 0
    world.vendor.do("drop", resource=MIG)
    world.vendor.offer(GPU, UUIDS)
    world.vendor.begin()
    assert healthy(world.plugin(registrations=2)) == ALL


@pytest.mark.parametrize("before", [f"{GPU}.shared", GPU])
def test_a_resource_that_another_replaces_is_forgotten_before_its_time(
    world: FrontNode, before: str
) -> None:
    """The vendor's plugin starts with other settings of time-slicing."""
    forms = {GPU: UUIDS, f"{GPU}.shared": [f"{uuid}::{n}" for uuid in UUIDS[:7] for n in range(4)]}
    after = next(each for each in forms if each != before)
    world.vendor.offer(before, forms[before], socket="before.sock")
    world.open()
    world.plugin(before)
    world.vendor.do("drop", resource=before)
    wait_for(lambda: "lost" in world.front.trouble, "the loss")
    world.vendor.offer(after, forms[after], socket="after.sock")
    world.vendor.begin()
    assert healthy(world.plugin(after)) == set(forms[after])
    seven = set(UUIDS[:7])
    if after == GPU:
        wait_for(lambda: world.front.ready, "readiness without the old resource")
        assert world.front.seen(DGX_1V) == DGX_1V
        assert world.metric("vendor_state", resource=before, state="lost") == 0
    else:
        divided = {gpu.uuid for gpu in world.front.seen(DGX_1V).gpus if gpu.parts}
        assert divided == seven
        # Of the eighth GPU only the lost list speaks, so it stays.
        assert set(world.front.lists) == {before, after}
        assert [device.ID for device in world.front.lists[before].devices] == [UUIDS[7]]


@pytest.mark.parametrize(
    ("behaviour", "refusal"),
    [
        ({"version": "v1alpha"}, "requested API version 'v1alpha' is not supported by kubelet"),
        ({"endpoint": "absent.sock"}, "failed to dial device plugin at {}/absent.sock: DEADLINE"),
        (
            {"endpoint": "/nonexistent/x.sock"},
            "failed to dial device plugin at /nonexistent/x.sock",
        ),
        (
            {"hangs": ["GetDevicePluginOptions"]},
            "failed to dial device plugin at {}/nvidia-gpu.sock",
        ),
        ({"name": "gpu"}, 'the ResourceName "gpu" is invalid'),
        ({"name": "kubernetes.io/gpu"}, 'the ResourceName "kubernetes.io/gpu" is invalid'),
    ],
)
def test_a_registration_that_cannot_be_is_refused_and_tried_again(
    world: FrontNode, behaviour: dict[str, object], refusal: str
) -> None:
    world.make_front(dial=0.2)
    world.vendor.offer(GPU, UUIDS, **behaviour)  # type: ignore[arg-type]
    world.open()
    wait_for(lambda: len(world.vendor.calls("Register")) > 1, "two refusals")
    told = world.vendor.calls("Register")[0]["refused"]
    assert told.startswith(f"UNKNOWN: {refusal.format(world.kubelet.directory)}")
    assert world.metric("vendor_registrations_total", outcome="refused") >= 2
    assert "no vendor's plugin has registered" in world.front.trouble
    assert not world.kubelet.plugins
    world.vendor.set(version="v1beta1", endpoint="nvidia-gpu.sock", hangs=[], name=GPU)
    assert healthy(world.plugin()) == ALL


@pytest.mark.parametrize("kind", ["in the kubelet's directory", "beside ours", "absolute"])
def test_a_plugins_socket_is_found_where_it_is(world: FrontNode, kind: str) -> None:
    """A plugin that has the path compiled in sees Linkwise's directory in its place."""
    world.registry.parent.mkdir()
    if kind != "in the kubelet's directory":
        world.vendor.kill()
        world.vendor = ScriptedVendor(world.registry.parent, world.registry)
        (world.kubelet.directory / "nvidia-gpu.sock").touch()  # an older one of the same name
    absolute = {"endpoint": str(world.registry.with_name("nvidia-gpu.sock"))}
    world.vendor.offer(GPU, UUIDS, **(absolute if kind == "absolute" else {}))
    assert healthy(world.start()) == ALL


def test_a_plugin_that_watches_its_own_socket_alone_begins_again_with_linkwise_and_kubelet(
    world: FrontNode,
) -> None:
    """Intel's does. It sees Linkwise's directory as the kubelet's, and a kubelet empties that."""
    world.registry.parent.mkdir()
    world.vendor.kill()
    world.vendor = ScriptedVendor(world.registry.parent, world.registry)
    world.vendor.offer(GPU, UUIDS)
    world.vendor.do("watch", on=False)
    world.open()
    wait_for(lambda: world.registry.is_socket(), "the socket to register at")
    world.vendor.begin()
    world.offering(ALL)
    world.vendor.do("watch_own", on=True)

    world.front.stop()
    world.make_front()
    world.open()
    wait_for(lambda: world.vendor.do("starts") == 2, "a new beginning with another Linkwise")
    world.offering(ALL)

    world.kubelet.restart()
    wait_for(lambda: world.vendor.do("starts") == 3, "a new beginning with another kubelet")
    world.offering(ALL)


def test_no_socket_is_removed_outside_the_kubelets_directory(world: FrontNode) -> None:
    """An operator's `--vendor-socket` may be beside sockets of others."""
    theirs = socket.socket(socket.AF_UNIX)
    with theirs, tempfile.TemporaryDirectory(prefix="lw-") as elsewhere:
        theirs.bind(f"{elsewhere}/other.sock")
        world.front = Front(
            kubelet_socket=world.kubelet.socket,
            vendor_socket=Path(elsewhere) / "linkwise.sock",
            managed=GPU,
            metrics=world.metrics,
        )
        world.front.open()
        wait_for(lambda: (Path(elsewhere) / "linkwise.sock").is_socket(), "our socket")
        assert (Path(elsewhere) / "other.sock").is_socket()
        world.front.stop()


def test_with_another_kubelet_the_vendors_plugin_begins_again_and_forgets_what_was_unhealthy(
    world: FrontNode,
) -> None:
    """The kubelet empties its directory, where the vendor's socket is."""
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    world.vendor.set(unhealthy=[UUIDS[0]])
    wait_for(lambda: UUIDS[0] not in healthy(plugin), "the sick GPU")
    registry, starts = identity(world.registry), world.vendor.do("starts")
    world.kubelet.restart()
    again = world.offering(ALL)
    assert again is not plugin
    assert identity(world.registry) != registry
    assert identity(world.registry) is not None
    assert world.vendor.do("starts") > starts
    assert {len(healthy_of(message)) for message in again.lists} <= {0, 8}, "nothing of before"
    assert (world.kubelet.directory / "nvidia-gpu.sock").is_socket()
    assert world.lost >= 1
    assert again.allocate(UUIDS[:1]).envs["VENDOR_SAYS"] == UUIDS[0]


def test_a_plugin_that_does_not_begin_again_with_the_kubelet_counts_again_after_a_while(
    world: FrontNode,
) -> None:
    world.vendor.offer(GPU, UUIDS)
    world.start()
    world.vendor.do("watch", on=False)
    starts = world.vendor.do("starts")
    world.kubelet.restart()
    again = world.plugin(registrations=2)
    assert set(again.health) == ALL
    assert not healthy(again)
    assert world.front.trouble == "nvidia.com/gpu: the vendor's plugin renews"
    world.front._patience = replace(world.front._patience, renewal=0.0)
    wait_for(lambda: healthy(again) == ALL, "all GPUs with the new kubelet")
    assert world.vendor.do("starts") == starts


def test_a_kubelet_that_comes_last_finds_all(kubelet_dir: Path) -> None:
    world = FrontNode(kubelet_dir)
    try:
        world.kubelet.stop()
        world.kubelet.socket.unlink(missing_ok=True)
        world.vendor.offer(GPU, UUIDS)
        world.open()
        wait_for(lambda: world.metric("vendor_state", resource=GPU, state="lists"), "the list")
        world.kubelet = FakeKubelet(kubelet_dir)
        world.kubelet.start()
        wait_for(lambda: healthy(world.plugin()) == ALL, "all GPUs")
    finally:
        world.stop()


def test_a_socket_to_register_at_that_somebody_removes_is_made_again(world: FrontNode) -> None:
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    world.vendor.do("watch", on=False)
    world.registry.unlink()
    wait_for(lambda: world.registry.is_socket(), "the socket")
    assert world.vendor.do("register", resource=GPU) == ""
    wait_for(lambda: len(world.vendor.calls("ListAndWatch")) == 2, "the second stream")
    wait_for(lambda: world.front.ready, "readiness")
    assert healthy(plugin) == ALL
    assert world.kubelet.plugins == [plugin]


def test_a_plugin_that_begins_again_when_that_socket_is_made_again_is_offered_again(
    world: FrontNode,
) -> None:
    world.vendor.offer(GPU, UUIDS)
    world.start()
    starts = world.vendor.do("starts")
    world.registry.unlink()
    wait_for(lambda: world.vendor.do("starts") > starts, "a new beginning")
    again = world.offering(ALL)
    assert again.allocate(UUIDS[:1]).envs["VENDOR_SAYS"] == UUIDS[0]


def test_where_no_socket_can_be_made_the_reason_is_told_until_it_can(
    world: FrontNode, caplog: pytest.LogCaptureFixture
) -> None:
    world.registry.parent.touch()  # a file
    world.open()
    wait_for(lambda: "File exists" in world.front.trouble, "the reason")
    world.registry.parent.unlink()
    wait_for(lambda: world.registry.is_socket(), "the socket")
    assert caplog.text.count("vendors' plugins cannot register") == 1


def test_a_path_too_long_for_a_socket_is_named(kubelet_dir: Path) -> None:
    world = FrontNode(kubelet_dir)
    try:
        world.registry = kubelet_dir / ("x" * 100) / "kubelet.sock"
        world.make_front()
        world.open()
        wait_for(lambda: "expected at most 107 bytes" in world.front.trouble, "the reason")
    finally:
        world.stop()


def ours() -> set[str]:
    """Threads that this package starts, and those of its gRPC servers."""
    names = ("vendor", "front", "registrar", "kubelet-call")
    return {each.name for each in threading.enumerate() if each.name.startswith(names)}


def test_no_thread_is_left_of_plugins_that_come_and_go_nor_of_us(world: FrontNode) -> None:
    world.make_front(grace=0.0)
    world.vendor.offer(GPU, UUIDS)
    plugin = world.start()
    for number in range(4):
        name = f"nvidia.com/mig-{number}g"
        world.vendor.offer(name, ["MIG-1"], socket=f"{number}.sock")
        world.vendor.begin()
        world.plugin(name)
        world.vendor.do("drop", resource=name)
    wait_for(lambda: len(world.front._all()) == 1, "the end of all but one resource")
    for _ in range(5):
        world.vendor.begin()
    wait_for(lambda: healthy(plugin) == ALL or plugin.ended, "the GPUs, or a new beginning")

    def registrars() -> int:
        return sum(each.name == "registrar" for each in threading.enumerate())

    wait_for(lambda: vendors() == registrars() == 1, "one thread of each kind")
    world.front.stop()
    wait_for(lambda: not ours(), "the end of all our threads")
    assert list(world.kubelet.directory.glob("linkwise-*")) == []
    assert list(world.registry.parent.iterdir()) == []


def test_a_vendor_of_other_resources_that_begins_again_offers_no_whole_gpus(
    world: FrontNode,
) -> None:
    """Its list counts from now on, but what it has shown does not become unknown."""
    front = world.make_front(first_list=1.0)
    world.vendor.offer("nvidia.com/a100", UUIDS)
    world.open()
    wait_for(lambda: not front.seen(world.machine).healthy_gpus, "no whole GPUs")
    world.vendor.kill()
    wait_for(lambda: "lost" in front.trouble, "the end of the vendor's plugin")
    front._look_for_whole()
    assert not front.seen(world.machine).healthy_gpus
