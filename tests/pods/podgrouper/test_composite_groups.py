"""CompositePodGroups of Kubernetes 1.37: all groups below one are one gang."""

import msgspec
import pytest

from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import (
    Missing,
    NeedsOwner,
    ObjectRef,
    Recognised,
    Refused,
)
from tests.extender.cluster import Cluster
from tests.extender.owned import SURELY, create, four_nodes, planned, there_is, why
from tests.pods.podgrouper.pods import (
    Object,
    gang,
    owner,
    pod,
    ref_of,
    reference,
    template,
    told,
)

API = "scheduling.k8s.io/"
RACK = "topology.example.com/rack"


def composite(
    name: str = "root", least: int = 2, above: str = "", by: Object | None = None, **spec: object
) -> Object:
    spec = {
        "schedulingPolicy": {"gang": {"minGroupCount": least}},
        "workloadRef": {"workloadName": "serve", "templateName": name},
        **({"parentCompositePodGroupName": above} if above else {}),
        **spec,
    }
    return owner(f"{API}v1alpha3 CompositePodGroup", name, spec, by)


def group(name: str, least: int, above: str = "root", by: Object | None = None) -> Object:
    spec: dict[str, object] = {"schedulingPolicy": {"gang": {"minCount": least}}}
    if above:
        spec["parentCompositePodGroupName"] = above
    return owner(f"{API}v1beta1 PodGroup", name, spec, by)


def member(name: str, of: str, by: Object | None = None, gpus: int = 8) -> Object:
    return pod(name, by, gpus=gpus, schedulingGroup={"podGroupName": of})


def leaf(name: str, least: int) -> dict[str, object]:
    return {"name": name, "schedulingPolicy": {"gang": {"minCount": least}}}


def workload(least: int = 2, *leaves: dict[str, object], name: str = "root") -> Object:
    templates = {
        "name": name,
        "schedulingPolicy": {"gang": {"minGroupCount": least}},
        "podGroupTemplates": list(leaves or (leaf("prefill", 1), leaf("decode", 2))),
    }
    return owner(f"{API}v1beta1 Workload", "serve", {"compositePodGroupTemplates": [templates]})


def ray() -> tuple[Object, ...]:
    """As KubeRay's batch scheduler for Kubernetes' own groups makes them."""
    heads = {"template": template(8)}
    workers = [{"groupName": "g", "replicas": 2, "minReplicas": 2, "template": template(8)}]
    cluster = owner("ray.io/v1 RayCluster", "rc")
    cluster["spec"] = {"headGroupSpec": heads, "workerGroupSpecs": workers}
    return cluster, composite(by=cluster), group("head", 1, by=cluster), group("g", 2, by=cluster)


def ray_worker(cluster: Object) -> Object:
    made = member("rc-w-a", "g", cluster)
    made["metadata"]["labels"] = {"ray.io/node-type": "worker", "ray.io/group": "g"}
    return made


def test_the_groups_of_one_owner_are_the_owners_whole_gang() -> None:
    """Found: the workers' minimum was 2 of 3, so they started without their head."""
    cluster, *around = ray()
    answer = gang(ray_worker(cluster), cluster, *around)
    assert (answer.size, answer.minimum, answer.rule) == (3, 3, "native-pod-group")
    assert str(answer.gang) == "ml/RayCluster.ray.io/rc"


def test_of_groups_without_a_known_owner_the_workload_says_how_many_pods_start_together() -> None:
    objects = composite(), group("prefill", 1), group("decode", 2), workload()
    one = gang(member("p", "prefill"), *objects)
    other = gang(member("d", "decode"), *objects)
    assert one.gang == other.gang
    assert str(one.gang) == "ml/CompositePodGroup.scheduling.k8s.io/root"
    assert (one.minimum, one.open_ended, other.minimum) == (3, True, 3)
    assert (one.member.subgroup, other.member.subgroup) == ("prefill", "decode")


