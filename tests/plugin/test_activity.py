"""Busy shares of pods, since when a pod is idle, and how seldom the Node is written."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.plugin.gpus.inventory import Load
from linkwise.plugin.node.activity import ActivityBook, Figures, Reports, holders_of
from linkwise.topology.annotations.activity import Activity, PodActivity
from linkwise.topology.annotations.plan import InUse

START = 1_763_000_000.0
EVERY = 10.0  # seconds between looks
GAP = 60.0
IDLE = 600.0
BUSY, REST = Load(1.0, worked=True, memory_mib=4096), Load(0.0, worked=False, memory_mib=2048)
BURST = Load(0.0, worked=True, memory_mib=2048)


class Node:
    """A plugin's looks at one node, as time passes."""

    def __init__(self, **pods: str) -> None:
        self.now = START
        self.pods = {f"ml/{name}": frozenset(gpus.split()) for name, gpus in pods.items()}
        self.figures: Mapping[str, Figures] = {}
        self.written: list[Activity] = []
        self.restart()

    def restart(self) -> None:
        self.book = ActivityBook(gap_seconds=GAP)
        self.reports = Reports(idle_seconds=IDLE)

    def look(self, **loads: Load) -> None:
        self.figures = self.book.looked(loads, self.pods, self.now)
        report = self.reports.due(self.figures, self.now)
        if report is not None:
            self.written.append(report)

    def run(self, seconds: float, **loads: Load) -> None:
        for _ in range(round(seconds / EVERY)):
            self.now += EVERY
            self.look(**loads)

    @property
    def told(self) -> Mapping[str, PodActivity]:
        return self.written[-1].pods


def shares(node: Node, pod: str, *expected: float) -> bool:
    """Whether the shares over 5m, 1h and 24h are those, except a minute at the windows' edges."""
    found = node.figures[pod].shares
    return [found["5m"], found["1h"], found["24h"]] == pytest.approx(expected, abs=0.02)


def test_the_busy_share_is_of_each_window_and_of_all_gpus_of_the_pod() -> None:
    node = Node(nb="a b")
    node.look(a=REST, b=REST)
    node.run(3600, a=BUSY, b=REST)
    assert shares(node, "ml/nb", 0.5, 0.5, 0.5)
    node.run(1800, a=REST, b=REST)
    assert shares(node, "ml/nb", 0.0, 0.25, 0.333)
    assert node.figures["ml/nb"].memory_mib == 4096


def test_the_day_ends_after_24_hours() -> None:
    node = Node(nb="a")
    node.look(a=REST)
    node.run(3600, a=BUSY)
    node.run(23 * 3600, a=REST)
    assert node.figures["ml/nb"].shares["24h"] == pytest.approx(1 / 24, abs=0.001)
    node.run(3600, a=REST)
    assert node.figures["ml/nb"].shares["24h"] == pytest.approx(0, abs=0.001)


def test_a_pod_is_idle_once_none_of_its_gpus_has_worked_for_ten_minutes() -> None:
    node = Node(nb="a b")
    node.look(a=REST, b=REST)
    node.run(300, a=REST, b=BUSY)
    worked = node.now
    node.run(1200, a=REST, b=REST)
    assert node.told["ml/nb"].idle == worked
    assert node.told["ml/nb"].memory == 4
    node.run(1200, a=REST, b=BURST)  # too short for a busy share
    assert node.told["ml/nb"].idle is None
    assert node.told["ml/nb"].memory is None


def test_a_young_pod_is_not_idle() -> None:
    node = Node()
    node.look()
    node.pods["ml/nb"] = frozenset({"a"})
    node.run(IDLE - EVERY, a=REST)
    assert all(pod.idle is None for report in node.written for pod in report.pods.values())
    node.run(IDLE, a=REST)
    assert node.told["ml/nb"].idle == START + EVERY


def test_a_pod_that_came_after_the_plugin_is_watched_whole_and_one_before_it_is_not() -> None:
    node = Node(old="a")
    node.look(a=REST)
    node.pods["ml/new"] = frozenset({"b"})
    node.run(3600, a=REST, b=REST)
    assert (node.told["ml/old"].whole, node.told["ml/new"].whole) == (False, True)


def test_after_a_restart_of_the_plugin_the_watch_begins_again() -> None:
    node = Node(nb="a")
    node.look(a=REST)
    node.run(7200, a=REST)
    node.restart()
    node.run(10, a=REST)
    assert node.told == {"ml/nb": PodActivity(since=int(node.now))}
    began = int(node.now)
    node.run(1200, a=REST)
    assert node.told["ml/nb"] == PodActivity(since=began, idle=began, memory=2)


