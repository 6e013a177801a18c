"""A pod that waits for GPUs gets them in the end, and no other waits for longer than that takes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.cycle.reserve import LOOK_SECONDS
from linkwise.extender.next.queue.reservations import FreshGpus, Reservation
from linkwise.extender.next.queue.run_times import LEAST_SECONDS, MANY
from linkwise.extender.state.extender_calls import BindRefusal
from linkwise.extender.state.records import GangKey
from linkwise.kube.objects import Condition, Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster, change

HELD = "linkwise: reserved for gang ml/g"


def cluster(nodes: int = 2, share: float = 0.5) -> Cluster:
    at = Cluster(CoreSettings(reserve_share=share))
    for number in range(1, nodes + 1):
        at.add_node(f"n{number}")
    return at


def run(at: Cluster, name: str, gpus: int, node: str = "", **words: str) -> str:
    """A single pod that runs, on *node*; else on the one that kube-scheduler is shown."""
    at.add_pod(name, gpus, said=words)
    if node:
        at.bind(name, node)
    else:
        assert at.schedule(name), name
    at.set_phase(name, "Running")
    at.settle()
    return name


def end(at: Cluster, name: str) -> None:
    at.delete(name)
    at.settle()


def reservation_of(at: Cluster, gang: str, namespace: str = "ml") -> Reservation | None:
    return at.core.reservations.of(GangKey(namespace, gang))


def held(at: Cluster, gang: str) -> dict[str, int]:
    """node -> how many of its GPUs are reserved for the gang."""
    reservation = reservation_of(at, gang)
    return (
        {}
        if reservation is None
        else {node: mask.bit_count() for node, mask in reservation.gpus.items()}
    )


def waits_with_reservation() -> Cluster:
    """Node n1 is free, n2 is not, and a gang waits for both."""
    at = cluster()
    run(at, "first", 4, "n2")
    at.add_gang("g", 2, 8)
    at.settle()
    assert held(at, "g") == {"n1": 8, "n2": 8}
    return at


def in_namespace(namespace: str) -> Callable[[Pod], Pod]:
    return lambda pod: change(pod, metadata=change(pod.metadata, namespace=namespace))


def on_nodes(**labels: str) -> Callable[[Pod], Pod]:
    return lambda pod: change(pod, spec=change(pod.spec, node_selector=labels))


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_large_gang_starts_under_a_stream_of_small_pods(share: float) -> None:
    at = cluster(nodes=2, share=share)
    running: dict[str, int] = {}
    for number in range(200):
        for name, until in list(running.items()):
            if until <= number:
                del running[name]
                end(at, name)
        if number == 10:
            at.add_gang("g", 2, 8)
        at.now += 1
        at.settle()
        for spare in range(16):
            name = f"p{number}-{spare}"
            at.add_pod(name, 1)
            if at.schedule(name):
                at.set_phase(name, "Running")
                running[name] = number + 8 + spare % 5
            else:
                at.delete(name)
        at.settle()
        # The longest that runs has 12 rounds to go when the gang comes.
        if number == 24 and share:
            assert at.phase("g") == "planned"
            return
        at.sound()
    assert at.phase("g") == "forming", "without a hold it waits forever"


def test_a_later_pod_is_told_for_whom_the_gpus_are_held_and_does_not_get_them() -> None:
    at = waits_with_reservation()
    at.add_pod("late", 1)
    assert at.filter("late").failed == {"n1": HELD, "n2": HELD}
    assert at.filter("late").failed == {"n1": HELD, "n2": HELD}
    assert at.schedule("late") == ""
    assert isinstance(at.begin_bind("late", "n1"), BindRefusal)
    assert at.free("n1") == 8


def test_what_is_held_goes_to_the_gang_once_all_of_it_is_free() -> None:
    at = waits_with_reservation()
    at.add_pod("late", 1)
    end(at, "first")
    assert at.phase("g") == "planned"
    assert held(at, "g") == {}
    assert at.schedule("late") == ""


def test_a_gpu_that_only_the_kubelet_gives_back_wakes_the_gang_that_it_is_held_for() -> None:
    at = cluster()
    at.add_pod("first", 4)
    at.bind("first", "n2")
    at.start("first")
    at.add_gang("g", 2, 8)
    at.settle()
    end(at, "first")
    assert at.phase("g") == "forming"  # podresources lists it still
    at.stop("first", "n2")
    at.settle()
    assert at.phase("g") == "planned"


def test_what_is_not_held_is_anybodys() -> None:
    at = cluster(nodes=3)
    for node in ("n1", "n2", "n3"):
        run(at, f"first-{node}", 4, node)
    at.add_gang("g", 2, 8)
    at.settle()
    assert held(at, "g") == {"n1": 8, "n2": 8}
    assert run(at, "late", 4) == "late"
    assert at.pod("late").spec.node_name == "n3"
    assert at.phase("g") == "forming"


def test_a_more_urgent_pod_takes_what_is_held() -> None:
    at = waits_with_reservation()
    at.add_pod("urgent", 8, priority=1)
    assert at.schedule("urgent") == "n1"
    at.settle()
    assert at.sound()


def test_a_pod_that_is_older_than_the_gang_takes_what_is_held() -> None:
    at = cluster()
    run(at, "first", 4, "n2")
    at.add_pod("old", 8)
    at.now += 1
    at.add_gang("g", 2, 8)
    at.settle()
    assert at.schedule("old") == "n1"


def test_a_more_urgent_gang_takes_what_is_held_and_is_first_in_the_line() -> None:
    at = waits_with_reservation()
    for rank in range(3):
        said = {"gang": "h", "gang_size": "3", "rank": str(rank)}
        at.add_pod(f"h-{rank}", 4, priority=1, said=said)
    at.settle()
    assert at.phase("h") == "planned"
    assert at.phase("g") == "forming"


def test_a_gang_behind_the_first_gets_no_reservation_on_the_same_nodes() -> None:
    at = waits_with_reservation()
    at.now += 1
    at.add_gang("h", 2, 8)
    at.settle()
    assert held(at, "h") == {}


def test_a_gang_of_another_namespace_may_hold_what_is_left() -> None:
    at = cluster(nodes=4, share=1.0)
    for number in range(1, 5):
        run(at, f"first-{number}", 4, f"n{number}")
    for namespace in ("red", "blue"):
        for rank in range(2):
            said = {"gang": "g", "gang_size": "2", "rank": str(rank)}
            at.add_pod(f"{namespace}-{rank}", 8, said=said, alter=in_namespace(namespace))
        at.now += 1
    at.settle()
    first, second = reservation_of(at, "g", "red"), reservation_of(at, "g", "blue")
    assert first is not None
    assert second is not None
    assert sorted((*first.gpus, *second.gpus)) == ["n1", "n2", "n3", "n4"]


def test_a_gang_of_the_same_namespace_that_wants_other_nodes_is_not_kept_back() -> None:
    at = cluster(nodes=0)
    for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        at.add_node(name, labels={"zone": zone})
        run(at, f"first-{name}", 4, name)
    for zone in ("a", "b"):
        for rank in range(2):
            said = {"gang": zone, "gang_size": "2", "rank": str(rank)}
            at.add_pod(f"{zone}-{rank}", 8, said=said, alter=on_nodes(zone=zone))
    at.settle()
    assert held(at, "a") == {"a1": 8, "a2": 8}
    assert held(at, "b") == {"b1": 8, "b2": 8}


@pytest.mark.parametrize(("share", "blue_has_one"), [(0.5, False), (1.0, True)])
def test_only_the_first_may_hold_more_than_the_share(share: float, blue_has_one: bool) -> None:
    at = cluster(nodes=4, share=share)
    for number in range(1, 5):
        run(at, f"first-{number}", 4, f"n{number}")
    for namespace, size in (("red", 3), ("blue", 1)):
        for rank in range(size):
            said = {"gang": "g", "gang_size": str(size), "rank": str(rank)}
            at.add_pod(f"{namespace}-{rank}", 8, said=said, alter=in_namespace(namespace))
        at.now += 1
    at.settle()
    assert reservation_of(at, "g", "red") is not None
    assert (reservation_of(at, "g", "blue") is not None) is blue_has_one


def test_a_gang_that_could_never_fit_holds_nothing() -> None:
    at = cluster()
    at.add_gang("g", 3, 8)
    at.settle()
    assert held(at, "g") == {}
    assert run(at, "late", 8) == "late"


def test_a_hold_is_given_up_with_its_gang_and_who_was_turned_away_is_woken() -> None:
    at = waits_with_reservation()
    at.add_pod("late", 8)
    assert at.schedule("late") == ""
    at.delete("g-0")
    at.settle()
    assert held(at, "g") == {}
    at.pass_time(2)
    assert at.pod("late").status.nominated_node_name == "n1"


@pytest.mark.parametrize(
    "happens",
    [lambda at: at.cordon("n2"), lambda at: at.set_health("n2", 0)],
    ids=["it is cordoned", "one of its GPUs falls ill"],
)
def test_a_hold_moves_when_its_node_can_no_more_be_had(happens: Callable[[Cluster], None]) -> None:
    at = cluster(nodes=3)
    run(at, "first", 2, "n2")
    run(at, "second", 4, "n3")
    at.add_gang("g", 2, 8)
    at.settle()
    assert held(at, "g") == {"n1": 8, "n2": 8}
    happens(at)
    at.pass_time(LOOK_SECONDS)
    assert held(at, "g") == {"n1": 8, "n3": 8}
    assert at.sound()


def test_a_hold_moves_only_to_where_less_is_to_be_waited_for() -> None:
    at = cluster(nodes=3)
    run(at, "first", 4, "n2")
    for number in range(3):
        run(at, f"other-{number}", 2, "n3")
    at.add_gang("g", 2, 8)
    at.settle()
    assert held(at, "g") == {"n1": 8, "n2": 8}
    end(at, "other-0")
    at.pass_time(LOOK_SECONDS)
    assert held(at, "g") == {"n1": 8, "n2": 8}  # four either way
    end(at, "other-1")
    assert held(at, "g") == {"n1": 8, "n2": 8}  # not at every change
    at.pass_time(LOOK_SECONDS)
    assert held(at, "g") == {"n1": 8, "n3": 8}


def test_where_the_ends_are_known_the_earliest_is_waited_for() -> None:
    at = cluster(nodes=3)
    run(at, "first", 2, "n2", expected_duration="5h")
    run(at, "second", 4, "n3", expected_duration="1h")
    at.add_gang("g", 2, 8)
    at.settle()
    assert held(at, "g") == {"n1": 8, "n3": 8}
    reservation = reservation_of(at, "g")
    assert reservation is not None
    assert reservation.start == at.now + 3600


@pytest.mark.parametrize(
    ("minutes", "words", "expected"),
    [
        ((10, 21, 11, 60), {}, {"n1", "n2"}),
        ((10, 23, 11, 60), {}, {"n1", "n3"}),
        ((10, 21, 11, 60), {"communicator": "pod"}, {"n1", "n3"}),
        ((11, 20, 10, 19), {}, {"n3", "n4"}),
    ],
    ids=["in time", "too late", "apart", "the first of two"],
)
def test_a_gang_waits_up_to_twice_as_long_for_gpus_in_one_domain(
    minutes: Sequence[int], words: dict[str, str], expected: set[str]
) -> None:
    at = on_two_leaves()
    for node, end_minutes in zip(at.nodes, minutes, strict=True):
        run(at, f"on-{node}", 8, node, expected_duration=f"{end_minutes}m")
    at.add_gang("g", 2, 8, **words)
    at.settle()
    assert held(at, "g").keys() == expected


def on_two_leaves() -> Cluster:
    at = Cluster(CoreSettings())
    for number, leaf in enumerate("aabb", 1):
        at.add_node(f"n{number}", labels={"network.topology.nvidia.com/leaf": leaf})
    return at


def test_a_place_may_wait_longer_for_cpu_than_for_gpus() -> None:
    """As long as its GPUs are in use is no bound for where to look for a nearer one."""
    at = on_two_leaves()
    for node in at.nodes:
        free = node in ("n1", "n3")
        run(at, f"gpus-{node}", 7, node, expected_duration="10m" if free else "9h")
        at.add_pod(f"cpu-{node}", 1, cpu="90", said={"expected_duration": "1h" if free else "9h"})
        at.bind(f"cpu-{node}", node)
        at.set_phase(f"cpu-{node}", "Running")
    for rank in range(2):
        words = {"gang": "g", "gang_size": "2", "rank": str(rank)}
        at.add_pod(f"g-{rank}", 3, cpu="50", said=words)
    at.settle()
    assert held(at, "g").keys() == {"n1", "n3"}


def test_a_server_that_never_ends_is_the_last_to_be_waited_for() -> None:
    at = cluster(nodes=3)
    server = lambda pod: change(pod, spec=change(pod.spec, restart_policy="Always"))  # noqa: E731
    at.add_pod("server", 1, alter=server)
    at.bind("server", "n2")
    run(at, "job", 8, "n3")
    at.add_gang("g", 2, 8)
    at.settle()
    assert held(at, "g") == {"n1": 8, "n3": 8}


@pytest.mark.parametrize(
    ("said", "passes"),
    [("59m", True), ("1h", True), ("61m", False), (None, False)],
)
def test_a_pod_passes_if_it_ends_before_the_gang_could_start(
    said: str | None, passes: bool
) -> None:
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="1h")
    at.add_gang("g", 2, 8)
    at.settle()
    at.add_pod("late", 8, said={} if said is None else {"expected_duration": said})
    assert at.schedule("late") == ("n1" if passes else "")
    at.settle()
    reservation = reservation_of(at, "g")
    assert reservation is not None
    assert reservation.start == at.now + 3600


@pytest.mark.parametrize(("liars", "passes"), [(2, True), (3, False)])
def test_no_pod_passes_once_too_many_of_its_namespace_ran_longer_than_declared(
    liars: int, passes: bool
) -> None:
    """Found: pods that declared a second and ran for hours kept a gang waiting for a day."""
    at = cluster(nodes=3)
    run(at, "first", 4, "n2", expected_duration="2h")
    run(at, "other", 5, "n3", expected_duration="9h")
    late = [run(at, f"liar-{number}", 1, "n3", expected_duration="1m") for number in range(liars)]
    at.pass_time(600)
    at.add_gang("g", 2, 8)
    at.settle()
    assert held(at, "g") == {"n1": 8, "n2": 8}
    at.add_pod("late", 8, said={"expected_duration": "1m"})
    assert bool(at.filter("late").node_names) is passes
    for name in late:
        end(at, name)
    assert bool(at.filter("late").node_names) is passes, "that they ended changes nothing"
    at.pass_time(LOOK_SECONDS)
    reservation = reservation_of(at, "g")
    assert reservation is not None
    assert reservation.earliest.sure is passes, (
        "of what runs, the declared end does not count either"
    )


def test_no_pod_passes_while_one_on_the_reserved_gpus_runs_longer_than_declared() -> None:
    """Found: a tenant that kept its word with many small pods followed each long one by another."""
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="2h")
    run(at, "liar", 1, "n2", expected_duration="1m")
    at.add_gang("g", 2, 8)
    at.settle()
    at.add_pod("quick", 8, said={"expected_duration": "1m"})
    assert at.filter("quick").node_names
    at.pass_time(600)
    assert not at.filter("quick").node_names
    end(at, "liar")
    at.pass_time(LOOK_SECONDS)
    assert at.filter("quick").node_names


@pytest.mark.parametrize(
    ("hours", "said", "passes"),
    [(0, "24h", True), (0, "25h", False), (22, "2h", True), (22, "3h", False), (25, "1m", False)],
)
def test_what_passes_ends_within_the_first_day_that_the_gang_waits(
    hours: int, said: str, passes: bool
) -> None:
    """Found: one in 16 of a tenant's jobs ran for hours, and each let more of them pass."""
    at = cluster(share=1.0)
    run(at, "first", 4, "n2", expected_duration="90h")
    at.add_gang("g", 2, 8)
    at.settle()
    at.pass_time(hours * 3600)
    assert held(at, "g") == {"n1": 8, "n2": 8}
    at.add_pod("late", 8, said={"expected_duration": said})
    assert at.schedule("late") == ("n1" if passes else "")


