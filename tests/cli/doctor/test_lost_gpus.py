"""What the doctor says of nodes that offer fewer GPUs than they have."""

from dataclasses import replace
from itertools import combinations

import pytest

from linkwise.cli.doctor.diagnosis import findings
from linkwise.cli.doctor.facts import Facts
from linkwise.cli.doctor.finding import Level
from linkwise.kube.objects import Node
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.model import Machine
from tests.cli.doctor.cluster_facts import MACHINE, WELL, node, only, plugin, vendor
from tests.divided import replicas


def on_n1(which: Node) -> Facts:
    return replace(WELL, nodes=(which,))


def with_out(*positions: int) -> str:
    gpus = tuple(
        replace(gpu, healthy=place not in positions) for place, gpu in enumerate(MACHINE.gpus)
    )
    return write_topology(replace(MACHINE, gpus=gpus))


def test_a_gpu_that_is_out_of_service() -> None:
    """The kubelet counts it in its capacity, and does not offer it."""
    found = only(on_n1(node("n1", offered=7, topology=with_out(3))))
    assert (found.level, found.where) == (Level.PROBLEM, ("n1",))
    assert found.what == "it offers 7 of its 8 GPUs (out: 3)"
    assert found.page == "docs/health.md"
    assert found.passing  # as a GPU on probation does
    found = only(on_n1(node("n1", offered=0, topology=with_out(*range(8)))))
    assert found.what == "it offers 0 of its 8 GPUs (out: 0, 1, 2, 3, 4, 5, 6, 7)"


def test_a_gpu_that_the_kubelet_does_not_count() -> None:
    found = only(on_n1(node("n1", gpus=7)))
    assert found.what == "it offers 7 of its 8 GPUs"


def less(count: int) -> Machine:
    links = tuple(MACHINE.link(a, b) for a, b in combinations(range(count), 2))
    return replace(MACHINE, gpus=MACHINE.gpus[:count], links=links, nics=())


@pytest.mark.parametrize("label", ["nvidia.com/gpu.count", "linkwise.dev/gpu.count"])
def test_a_gpu_that_only_a_label_still_counts(label: str) -> None:
    lost = node("n1", gpus=7, topology=write_topology(less(7)), labels={label: "8"})
    assert only(on_n1(lost)).what == "it offers 7 of its 8 GPUs"


def test_a_gpu_that_was_gone_before_the_driver_started() -> None:
    lost = node("n1", gpus=7, topology=write_topology(less(7)))
    pods = (*WELL.pods, plugin("n2"), vendor("n2"))
    found = only(replace(WELL, nodes=(lost, node("n2")), pods=pods))
    assert (found.level, found.where) == (Level.NOTE, ("n1",))
    assert found.what == "it offers 7 GPUs, where n2 has 8 of the same model"
    smaller = node("n1", gpus=4, topology=write_topology(less(4)))  # as machines are sold
    assert findings(replace(WELL, nodes=(smaller, node("n2")), pods=pods)) == ()
    assert findings(on_n1(lost)) == ()


def test_replicas_that_are_out_count_as_what_they_are() -> None:
    text = write_topology(replicas(MACHINE, dict.fromkeys(range(8), 4)))
    lost = node("n1", gpus=32, offered=28, topology=text)
    assert only(on_n1(lost)).what == "it offers 28 of its 32 GPUs"
    assert findings(on_n1(node("n1", gpus=32, topology=text))) == ()


@pytest.mark.parametrize(("listed", "others"), [(9, "other"), (10, "other 2")])
def test_devices_that_linkwise_has_not_read(listed: int, others: str) -> None:
    found = only(on_n1(node("n1", gpus=listed)))
    assert found.level is Level.NOTE
    assert found.what == (
        f"the vendor's plugin lists {listed} devices, and Linkwise has read 8 GPUs: no plan names "
        f"the {others}"
    )
    alone = replace(on_n1(node("n1", gpus=listed)), pods=(plugin("n1", ""), *WELL.pods[2:]))
    assert findings(alone) == ()


def test_divided_gpus_are_offered_under_other_names() -> None:
    text = write_topology(replicas(MACHINE, {6: 2, 7: 2}))
    labels = {"nvidia.com/gpu.count": "8"}
    assert findings(on_n1(node("n1", gpus=6, topology=text, labels=labels))) == ()


def test_of_a_vendors_plugin_alone_only_the_kubelets_own_counts_tell() -> None:
    pods = (plugin("n1", "--observe"), vendor("n1", told=False), *WELL.pods[2:])
    for offered, found in ((8, []), (6, ["it offers 6 of its 8 GPUs"])):
        labels = {"nvidia.com/gpu.count": "16"}
        facts = replace(on_n1(node("n1", offered=offered, labels=labels)), pods=pods)
        assert [each.what for each in findings(facts) if each.level is Level.PROBLEM] == found


def test_a_plugin_that_is_not_ready_is_told_of_alone() -> None:
    pods = (plugin("n1", "", ready=False), *WELL.pods[2:])
    facts = replace(on_n1(node("n1", offered=0)), pods=pods)
    assert only(facts).what == "Linkwise's plugin is not ready"
