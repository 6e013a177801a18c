"""Annotations that a copied pod manifest brought along: they promise nothing, and the extender
reports no mistake because of them."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.actions import Evict
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


def test_a_gang_that_was_made_before_the_api_servers_clock_was_set_back_is_planned_once() -> None:
    at = cluster()
    at.now += 7200
    at.add_gang("g", 2, 2)
    at.now -= 7200
    at.settle()
    plan = at.plan("g-0")
    assert plan is not None
    at.restart()
    assert at.settle() == []
    assert at.plan("g-0") == plan
    assert at.phase("g") == "planned"


def test_a_member_made_again_from_the_old_manifest_shares_the_gangs_deadline() -> None:
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


def running_gang(at: Cluster) -> list[str]:
    members = at.add_gang("g", 2, 2)
    at.settle()
    for member in members:
        assert at.schedule(member)
    at.settle()
    return members


def test_the_plan_of_another_pod_holds_nothing_on_a_node() -> None:
    """Also if it names GPUs that other pods have, and a later leader than any."""
    at = cluster()
    at.add_pod("a", 6)
    at.schedule("a")
    forged = Plan(uid=at.pod("a").metadata.uid, id="x", node="n1", leader=99, epoch=9)
    said = {"gpus": write_gpus(at.gpus("a")), "plan": write_plan(forged)}
    at.add_pod("forged", 1, node="n1", said=said)
    at.add_pod("without", 0, node="n1", said=said)
    assert at.core.latest_term(1000) == 0
    assert at.free("n1") == 1  # it is presumed to have one that "a" does not
    assert at.sound()


def test_a_plan_that_names_no_pod_holds_nothing() -> None:
    at = cluster()
    said = {
        "gpus": write_gpus({"main": at.uuids("n1", 0, 5)}),
        "plan": '{"v":1,"id":"x","node":"n1"}',
    }
    at.add_pod("forged", 2, node="n1", said=said)
    at.settle()
    view = at.core.explain("ml", "forged", at.now)
    assert view is not None
    assert view.gpus == {}
    assert at.plan("forged") is None


@pytest.mark.parametrize("mark", ["true", "", "uid-0"])
def test_a_copied_mark_starts_no_gang(mark: str) -> None:
    at = cluster()
    first, second = at.add_gang("g", 2, 2, gang_started=mark)
    at.settle()
    at.schedule(first)
    at.settle()
    assert at.phase("g") == "binding"
    assert [each.pod.name for each in at.pass_time(600) if isinstance(each, Evict)] == [first]
    assert at.find(second) is not None


def test_a_restored_backup_is_planned_as_new_pods_are() -> None:
    at = cluster()
    members = running_gang(at)
    before = {name: at.gpus(name) for name in members}
    backup = {name: annotations(at, name) for name in members}
    for name in members:
        at.delete(name)
    at.settle()
    at.add_pod("other", 6)
    at.schedule("other")
    for name in members:
        at.add_pod(name, 2, said=backup[name])
    at.settle()
    assert at.phase("g") == "forming"  # there is no room, and the old plans hold none
    at.delete("other")
    at.settle()
    assert [at.schedule(name) for name in members] == ["n1", "n1"]
    assert {name: len(at.gpus(name)["main"]) for name in members} == dict.fromkeys(before, 2)
    assert at.sound()
