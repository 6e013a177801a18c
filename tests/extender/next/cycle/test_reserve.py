"""A pod or gang that waits has its turn before those behind it, and withholds only what it may."""

from collections.abc import Callable
from typing import TypeVar
from unittest.mock import patch

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.queue import earliest_start
from linkwise.extender.state.records import GangKey
from linkwise.kube.objects import OwnerReference, Pod
from tests.extender.cluster import Cluster, change

T = TypeVar("T")
DAY = 86_400.0


def cluster(nodes: int, settings: CoreSettings | None = None) -> Cluster:
    at = Cluster(settings or CoreSettings())
    for number in range(1, nodes + 1):
        at.add_node(f"n{number}", "hgx-h100")
    return at


def server(pod: Pod) -> Pod:
    owner = OwnerReference(kind="ReplicaSet", name="web", uid="rs", controller=True)
    return change(
        pod,
        spec=change(pod.spec, restart_policy="Always"),
        metadata=change(pod.metadata, owner_references=(owner,)),
    )


def of_another_team(pod: Pod) -> Pod:
    return change(pod, metadata=change(pod.metadata, namespace="other"))


def run(at: Cluster, name: str, gpus: int, node: str, **said: str) -> None:
    at.add_pod(name, gpus, said=said)
    at.bind(name, node)
    at.start(name)
    at.settle()


def end(at: Cluster, name: str) -> None:
    node = at.pod(name).spec.node_name
    at.delete(name)
    at.stop(name, node)


def held(at: Cluster, gang: str = "g") -> set[str]:
    reservation = at.core.reservations.of(GangKey("ml", gang))
    return set() if reservation is None else set(reservation.gpus)


def wait(at: Cluster, seconds: float, step: float = 60.0) -> None:
    until = at.now + seconds
    while at.now < until:
        at.pass_time(min(step, until - at.now))


# Servers.


def test_a_gang_waits_for_no_more_urgent_server_that_took_a_reserved_gpu() -> None:
    at = cluster(2)
    run(at, "a", 6, "n1")
    run(at, "b", 4, "n2")
    at.add_gang("g", 1)
    run(at, "c", 4, "n2")
    at.settle()
    assert held(at) == {"n1"}
    at.add_pod("web", 2, alter=server, priority=1)
    assert at.filter("web").node_names == ("n1",)
    at.bind("web", "n1")
    at.start("web")
    at.settle()
    assert held(at) == {"n2"}


def test_nothing_is_kept_for_a_gang_that_needs_a_server_to_end() -> None:
    """Found after a day: 31 of 32 GPUs kept and idle for a gang that one server kept waiting."""
    at = cluster(4)
    at.add_pod("web", 1, alter=server)
    at.bind("web", "n1")
    at.start("web")
    at.add_gang("g", 4)
    at.settle()
    assert held(at) == set()
    wait(at, 600)
    at.add_pod("other", 8, alter=of_another_team)
    assert at.filter("other").node_names == ("n2",)
    (gang,) = at.core.gangs(at.now)
    assert gang.reason.endswith(
        "not for enough of them, until pods that run forever are deleted (restartPolicy Always)"
    )


def test_a_gang_waits_for_jobs_beside_a_server_on_other_nodes() -> None:
    at = cluster(3)
    at.add_pod("web", 1, alter=server)
    at.bind("web", "n1")
    at.start("web")
    run(at, "job", 8, "n2")
    at.add_gang("g", 2)
    at.settle()
    assert held(at) == {"n2", "n3"}


def test_a_pod_of_a_job_ends_however_it_restarts_its_containers() -> None:
    at = cluster(2)
    owner = OwnerReference(kind="PyTorchJob", name="lm", uid="job", controller=True)

    def of_job(pod: Pod) -> Pod:
        return change(server(pod), metadata=change(pod.metadata, owner_references=(owner,)))

    at.add_pod("ps", 1, alter=of_job)
    at.bind("ps", "n1")
    at.start("ps")
    at.add_gang("g", 2)
    at.settle()
    assert held(at) == {"n1", "n2"}


# Jobs that say when they end, and jobs that do not.


