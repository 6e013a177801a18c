"""One Event on the first member says why a gang waits, once for each reason."""

from unittest.mock import patch

from linkwise.extender.next.cycle import changes
from linkwise.extender.next.queue.waiting_events import AT_ONCE, MOMENT_SECONDS
from linkwise.extender.state.actions import Emit
from linkwise.extender.state.cache.pending_writes import EVENT_SECONDS
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.meanwhile import Meanwhile

NO_ROOM = "gang ml/g: no room for the whole gang"
INCOMPLETE = "gang ml/g waits for its members"


def cluster(*nodes: str) -> Cluster:
    at = Cluster()
    for node in nodes:
        at.add_node(node, "hgx-h100")
    return at


def told(at: Cluster) -> list[tuple[str, str]]:
    return [(event.pod.name, event.message) for event in at.events if event.reason == "GangWaiting"]


def wait(at: Cluster) -> None:
    at.settle()
    at.pass_time(MOMENT_SECONDS)


def test_a_gang_without_room_is_told_so_once_and_on_its_first_member() -> None:
    at = cluster("n1")
    at.add_gang("g", 3)
    at.settle()
    assert told(at) == []
    at.pass_time(MOMENT_SECONDS)
    assert told(at) == [("g-0", NO_ROOM)]
    for _ in range(100):
        at.pass_time(20)
    assert told(at) == [("g-0", NO_ROOM)]


def test_a_member_that_was_asked_about_too_early_is_put_right() -> None:
    """Its own condition says that members are missing, and kube-scheduler asks no more."""
    at = cluster("n1")
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    at.settle()
    said = set(at.filter("g-0").failed.values())
    assert said == {"linkwise: gang g waits for its members"}
    at.add_pod("g-1", 8, gang="g", gang_size="2")
    wait(at)
    assert told(at) == [("g-0", NO_ROOM)]


def test_a_gang_that_is_planned_at_once_is_not_spoken_of() -> None:
    at = cluster("n1", "n2")
    at.add_gang("g", 2)
    wait(at)
    wait(at)
    assert at.events == []


def test_members_that_still_come_are_no_news() -> None:
    at = cluster("n1")
    for rank in range(5):
        at.add_pod(f"g-{rank}", 8, gang="g", gang_size="9")
        at.settle()
        at.pass_time(MOMENT_SECONDS * 0.9)
    assert told(at) == []
    at.pass_time(MOMENT_SECONDS)
    assert told(at) == [("g-0", INCOMPLETE)]


def test_another_reason_is_told_and_the_first_one_not_again() -> None:
    at = cluster("n1")
    at.add_gang("g", 2)
    for _ in range(5):
        wait(at)
        at.delete("g-1")
        wait(at)
        at.add_pod("g-1", 8, gang="g", gang_size="2")
    assert told(at) == [("g-0", NO_ROOM), ("g-0", INCOMPLETE)]


def test_it_is_told_again_before_the_api_server_forgets_it() -> None:
    at = cluster("n1")
    at.add_gang("g", 2)
    wait(at)
    at.pass_time(EVENT_SECONDS - 1)
    assert len(told(at)) == 1
    at.pass_time(1)
    assert told(at) == [("g-0", NO_ROOM)] * 2


def test_it_is_told_again_when_the_pod_that_bears_the_event_is_gone() -> None:
    at = cluster("n1")
    at.add_gang("g", 2)
    wait(at)
    at.delete("g-0")
    at.add_pod("g-2", 8, gang="g", gang_size="2")
    wait(at)
    assert told(at) == [("g-0", NO_ROOM), ("g-1", NO_ROOM)]


def test_a_first_member_that_comes_last_gets_no_second_event() -> None:
    at = cluster("n1")
    at.add_pod("g-1", 8, gang="g", gang_size="3", rank="1")
    wait(at)
    at.add_pod("g-0", 8, gang="g", gang_size="3", rank="0")
    wait(at)
    assert told(at) == [("g-1", INCOMPLETE)]


