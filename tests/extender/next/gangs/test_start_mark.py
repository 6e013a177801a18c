"""`linkwise.dev/gang-started`: by what a gang is known to have been whole, also after a restart."""

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.actions import Action, Evict, MarkStarted
from linkwise.extender.state.extender_calls import BindOrder, Outcome
from linkwise.topology import names
from tests.extender.cluster import Cluster

TIMEOUT = 600


def planned(*members: str) -> Cluster:
    """A gang of two, planned."""
    at = Cluster(CoreSettings(gang_timeout_seconds=TIMEOUT))
    at.add_node("n1")
    at.add_node("n2")
    assert tuple(at.add_gang("g", 2)) == members
    at.settle()
    return at


def running() -> Cluster:
    at = planned("g-0", "g-1")
    for member in ("g-0", "g-1"):
        assert at.schedule(member)
    at.settle()
    return at


def begin(at: Cluster, name: str) -> BindOrder:
    plan = at.plan(name)
    assert plan is not None
    order = at.begin_bind(name, plan.node)
    assert isinstance(order, BindOrder)
    return order


def marked(at: Cluster) -> set[str]:
    return {
        pod.metadata.name for pod in at.pods.values() if names.STARTED in pod.metadata.annotations
    }


def marks(actions: list[Action]) -> list[str]:
    return [each.pod.name for each in actions if isinstance(each, MarkStarted)]


def test_the_last_members_binding_brings_the_mark_and_no_write_follows() -> None:
    at = planned("g-0", "g-1")
    at.schedule("g-0")
    assert marked(at) == set()
    at.schedule("g-1")
    assert marked(at) == {"g-1"}
    assert at.settle() == []
    assert at.phase("g") == "running"


def test_a_member_that_is_bound_but_not_seen_so_yet_counts() -> None:
    at = planned("g-0", "g-1")
    first = begin(at, "g-0")
    at.core.end_bind(first, Outcome.DONE, at.now)
    assert names.STARTED in begin(at, "g-1").annotations


def test_of_members_bound_at_the_same_time_none_is_the_last_so_one_is_marked_afterwards() -> None:
    at = planned("g-0", "g-1")
    orders = [begin(at, "g-0"), begin(at, "g-1")]
    assert all(names.STARTED not in order.annotations for order in orders)
    for order in orders:
        assert at.post_binding(order)
        at.core.end_bind(order, Outcome.DONE, at.now)
    assert marks(at.settle()) == ["g-0"]
    assert marked(at) == {"g-0"}


def test_a_binding_without_an_answer_is_not_counted_on() -> None:
    at = planned("g-0", "g-1")
    at.core.end_bind(begin(at, "g-0"), Outcome.UNKNOWN, at.now)
    assert names.STARTED not in begin(at, "g-1").annotations


def test_a_binding_that_is_asked_for_again_brings_the_mark_when_the_others_are_bound() -> None:
    at = planned("g-0", "g-1")
    unanswered = begin(at, "g-1")
    at.core.end_bind(unanswered, Outcome.UNKNOWN, at.now)
    at.schedule("g-0")
    assert names.STARTED not in unanswered.annotations
    assert names.STARTED in begin(at, "g-1").annotations


def test_a_member_too_few_is_never_the_last() -> None:
    at = planned("g-0", "g-1")
    at.schedule("g-0")
    at.annotate("g-0", gang_size="3")
    at.annotate("g-1", gang_size="3")
    assert names.STARTED not in begin(at, "g-1").annotations


def test_a_member_made_again_needs_no_mark_beside_the_one_there_is() -> None:
    at = running()
    at.delete("g-0")
    at.add_pod("again", 8, gang="g", gang_size="2", rank="0")
    at.settle()
    assert at.schedule("again")
    assert at.settle() == []
    assert marked(at) == {"g-1"}


def test_where_the_marked_member_goes_another_is_marked() -> None:
    at = running()
    at.terminate("g-1")
    assert marks(at.settle()) == ["g-0"]
    at.delete("g-1")
    at.restart()
    at.pass_time(2 * TIMEOUT)
    assert at.evicted == []
    assert at.phase("g") == "repairing"


def test_a_mark_is_tried_again_until_it_is_written() -> None:
    at = running()
    at.delete("g-1")
    (mark,) = at.core.decide(at.now)
    at.core.done(mark, Outcome.UNKNOWN, at.now)
    assert marks(at.pass_time(1)) == ["g-0"]


def test_the_mark_of_a_member_that_failed_while_nobody_looked_still_counts() -> None:
    at = running()
    at.set_phase("g-1", "Failed")
    at.restart()
    assert marks(at.pass_time(2 * TIMEOUT)) == ["g-0"]
    assert at.evicted == []


def test_the_mark_of_an_earlier_run_does_not_count() -> None:
    at = running()
    for member in ("g-0", "g-1"):
        at.set_phase(member, "Failed")
    at.settle()
    for rank in ("0", "1"):
        at.add_pod(f"again-{rank}", 8, gang="g", gang_size="2", rank=rank)
    at.settle()
    at.schedule("again-0")
    at.settle()
    assert at.phase("g") == "binding"
    at.restart()
    at.settle()
    assert at.phase("g") == "binding"
    assert marked(at) == {"g-1"}


def test_the_marked_member_gone_while_nobody_looked_leaves_time_to_be_whole_again() -> None:
    at = running()
    at.now += 10 * TIMEOUT
    at.delete("g-1")
    at.restart()
    at.pass_time(TIMEOUT - 1)
    assert at.evicted == []
    at.add_pod("again", 8, gang="g", gang_size="2", rank="1")
    at.settle()
    assert at.schedule("again")
    assert names.STARTED in at.pod("again").metadata.annotations
    at.pass_time(10 * TIMEOUT)
    assert at.evicted == []


def test_and_no_more_time_than_that() -> None:
    at = running()
    at.now += 10 * TIMEOUT
    at.delete("g-1")
    at.restart()
    at.settle()
    (view,) = at.core.gangs(at.now)
    assert view.deadline == at.now + TIMEOUT
    evictions = [each for each in at.pass_time(TIMEOUT) if isinstance(each, Evict)]
    assert [each.pod.name for each in evictions] == ["g-0"]