@pytest.mark.parametrize("said", [{}, {"expected_duration": "168h"}])
def test_a_job_that_says_that_it_runs_for_a_week_is_not_waited_for_beside_short_ones(
    said: dict[str, str],
) -> None:
    """Found after 5.5 hours: the extender preferred a known end to every unknown one."""
    at = cluster(4)
    run(at, "week", 8, "n1", **said)
    for number in range(4):  # what has run before
        run(at, f"before-{number}", 8, "n2")
        wait(at, 600)
        end(at, f"before-{number}")
    began = at.now
    for node in ("n2", "n3", "n4"):
        run(at, f"job-{node}", 8, node)
        wait(at, 120)
    at.add_gang("g", 2)
    at.settle()
    assert held(at) == {"n2", "n3"}
    for node in ("n2", "n3"):
        wait(at, 600 - (at.now - began) % 600)
        end(at, f"job-{node}")
        at.add_pod(f"next-{node}", 8)
        at.schedule(f"next-{node}")
        at.settle()
    assert at.phase("g") == "planned"
    assert at.now - began < 1440


# In their order.


def waits_for_two() -> Cluster:
    """A gang waits for two nodes of three, until minute 60; the third is busy until 120."""
    at = cluster(3)
    run(at, "one", 8, "n1", expected_duration="60m")
    run(at, "two", 8, "n2", expected_duration="120m")
    run(at, "three", 8, "n3", expected_duration="120m")
    at.add_gang("g", 2, gpu_model="H100")
    at.settle()
    assert held(at) == {"n1", "n2"}
    wait(at, 1800)
    return at


def test_a_node_that_comes_free_early_is_the_first_gangs_and_not_a_younger_ones() -> None:
    """Found: the younger took it, and the first one began an hour later."""
    at = waits_for_two()
    at.add_gang("young", 1)
    at.settle()
    end(at, "three")
    at.settle()
    at.pass_time(1)
    assert held(at) == {"n1", "n3"}
    assert at.phase("young") == "forming"
    wait(at, 1800)
    end(at, "one")
    at.settle()
    assert at.phase("g") == "planned"


def test_nor_is_it_a_younger_pods_that_asks_before_anything_was_decided() -> None:
    at = waits_for_two()
    at.add_pod("young", 8)
    end(at, "three")
    assert at.filter("young").failed["n3"] == (
        "linkwise: newly freed GPUs go first to gangs and pods ahead in the queue"
    )
    assert at.schedule("young") == ""
    at.settle()
    at.pass_time(1)
    assert held(at) == {"n1", "n3"}


def test_what_the_first_has_no_use_for_is_anybodys_at_once() -> None:
    at = waits_for_two()
    at.add_node("n4", "dgx1-v100")
    at.settle()
    at.add_pod("young", 8)
    assert at.schedule("young") == "n4"


def test_a_pod_that_is_more_urgent_than_all_who_wait_need_not_wait_for_a_decision() -> None:
    at = waits_for_two()
    at.add_pod("urgent", 8, priority=1)
    end(at, "three")
    assert at.schedule("urgent") == "n3"


def test_who_was_told_that_others_are_first_is_woken_when_they_do_not_want_it() -> None:
    at = waits_for_two()
    at.add_pod("young", 8)
    at.add_node("n4", "dgx1-v100")
    assert at.schedule("young") == ""
    wait(at, 2, step=1)
    assert at.pod("young").status.nominated_node_name == "n4"


# For how long.


def test_what_is_kept_idles_no_more_than_the_share_for_longer_than_the_limit() -> None:
    limit = 3600.0
    at = cluster(4, CoreSettings(reserve_share=0.5, reserve_limit_seconds=limit))
    run(at, "long", 8, "n1", expected_duration="72h")
    at.add_gang("g", 4)
    at.settle()
    assert held(at) == {"n1", "n2", "n3", "n4"}
    idle = 0.0
    for _ in range(2000):
        at.add_pod("other", 8, alter=of_another_team)
        passed = at.filter("other").node_names
        at.delete("other")
        idle = 0.0 if passed else idle + 60
        assert idle <= limit
        wait(at, 60)


def test_within_the_share_a_gang_keeps_what_it_has_for_as_long_as_it_takes() -> None:
    at = cluster(4, CoreSettings(reserve_share=0.5, reserve_limit_seconds=3600.0))
    for node in ("n1", "n2", "n3", "n4"):
        run(at, f"long-{node}", 8, node, expected_duration="72h" if node < "n3" else "48h")
    at.add_gang("g", 2)
    at.settle()
    assert held(at) == {"n3", "n4"}
    end(at, "long-n3")
    wait(at, DAY, step=600)
    assert held(at) == {"n3", "n4"}
    at.add_pod("other", 8)
    assert at.filter("other").node_names == ()