def passers(at: Cluster, *, takes_back: bool = False) -> list[str]:
    """Pods of one GPU that pass, of one a minute. They run for longer than they declare."""
    passed = []
    for number in range(10):
        name = f"quick-{number}"
        pod = at.add_pod(name, 1, said={"expected_duration": "2m"})
        if at.schedule(name):
            if takes_back:
                pod = at.pod(name)
                said = {k: v for k, v in pod.metadata.annotations.items() if "expected" not in k}
                at.put_pod(change(pod, metadata=change(pod.metadata, annotations=said)))
            at.set_phase(name, "Running")
            passed.append(name)
        else:
            at.delete(name)
        at.pass_time(60)
    return passed


def keep_words(at: Cluster, count: int) -> None:
    for number in range(count):
        run(at, f"kept-{number}", 1, "n2", expected_duration="2m")
        at.pass_time(60)
        at.set_phase(f"kept-{number}", "Succeeded")
        end(at, f"kept-{number}")


@pytest.mark.parametrize("takes_back", [False, True])
def test_few_pods_pass_at_a_time_until_a_namespace_has_kept_its_word(takes_back: bool) -> None:
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="2h")
    at.add_gang("g", 2, 8)
    at.settle()
    assert passers(at, takes_back=takes_back) == ["quick-0", "quick-1"]
    at.set_phase("quick-0", "Succeeded")
    end(at, "quick-0")
    assert not at.core._run_times._words["ml"].kept[-1], "the word is in its plan"


