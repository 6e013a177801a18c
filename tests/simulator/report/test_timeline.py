"""The report's picture of pods in time, on stated times: its words, its axis and its lines."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.drawing.times import PodTimes
from linkwise.simulator.report.as_json import render_json
from linkwise.simulator.report.build_report import report_of
from linkwise.simulator.report.html import render_html
from linkwise.simulator.report.model import Report, SeenPod
from linkwise.simulator.report.timeline import MOST_ROWS, time_words, timeline_of
from tests.parsed_page import ParsedPage
from tests.simulator.report.small_report import NODES, small_report

WAITS = PodTimes(1.0)
STARTS = PodTimes(1.0, 2.0)
RUNS = PodTimes(1.0, 2.0, 3.0)
ENDED = PodTimes(1.0, 2.0, 3.0, 5.0)


def report(*pods: PodTimes, failed: bool = False, at: float = 11.0) -> Report:
    """Return the report of one workload; pods that have ended have succeeded, unless *failed*."""
    seen = [
        SeenPod(f"p{n}", "w", 0, str(n), times, ended=times.ended is not None and not failed)
        for n, times in enumerate(pods)
    ]
    return report_of(NODES, seen, [], seed=1, at=at)


@pytest.mark.parametrize(
    ("pods", "failed", "words"),
    [
        ([RUNS], False, "bound 1.00 s after it was created"),
        ([WAITS], False, "waits still"),
        ([WAITS, WAITS], False, "2 of 2 wait still"),
        ([RUNS, ENDED, STARTS], False, "3 of 3 bound 1.00 s after the last of these was created"),
        (
            [RUNS, WAITS],
            False,
            "1 of 2 bound 1.00 s after the last of these was created; 1 of 2 waits still",
        ),
        ([ENDED], True, "bound 1.00 s after it was created; failed"),
        ([PodTimes(1.0, ended=2.0)], True, "failed"),
    ],
)
def test_a_workload_has_its_time_in_words(pods: list[PodTimes], failed: bool, words: str) -> None:
    assert time_words(report(*pods, failed=failed).workloads[0]) == words


@pytest.mark.parametrize(
    ("times", "failed", "cells"),
    [
        (WAITS, False, ["0.00", "not yet", "", ""]),
        (STARTS, False, ["0.00", "1.00", "", ""]),
        (RUNS, False, ["0.00", "1.00", "2.00", ""]),
        (ENDED, False, ["0.00", "1.00", "2.00", "4.00"]),
        (ENDED, True, ["0.00", "1.00", "2.00", "4.00, failed"]),
        (PodTimes(1.0, 2.0, None, 5.0), False, ["0.00", "1.00", "not seen", "4.00"]),
    ],
)
def test_a_pod_has_its_moments_in_numbers(times: PodTimes, failed: bool, cells: list[str]) -> None:
    ((row,),) = (part.rows for part in timeline_of(report(times, failed=failed)).parts)

    assert row.name == "A"
    assert list(row.cells.values()) == cells


@pytest.mark.parametrize(
    ("times", "lines"),
    [
        (WAITS, {"waits": "M0 8H300"}),
        (STARTS, {"waits": "M0 8H30", "starts": "M30 8H300", "hollow": "M32 8H298"}),
        (
            RUNS,
            {
                "waits": "M0 8H30",
                "starts": "M30 8H60",
                "hollow": "M32 8H58",
                "runs": "M60 8H300",
            },
        ),
        (
            ENDED,
            {
                "waits": "M0 8H30",
                "starts": "M30 8H60",
                "hollow": "M32 8H58",
                "runs": "M60 8H120",
            },
        ),
        (PodTimes(1.0, ended=5.0), {"waits": "M0 8H120"}),
    ],
)
def test_what_goes_on_reaches_to_the_right_edge(times: PodTimes, lines: dict[str, str]) -> None:
    """The axis has ten seconds on 300 pixels."""
    ((row,),) = (part.rows for part in timeline_of(report(times)).parts)

    (lane,) = row.lanes
    assert {what: path for what, path in lane.lines._asdict().items() if path} == lines


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        (0.0, [(0, "0 s"), (20, "0.02 s"), (40, "0.04 s"), (60, "0.06 s"), (80, "0.08 s")]),
        (2.0, [(0, "0 s"), (25, "0.5 s"), (50, "1 s"), (75, "1.5 s")]),
        (8.0, [(0, "0 s"), (25, "2 s"), (50, "4 s"), (75, "6 s")]),
        (200.0, [(0, "0 s"), (25, "50 s"), (50, "100 s"), (75, "150 s")]),
        (40000.0, [(0, "0 s"), (25, "10000 s"), (50, "20000 s"), (75, "30000 s")]),
    ],
)
def test_the_axis_has_few_and_round_numbers(seconds: float, ticks: list[tuple[float, str]]) -> None:
    assert list(timeline_of(report(WAITS, at=1.0 + seconds)).ticks) == ticks


@given(st.floats(0, 1e9))
def test_an_axis_of_any_length_has_some_numbers_and_all_are_on_it(seconds: float) -> None:
    shares = [share for share, _ in timeline_of(report(WAITS, at=1.0 + seconds)).ticks]

    assert 3 <= len(shares) <= 7
    assert shares[0] == 0
    assert shares == sorted(set(shares))
    assert shares[-1] <= 95


def test_of_many_pods_each_workload_is_one_row_and_each_pod_a_line_of_its_own() -> None:
    few, many = ([RUNS] * (count - 1) + [WAITS] for count in (MOST_ROWS, MOST_ROWS + 1))

    assert [len(part.rows) for part in timeline_of(report(*few)).parts] == [MOST_ROWS]
    timeline = timeline_of(report(*many))
    ((row,),) = (part.rows for part in timeline.parts)
    assert row.name == ""
    assert len(row.lanes) == MOST_ROWS + 1
    heights = [float(lane.lines.waits.split()[1].partition("H")[0]) for lane in row.lanes]
    assert heights == sorted(set(heights))
    assert 0 < heights[0] < heights[-1] < row.height
    assert "A1: created 0.00, bound 1.00, runs 2.00" in render_html(report(*many))
    assert "A1: " not in render_html(report(*few))
    assert row.cells["bound"] == "1.00, 1 not yet"


def test_a_row_of_many_pods_has_their_first_and_their_last_moment() -> None:
    pods = [PodTimes(1.0 + n, 2.0 + n) for n in range(MOST_ROWS + 1)]

    ((row,),) = (part.rows for part in timeline_of(report(*pods)).parts)
    assert (row.cells["created"], row.cells["bound"]) == ("0.00 to 48.00", "1.00 to 49.00")


def test_the_page_has_every_line_and_beside_it_its_numbers() -> None:
    page = ParsedPage(render_html(small_report()))

    words = " ".join(str(page.elements["times"]["text"]).split())
    assert "watch saw each change, because the API's times have whole seconds only" in words
    assert "thin line: waits hollow bar: bound, its containers start full bar: runs" in words
    assert "0 s 1 s 2 s 3 s created bound runs ended" in words
    assert "B lone bound 0.25 s after it was created B 0.00 0.25 0.50 C done" in words
    assert words.endswith("D big 2 of 2 wait still D0 1.00 not yet D1 1.00 not yet")
    bars = [svg for svg in page.named("svg") if str(svg["class"]).startswith("times")]
    assert [svg["class"] for svg in bars[3:]] == [f"times t{n}" for n in (0, 0, 1, 2, 3, 3)]
    assert [path["d"] for path in page.named("path") if path.get("class") == "waits"][-1] == (
        "M75 8H300"
    )


def test_without_a_pod_that_has_ended_there_is_no_such_column() -> None:
    assert timeline_of(report(RUNS)).heads == ("created", "bound", "runs")
    assert ">ended<" not in render_html(report(RUNS))


def test_without_pods_the_page_has_no_times() -> None:
    assert "times" not in ParsedPage(render_html(report())).elements


def test_every_colour_and_every_line_of_the_page_has_its_style() -> None:
    text = render_html(small_report())

    for what in ("waits", "starts", "hollow", "runs", "t0", "t7"):
        assert re.search(rf"\.{what}\b[^{{}}]*\{{", text.partition("</style>")[0]), what


def test_json_has_the_same_moments_as_numbers() -> None:
    seen = [
        SeenPod("p0", "w", 0, "0", PodTimes(1.0, 1.0301251, 1.5)),
        SeenPod("p1", "w", 0, "1", PodTimes(1.01)),
    ]
    seen.append(SeenPod("p2", "w", 0, "2", PodTimes(1.5, ended=2.0)))
    read = json.loads(render_json(report_of(NODES, seen, [], seed=1, at=3.25)))

    assert read["seconds"] == 2.25
    (workload,) = read["workloads"]
    assert workload["bound_after_seconds"] == 0.03
    assert [pod["seconds"] for pod in workload["pods"]] == [
        {"created": 0.0, "bound": 0.03, "running": 0.5, "ended": None},
        {"created": 0.01, "bound": None, "running": None, "ended": None},
        {"created": 0.5, "bound": None, "running": None, "ended": 1.0},
    ]
    assert [pod["state"] for pod in workload["pods"]] == ["waits", "waits", "failed"]
    assert [workload[what] for what in ("running", "waiting", "ended", "failed")] == [0, 2, 0, 1]
