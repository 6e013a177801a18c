"""What the doctor finds on nodes whose GPUs come from claims."""

from dataclasses import replace

import msgspec

from linkwise.cli.doctor.facts import DaemonSet, Facts
from linkwise.cli.doctor.finding import Level
from linkwise.cli.doctor.nodes import of_nodes
from linkwise.kube.device_claims import ResourceSlice
from linkwise.kube.objects import Node
from tests.cli.doctor.cluster_facts import MACHINE, STATE, node, plugin
from tests.extender.claimed import slice_of

UUIDS = [gpu.uuid for gpu in MACHINE.gpus]
ELSEWHERE = msgspec.convert(
    {"spec": {"template": {"spec": {"nodeSelector": {"device-plugin": "yes"}}}}}, DaemonSet
)
WELL = Facts(
    at=STATE.at,
    resources=(STATE.resource,),
    nodes=(node("n1", gpus=0), node("cpu", topology=None, gpus=0)),
    pods=(plugin("n1", "--observe"),),
    daemonsets=(DaemonSet(),),
    slices=(slice_of("n1", UUIDS),),
)


def on_n1(facts: Facts, *slices: ResourceSlice) -> Facts:
    return replace(facts, slices=slices)


def with_node(which: Node, *, plugins: bool = True) -> Facts:
    return replace(WELL, nodes=(which,), pods=WELL.pods if plugins else ())


def problems(facts: Facts) -> list[tuple[tuple[str, ...], str]]:
    return [(each.where, each.what) for each in of_nodes(facts) if each.level is Level.PROBLEM]


def notes(facts: Facts) -> list[tuple[tuple[str, ...], str]]:
    return [(each.where, each.what) for each in of_nodes(facts) if each.level is Level.NOTE]


def test_it_says_which_nodes_have_their_gpus_from_claims() -> None:
    assert problems(WELL) == []
    told = "its GPUs come from claims, by the DRA driver gpu.nvidia.com"
    assert notes(WELL) == [(("n1",), told)]


def test_a_device_plugin_beside_the_driver() -> None:
    told = "two give out its GPUs: a device plugin and the DRA driver gpu.nvidia.com"
    assert problems(with_node(node("n1"))) == [(("n1",), told)]
    assert notes(with_node(node("n1"))) == []
    # The kubelet keeps the name of a resource that nothing offers any more.
    assert problems(with_node(node("n1", offered=0))) == []


def test_slices_without_a_topology() -> None:
    told = "the plugin is ready, and no topology is published"
    assert problems(with_node(node("n1", topology=None, gpus=0))) == [(("n1",), told)]
    bare = with_node(node("n1", topology=None, gpus=0), plugins=False)
    told = "no plugin of Linkwise runs: who has its GPUs is not seen"
    assert problems(bare) == [(("n1",), told)]
    excluded = replace(bare, daemonsets=(ELSEWHERE,), pods=(plugin("n2", "--observe"),))
    assert problems(excluded) == []
    assert (
        ("n1",),
        "outside the nodeSelector and affinity of linkwise-plugin: who has its GPUs is not seen",
    ) in notes(excluded)


def test_uuids_that_the_topology_lacks() -> None:
    told = "the DRA driver gpu.nvidia.com publishes {}, and the topology lacks it"
    one = on_n1(WELL, slice_of("n1", [*UUIDS, "GPU-x"]))
    assert problems(one) == [(("n1",), told.format("GPU-x"))]
    all_others = on_n1(WELL, slice_of("n1", ["GPU-x", "GPU-y", "GPU-z"]))
    assert problems(all_others) == [(("n1",), told.format("GPU-x and 2 more"))]


def test_a_driver_that_publishes_no_uuid() -> None:
    told = "the DRA driver gpu.nvidia.com publishes no uuid of its devices"
    assert problems(on_n1(WELL, slice_of("n1", [None, None]))) == [(("n1",), told)]
    assert problems(on_n1(WELL, slice_of("n1", [*UUIDS, None]))) == []


def test_slices_of_one_pool_count_together() -> None:
    halves = (slice_of("n1", UUIDS[:4], name="a"), slice_of("n1", UUIDS[4:], name="b"))
    assert problems(on_n1(WELL, *halves)) == []
    assert len(notes(on_n1(WELL, *halves))) == 1


def test_a_driver_of_other_devices_is_none_of_gpus() -> None:
    others = slice_of("n1", [None], driver="compute-domain.nvidia.com")
    nics = slice_of("n1", ["0000-nic"], driver="dra.net")
    assert notes(on_n1(WELL, others, nics)) == []
    assert problems(on_n1(with_node(node("n1")), others, nics)) == []


def test_a_driver_of_another_name_is_known_by_the_uuids() -> None:
    found = notes(on_n1(WELL, slice_of("n1", UUIDS, driver="gpu.example.com")))
    assert found == [
        (("n1",), "its GPUs come from claims, by the DRA driver gpu.example.com"),
    ]


def test_slices_of_no_node_are_left_out() -> None:
    assert notes(on_n1(WELL, slice_of("", UUIDS))) == []


def test_an_annotation_that_cannot_be_read_says_nothing_of_uuids() -> None:
    assert problems(with_node(node("n1", topology="mangled", gpus=0))) == []
