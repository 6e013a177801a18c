"""The HTML file: complete, safe for any name of a pod, and with nothing to load."""

from dataclasses import replace

import pytest

from linkwise.simulator.report.build_report import report_of
from linkwise.simulator.report.html import render_html
from linkwise.simulator.report.model import NodeReport
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from tests.parsed_page import ParsedPage
from tests.simulator.report.small_report import NODES, OURS, off, small_report

_NASTY = "<b>&\"x'"


def drawn(page: ParsedPage) -> list[str | None]:
    """Return the names of the nodes that are drawn."""
    return [svg["aria-label"] for svg in page.named("svg") if svg["class"] == "machine"]


def test_there_is_a_drawing_of_every_node_for_every_run() -> None:
    assert drawn(ParsedPage(render_html(small_report()))) == ["bridged", "bridged", "odd", "odd"]


def test_without_a_baseline_there_is_one_drawing_of_every_node() -> None:
    page = ParsedPage(render_html(small_report(baseline=False)))

    assert drawn(page) == ["bridged", "odd"]
    assert "draw 1 of" not in page.text


def test_drawings_say_in_words_who_holds_a_gpu_and_which_are_free() -> None:
    page = ParsedPage(render_html(small_report(baseline=False)))

    assert "held by default/train-x (train)" in page.text
    assert page.text.count(", free") == 3
    assert page.text.count(", unhealthy") == 1
    assert page.text.count(", held by") == 5


def test_the_table_the_reasons_and_the_verdict_are_there() -> None:
    text = ParsedPage(render_html(small_report())).text

    assert "gang of 2 runs; together 13.9 GB/s; alone: 13.9 GB/s" in text
    assert "big 2 of 2 pods No node has 9 GPUs. " in text
    assert text.count("No node has 9 GPUs.") == 1
    assert "3 of 3 pods hold exactly the GPUs of their plan" in text


def test_the_gain_of_three_figures_comes_before_the_places() -> None:
    text = ParsedPage(render_html(small_report())).text

    assert text.index("1.0× the GB/s of the scheduler alone") < text.index(
        "0 of 1 workloads have more"
    )
    assert text.index("from the worst, train") < text.index("Placements")
    assert "scheduler alone" not in ParsedPage(render_html(small_report(baseline=False))).text


def test_a_pod_that_ended_before_anybody_saw_its_gpus_is_not_said_to_wait() -> None:
    ended = replace(OURS[3], had=frozenset())
    page = ParsedPage(render_html(report_of(NODES, [ended], [], seed=1)))

    before, _, _ = page.text.partition("Pods in time")
    assert before.count("ended") == 2
    assert "waits" not in before


def test_faults_are_listed_and_nothing_is_said_to_be_well() -> None:
    text = ParsedPage(render_html(replace(small_report(), faults=("<1> of 2", "and more")))).text

    assert "Failed: <1> of 2 and more" in text
    assert "exactly the GPUs of their plan" not in text


def test_whatever_things_are_called_no_tag_comes_of_it() -> None:
    node = replace(NODES[0], name=_NASTY, title=_NASTY)
    pod = replace(
        OURS[0], pod=_NASTY, workload=_NASTY, member=_NASTY, node=_NASTY, needed=0
    )  # fmt: skip
    waits = off(pod=f"{_NASTY}2", workload=f"{_NASTY}2", member=_NASTY, waits=_NASTY)
    fault = replace(pod, pod=f"{_NASTY}3", held={"<i>": pod.held["trainer"]})
    page = ParsedPage(render_html(report_of([node], [pod, waits, fault], [[pod]], seed=1)))

    assert not page.named("b")
    assert not [tag for tag in page.named("i") if not {"class", "style"} & tag.keys()]
    assert drawn(page) == [_NASTY, _NASTY]
    assert page.text.count(_NASTY) >= 8


def test_nothing_is_loaded_and_nothing_is_run() -> None:
    text = render_html(small_report())
    page = ParsedPage(text)

    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not [a for _, attrs in page.tags for a in attrs if a in ("src", "href") or a[:2] == "on"]


@pytest.mark.parametrize("name", machine_names())
def test_every_recorded_machine_is_drawn_inside_its_frame(name: str) -> None:
    node = NodeReport("n", name, recorded_machine(name))
    page = ParsedPage(render_html(report_of([node], [], [], seed=1)))
    (svg,) = page.named("svg")
    width, height = (float(word) for word in str(svg["viewbox"]).split()[2:])

    assert [group["class"] for group in page.named("g")] == ["gpu free"] * node.gpu_count
    boxes = page.named("rect")
    assert len(boxes) >= node.gpu_count
    for box in boxes:
        x, y, w, h = (float(str(box[key])) for key in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + w <= width
        assert y >= 0
        assert y + h <= height


def test_more_workloads_than_colours_still_each_have_one() -> None:
    pods = [off(pod=f"p{number}", workload=f"w{number}", member="0") for number in range(20)]
    text = render_html(report_of(NODES, pods, [], seed=1))
    used = {
        name for tag in ParsedPage(text).named("span") for name in str(tag.get("class")).split()
    }

    assert {name for name in used if name[0] == "b" and name != "badge"} == {
        f"b{number}" for number in range(8)
    }
    assert ".b7 {" in text
    assert ".b8 {" not in text
