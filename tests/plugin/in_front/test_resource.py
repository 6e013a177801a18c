"""Laws of the join of what a vendor's plugin lists with what Linkwise knows."""

import random
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linkwise.plugin.in_front.resource import are_whole, joined, not_offered, offered
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.topology.machine.model import Machine
from tests.machines import DGX_1V, MIXED_5

UNKNOWN_FIELD = bytes([0xC2, 0x3E, 4]) + b"kept"


# A busy machine is no mistake.
LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_GPUS = MIXED_5.gpus
_IDS = st.sampled_from(
    [
        *(gpu.uuid for gpu in _GPUS),
        *(f"{gpu.uuid}::{replica}" for gpu in _GPUS for replica in (0, 2, 10, "", "x", "٣", "-1")),
        *("MIG-1", "MIG-2", "GPU-elsewhere", "GPU-elsewhere::0", "::", "", "a"),
    ]
)
_HEALTH = st.sampled_from(["Healthy", "Unhealthy", "", "Unknown"])
_TOPOLOGIES = st.sampled_from(
    [
        *(None, wire.TopologyInfo()),
        *(
            wire.TopologyInfo(nodes=[wire.NUMANode(ID=n) for n in nodes])
            for nodes in ((0,), (1, 3))
        ),
    ]
)
_DEVICES = st.builds(
    lambda health, topology, more: (
        wire.Device(health=health, topology=topology).SerializeToString() + more
    ),
    *(_HEALTH, _TOPOLOGIES, st.sampled_from([b"", UNKNOWN_FIELD])),
)
_OWN = st.tuples(st.booleans(), st.sampled_from([(), (-1,), (0,), (1, -1, 2)]))


@st.composite
def listed_on(draw: st.DrawFn) -> tuple[Machine, wire.ListAndWatchResponse]:
    """A machine, and what some vendor's plugin lists of it: GPUs, replicas, MIG devices, others."""
    own = draw(st.tuples(*[_OWN] * len(_GPUS)))
    gpus = tuple(
        replace(gpu, healthy=healthy, numa_nodes=nodes)
        for gpu, (healthy, nodes) in zip(_GPUS, own, strict=True)
    )
    listed = wire.ListAndWatchResponse()
    for each, device in draw(st.dictionaries(_IDS, _DEVICES, max_size=12)).items():
        listed.devices.append(wire.Device.FromString(device))
        listed.devices[-1].ID = each
    return replace(MIXED_5, gpus=gpus), listed


@LAW
@given(listed_on(), st.booleans(), st.randoms())
def test_order_never_depends_on_the_vendors(
    drawn: tuple[Machine, wire.ListAndWatchResponse], alive: bool, chance: random.Random
) -> None:
    machine, listed = drawn
    shuffled = list(listed.devices)
    chance.shuffle(shuffled)
    again = wire.ListAndWatchResponse(devices=shuffled)
    assert joined(again, machine, alive=alive) == joined(listed, machine, alive=alive)


@LAW
@given(listed_on(), st.booleans())
def test_every_device_stays_and_is_healthy_only_where_all_say_so(
    drawn: tuple[Machine, wire.ListAndWatchResponse], alive: bool
) -> None:
    machine, listed = drawn
    by_id = {device.ID: device for device in joined(listed, machine, alive=alive).devices}
    sick = {gpu.uuid for gpu in machine.gpus if not gpu.healthy}
    assert by_id.keys() == {device.ID for device in listed.devices}
    for device in listed.devices:
        well = alive and device.ID.split("::")[0] not in sick
        assert by_id[device.ID].health == (device.health if well else "Unhealthy")


@LAW
@given(listed_on(), st.booleans())
def test_what_is_not_known_of_passes_through(
    drawn: tuple[Machine, wire.ListAndWatchResponse], alive: bool
) -> None:
    """Fields of a version to come; NUMA nodes that the vendor gives; all, without own knowledge."""
    machine, listed = drawn
    before = {device.ID: device for device in listed.devices}
    for device in joined(listed, machine, alive=alive).devices:
        kept = UNKNOWN_FIELD in before[device.ID].SerializeToString()
        assert (UNKNOWN_FIELD in device.SerializeToString()) == kept
        if before[device.ID].topology.nodes:
            assert device.topology == before[device.ID].topology
    unknown = joined(listed, None, alive=True)
    assert sorted(each.SerializeToString() for each in unknown.devices) == sorted(
        each.SerializeToString() for each in listed.devices
    )


@LAW
@given(listed_on())
def test_numa_nodes_that_are_missing_are_ours_and_minus_one_is_none(
    drawn: tuple[Machine, wire.ListAndWatchResponse],
) -> None:
    machine, listed = drawn
    ours = {gpu.uuid: [node for node in gpu.numa_nodes if node >= 0] for gpu in machine.gpus}
    missing = {device.ID for device in listed.devices if not device.topology.nodes}
    for device in joined(listed, machine, alive=True).devices:
        if device.ID in missing:
            nodes = [node.ID for node in device.topology.nodes]
            assert nodes == ours.get(device.ID.split("::")[0], [])


@LAW
@given(listed_on(), st.booleans())
def test_joining_twice_changes_nothing(
    drawn: tuple[Machine, wire.ListAndWatchResponse], alive: bool
) -> None:
    machine, listed = drawn
    once = joined(listed, machine, alive=alive)
    assert joined(once, machine, alive=alive) == once


@LAW
@given(listed_on())
def test_the_cluster_sees_healthy_what_can_be_had_whole_and_no_other(
    drawn: tuple[Machine, wire.ListAndWatchResponse],
) -> None:
    machine, listed = drawn
    to_be_had = {
        device.ID
        for device in joined(listed, machine, alive=True).devices
        if device.health == "Healthy"
    }
    for gpu in offered(machine, listed).gpus:
        assert gpu.healthy == (gpu.uuid in to_be_had)
    whole = {device.ID for device in listed.devices if device.health == "Healthy"}
    assert not_offered(machine, listed).keys() == {gpu.uuid for gpu in machine.gpus} - whole


def test_gpus_come_by_index_replicas_by_number_and_others_last() -> None:
    first, second = DGX_1V.gpus[0].uuid, DGX_1V.gpus[1].uuid
    ordered = [
        *(first, f"{first}::2", f"{first}::10"),
        *(second, f"{second}::0"),
        *("GPU-elsewhere", "MIG-1", "MIG-2"),
    ]
    listed = wire.ListAndWatchResponse(devices=[wire.Device(ID=each) for each in ordered[::-1]])
    assert [d.ID for d in joined(listed, DGX_1V, alive=True).devices] == ordered


def test_a_replica_or_a_mig_device_is_no_whole_gpu() -> None:
    uuids = [gpu.uuid for gpu in DGX_1V.gpus]
    assert are_whole(uuids, DGX_1V)
    assert are_whole([], DGX_1V)
    assert not are_whole([*uuids, f"{uuids[0]}::0"], DGX_1V)
    assert not are_whole(["MIG-1"], DGX_1V)
    assert not are_whole(uuids, None)
