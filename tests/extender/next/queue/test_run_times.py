"""How long a pod that does not say so goes on is estimated from those that ended."""

from dataclasses import replace

import pytest

from linkwise.extender.next.queue import run_times
from linkwise.extender.next.queue.run_times import ENOUGH, LEAST_SECONDS, MANY, RunTimes
from linkwise.extender.state.actions import PodRef
from linkwise.extender.state.records import PodRecord, ResourceList
from linkwise.pods.annotations import PodRequest

JOB = PodRecord(
    ref=PodRef("ml", "p", "uid"),
    node="n1",
    ended=False,
    failed=False,
    leaving=False,
    priority=0,
    created=0.0,
    needs=ResourceList(gpus=8),
    owner_kind="Job",
)
SMALL = replace(JOB, needs=ResourceList(gpus=1))
OTHER_TEAM = replace(JOB, ref=PodRef("vision", "p", "uid"))


def after(*ended: tuple[PodRecord, float]) -> RunTimes:
    times = RunTimes()
    for pod, seconds in ended:
        times.ended(pod, seconds)
    return times


def test_where_nothing_is_known_a_pod_goes_on_for_as_long_again() -> None:
    assert RunTimes().left(JOB, 7200.0) == 7200.0
    assert RunTimes().left(JOB, 5.0) == LEAST_SECONDS


def test_a_pod_goes_on_as_half_of_its_like_did() -> None:
    times = after(*((JOB, seconds) for seconds in (100.0, 1000.0, 10_000.0)))
    assert times.left(JOB, 0.0) == 1000.0


def test_only_those_count_that_ran_for_longer_than_it_already_has() -> None:
    times = after(*((JOB, seconds) for seconds in (100.0, 100.0, 900.0, 1000.0, 1100.0)))
    assert times.left(JOB, 500.0) == 500.0


def test_where_too_few_of_its_like_ran_for_so_long_its_namespace_counts_then_the_cluster() -> None:
    few = [(JOB, 5000.0)] * (ENOUGH - 1)
    assert after(*few).left(JOB, 100.0) == LEAST_SECONDS
    assert after(*few, (SMALL, 700.0)).left(JOB, 100.0) == 4900.0
    assert after(*few, (OTHER_TEAM, 600.0)).left(OTHER_TEAM, 100.0) == 4900.0


def test_its_like_count_before_all_others() -> None:
    times = after(*[(SMALL, 60.0)] * 10, *[(JOB, 7200.0)] * ENOUGH)
    assert times.left(JOB, 0.0) == 7200.0
    assert times.left(SMALL, 0.0) == 60.0


def test_half_are_known_of_a_kind_once_many_have_ended() -> None:
    of_job = [(JOB, 100.0 * number) for number in range(1, 21)]
    for known in (after(*of_job), after(*of_job).known()):
        assert known.of(JOB) == 1100.0
        assert known.of(SMALL) is None
        assert known.of(replace(JOB, endless=True)) is None
    assert after(*of_job[: MANY - 1]).of(JOB) is None


def runs(times: RunTimes, number: int, began: float, said: float | None = None) -> PodRecord:
    ref = PodRef("ml", f"p{number}", f"u{number}")
    pod = replace(JOB, ref=ref, ask=PodRequest(expected_seconds=said))
    times.runs(pod, began)
    return pod


def test_those_count_too_that_still_run() -> None:
    """Found: one of 16 ran for half a day. Those that ended had all been short."""
    times = after(*[(JOB, 60.0)] * 20)
    long = [runs(times, number, 0.0) for number in range(21)]
    times.at(60.0)
    assert times.of(JOB) == 60.0
    times.at(61.0)
    assert times.of(JOB) is None, "21 of 41 run for longer"
    assert times.known().of(JOB) is None
    times.ended(long[0], 61.0)
    assert times.of(JOB) == 61.0, "20 of 41 run for longer than that"


def test_a_declared_time_counts_while_a_namespace_keeps_its_word() -> None:
    times = RunTimes()
    says = runs(times, 0, 0.0, said=600.0)
    assert times.of(says) == times.known().of(says) == 600.0
    for number in range(1, 4):
        runs(times, number, 0.0, said=600.0)
    times.at(720.0)
    assert times.of(says) == 600.0, "a tenth more, and a minute, is no broken word"
    times.at(721.0)
    assert times.of(says) is times.known().of(says) is None
    others = replace(says, ref=PodRef("vision", "p", "v"))
    assert times.of(others) == 600.0