def test_explain_knows_that_no_more_pods_pass_at_a_time() -> None:
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="2h")
    at.add_gang("g", 2, 8)
    at.settle()
    for number, room in enumerate((1, 1, 0)):
        name = f"quick-{number}"
        at.add_pod(name, 1, said={"expected_duration": "2m"})
        told = at.core.explain("ml", name, at.now)
        assert told is not None
        assert told.search is not None
        assert told.search.room == room
        assert bool(at.schedule(name)) is bool(room)


def test_a_namespace_that_has_kept_its_word_is_believed() -> None:
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="2h")
    keep_words(at, MANY)
    at.add_gang("g", 2, 8)
    at.settle()
    assert len(passers(at)) > 2


def test_a_pod_that_prefers_nodes_by_itself_sees_and_scores_reserved_gpus_too() -> None:
    """Filter returns all nodes for such a pod, by another path than the best node alone."""
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="1h")
    at.add_gang("g", 2, 8)
    at.settle()
    pod = msgspec.to_builtins(at.add_pod("late", 8, said={"expected_duration": "30m"}))
    spread = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    pod["spec"]["topologySpreadConstraints"] = [spread]
    at.put_pod(msgspec.convert(pod, Pod, strict=False))
    assert at.filter("late").node_names == ("n1",)
    assert at.prioritize("late").scores == {"n1": 100, "n2": 0}


