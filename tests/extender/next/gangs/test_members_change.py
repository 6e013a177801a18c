"""Members of a gang that end, fail, are replaced or change their gang."""

from linkwise.extender.state.actions import Evict, MarkStarted
from tests.extender.next.gangs.one_gang import bound_together, cluster, planned, running


def test_a_gang_that_has_started_is_never_evicted_for_being_partial() -> None:
    at = cluster()
    first, second = running(at)
    at.delete(second)
    at.pass_time(10_000)
    assert at.phase("g") == "repairing"
    assert at.evicted == []
    at.restart()
    at.pass_time(10_000)
    assert at.evicted == []
    assert at.pod(first).metadata.deletion_timestamp is None


def test_a_member_made_again_takes_the_place_of_the_lost_one() -> None:
    at = cluster()
    _, second = running(at)
    before = at.plan(second)
    at.delete(second)
    at.add_pod("again", 8, gang="g", gang_size="2", rank="1")
    at.settle()
    assert at.phase("g") == "repairing"
    plan = at.plan("again")
    assert plan is not None
    assert before is not None
    assert plan.id == before.id
    assert at.schedule("again") == plan.node
    at.settle()
    assert at.phase("g") == "running"


def test_a_member_that_vanishes_before_the_start_is_planned_beside_the_bound_ones() -> None:
    at = cluster(nodes=3)
    first, second = planned(at)
    at.schedule(first)
    at.delete(second)
    at.settle()
    assert at.phase("g") == "binding"
    at.now += 100
    at.add_pod("again", 8, gang="g", gang_size="2", rank="1")
    at.settle()
    assert at.phase("g") == "binding"
    old, new = at.plan(first), at.plan("again")
    assert old is not None
    assert new is not None
    assert (new.id, new.made) == (old.id, old.made)  # one gang, one deadline


def test_a_failed_member_gives_back_what_it_never_got_and_is_replaced() -> None:
    at = cluster()
    _, second = running(at)
    at.set_phase(second, "Failed")
    at.add_pod("again", 8, gang="g", gang_size="2", rank="1")
    at.settle()
    assert at.schedule("again") == "n2"
    at.settle()
    assert at.phase("g") == "running"


def test_members_that_succeed_leave_the_others_running() -> None:
    at = cluster()
    first, second = running(at)
    at.set_phase(first, "Succeeded")
    at.settle()
    assert at.phase("g") == "running"
    at.set_phase(second, "Succeeded")
    at.settle()
    assert at.phase("g") == "released"
    at.delete(first)
    at.delete(second)
    at.settle()
    assert at.core.gangs(at.now) == ()


def test_a_member_that_succeeded_keeps_its_seat() -> None:
    at = cluster()
    first, _ = running(at, gpus=2)
    at.set_phase(first, "Succeeded")
    at.add_pod("late", 2, gang="g", gang_size="2", rank="5")
    at.settle()
    assert at.plan("late") is None
    assert at.filter("late").failed["n1"] == (
        "linkwise: gang g has all its members without this one"
    )


def test_a_gang_that_was_whole_has_started_also_while_its_mark_is_being_written() -> None:
    at = cluster()
    _, second = bound_together(at)
    actions = at.core.decide(at.now)
    assert {type(each) for each in actions} == {MarkStarted}  # on their way, and slow
    at.delete(second)
    at.now += 600
    assert not [each for each in at.core.decide(at.now) if isinstance(each, Evict)]
    assert at.phase("g") == "repairing"


def test_a_member_that_changes_its_gang_leaves_nothing_of_the_old_one() -> None:
    at = cluster()
    planned(at, size=1)
    at.annotate("g-0", gang="h")
    at.settle()
    assert [view.name for view in at.core.gangs(at.now)] == ["h"]
    assert at.sound()


def test_an_unbound_member_that_is_leaving_gives_its_gpus_back_at_once() -> None:
    """A finalizer may keep it for long."""
    at = cluster(nodes=1)
    planned(at, size=1)
    at.terminate("g-0")
    at.settle()
    assert at.free("n1") == 8


def test_nothing_is_remembered_of_pods_that_are_gone() -> None:
    at = cluster()
    planned(at, gpus=4)
    at.schedule("g-0")
    at.pass_time(600)  # late: said, evicted and withdrawn
    at.add_pod("single", 2)
    at.schedule("single")
    at.start("single", {"main": at.uuids(at.pod("single").spec.node_name, 6, 7)})
    at.settle()
    for pod in list(at.pods.values()):
        at.delete(pod.metadata.name)
    for node in list(at.nodes):
        at.remove_node(node)
    at.settle()
    core = at.core
    # By kinds of machines, and by `Feasible.trim` and `BestNode.trim`.
    bounded = {"kinds", "_kind_of", "changed_rows", "settled_rows", "schedulers"}
    kept = {
        f"{type(owner).__name__}.{name}"
        for owner in (core._cache, core._planner, core._planner.pending_writes, core._binder)
        for name, value in vars(owner).items()
        if isinstance(value, dict | set | list) and value and name not in bounded
    }
    assert kept == set()


def test_a_later_run_of_the_same_name_is_a_new_gang() -> None:
    at = cluster()
    for member in running(at):
        at.set_phase(member, "Succeeded")
    at.settle()
    at.add_pod("second-0", 8, gang="g", gang_size="2", rank="0")
    assert at.settle() == []  # not a repair of the first run
    assert at.phase("g") == "forming"
    at.add_pod("second-1", 8, gang="g", gang_size="2", rank="1")
    at.settle()
    assert at.phase("g") == "planned"
