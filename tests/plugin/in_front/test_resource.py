"""Laws of the join of what a vendor's plugin lists with what we know."""

import random

from hypothesis import given
from hypothesis import strategies as st

from linkwise.plugin.in_front.resource import are_whole, joined, offered, why_not
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.topology.model import Machine
from tests.machines import DGX_1V, any_machine

UNKNOWN_FIELD = bytes([0xC2, 0x3E, 4]) + b"kept"


@st.composite
def listed_on(draw: st.DrawFn) -> tuple[Machine, wire.ListAndWatchResponse]:
    """A machine, and what some vendor's plugin lists of it: GPUs, replicas, MIG devices, others."""
    machine = draw(any_machine(most_gpus=6))
    uuids = [gpu.uuid for gpu in machine.gpus]
    known = st.sampled_from(uuids)
    ids = st.one_of(
        known,
        st.builds("{}::{}".format, known, st.integers(0, 12)),
        st.builds("{}::{}".format, known, st.text(max_size=3)),
        st.builds("MIG-{}".format, st.integers(0, 9)),
        st.text(max_size=8),
    )
    devices = [
        wire.Device.FromString(
            wire.Device(
                ID=each,
                health=draw(st.sampled_from(["Healthy", "Unhealthy", "", "Unknown"])),
                topology=draw(st.sampled_from([None, (), (0,), (1, 3)]).map(topology)),
            ).SerializeToString()
            + draw(st.sampled_from([b"", UNKNOWN_FIELD]))
        )
        for each in draw(st.lists(ids, unique=True, max_size=20))
    ]
    return machine, wire.ListAndWatchResponse(devices=devices)


def topology(nodes: tuple[int, ...] | None) -> wire.TopologyInfo | None:
    if nodes is None:
        return None
    return wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in nodes])


@given(listed_on(), st.booleans(), st.randoms())
def test_order_never_depends_on_the_vendors(
    drawn: tuple[Machine, wire.ListAndWatchResponse], alive: bool, chance: random.Random
) -> None:
    machine, listed = drawn
    shuffled = list(listed.devices)
    chance.shuffle(shuffled)
    again = wire.ListAndWatchResponse(devices=shuffled)
    assert joined(again, machine, alive=alive) == joined(listed, machine, alive=alive)


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


@given(listed_on(), st.booleans())
def test_what_is_not_known_of_passes_through(
    drawn: tuple[Machine, wire.ListAndWatchResponse], alive: bool
) -> None:
    """Fields of a version to come; NUMA nodes that the vendor gives; all, where we know nothing."""
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


@given(listed_on(), st.booleans())
def test_joining_twice_changes_nothing(
    drawn: tuple[Machine, wire.ListAndWatchResponse], alive: bool
) -> None:
    machine, listed = drawn
    once = joined(listed, machine, alive=alive)
    assert joined(once, machine, alive=alive) == once


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
    for gpu in machine.gpus:
        assert bool(why_not(gpu.uuid, listed)) == (
            gpu.uuid not in {d.ID for d in listed.devices if d.health == "Healthy"}
        )


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