def waits_beside_a_long_job(runs: float = 600.0, **said: str) -> Cluster:
    """A gang of two nodes, of a team whose jobs run for *runs* seconds, waits for one of three that
    is busy for days."""
    at = cluster(3, CoreSettings(reserve_share=0.5, reserve_limit_seconds=24 * 3600.0))
    for number in range(3):
        run(at, f"before-{number}", 8, "n1")
        wait(at, runs, step=runs)
        end(at, f"before-{number}")
    for node in ("n2", "n3"):
        run(at, f"long-{node}", 8, node, expected_duration="72h")
    at.add_gang("g", 2, 8, **said)
    at.settle()
    assert "n1" in held(at)
    return at


def gets_in(at: Cluster) -> bool:
    """Whether a pod of another team gets the idle node."""
    at.add_pod("other", 8, alter=of_another_team)
    passed = at.filter("other").node_names
    at.delete("other")
    return bool(passed)


@pytest.mark.parametrize("runs", [600.0, 5.0])
def test_a_reservation_idles_no_more_than_a_part_of_what_the_gang_will_use(runs: float) -> None:
    """Found: a gang whose jobs run for seconds lost its reservation two seconds after it came."""
    at = waits_beside_a_long_job(runs)
    wait(at, 720, step=60)
    assert not gets_in(at), "it idles one node of two, and is to run for ten minutes"
    wait(at, 120, step=60)
    assert gets_in(at)
    assert held(at) == set()
    explained = at.core.explain("ml", "g-0", at.now)
    assert explained is not None
    assert explained.gang is not None
    rests_until = explained.gang.rests_until
    assert rests_until is not None
    wait(at, rests_until - at.now - 5, step=30)
    assert held(at) == set()
    wait(at, 10, step=1)
    assert held(at), "it has one again once the namespace has rested, though nothing else changes"


def test_a_gang_that_runs_for_long_keeps_its_reservation_for_long() -> None:
    at = waits_beside_a_long_job(expected_duration="48h")
    wait(at, DAY, step=600)
    assert not gets_in(at)


def test_the_longer_a_gang_waits_the_more_it_may_idle_until_it_starts() -> None:
    at = waits_beside_a_long_job()
    reserved: list[float] = []  # how long each of its reservations was
    before = False
    for _ in range(24 * 6):
        now = bool(held(at))
        if now and not before:
            reserved.append(0.0)
        if now:
            reserved[-1] += 600
        before = now
        wait(at, 600, step=600)
    assert reserved[-1] > 2 * reserved[0]
    end(at, "long-n2")
    wait(at, 60, step=10)
    assert at.phase("g") in ("planned", "running", "bound"), at.phase("g")


# Nodes that come while a reservation is chosen.


class Coming:
    """Some nodes come, one each time that the core lets others in, from the *first* time on."""

    def __init__(self, at: Cluster, *, first: int, count: int, machine: str = "hgx-h100") -> None:
        self.times, self._at, self._machine = 0, at, machine
        self._when = range(first, first + count)
        at.core.set_unlocker(self)

    def __call__(self, work: Callable[[], T], /) -> T:
        self.times += 1
        if self.times in self._when:
            self._at.add_node(f"late{self.times}", self._machine)
        return work()


def full_cluster() -> Cluster:
    at = cluster(4)
    for number in range(1, 5):
        run(at, f"job{number}", 8, f"n{number}", expected_duration="6h")
    return at


@pytest.mark.parametrize("first", range(1, 9))
@pytest.mark.parametrize("nodes", [4, 64])
def test_nodes_that_come_while_it_is_found_out_that_no_reservation_helps_trip_no_gang(
    first: int, nodes: int
) -> None:
    at = cluster(nodes)
    at.add_gang("g", nodes + 20, 8)
    with patch.object(earliest_start, "_AT_ONCE", 8):
        Coming(at, first=first, count=3)
        at.settle(rounds=60)
    assert at.core.take_defects() == []
    assert not any(pod.invalid for pod in at.core.snapshot(at.now).by_uid.values())