def test_a_namespace_that_breaks_its_word_is_expected_to_run_as_its_pods_did() -> None:
    """Else a reservation could idle for as long as its owner likes."""
    times = RunTimes()
    says = runs(times, 0, 0.0, said=60.0)
    assert times.expected(says) == 60.0
    for number in range(1, 5):
        times.ended(runs(times, number, 0.0, said=60.0), 3600.0)
    assert times.expected(replace(says, ask=PodRequest(expected_seconds=1e6))) == 3600.0


def test_a_word_counts_again_once_most_are_kept() -> None:
    times = RunTimes()
    late = [runs(times, number, 0.0, said=1.0) for number in range(3)]
    for pod in late:
        times.ended(pod, 3600.0)
    assert times.of(late[0]) is None
    for number in range(3, 30):
        times.ended(runs(times, number, 0.0, said=60.0), 50.0)
    assert times.of(late[0]) == 1.0, "27 of 30 kept it"


def test_what_ended_leaves_nothing() -> None:
    times = RunTimes()
    for number in range(9):
        pod = runs(times, number, float(number), said=60.0)
        times.runs(pod, 5.0)  # the same again
        times.ended(pod, 10.0)
        times.ended(pod, 10.0)
    assert not times._began
    assert not times._running
    assert not times._words["ml"].due


def test_a_pod_that_starts_is_expected_to_run_for_the_mean_of_its_kind() -> None:
    times = after(*((JOB, seconds) for seconds in (60.0, 60.0, 480.0)), (SMALL, 1000.0))
    assert times.means(3600.0) == {
        ("ml", "Job", "8"): 200.0,
        ("ml",): 400.0,
        (): 400.0,
    }


def test_of_a_long_run_only_its_first_hours_count_so_one_of_weeks_does_not_outweigh_all() -> None:
    times = after((JOB, 60.0), (JOB, 60.0), (JOB, 1e6))
    assert times.means(3600.0)["ml", "Job", "8"] == 1240.0


def test_only_the_latest_count() -> None:
    times = after(*[(JOB, 60.0)] * 100, *[(JOB, 7200.0)] * 64)
    assert times.left(JOB, 0.0) == 7200.0


def test_of_very_many_kinds_those_are_forgotten_that_were_not_heard_of_for_longest() -> None:
    times = RunTimes()
    for number in range(6000):
        times.ended(replace(JOB, ref=PodRef(f"team-{number}", "p", "uid")), 60.0)
    assert len(times) <= 4096


def test_a_namespace_with_many_kinds_makes_room_from_its_own() -> None:
    times = after(*((OTHER_TEAM, 60.0),) * ENOUGH)
    for number in range(6000):
        times.ended(replace(JOB, owner_kind=f"Kind{number}"), 1.0)
    assert len(times) <= 4096
    kinds = times.means(3600.0)
    assert kinds["vision", "Job", "8"] == kinds["vision",] == 60.0
    assert kinds["ml",] == 1.0


def test_of_equal_namespaces_one_forgets_that_was_not_heard_of_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_times, "_MOST_KINDS", 64)
    times = after(*((OTHER_TEAM, 60.0),) * ENOUGH)
    for number in range(200):
        times.ended(replace(JOB, ref=PodRef(f"team-{number}", "p", "uid")), 60.0)
        if number % 16 == 0:
            times.ended(OTHER_TEAM, 60.0)
    assert times.means(3600.0)["vision",] == 60.0
    assert len(times) == 64


def test_of_very_many_namespaces_the_words_of_the_last_ones_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_times, "_MOST_KINDS", 64)
    times = RunTimes()
    for number in range(200):
        ref = PodRef(f"team-{number}", "p", "")
        for each in range(3):
            pod = replace(JOB, ref=replace(ref, uid=f"{number}-{each}"))
            pod = replace(pod, ask=PodRequest(expected_seconds=1.0))
            times.runs(pod, 0.0)
            times.ended(pod, 3600.0)
    assert len(times._words) == 64
    assert not times.word_counts("team-199")


def test_of_a_kind_of_owner_no_more_is_remembered_than_a_kind_may_have() -> None:
    """A pod may name an owner whose kind has a million letters."""
    times = after(*((replace(JOB, owner_kind="K" * 1_000_000), 60.0),) * ENOUGH)
    assert all(len(part) <= 63 for kind in times.means(3600.0) for part in kind)