@pytest.mark.parametrize(
    ("least", "leaves", "minimum"),
    [
        (2, (leaf("a", 3), leaf("b", 2), leaf("c", 1)), 6),  # all of the parent are one gang
        (4, (leaf("a", 3),), 12),  # four groups of one template
        (3, (leaf("a", 3), {"name": "b", "schedulingPolicy": {"basic": {}}}), 5),
    ],
)
def test_templates_are_counted(
    least: int, leaves: tuple[dict[str, object], ...], minimum: int
) -> None:
    answer = gang(member("x", "a"), composite(), group("a", 3), workload(least, *leaves))
    assert answer.minimum == minimum


def test_groups_of_groups_are_one_gang_up_to_the_first_that_is_not() -> None:
    basic = composite("root", schedulingPolicy={"basic": {}})
    objects = (
        group("decode", 2, "replica"),
        composite("replica", above="root"),
        workload(name="replica"),
    )
    answer = gang(member("d", "decode"), basic, *objects)
    assert answer.gang.name == "replica"
    inner = workload(name="replica")["spec"]["compositePodGroupTemplates"]
    templates = [{"name": "root", "compositePodGroupTemplates": inner, "podGroupTemplates": []}]
    outer = owner(f"{API}v1beta1 Workload", "serve", {"compositePodGroupTemplates": templates})
    answer = gang(member("d", "decode"), composite(), *objects[:2], outer)
    assert (answer.gang.name, answer.minimum) == ("root", 3)


def test_a_parent_or_a_workload_that_does_not_exist_yet_is_waited_for() -> None:
    made, leaf_group = member("d", "decode"), group("decode", 2)
    for objects, missing in (
        ([leaf_group], "CompositePodGroup.scheduling.k8s.io ml/root"),
        ([leaf_group, composite()], "Workload.scheduling.k8s.io ml/serve"),
    ):
        answer = told(made, objects).answer
        assert isinstance(answer, NeedsOwner)
        assert answer.missing
        assert str(answer.owner) == missing


@pytest.mark.parametrize("why_not", [Missing.FORBIDDEN, Missing.NOT_SERVED])
def test_where_the_kind_cannot_be_read_the_pods_group_counts_as_before(why_not: Missing) -> None:
    leaf_group = group("decode", 2)
    parent = ObjectRef("scheduling.k8s.io", "CompositePodGroup", "ml", "root")
    made = msgspec.convert(member("d", "decode"), Pod)
    answer = recognise(made, {ref_of(leaf_group): leaf_group, parent: why_not})
    assert isinstance(answer, Recognised)
    assert (answer.gang.name, answer.minimum) == ("decode", 2)


def test_composites_in_a_circle_are_followed_to_kube_schedulers_limit() -> None:
    circle = composite("root", above="other"), composite("other", above="root")
    answer = told(member("d", "decode"), [group("decode", 2), *circle, workload()]).answer
    assert isinstance(answer, Refused)
    assert answer.because.startswith("spec.workloadRef.templateName: 'other': not in Workload")


def within(made: Object, key: str) -> Object:
    made["spec"]["schedulingConstraints"] = {"topology": [{"key": key}]}
    return made


def test_the_topology_of_a_group_is_required_of_the_gang_it_is() -> None:
    assert gang(member("w", "g"), within(group("g", 2, ""), RACK)).require == (RACK,)
    node = within(group("g", 2, ""), "kubernetes.io/hostname")
    assert gang(member("w", "g"), node).require == ("node",)
    objects = within(composite(), RACK), within(group("decode", 2), "zone"), workload()
    assert gang(member("d", "decode"), *objects).require == (RACK,)
    cluster, root, *groups = ray()
    answer = gang(ray_worker(cluster), cluster, root, *(within(each, RACK) for each in groups))
    assert answer.require == ()  # each of the two groups may have a rack of its own


def test_kube_scheduler_holds_pods_against_the_priority_of_the_highest_group() -> None:
    prefill = group("prefill", 1)
    prefill["spec"]["priority"] = 7
    answer = gang(member("p", "prefill"), composite(priority=-5), prefill, workload())
    assert answer.native.priority == -5
    cluster, root, *groups = ray()
    root["spec"]["priority"] = 9
    assert gang(ray_worker(cluster), cluster, root, *groups).native.priority == 9


def racks() -> Cluster:
    cluster = Cluster()
    for number, rack in enumerate("abab"):
        cluster.add_node(f"n{number}", "dgx-a100", labels={RACK: rack})
    return cluster