def test_pods_that_contradict_each_other_are_told_which() -> None:
    at = cluster("n1")
    at.add_pod("g-0", 4, gang="g", gang_size="2")
    at.add_pod("g-1", 4, gang="g", gang_size="3")
    wait(at)
    assert told(at) == [("g-0", "gang ml/g: pod g-0 says gang-size 2, pod g-1 says 3")]


def test_a_pod_too_many_is_told_so_itself_also_while_the_gang_runs() -> None:
    at = cluster("n1")
    at.add_gang("g", 2, 2)
    at.settle()
    assert [at.schedule("g-0"), at.schedule("g-1")] == ["n1", "n1"]
    at.settle()
    assert at.phase("g") == "running"
    at.add_pod("g-9", 2, gang="g", gang_size="2")
    wait(at)
    assert told(at) == [("g-9", "gang ml/g has all its members without this one")]


def test_a_running_gang_that_lost_a_member_is_told_what_the_new_one_waits_for() -> None:
    at = cluster("n1", "n2")
    at.add_gang("g", 2)
    at.settle()
    at.schedule("g-0")
    node = at.schedule("g-1")
    at.settle()
    at.delete("g-1")
    at.remove_node(node)
    at.add_pod("new", 8, gang="g", gang_size="2", rank="1")
    wait(at)
    assert at.phase("g") == "repairing"
    assert told(at) == [("g-0", "gang ml/g: no room for the members that are missing")]


def test_a_gang_that_went_away_is_thought_of_no_more() -> None:
    at = cluster("n1")
    for member in at.add_gang("g", 2):
        at.settle()
        at.delete(member)
    at.settle()
    assert at.core.next_due() is None


def test_a_gang_that_goes_away_while_the_round_runs_is_no_defect() -> None:
    at = cluster("n1")
    at.add_gang("g", 3)
    at.settle()
    at.add_gang("late", 3)
    at.now += MOMENT_SECONDS

    def go() -> None:
        for rank in range(3):
            at.delete(f"g-{rank}")

    Meanwhile(at, go)
    with patch.object(changes, "_VERY_MANY", 1):  # a pause after each gang
        at.settle()
    assert at.core.take_defects() == []
    assert told(at) == []
    assert at.sound()


def test_a_gang_behind_the_gate_is_told_once_and_not_for_each_member() -> None:
    at = cluster("n1")
    at.add_gang("g", 20, gates=[names.GATE])
    wait(at)
    at.pass_time(60)
    assert [(event.pod.name, event.message) for event in at.events] == [("g-0", NO_ROOM)]


def test_a_gang_that_is_given_up_again_and_again_is_told_so_once_in_a_while() -> None:
    at = cluster("n1")
    at.add_node("other", "p100-pcie-8")
    at.add_gang("g", 1, gpu_model="H100")
    for _ in range(int(EVENT_SECONDS)):
        at.pass_time(1)
        if at.pod("g-0").status.nominated_node_name:
            at.filter("g-0", ["other"])
    given_up = [event.message for event in at.events if event.reason == "GangRefused"]
    assert given_up == ["gang ml/g: kube-scheduler refused node n1 for pod g-0"]
    text = "gang ml/g: its plans came to nothing (kube-scheduler refused node n1 for pod g-0)"
    assert ("g-0", text) not in told(at)  # as GangRefused has just said so
    assert len(at.events) <= 2


def test_thousands_of_gangs_are_told_in_rounds() -> None:
    at = cluster("n1")
    for number in range(AT_ONCE + 10):
        at.add_gang(f"g{number}", 2)
    at.settle()
    at.now += MOMENT_SECONDS
    first = at.core.decide(at.now)
    assert len([action for action in first if isinstance(action, Emit)]) == AT_ONCE
    due = at.core.next_due()
    assert due is not None
    assert due <= at.now
    rest = at.core.decide(at.now)
    assert len([action for action in rest if isinstance(action, Emit)]) == 10
