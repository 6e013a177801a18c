"""Plans that are lost, half written or found after a restart."""

import pytest

from linkwise.extender.state.actions import MarkStarted, WritePlan
from linkwise.topology.annotations.plan import Plan
from tests.extender.next.gangs.one_gang import bound_together, cluster, planned


def test_plans_on_a_lost_node_are_made_again_elsewhere() -> None:
    at = cluster(nodes=3)
    _, second = planned(at)
    at.set_ready("n2", ready=False)
    at.settle()
    plan = at.plan(second)
    assert plan is not None
    assert plan.node == "n3"
    assert plan.epoch == 2
    assert at.phase("g") == "planned"


def test_if_one_has_no_room_beside_the_others_the_whole_plan_is_made_again() -> None:
    at = cluster(nodes=2, machine="hgx-h100")
    at.add_pod("busy", 6, node="n2")
    at.add_pod("big", 6, gang="g", gang_size="2", rank="0")
    at.add_pod("small", 2, gang="g", gang_size="2", rank="1")
    at.settle()
    assert at.core.nodes(at.now)[0].free == 0  # both are on n1
    at.set_health("n1", at.indices("big")[0])
    at.settle()
    # 7 GPUs are left on n1: enough for the big one, once the small one moves.
    on = {member: plan.node for member in ("big", "small") if (plan := at.plan(member))}
    assert on == {"big": "n1", "small": "n2"}


def test_a_half_written_plan_is_completed_around_what_is_there() -> None:
    at = cluster()
    members = at.add_gang("g", 2, 8)
    first, second = at.core.decide(at.now)
    at.core.done(first, at.carry_out(first), at.now)
    at.restart()  # the second was never written
    at.settle()
    assert at.phase("g") == "planned"
    one, other = (at.plan(member) for member in members)
    assert one is not None
    assert other is not None
    assert one.id == other.id
    assert isinstance(second, WritePlan)


@pytest.mark.parametrize(
    ("container", "positions", "wishes"),
    [
        ("other", (0, 3), {}),  # not of this pod's container
        ("main", (0, 5), {"require-link": "nvlink"}),  # they have no NVLink between them
        ("main", (0,), {}),
    ],
)
def test_a_plan_that_an_older_extender_wrote_must_be_what_the_pod_wants(
    container: str, positions: tuple[int, ...], wishes: dict[str, str]
) -> None:
    at = cluster(nodes=1)
    at.add_pod("g-0", 2, said={"gang": "g", "gang-size": "1", **wishes})
    older = Plan(id="older", node="n1", epoch=7, made=at.now)
    at.write_plan("g-0", older, {container: at.uuids("n1", *positions)})
    at.settle()
    found = at.plan("g-0")
    assert found is not None
    assert found.id != "older"
    assert (found.epoch, found.link) == (8, "NVLINK")
    assert len(at.gpus("g-0")["main"]) == 2
    assert at.sound()


def test_a_plan_on_gpus_of_another_model_than_wanted_is_withdrawn() -> None:
    at = cluster(nodes=1)
    at.add_pod("g-0", 2, said={"gang": "g", "gang-size": "1", "gpu-model": "A100"})
    older = Plan(id="older", node="n1", epoch=7, made=at.now)
    at.write_plan("g-0", older, {"main": at.uuids("n1", 0, 3)})
    at.settle()
    assert at.plan("g-0") is None
    assert at.phase("g") == "forming"
    assert at.free("n1") == 8


def test_a_half_written_plan_that_cannot_be_completed_is_withdrawn() -> None:
    at = cluster()
    at.add_gang("g", 2, 8)
    first, _ = at.core.decide(at.now)
    at.core.done(first, at.carry_out(first), at.now)
    at.add_pod("foreign", 8, node="n2")
    at.restart()
    at.settle()
    assert at.plan("g-0") is None
    assert at.free("n1") == 8


def test_a_restart_while_binding_finds_plan_and_deadline() -> None:
    at = cluster()
    first, _ = planned(at)
    at.schedule(first)
    at.settle()
    at.now += 500
    at.restart()
    at.settle()
    assert at.phase("g") == "binding"
    (gang,) = at.core.gangs(at.now)
    assert gang.deadline == at.now + 100
    at.pass_time(100)
    assert at.evicted == [first]


def test_a_gang_bound_whole_just_before_a_restart_is_marked_after_it() -> None:
    at = cluster()
    bound_together(at)
    at.restart()
    assert {type(each) for each in at.settle()} == {MarkStarted}
    at.delete("g-1")
    at.pass_time(10_000)
    assert at.evicted == []


def test_two_half_plans_are_brought_to_one() -> None:
    at = cluster(nodes=4)
    planned(at)
    at.set_ready("n1", ready=False)
    at.set_ready("n2", ready=False)
    first, second = at.core.decide(at.now)  # again on n3 and n4; only one gets written
    at.core.done(first, at.carry_out(first), at.now)
    assert isinstance(second, WritePlan)
    for node in ("n1", "n2"):
        at.set_ready(node, ready=True)
    at.restart()
    at.settle()
    plans = [at.plan(member) for member in ("g-0", "g-1")]
    assert len({plan.id for plan in plans if plan}) == 1
    assert at.phase("g") == "planned"
    assert at.sound()