@pytest.mark.parametrize(("said", "node"), [("30m", "n1"), ("2h", "")])
def test_an_unschedulable_pod_is_nominated_for_reserved_gpus_that_it_may_use(
    said: str, node: str
) -> None:
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="1h")
    run(at, "other", 8, "n1", expected_duration="1h")
    at.add_gang("g", 2, 8)
    at.settle()
    at.add_pod("late", 8, said={"expected_duration": said})
    assert at.filter("late").node_names == ()
    end(at, "other")
    at.pass_time(2)
    assert held(at, "g")["n1"] == 8
    assert at.pod("late").status.nominated_node_name == node


@pytest.mark.parametrize(("said", "passes"), [("5m", True), ("6m", False), (None, False)])
def test_where_the_start_is_an_estimate_half_of_the_wait_is_lent(
    said: str | None, passes: bool
) -> None:
    at = waits_with_reservation()
    reservation = reservation_of(at, "g")
    assert reservation is not None
    assert reservation.start == at.now + LEAST_SECONDS
    assert not reservation.earliest.sure
    at.add_pod("late", 8, said={} if said is None else {"expected_duration": said})
    assert at.schedule("late") == ("n1" if passes else "")


@pytest.mark.parametrize(("said", "passes"), [("29m", True), ("31m", False)])
def test_who_has_broken_his_word_is_expected_to_go_on_for_as_long_again(
    said: str, passes: bool
) -> None:
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="1h")
    at.add_gang("g", 2, 8)
    at.settle()
    at.pass_time(3601)
    at.add_pod("late", 8, expected_duration=said)
    assert at.schedule("late") == ("n1" if passes else "")


