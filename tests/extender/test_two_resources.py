"""A cluster whose nodes have GPUs of two vendors, each by its own resource."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.extender.next.core_settings import Preempt
from linkwise.extender.next.cycle.reserve import InVain
from linkwise.extender.show.explain.empty_cluster import EmptyCluster
from linkwise.kube.objects import Container, Node, Quantity, Resources
from linkwise.topology import names
from linkwise.topology.machine.recorded import recorded_machine
from tests.divided import SHARED, replicas
from tests.extender.cluster import GPU, Cluster, CoreSettings, change

AMD = "amd.com/gpu"
BOTH = CoreSettings(resource_names=(GPU, AMD))
NOT_NVIDIA = "linkwise: node has amd.com/gpu, the pod requests nvidia.com/gpu"
NOT_AMD = "linkwise: node has nvidia.com/gpu, the pod requests amd.com/gpu"
GATE = "linkwise.dev/plan"


def listing(at: Cluster, node: str, **amounts: Quantity) -> Node:
    """The kubelet of *node* lists these amounts of `nvidia` and `amd`, and no others."""
    made, named = at.nodes[node], {"nvidia": GPU, "amd": AMD}
    listed = {k: v for k, v in made.status.allocatable.items() if k not in named.values()}
    listed |= {named[vendor]: amount for vendor, amount in amounts.items()}
    return at.put_node(change(made, status=change(made.status, allocatable=listed)))


def two_vendors(settings: CoreSettings = BOTH, *, nodes: int = 1) -> Cluster:
    """Nodes n1, n2… of eight NVIDIA GPUs, and a1, a2… of eight AMD GPUs."""
    at = Cluster(settings)
    for number in range(1, nodes + 1):
        at.add_node(f"n{number}", "dgx-a100")
        at.add_node(f"a{number}", "mi250x-frontier")
        listing(at, f"a{number}", amd=8)
    return at


def taking(**amounts: int) -> Container:
    named = {"nvidia": GPU, "amd": AMD, "part": "amd.com/cpx_nps4"}
    limits: dict[str, Quantity] = {named[name]: amount for name, amount in amounts.items()}
    requests: dict[str, Quantity] = {"cpu": "1", "memory": "1Gi", **limits}
    return Container(name="main", resources=Resources(limits=limits, requests=requests))


def add_pod(at: Cluster, name: str, *gates: str, **amounts: int) -> str:
    at.add_pod(name, containers=[taking(**amounts)], gates=gates)
    return name


def add_gang(at: Cluster, members: Sequence[Container]) -> list[str]:
    for rank, member in enumerate(members):
        said = {"gang": "g", "gang_size": str(len(members)), "rank": str(rank)}
        at.add_pod(f"g-{rank}", containers=[member], said=said)
    at.settle()
    return [f"g-{rank}" for rank in range(len(members))]


def missing(at: Cluster, pod: str) -> list[str]:
    found = at.core.explain("ml", pod, at.now)
    assert found is not None
    assert found.search is not None
    return [each.reason for level in found.search.levels for each in level.missing]


def test_a_pod_goes_to_a_node_of_its_own_resource_and_others_say_why_not() -> None:
    at = two_vendors()
    nvidia, amd = add_pod(at, "nvidia", nvidia=4), add_pod(at, "amd", amd=4)

    assert at.filter(nvidia).node_names == ("n1",)
    assert at.filter(amd).node_names == ("a1",)
    assert at.filter(nvidia).unresolvable == {"a1": NOT_NVIDIA}
    assert at.filter(amd).unresolvable == {"n1": NOT_AMD}
    assert (at.schedule(nvidia), at.schedule(amd)) == ("n1", "a1")
    assert (at.free("n1"), at.free("a1")) == (4, 4)
    assert at.sound()


@pytest.mark.parametrize("gates", [(), (GATE,)], ids=["tried", "gated"])
def test_free_gpus_of_the_other_vendor_are_no_room(gates: tuple[str, ...]) -> None:
    at = two_vendors()
    at.schedule(add_pod(at, "first", amd=8))
    late = add_pod(at, "late", *gates, amd=1)
    at.settle()
    at.pass_time(60)

    assert at.schedule(late) == ""
    assert at.places(late) == [""]
    assert missing(at, late)[0] == NOT_AMD.removeprefix("linkwise: ")
    if gates:
        (said,) = {event.message for event in at.events if event.pod.name == late}
        assert "node has nvidia.com/gpu, the pod requests amd.com/gpu" in said
        assert "fewer free GPUs than wanted" in said
    at.delete("first")
    at.settle()
    assert at.schedule(late) == "a1"


@pytest.mark.parametrize(("member", "nodes"), [("nvidia", {"n1", "n2"}), ("amd", {"a1", "a2"})])
def test_a_gang_is_placed_on_nodes_of_its_resource(member: str, nodes: set[str]) -> None:
    at = two_vendors(nodes=2)
    assert {*at.places(*add_gang(at, [taking(**{member: 8})] * 2))} == nodes


def test_a_gang_waits_if_only_nodes_of_both_vendors_together_have_room() -> None:
    at = two_vendors()
    members = add_gang(at, [taking(amd=8)] * 2)
    assert at.places(*members) == ["", ""]
    assert at.filter(members[0]).node_names == ()
    at.add_node("a2", "mi250x-frontier")
    listing(at, "a2", amd=8)
    at.settle()
    assert {*at.places(*members)} == {"a1", "a2"}


def test_nodes_of_the_other_vendor_are_not_counted_for_a_gang_that_waits() -> None:
    at = two_vendors()
    at.add_node("n2", "dgx-a100")
    add_gang(at, [taking(amd=8)] * 2)
    snapshot = at.core.snapshot(at.now)
    (gang,) = (each._replace(in_vain=None) for each in snapshot.gangs)
    assert EmptyCluster(snapshot).judged(gang).in_vain is InVain.NEVER_FITS
    listing(at, "n2", amd=8)
    snapshot = at.core.snapshot(at.now)
    assert EmptyCluster(snapshot).judged(gang).in_vain is None


@pytest.mark.parametrize(("size", "evicted"), [(1, {"amd"}), (2, set[str]())])
def test_a_gang_evicts_pods_only_on_nodes_of_its_resource(size: int, evicted: set[str]) -> None:
    settings = CoreSettings(resource_names=(GPU, AMD), preempt=Preempt.LOWER_PRIORITY)
    at = two_vendors(settings)
    for vendor in ("nvidia", "amd"):
        at.schedule(add_pod(at, vendor, **{vendor: 8}))
        at.set_phase(vendor, "Running")
    for rank in range(size):
        said = {"gang": "g", "gang_size": str(size), "rank": str(rank)}
        at.add_pod(f"g-{rank}", containers=[taking(amd=8)], priority=9, said=said)
    at.settle()
    at.pass_time(60)
    assert {*at.evicted} == evicted


def test_members_of_one_gang_may_request_different_resources() -> None:
    """As a job whose learners and samplers run on different GPUs."""
    at = two_vendors()
    members = add_gang(at, [taking(nvidia=8), taking(amd=4), taking(amd=4)])
    assert at.places(*members) == ["n1", "a1", "a1"]
    assert [at.schedule(member) for member in members] == ["n1", "a1", "a1"]
    assert at.sound()


@pytest.mark.parametrize(
    "containers",
    [[taking(nvidia=1, amd=1)], [taking(amd=1), taking(nvidia=1)], [taking(nvidia=1, part=1)]],
    ids=["one container", "two", "a partition"],
)
def test_a_pod_that_requests_both_is_refused_in_words(containers: list[Container]) -> None:
    at = two_vendors()
    named = [change(each, name=f"c{place}") for place, each in enumerate(containers)]
    at.add_pod("p", containers=named)
    why = "linkwise: nvidia.com/gpu and amd.com/gpu in one pod: expected one of them"
    assert at.filter("p").unresolvable == {"a1": why, "n1": why}
    assert at.schedule("p") == ""


def test_0_of_the_other_resource_is_no_request() -> None:
    at = two_vendors()
    assert at.schedule(add_pod(at, "p", nvidia=0, amd=2)) == "a1"


def test_a_node_without_a_topology_takes_pods_of_its_resource_by_count() -> None:
    at = two_vendors()
    for node in ("n1", "a1"):
        at.annotate_node(node, names.TOPOLOGY, None)
    assert at.filter(add_pod(at, "p", amd=2)).node_names == ("a1",)
    assert at.filter("p").unresolvable == {"n1": NOT_AMD}


def test_a_node_whose_gpus_are_replaced_has_the_other_resource_from_then_on() -> None:
    """The kubelet lists the resource that has gone with 0 until it restarts."""
    at = two_vendors()
    amd, nvidia = add_pod(at, "amd", amd=1), add_pod(at, "nvidia", nvidia=1)
    at.add_node("a1", "dgx-a100")
    listing(at, "a1", amd=0, nvidia=8)

    assert at.filter(amd).unresolvable == {"a1": NOT_AMD, "n1": NOT_AMD}
    assert {*at.filter_again(nvidia).node_names} == {"a1", "n1"}


@pytest.mark.parametrize(
    ("amounts", "takes"),
    [
        ({"amd": 8}, "amd"),
        ({"amd": 0}, "amd"),  # its plugin is gone
        ({"amd": 8, "nvidia": 0}, "amd"),
        ({"nvidia": 8}, "nvidia"),  # whatever the machine is
        ({}, "amd"),  # by the machine
        ({"amd": 0, "nvidia": 0}, "amd"),
        ({"amd": 8, "nvidia": 8}, "amd"),
    ],
)
def test_which_resource_a_node_has(amounts: dict[str, int], takes: str) -> None:
    at = two_vendors()
    at.remove_node("n1")
    listing(at, "a1", **amounts)
    others = {"amd": NOT_AMD, "nvidia": NOT_NVIDIA}
    for vendor in ("amd", "nvidia"):
        answer = at.filter(add_pod(at, vendor, **{vendor: 1}))
        is_refused = answer.unresolvable.get("a1", "") in others.values()
        assert is_refused is (vendor != takes)


@pytest.mark.parametrize("resource", [GPU, SHARED])
def test_shares_are_those_of_the_pods_resource(resource: str) -> None:
    """Replicas under the name of whole GPUs, and under their own."""
    at = two_vendors(CoreSettings(resource_names=(AMD, GPU)))
    dgx = recorded_machine("dgx-a100", node="n1")
    at.add_node("n1", replicas(dgx, dict.fromkeys(range(8), 2), resource))
    made = at.nodes["n1"]
    offers: dict[str, Quantity] = {**made.status.allocatable, GPU: 0, resource: 16}
    at.put_node(change(made, status=change(made.status, allocatable=offers)))

    def add(name: str, amount: int) -> None:
        limits: dict[str, Quantity] = {resource: amount}
        main = change(taking(), resources=Resources(limits=limits, requests=limits))
        at.add_pod(name, containers=[main])

    add("p", 2)
    assert at.filter("p").node_names == ("n1",)
    assert at.schedule("p") == "n1"
    plan = at.plan("p")
    assert plan is not None
    (share,) = plan.shares
    assert (share.resource, len(share.ids)) == (resource, 2)
    # What pods have of them counts.
    add("other", 13)
    at.bind("other", "n1")
    at.settle()
    add("last", 2)
    assert at.filter("last").node_names == ()
    assert at.sound()
    assert missing(at, add_pod(at, "amd", amd=8)) == [NOT_AMD.removeprefix("linkwise: ")]


def test_with_one_resource_pods_of_the_other_are_none_of_ours() -> None:
    at = two_vendors(CoreSettings())
    add_pod(at, "amd", amd=1)
    assert at.filter("amd").node_names == ("a1", "n1")
    found = at.core.explain("ml", "amd", at.now)
    assert found is not None
    assert found.search is None


REQUEST = st.sampled_from(["nvidia", "amd"]), st.sampled_from([1, 2, 4, 8])


@given(st.lists(st.tuples(*REQUEST), max_size=12), st.lists(st.tuples(*REQUEST), max_size=3))
def test_what_one_vendors_pods_get_does_not_depend_on_the_others(
    singles: list[tuple[str, int]], members: list[tuple[str, int]]
) -> None:
    """Law: beside the other vendor's nodes and pods, every pod is placed as without them."""

    def play(*vendors: str) -> dict[str, str]:
        at = two_vendors(nodes=2)
        for node in [*at.nodes]:
            if {"n": "nvidia", "a": "amd"}[node[0]] not in vendors:
                at.remove_node(node)
        for number, (vendor, gpus) in enumerate(singles):
            if vendor in vendors:
                add_pod(at, f"{vendor}-{number}", **{vendor: gpus})
        for vendor in vendors:
            gang = [gpus for of, gpus in members if of == vendor]
            for rank, gpus in enumerate(gang):
                said = {"gang": vendor, "gang_size": str(len(gang)), "rank": str(rank)}
                name = f"{vendor}-gang-{rank}"
                at.add_pod(name, containers=[taking(**{vendor: gpus})], said=said)
        at.settle()
        for pod in [*at.pods.values()]:
            at.schedule(pod.metadata.name)
        assert at.sound()
        return {pod.metadata.name: pod.spec.node_name for pod in at.pods.values()}

    together = play("nvidia", "amd")
    assert together == {**play("nvidia"), **play("amd")}
    for pod, node in together.items():
        assert node[:1] in ("", pod[0])
