"""A few of the days; `python -m tests.liveness.days` lives through as many as there is time for."""

import subprocess
import sys
from unittest.mock import patch

import pytest

from linkwise.extender.next.cycle import changes
from linkwise.extender.next.queue.idle_limit import IdleLimit
from linkwise.extender.next.queue.unschedulable_pods import UnschedulablePods
from tests.liveness.day import Day, Trouble
from tests.liveness.days import live
from tests.liveness.judge import Judge


@pytest.mark.parametrize(
    ("seeds", "more"),
    [
        ("0", ()),
        ("2", ("--queue-order", "multifactor")),
        ("4", ("--other-filters",)),
        ("12", ("--hostile",)),
        ("18", ("--hostile-nodes", "--claims")),
        ("23", ("--moves",)),
        ("24", ("--claims",)),
        ("26", ("--claims",)),
        ("105", ("--waves",)),
        ("3", ("--lazy",)),
        ("5", ("--lazy",)),
    ],
)
def test_every_promise_is_kept_whatever_goes_wrong(seeds: str, more: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.liveness.days", "--days", "0.1", "--seeds", seeds]
    command += more
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broke one" in done.stdout


def fail_if_looks_are_limited(seed: int, seconds_a_pod: float) -> bool:
    with (
        patch.object(changes, "LARGE_GANG", 2),
        patch.object(changes, "SECONDS_A_POD", seconds_a_pod),
    ):
        return bool(live(seed, 0.1).failures)


def test_promises_are_kept_if_looks_at_gangs_are_rate_limited() -> None:
    assert not fail_if_looks_are_limited(10, 0.5)
    assert any(fail_if_looks_are_limited(seed, 1e9) for seed in range(4, 12))


def room_seen_late() -> Day:
    """kube-scheduler's watch shows that a pod has ended, and the extender's shows it 3 s later. So
    the pod that waits is refused, and no other event makes kube-scheduler try it again."""
    day = Day(trouble=Trouble(watch_late=3.0))
    judge = Judge(day)
    day.add_node("n1", "hgx-h100")
    day.make("first", 8, namespace="red", said={})
    day.live(day.now + 20, judge.before_jump)
    day.make("second", 1, namespace="red", said={})
    day.live(day.now + 20, judge.before_jump)
    day.end(day.pod("first").metadata.uid, "Succeeded")
    day.live(day.now + 200, judge.before_jump)
    return day


def test_a_pod_that_nobody_wakes_is_seen() -> None:
    assert not room_seen_late().failures
    with patch.object(UnschedulablePods, "_room_for", lambda *_: None):
        assert any("would do on" in failure for failure in room_seen_late().failures)


def test_a_hold_that_does_not_end_is_seen() -> None:
    with patch.object(IdleLimit, "look", lambda *_: set()):
        assert any("idles too much" in failure for failure in live(2, 0.25).failures)