def test_a_gang_passes_as_a_pod_does() -> None:
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="1h")
    at.add_gang("g", 2, 8)
    at.settle()
    at.add_gang("long", 2, 4)
    at.add_gang("short", 2, 4, expected_duration="30m")
    at.settle()
    assert at.phase("long") == "forming"
    assert at.phase("short") == "planned"


@pytest.mark.parametrize("longest", [{"expected_duration": "2h"}, {}])
def test_a_gang_runs_for_as_long_as_its_longest_member(longest: dict[str, str]) -> None:
    at = cluster()
    run(at, "first", 4, "n2", expected_duration="1h")
    at.add_gang("g", 2, 8)
    at.settle()
    for rank, words in enumerate(({"expected_duration": "30m"}, longest)):
        said = {"gang": "mixed", "gang_size": "2", "rank": str(rank), **words}
        at.add_pod(f"mixed-{rank}", 4, said=said)
    at.settle()
    assert at.phase("mixed") == "forming"


def test_a_gang_that_runs_replaces_its_dead_member_out_of_what_is_held() -> None:
    """The other would wait for it, and it for the other."""
    at = cluster(nodes=4)
    members = at.add_gang("runs", 2, 8)
    at.settle()
    for member in members:
        at.schedule(member)
    run(at, "first", 4, "n4")
    assert at.phase("runs") == "running"
    for rank in range(3):
        said = {"gang": "g", "gang_size": "3", "rank": str(rank)}
        at.add_pod(f"g-{rank}", 8, priority=1, said=said)
    at.settle()
    assert set(held(at, "g")) == {"n1", "n3", "n4"}
    at.cordon("n2")
    at.delete("runs-1")
    at.settle()
    at.now += 1
    at.add_pod("runs-1", 8, gang="runs", gang_size="2", rank="1")
    at.settle()
    assert at.schedule("runs-1") == "n3"
    at.settle()
    assert at.phase("runs") == "running"


