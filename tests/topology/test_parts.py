"""Parts of divided GPUs: their ids, what cannot be, and what the annotation says of them."""

import json
from dataclasses import replace

import pytest

from linkwise.topology.annotations.node_annotation import read_topology, write_topology
from linkwise.topology.annotations.plan import (
    InUse,
    Plan,
    PlannedShares,
    read_in_use,
    read_plan,
    write_in_use,
    write_plan,
)
from linkwise.topology.errors import AnnotationError, MachineError
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.parts import MigProfile, Part, part_of, replica_of
from linkwise.topology.names import is_share
from tests.divided import MIG_1G, PROFILE_1G, SHARED, all_three, cut, divided, replicas
from tests.machines import DGX_1V, DGX_2


def test_the_ids_are_those_of_nvidias_plugin() -> None:
    assert Part("GPU-a", SHARED, 3).ids == ("GPU-a::0", "GPU-a::1", "GPU-a::2")
    assert Part("MIG-a", MIG_1G, mig=PROFILE_1G).ids == ("MIG-a",)
    assert Part("MIG-a", f"{MIG_1G}.shared", 2, PROFILE_1G).ids == ("MIG-a::0", "MIG-a::1")
    for part in (Part("GPU-a", SHARED, 3), Part("MIG-a", mig=PROFILE_1G)):
        assert {part_of(each) for each in part.ids} == {part.uuid}
        assert len(part.ids) == part.shares
    assert [replica_of(each) for each in ("GPU-a", "GPU-a::7", "GPU-a::x", "GPU-a::")] == [
        *(None, 7, None, None)
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Part("GPU a"), "expected 1 to 63 characters"),
        (lambda: Part("GPU-a"), "0 replicas: expected 1 to 1024"),
        (lambda: Part("GPU-a", SHARED, 1025), "1025 replicas"),
        (lambda: Part("MIG-a", MIG_1G, -1, PROFILE_1G), "-1 replicas: expected 0 to 1024"),
        (
            lambda: divided(DGX_1V, {0: (Part("GPU-other", SHARED, 2),)}),
            "replicas of it beside other parts",
        ),
        (
            lambda: divided(
                DGX_1V, {0: tuple(Part(f"MIG-{n}", mig=PROFILE_1G) for n in range(17))}
            ),
            "17 parts: expected 16 at most",
        ),
        (
            lambda: divided(DGX_1V, dict.fromkeys((0, 1), (Part("MIG-a", mig=PROFILE_1G),))),
            "part MIG-a on two GPUs",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(MachineError, match=message):
        make()


@pytest.mark.parametrize(
    "machine",
    [
        all_three(DGX_1V),
        replicas(DGX_2, dict.fromkeys(range(16), 32)),
        divided(DGX_1V, {2: ()}),
        divided(DGX_1V, {0: (Part("MIG-a", "", 0, MigProfile("1g.5gb", 1, 4864), healthy=False),)}),
    ],
)
def test_a_divided_machine_comes_back_exactly(machine: Machine) -> None:
    assert read_topology(write_topology(machine)) == machine


def test_a_reader_that_knows_no_parts_gives_no_divided_gpu_out() -> None:
    fields = json.loads(write_topology(all_three(DGX_1V)))
    old = {key: value for key, value in fields.items() if key not in ("shares", "divided")}
    assert read_topology(json.dumps(old)).healthy_gpus == 0b111


def test_a_divided_gpu_is_not_whole_even_if_it_is_called_healthy() -> None:
    machine = replicas(DGX_1V, {0: 2})
    gpus = (replace(machine.gpus[0], healthy=True), *machine.gpus[1:])
    assert replace(machine, gpus=gpus).healthy_gpus == 0b11111110
    fields = json.loads(write_topology(machine)) | {"unhealthy": []}
    assert read_topology(json.dumps(fields)).healthy_gpus == 0b11111110


def test_an_annotation_of_32_replicas_of_each_gpu_is_small() -> None:
    assert len(write_topology(replicas(DGX_2, dict.fromkeys(range(16), 32)))) < 3200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"divided": [[9, []]]}, "indices of its GPUs in divided, not 9"),
        ({"divided": [[0, [["", 5, True]]]]}, "share 5: expected a place in shares, 0 to"),
        ({"divided": [[0, [["", "x"]]]]}, "expected JSON as the plugin writes it"),
    ],
)
def test_a_wrong_annotation_is_refused_with_its_reason(
    change: dict[str, object], message: str
) -> None:
    fields = json.loads(write_topology(all_three(DGX_1V))) | change
    with pytest.raises((AnnotationError, MachineError), match=message):
        read_topology(json.dumps(fields))


def test_plans_and_what_is_in_use_name_shares_and_are_as_before_without_them() -> None:
    plan = Plan(id="x", node="n1", shares=(PlannedShares("main", SHARED, ("GPU-a::1",)),))
    assert write_plan(plan) == (
        '{"v":1,"id":"x","node":"n1","shares":[["main","nvidia.com/gpu.shared",["GPU-a::1"]]]}'
    )
    assert read_plan(write_plan(plan)) == plan
    assert hash(plan) == hash(read_plan(write_plan(plan)))
    assert write_plan(Plan(id="x", node="n1")) == '{"v":1,"id":"x","node":"n1"}'
    held = InUse(shares={"ml/w": {"main": {SHARED: ("GPU-a::1",)}}})
    assert read_in_use(write_in_use(held)) == held
    assert write_in_use(InUse()) == '{"v":1,"pods":{}}'


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (SHARED, True),
        (MIG_1G, True),
        (f"{MIG_1G}.shared", True),
        ("nvidia.com/gpu", False),
        ("nvidia.com/hostdev", False),
        ("amd.com/mig-1g", False),
        ("rdma/hca", False),
    ],
)
def test_which_names_are_those_of_shares(resource: str, expected: bool) -> None:
    assert is_share(resource, "nvidia.com/gpu") is expected


def test_a_gpu_can_be_cut_into_different_devices() -> None:
    gpu = cut(DGX_1V, 3, MIG_1G, "nvidia.com/mig-3g.40gb").gpus[3]
    assert gpu.parts is not None
    assert [part.mig and part.mig.slices for part in gpu.parts] == [1, 3]