@pytest.mark.parametrize("first", range(2, 9))
@pytest.mark.parametrize("machine", ["hgx-h100", "dgx1-v100"])
def test_nodes_that_come_while_a_reservation_is_chosen_trip_no_gang(
    first: int, machine: str
) -> None:
    """Found: arrays of the nodes before a pause met arrays of those after it."""
    at = full_cluster()
    at.add_gang("g", 3, 8)
    at.add_gang("smaller", 7, 4)
    for rank in range(3):
        said = {"gang": "h", "gang_size": "3", "rank": str(rank)}
        at.add_pod(f"h-{rank}", 8, said=said, alter=of_another_team)
    with patch.object(earliest_start, "_AT_ONCE", 1):  # nodes between two pauses
        coming = Coming(at, first=first, count=3, machine=machine)
        at.settle()
        wait(at, 120.0)
    assert at.core.take_defects() == []
    assert coming.times > first + 3
    assert at.sound()


def test_nodes_that_come_while_a_reservation_is_chosen_are_the_first_gangs() -> None:
    """Found: the extender planned the next gang of the scheduling queue there."""
    at = full_cluster()
    at.add_gang("g", 3, 8)
    for rank in range(3):
        said = {"gang": "h", "gang_size": "3", "rank": str(rank)}
        at.add_pod(f"h-{rank}", 8, said=said, alter=of_another_team)
    Coming(at, first=3, count=3)
    at.settle()
    wait(at, 60.0)
    plans = [at.plan(f"g-{rank}") for rank in range(3)]
    assert {plan.node for plan in plans if plan is not None} == {"late3", "late4", "late5"}


def test_a_node_that_comes_while_a_reservation_is_chosen_is_looked_at_before_others_get_it() -> (
    None
):
    at = full_cluster()
    at.add_gang("g", 3, 8)
    Coming(at, first=3, count=1)
    at.settle()
    at.add_pod("quick", 8)
    assert at.filter("quick").node_names == ()
    wait(at, 2.0, step=1.0)
    assert "late3" in held(at)
    assert at.filter("quick").node_names == ()


@pytest.mark.parametrize("starts", [True, False])
def test_only_what_idled_for_a_gang_that_started_does_not_count_against_the_next_of_its_team(
    starts: bool,
) -> None:
    at = cluster(5, CoreSettings(reserve_share=0.5, reserve_limit_seconds=7200.0))
    for node, hours in ((2, 2), (3, 2), (4, 9), (5, 9)):
        run(at, f"j{node}", 8, f"n{node}", expected_duration=f"{hours}h")
    for gang in ("a", "b"):
        at.add_gang(gang, 2, 8, expected_duration="240m")
        at.settle()
        at.pass_time(1)
    wait(at, 20_000)
    end(at, "j2")
    end(at, "j3")
    at.settle()
    assert all(at.plan(member) for member in ("a-0", "a-1"))
    for member in ("a-0", "a-1"):
        if starts:
            assert at.schedule(member)
            at.start(member)
        else:
            at.delete(member)
    if not starts:  # another team has the nodes
        for name in ("n2", "n3"):
            at.add_pod(f"more-{name}", 8, node=name, alter=of_another_team)
    at.settle()
    wait(at, 60, 10)
    assert len(held(at, "b")) == 2
    wait(at, 7200)
    assert len(held(at, "b")) == (2 if starts else 0)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_reservation_that_is_about_to_succeed_outlasts_a_change_of_leader(
    restarts: bool,
) -> None:
    """8 GPUs of 64 have idled for hours, 56 for a moment."""
    at = cluster(20, CoreSettings(reserve_share=0.5, reserve_limit_seconds=7200.0))
    for node in range(1, 21):
        hours = 9 if node < 8 else 10 if node == 8 else 72
        run(at, f"j{node}", 8, f"n{node}", expected_duration=f"{hours}h")
    at.add_gang("g", 8, 8, expected_duration="2h")
    end(at, "j1")
    at.settle()
    wait(at, 8.9 * 3600, 300)
    for node in range(2, 8):
        end(at, f"j{node}")
    wait(at, 60, 10)
    if restarts:
        at.restart()
        at.settle()
    wait(at, 120, 10)
    assert len(held(at)) == 8