def test_a_driver_that_says_nothing_makes_the_pod_unknown_and_its_watch_begins_again() -> None:
    node = Node(nb="a", other="b")
    node.look(a=REST, b=REST)
    node.run(7200, a=REST, b=REST)
    node.run(GAP, b=REST)
    assert {*node.figures} == {"ml/nb", "ml/other"}  # for as long as one or two answers are missing
    node.run(600, b=REST)
    assert {*node.told} == {"ml/other"}
    node.run(1200, a=REST, b=REST)
    assert node.told["ml/nb"].since == START + 7200 + GAP + 600 + EVERY
    assert node.told["ml/nb"].idle == node.told["ml/nb"].since
    assert node.told["ml/other"].idle == START


def test_a_gpu_of_which_the_driver_never_says_anything_leaves_its_pod_unknown() -> None:
    """In MIG mode, or on a virtual GPU."""
    node = Node(nb="a b")
    node.look(a=REST)
    node.run(7200, a=REST)
    assert node.figures == {}
    assert [report.pods for report in node.written] == [{}]


def test_a_pod_of_the_same_name_with_other_gpus_is_another_pod() -> None:
    node = Node(nb="a")
    node.look(a=REST)
    node.run(3600, a=REST)
    node.pods["ml/nb"] = frozenset({"b"})
    node.run(600, b=REST)
    assert node.told["ml/nb"].idle is None
    assert node.told["ml/nb"].since == START + 3600 + EVERY


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_clock_that_is_set_makes_no_pod_idle(jump: float) -> None:
    node = Node(nb="a")
    node.look(a=REST)
    node.run(300, a=BUSY)
    node.now += jump
    node.run(300, a=REST)
    assert node.told["ml/nb"].idle is None
    assert node.figures["ml/nb"].quiet_since == node.now - 300 + EVERY


def test_what_a_pod_did_before_the_clock_was_set_back_is_in_no_share() -> None:
    """Its minutes would be in the future until the clock is there again."""
    node = Node(nb="a")
    node.look(a=REST)
    node.run(3600, a=BUSY)
    node.now -= 7200
    node.run(3600, a=REST)
    assert shares(node, "ml/nb", 0.0, 0.0, 0.0)


def test_the_memory_of_a_pod_is_unknown_unless_all_its_gpus_tell_theirs() -> None:
    node = Node(nb="a b")
    node.look(a=REST, b=REST)
    assert node.figures["ml/nb"].memory_mib == 4096
    node.run(EVERY, a=REST, b=replace(REST, memory_mib=None))
    assert node.figures["ml/nb"].memory_mib is None


def test_what_an_idle_pod_does_is_written_once_and_then_every_ten_minutes() -> None:
    node = Node(nb="a")
    node.look(a=REST)
    node.run(24 * 3600, a=REST)
    states = [report.pods["ml/nb"] for report in node.written]
    # Known, idle, the share of the day known, and then nothing new.
    assert [(state.idle, state.day) for state in dict.fromkeys(states)] == [
        (None, None),
        (START, None),
        (START, 0),
    ]
    assert len(states) == pytest.approx(24 * 6, abs=2)


def test_a_busy_pod_is_written_once_its_day_is_known_and_then_never() -> None:
    node = Node(job="a")
    node.look(a=BUSY)
    node.run(24 * 3600, a=BUSY)
    assert [report.pods["ml/job"].day for report in node.written] == [None, 100]


def looks() -> st.SearchStrategy[list[tuple[int, ...]]]:
    """For stretches of time: which of three pods work."""
    return st.lists(
        st.tuples(
            st.sampled_from([10, 60, 300, 590, 600, 610, 3600]),
            *[st.sampled_from([0, 1]) for _ in range(3)],
        ),
        max_size=12,
    )


@given(looks())
def test_however_pods_behave_a_node_writes_at_most_once_in_five_minutes(
    stretches: Iterable[tuple[int, ...]],
) -> None:
    node = Node(p="a", q="b", r="c")
    for seconds, *works in stretches:
        loads = {name: BUSY if on else REST for name, on in zip("abc", works, strict=True)}
        node.run(seconds, **loads)
    times = [report.at for report in node.written]
    assert all(after - before >= IDLE / 2 for before, after in pairwise(times))


def test_holders_are_the_pods_with_whole_gpus() -> None:
    in_use = InUse(
        pods={"ml/p": {"main": ("a", "b"), "side": ("c",)}},
        shares={"ml/s": {"main": {"nvidia.com/gpu.shared": ("d::0",)}}},
    )
    assert holders_of(in_use) == {"ml/p": frozenset({"a", "b", "c"})}