def test_a_single_pod_behind_the_gate_is_held_for_as_a_gang_is() -> None:
    at = cluster(nodes=1)
    run(at, "first", 4, "n1")
    at.add_pod("whole", 8, gates=[names.GATE])
    at.settle()
    at.now += 1
    at.add_pod("late", 4)
    assert at.filter("late").failed == {"n1": "linkwise: reserved for pod ml/whole"}
    end(at, "first")
    assert at.gates("whole") == []


def turned_away(pod: Pod) -> Pod:
    """kube-scheduler has found no node for it."""
    told = Condition(
        "PodScheduled",
        "False",
        "Unschedulable",
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    )
    return change(pod, status=change(pod.status, conditions=(told,)))


def test_a_large_single_pod_starts_under_a_stream_of_small_ones() -> None:
    at = cluster(nodes=1)
    ends = {run(at, f"p{number}", 1): number for number in range(8)}
    at.now += 1
    at.add_pod("whole", 8, alter=turned_away)
    at.settle()
    for number in range(8, 40):
        for name in [name for name, until in ends.items() if until <= number]:
            del ends[name]
            end(at, name)
        at.now += 1
        at.add_pod(f"p{number}", 1)
        if at.schedule(f"p{number}"):
            ends[f"p{number}"] = number + 8
        if at.schedule("whole"):
            return
    raise AssertionError("it waits forever")


def test_what_is_held_for_a_single_pod_is_held_after_a_restart_and_explained() -> None:
    at = cluster(nodes=1)
    run(at, "first", 4, "n1")
    at.add_pod("whole", 8, alter=turned_away)
    at.settle()
    at.now += 1
    at.add_pod("late", 4)
    for _ in range(2):
        assert at.filter("late").failed == {"n1": "linkwise: reserved for pod ml/whole"}
        told = at.core.explain("ml", "late", at.now)
        assert told is not None
        assert told.search is not None
        assert told.search.nearest is not None
        assert [each.pod for each in told.search.nearest.holders if each.state == "reserved"] == [
            "ml/whole"
        ]
        at.restart()
        at.settle()
    end(at, "first")
    assert at.schedule("whole") == "n1"


def test_a_single_gpu_comes_free_by_itself_and_is_not_held() -> None:
    at = cluster(nodes=1)
    run(at, "first", 8, "n1")
    at.add_pod("one", 1, alter=turned_away)
    at.settle()
    assert at.core.reservations.all() == []


def test_nothing_is_held_for_a_pod_that_waits_for_something_else() -> None:
    at = cluster(nodes=1)
    run(at, "first", 4, "n1")
    why = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    told = Condition("PodScheduled", "False", "Unschedulable", why)
    pod = at.add_pod("whole", 8)
    at.put_pod(change(pod, status=change(pod.status, conditions=(told,))))
    at.settle()
    assert at.core.reservations.all() == []
    end(at, "first")
    assert at.plan("whole") is None


