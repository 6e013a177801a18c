"""Annotations that a copied pod manifest brought along: they promise nothing, and the extender
reports no mistake because of them."""

from linkwise.extender.api.actions import Evict
from linkwise.extender.core import CoreSettings
from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, write_gpus, write_plan
from tests.extender.cluster import Cluster


def cluster() -> Cluster:
    at = Cluster(CoreSettings(gang_timeout_seconds=600))
    at.add_node("n1")
    return at


def annotations(at: Cluster, name: str) -> dict[str, str]:
    said = at.pod(name).metadata.annotations
    return {key.removeprefix(names.PREFIX): text for key, text in said.items()}


def test_a_gang_made_from_the_manifests_of_an_old_one_is_planned_and_not_called_late() -> None:
    at = cluster()
    members = at.add_gang("g", 2, 2)
    at.settle()
    old = {member: annotations(at, member) for member in members}
    for member in members:
        at.delete(member)
    at.settle()
    at.now += 86_400
    for member in members:
        at.add_pod(member, 2, said=old[member])
    at.settle()
    assert at.events == []
    assert at.phase("g") == "planned"
    plan = at.plan("g-0")
    assert plan is not None
    assert plan.made == at.now
    assert plan.refusals == 0


def test_a_member_made_anew_from_the_manifest_of_the_one_before_shares_the_gangs_deadline() -> None:
    at = cluster()
    members = at.add_gang("g", 2, 2)
    at.settle()
    at.schedule(members[0])
    at.settle()
    said = annotations(at, members[1])
    at.now += 300
    at.delete(members[1])
    at.add_pod("again", 2, said=said)
    at.settle()
    at.restart()
    at.settle()
    assert at.phase("g") == "binding"
    evicted = [each.pod.name for each in at.pass_time(300) if isinstance(each, Evict)]
    assert evicted == [members[0]]


def test_pods_put_on_a_node_with_the_same_old_plan_are_no_mistake_of_ours() -> None:
    at = cluster()
    copied = {
        "gpus": write_gpus({"main": at.uuids("n1", 0, 1)}),
        "plan": write_plan(Plan(id="old", node="n1", epoch=3, made=at.now)),
    }
    for name in ("one", "other"):
        at.add_pod(name, 2, node="n1", said=copied)
    at.settle()
    assert at.core.audit() == []
