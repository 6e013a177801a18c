"""What is remembered between the kubelet's calls."""

import logging
import random
import time
from threading import Thread

import pytest

from linkwise.kube.objects import Pod
from linkwise.plugin.device_plugin.allocate import Question, Source, pick_ring
from linkwise.plugin.device_plugin.preferred_allocation import Advisor, Allocation, Judgement
from linkwise.topology.machine.model import LinkClass, Machine
from tests.machines import DGX_1V
from tests.plugin.pods import RESOURCE, decided, pod
from tests.waiting import wait_for

ALL = frozenset(gpu.uuid for gpu in DGX_1V.gpus)


def gpus(*indices: int) -> tuple[str, ...]:
    return tuple(DGX_1V.gpus[index].uuid for index in indices)


def planned(name: str, *indices: int) -> Pod:
    notes = decided(f"uid-{name}", {"main": gpus(*indices)})
    return pod(name, ("main", len(indices)), annotations=notes)


def advisor(*, wait: float = 0.0) -> Advisor:
    return Advisor(node="n1", resource=RESOURCE, pick=pick_ring, pod_wait_seconds=wait)


def question(size: int, available: frozenset[str] = ALL) -> Question:
    return Question(available, frozenset(), size)


def test_pods_of_one_size_asked_for_at_once_each_get_their_own_plan() -> None:
    plans = [(0, 5), (1, 6), (2, 7), (3, 4)]
    desk = advisor()
    for number, plan in enumerate(plans):
        desk.pod_event("ADDED", planned(f"w{number}", *plan))
    given = [desk.ask(DGX_1V, question(2)).gpus for _ in plans]
    assert given == [gpus(*plan) for plan in plans]


def test_the_next_kubelet_asks_again_for_what_was_never_allocated() -> None:
    desk = advisor()
    desk.pod_event("ADDED", planned("w", 1, 6))
    assert desk.ask(DGX_1V, question(2)).source is Source.PLAN
    desk.kubelet_restarted()
    assert desk.ask(DGX_1V, question(2)).source is Source.PLAN


def test_a_pod_that_the_watch_shows_late_is_waited_for() -> None:
    desk = advisor(wait=10)
    answers: list[tuple[str, ...]] = []
    asking = Thread(target=lambda: answers.append(desk.ask(DGX_1V, question(2)).gpus))
    asking.start()
    desk.pod_event("ADDED", planned("other", 0, 1, 2, 3))  # not the size asked for
    desk.pod_event("ADDED", planned("w", 1, 6))
    asking.join(5)
    assert answers == [gpus(1, 6)]


def test_a_pod_that_never_shows_is_waited_for_only_so_long() -> None:
    began = time.monotonic()
    answer = advisor(wait=0.05).ask(DGX_1V, question(2))
    assert (answer.source, answer.pod) == (Source.FREE_CHOICE, None)
    assert 0.05 <= time.monotonic() - began < 5


def test_with_the_watch_dead_nobody_is_waited_for() -> None:
    desk = Advisor(
        node="n1",
        resource=RESOURCE,
        pick=pick_ring,
        pod_wait_seconds=3600,
        watching=lambda: False,
    )
    assert desk.ask(DGX_1V, question(2)).source is Source.FREE_CHOICE


def test_allocate_is_compared_with_what_was_preferred() -> None:
    desk = advisor()
    desk.pod_event("ADDED", planned("w", 1, 6))
    desk.ask(DGX_1V, question(2))
    wanted = frozenset(gpus(1, 6))
    assert desk.allocated(frozenset(gpus(0, 3))) == Allocation("ml/w", "main", wanted, False)
    assert desk.allocated(frozenset(gpus(0))) == Allocation("", "", None, True)


def test_an_allocate_of_another_size_is_not_the_answer_to_the_last_question() -> None:
    desk = advisor()
    desk.replace_pods([planned("asks", 1, 6), planned("silent", 5)])
    desk.ask(DGX_1V, question(2))
    assert desk.allocated(frozenset(gpus(5))) == Allocation("ml/silent", "main", None, True)


def test_a_change_of_a_pod_that_was_served_does_not_make_it_ask_again() -> None:
    desk = advisor()
    desk.replace_pods([planned("a", 1, 6), planned("b", 0, 3)])
    desk.ask(DGX_1V, question(2))
    desk.pod_event("MODIFIED", planned("a", 1, 6))
    assert desk.ask(DGX_1V, question(2)).gpus == gpus(0, 3)


def test_what_the_kubelet_gives_without_asking_is_put_down_to_the_pod_that_planned_it() -> None:
    desk = advisor()
    desk.pod_event("ADDED", planned("a", 1, 6))
    desk.pod_event("ADDED", planned("b", 0, 3))
    assert desk.allocated(frozenset(gpus(0, 3))).pod == "ml/b"
    assert desk.ask(DGX_1V, question(2)).gpus == gpus(1, 6)


def test_after_a_restart_of_ours_pods_that_hold_devices_wait_no_more() -> None:
    desk = advisor()
    desk.replace_pods([planned("a", 1, 6), planned("b", 0, 3)])
    desk.account_for({"ml/a": {"main": gpus(1, 6)}})
    assert desk.ask(DGX_1V, question(2)).gpus == gpus(0, 3)


def test_a_pod_that_our_watch_shows_after_it_got_its_gpus_is_not_taken_for_the_next() -> None:
    desk = advisor()
    late = desk.ask(DGX_1V, question(2)).gpus
    desk.allocated(frozenset(late))
    desk.replace_pods([planned("late", 1, 6), planned("next", 5, 7)])
    assert not set(late) & set(gpus(1, 5, 6, 7))
    desk.account_for({"ml/late": {"main": late}})
    answer = desk.ask(DGX_1V, question(2, ALL - set(late)))
    assert (answer.source, answer.gpus) == (Source.PLAN, gpus(5, 7))