def test_a_pod_that_is_nominated_is_kube_schedulers() -> None:
    """It evicts others there; a plan on another node would have it evict in vain."""
    at = cluster(nodes=1)
    run(at, "first", 4, "n1")
    at.add_pod("whole", 8, alter=turned_away)
    at.nominate("whole", "n1")
    at.settle()
    assert at.core.reservations.all() == []


def after_runs(seconds: float, runs: int, *, of: str = "ml") -> Cluster:
    """*runs* pods of 8 GPUs have run for so long; a gang of the namespace *of* waits for one that
    ends in an hour."""
    at = cluster()
    for number in range(runs):
        run(at, f"before-{number}", 8)
        at.pass_time(seconds)
        end(at, f"before-{number}")
    run(at, "first", 4, "n2", expected_duration="1h")
    for rank in range(2):
        said = {"gang": "g", "gang_size": "2", "rank": str(rank)}
        at.add_pod(
            f"g-{rank}",
            8,
            said=said,
            alter=lambda pod: change(pod, metadata=change(pod.metadata, namespace=of)),
        )
    at.settle()
    assert at.core.reservations.by_key[GangKey(of, "g")].gpus == {"n1": 255, "n2": 255}
    return at


@pytest.mark.parametrize(
    ("seconds", "runs", "gpus", "of", "passes"),
    [
        (3000.0, MANY, 8, "another", True),
        (3601.0, MANY, 8, "another", False),
        (3000.0, MANY - 1, 8, "another", False),  # too few to know
        (3000.0, MANY, 8, "ml", True),
        (3000.0, MANY, 4, "ml", False),  # of another kind
    ],
)
def test_a_pod_passes_that_says_nothing_if_its_like_have_ended_by_then(
    seconds: float, runs: int, gpus: int, of: str, passes: bool
) -> None:
    at = after_runs(seconds, runs, of=of)
    at.add_pod("late", gpus)
    assert at.schedule("late") == ("n1" if passes else "")


def test_a_server_never_passes() -> None:
    at = after_runs(60.0, MANY)
    at.add_pod(
        "late", 8, alter=lambda pod: change(pod, spec=change(pod.spec, restart_policy="Always"))
    )
    assert at.schedule("late") == ""


def test_who_may_pass_by_what_is_known_of_its_like_is_not_told_to_wait() -> None:
    at = after_runs(3000.0, MANY)
    at.add_pod("late", 8)
    told = at.core.explain("ml", "late", at.now)
    assert told is not None
    assert told.search is not None
    assert told.search.room == 1


def test_a_restart_finds_a_hold_again() -> None:
    at = waits_with_reservation()
    at.restart()
    at.settle()
    assert held(at, "g") == {"n1": 8, "n2": 8}


def test_without_a_share_nothing_is_held() -> None:
    at = cluster(share=0.0)
    run(at, "first", 4, "n2")
    at.add_gang("g", 2, 8)
    at.settle()
    assert held(at, "g") == {}
    assert run(at, "late", 8) == "late"


def test_reserved_gpus_that_a_pod_takes_in_place_of_others_are_not_seen_as_free() -> None:
    """A table with the GPUs of reservations is made once, while nothing changes."""
    at = cluster(nodes=1)
    at.add_pod("planned", 1, gates=[names.GATE])
    at.settle()
    cache, planner = at.core._cache, at.core._planner
    (plan,) = cache.plans.values()
    (mine,) = (gpus for gpus in plan.gpus.values())
    other = next(each for each in at.uuids("n1", 0, 1) if each not in mine)
    reserved = FreshGpus({"n1": 0b11}, number=99)
    cache.reserve(GangKey("ml", "g"), reserved.gpus)
    before = int(planner.reservations.rows_with([reserved]).free[0])
    gpus = dict.fromkeys(plan.gpus, (other,))
    cache.plan(at.pod("planned").metadata.uid, replace(plan, gpus=gpus))
    after = int(planner.reservations.rows_with([reserved]).free[0])
    assert (before ^ after) == 0b11


def test_a_member_that_is_made_again_smaller_needs_no_more_than_it_says() -> None:
    at = cluster()
    run(at, "first", 8, "n1")
    run(at, "second", 8, "n2")
    at.add_gang("g", 2, 8)
    at.settle()
    assert held(at, "g") == {"n1": 8, "n2": 8}
    at.delete("g-1")
    at.add_pod("g-1", 2, gang="g", gang_size="2", rank="1")
    at.pass_time(120)
    assert sum(held(at, "g").values()) == 10