def test_a_gang_is_planned_in_the_domain_that_its_group_requires() -> None:
    cluster = racks()
    there_is(cluster, within(group("g", 2, ""), RACK))
    create(cluster, msgspec.convert(pod("big", gpus=8), Pod))
    on = cluster.schedule("big")
    create(cluster, *(msgspec.convert(member(f"w-{n}", "g"), Pod) for n in range(2)))
    taken = {cluster.pod(name).status.nominated_node_name for name in ("w-0", "w-1")}
    assert taken == ({"n1", "n3"} if on in ("n0", "n2") else {"n0", "n2"})


@pytest.mark.parametrize("above", ["", "root"], ids=["of the group", "of the group above it"])
def test_a_call_about_another_domain_of_the_constraint_refuses_no_node(above: str) -> None:
    """kube-scheduler makes a call for each rack, until one takes the group. Found: each of the
    first ones withdrew the plan, so the last one found none."""
    cluster = racks()
    if above:
        there_is(cluster, within(composite(least=1), RACK), workload(1, leaf("g", 2)))
        there_is(cluster, group("g", 2))
    else:
        there_is(cluster, within(group("g", 2, ""), RACK))
    create(cluster, *(msgspec.convert(member(f"w-{n}", "g"), Pod) for n in range(2)))
    places = cluster.places("w-0", "w-1")
    own, other = ("n0", "n2"), ("n1", "n3")
    if places[0] in other:
        own, other = other, own
    assert sorted(places) == [*own]
    for _ in range(2):
        assert not cluster.filter("w-0", other).node_names
        cluster.settle()
        assert cluster.places("w-0", "w-1") == places
    beside = [name for name in own if name != places[0]]
    assert not cluster.filter("w-0", beside).node_names
    cluster.settle()
    assert cluster.places("w-0", "w-1") != places


def test_a_group_beside_it_that_takes_no_gpus_counts_too() -> None:
    """Its router is the third pod that kube-scheduler waits for."""
    cluster = four_nodes()
    leaves = leaf("decode", 2), leaf("router", 1)
    around = composite(), group("decode", 2), group("router", 1), workload(2, *leaves)
    there_is(cluster, *around)
    router, *workers = (
        msgspec.convert(member(*said), Pod)
        for said in (
            ("r", "router", None, 0),
            ("d-0", "decode", None, 8),
            ("d-1", "decode", None, 8),
        )
    )
    create(cluster, *workers)
    cluster.pass_time(SURELY)
    assert planned(cluster) == []
    assert "waits for its members" in why(cluster, "d-0")
    create(cluster, router)
    cluster.pass_time(SURELY)
    assert planned(cluster) == ["d-0", "d-1"]


def test_a_group_without_gpus_in_such_a_namespace_stays_kube_schedulers_alone() -> None:
    cluster = four_nodes()
    around = composite(), group("decode", 2), workload(1, leaf("decode", 2)), group("cpu", 2, "")
    there_is(cluster, *around)
    for name, of, gpus in (("c-0", "cpu", 0), ("d-0", "decode", 8), ("d-1", "decode", 8)):
        create(cluster, msgspec.convert(member(name, of, None, gpus), Pod))
    create(cluster, msgspec.convert(member("c-1", "cpu", None, 0), Pod))
    cluster.pass_time(SURELY)
    assert planned(cluster) == ["d-0", "d-1"]


def test_a_controllers_reference_without_the_mark_names_the_maker_too() -> None:
    cluster, root, *groups = ray()
    root["metadata"]["ownerReferences"] = [reference(cluster, controller=False)]
    assert gang(ray_worker(cluster), cluster, root, *groups).minimum == 3


def test_a_pod_whose_own_group_is_of_one_is_in_the_gang_of_the_group_above_it() -> None:
    """As the leader of a group of leader and workers; nothing but the group above joins them."""
    root = composite(workloadRef={})
    leaders, workers = group("leaders", 1), group("workers", 3)
    leader = gang(member("leader", "leaders"), root, leaders, workers)
    worker = gang(member("worker", "workers"), root, leaders, workers)
    assert leader.gang == worker.gang
    assert (leader.minimum, worker.minimum, leader.open_ended) == (1, 3, True)