def test_containers_before_one_that_holds_gpus_have_been_served_and_those_after_it_not() -> None:
    desk = advisor()
    desk.pod_event("ADDED", pod("job", ("main", 2), init=[("ended", 2), ("side", 1, "Always")]))
    desk.account_for({"ml/job": {"side": gpus(5), "unheard-of": gpus(6)}})
    (waiting,) = desk.waiting
    assert waiting.served == {"ended": (), "side": gpus(5)}
    assert waiting.next is not None
    assert waiting.next.name == "main"


def test_two_pods_taken_for_each_other_swap_their_plans() -> None:
    """The first was not the one that asked: what it was given shows under the second's name."""
    desk = advisor()
    desk.replace_pods([planned("a", 1, 6), planned("b", 0, 3)])
    desk.allocated(frozenset(desk.ask(DGX_1V, question(2)).gpus))
    desk.account_for({"ml/b": {"main": gpus(1, 6)}})
    assert desk.ask(DGX_1V, question(2, ALL - set(gpus(1, 6)))).gpus == gpus(0, 3)


def test_pods_that_start_fail_or_go_wait_no_more() -> None:
    desk = advisor()
    desk.replace_pods([planned("a", 0), planned("b", 1), planned("c", 2)])
    desk.pod_event("MODIFIED", pod("a", ("main", 1), changes={"status": {"phase": "Failed"}}))
    desk.pod_event("DELETED", planned("b", 1))
    assert [waiting.key for waiting in desk.waiting] == ["ml/c"]
    desk.replace_pods([])
    assert desk.waiting == ()


def test_first_seen_is_by_age_in_a_first_list_whatever_its_order() -> None:
    made = [
        pod(
            name,
            ("main", 1),
            changes={
                "metadata": {"uid": name, "creationTimestamp": f"2026-11-21T08:00:0{second}Z"}
            },
        )
        for name, second in (("z", 1), ("m", 2), ("a", 3))
    ]
    random.Random(1).shuffle(made)
    desk = advisor()
    desk.replace_pods(made)
    assert [waiting.key for waiting in desk.waiting] == ["ml/z", "ml/m", "ml/a"]


def test_what_pods_really_hold_is_judged_once_also_after_they_have_started() -> None:
    desk = advisor()
    desk.replace_pods([planned("kept", 1, 6), planned("swapped", 0, 3)])
    desk.pod_event(
        "MODIFIED", pod("swapped", ("main", 2), changes={"status": {"phase": "Running"}})
    )
    holds = {
        "ml/kept": {"main": gpus(1, 6)},
        "ml/swapped": {"main": gpus(4, 5)},
        "ml/stranger": {"main": gpus(7)},
    }
    assert desk.judge(holds) == [
        Judgement("ml/kept", "main", as_planned=True),
        Judgement("ml/swapped", "main", as_planned=False),
    ]
    assert desk.judge(holds) == []


def test_a_complaint_about_a_pod_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    desk = advisor()
    bad = pod("w", ("main", 1), annotations=decided("uid-w", {}) | {"linkwise.dev/gpus": "{"})
    with caplog.at_level(logging.WARNING):
        desk.pod_event("ADDED", bad)
        desk.pod_event("MODIFIED", bad)
    assert [record.message[:31] for record in caplog.records] == ["pod ml/w: linkwise.dev/gpus: '{"]


def test_waiting_is_over_as_soon_as_the_pod_shows() -> None:
    desk = advisor(wait=60)
    done: list[Source] = []
    Thread(target=lambda: done.append(desk.ask(DGX_1V, question(1)).source), daemon=True).start()
    desk.pod_event("ADDED", pod("plain", ("main", 1)))
    wait_for(lambda: done == [Source.FREE_CHOICE], "the answer")


def careless(_machine: Machine, _free: int, _size: int, _must: int, _prefer: LinkClass) -> int:
    return DGX_1V.mask_of(gpus(0, 5))  # without an NVLink between them


def test_a_better_answer_of_somebody_else_counts_in_the_place_of_ours() -> None:
    desk = Advisor(node="n1", resource=RESOURCE, pick=careless, pod_wait_seconds=0.0)
    desk.pod_event("ADDED", pod("free", ("main", 2)))
    asked = question(2)
    ours = desk.ask(DGX_1V, asked)
    assert desk.compare(DGX_1V, asked, ours, gpus(5, 0)) is ours  # no better
    better = desk.compare(DGX_1V, asked, ours, gpus(3, 0))
    assert (better.gpus, better.source) == (gpus(0, 3), Source.VENDOR)
    assert [waiting.served for waiting in desk.waiting] == [{"main": gpus(0, 3)}]
    told = desk.allocated(frozenset(gpus(0, 3)))
    assert told == Allocation("ml/free", "main", frozenset(gpus(0, 3)), as_preferred=True)


def test_an_answer_that_comes_too_late_changes_nothing_of_the_next_question() -> None:
    desk = Advisor(node="n1", resource=RESOURCE, pick=careless, pod_wait_seconds=0.0)
    desk.pod_event("ADDED", pod("first", ("main", 2)))
    ours = desk.ask(DGX_1V, question(2))
    desk.pod_event("ADDED", pod("second", ("main", 2)))
    following = desk.ask(DGX_1V, question(2))
    desk.compare(DGX_1V, question(2), ours, gpus(0, 3))
    assert [waiting.served["main"] for waiting in desk.waiting] == [ours.gpus, following.gpus]
    assert desk.allocated(frozenset(following.gpus)).pod == "ml/second"
