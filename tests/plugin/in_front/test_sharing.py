"""Which GPUs vendors' plugins offer in parts, from what they list."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from linkwise.plugin.in_front.resource import offered
from linkwise.plugin.in_front.sharing import (
    divided,
    is_share,
    read_otherwise,
    still_true,
    with_sick_shares,
)
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.topology.annotations.node_annotation import read_topology, write_topology
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.parts import MigProfile, Part
from tests.divided import GPU, MIG_1G, MIG_3G, PROFILE_1G, SHARED
from tests.divided import divided as with_parts
from tests.machines import DGX_1V

UUIDS = [gpu.uuid for gpu in DGX_1V.gpus]


def listed(*ids: str, unhealthy: tuple[str, ...] = ()) -> wire.ListAndWatchResponse:
    return wire.ListAndWatchResponse(
        devices=[
            wire.Device(ID=each, health="Unhealthy" if each in unhealthy else "Healthy")
            for each in ids
        ]
    )


def replicas(uuid: str, count: int) -> list[str]:
    return [f"{uuid}::{number}" for number in range(count)]


def seen(read: Machine, lists: Mapping[str, wire.ListAndWatchResponse]) -> Machine:
    """As the front sees it, and as the cluster reads it."""
    whole = offered(read, lists.get(GPU, wire.ListAndWatchResponse()))
    machine = divided(whole, read, lists)
    assert read_topology(write_topology(machine)) == machine
    return machine


def test_whole_gpus_alone_are_as_before() -> None:
    assert seen(DGX_1V, {GPU: listed(*UUIDS)}) == DGX_1V


@pytest.mark.parametrize("resource", [GPU, SHARED])
def test_replicas_divide_their_gpus_under_either_name(resource: str) -> None:
    ids = [*replicas(UUIDS[0], 4), *replicas(UUIDS[1], 4)]
    machine = seen(DGX_1V, {resource: listed(*ids[::-1])})
    assert machine.gpus[0].parts == (Part(UUIDS[0], resource, 4),)
    assert machine.gpus[1].parts == (Part(UUIDS[1], resource, 4),)
    assert machine.gpus[2].parts is None
    assert machine.healthy_gpus == 0


def test_all_three_are_on_one_node() -> None:
    mig = Part("MIG-a", mig=PROFILE_1G), Part("MIG-b", mig=PROFILE_1G)
    read = with_parts(DGX_1V, {7: mig})
    lists = {
        GPU: listed(*UUIDS[:5]),
        SHARED: listed(*replicas(UUIDS[5], 2), *replicas(UUIDS[6], 2)),
        MIG_1G: listed("MIG-b", "MIG-a"),
    }
    machine = seen(read, lists)
    assert machine.healthy_gpus == 0b11111
    assert machine.gpus[5].parts == (Part(UUIDS[5], SHARED, 2),)
    assert machine.gpus[7].parts == tuple(replace(part, resource=MIG_1G) for part in mig)


def test_replicas_of_mig_devices() -> None:
    read = with_parts(DGX_1V, {7: (Part("MIG-a", mig=PROFILE_1G),)})
    machine = seen(read, {f"{MIG_1G}.shared": listed("MIG-a::0", "MIG-a::1")})
    assert machine.gpus[7].parts == (Part("MIG-a", f"{MIG_1G}.shared", 2, PROFILE_1G),)


def test_a_mig_device_that_no_vendor_lists_is_shown_and_has_no_resource() -> None:
    read = with_parts(DGX_1V, {7: (Part("MIG-a", mig=PROFILE_1G),)})
    machine = seen(read, {GPU: listed(*UUIDS)})
    assert machine.gpus[7].parts == read.gpus[7].parts
    assert machine.healthy_gpus == 0x7F


def test_old_drivers_name_the_gpu_in_the_mig_devices_uuid() -> None:
    first, second = f"MIG-{UUIDS[3]}/1/0", f"MIG-{UUIDS[3]}/2/0"
    machine = seen(DGX_1V, {MIG_1G: listed(second), MIG_3G: listed(first)})
    assert machine.gpus[3].parts == (
        Part(first, MIG_3G, mig=MigProfile("3g.40gb", 3, 40 << 10)),
        Part(second, MIG_1G, mig=MigProfile("1g.10gb", 1, 10 << 10)),
    )


def test_health_is_the_vendors_and_for_replicas_ours_too() -> None:
    sick = replace(DGX_1V.gpus[1], healthy=False)
    read = replace(DGX_1V, gpus=(DGX_1V.gpus[0], sick, *DGX_1V.gpus[2:]))
    read = with_parts(read, {7: (Part("MIG-a", mig=PROFILE_1G), Part("MIG-b", mig=PROFILE_1G))})
    ids = [each for uuid in UUIDS[:3] for each in replicas(uuid, 2)]
    lists = {
        SHARED: listed(*ids, unhealthy=(f"{UUIDS[2]}::1",)),
        MIG_1G: listed("MIG-a", "MIG-b", unhealthy=("MIG-b",)),
    }
    machine = seen(read, lists)
    parts = [part for gpu in machine.gpus for part in gpu.parts or ()]
    assert [part.healthy for part in parts] == [True, False, False, True, False]
    # Of GPU 1 the vendor says nothing bad.
    assert with_sick_shares(machine, lists) == {UUIDS[2], UUIDS[7]}


@pytest.mark.parametrize(
    "ids",
    [
        ["GPU-elsewhere::0", "MIG-elsewhere"],
        [f"{UUIDS[0]}::1", f"{UUIDS[0]}::2"],
        [f"{UUIDS[0]}::{number}" for number in range(2000)],
        [f"MIG-{UUIDS[0]}"],
    ],
)
def test_a_list_that_makes_no_sense_leaves_the_gpu_as_it_is(ids: list[str]) -> None:
    assert seen(DGX_1V, {SHARED: listed(*ids)}).gpus[0].parts is None


def test_a_gpu_under_two_names_has_the_first() -> None:
    ids = replicas(UUIDS[0], 2)
    machine = seen(DGX_1V, {SHARED: listed(*ids), "example.com/gpu": listed(*ids)})
    assert machine.gpus[0].parts == (Part(UUIDS[0], "example.com/gpu", 2),)


def test_mig_devices_of_unknown_gpus_are_named() -> None:
    read = with_parts(DGX_1V, {7: (Part("MIG-a", mig=PROFILE_1G),)})
    lists = {
        GPU: listed(*UUIDS[:7]),
        SHARED: listed(f"{UUIDS[0]}::0"),
        MIG_1G: listed("MIG-a", "MIG-new", f"MIG-{UUIDS[3]}/1/0"),
    }
    assert read_otherwise(read, lists) == {"MIG-new"}


def test_a_gpu_that_is_listed_whole_and_was_read_as_cut_is_named() -> None:
    read = with_parts(DGX_1V, {7: (Part("MIG-a", mig=PROFILE_1G),)})
    assert read_otherwise(read, {GPU: listed(*UUIDS)}) == {UUIDS[7]}


OLD_MIG = f"MIG-{UUIDS[0]}/1/0"  # its name has the GPU in it


@pytest.mark.parametrize(
    ("lost", "live", "kept"),
    [
        pytest.param(replicas(UUIDS[0], 2), UUIDS, [], id="replicas, now whole"),
        pytest.param(UUIDS[:1], replicas(UUIDS[0], 2), [], id="whole, now replicas"),
        pytest.param(replicas(UUIDS[0], 2), replicas(UUIDS[0], 4), [], id="renamed replicas"),
        pytest.param(UUIDS, UUIDS, [], id="renamed whole GPUs"),
        pytest.param(["MIG-a", "MIG-b"], UUIDS, [], id="MIG devices, now whole"),
        pytest.param([OLD_MIG], UUIDS, [], id="MIG devices of an old driver, now whole"),
        pytest.param(["MIG-a"], replicas("MIG-a", 2), [], id="a MIG device, now replicas of it"),
        pytest.param(["MIG-a"], replicas(UUIDS[7], 2), [], id="MIG, now replicas of the GPU"),
        pytest.param(UUIDS, ["MIG-a"], UUIDS[:7], id="one of several is cut"),
        pytest.param(replicas(UUIDS[7], 2), ["MIG-a"], [], id="replicas, now MIG devices"),
        pytest.param(["MIG-gone"], ["MIG-a"], [], id="a MIG device that is gone"),
        pytest.param(["MIG-a"], ["MIG-b"], ["MIG-a"], id="two resources of one cut GPU"),
        pytest.param(UUIDS[:5], replicas(UUIDS[5], 2), UUIDS[:5], id="other GPUs"),
        pytest.param(["MIG-gone", "MIG-a"], [], ["MIG-gone", "MIG-a"], id="nothing is live"),
    ],
)
def test_of_a_plugin_that_is_gone_what_live_lists_contradict_does_not_count(
    lost: list[str], live: list[str], kept: list[str]
) -> None:
    read = with_parts(DGX_1V, {7: tuple(Part(each, mig=PROFILE_1G) for each in ("MIG-a", "MIG-b"))})
    counting = still_true(listed(*lost), [listed(*live)], read)
    assert [device.ID for device in counting.devices] == kept


def test_which_ids_are_shares() -> None:
    assert is_share("GPU-a::0", None)
    assert is_share("MIG-a", None)
    assert not is_share("GPU-a", None)
    assert not is_share("GPU-a::x", None)
