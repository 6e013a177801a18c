"""A change of the leader costs no gang its place in the scheduling queue: neither its reservation,
nor, if it was evicted, its age."""

from collections.abc import Callable

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.records import queue_note, read_queue_note, write_queue_note
from linkwise.topology import names
from tests.extender import owned
from tests.extender.cluster import Cluster

Switch = Callable[[Cluster], None]


def another_process(at: Cluster) -> None:
    at.restart()


def the_standby(at: Cluster) -> None:
    """It has watched all along, and comes to lead."""
    at.core.lead(at.core.latest_term(1000) + 1, at.now)


SWITCHES = pytest.mark.parametrize("switch", [another_process, the_standby])


def cluster(nodes: int) -> Cluster:
    at = Cluster(CoreSettings())
    for number in range(1, nodes + 1):
        at.add_node(f"n{number}")
    return at


def run(at: Cluster, name: str, gpus: int, node: str, **said: str) -> None:
    at.add_pod(name, gpus, said=said)
    at.bind(name, node)
    at.start(name)
    at.settle()


def end(at: Cluster, name: str) -> None:
    node = at.pod(name).spec.node_name
    at.delete(name)
    at.stop(name, node)
    at.settle()


def held(at: Cluster, gang: str = "g") -> set[str]:
    holds = (hold for hold in at.core.reservations.all() if gang in hold.key.name.split("/"))
    return {node for hold in holds for node in hold.gpus}


def knows_better(at: Cluster) -> Cluster:
    """Jobs like the one on n3 were seen to end soon, which a new leader does not know."""
    for number in range(3):
        run(at, f"short-{number}", 4, "n3")
        at.pass_time(60)
        end(at, f"short-{number}")
    run(at, "old", 8, "n2", expected_duration="9m")
    run(at, "short", 4, "n3")
    at.add_gang("g", 2)
    at.settle()
    assert held(at) == {"n1", "n3"}
    return at


@SWITCHES
def test_what_was_kept_for_a_gang_is_kept_by_the_next_leader(switch: Switch) -> None:
    at = knows_better(cluster(3))
    switch(at)
    at.settle()
    assert held(at) == {"n1", "n3"}
    at.now += 1
    at.add_pod("young", 4)
    assert at.schedule("young") == ""
    end(at, "short")
    assert at.phase("g") == "planned"


@SWITCHES
def test_so_it_is_for_a_gang_that_is_known_once_its_owner_is_read(switch: Switch) -> None:
    """Found: the next leader removed the note before, as that of a single pod."""
    at = knows_better(cluster(3))
    for rank in range(2):
        at.delete(f"g-{rank}")
    by = owned.job("train", 2)
    owned.there_is(at, by)
    owned.create(at, *(owned.member(by, index) for index in range(2)))
    assert held(at, "train") == {"n1", "n3"}
    switch(at)
    at.settle()
    assert held(at, "train") == {"n1", "n3"}


@SWITCHES
def test_in_its_first_decision_no_younger_gang_gets_what_was_kept(switch: Switch) -> None:
    at = knows_better(cluster(3))
    at.now += 1
    at.add_gang("young", 1, 8)
    at.settle()
    switch(at)
    at.settle()
    assert at.phase("young") == "forming"
    assert held(at) == {"n1", "n3"}


@SWITCHES
def test_what_can_no_more_come_true_is_chosen_again(switch: Switch) -> None:
    at = knows_better(cluster(3))
    node = at.nodes["n3"]
    del at.nodes["n3"]  # the next leader has not heard of it
    at.pods = {uid: pod for uid, pod in at.pods.items() if pod.spec.node_name != "n3"}
    at.restart()
    switch(at)
    at.settle()
    assert held(at) == {"n1", "n2"}
    at.put_node(node)


@SWITCHES
def test_of_two_that_were_kept_the_same_the_more_urgent_has_it(switch: Switch) -> None:
    at = cluster(2)
    run(at, "one", 8, "n1")
    run(at, "two", 8, "n2")
    at.add_gang("first", 1)
    at.now += 1
    at.add_gang("second", 1, gang_timeout="5m")
    at.settle()
    second = at.pod("second-0")
    note = queue_note(second.metadata.uid, None, [("n1", 255)])
    assert note is not None
    at.annotate("second-0", queue=write_queue_note(note))
    switch(at)
    at.settle()
    assert held(at, "first") == {"n1"}
    assert held(at, "second") == set()
    assert names.QUEUE not in at.pod("second-0").metadata.annotations


def test_nothing_is_noted_any_more_once_a_gang_has_its_gpus() -> None:
    at = knows_better(cluster(3))
    assert names.QUEUE in at.pod("g-0").metadata.annotations
    assert names.QUEUE not in at.pod("g-1").metadata.annotations
    end(at, "short")
    at.pass_time(10)
    assert names.QUEUE not in at.pod("g-0").metadata.annotations


def test_the_note_moves_when_its_pod_goes() -> None:
    at = knows_better(cluster(3))
    at.delete("g-0")
    at.now += 1
    at.add_pod("g-0", 8, gang="g", gang_size="2", rank="0")
    at.settle()
    text = at.pod("g-1").metadata.annotations[names.QUEUE]
    assert read_queue_note(text).places() == [("n1", 255), ("n3", 255)]
    assert names.QUEUE not in at.pod("g-0").metadata.annotations


@pytest.mark.parametrize(
    "text",
    [
        '{"v":1,"uid":"another","spots":[["n1",["ff"]],["n3",["ff"]]]}',
        '{"v":1,"uid":"another","since":0.5}',
        '{"v":1,"spots":[["n1",["no"]]]}',
        '{"v":2}',
        "nonsense",
    ],
)
def test_a_note_that_is_mangled_or_of_another_pod_counts_for_nothing(text: str) -> None:
    at = cluster(3)
    run(at, "one", 8, "n2")
    run(at, "two", 2, "n3")
    at.add_gang("g", 2, gang_timeout="9m")
    at.annotate("g-0", queue=text)
    at.now += 1
    at.add_gang("older-by-name", 1)
    at.settle()
    assert held(at) == {"n1", "n3"}


# The age of a gang that was evicted.


def evicting() -> Cluster:
    """An old gang is evicted for an urgent one; another one has waited since after it came."""
    at = cluster(2)
    members = at.add_gang("old", 2, preemptible="true")
    at.settle()
    for member in members:
        assert at.schedule(member)
        at.start(member)
    at.settle()
    at.now += 60
    at.add_gang("younger", 2, preemptible="true")
    at.settle()
    at.now += 60
    for rank in range(2):
        said = {"gang": "urgent", "gang_size": "2", "rank": str(rank)}
        at.add_pod(f"urgent-{rank}", 8, priority=1, said=said)
    at.settle()
    assert at.evicted == ["old-0", "old-1"]
    return at


def gone(at: Cluster) -> None:
    for member in ("old-0", "old-1"):
        end(at, member)


def come_again(at: Cluster) -> None:
    at.now += 30
    at.add_gang("old", 2, preemptible="true")
    at.settle()


def urgent_runs_and_ends(at: Cluster) -> None:
    for member in ("urgent-0", "urgent-1"):
        assert at.schedule(member)
        at.start(member)
    at.settle()
    at.now += 600
    for member in ("urgent-0", "urgent-1"):
        end(at, member)


@SWITCHES
@pytest.mark.parametrize("moment", ["terminating", "made again"])
def test_a_gang_that_was_evicted_keeps_its_age_over_a_switch(switch: Switch, moment: str) -> None:
    at = evicting()
    if moment == "terminating":
        switch(at)
        at.settle()
    gone(at)
    come_again(at)
    if moment == "made again":
        switch(at)
        at.settle()
    urgent_runs_and_ends(at)
    assert at.phase("old") == "planned"
    assert at.phase("younger") == "forming"


def test_a_standby_knows_its_age_also_while_none_of_its_pods_is_there() -> None:
    at = evicting()
    gone(at)
    the_standby(at)
    at.settle()
    come_again(at)
    urgent_runs_and_ends(at)
    assert at.phase("old") == "planned"
    assert at.phase("younger") == "forming"


def test_an_age_is_noted_before_the_first_of_its_pods_is_evicted() -> None:
    at = evicting()
    assert read_queue_note(at.pod("old-0").metadata.annotations[names.QUEUE]).since is not None
